"""Floor 3: from the report to what people and their tools read. The same report gives the same bytes."""

from perfci.model.report import Report


def render_all(report: Report) -> dict[str, str]:
    """File name → text of every rendering that is a file: `report.md`, `junit.xml`, `report.csv`, `evidence.csv`."""
    from perfci.render import csv, evidence, junit, markdown

    seen = {"evidence.csv": evidence.render(report)} if report.evidence else {}
    return seen | {
        "report.md": markdown.render(report),
        "junit.xml": junit.render(report),
        "report.csv": csv.render(report),
    }
