"""The work that cases give the GPU in base and in head, recorded and compared, without timing any of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from perfci.measure.bench import case_fields
from perfci.measure.cases import merge, require_some
from perfci.measure.costs import Costs
from perfci.measure.coverage import everything
from perfci.measure.options import Options, Progress
from perfci.measure.place import LOAD_TIMEOUT, Place, discover, open_place
from perfci.measure.prepare import SideWork
from perfci.model.base import SIDES, MachineError, Side, UsageError
from perfci.model.results import Case
from perfci.system.bounded import MIB, Bounds, Unread, call, desk
from perfci.system.child import Died
from perfci.system.lease import Lease
from perfci.system.process import Worker
from perfci.work.files import Compared, compare, refused

PROCESSES = 2
"""Of a side: what is not the same in both is not the case's work."""
_BOUNDS = Bounds(seconds=60.0, memory=1024 * MIB)
"""A case may launch some tens of images, of some MiB each."""


def explain_work(options: Options, progress: Progress) -> dict[str, Compared]:
    """Record and compare the work of the cases that `options` name, of those that run on a GPU. Returns id → answer.

    Raises PerfciError.
    """
    with ExitStack() as stack:
        place = open_place(options, progress, stack, Costs())
        if "cuda" not in place.benches:
            raise MachineError(
                "explain: torch uses no GPU here, and without one no work can be recorded: see perfci doctor"
            )
        # Others may be timing on it.
        stack.enter_context(Lease(place.facts.uuid or "gpu-0", options.wait, progress.stage))
        progress.stage("discovering cases")
        found = discover(place)
        known = everything(place, found)
        named = merge(found, place.sides, ["cuda"], options.cases)
        require_some(named, found, known, options.cases)
        cases = [case for case in named if case.stopped != "skipped"]
        if not cases:
            raise UsageError(f"{', '.join(options.cases)}: runs on the CPU alone: name a case that runs on a GPU")
        progress.stage("recording")
        return compare_work(cases, place, progress.note)


def compare_work(cases: Sequence[Case], place: Place, note: Callable[[str], None]) -> dict[str, Compared]:
    """Record the work of cases in processes of both sides, and compare it. Returns id → answer. Raises MachineError."""
    found = {case.id: why for case in cases if (why := _absent(case))}
    asked = {f"case-{number}": case for number, case in enumerate(cases) if case.id not in found}
    account = place.parent.account
    with desk(account) as desktop:
        folders: dict[str, dict[Side, list[Path]]] = {name: {} for name in asked}
        for name, side in place.sides.items():
            for number in range(PROCESSES):
                target = desktop / f"{name}-{number}"
                for folder in (target, *(target / one for one in asked)):
                    folder.mkdir()
                    account.give(folder)
                todo = {folder: case for folder, case in asked.items() if case.id not in found}
                refusals = _record(todo, place, name, side, target, note)
                found |= {case: f"{name}: {why}" for case, why in refusals.items()}
                for one in asked:
                    folders[one].setdefault(name, []).append(target / one)
        recorded = {case.id: folders[name] for name, case in asked.items() if case.id not in found}
        try:
            answers = call(compare, _BOUNDS, desktop, account, cases=recorded) if recorded else {}
        except Unread as error:
            answers = {name: refused(f"what was recorded {error}") for name in recorded}
    whole = answers | {name: refused(why) for name, why in found.items()}
    return {case.id: whole[case.id] for case in cases}


def _absent(case: Case) -> str:
    """Return why a case has no work to compare; empty where it has some."""
    for name in SIDES:
        if (side := case.sides[name]).status != "ok":
            return f"it is {side.status} in {name}" + (f": {side.reason.text}" if side.reason else "")
    return ""


def _record(
    todo: Mapping[str, Case], place: Place, name: Side, side: SideWork, target: Path, note: Callable[[str], None]
) -> dict[str, str]:
    """Let a worker record cases, each into its folder below `target`. Returns id → why it did not, of those. A case
    that ends its worker costs that case: a new one goes on."""
    bench, refusals = place.benches["cuda"], {}
    worker: Worker | None = None
    with side.own():
        for folder, case in todo.items():
            note(f"recording · {name} · {case.id}")
            fields = {**case_fields(case, name), "seed": bench.seed, "sets": 1, "folder": str(target / folder)}
            try:
                if worker is None:
                    worker = bench.loaded(bench.begin(name, log=bench.logs / f"{name}-work.log", work=True))
                if why := str(worker.ask("work", max(bench.timeout, LOAD_TIMEOUT), **fields)["refused"]):
                    refusals[case.id] = why
                    worker.close()  # a capture that failed may leave the next one none
                    worker = None
            except Died as error:
                refusals[case.id] = error.reason.text
                worker = None
        if worker is not None:
            worker.close()
    return refusals
