"""`perfci history alert`: one issue per device."""

import os
from pathlib import Path
from typing import Any

import typer
from pydantic import TypeAdapter, ValidationError

from perfci.cli.publish import log_line, not_installed
from perfci.github.event import Slug
from perfci.github.settings import Suite
from perfci.history.alert import Alerts, find_alerts
from perfci.history.series import read
from perfci.history.store import open_store
from perfci.model.base import MachineError, UsageError
from perfci.render import alert as words
from perfci.render.history import fault_lines

_SITE, _API = "https://github.com", "https://api.github.com"
_MOST = 16
"""Devices with an alert: a store of a few machines has no more."""


def keep_issues(store: str, repository: str, suite: str, where: Path) -> None:
    """Open, update or close the issue of each device in the store.

    Ends the process with 0. Raises UsageError, and MachineError where the store or GitHub fails.
    """
    _require(Suite, f"--suite {suite!r}", suite, "use lower-case letters and digits, with single hyphens between")
    _require(Slug, f"--repository {repository!r}", repository, "write owner/name")
    token = os.environ.get("GITHUB_TOKEN", "")
    if not token:
        raise UsageError("GITHUB_TOKEN: is not set: add `env: {GITHUB_TOKEN: ${{ github.token }}}`")
    opened = open_store(store, where)
    devices = find_alerts(read(opened))
    for line in fault_lines(opened.faults):
        typer.echo(log_line(line))
    if (many := sum(bool(device.open) for device in devices)) > _MOST:
        raise MachineError(f"{opened.text}: names {many} devices with alerts, more than {_MOST}: see who writes to it")
    address = f"{os.environ.get('GITHUB_SERVER_URL') or _SITE}/{repository}"
    _settle(devices, suite, address, repository, token)
    raise typer.Exit(0)


def _require(form: Any, option: str, text: str, todo: str) -> None:
    try:
        TypeAdapter(form).validate_python(text)
    except ValidationError:
        raise UsageError(f"{option}: {todo}") from None


def _settle(devices: list[Alerts], suite: str, address: str, repository: str, token: str) -> None:
    try:
        from perfci.github.alert import settle
        from perfci.github.api import Api, ApiError, Forbidden
    except ModuleNotFoundError as error:
        raise not_installed("history alert", error) from None
    api = Api(token, repository, os.environ.get("GITHUB_API_URL") or _API)
    for device in devices:
        try:
            settled = settle(device, suite, address, api)
        except Forbidden as error:
            raise ApiError(f"{error}: give the job `permissions: {{issues: write}}`", error.status) from None
        issue = {"none": "no issue", "left open": "left open, since the store does not tell how it goes on:"}
        state = issue.get(settled.state, settled.state)
        typer.echo(log_line(f"{device.name}: {' '.join(filter(None, [state, settled.url]))}"))
        if settled.retired:
            typer.echo(log_line(f"  closed as duplicates: {', '.join(f'#{number}' for number in settled.retired)}"))
        for line in words.lines(device):
            typer.echo(f"  {log_line(line)}")
