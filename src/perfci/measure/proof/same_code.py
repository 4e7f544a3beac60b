"""The proof by the same code: a case whose processes name nothing that differs between base and head is the same.

strace sees what they name: in each side processes import the suite as timed ones do, check cases and execute them as
often as a pair. Suite files whose import names what differs are imported last, and nothing is proved where that could
change the others (`importing`). Several files share a process; if one names what differs, they are tried again by
halves. What is not known is measured, and says why.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfci.measure.bench import Bench, Executed, case_fields
from perfci.measure.budget import Budget
from perfci.measure.cases import Declarations
from perfci.measure.place import LOAD_TIMEOUT, Place
from perfci.measure.prepare import SideWork, copy_cache
from perfci.measure.proof.differing import Differing, differing, unequal
from perfci.measure.proof.importing import Imported, closed, importing
from perfci.measure.proof.trace import Part, Surroundings, TracedNames, read
from perfci.measure.request import What
from perfci.measure.sides.untouched import beside
from perfci.measure.timing import SCHEDULES
from perfci.model.base import DeviceKind, Side
from perfci.model.criteria import Criterion
from perfci.model.plan import Plan
from perfci.model.results import Case, Proof, Reason
from perfci.model.text import escaped, listed, one_line
from perfci.sources.environment import TEMPORARY
from perfci.system import strace
from perfci.system.child import Died
from perfci.system.facts import whole_cores
from perfci.system.files import disk_errors, remove_tree
from perfci.system.starter import Wait, Worker, wait_first

SAME_FILES = "base and head are the same files"
SAME_CODE = "no file that it reads differs between base and head"
Files = dict[str, list[Case]]
AUDITED = 0.25
"""Share of runs in which a proved case is measured all the same: it watches over many runs, and safeguards no single
one."""
AT_ONCE, MEMORY = 16, 4 * 2**30
"""Traced processes beside each other at most, and bytes of the GPU's memory for each: half a GB of context, and room to
check a case. One that needs more may lack it, and is measured."""
SLOWER = 3.0
"""Factor on time-outs under strace."""
DRAWS = 8
"""Draws, the same in base and head, unforeseeable by code."""
BUDGET = 1 / 3
"""Share of the budget left that tracing may take."""
ENDING = 10.0
"""Seconds for processes to end."""


def seeks_proof(what: What, place: Place, plan: Plan) -> bool:
    """Tell whether cases may stay unmeasured."""
    whole = what.measure_all or plan.exact_pairs is not None  # as of a profile
    return what.mode == "compare" and place.limits.prove and not whole


SCRIPTS = "the suite has benchmark scripts, whose runs no tracer watches"
"""Why nothing is proved: a script may change what other cases of its process find, too."""


def prove(
    cases: Sequence[Case],
    place: Place,
    declarations: Mapping[Side, Declarations],
    plan: Plan,
    budget: Budget,
    note: Callable[[str], None],
    *,
    fuzz: bool,
) -> list[str]:
    """Fill `Case.proof` of cases that work. Returns notes. Raises MachineError."""
    sought = [case for case in cases if all(side.status == "ok" for side in case.sides.values())]
    base, head = place.sides["base"], place.sides["head"]
    differs = differing(base, head)
    whole = unequal(base, head) or (SCRIPTS if base.scripts or head.scripts else "")
    ours, theirs = (Imported(side.folder, side.info.modules, declarations[side.name].suite) for side in (base, head))
    suite = dict.fromkeys([*ours.suite, *theirs.suite])
    apart = {file: why for file in suite if (why := _names_what_differs(file, (ours, theirs), differs))}
    shared = importing(ours, theirs, apart) if apart else ""
    left: dict[DeviceKind, Files] = {}
    for case in sought:
        file = declarations["head"].cases[case.key]["suite"] if case.origin == "kernel" else ""
        if why := unprovable(case, plan.criteria) or whole:
            case.proof = Proof(reason=why[:1000])
        elif not differs.paths:
            case.proof = Proof(by="files", reason=SAME_FILES, number=number(case, plan.criteria))
        elif file in apart:
            case.proof = Proof(reason=apart[file][:1000])
        elif shared:
            case.proof = Proof(reason=shared[:1000])
        else:
            left.setdefault(case.device, {}).setdefault(file, []).append(case)
    if not left:
        return [f"nothing was proved unchanged by its code: {whole}"] if whole else []
    tool = strace.find()
    if not place.parent.forks:
        refused = "the workers are not forks of one process here"
    elif tool is None:
        refused = f"strace is not installed here: {strace.INSTALL}"
    else:
        refused = strace.refusal(tool, place.parent.account.prefix(), place.parent.python)
    end = time.monotonic() + BUDGET * budget.left
    for waiting, (device, files) in zip(range(len(left), 0, -1), left.items(), strict=True):
        until = time.monotonic() + (end - time.monotonic()) / waiting
        if tool is None or refused:
            reasons = dict.fromkeys((case.key for own in files.values() for case in own), refused)
        else:
            bench, known = place.benches[device], ours.paths | theirs.paths
            tracing = _Tracing(place, bench, tool, differs, set(apart), known, declarations, until, note, fuzz=fuzz)
            reasons = _examined(files, tracing)
        for own in files.values():
            for case in own:
                why, asked = reasons[case.key], number(case, plan.criteria)
                case.proof = Proof(reason=why[:1000]) if why else Proof(by="code", reason=SAME_CODE, number=asked)
    return [f"nothing was proved unchanged by its code: {refused}"] if refused else []


def _examined(files: Files, tracing: "_Tracing") -> dict[str, str]:
    reasons: dict[str, str] = {}
    groups: list[list[str]] = [[] for _ in range(tracing.several)]
    for name in sorted(files, key=lambda name: -len(files[name])):
        min(groups, key=lambda group: sum(len(files[one]) for one in group)).append(name)
    while groups := [group for group in groups if group]:
        answers = tracing.examine([{file: files[file] for file in group} for group in groups])
        halves = []
        for group, one in zip(groups, answers, strict=True):
            reasons |= {case.key: one.why or one.cases.get(case.key, "") for file in group for case in files[file]}
            if one.why and not one.imports and len(group) > 1:  # by one of them, mostly
                halves += [group[: len(group) // 2], group[len(group) // 2 :]]
        groups = halves
    return reasons


def unprovable(case: Case, criteria: Sequence[Criterion]) -> str:
    """Return why a case is measured whatever its code, or empty."""
    if case.origin != "kernel":
        return "it is a command's, and only cases of kernels are proved"
    asked = any(one.case_key == case.key and not one.waits for one in criteria)
    return "" if asked else "no limit asks anything of it"


def number(case: Case, criteria: Sequence[Criterion]) -> str:
    """Return a limit that only a measured number answers, or empty."""
    bounds = (one for one in criteria if one.case_key == case.key and one.timed and not one.relative)
    return next((one.words() for one in bounds), "")


def draw_audit(cases: Sequence[Case], lot: str) -> None:
    """Let a proved case be measured in some runs, by `lot`, which the code under test must not foresee."""
    rng = random.Random(f"{lot}/audit")
    proved = [case.proof for case in cases if case.proof is not None and case.proof.by]
    if proved and rng.random() < AUDITED:
        rng.choice(proved).audited = True


def _names_what_differs(file: str, sides: Sequence[Imported], differs: Differing) -> str:
    paths = (path for side in sides for path in closed(side, [file]))
    return next((_reads(path) for path in paths if path in differs.paths), "")


def _schedule() -> dict[str, Any]:
    """Some draws have as many executions as a pair's placement."""
    schedule = SCHEDULES["cpu"]
    blocks = [schedule.blocks if number < schedule.placements else 1 for number in range(DRAWS)]
    return {"blocks": blocks, "samples": schedule.samples} | schedule.model_dump(include={"sample_time", "block_time"})


