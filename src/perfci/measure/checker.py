"""What a side's worker is asked in a check, and what becomes of its answers; `checks.py` says in which order."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from statistics import median

from perfci.measure.bench import Bench, CheckReply, Hosted, Refusal, case_fields
from perfci.measure.budget import Budget
from perfci.measure.cases import Declarations
from perfci.measure.journal import Journal
from perfci.measure.timing import MOST_SETS, Probe
from perfci.model.base import Document, Side
from perfci.model.profile import Profile
from perfci.model.results import Case, CaseSide, Check, Reason, Work
from perfci.model.timing import Setting, TimingMode
from perfci.system.child import Died
from perfci.system.starter import Wait, Worker, close_all, wait_first

_MEMORY = re.compile(r"out of memory|OutOfMemory|ALLOC_FAILED|MemoryError|[Cc]annot allocate")
"""As PyTorch, CUDA's libraries, Python and the C library say it."""
NO_ROOM = "there is no room for its inputs three times"
"""As `worker/checks/redraw.py` says it."""
SPARE = 4
"""Workers started at once where each serves a single case."""
LATE = Reason(kind="budget", text="the budget ended before it was checked")


class _Described(Document):
    digest: str
    dtype: str
    work: Work
    footprint: int
    """Bytes of device memory of one set of inputs."""
    room: int
    """Bytes of device memory that one more set takes."""
    sets: int | None
    """Sets at most, where it matters."""
    peak: int
    """Bytes of device memory so far."""
    memory: int
    """Bytes of device memory, with inputs."""
    seconds: float
    elsewhere: str | None
    """Why what is timed is not the case."""
    settings: dict[str, Setting]
    clocks: str | None
    tuner: str | None
    """As `worker.tuners.told`; None on a CPU."""


def unchecked(side: CaseSide) -> CaseSide:
    """Return a side as declared."""
    return CaseSide(status="skipped", reason=LATE, file=side.file, line=side.line, params=side.params)


