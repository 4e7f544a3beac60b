"""The profiling pass over commands: a tool around one execution of the whole process, once a side."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from perfci.measure.commands.runner import Runner, repeats
from perfci.measure.profiling.kernels import FINISH, Look, Read, died_of, told
from perfci.measure.profiling.tools import SMALLER
from perfci.model.base import Side
from perfci.model.policy import Command
from perfci.model.profile import Counters, Fault, Tool, Trace
from perfci.model.results import Case, Reason
from perfci.system.process import Died, Exit, Under

WHOLE = ""
"""What the one range is called that is the whole process."""

Seen = TypeVar("Seen", Trace, Counters)


class WholeProfiler(Protocol[Seen]):
    """A tool around a process that knows nothing of it."""

    @property
    def tool(self) -> Tool:
        """Which one."""

    @property
    def seconds(self) -> float:
        """That the process may take."""

    def under(self, report: Path) -> Under:
        """How the process is started under the tool, which writes to `report`."""

    def excess(self, report: Path) -> Reason | None:
        """Asked while it runs: why it is to be ended."""

    def read(self, report: Path, names: list[str], ended: Exit | None, log: Path) -> Read[Seen]:
        """What the report holds once the tool has ended; `ended` None where it was killed for its time."""


def look_whole(
    runner: Runner,
    name: Side,
    command: Command,
    cases: Sequence[Case],
    profiler: WholeProfiler[Seen] | Fault,
    scratch: Path,
) -> dict[str, Look[Seen]]:
    """What a tool sees of one execution of a side's `command`: the same for all `cases` of it that work, by case key.

    `profiler`: the tool, or why there is none. What goes wrong is a fault, never an exception.
    """
    working = [case.key for case in cases if case.sides[name].status == "ok"]
    if not working:
        return {}
    if isinstance(profiler, Fault):
        return dict.fromkeys(working, Look(None, [profiler]))
    folder = scratch / f"{profiler.tool}-{name}-{command.name}"
    folder.mkdir(parents=True)
    runner.parent.account.give(folder)
    try:
        return dict.fromkeys(working, _look(runner, name, command, profiler, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a tool that was killed leaves gigabytes; the rest goes with scratch


def _look(runner: Runner, name: Side, command: Command, profiler: WholeProfiler[Seen], folder: Path) -> Look[Seen]:
    report = folder / f"{folder.name}.report"  # the tools put their own suffix in the place of the last one
    # A log of its own: what is looked for in it must not be another process's.
    log = runner.logs / f"{folder.name}.log"
    log.unlink(missing_ok=True)
    argv, env = runner.line(name, command, folder, profiled=True)
    under = profiler.under(report)
    ended: Exit | None = None
    try:
        ended = runner.parent.execute(
            under.command(argv),
            env=under.environment(env),
            cwd=runner.sides[name].tree,
            log=log,
            timeout=profiler.seconds + FINISH,
            cores=runner.pinned(command),
            watch=lambda: profiler.excess(report),
        )
    except Died as died:
        if died.reason.kind != "timeout":
            remedy = SMALLER if died.reason.kind == "memory" else f"see logs/{log.name}"
            return Look(None, [died_of(profiler.tool, died, remedy)])
    look = told(profiler.tool, profiler.read(report, [WHOLE], ended, log), WHOLE)
    if repeats(command):
        tool = "NVBench" if command.reads == "nvbench" else command.reads
        text = f"{tool} repeats what it measures as often as it needs: counts and sums are not of one execution"
        remedy = "declare a command that executes the code once, for limits on what profilers see"
        if command.reads == "nvbench":
            remedy = "name no $PERFCI_NVBENCH in `run`: perfci adds --jsonbin itself, and --profile under a profiler"
        look.faults.append(Fault(tool=profiler.tool, kind="incomplete", text=text, remedy=remedy))
    return look
