"""Layer 4: from the report to what people and tools read. The same report gives the same bytes."""

from perfci.model.report import Report
from perfci.render import csv, html, junit, markdown
from perfci.render.html.recorded import Recorded


def render_all(report: Report, recorded: Recorded | None = None) -> dict[str, str]:
    """Return file name → text.

    `recorded`: what `report.html` draws besides.
    """
    texts = {
        "report.md": markdown.render(report),
        "report.html": html.render(report, recorded),
        "junit.xml": junit.render(report),
        "report.csv": csv.render(report),
        "report.json": report.model_dump_json(indent=1) + "\n",
    }
    return texts | ({"profile.csv": csv.profile(report)} if report.profiles else {})