class Checker:
    """Checks one side's cases in a worker, beside others; then settles how they are timed."""

    def __init__(
        self,
        bench: Bench,
        name: Side,
        declarations: Declarations,
        journal: Journal,
        budget: Budget,
        fuzz: bool,
        note: Callable[[str], None],
        asked: Mapping[str, TimingMode],
        base: "Checker | None" = None,
    ) -> None:
        """`asked`: case key → timing mode. `base`: settled before head's."""
        self.bench, self.name, self.declarations, self.asked, self.base = bench, name, declarations, asked, base
        self.journal, self.budget, self.fuzz, self.note = journal, budget, fuzz, note
        self.probes = {key: Probe(**probe) for key, side, probe in journal.probes if side == name}
        self.wait: Wait | None = None
        self._worker: Worker | None = None
        self._spare: list[Worker] = []
        self.loading = False
        self._case: Case | None = None
        self._reply: CheckReply | Died | None = None
        self._unsettled: list[tuple[Case, CheckReply | Died]] = []
        self._anew = False
        """Fuzzed shapes that the worker has checked are checked again."""
        self._given: dict[str, tuple[object, object, bool]] = {}
        """Case key → tolerances of base that its check was given, if any, and whether base misses the reference."""

    def wants(self, case: Case) -> bool:
        """Tell whether a case is still to be checked."""
        waits = (case.key, self.name) not in self.journal.checked and case.sides[self.name].status == "ok"
        return waits and case.measured(self.name)

    def start(self) -> None:
        """Start a worker that imports its suite."""
        with suppress(Died):  # the first check starts another, and says why it cannot
            self._begin()

    def _begin(self) -> Worker:
        self._worker = self.bench.begin(self.name, beside=True)
        self.loading = True
        return self._worker

    def begin(self, case: Case) -> None:
        """Begin to check a case; `wait` is then None where there is nothing to check."""
        self._case, self._reply = None, None
        if not self.wants(case):
            case.sides[self.name] = self.journal.checked.get((case.key, self.name), case.sides[self.name])
        elif not self.budget.left:
            case.sides[self.name] = unchecked(case.sides[self.name])
        else:
            self.note(f"checking · {self.name} · {case.id}")
            self._case = case
            self._ask()

    def _ask(self) -> None:
        case = self._case
        assert case is not None
        theirs = _base_check(case)
        fields = {"seed": self.bench.seed, "fuzz": self.fuzz, "rtol": theirs.rtol, "atol": theirs.atol}
        self._given[case.key] = theirs.rtol, theirs.atol, bool(theirs.missed)
        self.wait = None
        try:
            worker = self._worker if self._worker is not None and self._worker.alive else self._begin()
            if self.loading:
                self.wait = self.bench.loading(worker)
                return
            worker.begin("check", **fields, anew=self._anew, **case_fields(case, self.name))
        except Died as died:
            self._reply = died
        else:
            shapes = 1 + (self.declarations.cases[case.key]["fuzz"] if self.fuzz else 0)
            self.wait = worker.wait(self.budget.patience(shapes * self.bench.timeout))

    def go_on(self) -> None:
        """Take the awaited answer."""
        assert self._worker is not None and self.wait is not None
        waited, self.wait = self.wait, None
        try:
            if self.loading:
                self.loading = False
                self.bench.loaded(self._worker, waited)
                self._ask()
            else:
                reply = self._worker.answer(waited.timeout, waited=waited)
                self._reply = self._worker.fit(CheckReply, "check", reply)
        except Died as died:
            self._reply = died

    def keep(self, *, beside: bool) -> bool:
        """Keep the check's answer. Return False instead where others `beside` may have taken the memory or time it
        lacked."""
        case, reply = self._case, self._reply
        if case is None or reply is None:
            return True
        if beside and self._disturbed(reply):
            self.close()  # with the memory that it holds
            return False
        if isinstance(reply, CheckReply):
            if self._misses(case, reply):
                check = case.sides[self.name].check
                check.missed, check.miss = reply.text[:400], reply.missed
                return self.repeat(case, beside=beside)
            if not reply.ok:
                case.sides[self.name].status = "failed"  # `settle` says why; head is not held to its tolerances
            case.sides[self.name].check = Check(
                shapes=reply.shapes, compared=reply.compared, worst=_finite(reply.worst),
                rtol=reply.rtol, atol=reply.atol, sketch=reply.sketch, unredrawn=reply.unredrawn[:400],
                missed=case.sides[self.name].check.missed, miss=case.sides[self.name].check.miss, result=reply.result,
                content=reply.content[:64],
            )  # fmt: skip
        self._unsettled.append((case, reply))
        return True

    def _misses(self, case: Case, reply: CheckReply) -> bool:
        """Another provider of a script may draw weights of its own: what base misses says nothing of head."""
        side = case.sides[self.name]
        if self.name != "base" or reply.ok or reply.kind not in ("wrong", "nan") or side.check.missed:
            return False
        return any(one["file"] == side.file and one["reference"] for one in self.bench.sides["base"].scripts)

    def _disturbed(self, reply: CheckReply | Died) -> bool:
        if isinstance(reply, CheckReply):
            return _is_short(reply.text) if not reply.ok else reply.unredrawn == NO_ROOM
        late = reply.reason.kind == "timeout" and self.budget.left > 0
        return late or _is_short(reply.reason.text)

    def repeat(self, case: Case, *, beside: bool = False) -> bool:
        """Check a case, fuzzed shapes included, while nobody else works; as `keep`."""
        self._anew = True
        self.begin(case)
        while self.wait is not None:
            wait_first([self.wait])
            self.go_on()
        self._anew = False
        return self.keep(beside=beside)

    def settle(self, *, beside: bool) -> list[Case]:
        """Settle how the checked cases are timed, while nothing else runs.

        Returns, unchanged, those for which memory was short, which workers `beside` may hold.
        """
        unsettled, self._unsettled = self._unsettled, []
        disturbed = [
            case
            for number, (case, reply) in enumerate(unsettled)
            if not self._settle(case, reply, beside, len(unsettled) - number)
        ]
        close_all(self._spare)
        self._spare.clear()
        return disturbed

    def hold(self, again: Sequence[Case], *, beside: bool) -> list[Case]:
        """Hold to base's tolerances what was checked before these were known. Return what is to be checked behind base,
        whose cases are to be checked `again`, and where memory was short."""
        entries, self._unsettled, later = self._unsettled, [], []
        for case, reply in entries:
            if self._is_held(case, reply, again):
                self._unsettled.append((case, reply))
                continue
            side = case.sides[self.name]
            side.status, side.check = "ok", Check()
            if case.sides["base"].reason == LATE:
                case.sides[self.name] = unchecked(side)
            elif any(case is one for one in again) or not self.repeat(case, beside=beside):
                later.append(case)
        return later

    def _is_held(self, case: Case, reply: CheckReply | Died, again: Sequence[Case]) -> bool:
        """True also where tolerances do not matter."""
        if self.base is not None and isinstance(reply, CheckReply) and _base_check(case).missed:
            return self._given[case.key][2]
        if self.base is None or isinstance(reply, Died) or not (reply.ok or reply.kind == "wrong"):
            return True
        theirs, given = _base_check(case), self._given[case.key][:2]
        if (theirs.rtol, theirs.atol) == (None, None):
            late = case.sides["base"].reason == LATE or any(case is one for one in again)
            return given != (None, None) or not late
        return (theirs.rtol, theirs.atol) in ((reply.rtol, reply.atol), given)

    def _settle(self, case: Case, reply: CheckReply | Died, beside: bool, left: int) -> bool:
        side, probe = case.sides[self.name], None
        before = side.model_copy(deep=True)
        try:
            if isinstance(reply, Died):
                raise reply
            patient = replace(self.bench, timeout=self.budget.patience(self.bench.timeout))
            if reply.ok and (self._worker is None or not self._worker.alive):
                self._replace(patient, left if beside else 1)
            probe = _found(patient, self._worker, self.name, case, reply, self._mode(case))
        except Died as died:
            if died.reason.kind == "timeout" and not self.budget.left:
                case.sides[self.name] = unchecked(side)
                return True
            if beside and _is_short(died.reason.text):
                case.sides[self.name] = before
                return False
            side.status = "failed"
            side.reason = died.reason.model_copy(update={"log": f"logs/{self.name}.log"})
        if probe is not None and beside and _is_short(probe.refused):
            case.sides[self.name] = before
            return False
        if probe is not None:
            self.probes[case.key] = probe
        self.journal.add_check(case.key, self.name, side, None if probe is None else asdict(probe))
        return True

    def _mode(self, case: Case) -> TimingMode:
        asked, base = self.asked.get(case.key, "auto"), self.base and self.base.probes.get(case.key)
        return "cold" if asked == "auto" and base and base.refused else asked

    def _replace(self, bench: Bench, left: int) -> None:
        """Where captures fail, each worker serves one case: as many as are `left` import their suite at once. Raises
        Died."""
        if not self._spare:
            refusing = bench.context and any(probe.refused for probe in self.probes.values())
            started = []
            try:
                for _ in range(min(left, SPARE) if refusing else 1):
                    started.append(bench.begin(self.name, beside=True))
                for worker in started:
                    self._spare.append(bench.loaded(worker))
            except Died:
                close_all([worker for worker in started if worker not in self._spare])
                if not self._spare:
                    raise
        self._worker, self.loading = self._spare.pop(), False

    @property
    def workers(self) -> list[Worker]:
        """The worker, if there is one; spare ones end in `settle`."""
        return [] if self._worker is None else [self._worker]

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()


