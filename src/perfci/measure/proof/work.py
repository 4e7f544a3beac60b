"""The GPU work of cases, recorded and compared without timing."""

import math
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from perfci.measure.bench import Refusal, case_fields
from perfci.measure.budget import Budget
from perfci.measure.cases import merge, require_some
from perfci.measure.checks import lanes, most_lanes
from perfci.measure.costs import Costs
from perfci.measure.coverage import everything
from perfci.measure.discovery import discover
from perfci.measure.journal import Journal
from perfci.measure.place import LOAD_TIMEOUT, Place, open_place
from perfci.measure.proof.same_code import SCRIPTS, draw_audit, number, unprovable
from perfci.measure.request import Progress, Request
from perfci.measure.timing import SCHEDULES, Setup
from perfci.model.base import SIDES, MachineError, Side, UsageError
from perfci.model.comparison import differences
from perfci.model.criteria import Criterion
from perfci.model.metrics import CATALOGUE, HOST_TIME, RANGE
from perfci.model.plan import Plan
from perfci.model.results import Case, Proof
from perfci.model.text import one_line
from perfci.model.timing import GRAPH_MODES
from perfci.system.bounded import MIB, Bounds, Unread, call, desk
from perfci.system.child import Died
from perfci.system.facts import whole_cores
from perfci.system.lease import Lease
from perfci.system.starter import Wait, Worker, close_all, wait_first
from perfci.work.files import WorkAnswer, compare, refused
from perfci.worker.tuners import UNSEEN

Folders = dict[Side, list[Path]]
SAME_WORK = "base and head give the GPU the same work"
PROCESSES = 2
"""Recording processes of each side: what differs between them is not the case's work."""
DRAWS = SCHEDULES["rotating"].placements
"""Draws, unforeseeable by code, as many as a pair begins with."""
_BOUNDS = Bounds(seconds=60.0, memory=1024 * MIB)
"""A case may launch some tens of images, of some MiB each."""
_AT_ONCE, MOST_READERS = 4, 8
"""Cases compared in one process, for which the bounds hold, and such processes beside each other."""
BUDGET = 0.25
"""Share of the budget left: a longer proof saves nothing."""
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
    """Fill `Case.proof` of unproved `cases`, or take it from the journal. `lot`: as of `draw_audit`; empty audits none.
    Raises MachineError."""
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
            setup = bench.setups[case.key]
            alone = case.host_open and case.proof is not None and not case.proof.number
            bench.setups[case.key] = setup.of_host() if alone else setup.smallest()


def _prove(
    cases: Sequence[Case], place: Place, plan: Plan, lot: str, budget: Budget, note: Callable[[str], None]
) -> None:
    sought = []
    for case in cases:
        if case.proof is None or case.proof.by or case.device != "cuda":
            continue
        if not (why := _unrecordable(case, place, plan.criteria)):
            sought.append(case)
        elif not unprovable(case, plan.criteria) and why not in case.proof.reason:
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
            host = _host(case, plan) if place.benches["cuda"].setups[case.key].host else ""
            others = [one for one in plan.criteria if one.metric != HOST_TIME]
            case.proof = Proof(by="work", reason=SAME_WORK, number=number(case, others), host=host)
    if lot:
        draw_audit(sought, f"{lot}/work")


def _host(case: Case, plan: Plan) -> str:
    asked = (one for one in plan.timed if one.case_key == case.key and one.metric == HOST_TIME)
    return next((one.words() for one in asked), "")


def _unrecordable(case: Case, place: Place, criteria: Sequence[Criterion]) -> str:
    if any(side.scripts for side in place.sides.values()):
        return SCRIPTS
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


