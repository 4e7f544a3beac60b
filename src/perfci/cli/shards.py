"""`perfci plan`, `perfci compare --shard` and `perfci merge`."""

import os
import re
import signal
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import typer

from perfci.cli.measure import Finished, interrupt, read_request, refuse_keep, tell_measured
from perfci.cli.output import LARGEST, LONGEST, made, tell, write_all
from perfci.cli.progress import Console, Teller
from perfci.cli.report import judged, read_results
from perfci.judge.judge import judge
from perfci.measure.journal import JOURNAL, SAMPLES, begun, gone_on
from perfci.measure.request import OUT, Request
from perfci.measure.run import Measurement, failed_results
from perfci.measure.shards.deal import planned, share_out
from perfci.measure.shards.document import PLAN, Shard, SharedPlan, read_plan
from perfci.measure.shards.merge import merge_models, model_of, plan_of
from perfci.model.base import PolicyError, UsageError
from perfci.model.comparison import marks
from perfci.model.report import Report
from perfci.model.results import MOST_MODELS, MOST_SHARDS, Reason, Results
from perfci.model.text import count
from perfci.model.units import show_budget
from perfci.system.bounded import Unread, regular
from perfci.system.files import Appender, disk_errors, each_line, read_lines, write_atomic
from perfci.system.users import keep_outputs

_PLANNED = {
    "cases": "-k", "base": "BASE", "head": "HEAD", "limit": "--limit",
    "pull_request": "--pull-request", "quick": "--quick", "device": "--device",
    "python": "--python", "committed": "--committed", "measure_all": "--measure-all", "env": "--env",
    "prepare": "--prepare", "only": "--only",
}  # fmt: skip
"""Options that the plan answers, or that no shard takes → their spelling."""


def make_plan(shards: int, models: int, out: Path, *, json: bool, **asked: Any) -> NoReturn:
    """Write the plan of a shared comparison."""
    for name, number, most in (("--shards", shards, MOST_SHARDS), ("--models", models, MOST_MODELS)):
        if not 1 <= number <= most:
            raise UsageError(f"{name} {number}: write a number from 1 to {most}")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder: name the file, such as plan.json")
    if out == Path(OUT, PLAN):
        out = asked["where"] / out
    elif not out.parent.is_dir():
        raise UsageError(f"--out {out}: {out.parent} is no folder: make it first")
    request = read_request("compare", keeps=True, out=Path(OUT), **asked).but(models=models, keep=None)
    plan = write_plan(request, shards, out)
    if isinstance(plan, Finished):
        assert plan.problem is not None
        raise plan.problem
    if json:
        typer.echo(plan.model_dump_json(indent=1))
    else:
        for line in told(plan):
            typer.echo(line)
        typer.echo(f"\nPlan in {out}. Each machine measures its part: perfci compare --shard {out}:1/{shards}")
        typer.echo(
            "Then, from the folders of all: perfci merge shard-*/"
            if models == 1
            else f"Then, from the folders of all {models} models: perfci merge */shard-*/"
        )
    raise typer.Exit(0)


def write_plan(request: Request, shards: int, file: Path) -> SharedPlan | Finished:
    """Plan the comparison of `request` into `file`. Raises PerfciError.

    Where base's policy is at fault there are results without a number, so that a publisher knows that head fixes it.
    """
    signal.signal(signal.SIGTERM, interrupt)
    folder = request.where.out
    with Teller(Console(stderr=True)) as teller, keep_outputs(folder, request.where.repository) as outputs:
        measurement = Measurement(request.but(plan_file=file.resolve()), teller)
        try:
            plan = share_out(measurement, shards, folder)
        except PolicyError as error:
            outputs.require()
            results = failed_results(measurement, error)
            if results is None:
                raise
            report = judge(results, strict=request.how.strict)
            return Finished(report, error, write_all(folder, report, results))
        outputs.require()  # nothing of the code under test runs any more
    write_atomic(file, plan.model_dump_json(indent=1) + "\n")
    return plan


def told(plan: SharedPlan) -> list[str]:
    """Return a line for the plan, and for each shard."""
    proved = sum(case.proof is not None and bool(case.proof.by) and not case.proof.audited for case in plan.cases)
    aside = f", {proved} of them proved unchanged" if proved else ""
    share = plan.plan.looks.alpha / plan.plan.m
    models = plan.what.models
    limits = f"{plan.plan.m // models} limits" + (f" on each of {models} models" if models > 1 else "")
    lines = [f"{count(len(plan.cases), 'case')}{aside}; {limits} share α: {share:.2g} each"]
    for number in range(1, plan.shards + 1):
        own = Shard(plan, number).cases
        seconds = sum(case.seconds for case in own)
        expected = f"about {show_budget(max(1.0, round(seconds)))} of pairs" if seconds else "nothing to measure"
        lines.append(f"shard {number}/{plan.shards}: {count(len(own), 'case')}, {expected}")
    return lines


