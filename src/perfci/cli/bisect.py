"""`perfci bisect`."""

import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

import typer

from perfci.bisect import words as rendered
from perfci.bisect.compare import ANSWERS, COMPARISONS, Bisecting
from perfci.bisect.document import BisectStep, CommitFacts
from perfci.bisect.run import bisect
from perfci.cli.measure import interrupt, read_request
from perfci.cli.output import tell_files, write_all
from perfci.cli.progress import Console, Teller
from perfci.judge.judge import judge
from perfci.measure.request import Request
from perfci.measure.run import Measurement, failed_results
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.results import Results
from perfci.model.units import parse_percent
from perfci.system.files import write_atomic
from perfci.system.users import Outputs, keep_outputs

FOLDER = "bisect"
"""Within --out, so that the last comparison stays."""
FILES = (*ANSWERS, f"{COMPARISONS}/")


def find_commit(
    good: str, bad: str, *, metric: str, limit: str | None, search: Mapping[str, Any], json: bool, **asked: Any
) -> None:
    """Do a bisect. Ends the process with its exit code. `search`: fields of `Bisecting`."""
    request = read_request("compare", keeps=True, **asked)
    where, out, cache = request.where.repository, request.where.out, request.where.cache
    request = request.but(out=out / FOLDER, keep="base" if cache else None)
    one = Bisecting(
        request,
        good,
        bad,
        metric=metric,
        limit=None if limit is None else _limit(limit),
        **{**search, "skip": tuple(search["skip"] or ())},
    )
    signal.signal(signal.SIGTERM, interrupt)
    console, folder = Console(stderr=True), request.where.out
    with keep_outputs(out, where) as outputs:
        try:
            found = bisect(one, partial(_measure, console, outputs), partial(_note, console), partial(_tell, console))
        except KeyboardInterrupt:
            typer.echo("perfci: interrupted: the same command goes on", err=True)
            raise typer.Exit(MachineError.exit_code) from None
        outputs.require()  # nothing of the code under test runs any more
        write_atomic(folder / ANSWERS[1], found.model_dump_json(indent=1) + "\n")
        write_atomic(folder / ANSWERS[0], rendered.render(found))
    if json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        shown = Console()
        rendered.print_bisect(found, shown)
        tell_files(folder, [name for name in FILES if (folder / name).exists()])
        rendered.print_answer(found, shown)
    raise typer.Exit(found.exit_code)


def _measure(console: Console, outputs: Outputs, request: Request) -> Results:
    out, question = request.where.out, request.what.question
    with Teller(console, brief=True) as teller:
        measurement = Measurement(request, teller)
        try:
            results = measurement.measure()
        except (PerfciError, KeyboardInterrupt) as error:
            if (kept := failed_results(measurement, error)) is not None:
                write_atomic(out / "results.json", kept.model_dump_json(indent=1) + "\n")
            raise
    outputs.require()
    if question is not None and question.threshold:
        write_atomic(out / "results.json", results.model_dump_json(indent=1) + "\n")
    else:
        write_all(out, judge(results), results)
    return results


def _limit(text: str) -> float:
    try:
        found = parse_percent(text)
    except ValueError as error:
        raise UsageError(f"--limit {error}") from None
    if not 0 < found < 1:
        raise UsageError("--limit: is a change from 0 % to 100 %, such as 2%")
    return found


def _note(console: Console, text: str) -> None:
    console.print(f"perfci: {text}", highlight=False, markup=False, soft_wrap=True)


def _tell(console: Console, one: BisectStep, head: CommitFacts, known: bool) -> None:
    if not known:
        _note(console, rendered.told(one, head))
