"""The findings of `perfci doctor`, for people."""

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfci.model.doctor import Diagnosis, Finding, Status, TierState
from perfci.model.text import count
from perfci.render.escape import visible
from perfci.render.table import put

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_TIERS = ("tier", "here", "metrics")


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print it within a terminal's width; elsewhere padded lines, a remedy on the line below."""
    rich = console.is_terminal
    put(console, sentence(diagnosis), "bold")
    put(console, "")
    if rich:
        console.print(_lines(diagnosis.findings))
    else:
        width = max((cell_len(one.name) for one in diagnosis.findings), default=0)
        for one in diagnosis.findings:
            put(console, f"{one.status:4}  {_padded(visible(one.name), width)}  {visible(one.found)}")
            if one.remedy:
                put(console, f"{'':4}  {'':{width}}  → {visible(one.remedy)}")
    put(console, "")
    if rich:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in _TIERS:
            table.add_column(name, overflow="fold")
        for state in diagnosis.tiers:
            row = (_source(state), metric_names(state.metrics) or "–")
            table.add_row(Text(state.tier, "" if state.given else "dim"), *map(Text, row))
        console.print(table)
    else:
        for state in diagnosis.tiers:
            put(console, f"{state.tier:8}  {_source(state)}")
            if state.metrics:
                put(console, f"{'':8}  {metric_names(state.metrics)}")


def sentence(diagnosis: Diagnosis) -> str:
    """Return `1 failure, 2 warnings; this machine can give timing, trace`."""
    statuses = [finding.status for finding in diagnosis.findings]
    given = [state.tier for state in diagnosis.tiers if state.given]
    can = f"this machine can give {', '.join(given)}" if given else "this machine can give no metrics"
    failures = count(statuses.count("fail"), "failure") if "fail" in statuses else "no failure"
    warnings = count(statuses.count("warn"), "warning") if "warn" in statuses else "no warning"
    return f"perfci {visible(diagnosis.perfci)}: {failures}, {warnings}; {can}"


def _lines(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for overflow in (None, None, "fold"):
        table.add_column(overflow=overflow or "ellipsis", no_wrap=overflow is None)
    for one in findings:
        text = Text(visible(one.found))
        if one.remedy:
            text.append(f"\n→ {visible(one.remedy)}", "bold")
        table.add_row(Text(one.status, _STYLES[one.status]), Text(visible(one.name)), text)
    return table


def _source(state: TierState) -> str:
    if not state.given:
        return f"out: {visible(state.why)}"
    return f"given by {visible(state.source)}" + (f" ({visible(state.why)})" if state.why else "")


def metric_names(names: Sequence[str]) -> str:
    """Fold families: `stall_barrier`, `stall_wait` → `stall_{barrier,wait}`."""
    parts = []
    for family, members in groupby(names, key=lambda name: "stall_" if name.startswith("stall_") else ""):
        found = list(members)
        rest = [name.removeprefix(family) for name in found]
        parts += [f"{family}{{{','.join(rest)}}}"] if family and len(found) > 1 else found
    return " ".join(parts)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
