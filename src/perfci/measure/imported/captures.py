"""Results of captures that other programs took: sides paired, notes on what they lack."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import perfci
from perfci.measure.commands.readers.base import plain
from perfci.measure.imported.base import Files, Imported, named, require_as_many, require_workers, too_few
from perfci.measure.imported.capture import By, Capture, Kind, read_all, worked
from perfci.measure.imported.cases import Names, case_of, gpus_of, names_of
from perfci.model.base import Side, UsageError, matches
from perfci.model.fingerprint import Fingerprint
from perfci.model.limits import names as speaks_of
from perfci.model.limits import nearest
from perfci.model.plan import Plan
from perfci.model.policy import Limit
from perfci.model.results import SideCode, Work
from perfci.model.text import listed

NOTHING = "nothing of it ran on the GPU"


def read(
    files: Files, kinds: Mapping[Path, Kind], by: By | None, items: Mapping[str, Work], limits: Sequence[Limit] = ()
) -> Imported:
    """Read captures: nsys and torch.profiler as timelines, ncu as counters.

    Every timeline is a worker with its own time; all else of a case comes from the first file that has it. `items`:
    work of an execution by patterns of ids. Raises UsageError.
    """
    require_workers(files)
    of_time: dict[Side, set[Kind]] = {
        name: {"nsys" if kinds[path] == "nsys report" else kinds[path] for path in paths} - {"ncu"}
        for name, paths in files.items()
    }
    told = sorted({kind for some in of_time.values() for kind in some})
    if len(told) > 1:
        raise UsageError(f"import: timelines of {' and of '.join(told)}: import those of one tool at a time")
    metrics = list(dict.fromkeys(limit.metric for limit in limits))
    with tempfile.TemporaryDirectory(prefix="perfci-import-") as scratch:
        found, chosen = read_all(files, kinds, by, Path(scratch), metrics)
    numbers = {name: sum(one.timeline for one in some) for name, some in found.items()}
    if all(numbers.values()):
        require_as_many(numbers)
    elif any(numbers.values()):
        told_by = " and ".join(f"{number} of {name}" for name, number in numbers.items())
        raise UsageError(f"import: timelines: {told_by}: give some of each, or none")
    names = names_of(found, chosen)
    if not names.ids:
        path = files["head"][0]
        why = "cases are kernels, or NVTX ranges with copies or kernels: push a range around what is to be judged"
        raise UsageError(f"import: {path}: holds no kernel, and no range with work of the GPU: {why}")
    for pattern in items:
        if not any(matches(pattern, ident) for ident in names.ids):
            raise UsageError(f"--items {pattern}: matches no case of these files: {nearest(pattern, names.ids)}")
    gpu = gpus_of([one for some in found.values() for one in some], names.named)
    cases = []
    for ident in sorted(names.ids):
        work = next((work for pattern, work in reversed([*items.items()]) if matches(pattern, ident)), Work())
        own = {limit.metric for limit in limits if speaks_of(limit, ident)}
        cases.append(case_of(ident, names, found, work, {name: name in own for name in metrics}))
    return Imported(
        cases=cases,
        device="cuda",
        facts=Fingerprint(
            perfci=perfci.__version__,
            host="",
            cpu="",
            cores=0,
            python="",
            devices={"cuda": gpu} if gpu else {},
            imported={"imported from": ", ".join(_tools(found))},
        ),
        sides={name: SideCode(ref=named(paths)) for name, paths in files.items()},
        workers=max(1, numbers["head"]),
        reports={case.id: frozenset({"time"}) for case in cases},
        observed=True,
        timed=numbers["head"] > 0,
        notes=lambda plan: _notes(found, chosen, names, plan),
    )


def _tools(found: Mapping[Side, Sequence[Capture]]) -> list[str]:
    everything = [one for some in found.values() for one in some]
    seen = [(seen.source, seen.version) for one in everything for seen in one.seen.seen.values()]
    seen += [(one.kind.removesuffix(" report"), "") for one in everything if not one.seen.seen]
    return list(dict.fromkeys(f"{tool} {version}".strip() for tool, version in seen))


def _notes(found: Mapping[Side, Sequence[Capture]], by: By, names: Names, plan: Plan) -> list[str]:
    tools = " and ".join(_tools(found))
    each = "each NVTX range" if by == "range" else "each kernel with its grid"
    notes = [
        f"captured by {tools}, {each} as a case: perfci built nothing, checked no result and did not choose the order"
    ]
    if any(one.timeline for some in found.values() for one in some):
        notes.append("times are of runs under a profiler, which adds to each call of the CUDA API")
    idle: dict[str, None] = {}
    if by == "range":
        seen = [named for some in found.values() for one in some for named in one.seen.seen.items()]
        idle = dict.fromkeys(name for name, one in seen if not worked(one) and plain(name) not in names.ids)
    if idle:
        notes.append(f"left out, since {NOTHING}: {listed(list(idle), 5)}")
    for some in found.values():
        for at, one in enumerate(some):
            before = {name for other in some[:at] if other.timeline == one.timeline for name in other.seen.seen}
            if by == "range" and not one.timeline and (twice := before & one.seen.seen.keys()):
                notes.append(f"{one.path.name}: {listed(sorted(twice), 3)} stands in an earlier file, which counts")
    general = [fault for some in found.values() for one in some for fault in one.seen.general]
    notes += dict.fromkeys(f"{one.tool}: {one.text}" for one in general)
    if "base" not in found:
        return [*notes, "compared with nothing: only absolute limits were judged (--base FILE compares)"]
    return notes + too_few(plan)
