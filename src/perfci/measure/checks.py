"""The checks before timing: is each case right in base and in head, and how long does it take?"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from perfci.measure.cases import Found, timing_of
from perfci.measure.costs import Budget
from perfci.measure.journal import Journal
from perfci.measure.place import Place
from perfci.measure.rounds import Bench, case_fields
from perfci.measure.sides.untouched import beside
from perfci.measure.timing import Probe, Refused, settle
from perfci.model.base import Document, Side
from perfci.model.profile import Profile
from perfci.model.results import Case, CaseSide, Check, Reason, Work
from perfci.model.timing import Setting, TimingMode
from perfci.system.child import Died
from perfci.system.process import Worker

NOTHING_DRAWN = "its inputs are the same in every draw"
"""As `worker/checks/check.py` says it."""
_MEMORY = re.compile(r"out of memory|OutOfMemory|ALLOC_FAILED|MemoryError|[Cc]annot allocate")
"""As PyTorch, CUDA's libraries, Python and the C library say it."""
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
    tuner: str | None
    """As `worker.tuners.told`; None on a CPU."""


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
    """Check every kernel's case in base and in head. Fills `case.sides`; returns settle_all()'s probes.

    Base is one case ahead, since its tolerances are head's. Where a side makes what Python could import, all is checked
    again, one side after the other: it is then the side's own (`Seal.own`). A case that the budget does not reach in
    every side is skipped in all: only what was right is timed.
    """
    probes: Probes = {}
    asked = {case.key: timing_of(case, found, place.limits) for case in cases}
    for device, bench in place.benches.items():
        kernels = [case for case in cases if case.device == device and case.origin == "kernel"]

        def checkers(bench: Bench = bench) -> list[_Checker]:
            return [_Checker(bench, name, found[name], journal, budget, fuzz, note, asked) for name in place.sides]

        sides = None if place.exclusive(device) else _at_once(place, checkers, kernels, note)
        sides = sides or _in_turns(place, checkers(), kernels)
        for one in sides:
            for key, probe in one.probes.items():
                probes.setdefault(key, {})[one.name] = probe
        for case in kernels:
            if any(side.reason == LATE for side in case.sides.values()):
                case.stopped = "budget"
                for name, side in case.sides.items():
                    if side.status == "ok":
                        case.sides[name] = _unchecked(side)
    return probes


def _at_once(
    place: Place, checkers: "Callable[[], list[_Checker]]", cases: Sequence[Case], note: Callable[[str], None]
) -> "list[_Checker] | None":
    """Check base and head beside each other. Returns None, with the cases as they were, where there is one side, or
    one of them made what Python could import."""
    seals = [side.seal for side in place.sides.values() if side.seal is not None]
    if len(seals) < 2:
        return None
    declared = [{name: side.model_copy(deep=True) for name, side in case.sides.items()} for case in cases]
    with beside(seals) as made:
        sides = checkers()
        _check(sides, cases)
    if not made:
        return sides
    note(f"checking again, one side after the other, since there is a new file ({made[0]})")
    for case, before in zip(cases, declared, strict=True):
        case.sides = before
    return None


def _in_turns(place: Place, sides: "list[_Checker]", cases: Sequence[Case]) -> "list[_Checker]":
    for one in sides:
        with place.sides[one.name].own():
            _check([one], cases)
    return sides


def _check(sides: "Sequence[_Checker]", cases: Sequence[Case]) -> None:
    """Let the sides check at once, each one case behind the one before it."""
    try:
        for one in sides:
            if any(one.wants(case) for case in cases):
                one.start()
        for step in range(len(cases) + len(sides) - 1):
            numbers = [(one, step - behind) for behind, one in enumerate(sides)]
            now = [(one, cases[number]) for one, number in numbers if 0 <= number < len(cases)]
            for one, case in now:
                one.begin(case, beside=len(now) > 1)
            for one, _ in now:
                one.answer()
            again = [one for one, _ in now if one.disturbed()]
            for one in again:
                one.close()  # the memory that it holds
            for one in [one for one, _ in now if one not in again]:  # nothing else runs while an execution is timed
                one.settle()
            for one in again:
                one.repeat()
                one.settle()
    finally:
        for one in sides:
            one.close()


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
            setup, said = settle(timing_of(case, found, place.limits), working, gpu, bench.threads)
            bench.setups[case.key] = setup.smallest() if case.proved else setup
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


