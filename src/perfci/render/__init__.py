"""Layer 4: from the report to what people and their tools read. The same report gives the same bytes."""

from collections.abc import Callable

from perfci.model.report import Report
from perfci.render import csv, html, junit, markdown
from perfci.render.html.recorded import Recorded


def _json(report: Report) -> str:
    return report.model_dump_json(indent=1) + "\n"


_FILES: dict[str, Callable[[Report], str]] = {
    "report.md": markdown.render,
    "report.html": html.render,
    "junit.xml": junit.render,
    "report.csv": csv.render,
    "profile.csv": csv.profile,
    "report.json": _json,
}


def render_all(report: Report, recorded: Recorded | None = None) -> dict[str, str]:
    """Return file name → text.

    `recorded`: what `report.html` draws besides.
    """
    return {
        name: html.render(report, recorded) if name == "report.html" else render(report)
        for name, render in _FILES.items()
        if report.profiles or name != "profile.csv"
    }