def _base_check(case: Case) -> Check:
    """Empty where it is not known, or failed."""
    base = case.sides.get("base")
    return base.check if base is not None and base.status == "ok" else Check()


def _is_short(text: str) -> bool:
    return _MEMORY.search(text) is not None


def _found(
    bench: Bench, worker: Worker | None, name: Side, case: Case, told: CheckReply, asked: TimingMode
) -> Probe | None:
    """None where the result is wrong. Raises Died."""
    side = case.sides[name]
    side.versus = told.versus
    if not told.ok:
        side.status = "failed"
        side.reason = Reason(kind=told.kind or "invalid", text=told.text[:1000])
        return None
    assert worker is not None
    mode = "cold" if case.device == "cuda" else "cpu"
    fields = {**case_fields(case, name), "mode": mode, "sets": 1, "seed": bench.seed, "placement": 0}
    opened = worker.tell(_Described, "describe", bench.timeout, **fields)
    side.tuner = told.tuner or opened.tuner
    if opened.elsewhere:
        side.status = "failed"
        side.reason = Reason(kind="wrong", text=opened.elsewhere)
        worker.ask("close", bench.timeout, verify=False)
        return None
    side.inputs, side.work, side.dtype = opened.digest, opened.work, opened.dtype
    if case.device == "cuda":
        side.profile = Profile(metrics={"peak_memory": opened.memory})
    peak = max(told.peak, opened.peak)
    probe = Probe(opened.seconds, told.settings or opened.settings, opened.footprint, peak, clocks=opened.clocks,
                  room=opened.room, most_sets=opened.sets or MOST_SETS)  # fmt: skip
    if case.device == "cuda":
        hosted = worker.tell(Hosted, "host", bench.timeout, executions=0, hold=0.0, seed=bench.seed)
        probe = replace(probe, host=_finite(median(hosted.times or [math.nan])), host_waits=hosted.waits)
        side.host = None if hosted.waits else probe.host
    versus = side.versus is not None and not side.versus.wrong and name == "head"
    if versus:
        probe = replace(probe, versus="cold" if case.device == "cuda" else "graph")
    captures = case.device == "cuda" and asked != "cold"
    if captures:
        found = _captured(bench, worker)
        probe = replace(probe, refused=found.refused, graph_seconds=found.seconds)
    if captures and versus and not probe.refused and not _captured(bench, worker, versus=True).refused:
        probe = replace(probe, versus="graph")
    if worker.alive:
        worker.ask("close", bench.timeout, verify=False)
    return probe


def _captured(bench: Bench, worker: Worker, *, versus: bool = False) -> Refusal:
    """A capture that breaks the worker costs no case."""
    try:
        found = worker.tell(Refusal, "probe", bench.timeout, versus=versus)
    except Died as died:
        found = Refusal(refused=died.reason.text)
    if found.refused:
        worker.close()  # torch still takes the memory of whatever comes next for that of the failed capture
    return found


def _finite(worst: float | None) -> float | None:
    return worst if worst is not None and math.isfinite(worst) else None
