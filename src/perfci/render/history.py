"""The history in a terminal: what was recorded, and the last commits of a case."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from statistics import median
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from perfci.history.cache import Answer, Entry, Series
from perfci.history.document import Night
from perfci.history.store import Fault
from perfci.model.base import matches
from perfci.model.text import count, listed, shorten
from perfci.model.units import show, show_change
from perfci.render.escape import visible
from perfci.render.table import Table
from perfci.render.words import half

_LEVELS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"
"""A night without a ratio."""
_SHORT = 10
"""Characters of a hash."""
_LEAST_TITLE = 20
_MOST_FAULTS = 10


def recorded(night: Night, name: str, *, new: bool) -> str:
    """Return the line that says what was recorded, under which name."""
    title = f" {visible(night.commit.title)}" if night.commit.title else ""
    against = [night.reference.name] if night.reference is not None else []
    against += [night.last.sha[:_SHORT]] if night.last is not None else []
    cases = count(len({(point.case, point.device) for point in night.points}), "case")
    told = f"{cases} against {' and '.join(map(visible, against))}" if against else f"{cases}, alone"
    seam = f"; seam to {visible(night.seam.before.name)}" if night.seam is not None else ""
    wrong = f"; error: {visible(night.error)}" if night.error else ""
    begin = "recorded" if new else "was recorded already:"
    return f"{begin} {night.commit.sha[:_SHORT]}{title}: {told}{seam}{wrong} · {name}"


def as_json(found: Sequence[Series], faults: Sequence[Fault]) -> dict[str, Any]:
    """Return what `print_series` shows as one object for programs."""
    series = [asdict(one, dict_factory=_keyed) for one in found]
    return {"series": series, "faults": [asdict(one) for one in faults]}


def _keyed(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in pairs}  # `class_`, as documents have it: class


def print_series(found: Sequence[Series], console: Console) -> None:
    """Print each series with its epochs apart: a sparkline of the ratio to the reference, and a row a night.

    On a terminal within the console's width; elsewhere titles stand whole.
    """
    for number, one in enumerate(found):
        if number:
            _put(console, Text())
        heading = Text.assemble((visible(one.case), "bold"), f"  {visible(one.metric)} on {visible(one.device_name)}")
        _put(console, heading.append(f", {visible(one.timing)}" if one.timing not in ("", one.device) else ""))
        before: Entry | None = None
        for _, members in groupby(one.entries, key=lambda entry: entry.epoch):
            entries = list(members)
            if before is not None:
                _put(console, Text(f"── a new epoch: {_why(before, entries[0])} ──", "dim"))
            _epoch(console, one, entries)
            before = entries[-1]


def fault_lines(faults: Sequence[Fault]) -> list[str]:
    """Return a line for each document that was left out, the first ones."""
    lines = [f"left out: {one.name} {visible(one.reason)}" for one in faults[:_MOST_FAULTS]]
    more = len(faults) - _MOST_FAULTS
    return [*lines, f"left out: {count(more, 'document')} more (history show --json names them)"] if more > 0 else lines


def _why(before: Entry, after: Entry) -> str:
    if before.reference_name != after.reference_name:
        return (
            f"the reference is {visible(after.reference_name)} now" if after.reference_name else "without a reference"
        )
    if before.reference_sha != after.reference_sha:
        return f"{visible(after.reference_name)} is another commit now"
    return "another device, driver, toolchain or image"


def _epoch(console: Console, series: Series, entries: Sequence[Entry]) -> None:
    reference = visible(entries[-1].reference_name)
    if reference and (line := sparkline([one.reference for one in entries])):
        _put(console, Text(f"{line} against {reference}"))
    head = ["date", "commit", *([f">against {reference}"] if reference else []), ">since last", ">value", "title"]
    cells = [
        [
            one.started[:10],
            one.sha[:_SHORT],
            *([_told(one.reference)] if reference else []),
            _told(one.last),
            show(one.value, series.unit),
            visible(one.title),
        ]
        for one in entries
    ]
    if not console.is_terminal:
        for text in Table(head, cells).plain():
            _put(console, text)
        return
    styles = [_style(one) for one in entries]
    room = console.width - sum(Table(head, cells).widths[:-1]) - 2 * (len(head) - 1)
    if room >= _LEAST_TITLE:
        table = Table(head, [[*line[:-1], _fitted(line[-1], room)] for line in cells], styles)
    else:
        below = [Text(line[-1], "dim") if line[-1] else None for line in cells]
        table = Table(head[:-1], [line[:-1] for line in cells], styles, below)
    for text in table.drawn(console):
        _put(console, text)


def _fitted(text: str, room: int) -> str:
    """Return a title that takes at most so many columns: some characters take two."""
    while cell_len(text) > room:
        text = shorten(text, len(text) - max(1, (cell_len(text) - room) // 2))
    return text


def _told(found: Answer | None) -> str:
    """Return `+3.10 % (±0.3)`; the class where there is no ratio, `–` where nothing was compared."""
    if found is None:
        return "–"
    if found.ratio is None or found.low is None or found.high is None:
        return found.class_
    if found.pairs == 0:
        return "proved"
    width = half(found.low, found.high) if found.low < found.high else ""
    return " ".join([show_change(found.ratio), *([f"({width})"] if width else [])])


def _style(entry: Entry) -> str:
    classes = {one.class_ for one in (entry.reference, entry.last) if one is not None}
    if classes & {"regression", "violation", "failed", "missing"}:
        return "bold red"
    return "green" if "improvement" in classes else ""


def sparkline(found: Sequence[Answer | None]) -> str:
    """Return a line of ratios, a character a night, and the range that it spans: `▁▂▂█ +0.10 % to +3.10 %`.

    No range is drawn that is smaller than an interval is wide, so that noise stays flat. Empty without two ratios.
    """
    logs = [math.log(one.ratio) if one is not None and one.ratio is not None else None for one in found]
    known = [one for one in logs if one is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    widths = [math.log(one.high) - math.log(one.low) for one in found if one is not None and one.low and one.high]
    span = max(high - low, median(widths) if widths else 0.0, 1e-9)
    begin = (low + high - span) / 2
    top = len(_LEVELS) - 1
    drawn = "".join(_NOTHING if one is None else _LEVELS[round((one - begin) / span * top)] for one in logs)
    return f"{drawn} {show_change(math.exp(low))} to {show_change(math.exp(high))}"


def no_series(pattern: str, known: Sequence[tuple[str, str, str, str]]) -> str:
    """Return why nothing is shown, in one line. `known`: case, device, its name and metric of all that is recorded."""
    if not known:
        return "nothing is recorded there yet: `perfci history record` does it, after a run on main"
    if of_case := [one for one in known if matches(pattern, one[0])]:
        told = dict.fromkeys(f"{visible(metric)} on {visible(name)}" for _, _, name, metric in of_case)
        return f"no such metric or device is recorded of it: there is {listed(told)}"
    cases = dict.fromkeys(visible(case) for case, _, _, _ in known)
    return f"no recorded case matches {visible(pattern)!r}: there is {listed(cases)}"


def _put(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=not console.is_terminal, highlight=False)
