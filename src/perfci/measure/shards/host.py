"""One host with several GPUs: a measuring process for each, in step, for a shard of one plan.

All wait for each other before and behind what is timed. A dead process is not waited for: its end of a pipe closes with
it. There is then no verdict, and `--resume` goes on.
"""

import os
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

from perfci.measure.journal import JOURNAL, begun, put_away
from perfci.measure.place import prepare_sides
from perfci.measure.request import RESULTS, WRITTEN, PairProgress, Progress, Request
from perfci.measure.run import Measurement, failed_results
from perfci.measure.shards.deal import planned, share_out
from perfci.measure.shards.document import PLAN, Shard, SharedPlan, read_plan
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.comparison import marks, require_same
from perfci.model.results import Results
from perfci.model.text import count, listed
from perfci.system.child import Exit
from perfci.system.files import disk_errors, write_atomic
from perfci.system.lease import Lease
from perfci.system.users import find_account

FOLDER = "shards"
"""Below the output folder: the plan, and a folder of each process."""
LEASE = "several GPUs"
"""Two holders of several leases would wait for each other."""
GRACE = 60.0
"""Seconds for an interrupted process to write what it has."""


@dataclass(frozen=True)
class Member:
    """One measuring process and its device."""

    name: str
    """For people, such as `GPU 0`."""
    env: Mapping[str, str]
    """Variables that show only its device."""
    gpu: str | None = None
    """UUID."""
    cores: Sequence[int] = ()
    """Its own; empty for all."""


@contextmanager
def seeing(member: Member) -> Iterator[None]:
    """See only the device of `member`, with all processes started meanwhile."""
    before = {name: os.environ.get(name) for name in member.env}
    os.environ.update(member.env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def plan_host(request: Request, members: Sequence[Member], home: Path, progress: Progress) -> SharedPlan:
    """Build base and head into `home` unless prepared, prove, and plan a shard for each member. A resumed run keeps its
    plan. Raises PerfciError."""
    where = request.where
    folder = where.out / FOLDER
    known = _known(request, members, folder / PLAN) if request.how.resume else None
    with seeing(members[0]):
        if where.prepared is None:
            prepare_sides(request.but(prepare=home), home, progress)
        if known is not None:
            return known
        planning = Measurement(request.but(prepared=where.prepared or home, gpu=members[0].gpu), progress)
        plan = share_out(planning, len(members), where.out, fewer=True)
    with disk_errors("made", folder):
        folder.mkdir(exist_ok=True)
    write_atomic(folder / PLAN, plan.model_dump_json(indent=1) + "\n")
    return plan


def _known(request: Request, members: Sequence[Member], path: Path) -> SharedPlan:
    if not path.exists():
        raise UsageError(f"{path.parent}: holds nothing that can be gone on with: leave out --resume")
    known = read_plan(path)
    if known.shards > len(members):
        raise UsageError(f"--resume: the run was begun on {known.shards} GPUs: name the same, or leave out --resume")
    # Gone on with, base is the commit that it was.
    asked = request.but(base=known.what.base) if request.what.base == known.base else request
    then, now = (
        marks({WRITTEN.get(name, name): value for name, value in one.model_dump(mode="json").items()})
        for one in (known.what, asked.what)
    )
    require_same(then, now, "--resume", "is not that of the run before", "give the same, or leave out --resume")
    return known


def measure_host(
    request: Request, members: Sequence[Member], plan: SharedPlan, home: Path, progress: Progress
) -> tuple[list[Path], list[str]]:
    """Measure a plan on the devices of `members` at once. Returns the shards' folders, and notes.

    `home`: the prepared sides. Raises PerfciError where nothing can be merged.
    """
    request = request.but(prepared=request.where.prepared or home)
    with Lease(LEASE, request.how.wait, progress.stage):
        return _measure_parts(request, members, plan, progress)


def _measure_parts(
    request: Request, members: Sequence[Member], plan: SharedPlan, progress: Progress
) -> tuple[list[Path], list[str]]:
    if idle := [member.name for member in members[plan.shards :]]:
        progress.note(
            f"{listed(idle, 20)} stays idle: {count(plan.shards, 'case')} to share out (those of a command as one)"
        )
    asked = []
    for number, member in enumerate(members[: plan.shards], 1):
        folder = request.where.out / FOLDER / f"shard-{number}"
        resume = request.how.resume and bool(begun(folder / JOURNAL))
        if not resume:
            with disk_errors("removed", folder):
                (folder / RESULTS).unlink(missing_ok=True)
            put_away(folder)
        own = request.but(out=folder, resume=resume, gpu=member.gpu, neighbours=plan.shards - 1)
        asked.append((member, replace(own, planned=planned(Shard(plan, number)))))
    for (member, _), died in zip(asked, measure_together(asked, progress), strict=True):
        if died is not None:
            raise MachineError(f"{member.name}: its measuring process ended: {died}: go on with --resume")
    names = [member.name for member, _ in asked]
    shares = f"measured at once on {listed(names, 20)}, which share the power and the memory of the host"
    return [own.where.out for _, own in asked], [shares] if names[1:] else []


# ---------------------------------------------------------------- processes in step


@dataclass
class _Running:
    member: Member
    process: SpawnProcess
    line: Connection
    open: bool = True
    waiting: bool = False
    over: bool = False
    """It has said that nothing more comes."""
    standing: PairProgress | None = None


def measure_together(asked: Sequence[tuple[Member, Request]], progress: Progress) -> list[str | None]:
    """Measure as each request asks, in a process each, in step. Returns how a process died, or None.

    Raises UsageError or MachineError for a process that refuses before it has results; the others are then ended, as on
    an interrupt.
    """
    running: list[_Running] = []
    notes: set[str] = set()
    try:
        for each in asked:
            running.append(_start(*each))
        while some := [one for one in running if one.open]:
            for line in wait([one.line for one in some]):
                one = next(one for one in some if one.line is line)
                _hear(one, running, progress, notes)
            some = [one for one in running if one.open]
            if all(one.waiting for one in some):
                for one in some:
                    one.waiting = False
                    with suppress(OSError):  # it has just died: the next message is its end
                        one.line.send(None)
        return [None if one.over else _end(one.process) for one in running]
    finally:
        for one in running:
            if one.process.is_alive() and not one.over:
                one.process.terminate()
        for one in running:
            one.process.join(GRACE)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            one.line.close()
        find_account().sweep()  # what one that was killed has left


def _start(member: Member, request: Request) -> _Running:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(request, member, theirs), name=member.name)
    process.start()
    theirs.close()  # else its end would stay open once it is dead
    return _Running(member, process, ours)


