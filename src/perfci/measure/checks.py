"""The checks before timing: is each case right in base and in head, and how long does it take?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from perfci.measure.cases import Found, timing_of
from perfci.measure.costs import Budget
from perfci.measure.journal import Journal
from perfci.measure.place import Place
from perfci.measure.rounds import Bench, case_fields
from perfci.measure.timing import Probe, Refused, settle
from perfci.model.base import Document, Side
from perfci.model.profile import Profile
from perfci.model.results import Case, CaseSide, Check, Reason, Work
from perfci.model.timing import Setting, TimingMode
from perfci.system.child import Died
from perfci.system.process import Worker

NOTHING_DRAWN = "its inputs are the same in every draw"
"""As `worker/checks/check.py` says it."""
LATE = Reason(kind="budget", text="the budget ended before it was checked")
Probes = dict[str, dict[Side, Probe]]


class _Opened(Document):
    """A worker's answer to `open` that asks it to describe the case."""

    digest: str
    dtype: str
    work: Work
    footprint: int
    """Bytes of device memory that one set of inputs takes."""
    peak: int
    """Bytes of device memory that the worker has needed at most."""
    memory: int
    """Bytes of device memory that an execution needs, inputs and all."""
    seconds: float
    """Of one execution."""
    warm: float
    """Seconds of the first executions."""
    elsewhere: str | None
    """Why what is timed is not what the case does."""
    settings: dict[str, Setting]
    clocks: str | None


def check_all(
    cases: Sequence[Case],
    place: Place,
    found: Mapping[Side, Found],
    journal: Journal,
    budget: Budget,
    *,
    fuzz: bool,
    note: Callable[[str], None],
) -> Probes:
    """Check every kernel's case in base and in head, base first. Fills `case.sides`; returns settle_all()'s probes.

    A case that the budget does not reach in every side is skipped in all: only what was right is timed.
    """
    probes: Probes = {}
    asked = {case.key: timing_of(case, found, place.limits) for case in cases}
    for device, bench in place.benches.items():
        kernels = [case for case in cases if case.device == device and case.origin == "kernel"]
        for name in place.sides:
            with place.sides[name].own():
                made = check_side(bench, name, kernels, found, journal, budget, fuzz=fuzz, note=note, asked=asked)
            for key, by_side in made.items():
                probes.setdefault(key, {}).update(by_side)
        for case in kernels:
            if any(side.reason == LATE for side in case.sides.values()):
                case.stopped = "budget"
                for name, side in case.sides.items():
                    if side.status == "ok":
                        case.sides[name] = _unchecked(side)
    return probes


def settle_all(
    cases: Sequence[Case], place: Place, found: Mapping[Side, Found], probes: Probes, held: str | None
) -> None:
    """Fix how each case is measured, the same in base and in head; a case that cannot be measured so has failed.

    `held`: at which frequency the GPU's clock is held, in words; None where it is left as found.
    """
    for case in cases:
        working = {name: one for name, one in probes.get(case.key, {}).items() if case.sides[name].status == "ok"}
        if case.origin != "kernel" or not working:
            continue
        bench, gpu = place.benches[case.device], place.facts.gpu if case.device == "cuda" else None
        assert (gpu is None) == (case.device == "cpu")
        try:
            bench.setups[case.key], said = settle(timing_of(case, found, place.limits), working, gpu, bench.threads)
        except Refused as refused:
            for name, probe in working.items():
                if probe.refused:
                    case.sides[name].status = "failed"
                    case.sides[name].reason = Reason(kind="exception", text=str(refused)[:1000])
            continue
        for name, timing in said.items():
            if held is not None and gpu is not None:
                timing.clocks = held
            case.sides[name].timing = timing


def _unchecked(side: CaseSide) -> CaseSide:
    """Return a side as it is declared, with nothing of its checks."""
    return CaseSide(status="skipped", reason=LATE, file=side.file, line=side.line, params=side.params)