def explain_work(request: Request, progress: Progress) -> dict[str, WorkAnswer]:
    """Record and compare the work of the request's cases. Returns id → answer. Raises PerfciError."""
    with ExitStack() as stack:
        place = open_place(request, progress, stack, Costs())
        if "cuda" not in place.benches:
            raise MachineError(
                "explain: torch uses no GPU here, and without one no work can be recorded: see perfci doctor"
            )
        # Others may be timing on it.
        stack.enter_context(Lease(place.facts.uuid or "gpu-0", request.how.wait, progress.stage))
        found = discover(place, request.what.cases, progress.stage)
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
) -> dict[str, WorkAnswer]:
    """Record and compare the work of cases. Returns id → answer. Raises MachineError. `end`: monotonic clock."""
    answers = {case.id: refused(why) for case in cases if (why := _absent(case))}
    account = place.parent.account
    with desk(account) as desktop:
        recording = _Recording(place, desktop, end, note, answers)
        recorded = recording.record([case for case in cases if case.id not in answers])
        parts = [recorded[first : first + _AT_ONCE] for first in range(0, len(recorded), _AT_ONCE)]

        def compared(part: Sequence[tuple[str, Folders]]) -> dict[str, WorkAnswer]:
            try:
                return call(compare, _BOUNDS, desktop, account, cases=dict(part), draws=DRAWS)
            except Unread as error:
                return {name: refused(f"what was recorded {error}") for name, _ in part}

        with ThreadPoolExecutor(max(1, min(MOST_READERS, whole_cores() // 2))) as pool:
            for of_part in pool.map(compared, parts):
                answers |= of_part
    return {case.id: answers[case.id] for case in cases}


class _Recording:
    """Records the work of cases, each in several processes of each side."""

    def __init__(
        self, place: Place, desktop: Path, end: float, note: Callable[[str], None], answers: dict[str, WorkAnswer]
    ) -> None:
        """`answers`: id → of what is not to be compared."""
        self.place, self.desktop, self.end, self.note, self.answers = place, desktop, end, note, answers
        self.draws = [random.SystemRandom().getrandbits(62) for _ in range(DRAWS)]
        self.folders: dict[str, Folders] = {}

    def record(self, cases: Sequence[Case]) -> list[tuple[str, Folders]]:
        """Id and folders of what all processes recorded in time."""
        lots = self._lots(cases)
        self.folders = {case.id: {side: [] for side in SIDES} for case in cases}
        left = sum(len(lot) * _longest(lot[0]) for lot in lots)
        for batch in (batch for lot in lots for batch in lot):
            until = time.monotonic() + (self.end - time.monotonic()) * _longest(batch) / left
            left -= _longest(batch)
            try:
                _run([self._recorded(recorder, own, until) for recorder, own in batch])
            finally:
                close_all(worker for recorder, _ in batch for worker in recorder.workers)
        return [(case.id, self.folders[case.id]) for case in cases if case.id not in self.answers]

    def _lots(self, cases: Sequence[Case]) -> list[list["Batch"]]:
        """Recorders of a lot work at once: all, or one of each side where memory may lack room for more, or one where
        the GPU takes no more."""
        if not cases:
            return []
        if self.place.exclusive("cuda"):
            return [[[(one, cases)] for process in range(PROCESSES) for one in self._recorders(process)]]
        setups, most = self.place.benches["cuda"].setups, most_lanes("cuda")
        fits = {case.id: min(most, setups.get(case.key, _ONE).pairs // PROCESSES) for case in cases}
        lots: list[list[Batch]] = []
        for roomy, count in (
            ([case for case in cases if fits[case.id] == most], most),
            ([case for case in cases if 0 < fits[case.id] < most], 1),
        ):
            if roomy:
                own = lanes(roomy, count)
                lots.append([[(one, lane) for lane in own for n in range(PROCESSES) for one in self._recorders(n)]])
        if rest := [case for case in cases if fits[case.id] == 0]:
            lots.append([[(one, rest) for one in self._recorders(process)] for process in range(PROCESSES)])
        return lots

    def _recorders(self, process: int) -> list["_Recorder"]:
        return [_Recorder(self.place, name, process, self.draws) for name in self.place.sides]

    def _recorded(self, recorder: "_Recorder", cases: Sequence[Case], until: float) -> Iterator[Wait]:
        # Where libraries' choices are not seen, nothing may have waited for the GPU before, in any case.
        for case in sorted(cases, key=lambda case: not _unseen(case)):
            if case.id not in self.answers and time.monotonic() > until:
                self.answers[case.id] = refused("the budget is needed for pairs")
            if case.id in self.answers:
                continue
            folders = self.folders[case.id]
            if not any(folders.values()):
                self.note(f"recording · {case.id}")
            target = Path(mkdtemp(dir=self.desktop))
            self.place.parent.account.give(target)
            folders[recorder.name].append(target)
            why = yield from recorder.record(case, target, until)
            if why and case.id not in self.answers:
                self.answers[case.id] = refused(f"{recorder.name}: {why}")


def _unseen(case: Case) -> bool:
    return any(side.tuner for side in case.sides.values())


def _longest(batch: "Batch") -> int:
    return max(len(own) for _, own in batch)


def _run(tasks: Sequence[Iterator[Wait]]) -> None:
    waits = {wait: task for task in tasks if (wait := next(task, None)) is not None}
    while waits:
        over = wait_first([*waits])
        task = waits.pop(over)
        if (wait := next(task, None)) is not None:
            waits[wait] = task


def _absent(case: Case) -> str:
    for name in SIDES:
        if (side := case.sides[name]).status != "ok":
            return f"it is {side.status} in {name}" + (f": {side.reason.text}" if side.reason else "")
    return ""


class _Recorder:
    """Records cases in a process of one side. A case that ends it costs that case: a new one goes on."""

    def __init__(self, place: Place, name: Side, process: int, draws: Sequence[int]) -> None:
        """`process`: its number in its side; `draws`: seeds."""
        self.name, self.process, self.draws = name, process, draws
        self.bench = place.benches["cuda"]
        self.workers: list[Worker] = []

    def record(self, case: Case, target: Path, until: float) -> Generator[Wait, None, str]:
        """Why the case's work was not recorded into `target` by then, or empty."""
        setup = self.bench.setups.get(case.key, _ONE)
        try:
            if not (self.workers and self.workers[-1].alive):
                log = self.bench.logs / f"{self.name}-{self.process}-work.log"
                self.workers.append(self.bench.begin(self.name, log=log, beside=True, work=True))
                loading = self.bench.loading(self.workers[-1])
                yield loading
                self.bench.loaded(self.workers[-1], loading)
            worker = self.workers[-1]
            worker.begin(
                "work",
                **case_fields(case, self.name),
                draws=self.draws,
                sets=setup.sets,
                batch=setup.batch,
                unseen=_unseen(case),
                folder=str(target),
            )
            patience = max(_LEAST, until - time.monotonic())
            answer = worker.wait(min(patience, max(self.bench.timeout, LOAD_TIMEOUT)))
            yield answer
            reply = worker.answer(answer.timeout, waited=answer)
            why = worker.fit(Refusal, "work", reply).refused
        except Died as error:
            why = error.reason.text
        if why:  # it may live on, and hold memory of the GPU; and a capture that failed may leave the next one none
            for worker in self.workers[-1:]:
                worker.dismiss()
        return why


Batch = list[tuple[_Recorder, Sequence[Case]]]
"""Recorders, each with its cases."""
