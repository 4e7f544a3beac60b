"""A profiler around one execution of a command, once a side."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from perfci.measure.commands.runner import Runner, repeats
from perfci.measure.profiling.kernels import FINISH, Observation, died_of, fault_of, observed, too_late
from perfci.measure.profiling.turns import UNBOUNDED, Turn
from perfci.model.base import Side
from perfci.model.policy import Command
from perfci.model.results import Case
from perfci.profilers.base import SMALLER, WHOLE, Profiler, Seen
from perfci.system.child import Died, Exit


def profile_command(
    runner: Runner,
    name: Side,
    command: Command,
    cases: Sequence[Case],
    profiler: Profiler[Seen],
    scratch: Path,
    turn: Turn = UNBOUNDED,
) -> dict[str, Observation[Seen]]:
    """Return what a profiler sees of `command`, by case key: the same for all `cases`. Errors become faults."""
    working = [case.key for case in cases if case.sides[name].status == "ok"]
    if not working:
        return {}
    if turn.over:
        return dict.fromkeys(working, Observation(None, [too_late(profiler)]))
    folder = scratch / f"{profiler.name}-{name}-{command.name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        return dict.fromkeys(working, _profile(runner, name, command, profiler, folder, turn))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a tool that was killed leaves gigabytes; the rest goes with scratch


def _profile(
    runner: Runner, name: Side, command: Command, profiler: Profiler[Seen], folder: Path, turn: Turn
) -> Observation[Seen]:
    folder.mkdir(exist_ok=True)
    runner.parent.account.give(folder)
    report = folder / f"{folder.name}.report"  # the tools put their own suffix in the place of the last one
    # A log of its own: what is searched for in it must not be another process's.
    log = runner.logs / f"{folder.name}.log"
    log.unlink(missing_ok=True)
    argv, env = runner.line(name, command, folder, profiled=True)
    under = profiler.under(report)
    assert under is not None, f"{profiler.name} profiles no command"
    ended: Exit | None = None
    try:
        ended = runner.parent.execute(
            under.command(argv),
            env=under.environment(env),
            cwd=runner.sides[name].tree,
            log=log,
            timeout=turn.patience(profiler.seconds + FINISH),
            cores=runner.pinned(command),
            watch=lambda: profiler.excess(report),
        )
    except Died as died:
        if died.reason.kind != "timeout":
            remedy = SMALLER if died.reason.kind == "memory" else f"see logs/{log.name}"
            return Observation(None, [died_of(profiler, died, remedy)])
    read = profiler.read(report, [WHOLE], ended, log)
    if read.refused and not turn.over:
        return _profile(runner, name, command, profiler.without(read.refused), folder / f"{folder.name}-again", turn)
    seen = observed(profiler, read, WHOLE)
    if repeats(command):
        tool = "NVBench" if command.reads == "nvbench" else command.reads
        text = f"{tool} repeats what it measures as often as it needs: counts and sums are not of one execution"
        remedy = "declare a command that executes the code once, for limits on what profilers see"
        if command.reads == "nvbench":
            remedy = "name no $PERFCI_NVBENCH in `run`: perfci adds --jsonbin itself, and --profile under a profiler"
        seen.faults.append(fault_of(profiler, "incomplete", text, remedy))
    return seen
