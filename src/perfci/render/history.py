"""The history in a terminal."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from perfci.history.document import Night
from perfci.history.series import Device, Entry, Head, NightAnswer, Series
from perfci.history.store import Fault
from perfci.model.base import matches
from perfci.model.text import count, listed, short
from perfci.model.units import show, show_change, show_span
from perfci.render.escape import visible
from perfci.render.table import Table, put

_LEVELS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"
"""A night without a ratio."""
_LEAST_TITLE = 20
_MOST_FAULTS = 10


def recorded(night: Night, name: str, *, new: bool) -> str:
    """Return what was recorded."""
    title = f" {visible(night.commit.title)}" if night.commit.title else ""
    against = [night.reference.name] if night.reference is not None else []
    against += [short(night.last.sha)] if night.last is not None else []
    cases = count(len({(point.case, point.device) for point in night.points}), "case")
    told = f"{cases} against {' and '.join(map(visible, against))}" if against else f"{cases}, alone"
    seam = f"; seam to {visible(night.seam.before.name)}" if night.seam is not None else ""
    wrong = f"; error: {visible(night.error)}" if night.error else ""
    begin = "recorded" if new else "was recorded already:"
    return f"{begin} {short(night.commit.sha)}{title}: {told}{seam}{wrong} · {name}"


def as_json(series: Sequence[Series], faults: Sequence[Fault]) -> dict[str, Any]:
    """Return what `print_series` shows."""
    shown = [
        {
            "case": curve.case, "device": device.kind, "device_name": device.name, "metric": curve.metric,
            "unit": curve.unit, "timing": curve.timing, "entries": [_night(*night) for night in nights],
        }
        for device, curve, nights in series
    ]  # fmt: skip
    return {"series": shown, "faults": [asdict(fault) for fault in faults]}


def _night(head: Head, entry: Entry) -> dict[str, Any]:
    commit, reference = head.commit, head.reference
    return {
        "started": head.started, "run": head.run, "attempt": head.attempt, "url": head.url, "sha": commit.sha,
        "date": commit.date, "title": commit.title, "author": commit.author,
        "epoch": head.epoch, "reference_name": head.reference_name,
        "reference_sha": reference.commit.sha if reference else "", "value": entry.value, "scatter": entry.scatter,
        "last": _answer(entry.last), "reference": _answer(entry.reference),
    }  # fmt: skip


def _answer(answer: NightAnswer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    nothing = {"ratio": None, "low": None, "high": None, "level": None, "pairs": 0}
    return {"class": answer.class_, **(answer.ratio._asdict() if answer.ratio else nothing), "limit": answer.limit}


def print_series(series: Sequence[Series], console: Console) -> None:
    """Print each series, epochs apart: a sparkline, and a row a night."""
    for number, (device, curve, shown) in enumerate(series):
        if number:
            put(console, Text())
        heading = Text.assemble((visible(curve.case), "bold"), f"  {visible(curve.metric)} on {visible(device.name)}")
        put(console, heading.append(f", {visible(curve.timing)}" if curve.timing not in ("", device.kind) else ""))
        before: Head | None = None
        for _, members in groupby(shown, key=lambda night: night[0].epoch):
            nights = list(members)
            if before is not None:
                put(console, Text(f"── a new epoch: {_why(before, nights[0][0])} ──", "dim"))
            _epoch(console, curve.unit, nights)
            before = nights[-1][0]


def fault_lines(faults: Sequence[Fault]) -> list[str]:
    """Return a line for each of the first documents left out."""
    lines = [f"left out: {one.name} {visible(one.reason)}" for one in faults[:_MOST_FAULTS]]
    more = len(faults) - _MOST_FAULTS
    return [*lines, f"left out: {count(more, 'document')} more (history show --json names them)"] if more > 0 else lines


def _why(before: Head, after: Head) -> str:
    name = visible(after.reference_name)
    if before.reference_name != after.reference_name:
        return f"the reference is {name} now" if name else "without a reference"
    if before.reference and after.reference and before.reference.commit.sha != after.reference.commit.sha:
        return f"{name} is another commit now"
    return "another device, driver, toolchain or image"


def _epoch(console: Console, unit: str, nights: Sequence[tuple[Head, Entry]]) -> None:
    reference = visible(nights[-1][0].reference_name)
    if reference and (line := sparkline([entry.reference for _, entry in nights])):
        put(console, Text(f"{line} against {reference}"))
    head = ["date", "commit", *([f">against {reference}"] if reference else []), ">since last", ">value", "title"]
    cells = [
        [
            night.started[:10],
            short(night.commit.sha),
            *([_told(entry.reference)] if reference else []),
            _told(entry.last),
            show(entry.value, unit),
            visible(night.commit.title),
        ]
        for night, entry in nights
    ]
    styles = [_style(entry) for _, entry in nights]
    table = Table(head, cells, styles)
    if console.is_terminal and table.last(console.width) >= _LEAST_TITLE:
        table = table.fitted(console.width)
    elif console.is_terminal:
        below = [Text(line[-1], "dim") if line[-1] else None for line in cells]
        table = Table(head[:-1], [line[:-1] for line in cells], styles, below)
    for text in table.lines(console):
        put(console, text)


def _told(answer: NightAnswer | None) -> str:
    if answer is None:
        return "–"
    if (ratio := answer.ratio) is None:
        return answer.class_
    if ratio.pairs == 0:
        return "proved"
    return show_span(ratio.ratio, ratio.low, ratio.high) if ratio.low < ratio.high else show_change(ratio.ratio)


def _style(entry: Entry) -> str:
    classes = {one.class_ for one in (entry.reference, entry.last) if one is not None}
    if classes & {"regression", "violation", "failed", "missing"}:
        return "bold red"
    return "green" if "improvement" in classes else ""


def sparkline(answers: Sequence[NightAnswer | None]) -> str:
    """Return a character a night, and the range spanned: `▁▂▂█ +0.10 % to +3.10 %`.

    The range is at least as wide as an interval, so that noise stays flat.
    """
    ratios = [answer.ratio if answer else None for answer in answers]
    logs = [math.log(ratio.ratio) if ratio else None for ratio in ratios]
    known = [log for log in logs if log is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    widths = [math.log(ratio.high) - math.log(ratio.low) for ratio in ratios if ratio]
    span = max(high - low, median(widths) if widths else 0.0, 1e-9)
    begin = (low + high - span) / 2
    top = len(_LEVELS) - 1
    drawn = "".join(_NOTHING if log is None else _LEVELS[round((log - begin) / span * top)] for log in logs)
    return f"{drawn} {show_change(math.exp(low))} to {show_change(math.exp(high))}"


def no_series(pattern: str, devices: Sequence[Device]) -> str:
    """Return why nothing is shown."""
    of_case = sorted(
        f"{visible(metric)} on {visible(device.name)}"
        for device in devices
        for case, metric in device.curves
        if matches(pattern, case)
    )
    if of_case:
        return f"no such metric or device is recorded of it: there is {listed(dict.fromkeys(of_case))}"
    cases = sorted({case for device in devices for case, _ in device.curves})
    return f"no recorded case matches {visible(pattern)!r}: there is {listed(map(visible, cases)) or 'none'}"
