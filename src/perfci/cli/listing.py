"""`perfci list`: cases and limits; with `--plan` what comparing takes and shows."""

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from perfci.cli.measure import read_request
from perfci.cli.progress import Console, Teller
from perfci.measure.calibrate.forecast import UNKNOWN_PAIRS, CasePlan, Forecast, forecast
from perfci.measure.request import OUT
from perfci.measure.run import Measurement
from perfci.model.criteria import Criterion
from perfci.model.policy_text import FILE
from perfci.model.results import Case
from perfci.model.text import count
from perfci.model.units import limit_percent, noise_percent
from perfci.system.users import keep_outputs

_CASES = ("case", "device", "limits", "declared in")
_PLANS = ("case", "limit", "can show", "pairs", "time", "outlook")


def list_cases(*, plan: bool, json: bool, **asked: Any) -> None:
    """Print cases with limits, or what comparing them takes and can show.

    Ends with 3 where a suite file does not import.
    """
    request = read_request("run", out=Path(OUT), **asked)
    with Teller(Console(stderr=True)) as teller, keep_outputs(request.where.out, request.where.repository):
        listing = Measurement(request, teller).listing()
        cases, broken, criteria = listing.cases, listing.broken, [*listing.plan.criteria, *listing.creep]
        expected = forecast(cases, listing.plan, listing.facts, request.where.out) if plan else None
    if json:
        listed = [_entry(case, criteria) for case in cases]
        entries: dict[str, object] = {"cases": listed, "broken": broken, "notes": listing.notes}
        if expected:
            entries["plan"] = {**expected._asdict(), "cases": [case._asdict() for case in expected.cases]}
        typer.echo(jsonlib.dumps(entries, indent=1))
    else:
        if expected:
            _print(_PLANS, [_planned(c) for c in expected.cases])
            for line in _totals(expected):
                typer.echo(line)
        else:
            _print(_CASES, [_line(case, criteria) for case in cases])
        for line in listing.notes:
            typer.echo(f"perfci: {line}", err=True)
        for line in broken:
            typer.echo(f"perfci: {line}", err=True)
    raise typer.Exit(3 if broken else 0)


def _limits(case: Case, asked: Sequence[Criterion]) -> list[str]:
    return [_words(one) for one in asked if one.case_key == case.key and not one.waits]


def _words(asked: Criterion) -> str:
    return f"{asked.words()} (default)" if asked.source.origin == "default" else asked.words()


def _where(case: Case) -> str:
    head = case.sides["head"]
    return f"{head.file}:{head.line}" if head.file else FILE


def _entry(case: Case, asked: Sequence[Criterion]) -> dict[str, object]:
    status = case.sides["head"].status
    limits = _limits(case, asked)
    return {"case": case.id, "device": case.device, "status": status, "limits": limits, "declared": _where(case)}


def _line(case: Case, asked: Sequence[Criterion]) -> list[str]:
    reason = case.sides["head"].reason
    none = "no limit"
    if any(one.waits and one.case_key == case.key for one in asked):
        none = "no limit that can be judged here"
    limits = f"skipped: {reason.text}" if reason else "; ".join(_limits(case, asked)) or none
    return [case.id, case.device, limits, _where(case)]


_OUTLOOK = {
    "decided": "fits",
    "noise": "may stay inconclusive: the limit is under the noise",
    "budget": "inconclusive: the budget ends first",
    "unknown": "unknown: run perfci calibrate",
    "no limit": "no relative limit",
}


_RESTS = {
    "calibration": f"{OUT}/calibration",
    "last results": f"{OUT}/results.json",
    "": "the schedule alone",
}


def _planned(case: CasePlan) -> list[str]:
    pairs = case.pairs or UNKNOWN_PAIRS
    mark = "≈ " if case.estimated or case.pairs is None else ""
    return [
        f"{case.case} @{case.device}",
        "–" if case.limit is None else limit_percent(case.limit),
        "–" if case.smallest is None else noise_percent(case.smallest),
        "–" if case.pairs is None else f"{case.pairs:.0f}",
        f"{mark}{_minutes(pairs * case.seconds)}",
        _OUTLOOK[case.outlook] + (f" ({case.source})" if case.source else ""),
    ]


def _totals(expected: Forecast) -> list[str]:
    mark = "≈ " if expected.estimated else ""
    pairs, budget = _minutes(expected.seconds), _minutes(expected.budget)
    total = f"{mark}{pairs} of pairs; what builds and checks take is not known"
    if expected.beside is not None:
        whole = _minutes(expected.seconds + expected.beside)
        total = f"{mark}{whole}: {pairs} of pairs, {_minutes(expected.beside)} of builds, checks and the like"
    late = sum(case.outlook == "budget" for case in expected.cases)
    unknown = sum(case.outlook == "unknown" for case in expected.cases)
    verdict = f"{late} of {len(expected.cases)} cases stay inconclusive" if late else "fits"
    if unknown and not late:
        verdict = f"how many pairs {count(unknown, 'case')} will take is not known: `perfci calibrate` finds out"
    return [
        "",
        f"An unchanged tree takes {total}.",
        f"By {_RESTS[expected.rests]}, with a budget of {budget}: {verdict}.",
    ]


def _minutes(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _print(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    console = Console()
    if not console.is_terminal:
        for line in lines if titles is _CASES else [titles, *lines]:
            typer.echo("\t".join(line))
        return
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)
