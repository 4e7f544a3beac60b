"""The GPU work of cases in base and head, recorded and compared without timing."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from perfci.measure.bench import Refusal, case_fields
from perfci.measure.cases import merge, require_some
from perfci.measure.costs import Budget, Costs
from perfci.measure.coverage import everything
from perfci.measure.discovery import discover
from perfci.measure.journal import Journal
from perfci.measure.place import LOAD_TIMEOUT, Place, open_place
from perfci.measure.proof.same_code import draw_audit, number, unprovable
from perfci.measure.request import Progress, Request
from perfci.measure.timing import SCHEDULES, Setup
from perfci.model.base import SIDES, MachineError, Side, UsageError
from perfci.model.comparison import differences
from perfci.model.criteria import Criterion
from perfci.model.metrics import CATALOGUE, RANGE
from perfci.model.plan import Plan
from perfci.model.results import Case, Proof
from perfci.model.text import one_line
from perfci.model.timing import GRAPH_MODES
from perfci.system.bounded import MIB, Bounds, Unread, call, desk
from perfci.system.child import Died
from perfci.system.lease import Lease
from perfci.system.starter import Worker
from perfci.work.files import Compared, compare, refused
from perfci.worker.tuners import UNSEEN

SAME_WORK = "base and head give the GPU the same work"
PROCESSES = 2
"""Of a side: what differs between them is not the case's work."""
DRAWS = SCHEDULES["rotating"].placements
"""Recorded draws of a case's inputs, unforeseeable by code: as many as a pair begins with."""
_BOUNDS = Bounds(seconds=60.0, memory=1024 * MIB)
"""A case may launch some tens of images, of some MiB each."""
_AT_ONCE = 16
"""Cases compared in one process, for which the bounds hold."""
BUDGET = 0.25
"""Share of the budget left: a longer proof saves nothing that pairs do not need."""
_LEAST = 5.0
"""Seconds to wait for an answer, whatever is left."""
_ONE = Setup("hot", 1, 1, 1, 1)
"""One execution, of a case not to be timed."""


def prove_work(
    cases: Sequence[Case],
    place: Place,
    plan: Plan,
    lot: str,
    budget: Budget,
    journal: Journal,
    note: Callable[[str], None],
) -> None:
    """Fill `Case.proof` of unproved `cases` that were checked and settled; from the journal where recorded. `lot`: as
    of `draw_audit`; empty audits none. Raises MachineError."""
    bench = place.benches.get("cuda")
    if bench is None:
        return
    if journal.worked is None:
        _prove(cases, place, plan, lot, budget, note)
        journal.add_worked(cases)
    else:
        for case in cases:
            case.proof = journal.worked.get(case.key, case.proof)
    for case in cases:
        if case.proved and case.key in bench.setups:  # a number is all that may be asked
            bench.setups[case.key] = bench.setups[case.key].smallest()


def _prove(
    cases: Sequence[Case], place: Place, plan: Plan, lot: str, budget: Budget, note: Callable[[str], None]
) -> None:
    sought = []
    for case in cases:
        if case.proof is None or case.proof.by or case.device != "cuda":
            continue
        if not (why := _unrecordable(case, place, plan.criteria)):
            sought.append(case)
        elif not unprovable(case, plan.criteria):
            case.proof.reason = one_line(f"{case.proof.reason}; and {why}", 1000)
    if not sought:
        return
    note("comparing what base and head give the GPU")
    answers = compare_work(sought, place, lambda _: None, time.monotonic() + BUDGET * budget.left)
    for case in sought:
        assert case.proof is not None
        if why := answers[case.id].why_not:
            case.proof.reason = one_line(f"{case.proof.reason}; and the GPU's work: {why}", 1000)
        else:
            case.proof = Proof(by="work", reason=SAME_WORK, number=number(case, plan.criteria))
    if lot:
        draw_audit(sought, f"{lot}/work")


def _unrecordable(case: Case, place: Place, criteria: Sequence[Criterion]) -> str:
    """Return why a checked case's work would prove nothing, as a clause, or empty."""
    setup = place.benches["cuda"].setups.get(case.key)
    if why := unprovable(case, criteria) or _absent(case):
        return why
    if place.environments is not None:
        return "the environments of base and head differ"
    base, head = (case.sides[name] for name in SIDES)
    if differences(base, head):
        return "base and head ask different questions"
    if setup is None or setup.mode not in GRAPH_MODES:
        return "it is not timed as a CUDA graph"
    if setup.alternating:
        return "the GPU takes one side at a time"
    for side in (base, head):
        if side.tuner is None or (side.tuner and not side.tuner.endswith(UNSEEN)):
            return f"processes may differ: {side.tuner or 'it is not known whether it tunes'}"
    asked = [one for one in criteria if one.case_key == case.key and not one.waits]
    # What a range of NVTX holds, the host decides.
    known = [(one, CATALOGUE.get(one.metric)) for one in asked]
    hosts = [one for one, metric in known if (metric and metric.of_host) or RANGE.fullmatch(one.metric)]
    return f"its limit on {hosts[0].metric} asks what the host does" if hosts else ""


def explain_work(request: Request, progress: Progress) -> dict[str, Compared]:
    """Record and compare the work of the request's cases on a GPU. Returns id → answer. Raises PerfciError."""
    with ExitStack() as stack:
        place = open_place(request, progress, stack, Costs())
        if "cuda" not in place.benches:
            raise MachineError(
                "explain: torch uses no GPU here, and without one no work can be recorded: see perfci doctor"
            )
        # Others may be timing on it.
        stack.enter_context(Lease(place.facts.uuid or "gpu-0", request.how.wait, progress.stage))
        progress.stage("discovering cases")
        found = discover(place)
        known = everything(place, found)
        named = merge(found, place.sides, ["cuda"], request.what.cases)
        require_some(named, found, known, request.what.cases)
        cases = [case for case in named if case.stopped != "skipped"]
        if not cases:
            raise UsageError(f"{', '.join(request.what.cases)}: runs on the CPU alone: name a case that runs on a GPU")
        progress.stage("recording")
        return compare_work(cases, place, progress.note)


