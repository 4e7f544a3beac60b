"""Every measured value as CSV (RFC 4180 with plain line ends), for spreadsheets and data frames."""

import csv
import io

from perfci.model.base import ARMS
from perfci.model.report import Report
from perfci.render.escape import csv_field

COLUMNS = (
    "case", "device", "metric", "unit", "arm", "n", "mean", "standard_deviation", "median",
    "interval_low", "interval_high", "interval_level",
)  # fmt: skip


def render(report: Report) -> str:
    """One line per case, device, metric and arm, numbers in the metric's unit and in full precision.

    The interval is that of the median over launches; `interval_level` is its exact coverage, 0 for none.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in report.measured:
        for arm in ARMS:
            if arm in entry.arms:
                stats = entry.arms[arm]
                names = (entry.case, entry.device, entry.metric, entry.unit, arm)
                values = (stats.mean, stats.sd, stats.median, stats.low, stats.high, stats.level)
                writer.writerow([*map(csv_field, names), stats.n, *map(repr, values)])
    return text.getvalue()
