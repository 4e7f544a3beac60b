"""`perfci publish`: judge what a workflow run measured, and say so on GitHub."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import typer

from perfci.model.base import DeviceKind, UsageError
from perfci.render.escape import prose, visible

_PACKAGES = {"github": "PyGithub"}
"""Module → the package that has it, where the names differ."""


def publish_run(measuring: tuple[str, str, str], **options: Any) -> None:
    """One whole publication, from the runner's environment. Ends the process with the verdict's exit code.

    `measuring`: base, cases and devices as the measuring action was given them.
    """
    from perfci.github.event import load
    from perfci.github.workflow import Files
    from perfci.render import comment

    try:
        from perfci.github.api import Api
        from perfci.github.measured import Scope
        from perfci.github.publish import publish
        from perfci.github.source import Wanted
    except ModuleNotFoundError as error:
        if (error.name or "perfci").partition(".")[0] == "perfci":
            raise
        name = _PACKAGES.get(error.name or "", error.name)
        raise UsageError(f'publish: {name} is not installed here: pip install "perfci[github]"') from None

    base, cases, named = measuring
    if unknown := set(named.split()) - set(get_args(DeviceKind)):
        raise UsageError(f"--device {unknown.pop()!r}: write cuda, cpu, or both separated by white space")
    devices = tuple(device for device in get_args(DeviceKind) if device in named.split())
    wanted = Wanted(scope=Scope(base, tuple(cases.split()), devices), **options)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", wanted.suite) or len(wanted.suite) > 60:
        raise UsageError(f"--suite {wanted.suite!r}: use lower-case letters and digits, with single hyphens between")
    if wanted.policy.startswith(("/", "~")) or ".." in wanted.policy.split("/"):
        raise UsageError(f"--policy {wanted.policy!r}: must be a path inside the repository")
    env = os.environ
    token = env.get("GITHUB_TOKEN", "")
    if not token:
        raise UsageError("GITHUB_TOKEN: is not set: add `env: {GITHUB_TOKEN: ${{ github.token }}}`")
    found = load(env)
    api = Api(token, found.origin.repository, env.get("GITHUB_API_URL") or "https://api.github.com")
    files = Files(env)
    outcome = publish(found, _action(env), wanted, api)
    report = outcome.publication
    if outcome.waiting:
        typer.echo(_line(f"nothing to publish: {outcome.waiting}"))
        for line in outcome.notes:
            typer.echo(_line(f"- {line}"))
        if outcome.stale:
            typer.echo(_line("the checks of the commit may say what does not hold any more: run this job again"))
        files.summary([f"Nothing to publish: {outcome.waiting}.\n{_notes(outcome.notes)}"])
        raise typer.Exit(outcome.exit_code)

    notes = _notes(outcome.notes)
    files.summary([f"{text}{notes}\n" for text in (comment.render_summary(report), comment.render(report), "")])
    verdict = {0: "undecided" if report.undecided else "pass", 1: "fail"}.get(outcome.exit_code, "error")
    url = outcome.comment.url if outcome.comment else ""
    files.outputs({"verdict": verdict, "comment-url": url, "check-url": outcome.check})
    typer.echo(_line(comment.render_check(report).title))
    for line in [*report.missing, *outcome.notes]:
        typer.echo(_line(f"- {line}"))
    if outcome.comment is not None:
        typer.echo(_line(f"comment: {outcome.comment.state} {url}"))
    raise typer.Exit(outcome.exit_code)


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"\n> ⚠️ {prose(note, 500)}\n" for note in notes)


def _line(text: str) -> str:
    """One line of the log that the runner takes for no command."""
    return " " + visible(text).replace("##[", "## [")


def _action(env: Mapping[str, str]) -> str:
    """What happened, such as `labeled`; empty for events that have no such word."""
    action = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_bytes()).get("action")
    return action if isinstance(action, str) else ""
