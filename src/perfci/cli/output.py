"""Writing and telling what was measured and judged."""

from collections.abc import Collection
from pathlib import Path

import typer
from rich.console import Console

from perfci.cli.recorded import read_recorded
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.render import FORMATS, render_all
from perfci.render.terminal import print_report
from perfci.system.files import write_atomic

FILES = (
    "report.md",
    "report.html",
    "report.json",
    "results.json",
    "report.csv",
    "junit.xml",
    "evidence.csv",
    "profile/",
    "samples.jsonl",
    "logs/",
)
"""What people may look for, in the order of use."""


def write_all(
    out: Path,
    report: Report,
    results: Results | None = None,
    formats: Collection[str] = tuple(FORMATS),
    measured: tuple[Results, Path] | None = None,
) -> None:
    """Write results (if given) and the report in these formats into `out`. Raises MachineError.

    `measured`: results that are written already, and the folder that holds what was recorded beside them.
    """
    if results is not None:
        write_atomic(out / "results.json", results.model_dump_json(indent=1) + "\n")
        measured = results, out
    recorded = read_recorded(*measured) if measured and "html" in formats else None
    for name, text in render_all(report, formats, recorded).items():
        write_atomic(out / name, text)


def tell(report: Report, out: Path, json: bool) -> None:
    """Print the report: for people, or as JSON alone."""
    if json:
        typer.echo(report.model_dump_json(indent=1))
        return
    print_report(report, Console())
    try:
        shown = out.relative_to(Path.cwd())
    except ValueError:
        shown = out
    names = [name for name in FILES if (out / name).exists()]
    typer.echo(f"\nFiles in {shown}/: {' · '.join(names)}")