class _Checker:
    """Checks the cases of one side, one after the other, each in three steps: what others do may lie between."""

    def __init__(
        self,
        bench: Bench,
        name: Side,
        found: Found,
        journal: Journal,
        budget: Budget,
        fuzz: bool,
        note: Callable[[str], None],
        asked: Mapping[str, TimingMode],
    ) -> None:
        """`asked`: case key → timing mode."""
        self.bench, self.name, self.found, self.asked = bench, name, found, asked
        self.journal, self.budget, self.fuzz, self.note = journal, budget, fuzz, note
        recorded = journal.probes()
        self.probes = {key: Probe(**probe) for key, side, probe in recorded if side == name}
        self._worker: Worker | None = None
        self._loading = False
        self._case: Case | None = None
        """The one that is being checked."""
        self._beside = False
        self._reply: dict[str, Any] | Died | None = None

    def wants(self, case: Case) -> bool:
        """Tell whether a case is still to be checked."""
        waits = (case.key, self.name) not in self.journal.checked and case.sides[self.name].status == "ok"
        return waits and case.measured(self.name)

    def start(self) -> None:
        """Start a worker, and let it import its suite."""
        with suppress(Died):  # the first check starts another, and says why it cannot
            self._begin()

    def _begin(self) -> Worker:
        self._worker = self.bench.begin(self.name, beside=True)
        self._loading = True
        return self._worker

    def begin(self, case: Case, *, beside: bool) -> None:
        """Begin to check a case; `beside`: while another side does."""
        self._case = None
        if not self.wants(case):
            case.sides[self.name] = self.journal.checked.get((case.key, self.name), case.sides[self.name])
        elif not self.budget.left:
            case.sides[self.name] = _unchecked(case.sides[self.name])
        else:
            self.note(f"checking · {self.name} · {case.id}")
            self._case, self._beside = case, beside
            self._ask()

    def _ask(self) -> None:
        case = self._case
        assert case is not None
        base = case.sides.get("base")
        theirs = base.check if base is not None and base.status == "ok" else Check()
        fields = {"seed": self.bench.seed, "fuzz": self.fuzz, "rtol": theirs.rtol, "atol": theirs.atol}
        self._reply = None
        try:
            self._ready().begin("check", **fields, **case_fields(case, self.name))
        except Died as died:
            self._reply = died

    def _ready(self) -> Worker:
        """Return a worker with its suite imported. Raises Died."""
        worker = self._worker if self._worker is not None and self._worker.alive else self._begin()
        if self._loading:
            self._loading = False
            self.bench.loaded(worker)
        return worker

    def answer(self) -> None:
        """Wait for the check's answer."""
        if self._case is None or self._worker is None or self._reply is not None:
            return
        shapes = 1 + (self.found.cases[self._case.key]["fuzz"] if self.fuzz else 0)
        try:
            self._reply = self._worker.answer(self.budget.patience(shapes * self.bench.timeout))
        except Died as died:
            self._reply = died

    def disturbed(self) -> bool:
        """Tell whether the check may have failed for the memory or the time that another side took beside it."""
        if self._case is None or not self._beside or self._reply is None:
            return False
        if isinstance(self._reply, Died):
            reason = self._reply.reason
            return (reason.kind == "timeout" and self.budget.left > 0) or _MEMORY.search(reason.text) is not None
        return not self._reply["ok"] and _MEMORY.search(str(self._reply["text"])) is not None

    def repeat(self) -> None:
        """Check the case once more, with nothing beside it."""
        self._ask()
        self.answer()

    def settle(self) -> None:
        """Keep what the check found, and find out how the case can be timed. To be called while nothing else runs."""
        case = self._case
        if case is None:
            return
        side, probe = case.sides[self.name], None
        try:
            if isinstance(self._reply, Died):
                raise self._reply
            assert self._worker is not None and self._reply is not None
            patient = replace(self.bench, timeout=self.budget.patience(self.bench.timeout))
            asked = self.asked.get(case.key, "auto")
            probe = _found(patient, self._worker, self.name, case, self._reply, asked)
        except Died as died:
            if died.reason.kind == "timeout" and not self.budget.left:
                case.sides[self.name] = _unchecked(side)
                return
            side.status = "failed"
            side.reason = died.reason.model_copy(update={"log": f"logs/{self.name}.log"})
        if probe is not None:
            self.probes[case.key] = probe
        self.journal.add_check(case.key, self.name, side, None if probe is None else asdict(probe))

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()


def _found(
    bench: Bench, worker: Worker, name: Side, case: Case, reply: Mapping[str, Any], asked: TimingMode
) -> Probe | None:
    """Keep a check's answer, and estimate the case. Returns None where the result is wrong. Raises Died."""
    side = case.sides[name]
    side.check = Check(
        shapes=reply["shapes"], compared=reply["compared"], worst=_finite(reply["worst"]),
        rtol=reply["rtol"], atol=reply["atol"], sketch=reply["sketch"], unredrawn=reply["unredrawn"][:400],
    )  # fmt: skip
    if not reply["ok"]:
        side.status = "failed"
        side.reason = Reason(kind=reply["kind"], text=reply["text"][:1000])
        return None
    mode = "cold" if case.device == "cuda" else "cpu"
    fields = {**case_fields(case, name), "mode": mode, "sets": 1, "seed": bench.seed, "placement": 0}
    opened = worker.tell(_Opened, "open", bench.timeout, describe=True, **fields)
    side.tuner = opened.tuner
    if opened.elsewhere:
        side.status = "failed"
        side.reason = Reason(kind="wrong", text=opened.elsewhere)
        worker.ask("close", bench.timeout, verify=False)
        return None
    side.inputs, side.work, side.dtype = opened.digest, opened.work, opened.dtype
    if case.device == "cuda":
        side.profile = Profile(metrics={"peak_memory": opened.memory})
    probe = Probe(opened.seconds, opened.settings, opened.footprint, opened.peak, clocks=opened.clocks)
    if case.device == "cuda" and asked != "cold":
        probe = _captured(bench, worker, probe)
    if not probe.refused:
        worker.ask("close", bench.timeout, verify=False)
    return probe


def _captured(bench: Bench, worker: Worker, probe: Probe) -> Probe:
    """Tell whether the open case can be captured. A capture that breaks the worker costs the worker, not the case."""
    try:
        found = worker.ask("probe", bench.timeout)
    except Died as died:
        found = {"refused": died.reason.text}
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
