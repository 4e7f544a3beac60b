"""`perfci publish`: judge what a workflow run measured, and say so on GitHub."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from perfci.model.base import DeviceKind, PerfciError, UsageError
from perfci.model.results import MOST_MODELS
from perfci.render.escape import prose, visible

if TYPE_CHECKING:
    from perfci.github.api import Api
    from perfci.github.event import Context
    from perfci.github.source import Wanted
    from perfci.github.workflow import Files

_PACKAGES = {"github": "PyGithub"}
"""Module → the package that has it, where the names differ."""


def publish_run(
    measuring: tuple[str, str, str, int], here: Path | None = None, store: str = "", **options: Any
) -> None:
    """Do one whole publication, from the runner's environment. Ends the process with the verdict's exit code.

    `measuring`: base, cases, devices and models as the measuring action was given them. `here`: the folder in which
    this job measured, of which the comment alone is written; ends with 0 then, or 3 where it could not be. `store`:
    the history that tells where main stood; empty for none.
    """
    from perfci.github.event import load
    from perfci.github.workflow import Files
    from perfci.render import comment

    try:
        from perfci.github.api import Api
        from perfci.github.measured import Scope
        from perfci.github.publish import publish
        from perfci.github.source import Wanted
        from perfci.github.standing import open_history
    except ModuleNotFoundError as error:
        raise not_installed("publish", error) from None

    base, cases, named, models = measuring
    if unknown := set(named.split()) - set(get_args(DeviceKind)):
        raise UsageError(f"--device {unknown.pop()!r}: write cuda, cpu, or both separated by white space")
    if not 0 <= models <= MOST_MODELS:
        raise UsageError(f"--models {models}: write a number from 1 to {MOST_MODELS}")
    devices = tuple(device for device in get_args(DeviceKind) if device in named.split())
    wanted = Wanted(scope=Scope(base, tuple(cases.split()), devices, models), **options)
    require_suite(wanted.suite)
    if wanted.policy.startswith(("/", "~")) or ".." in wanted.policy.split("/"):
        raise UsageError(f"--policy {wanted.policy!r}: must be a path inside the repository")
    env = os.environ
    token = env.get("GITHUB_TOKEN", "")
    if not token:
        raise UsageError("GITHUB_TOKEN: is not set: add `env: {GITHUB_TOKEN: ${{ github.token }}}`")
    found = load(env)
    if store:
        server = env.get("GITHUB_SERVER_URL") or "https://github.com"
        wanted = replace(wanted, history=partial(open_history, store, found.origin.repository, server, token))
    api = Api(token, found.origin.repository, env.get("GITHUB_API_URL") or "https://api.github.com")
    files = Files(env)
    if here is not None:
        _comment(found, here, wanted, api, files, env)
        raise typer.Exit(0)
    outcome = publish(found, _action(env), wanted, api)
    report = outcome.publication
    if outcome.waiting:
        typer.echo(log_line(f"nothing to publish: {outcome.waiting}"))
        for line in outcome.notes:
            typer.echo(log_line(f"- {line}"))
        if outcome.stale:
            typer.echo(log_line("the checks of the commit may say what does not hold any more: run this job again"))
        files.summary([f"Nothing to publish: {outcome.waiting}.\n{_notes(outcome.notes)}"])
        raise typer.Exit(outcome.exit_code)

    notes = _notes(outcome.notes)
    files.summary([f"{text}{notes}\n" for text in (comment.render_summary(report), comment.render(report), "")])
    verdict = {0: "undecided" if report.undecided else "pass", 1: "fail"}.get(outcome.exit_code, "error")
    url = outcome.comment.url if outcome.comment else ""
    files.outputs({"verdict": verdict, "comment-url": url, "check-url": outcome.check})
    typer.echo(log_line(comment.render_check(report).title))
    for line in [*report.missing, *outcome.notes, *filter(None, [outcome.unread])]:
        typer.echo(log_line(f"- {line}"))
    if outcome.comment is not None:
        typer.echo(log_line(f"comment: {outcome.comment.state} {url}"))
    raise typer.Exit(outcome.exit_code)


def require_suite(name: str) -> None:
    """Raise UsageError for what is no name of a suite: it stands in markers, and begins the names of checks."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > 60:
        raise UsageError(f"--suite {name!r}: use lower-case letters and digits, with single hyphens between")


def not_installed(verb: str, error: ModuleNotFoundError) -> UsageError:
    """Return the error that says what a verb needs. Raises `error` where it is of perfci's own modules."""
    if (error.name or "perfci").partition(".")[0] == "perfci":
        raise error
    name = _PACKAGES.get(error.name or "", error.name)
    return UsageError(f'{verb}: {name} is not installed here: pip install "perfci[github]"')


def _comment(
    context: "Context", folder: Path, wanted: "Wanted", api: "Api", files: "Files", env: Mapping[str, str]
) -> None:
    """Write the comment of what this job measured. Raises what `write_comment` raises, once the runner was told."""
    from perfci.github import workflow
    from perfci.github.here import write_comment
    from perfci.github.settings import RAW_SUFFIX
    from perfci.model.publication import Artifact

    name, urls = env.get("PERFCI_ARTIFACT_NAME", ""), (env.get("PERFCI_ARTIFACT_URL"), env.get("PERFCI_RAW_URL"))
    names = (name, f"{name}{RAW_SUFFIX}")
    artifacts = [Artifact(name=one, url=url) for one, url in zip(names, urls, strict=True) if name and url]
    try:
        posted = write_comment(context, folder, artifacts, wanted, api)
    except PerfciError as error:
        workflow.tell(workflow.annotation("error", f"no comment was written: {error}", title="perfci"), sys.stdout)
        raise
    files.outputs({"comment-url": posted.url if posted else ""})
    typer.echo(
        log_line(f"comment: {posted.state} {posted.url}" if posted else "no pull request: nothing to comment on")
    )


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"\n> ⚠️ {prose(note, 500)}\n" for note in notes)


def log_line(text: str) -> str:
    """Return one line of the log that the runner does not take for a command."""
    return " " + visible(text).replace("##[", "## [")


def _action(env: Mapping[str, str]) -> str:
    """Return the event's action, such as `labeled`; empty for events that have none."""
    action = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_bytes()).get("action")
    return action if isinstance(action, str) else ""
