"""Writing and telling what was measured and judged."""

from collections.abc import Collection, Sequence
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
) -> list[str]:
    """Write results (if given) and the report in these formats into `out`. Raises MachineError.

    `measured`: results that are written already, and the folder that holds what was recorded beside them.
    Returns those of FILES that belong to these results: others in `out` are an earlier run's.
    """
    if results is not None:
        write_atomic(out / "results.json", results.model_dump_json(indent=1) + "\n")
        measured = results, out
    recorded = read_recorded(*measured) if measured and "html" in formats else None
    texts = render_all(report, formats, recorded)
    for name, text in texts.items():
        write_atomic(out / name, text)
    beside = _beside(measured[0]) if measured and measured[1] == out else set()
    return [name for name in FILES if name in {*texts, *beside} and (out / name).exists()]


def _beside(results: Results) -> set[str]:
    """What measuring leaves in its folder, these results among it."""
    names = {"results.json"}
    if any(case.origin == "imported" for case in results.cases):
        return names
    names.add("logs/")
    if any(case.pairs for case in results.cases):
        names.add("samples.jsonl")
    if not results.plan.judged:
        names.add("profile/")
    return names


def tell(report: Report, out: Path, json: bool, files: Sequence[str]) -> None:
    """Print the report with the `files` that it comes with: for people, or as JSON alone."""
    if json:
        typer.echo(report.model_dump_json(indent=1))
        return
    print_report(report, Console())
    try:
        shown = out.relative_to(Path.cwd())
    except ValueError:
        shown = out
    typer.echo(f"\nFiles in {shown}/: {' · '.join(files)}")
