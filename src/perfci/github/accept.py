"""Who accepted a failing verdict, and whether after the last push."""

from datetime import UTC, datetime
from typing import Any

from github.PullRequest import PullRequest

from perfci.github.api import Api, NotFound
from perfci.github.check import Checks
from perfci.github.result import MergeQuestion
from perfci.model.publication import ACCEPT_LABEL, ACCEPT_LINE, Acceptance
from perfci.model.text import short

_LONGEST = 500


def acceptance(pull: PullRequest, suite: str, owns: frozenset[str], api: Api) -> tuple[Acceptance | None, str]:
    """Return the acceptance of a pull request, or why its label does not count; both empty without the label.

    `owns`: the verdicts, one of which must be there to accept. The label counts when someone with write access set it
    after the last push to the head, and after a check had said that this very head does not pass. Times are GitHub's
    own: the author chooses commits' dates. Raises ApiError.
    """
    if ACCEPT_LABEL not in {label.name for label in pull.labels}:
        return None, ""
    events = api.call("events of the pull request", lambda: list(pull.get_issue_events()))
    labelled = [event for event in events if event.event == "labeled" and event.label]
    accepting = [event for event in labelled if event.label.name == ACCEPT_LABEL]
    last = max(accepting, key=lambda event: (event.created_at, event.id), default=None)
    if last is None or last.actor is None:
        return None, f"the label {ACCEPT_LABEL} does not count: nobody is known to have set it"
    login = last.actor.login
    try:
        pushed = _pushed(pull, api)
        permission = api.call(f"rights of {login}", lambda: api.repository.get_collaborator_permission(login))
    except NotFound:
        return None, f"the label {ACCEPT_LABEL} does not count: the last push or {login}'s rights cannot be seen"
    if permission not in {"admin", "write"}:
        return None, f"the label {ACCEPT_LABEL} does not count: {login} may not write to {api.name}"
    at = last.created_at.astimezone(UTC)
    if pushed is None or at <= pushed:
        return None, f"the label {ACCEPT_LABEL} does not count: the head was pushed to after it was set"
    question = MergeQuestion.of_pull(pull.number, pull.base.ref)
    failed = Checks(suite, pull.head.sha, pull.base.ref, api).failed_since(question, owns)
    if failed is None or at < failed.astimezone(UTC):
        return None, (
            f"the label {ACCEPT_LABEL} does not count: no verdict on {short(pull.head.sha)} was there to accept when "
            "it was set: set it anew"
        )
    author = pull.user.login if pull.user else ""
    return Acceptance(by=login, at=_iso(at), reason=_reason(pull.body or ""), author=author), ""


def _reason(body: str) -> str:
    start = f"{ACCEPT_LINE}:".lower()
    given = (line.strip()[len(start) :].strip() for line in body.splitlines() if line.lower().startswith(start))
    return next((text[:_LONGEST] for text in given if text), "")


def _pushed(pull: PullRequest, api: Api) -> datetime | None:
    head = pull.head
    if head.repo is None:
        return None
    path = f"/repos/{head.repo.full_name}/activity"
    parameters: dict[str, Any] = {"ref": f"refs/heads/{head.ref}", "per_page": 1}
    moves = api.call("activity of the head's branch", lambda: api.get(path, parameters))
    if not moves or moves[0]["after"] != head.sha:
        return None
    return datetime.fromisoformat(moves[0]["timestamp"]).astimezone(UTC)


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
