"""Layer 4: from the report to what people and their tools read. The same report gives the same bytes."""

from collections.abc import Callable, Collection

from perfci.model.report import Report
from perfci.render import csv, html, junit, markdown
from perfci.render.html.recorded import Recorded


def _json(report: Report) -> str:
    return report.model_dump_json(indent=1) + "\n"


FORMATS: dict[str, dict[str, Callable[[Report], str]]] = {
    "md": {"report.md": markdown.render},
    "html": {"report.html": html.render},
    "junit": {"junit.xml": junit.render},
    "csv": {"report.csv": csv.render, "profile.csv": csv.profile},
    "json": {"report.json": _json},
}
"""Format, as of `--format` → its files, and what renders each."""


def render_all(
    report: Report, formats: Collection[str] = tuple(FORMATS), recorded: Recorded | None = None
) -> dict[str, str]:
    """Return file name → text; `profile.csv` where profilers saw something.

    `recorded`: what `report.html` draws besides.
    """
    return {
        name: html.render(report, recorded) if name == "report.html" else render(report)
        for one in formats
        for name, render in FORMATS[one].items()
        if report.profiles or name != "profile.csv"
    }