def measure_shard(text: str, *, out: Path, **asked: Any) -> NoReturn:
    """Measure a shard, `FILE:K/N`. Ends with its exit code."""
    for name, written in _PLANNED.items():
        if asked.get(name):
            raise UsageError(f"{written}: a shard does what was planned: leave it out beside --shard")
    refuse_keep("a shard")
    name, colon, part = text.rpartition(":")
    if not colon:
        raise UsageError(f"--shard {text}: write the plan's file and the part, such as plan.json:1/4")
    file = Path(name)
    plan = read_plan(file)
    shard = Shard.parse(plan, part)
    if out == Path(OUT):
        out = asked["where"] / f"shard-{shard.number}"
    request = read_request("compare", keeps=True, out=out, **asked)
    tell_measured(gone_on(as_planned(request, shard, file)), json=asked.get("json", False))


def as_planned(request: Request, shard: Shard, file: Path) -> Request:
    """Return `request` with the plan's answers for a shard.

    Raises UsageError for a begun shard unless it goes on: nobody may choose between two measurements.
    """
    what = shard.plan.what
    # By its hash: branches move. What was prepared is asked for as it was prepared.
    base = what.base if what.base is None or request.where.prepared is not None else shard.plan.base
    resume = _goes_on(request, shard)
    request = replace(request, what=what, planned=planned(shard))
    return request.but(base=base, plan_file=file.resolve(), resume=resume)


def _goes_on(request: Request, shard: Shard) -> bool:
    out = request.where.out
    path = out / JOURNAL
    some = bool(begun(path))
    if request.how.resume:
        return some  # else nothing is lost by beginning, on another machine too
    if some and marks({"the shard": shard.name}).items() <= read_lines(path)[0].get("identity", {}).items():
        raise UsageError(
            f"{out}: holds {shard.words} of this plan, which is measured once: go on with it by --resume, or "
            "make a new plan"
        )
    return False


class Merged(NamedTuple):
    """The results of a plan's shards."""

    results: Results
    folder: Path
    shards: list[Path]


def read_shards(paths: Sequence[Path], out: Path) -> list[Merged]:
    """Return merged results, in `out`; of several device models each in its own folder there. Raises UsageError,
    MachineError."""
    if len(paths) > 4 * MOST_SHARDS:
        raise UsageError(f"merge: {len(paths)} folders: name those of one plan")
    found: list[tuple[str, Results]] = []
    folders: list[Path] = []
    homes: dict[str, Path] = {}  # of a plan
    for path in paths:
        file = path / "results.json" if path.is_dir() else path
        if any(file.resolve() == (one / "results.json").resolve() for one in folders):
            raise UsageError(f"{path}: is named twice: name each shard once")
        results = read_results(file)
        if (plan := plan_of(results)) not in homes:
            homes[plan] = _home(results, out, homes.values())
        _relocate(results, file.parent, homes[plan])  # logs are named from there
        folders.append(file.parent)
        found.append((str(path), results))
    merged = {plan_of(one): Merged(one, homes[plan_of(one)], []) for one in merge_models(found)}
    for (_, results), folder in zip(found, folders, strict=True):
        merged[plan_of(results)].shards.append(folder)
    return list(merged.values())


def _home(results: Results, out: Path, taken: Collection[Path]) -> Path:
    if results.part is None or results.part.models == 1:
        return out
    name = re.sub(r"[^A-Za-z0-9]+", "-", model_of(results)).strip("-") or "model"
    home, number = out / name, 1
    while home in taken:
        number += 1
        home = out / f"{name}-{number}"
    return home


def _relocate(results: Results, folder: Path, out: Path) -> None:
    prefix = Path(os.path.relpath(folder.resolve(), out.resolve()))
    reasons: list[Reason | None] = [results.error, *(one.reason for one in results.files)]
    reasons += [side.reason for case in results.cases for side in case.sides.values()]
    for reason in reasons:
        if reason is not None and reason.log:
            reason.log = str(prefix / reason.log)


def judge_merged(
    paths: Sequence[Path],
    *,
    policy: Path | None,
    strict: bool,
    out: Path,
    json: bool,
) -> NoReturn:
    """Judge the shards in `paths` as one run per device model."""
    merged = read_shards(paths, out)
    if json and len(merged) > 1:
        raise UsageError(f"--json: {len(merged)} models have a report each: leave it out, and read each report.json")
    made(out)
    reports: list[Report] = []
    for one in merged:
        reports.append(judged(one.results, policy, strict=strict))
        with disk_errors("made", one.folder):
            one.folder.mkdir(parents=True, exist_ok=True)
        keep_samples(one.shards, one.folder)
        files = write_all(one.folder, reports[-1], one.results)
        tell(reports[-1], one.folder, files, json=json)
    if len(merged) > 1:
        verdicts = [f"{model_of(one.results)} {report.verdict}" for one, report in zip(merged, reports, strict=True)]
        typer.echo(f"\n{len(merged)} models: {' · '.join(verdicts)}")
    raise typer.Exit(max(report.exit_code for report in reports))


def keep_samples(folders: Iterable[Path], out: Path) -> None:
    """Put all shards' samples into one file of `out`, for the plots."""
    (out / SAMPLES).unlink(missing_ok=True)
    appender = Appender(out / SAMPLES)
    try:
        for folder in folders:
            path = folder / SAMPLES
            try:
                regular(path, LARGEST)
                for line in each_line(path, LONGEST):
                    appender.append(line)
            except Unread:
                continue  # a folder that was moved without them: the report says of each plot that there are none
    finally:
        appender.close()
