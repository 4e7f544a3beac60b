"""`perfci list`: the cases of this tree and their limits."""

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from perfci.cli.progress import Teller
from perfci.measure.conductor import Measurement
from perfci.measure.options import OUT, Options
from perfci.model.plan import Judgement
from perfci.model.policy_text import FILE
from perfci.model.results import Case
from perfci.model.units import show


def list_cases(where: Path, globs: list[str], python: str | None, json: bool) -> None:
    """Print the cases of the working tree with their limits. Ends with 3 where a suite file does not import."""
    teller = Teller(Console(stderr=True))
    options = Options(mode="run", where=where.resolve(), out=(where / OUT).resolve(), cases=globs, python=python)
    try:
        cases, judgements, broken = Measurement(options, teller).listing()
    finally:
        teller.stop()
    if json:
        entries = [_entry(case, judgements) for case in cases]
        typer.echo(jsonlib.dumps({"cases": entries, "broken": broken}, indent=1))
    else:
        _print([_line(case, judgements) for case in cases])
        for line in broken:
            typer.echo(f"perfci: does not import: {line}", err=True)
    raise typer.Exit(3 if broken else 0)


def _limits(case: Case, judgements: Sequence[Judgement]) -> list[str]:
    own = [judgement for judgement in judgements if (judgement.case, judgement.device) == (case.id, case.device)]
    return [_words(judgement) for judgement in own]


def _words(judgement: Judgement) -> str:
    if judgement.kind == "regression":
        return f"{judgement.metric} within {judgement.bound * 100:g} %"
    return f"{judgement.metric} {judgement.kind} {show(judgement.bound, judgement.unit)}"


def _where(case: Case) -> str:
    head = case.arms["head"]
    return f"{head.file}:{head.line}" if head.file else FILE


def _entry(case: Case, judgements: Sequence[Judgement]) -> dict[str, object]:
    status = case.arms["head"].status
    limits = _limits(case, judgements)
    return {"case": case.id, "device": case.device, "status": status, "limits": limits, "declared": _where(case)}


def _line(case: Case, judgements: Sequence[Judgement]) -> list[str]:
    reason = case.arms["head"].reason
    limits = f"skipped: {reason.text}" if reason else "; ".join(_limits(case, judgements)) or "no limit"
    return [case.id, case.device, limits, _where(case)]


def _print(lines: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, else tab-separated lines."""
    console = Console()
    if not console.is_terminal:
        for line in lines:
            typer.echo("\t".join(line))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("case", "device", "limits", "declared in"):
        table.add_column(title, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)
