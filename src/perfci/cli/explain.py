"""`perfci explain`: whether a change reaches the GPU at all."""

import itertools
import json as jsonlib
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from perfci.cli.measure import read_request
from perfci.cli.progress import Console, Teller
from perfci.measure.proof.work import explain_work
from perfci.model.base import SIDES
from perfci.model.text import count
from perfci.system.users import keep_outputs
from perfci.work.files import WorkAnswer

_SHOWN = 60


def explain_cases(cases: list[str], *, json: bool, **asked: Any) -> None:
    """Compare the work of cases. Ends the process: 0 where it is the same in all, else 1."""
    request = read_request("compare", cases=cases, device=None, **asked)
    with Teller(Console(stderr=True)) as teller, keep_outputs(request.where.out, request.where.repository) as outputs:
        found = explain_work(request, teller)
        outputs.require()
    if json:
        shown = {name: one.model_dump() for name, one in found.items()}
        typer.echo(jsonlib.dumps(shown, indent=1))
    else:
        console = Console()
        for name, one in found.items():
            _tell(name, one, console)
        different = sum(bool(one.why_not) for one in found.values())
        rest = f"; not known of {different}" if different else ""
        total = f"{len(found) - different} of {count(len(found), 'case')}: the same work in base and head{rest}"
        console.print(total, highlight=False, soft_wrap=True)
    raise typer.Exit(int(any(one.why_not for one in found.values())))


def _tell(name: str, one: WorkAnswer, console: Console) -> None:
    console.print(Text(name, style="bold"))
    if one.work:
        table = Table("", *SIDES, box=None, pad_edge=False)
        pairs = list(itertools.zip_longest(*(one.work[side] for side in SIDES), fillvalue=""))
        for number, (base, head) in enumerate(pairs[:_SHOWN], 1):
            table.add_row(str(number), Text(base), Text("same" if head == base else head))
        console.print(table)
        if len(pairs) > _SHOWN:
            console.print(f"and {count(len(pairs) - _SHOWN, 'node')} more", highlight=False)
    unknown = f"not known to be the same work: {one.why_not}"
    console.print(Text(unknown if one.why_not else "base and head give the GPU the same work"), soft_wrap=True)
    console.print()