def _end(process: SpawnProcess) -> str:
    process.join(GRACE)
    code = process.exitcode
    if code is None:
        return "its line was cut, and it is ended"  # by `measure_together`
    return Exit(None, -code, 0.0).words() if code < 0 else Exit(code, None, 0.0).words()


def _hear(one: _Running, running: Sequence[_Running], progress: Progress, notes: set[str]) -> None:
    try:
        kind, *said = one.line.recv()
    except (EOFError, OSError):
        one.open = one.waiting = False
        return
    if kind == "stage":
        if one is next((other for other in running if other.open), one):  # one speaks for all
            progress.stage(*said)
    elif kind == "note":
        if said[0] not in notes:
            notes.add(said[0])
            progress.note(f"{one.member.name}: {said[0]}")
    elif kind == "pair":
        (one.standing,) = said
        progress.pair(_overall([other.standing for other in running]))
    elif kind == "decided":
        progress.decided(*said)
    elif kind == "barrier":
        one.waiting = True
    elif kind == "refused":
        code, text = said
        raise UsageError(text) if code == UsageError.exit_code else MachineError(f"{one.member.name}: {text}")
    else:
        one.over = True


def _overall(of: Sequence[PairProgress | None]) -> PairProgress:
    known = [one for one in of if one is not None]
    expected = [one.expected for one in known if one.expected is not None]
    return PairProgress(
        pairs=max(one.pairs for one in known),
        open=sum(one.open for one in known),
        decided=sum(one.decided for one in known),
        cases=sum(one.cases for one in known),
        seconds=max(one.seconds for one in known),
        budget=max(one.budget for one in known),
        expected=max(expected) if len(expected) == len(of) else None,
    )


# ---------------------------------------------------------------- inside a measuring process


class _Line:
    def __init__(self, line: Connection) -> None:
        self._line = line
        self._passed: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Where nobody is left to merge, this process ends as if interrupted."""
        with suppress(EOFError, OSError):
            while True:
                self._line.recv()
                self._passed.put(None)
        os.kill(os.getpid(), signal.SIGTERM)

    def _tell(self, *message: Any) -> None:
        with suppress(OSError):  # then `_listen` ends this
            self._line.send(message)

    def stage(self, text: str) -> None:
        self._tell("stage", text)

    def note(self, text: str) -> None:
        self._tell("note", text)

    def pair(self, standing: PairProgress) -> None:
        self._tell("pair", standing)

    def decided(self, results: Results) -> None:
        self._tell("decided", results)

    def refused(self, error: PerfciError) -> None:
        self._tell("refused", error.exit_code, str(error))

    def over(self) -> None:
        self._tell("over")

    def barrier(self) -> None:
        self._tell("barrier")
        self._passed.get()


def _measure(request: Request, member: Member, connection: Connection) -> None:
    os.setsid()  # a terminal's Ctrl-C is for the process that started this one, and ends it
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ.update(member.env)
    if member.cores:
        os.sched_setaffinity(0, member.cores)
    line = _Line(connection)
    measurement = Measurement(request, line, barrier=line.barrier)
    results: Results | None
    try:
        results = measurement.measure()
    except (PerfciError, KeyboardInterrupt) as error:
        results = failed_results(measurement, error)
        if isinstance(error, UsageError) or (isinstance(error, PerfciError) and results is None):
            line.refused(error)
            return
    if results is not None:
        write_atomic(request.where.out / RESULTS, results.model_dump_json(indent=1) + "\n")
    line.over()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