def check_side(
    bench: Bench,
    name: Side,
    cases: Sequence[Case],
    found: Mapping[Side, Found],
    journal: Journal,
    budget: Budget,
    *,
    fuzz: bool,
    note: Callable[[str], None],
    asked: Mapping[str, TimingMode],
) -> Probes:
    """Check every case of one side; fills `case.sides[name]`. Returns what is needed to settle how a case is measured.

    Base goes first: its tolerances are then head's. `asked`: case key → timing mode.
    """
    probes: Probes = {}
    worker: Worker | None = None
    for key, side, recorded in journal.probes():
        if side == name:
            probes.setdefault(key, {})[name] = Probe(**recorded)
    for case in cases:
        if (case.key, name) in journal.checked:
            case.sides[name] = journal.checked[case.key, name]
            continue
        side_case = case.sides[name]
        if side_case.status != "ok":
            continue
        if not budget.left:
            case.sides[name] = _unchecked(side_case)
            continue
        note(f"checking {name} · {case.id}")
        probe: Probe | None = None
        try:
            if worker is None or not worker.alive:
                worker = bench.worker(name)
            shapes = 1 + (found[name].cases[case.key]["fuzz"] if fuzz else 0)
            patient = replace(bench, timeout=budget.patience(bench.timeout))
            probe = _check_one(patient, worker, name, case, fuzz, budget.patience(shapes * bench.timeout))
            if probe is not None and case.device == "cuda":
                probe = _probe(patient, worker, case, name, probe, asked.get(case.key, "auto"))
        except Died as died:
            if died.reason.kind == "timeout" and not budget.left:
                case.sides[name] = _unchecked(side_case)
                continue
            side_case.status = "failed"
            side_case.reason = died.reason.model_copy(update={"log": f"logs/{name}.log"})
        if probe is not None:
            probes.setdefault(case.key, {})[name] = probe
        journal.add_check(case.key, name, side_case, None if probe is None else asdict(probe))
    if worker is not None:
        worker.close()
    return probes


def _check_one(bench: Bench, worker: Worker, name: Side, case: Case, fuzz: bool, timeout: float) -> Probe | None:
    """Check and estimate one case. Returns None where the result is wrong. Raises Died."""
    side = case.sides[name]
    base = case.sides.get("base")
    theirs = base.check if base is not None and base.status == "ok" else Check()
    fields = case_fields(case, name)
    reply = worker.ask("check", timeout, seed=bench.seed, fuzz=fuzz, rtol=theirs.rtol, atol=theirs.atol, **fields)
    side.check = Check(
        shapes=reply["shapes"], compared=reply["compared"], worst=_finite(reply["worst"]),
        rtol=reply["rtol"], atol=reply["atol"], sketch=reply["sketch"], unredrawn=reply["unredrawn"][:400],
    )  # fmt: skip
    if not reply["ok"]:
        side.status = "failed"
        side.reason = Reason(kind=reply["kind"], text=reply["text"][:1000])
        return None
    opened = _describe(bench, worker, case, name)
    side.tuner = worker.ask("close", bench.timeout, verify=False).get("tuner")
    if opened.elsewhere:
        side.status = "failed"
        side.reason = Reason(kind="wrong", text=opened.elsewhere)
        return None
    side.inputs, side.work, side.dtype = opened.digest, opened.work, opened.dtype
    if case.device == "cuda":
        side.profile = Profile(metrics={"peak_memory": opened.memory})
    return Probe(opened.seconds, opened.settings, opened.footprint, opened.peak, clocks=opened.clocks)


def _describe(bench: Bench, worker: Worker, case: Case, name: Side) -> _Opened:
    mode = "cold" if case.device == "cuda" else "cpu"
    fields = {**case_fields(case, name), "mode": mode, "sets": 1}
    return worker.tell(_Opened, "open", bench.timeout, seed=bench.seed, placement=0, describe=True, **fields)


def _probe(bench: Bench, worker: Worker, case: Case, name: Side, probe: Probe, asked: TimingMode) -> Probe:
    """Tell whether the case can be captured. A capture that breaks the worker costs the worker, not the case."""
    if asked == "cold":
        return probe
    try:
        fields = {**case_fields(case, name), "mode": "hot", "sets": 1}
        worker.ask("open", bench.timeout, seed=bench.seed, placement=0, **fields)
        found = worker.ask("probe", bench.timeout)
        worker.ask("close", bench.timeout, verify=False)
    except Died as died:
        worker.close()
        return replace(probe, refused=died.reason.text)
    if found["refused"]:
        worker.close()  # torch still takes the memory of whatever comes next for that of the failed capture
        return replace(probe, refused=found["refused"])
    return replace(probe, graph_seconds=found["seconds"])


def unredrawn(cases: Sequence[Case]) -> list[str]:
    """Return a note on cases that could not be checked with their inputs redrawn in place; where none follow from the
    draw there is nothing to redraw."""
    found = {case.id: side.check.unredrawn for case in cases for side in case.sides.values() if side.check.unredrawn}
    why = {case: text for case, text in found.items() if text != NOTHING_DRAWN}
    if not why:
        return []
    named = "; ".join(f"{case}: {text}" for case, text in list(why.items())[:3])
    more = f"; and {len(why) - 3} more" if len(why) > 3 else ""
    return [f"inputs were not redrawn in place while checking, which would find a memo of results: {named}{more}"]


def _finite(worst: float | None) -> float | None:
    """Return a finite error; None where the result is not finite, so that its error has no size: the reason says so."""
    return worst if worst is not None and math.isfinite(worst) else None
