"""The one issue of a device's alerts.

It needs `issues: write` alone. A step may be repeated: it reads the issues again before it writes.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Literal, cast

from github.Issue import Issue

from perfci.github.api import Api
from perfci.github.sticky import plain
from perfci.history.alert import Alerts, moment
from perfci.model.text import shorten
from perfci.render import alert as words
from perfci.render.escape import visible

_MARKER = re.compile(
    r"<!-- perfci alert suite=(?P<suite>[a-z0-9-]{1,60}) device=(?P<device>[a-z]{1,10}-[0-9a-f]{16})"
    r" begun=(?P<begun>[0-9T:Z-]{20}) told=(?P<told>[0-9T:Z-]{20}) -->\s*\Z"
)
_RETIRED = "Closed as a duplicate of #{number}, which goes on.\n"


@dataclass(frozen=True)
class Marker:
    """Hidden at the very end of an issue."""

    suite: str
    device: str
    """Kind, and a hash of the name: a device's name is data."""
    begun: str
    """When the newest alert began that the issue was opened, or opened again, for."""
    told: str
    """The newest night that it tells of."""

    @classmethod
    def of(cls, suite: str, alerts: Alerts) -> "Marker":
        """Return the marker."""
        hashed = hashlib.sha256(alerts.name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return cls(suite, f"{alerts.device}-{hashed}", moment(alerts.begun), moment(alerts.told))

    @classmethod
    def read(cls, body: str) -> "Marker | None":
        """Return the marker; None without it."""
        read = _MARKER.search(body)
        return None if read is None else cls(read["suite"], read["device"], read["begun"], read["told"])

    def __str__(self) -> str:
        return f"<!-- perfci alert suite={self.suite} device={self.device} begun={self.begun} told={self.told} -->"


State = Literal[
    "opened", "updated", "unchanged", "closed", "opened again", "left closed", "left open", "superseded", "none"
]


@dataclass(frozen=True)
class Settled:
    """The outcome."""

    state: State
    url: str = ""
    retired: tuple[int, ...] = ()
    """Closed duplicates."""


def settle(alerts: Alerts, suite: str, repository: str, api: Api) -> Settled:
    """Make the issue of a device say what is known of its alerts; `repository`: its address.

    Ours is an issue by the token's own account that ends with the marker; the lowest open number stays. What a person
    closed stays closed until another alert begins. Raises Forbidden, ApiError.
    """
    me = api.call("whose the token is", api.viewer)
    what = f"the issue of {shorten(visible(alerts.name), 100)}"
    return api.call(what, lambda: _settle(alerts, Marker.of(suite, alerts), repository, me, api))


def _settle(alerts: Alerts, marker: Marker, repository: str, me: str, api: Api) -> Settled:
    own = _own(me, marker, api)
    if not own:
        if not alerts.open:
            return Settled("none")
        made = api.repository.create_issue(words.title(alerts, marker.suite), _body(alerts, marker, repository))
        return Settled("opened", made.html_url)
    (kept, before), *others = own
    surplus = [issue for issue, _ in others if issue.state == "open"]
    for issue in surplus:
        issue.edit(body=_RETIRED.format(number=kept.number), state="closed", state_reason="not_planned")
    return Settled(
        _keep(kept, before, alerts, marker, repository, me), kept.html_url, tuple(issue.number for issue in surplus)
    )


def _keep(kept: Issue, before: Marker, alerts: Alerts, marker: Marker, repository: str, me: str) -> State:
    """But not its title, which a person may have changed."""
    is_open = kept.state == "open"
    if not alerts.begun:  # the store that it was written from is another one, or reached further back
        return "left open" if is_open else "none"
    if before.told > marker.told:
        return "superseded"
    if not alerts.open and not is_open:
        return "none"
    if not alerts.open and marker.begun < before.begun:
        return "left open"
    if alerts.open and not is_open and marker.begun <= before.begun:
        return "left closed"
    body = _body(alerts, marker, repository)
    if alerts.open and is_open:
        if plain(kept.body or "") == plain(body):
            return "unchanged"
        kept.edit(body=body)
        return "updated"
    if alerts.open:
        _say(kept, words.reopening(alerts), f"<!-- perfci alert again={marker.begun} -->", me)
        kept.edit(body=body, state="open")
        return "opened again"
    _say(kept, words.closing(alerts), f"<!-- perfci alert ended={marker.told} -->", me)
    kept.edit(body=body, state="closed", state_reason="completed")
    return "closed"


def _body(alerts: Alerts, marker: Marker, repository: str) -> str:
    return f"{words.render(alerts, repository)}\n{marker}"


def _own(me: str, marker: Marker, api: Api) -> list[tuple[Issue, Marker]]:
    """Open ones first, then oldest first. Anyone can write a marker, so the author counts."""
    own = []
    for issue in api.repository.get_issues(state="all", creator=cast(Any, me)):  # a login, as its docstring has it
        # GitHub lists pull requests, too, and PyGithub would ask again for each issue that none is.
        if issue.user is not None and issue.user.login == me and issue.html_url.split("/")[-2] == "issues":
            its = Marker.read(issue.body or "")
            if its is not None and (its.suite, its.device) == (marker.suite, marker.device):
                own.append((issue, its))
    return sorted(own, key=lambda item: (item[0].state != "open", item[0].number))


def _say(issue: Issue, text: str, mark: str, me: str) -> None:
    """Unless the comment is there: the write after it may have failed."""
    if not any(one.user is not None and one.user.login == me and mark in one.body for one in issue.get_comments()):
        issue.create_comment(f"{text}\n{mark}")
