"""Other tools' files, planned and ready to be judged: a file is a worker; those of base and head pair up."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from perfci.measure.imported import benchmarks, captures
from perfci.measure.imported.base import Files, Imported, digest
from perfci.measure.imported.capture import By, recognise
from perfci.model.base import DeviceKind, UsageError, matches
from perfci.model.limits import UNSEEN, Subject, answerable, criteria, idle
from perfci.model.metrics import of_ncu
from perfci.model.plan import Declared, Looks, Plan
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE
from perfci.model.results import Case, Results, Work, reports
from perfci.model.units import item_of, same_items


def import_files(
    files: Files,
    policy: Policy,
    *,
    device: DeviceKind | None = None,
    by: By | None = None,
    items: Mapping[str, Work] | None = None,
    command: Sequence[str] = (),
    where: str = FILE,
    whole: bool = False,
) -> Results:
    """Read other tools' files, each side's in the order measured, and plan how `policy` judges them.

    All pairs are there before the first look, so one look spends all of α and β; absolute limits hold for the centre of
    head's files. `device`: of a benchmark; by default a GPU for NVBench, else the CPU. `by`: a capture's cases; by
    default ranges where there are any. `items`: work of an execution of a capture's cases, by patterns of ids. `where`
    names the policy. `whole`: it was named for these files, so each limit must find a case; of a repository's, at least
    one. Raises UsageError: an unreadable file, several tools with the same content, sides of unequal number, a limit
    that judges nothing.
    """
    kinds = {path: recognise(path) for paths in files.values() for path in paths}
    captured = [path for path, kind in kinds.items() if kind is not None]
    others = [path for path, kind in kinds.items() if kind is None]
    if captured and others:
        raise UsageError(f"import: {captured[0]} is a capture and {others[0]} is none: import one kind at a time")
    if captured:
        if device == "cpu":
            raise UsageError(f"--device cpu: {captured[0]} is a capture, of which the work of the GPU is judged")
        of = {path: kind for path, kind in kinds.items() if kind is not None}
        by_ncu = [one for one in policy.limits if of_ncu(one.metric) is not None and one.metric not in policy.metrics]
        found = captures.read(files, of, by, items or {}, by_ncu)
    else:
        if items:
            raise UsageError(f"--items: {others[0]} is no capture: a benchmark tells its own, or none")
        if by is not None:
            raise UsageError(f"--by {by}: {others[0]} is no capture of nsys, ncu or torch.profiler: leave --by out")
        found = benchmarks.read(files, policy, device)
    return _results(found, files, policy, command=command, where=where, whole=whole)


def _results(
    found: Imported, files: Files, policy: Policy, *, command: Sequence[str], where: str, whole: bool
) -> Results:
    seen = [_subject(case, found) for case in found.cases if case.stopped != "skipped"]
    _require_same_items(found.cases, policy, where)
    compared = "base" in files
    asked = answerable(criteria(policy, seen, compared=compared), timed=found.timed)
    ids = [case.id for case in found.cases]
    declared = Declared(kernels=ids) if found.observed else Declared(commands=ids)
    lost = list(idle(policy, declared, found.reports))
    wrong = [one for one in lost if one.wrong]
    if wrong and (whole or {one.limit for one in wrong} == set(range(len(policy.limits)))):
        raise UsageError(f"{policy.place(where, wrong[0].loc)}: {wrong[0].text}")
    plan = Plan(
        seed=0,
        sides=list(files),
        looks=Looks(pairs=[found.workers], alpha_spending=[1.0], beta_spending=[1.0]),
        devices=[found.device],
        criteria=asked,
        declared=declared,
        m=max(1, sum(one.shares_alpha for one in asked)),
        budget=policy.budget,
        max_pairs=found.workers,
    )
    return Results(
        run=digest(files),
        mode="compare" if compared else "run",
        started=min(found.dates, default=datetime.now(UTC)).isoformat(timespec="seconds"),
        command=list(command),
        repository=Path.cwd().name,
        fingerprint=found.facts,
        sides=found.sides,
        fail_on=policy.fail_on,
        custom_metrics=policy.metrics,
        plan=plan,
        cases=found.cases,
        notes=[*found.notes(plan), *(f"{where}: {one.text}" for one in lost)],
    )


def _require_same_items(cases: Sequence[Case], policy: Policy, where: str) -> None:
    for number, limit in enumerate(policy.limits):
        for name in ("min", "max"):
            asked = item_of(getattr(limit, name)) if limit.metric == "throughput" else ""
            for case in cases if asked else ():
                told = case.sides["head"].work.item if case.sides["head"].work.items else asked
                if any(matches(pattern, case.id) for pattern in limit.cases) and not same_items(asked, told):
                    place = policy.place(where, ("limits", number, name))
                    raise UsageError(f"{place}: {asked} are asked for, and {case.id} has {told}: name the same")


def _subject(case: Case, found: Imported) -> Subject:
    told, name = reports(case), found.facts.devices.get(case.device, "")
    if found.observed:
        return Subject(case.id, case.device, name, reports=frozenset({"time"}))
    return Subject(case.id, case.device, name, reports=told.relative, bounded=told.bounded, command=True, unseen=UNSEEN)
