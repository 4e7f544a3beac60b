"""`perfci list`: the cases of this tree and their limits."""

import json as jsonlib
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from perfci.cli.progress import Teller
from perfci.measure.conductor import Measurement
from perfci.measure.options import OUT, Options
from perfci.model.plan import Judgement
from perfci.model.units import show


def list_cases(where: Path, cases: list[str], python: str | None, json: bool) -> None:
    """Print the cases of the working tree with their limits."""
    teller = Teller(Console(stderr=True))
    options = Options(mode="run", where=where.resolve(), out=(where / OUT).resolve(), cases=cases, python=python)
    try:
        listed, limits, broken = Measurement(options, teller).listing()
    finally:
        teller.stop()
    rows = [
        {
            "case": case.id,
            "device": case.device,
            "status": case.arms["head"].status,
            "file": f"{case.arms['head'].file}:{case.arms['head'].line}" if case.arms["head"].file else "perfci.yaml",
            "limits": [_limit(limit) for limit in limits if (limit.case, limit.device) == (case.id, case.device)],
        }
        for case in listed
    ]
    if json:
        typer.echo(jsonlib.dumps({"cases": rows, "broken": broken}, indent=1))
    else:
        console = Console()
        table = Table(box=None, pad_edge=False)
        for title in ("case", "device", "limits", "declared in"):
            table.add_column(title, overflow="fold")
        for row in rows:
            note = "" if row["status"] == "ok" else f" ({case_reason(listed, str(row['case']))})"
            table.add_row(
                f"{row['case']}{note}",
                str(row["device"]),
                "; ".join(row["limits"]) or "none",
                str(row["file"]),
            )
        if console.is_terminal:
            console.print(table)
        else:
            for row in rows:
                typer.echo(f"{row['case']}\t{row['device']}\t{'; '.join(row['limits']) or 'none'}\t{row['file']}")
        for line in broken:
            typer.echo(f"not imported: {line}", err=True)
    raise typer.Exit(0 if not broken else 3)


def case_reason(listed: list, ident: str) -> str:  # type: ignore[type-arg]
    """Why a listed case would not be measured."""
    reason = next(case.arms["head"].reason for case in listed if case.id == ident)
    return reason.text if reason else ""


def _limit(limit: Judgement) -> str:
    if limit.kind == "regression":
        return f"{limit.metric} within {limit.bound * 100:g} %"
    return f"{limit.metric} {limit.kind} {show(limit.bound, limit.unit)}"