def _reads(path: str) -> str:
    return f"it reads {escaped(path, 200)}, which differs"


@dataclass(frozen=True)
class _Answer:
    why: str = ""
    """Why none is proved."""
    cases: Mapping[str, str] = field(default_factory=dict)
    imports: bool = False
    """The reason lies in the import."""


class _Tracing:
    def __init__(
        self,
        place: Place,
        bench: Bench,
        tool: str,
        differs: Differing,
        apart: set[str],
        known: Collection[str],
        declarations: Mapping[Side, Declarations],
        end: float,
        note: Callable[[str], None],
        *,
        fuzz: bool,
    ) -> None:
        """`apart`: suite files whose import names what differs; `known`: what they may name of it; `end`: monotonic
        clock."""
        self.place, self.bench, self.tool, self.differs, self.note = place, bench, tool, differs, note
        self.apart, self.known, self.declarations, self.end, self.fuzz = apart, known, declarations, end, fuzz
        self.started = 0
        self.draws = [random.SystemRandom().getrandbits(62) for _ in range(DRAWS)]
        self.exclusive = any(place.exclusive(device) for device in place.benches)
        gpu = place.facts.gpu
        most = min(AT_ONCE, whole_cores(), gpu.memory_bytes // MEMORY if gpu is not None else AT_ONCE)
        self.several = 1 if bench.cores or self.exclusive else max(1, most // 2)
        """Processes of a side at once."""
        self.seconds = 0.0
        """Of the processes examined now."""

    def examine(self, asked: Sequence[Files]) -> list[_Answer]:
        """What one side makes and Python could import is removed, and its own trace then proves nothing."""
        answers: list[_Answer] = []
        seals = [side.seal for side in self.place.sides.values() if side.seal is not None]
        for first in range(0, len(asked), self.several):
            some = asked[first : first + self.several]
            if time.monotonic() > self.end:
                answers += [_Answer("the rest of the budget is needed for pairs")] * len(some)
                continue
            # What a group takes that proves nothing must leave time for its files, each alone.
            again = any(len(one) > 1 for one in asked) or len(asked) > self.several
            with ExitStack() as stack:
                pairs = [[self._started(side, one, stack) for side in self.place.sides.values()] for one in some]
                with beside(seals):
                    whole = [process for pair in pairs for process in pair]
                    traces = self._traces([[one] for one in whole] if self.exclusive else [whole], 2 if again else 1)
                answers += [self._answer([(one, traces[one]) for one in pair]) for pair in pairs]
        return answers

    def _traces(self, groups: "Sequence[Sequence[_Process]]", shares: int) -> "dict[_Process, TracedNames]":
        """Those of a group run beside each other, all in one of `shares` of the time left; each trace is read once it
        is there, while others run."""
        traces: dict[_Process, TracedNames] = {}
        end = time.monotonic() + (self.end - time.monotonic()) / shares
        for number, group in enumerate(groups):
            self.seconds = (end - time.monotonic()) / (len(groups) - number)
            for process in group:
                self.note(f"tracing · {process.side.name} · {listed(process.asked, 3)}")
                process.begin()
            waits = {process.wait: process for process in group if process.wait is not None}
            traces.update((process, process.trace()) for process in group if process.wait is None)
            while waits:
                process = waits.pop(wait_first([*waits]))
                traces[process] = process.trace()
        return traces

    def _answer(self, traces: "Sequence[tuple[_Process, TracedNames]]") -> _Answer:
        for process, trace in traces:
            for number, (file, part) in enumerate(zip(process.first, trace.parts, strict=False)):
                if why := (trace.unsure if trace.at == number else "") or self._touched(part):
                    return _Answer(f"the suite imports {escaped(file, 200)}: {why}", imports=True)
            for part in trace.parts[len(process.first) + 1 :]:
                if why := self._touched(part, self.known):
                    return _Answer(f"the suite imports {listed(process.last, 3)}: {why}", imports=True)
        whys = (
            trace.unsure or next(filter(None, map(self._touched, trace.parts[: len(process.first) + 1])), "")
            for process, trace in traces
        )
        cases = {key: why for process, _ in traces for key, why in process.refused.items() if why}
        return _Answer(next(filter(None, whys), ""), cases)

    def _touched(self, part: Part, known: Collection[str] = ()) -> str:
        if path := self.differs.first(part.named, part.listed, known):
            return _reads(path)
        return f"it reads {escaped(part.late, 200)}, which was written since this run began" if part.late else ""

    def _started(self, side: SideWork, asked: Files, stack: ExitStack) -> "_Process":
        self.started += 1
        process = _Process(self, side, asked, self.started)
        stack.callback(process.close)
        return process


class _Process:
    """One process under strace, with its own caches: another's could come from what differs."""

    def __init__(self, tracing: _Tracing, side: SideWork, asked: Files, number: int) -> None:
        self.tracing, self.side = tracing, side
        self.place, self.bench, self.tool = tracing.place, tracing.bench, tracing.tool
        place, bench = self.place, self.bench
        self.asked = list(asked)
        suite = tracing.declarations[side.name].suite
        self.first, self.last = ([one for one in suite if (one in tracing.apart) is last] for last in (False, True))
        """Files before the cases, and behind them."""
        self.cases = [case for cases in asked.values() for case in cases]
        self.refused: dict[str, str] = {}
        """Case key → why it was not executed."""
        self.folder = place.parent.scratch / f"prove-{number}"
        self.cache = side.folder / f"prove-{number}"
        self.tracer = 0
        self.worker: Worker | None = None
        self.wait: Wait | None = None
        """For its answer, once it has begun."""
        self.unsure = ""
        account = place.parent.account
        with disk_errors("made", self.folder):
            self.folder.mkdir()
        try:
            copy_cache(side, self.cache, account)
            (self.cache / TEMPORARY).mkdir()
        except OSError as error:  # such as for a socket, which no copy is like
            self.unsure = f"the side's caches cannot be copied: {one_line(str(error), 200)}"
            return
        account.give(self.folder)
        account.give(self.cache / TEMPORARY)
        arena = side.arena(bench.threads, bench.cores)
        env = {name: value.replace(str(side.cache), str(self.cache)) for name, value in side.env.items()}
        self.log = self.bench.logs / f"prove-{side.name}.log"
        try:
            self.worker = place.parent.worker(replace(arena, env=env, cache=self.cache), self.log)
            self.worker.ask("await_tracer", ENDING)
            self._attach(self.worker)
        except Died as died:
            self._failed(died)
            if self.worker is not None:  # it must not go on unseen
                self.worker.kill()
                self.worker = None

    def _attach(self, worker: Worker) -> None:
        """The worker waits for its task meanwhile. Raises Died where strace cannot attach."""
        parent, said = self.place.parent, self.folder / "said"
        argv = [*strace.command(self.tool, self.output), "-p", str(worker.pid)]
        self.tracer = parent.start(argv, env=dict(parent.env), cwd=self.folder, log=said)
        deadline = time.monotonic() + strace.TIMEOUT
        while not strace.ATTACHED.search(said.read_bytes()):
            ended = parent.wait_exit(self.tracer, 0.01)
            if ended is not None or time.monotonic() > deadline:
                why = one_line(said.read_text(errors="replace"), 200) or "it says nothing"
                self.tracer = 0 if ended is not None else self.tracer
                raise Died(Reason(kind="exit", text=f"strace is not attached: {why}"))

    def begin(self) -> None:
        if self.worker is not None:
            try:
                self.worker.begin(
                    "prove",
                    mark=str(self.mark),
                    first=self.first,
                    last=self.last,
                    cases=[case_fields(case, self.side.name) for case in self.cases],
                    imports=self.tracing.draws[0],
                    seed=self.bench.seed,
                    fuzz=self.tracing.fuzz,
                    draws=self.tracing.draws,
                    seconds=self.tracing.seconds,
                    **_schedule(),
                )
                # Beyond its time: the import of the suite, and the step that it is in.
                patience = 2 * SLOWER * max(self.bench.timeout, LOAD_TIMEOUT)
                self.wait = self.worker.wait(self.tracing.seconds + patience)
            except Died as died:
                self._failed(died)

    @property
    def output(self) -> Path:
        return self.folder / "trace"

    @property
    def mark(self) -> Path:
        return self.folder / "begin"

    def _failed(self, died: Died) -> None:
        why = one_line(died.reason.text, 300)
        self.unsure = f"the process that was traced failed: {why} (log: logs/prove-{self.side.name}.log)"

    def trace(self) -> TracedNames:
        if self.worker is not None and self.wait is not None:
            try:
                reply = self.worker.answer(self.wait.timeout, waited=self.wait)
                said = self.worker.fit(Executed, "prove", reply)
                whys = [one_line(why, 300) for why in said.cases] + ["it was not executed"] * len(self.cases)
                self.refused = {case.key: why for case, why in zip(self.cases, whys, strict=False)}
            except Died as died:
                self._failed(died)
            ended = not self.worker.alive or self.worker.finish(ENDING) is not None
            if self.tracer and self.place.parent.wait_exit(self.tracer, ENDING if ended else 0.0) is not None:
                self.tracer = 0  # it ends with the last process that it traces
            if self.tracer:
                self.unsure = self.unsure or f"its processes did not end within {ENDING:g} s"
        if self.unsure:
            return TracedNames(unsure=self.unsure)
        self.place.parent.account.reclaim(self.folder)
        other = next(one for one in self.place.sides.values() if one is not self.side)
        return read(
            self.output,
            Surroundings(
                side=str(self.side.folder.resolve()),
                other=str(other.folder.resolve()),
                cache=self.cache.name,
                start=str(self.side.tree),
                mark=str(self.mark),
                socket=self.place.parent.address,
                begun=self.place.begun,
                parts=len(self.first) + 2,
            ),
        )

    def close(self) -> None:
        if self.worker is not None and self.worker.alive:
            self.worker.kill()
        if self.tracer:
            self.place.parent.kill(self.tracer)
        for folder in (self.folder, self.cache):
            remove_tree(folder)
