"""`perfci publish`: judge a workflow run on GitHub."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfci.model.base import PerfciError, UsageError
from perfci.render.escape import prose, visible

if TYPE_CHECKING:
    from perfci.github.api import Api
    from perfci.github.event import Context
    from perfci.github.settings import Publishing
    from perfci.github.workflow import Files

_PACKAGES = {"github": "PyGithub"}
"""Module → its package, where the names differ."""


def publish_run(here: Path | None = None) -> None:
    """Publish. Ends the process with the verdict's exit code.

    `here`: the folder in which this job measured, for the comment alone; then ends with 0, or 3 where that fails.
    """
    from perfci.github.event import load
    from perfci.github.settings import Publishing, read_inputs
    from perfci.github.workflow import Files
    from perfci.render import comment

    try:
        from perfci.github.api import Api
        from perfci.github.publish import publish
        from perfci.github.result import VERDICTS, conclusion
        from perfci.github.standing import open_history
    except ModuleNotFoundError as error:
        raise not_installed("publish", error) from None

    env = os.environ
    inputs = read_inputs(Publishing, env)
    token = env.get("GITHUB_TOKEN", "")
    if not token:
        raise UsageError("GITHUB_TOKEN: is not set: add `env: {GITHUB_TOKEN: ${{ github.token }}}`")
    context, files = load(env), Files(env)
    repository, server = context.origin.repository, env.get("GITHUB_SERVER_URL") or "https://github.com"
    history = partial(open_history, inputs.store, repository, server, token) if inputs.store else None
    api = Api(token, repository, env.get("GITHUB_API_URL") or "https://api.github.com")
    if here is not None:
        _comment(context, here, inputs, api, files, env)
        raise typer.Exit(0)
    outcome = publish(context, _action(env), inputs, api, history)
    report, notes = outcome.publication, _notes(outcome.notes)
    if outcome.waiting:
        lines = [f"nothing to publish: {outcome.waiting}", *(f"- {note}" for note in outcome.notes)]
        if outcome.stale:
            lines.append("the checks of the commit may say what does not hold any more: run this job again")
        files.summary([f"Nothing to publish: {outcome.waiting}.\n{notes}"])
    else:
        files.summary([f"{text}{notes}\n" for text in (comment.render_summary(report), comment.render(report), "")])
        url = outcome.comment.url if outcome.comment else ""
        files.outputs({"verdict": VERDICTS[conclusion(report)], "comment-url": url, "check-url": outcome.check})
        said = [*report.missing, *outcome.notes, *filter(None, [outcome.unread])]
        lines = [comment.render_check(report).title, *(f"- {line}" for line in said)]
        lines += [f"comment: {outcome.comment.state} {url}"] if outcome.comment else []
    for line in lines:
        typer.echo(log_line(line))
    raise typer.Exit(outcome.exit_code)


def not_installed(verb: str, error: ModuleNotFoundError) -> UsageError:
    """Return the error on a missing package. Raises `error` for perfci's own modules."""
    if (error.name or "perfci").partition(".")[0] == "perfci":
        raise error
    name = _PACKAGES.get(error.name or "", error.name)
    return UsageError(f'{verb}: {name} is not installed here: pip install "perfci[github]"')


def _comment(
    context: "Context", folder: Path, inputs: "Publishing", api: "Api", files: "Files", env: Mapping[str, str]
) -> None:
    """Raises what `write_comment` raises, once the runner was told."""
    from perfci.github import workflow
    from perfci.github.here import write_comment
    from perfci.github.settings import RAW_SUFFIX
    from perfci.model.publication import Artifact

    name, urls = env.get("PERFCI_ARTIFACT_NAME", ""), (env.get("PERFCI_ARTIFACT_URL"), env.get("PERFCI_RAW_URL"))
    names = (name, f"{name}{RAW_SUFFIX}")
    artifacts = [Artifact(name=each, url=url) for each, url in zip(names, urls, strict=True) if name and url]
    try:
        posted = write_comment(context, folder, artifacts, inputs, api)
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
    """Return a line of the log that the runner takes for no command."""
    return " " + visible(text).replace("##[", "## [")


def _action(env: Mapping[str, str]) -> str:
    action = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_bytes()).get("action")
    return action if isinstance(action, str) else ""
