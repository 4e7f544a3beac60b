"""Measured values and profiles as CSV (RFC 4180 with plain line ends)."""

import csv
import io

from perfci.model.base import SIDES
from perfci.model.report import BySide, CaseProfile, Report, Use
from perfci.render.escape import csv_field

COLUMNS = (
    "case", "device", "metric", "unit", "side", "n", "mean", "standard_deviation", "median",
    "interval_low", "interval_high", "interval_level",
)  # fmt: skip


def render(report: Report) -> str:
    """Write a line for each case, by its worst row, device, metric and side, in the metric's unit and full precision.

    The interval is that of the median over workers; `interval_level` is its exact coverage, 0 for none.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in report.measured:
        for side in SIDES:
            if side in entry.sides:
                stats = entry.sides[side]
                names = (entry.case, entry.device, entry.metric, entry.unit, side)
                values = (stats.mean, stats.sd, stats.median, stats.low, stats.high, stats.level)
                writer.writerow([*map(csv_field, names), stats.n, *map(repr, values)])
    return text.getvalue()


PROFILE_COLUMNS = ("case", "device", "what", "name", "unit", "base", "head")


_OF_USES: dict[Use, list[tuple[str, str, str]]] = {
    "call": [("calls", "count", ""), ("call time", "seconds", "s")],
    "copy": [("copied", "bytes", "B"), ("copy time", "seconds", "s")],
    "os_call": [
        ("OS calls", "count", ""),
        ("OS time", "seconds", "s"),
        ("OS time on launching threads", "launching", "s"),
    ],
    "memory": [("device memory", "bytes", "B")],
}
"""The lines of each kind: what, field, unit."""


def profile(report: Report) -> str:
    """Write a line for each kernel, use and metric of one execution."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PROFILE_COLUMNS)

    def line(case: CaseProfile, what: str, name: str, unit: str, base: float | None, head: float | None) -> None:
        words = (case.case, case.device, what, name, unit)
        writer.writerow([*map(csv_field, words), *("" if value is None else repr(value) for value in (base, head))])

    for case in report.profiles:
        for kernel in case.kernels:
            line(case, "launches", kernel.name, "", *_both(kernel.count))
            line(case, "kernel time", kernel.name, "s", *_both(kernel.seconds))
        for use in case.uses:
            for what, field, unit in _OF_USES[use.kind]:
                line(case, what, use.name, unit, *_both(getattr(use, field)))
        for one in case.observed:
            line(case, "metric", one.metric, one.unit, one.base, one.head)
    return text.getvalue()


def _both(values: BySide) -> tuple[float | None, float | None]:
    return values.get("base"), values.get("head")
