"""One start of a profiler for all cases of a side."""

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple

from perfci.measure.bench import Bench, case_fields
from perfci.measure.profiling.turns import UNBOUNDED, Turn
from perfci.model.base import Side
from perfci.model.profile import Fault, FaultKind, Trace
from perfci.model.results import Case
from perfci.profilers.base import Profiler, Read, Seen
from perfci.profilers.faults import fault
from perfci.profilers.registry import Kind
from perfci.system.child import Died, Exit
from perfci.system.files import unused

SESSIONS = 3
"""Starts of a tool per side: a case that brings it down costs one."""
FINISH = 180.0
"""Seconds for a tool to write its report after the worker has ended."""
WRITTEN, WRITING = 60.0, 0.2
"""Seconds that a live worker waits at most for the report, and between looks."""


class Observation(NamedTuple, Generic[Seen]):
    """The outcome of one case in one side."""

    seen: Seen | None
    faults: list[Fault]


def range_name(number: int, case: Case) -> str:
    """Return a name without operators of a tool's filters."""
    return f"perfci-{number}-" + re.sub(r"[^A-Za-z0-9_]+", "-", case.id)[:60].strip("-")


def profile_cases(
    bench: Bench,
    name: Side,
    cases: Sequence[Case],
    profiler: Profiler[Seen],
    scratch: Path,
    note: Callable[[str], None],
    turn: Turn = UNBOUNDED,
) -> dict[str, Observation[Seen]]:
    """Return what `profiler` sees of one side's cases, by case key, in one start.

    One that brings it down or outlasts its time is named, and the others are profiled again without it, up to SESSIONS
    times and within `turn`; all without metrics that it refused.
    """
    found: dict[str, Observation[Seen]] = {}
    tool = profiler.name
    todo = {range_name(number, case): case for number, case in enumerate(cases) if case.sides[name].status == "ok"}
    for session in range(SESSIONS):
        if not todo or turn.over:
            break
        read: Read[Seen]
        log = unused(bench.logs, f"{tool}-{name}.log")  # each start has one of its own
        folder = scratch / f"{tool}-{name}-{session}"
        folder.mkdir(exist_ok=True)
        bench.parent.account.give(folder)
        try:
            died, read, whole = _session(bench, name, todo, profiler, folder / folder.name, log, note, turn)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # what a tool that was killed leaves; the rest goes with scratch
        if read.refused and session < SESSIONS - 1 and not turn.over:
            profiler = profiler.without(read.refused)
            continue
        for dead, why in died.items():
            found[todo.pop(dead).key] = Observation(None, [why])
        done: dict[str, Case] = {ident: case for ident, case in todo.items() if ident in read.seen or whole}
        found |= {case.key: observed(profiler, read, ident) for ident, case in done.items()}
        todo = {ident: case for ident, case in todo.items() if ident not in done}
    for case in todo.values():
        text = f"cases before it ended {tool} {SESSIONS} times"
        late = too_late(profiler) if turn.over else fault_of(profiler, "crash", text, _see(log))
        found[case.key] = Observation(None, [late])
    return found


def observed(profiler: Profiler[Seen], read: Read[Seen], ident: str) -> Observation[Seen]:
    """Return a report's content for one range, with a fault where empty."""
    faults = [*read.faults.get(ident, []), *read.general]
    if ident not in read.seen and not faults:
        faults = [fault_of(profiler, "empty", "the report says nothing of this case")]
    return Observation(read.seen.get(ident), faults)


def _see(log: Path) -> str:
    return f"see logs/{log.name}"


def _session(
    bench: Bench,
    name: Side,
    todo: Mapping[str, Case],
    profiler: Profiler[Seen],
    report: Path,
    log: Path,
    note: Callable[[str], None],
    turn: Turn,
) -> tuple[dict[str, Fault], Read[Seen], bool]:
    """Faults of cases, the report, and whether all had a turn."""
    tool = profiler.name
    see = _see(log)
    faults: dict[str, Fault] = {}
    begun: list[str] = []
    marked = ""
    ended: Exit | None = None
    try:
        worker = bench.worker(name, profiler.under(report), log)
    except Died as died:
        read = profiler.read(report, [], None, log)
        return {}, Read(general=read.general or [died_of(profiler, died, see)], refused=read.refused), True
    if profiler.window is False:
        # What a case loads at first is not the case's, and some profilers lose all that follows it.
        for ident, case in todo.items():
            try:
                asked = _asked(bench, name, case, profiler, report, ident, 0)
                worker.ask("profile", turn.patience(profiler.seconds), **asked)
            except Died as died:
                faults[ident] = died_of(profiler, died, see)
                if not worker.alive:
                    return faults, Read(), False
    for ident, case in todo.items():
        if ident in faults:
            continue
        if turn.over:
            faults[ident] = too_late(profiler)
            continue
        note(f"{tool}: {name} · {case.id}")
        try:
            if profiler.window is False and not begun:
                worker.ask("capture", profiler.seconds, on=True, device=case.device)
            begun.append(ident)
            asked = _asked(bench, name, case, profiler, report, ident, profiler.executions)
            marked = str(worker.ask("profile", turn.patience(profiler.seconds), **asked).get("marked", ""))[:200]
        except Died as died:
            faults[ident] = died_of(profiler, died, see)
            if not worker.alive:
                break
    if worker.alive:
        try:
            if profiler.window is False:
                worker.ask("capture", profiler.seconds, on=False)
            deadline = time.monotonic() + turn.patience(WRITTEN)
            while begun and not profiler.written(report) and time.monotonic() < deadline:
                time.sleep(WRITING)
            ended = worker.finish(turn.patience(FINISH))
        except Died as died:
            return faults, Read(general=[died_of(profiler, died, see)]), True
    read = profiler.read(report, [ident for ident in begun if ident not in faults], ended, log)
    for seen in read.seen.values():
        if isinstance(seen, Trace):
            seen.marked = marked
    return faults, read, not todo.keys() - faults.keys() - set(begun) and ended is not None


def _asked(
    bench: Bench, name: Side, case: Case, profiler: Profiler[Seen], report: Path, ident: str, executions: int
) -> dict[str, Any]:
    path = profiler.path(report, ident)
    fields = {"seed": bench.seed, "name": ident, "executions": executions, "window": profiler.window, "path": path}
    return {**case_fields(case, name), **fields}


def too_late(profiler: Profiler[Any]) -> Fault:
    """Return the fault of a case out of time."""
    return fault_of(profiler, "timeout", "the budget had no time left for it", "give a larger budget, or fewer cases")


def unaffordable(profiler: Profiler[Any], imports: float, share: float) -> Fault:
    """Return the fault of a profiler without time to import."""
    left = max(0.0, share)
    text = f"its process would import the suite anew, for about {imports:.0f} s, and the budget leaves it {left:.0f} s"
    return fault_of(profiler, "timeout", text, "give a larger budget")


def died_of(profiler: Profiler[Any], died: Died, remedy: str) -> Fault:
    """Return the fault of a process that ended under a profiler."""
    return fault_of(profiler, "timeout" if died.reason.kind == "timeout" else "crash", died.reason.text, remedy)


def fault_of(profiler: Profiler[Any] | Kind, kind: FaultKind, text: str, remedy: str = "") -> Fault:
    """Return a fault of a profiler."""
    return fault(profiler.name, profiler.part, kind, text, remedy)