def compare_work(
    cases: Sequence[Case], place: Place, note: Callable[[str], None], end: float = math.inf
) -> dict[str, Compared]:
    """Record and compare the work of cases in processes of both sides. Returns id → answer. Raises MachineError.

    `end`: monotonic clock, no recording behind it.
    """
    found = {case.id: refused(why) for case in cases if (why := _absent(case))}
    asked = {f"case-{number}": case for number, case in enumerate(cases) if case.id not in found}
    account, draws = place.parent.account, [random.SystemRandom().getrandbits(62) for _ in range(DRAWS)]
    with desk(account) as desktop:
        folders: dict[str, dict[Side, list[Path]]] = {name: {side: [] for side in SIDES} for name in asked}
        left = len(asked)
        for some, rounds in _lots(place, asked, draws):
            share, left = len(some) / max(1, left), left - len(some)
            close = time.monotonic() + (end - time.monotonic()) * share
            for number, recorders in enumerate(rounds):
                until = time.monotonic() + (close - time.monotonic()) / (len(rounds) - number)
                for folder, case in some.items():
                    if case.id not in found and time.monotonic() > until:
                        found[case.id] = refused("the budget is needed for pairs")
                    if case.id in found:
                        continue
                    note("recording" + (f" · {number + 1} of {len(rounds)}" if rounds[1:] else "") + f" · {case.id}")
                    for one in recorders:
                        one.start()
                    for one in recorders:
                        target = desktop / f"{one.name}-{one.process}" / folder
                        target.mkdir(parents=True)
                        account.give(target.parent)
                        account.give(target)
                        folders[folder][one.name].append(target)
                        one.begin(case, target)
                    for one in recorders:
                        why = one.answer(max(_LEAST, until - time.monotonic()))
                        if why and case.id not in found:
                            found[case.id] = refused(f"{one.name}: {why}")
                for one in recorders:
                    one.close()
        recorded = {case.id: folders[name] for name, case in asked.items() if case.id not in found}
        names = list(recorded)
        for some_names in (names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)):
            try:
                found |= call(
                    compare, _BOUNDS, desktop, account, cases={name: recorded[name] for name in some_names}, draws=DRAWS
                )  # fmt: skip
            except Unread as error:
                found |= {name: refused(f"what was recorded {error}") for name in some_names}
    return {case.id: found[case.id] for case in cases}


def _lots(
    place: Place, asked: Mapping[str, Case], draws: Sequence[int]
) -> Iterator[tuple[dict[str, Case], list[list["_Recorder"]]]]:
    """Yield cases, and the processes that record them at once, round by round, so that whatever time allows is
    compared: all; one of each side where memory may lack room for more, as in timing; one by one where the GPU takes
    one process at a time."""
    bench = place.benches["cuda"]
    made = [[_Recorder(place, name, process, draws) for name in place.sides] for process in range(PROCESSES)]
    every = [one for pair in made for one in pair]
    if place.exclusive("cuda"):
        yield dict(asked), [[one] for one in every]
        return
    roomy = {name: case for name, case in asked.items() if bench.setups.get(case.key, _ONE).roomy}
    if roomy:
        yield roomy, [every]
    if rest := {name: case for name, case in asked.items() if name not in roomy}:
        yield rest, made


def _absent(case: Case) -> str:
    for name in SIDES:
        if (side := case.sides[name]).status != "ok":
            return f"it is {side.status} in {name}" + (f": {side.reason.text}" if side.reason else "")
    return ""


class _Recorder:
    """Records cases in a process of one side. A case that ends it costs that case: a new one goes on."""

    def __init__(self, place: Place, name: Side, process: int, draws: Sequence[int]) -> None:
        """`process`: its number in its side; `draws`: seeds."""
        self.place, self.name, self.process, self.draws = place, name, process, draws
        self.bench = place.benches["cuda"]
        self.worker: Worker | None = None
        self.loaded = False
        self.refused = ""

    def start(self) -> None:
        if self.worker is None:
            self.loaded, self.refused = False, ""
            log = self.bench.logs / f"{self.name}-{self.process}-work.log"
            try:
                self.worker = self.bench.begin(self.name, log=log, beside=True, work=True)
            except Died as error:
                self.refused = error.reason.text

    def begin(self, case: Case, target: Path) -> None:
        if self.worker is None:
            return
        setup = self.bench.setups.get(case.key, _ONE)
        try:
            if not self.loaded:
                self.bench.loaded(self.worker)
                self.loaded = True
            self.worker.begin(
                "work",
                **case_fields(case, self.name),
                draws=self.draws,
                sets=setup.sets,
                batch=setup.batch,
                unseen=bool(case.sides[self.name].tuner),
                folder=str(target),
            )
        except Died as error:
            self.close()
            self.refused = error.reason.text

    def answer(self, patience: float) -> str:
        """Return why it was not recorded within `patience` seconds, or empty."""
        if self.worker is None:
            return self.refused
        try:
            reply = self.worker.answer(min(patience, max(self.bench.timeout, LOAD_TIMEOUT)))
            why = self.worker.fit(Refusal, "work", reply).refused
        except Died as error:
            self.close()  # it may live on, and hold memory of the GPU
            return error.reason.text
        if why:
            self.close()  # a capture that failed may leave the next one none
        return why

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None
