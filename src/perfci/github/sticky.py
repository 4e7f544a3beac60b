"""A suite's one comment on a pull request."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from github import GithubException
from github.IssueComment import IssueComment
from github.PullRequest import PullRequest

from perfci.github.api import Api, ApiError
from perfci.model.publication import Origin
from perfci.render.fit import LIMIT

SHORTER = 20_000
"""Where GitHub refuses an allowed length."""
SETTLE = 2.0
"""Seconds after which an earlier write of another publisher is visible."""
ROUNDS = 6
_MARKER = re.compile(
    r"<!-- perfci suite=(?P<suite>[a-z0-9-]{1,60}) run=(?P<run>[0-9]{1,18}) attempt=(?P<attempt>[0-9]{1,9})"
    r" head=(?P<head>[0-9a-f]{40,64}) -->\s*\Z"
)
_RETIRED = "Outdated: the result stands in [another comment]({url}).\n"


@dataclass(frozen=True)
class Marker:
    """Hidden at the very end of a comment: its suite and run."""

    suite: str
    run: int
    attempt: int
    head: str

    @classmethod
    def of(cls, suite: str, origin: Origin) -> "Marker":
        """Return the marker."""
        return cls(suite, origin.run_id, origin.attempt, origin.head_sha)

    @classmethod
    def read(cls, body: str) -> "Marker | None":
        """Return the marker; None without it."""
        read = _MARKER.search(body)
        return None if read is None else cls(read["suite"], int(read["run"]), int(read["attempt"]), read["head"])

    def __str__(self) -> str:
        return f"<!-- perfci suite={self.suite} run={self.run} attempt={self.attempt} head={self.head} -->"

    def age(self, head: str) -> tuple[bool, int, int]:
        """Return a key, larger for newer; of another head nothing is current."""
        return self.head == head, self.run, self.attempt


@dataclass(frozen=True)
class Posted:
    """The outcome."""

    state: Literal["written", "superseded", "stale", "not wanted"]
    url: str = ""


def post(pull: PullRequest, marker: Marker, render: Callable[[int], str], create: bool, api: Api) -> Posted:
    """Leave one comment of the suite on the pull request, on its head's newest run.

    `render` gives a text of at most so many characters. `create`: begin a comment where there is none. The oldest
    stays, so that concurrent publishers agree; each reads again after its write. Raises Forbidden, ApiError.
    """
    me = api.call("whose the token is", api.viewer)
    texts = [f"{render(limit)}\n{marker}" for limit in (LIMIT, SHORTER)]
    for tried in range(ROUNDS):
        done = api.call("the comment", lambda: _round(pull, me, marker, texts, create or tried > 0, api))  # noqa: B023
        if done is not None:
            return done
        api.pause(SETTLE)
    raise ApiError("the comment: others keep changing it: give the publishing job a `concurrency:` group")


def _round(pull: PullRequest, me: str, marker: Marker, texts: Sequence[str], create: bool, api: Api) -> Posted | None:
    head = str(api.get(pull.url)["head"]["sha"])
    if head != marker.head:
        return Posted("stale")
    own = _own(pull, me, marker.suite)
    if not own:
        if not create:
            return Posted("not wanted")
        _write(pull.create_issue_comment, texts)
        return None
    (kept, its), *others = own
    best = max((other for _, other in own), key=lambda other: other.age(head))
    if best.age(head) > marker.age(head):
        kept = next(comment for comment, other in own if other == best)
        surplus = [comment for comment, other in own if other == marker]
    elif its != marker or plain(kept.body) not in map(plain, texts):
        _write(kept.edit, texts)
        return None
    else:
        surplus = [comment for comment, _ in others]
    for comment in surplus:
        _retire(comment, kept.html_url)
    if surplus:
        return None
    return Posted("written" if best == marker else "superseded", kept.html_url)


def _own(pull: PullRequest, me: str, suite: str) -> list[tuple[IssueComment, Marker]]:
    """Oldest first. Anyone can write a marker, so the author counts."""
    own = []
    for comment in pull.get_issue_comments():
        if comment.user is not None and comment.user.login == me:
            marker = Marker.read(comment.body)
            if marker is not None and marker.suite == suite:
                own.append((comment, marker))
    return sorted(own, key=lambda item: item[0].id)


def plain(body: str) -> str:
    """Return a comment without what GitHub may change."""
    return body.replace("\r\n", "\n").rstrip()


def _write(write: Callable[[str], object], texts: Sequence[str]) -> None:
    for text in texts:
        try:
            write(text)
        except GithubException as error:
            if error.status != 422 or text == texts[-1]:
                raise
        else:
            return


def _retire(comment: IssueComment, url: str) -> None:
    """Or delete it where not allowed. Without its marker it is never found."""
    try:
        comment.edit(_RETIRED.format(url=url))
        comment.minimize("OUTDATED")
    except GithubException as error:
        if error.status in {500, 502, 503, 504, 429}:
            raise
        comment.delete()
