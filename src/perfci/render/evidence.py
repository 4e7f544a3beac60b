"""What profilers saw as CSV: kernels and metrics of every case in both arms."""

import csv
import io

from perfci.model.report import Report
from perfci.render.escape import csv_field

COLUMNS = ("case", "device", "what", "name", "unit", "base", "head")


def render(report: Report) -> str:
    """One line per kernel (its launches, its seconds) and per metric, of one execution; empty where an arm has none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case in report.evidence:
        key = (csv_field(case.case), case.device)
        for kernel in case.kernels:
            name = csv_field(kernel.name)
            writer.writerow([*key, "launches", name, "", *map(_number, (kernel.base_count, kernel.head_count))])
            writer.writerow([*key, "kernel time", name, "s", *map(_number, (kernel.base_seconds, kernel.head_seconds))])
        for one in case.observed:
            values = map(_number, (one.base, one.head))
            writer.writerow([*key, "metric", csv_field(one.metric), csv_field(one.unit), *values])
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)
