"""Measured values and profiles as CSV (RFC 4180 with plain line ends), for spreadsheets and data frames."""

import csv
import io

from perfci.model.base import SIDES
from perfci.model.report import Report
from perfci.render.escape import csv_field

COLUMNS = (
    "case", "device", "metric", "unit", "side", "n", "mean", "standard_deviation", "median",
    "interval_low", "interval_high", "interval_level",
)  # fmt: skip


def render(report: Report) -> str:
    """Write a line for each case, by its worst row, device, metric and side; numbers in the metric's unit, in full
    precision.

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


def profile(report: Report) -> str:
    """Write lines for each kernel, function of the CUDA API and the OS runtime, kind of copies and of memory, and
    metric of one execution."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PROFILE_COLUMNS)
    for case in report.profiles:
        key = (csv_field(case.case), case.device)
        for kernel in case.kernels:
            name = csv_field(kernel.name)
            writer.writerow([*key, "launches", name, "", *map(_number, (kernel.base_count, kernel.head_count))])
            writer.writerow([*key, "kernel time", name, "s", *map(_number, (kernel.base_seconds, kernel.head_seconds))])
        for call in case.calls:
            name = csv_field(call.name)
            writer.writerow([*key, "calls", name, "", *map(_number, (call.base_count, call.head_count))])
            writer.writerow([*key, "call time", name, "s", *map(_number, (call.base_seconds, call.head_seconds))])
        for copy in case.copies:
            name = csv_field(copy.name)
            writer.writerow([*key, "copied", name, "B", *map(_number, (copy.base_bytes, copy.head_bytes))])
            writer.writerow([*key, "copy time", name, "s", *map(_number, (copy.base_seconds, copy.head_seconds))])
        for use in case.os_calls:
            name = csv_field(use.name)
            launching = map(_number, (use.base_launching, use.head_launching))
            writer.writerow([*key, "OS calls", name, "", *map(_number, (use.base_count, use.head_count))])
            writer.writerow([*key, "OS time", name, "s", *map(_number, (use.base_seconds, use.head_seconds))])
            writer.writerow([*key, "OS time on launching threads", name, "s", *launching])
        for held in case.memory:
            values = map(_number, (held.base, held.head))
            writer.writerow([*key, "device memory", held.metric, held.unit, *values])
        for one in case.observed:
            values = map(_number, (one.base, one.head))
            writer.writerow([*key, "metric", csv_field(one.metric), csv_field(one.unit), *values])
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)
