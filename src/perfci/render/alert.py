"""An alert's issue."""

import glob
import math
from collections.abc import Sequence

from perfci.history.alert import Alert, Alerts, bisect
from perfci.history.document import Commit
from perfci.model.metrics import decided_by_pairs
from perfci.model.text import chosen, count, shell, short, shorten
from perfci.model.units import limit_percent, show, show_span
from perfci.render import parts
from perfci.render.escape import Safe, code, fence, link, markdown, name, prose, visible
from perfci.render.fit import LIMIT

_MOST_ROWS = 25
_MOST_CASES = 5
"""That commands are written for."""
_LONGEST_CASE = 160


def title(found: Alerts, suite: str) -> str:
    """Return the title of a device's issue, which stays."""
    of = "" if suite == "perfci" else f" ({suite})"
    return f"perfci: main is over a limit on {shorten(visible(found.name), 100)}{of}"


def render(found: Alerts, repository: str, limit: int = LIMIT) -> str:
    """Return the issue's text without its marker.

    `limit`: characters, at least 10 000. `repository`: its address.
    """
    most = _MOST_ROWS
    while len(text := _page(found, repository, most)) > limit and most:
        most //= 2
    return text


def closing(found: Alerts) -> str:
    """Return the closing comment."""
    last = max(found.ended, key=lambda one: one.told)
    return f"Closed: every limit held on two nights in a row, the last one on {_day(last.ended)}.\n"


def reopening(found: Alerts) -> str:
    """Return the comment on the alert that began last."""
    one = max(found.open, key=lambda one: one.begun)
    what = f"{name(one.case)} {markdown(one.metric, 80)}"
    return f"Opened again: {what} has been over its limit since {_day(one.since)}, {_short(one.bad)}.\n"


def lines(found: Alerts) -> list[str]:
    """Return a line for each alert, and limit over on one night so far."""
    told = [f"{_plain(one)}, since {_day(one.since)}" for one in found.open]
    told += [f"{_plain(one)}: within again since {_day(one.ended)}" for one in found.ended]
    for one in found.once:
        confirmed = ": the nights since are of another epoch and cannot confirm it" if one.left else " so far"
        told.append(f"{_plain(one)}: on one night{confirmed}, {_day(one.since)}")
    return told


def _page(found: Alerts, repository: str, most: int) -> str:
    rows = sorted(found.open, key=lambda one: (-abs(_log(one)), one.case, one.metric, one.against))
    cases = len({one.case for one in rows})
    return parts.page(
        "alert.md.j2",
        sentence=Safe(f"Main is over {count(len(rows), 'limit')} of {count(cases, 'case')} on {code(found.name, 100)}"),
        rows=[_row(one, repository) for one in rows[:most]],
        more=len(rows) - most,
        left=[_left(one) for one in rows[:most] if one.left],
        ended=[_ended(one) for one in found.ended[:most]],
        more_ended=len(found.ended) - most,
        commands=fence(*_commands(rows)) if rows and most else "",
        name=code(found.name, 100),
    )


def _row(one: Alert, repository: str) -> list[Safe]:
    since = f"{_day(one.since)}, {_short(one.bad)}"
    again = f"<br>within on {_day(one.told)}" if one.within else ""
    return [
        Safe(f"{name(one.case)} {markdown(one.metric, 80)}"),
        Safe(f"{_change(one)}{again}"),
        _limit(one),
        Safe(f"{since}<br>{markdown(one.bad.title, 80)}" if one.bad.title else since),
        _between(one, repository),
    ]


def _change(one: Alert) -> Safe:
    if one.against == "bound":
        return Safe(f"**{markdown(show(one.value, one.unit))}**")
    shown = _moved(one)
    number = f"**{markdown(shown)}**" if shown else "worse"
    return Safe(f"{number} over {code(one.name, 60) if one.against == 'reference' else _short(one.base)}")


def _limit(one: Alert) -> Safe:
    if one.against == "bound":
        return prose(one.reason or "an absolute limit", 200)
    if one.limit is None:
        return Safe("–")
    return markdown(f"{limit_percent(one.limit)}{' to the reference' if one.against == 'reference' else ''}")


def _between(one: Alert, repository: str) -> Safe:
    before = one.good or one.base
    if before is None:
        return Safe(f"until {_short(one.bad)}")
    good, bad = before.sha, one.bad.sha
    return link(f"{short(good)}...{short(bad)}", f"{repository}/compare/{good}...{bad}", repository)


def _left(one: Alert) -> Safe:
    return Safe(
        f"{name(one.case)} {markdown(one.metric, 80)}: nights since {_day(one.left)} have another reference, device "
        "or environment, where the commit before the step was not measured. Whether it is still there only the "
        "commands below tell: close this issue by hand once it is settled."
    )


def _ended(one: Alert) -> Safe:
    over = f"over from {_day(one.since)}, within again by {_day(one.ended)}"
    return Safe(f"{name(one.case)} {markdown(one.metric, 80)} ({_limit(one)}): {over}")


def _commands(rows: Sequence[Alert]) -> list[str]:
    """A step over two limits is compared with the commit before it, the nearer one."""
    found: list[str] = []
    nearest: dict[tuple[str, str], Alert] = {}
    for one in sorted(rows, key=lambda one: one.against != "last"):
        nearest.setdefault((one.case, one.metric), one)
    usable = [one for one in rows if nearest[one.case, one.metric] is one]
    usable = [one for one in usable if len(one.case) <= _LONGEST_CASE and one.case.isprintable()]
    groups: dict[tuple[str, str, bool], list[Alert]] = {}
    for one in usable[:_MOST_CASES]:
        before = one.base or one.good
        key = one.bad.sha, before.sha if before else "", one.against == "reference"
        groups.setdefault(key, []).append(one)
    for (bad, good, creep), alerts in sorted(groups.items(), key=lambda group: group[0]):
        fetch = f"git fetch origin {bad} && git switch --detach FETCH_HEAD"
        cases = list(dict.fromkeys(glob.escape(one.case) for one in alerts))
        what = ["perfci", "compare", good] if good else ["perfci", "run"]
        found += [fetch] if fetch not in found else []
        found.append(
            shell([*what, *(["--creep"] if creep and good else []), "--device", alerts[0].device, *chosen(cases)])
        )
        found += [
            shell(bisect(one.case, one.metric, one.device, good, one.bad.sha, several=one.against == "reference"))
            for one in alerts
            if good and decided_by_pairs(one.metric)
        ]
    return found


def _plain(one: Alert) -> str:
    what = show(one.value, one.unit) if one.against == "bound" else _moved(one) or "worse"
    over = {"bound": "", "reference": f" over {one.name}", "last": f" over {short(one.base.sha) if one.base else ''}"}
    return f"{one.case} {one.metric} {what}{over[one.against]}"


def _moved(one: Alert) -> str:
    if one.change is None:
        return ""
    ratio, low, high = one.change.ratios
    return show_span(ratio, low, high)


def _log(one: Alert) -> float:
    return one.change.log if one.change is not None else math.inf


def _short(commit: Commit | None) -> Safe:
    return code(short(commit.sha)) if commit is not None else Safe("–")


def _day(instant: str) -> str:
    return instant[: len("2026-01-05")]
