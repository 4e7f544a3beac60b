"""Captures of nsys, ncu and torch.profiler that perfci did not make: NVTX ranges are cases, or kernels are."""

import math
import os
import shutil
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import perfci
from perfci.measure.commands.readers.base import plain
from perfci.measure.imported.base import Files, Imported, named, require_as_many, require_workers, too_few
from perfci.model.base import SIDES, Side, UsageError
from perfci.model.fingerprint import Fingerprint
from perfci.model.kernels import identify
from perfci.model.metrics import CATALOGUE, COUNTERS
from perfci.model.plan import Plan
from perfci.model.profile import Counters, Fault, KernelCounters, KernelUse, Profile, Trace, concerns
from perfci.model.results import Case, CaseSide, Pair, Reason, SideCode
from perfci.model.text import listed
from perfci.model.timing import Timing
from perfci.profilers.base import Read
from perfci.profilers.faults import fault
from perfci.profilers.metrics import take
from perfci.profilers.ncu.profiler import counters
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys.origin import behind
from perfci.profilers.nsys.profiler import export_report, traces
from perfci.profilers.torch.profiler import captured

By = Literal["range", "kernel"]
"""The part of a capture that is a case."""
Kind = Literal["nsys", "nsys report", "ncu", "torch.profiler"]
Seen = Read[Trace] | Read[Counters]
BEGIN = 2**18
"""Bytes of a file by which it is recognised."""
_SUFFIXES: dict[str, Kind] = {
    ".nsys-rep": "nsys report", ".qdrep": "nsys report", ".ncu-rep": "ncu", ".sqlite": "nsys",
}  # fmt: skip
NOTHING = "nothing of it ran on the GPU"


@dataclass(frozen=True)
class _Capture:
    """One file of one side."""

    path: Path
    kind: Kind
    seen: Seen

    @property
    def timeline(self) -> bool:
        return self.kind != "ncu"


def recognise(path: Path) -> Kind | None:
    """Return which profiler wrote a file, by its content, or by its name where it has none; None for anything else."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            begin = file.read(BEGIN)
    except OSError:
        return None  # who reads it says why it cannot be read
    if begin.startswith(b"SQLite format 3\0"):
        return "nsys"
    if begin.startswith(b"NVR\0"):
        return "ncu"
    if begin.startswith(b"\x1f\x8b"):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(begin, BEGIN)
        except zlib.error:
            return None
    if begin.lstrip()[:1] == b"{" and (b'"traceEvents"' in begin or b'"deviceProperties"' in begin):
        return "torch.profiler"
    if b'"Kernel Name"' in begin:
        return "ncu"
    return _SUFFIXES.get(path.suffix)


def read(files: Files, kinds: Mapping[Path, Kind], by: By | None) -> Imported:
    """Read captures of base and head, those of nsys or torch.profiler as timelines, those of ncu as counters.

    Every timeline of a side is a worker with a time of its own; what else is told of a case comes from the first file
    that has it. Raises UsageError: a file of which nothing can be read, two tools' timelines, not as many of each side,
    ranges in some files and none in others.
    """
    require_workers(files)
    of_time: dict[Side, set[Kind]] = {
        name: {"nsys" if kinds[path] == "nsys report" else kinds[path] for path in paths} - {"ncu"}
        for name, paths in files.items()
    }
    told = sorted({kind for some in of_time.values() for kind in some})
    if len(told) > 1:
        raise UsageError(f"--import: timelines of {' and of '.join(told)}: import those of one tool at a time")
    with tempfile.TemporaryDirectory(prefix="perfci-import-") as scratch:
        found, chosen = _all(files, kinds, by, Path(scratch))
    numbers = {name: sum(one.timeline for one in some) for name, some in found.items()}
    if all(numbers.values()):
        require_as_many(numbers)
    elif any(numbers.values()):
        told_by = " and ".join(f"{number} of {name}" for name, number in numbers.items())
        raise UsageError(f"--import: timelines: {told_by}: give some of each, or none")
    names = _names(found, chosen)
    if not names.ids:
        path = files["head"][0]
        why = "cases are kernels, or NVTX ranges with copies or kernels: push a range around what is to be judged"
        raise UsageError(f"--import: {path}: holds no kernel, and no range with work of the GPU: {why}")
    cases = [_case(ident, names, found) for ident in sorted(names.ids)]
    return Imported(
        cases=cases,
        device="cuda",
        facts=Fingerprint(
            perfci=perfci.__version__,
            host="",
            cpu="",
            cores=0,
            python="",
            devices={"cuda": gpu} if (gpu := _gpus([one for some in found.values() for one in some])) else {},
            imported={"imported from": ", ".join(_tools(found))},
        ),
        sides={name: SideCode(ref=named(paths)) for name, paths in files.items()},
        workers=max(1, numbers["head"]),
        reports={case.id: frozenset({"time"}) for case in cases},
        observed=True,
        timed=numbers["head"] > 0,
        notes=lambda plan: _notes(found, chosen, names, plan),
    )


def _all(
    files: Files, kinds: Mapping[Path, Kind], by: By | None, scratch: Path
) -> tuple[dict[Side, list[_Capture]], By]:
    """Read all files by ranges, or by kernels where no file has any. Returns them, and which it was."""
    exported = {path: _exported(path, scratch) if kind == "nsys report" else path for path, kind in kinds.items()}

    def each(way: By) -> dict[Side, list[_Capture]]:
        return {
            name: [_Capture(path, kinds[path], _seen(path, exported[path], kinds[path], way)) for path in paths]
            for name, paths in files.items()
        }

    if by == "kernel":
        return each("kernel"), "kernel"
    found = each("range")
    everything = [one for some in found.values() for one in some]
    without = [one for one in everything if not _works(one)]
    if not without:
        return found, "range"
    if by is None and not any(one.seen.seen or one.seen.faults for one in everything):
        return each("kernel"), "kernel"
    why = "profile with NVTX ranges (ncu --nvtx, nsys --trace=cuda,nvtx), or give --by kernel"
    aside = next((f" ({one.text})" for one in without[0].seen.general if one.aside), "")
    raise UsageError(f"--import: {without[0].path}: holds no NVTX range with work of the GPU{aside}: {why}")


def _works(one: _Capture) -> bool:
    """Tell whether some range of a file holds work of the GPU."""
    return any(map(_worked, one.seen.seen.values())) or bool(_lost(one))


def _worked(seen: Trace | Counters) -> bool:
    """Tell whether something ran on the GPU; nsys may tell of a CUDA graph that it ran, and no more."""
    return not isinstance(seen, Trace) or seen.busy > 0 or seen.sets > 0


def _lost(one: _Capture) -> list[str]:
    """Return the ranges of which a file has faults alone: what they did is not known."""
    return [name for name in one.seen.faults if name not in one.seen.seen]


def _exported(path: Path, scratch: Path) -> Path:
    """Export a report of nsys. Raises UsageError."""
    nsys = nsys_command.find(os.environ)
    if isinstance(nsys, Fault):
        text = f"{nsys.text}: export it where nsys is (nsys export --type sqlite {path.name}), and import that"
        raise UsageError(f"--import: {path}: only nsys reads its own reports, and {text}")
    folder = Path(tempfile.mkdtemp(dir=scratch))
    out, log = folder / f"{path.stem}.sqlite", folder / "log"
    if not export_report(nsys_command.export_command(nsys, path.absolute(), out), folder, log) or not out.is_file():
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        why = said[0][:300] if said else "it said nothing"
        raise UsageError(f"--import: {path}: nsys {nsys.version} cannot export it ({why}): is it whole, and no newer?")
    return out


def _seen(path: Path, file: Path, kind: Kind, by: By) -> Seen:
    """Return what a file holds, by name of range or all under "". Raises UsageError where that is nothing."""
    found: Seen
    if kind == "ncu":
        tool = shutil.which("ncu")
        found = counters(
            file, ranges=None, whole=by == "kernel", names=None, most=None, installed=Path(tool) if tool else None
        )
    elif kind == "torch.profiler":
        found = captured(file, by)
    else:
        reading = traces(file, "outermost" if by == "range" else None)
        faults = {name: [fault] for name, fault in reading.faults.items()}
        general = [one for one in reading.general if one not in reading.faults.values()]
        version = next((one.version for one in reading.traces.values()), "")
        if why := behind(version, reading.driver):
            remedy = "capture with an nsys that is as new as the driver's CUDA"
            general.append(fault("nsys", "trace", "incompatible", f"version {version}: {why}", remedy, aside=True))
        found = Read(reading.traces, faults, general, reading.device, reading.capability)
    lost = [*found.general, *(one for some in found.faults.values() for one in some)]
    if by == "range":  # without a range it may hold kernels
        lost = [one for one in found.general if not one.aside and one.kind != "empty"] if not found.faults else []
    fatal = next(iter(lost), None)
    if not found.seen and fatal is not None:
        text = fatal.text.replace(file.name, str(path), 1) if file.name in fatal.text else f"{path}: {fatal.text}"
        raise UsageError(f"--import: {text}" + (f": {fatal.remedy}" if fatal.remedy else ""))
    return found


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class _Names:
    """The names of the cases."""

    by: By
    ids: Mapping[str, Any]
    """Id of a case → the range's name, or the kernel's identity, grid and block."""
    twice: frozenset[str] = frozenset()
    """Ids that several ranges have."""
    several: "frozenset[_Shape]" = frozenset()
    """Shapes that do not tell kernels apart."""


_Shape = tuple[str, tuple[int, int, int], tuple[int, int, int], str]
"""Identity, grid and block of a kernel, and its whole name where a file has several of these."""


def _shape(kernel: KernelUse | KernelCounters, several: Collection[_Shape] = ()) -> _Shape:
    shape = identify(kernel.name).key, kernel.grid, kernel.block, ""
    return (*shape[:3], kernel.name) if shape in several else shape


def _several(found: Mapping[Side, Sequence[_Capture]]) -> frozenset[_Shape]:
    """Return the shapes that kernels of different names have in one file: what is alike in them are not they."""
    several: set[_Shape] = set()
    for one in (one for some in found.values() for one in some):
        named: dict[_Shape, set[str]] = defaultdict(set)
        for seen in one.seen.seen.values():
            for kernel in seen.kernels:
                named[_shape(kernel)].add(kernel.name)
        several |= {shape for shape, names in named.items() if len(names) > 1}
    return frozenset(several)


def _names(found: Mapping[Side, Sequence[_Capture]], by: By) -> _Names:
    everything = [one for some in found.values() for one in some]
    seen = [seen for one in everything for seen in one.seen.seen.items()]
    if by == "range":
        ranges = dict.fromkeys([name for name, one in seen if _worked(one)])
        ranges |= dict.fromkeys([name for one in everything for name in _lost(one)])
        ids = Counter(plain(name) for name in ranges)
        return _Names(
            "range", {plain(name): name for name in ranges}, frozenset(one for one, n in ids.items() if n > 1)
        )
    several, labels = _several(found), dict[_Shape, str]()
    for _, one in seen:
        for kernel in one.kernels:
            labels.setdefault(_shape(kernel, several), plain(identify(kernel.name).label))
    return _Names("kernel", {ident: shape for shape, ident in _distinct(labels).items()}, several=several)


def _distinct(labels: Mapping[_Shape, str]) -> dict[_Shape, str]:
    """Return ids of kernels: `NAME/grid=64x8x1`, with the block and then the identity where that is not enough."""
    found: dict[_Shape, str] = {}
    for parts in (1, 2, 3):
        left = {shape: _spelt(label, shape, parts) for shape, label in labels.items() if shape not in found}
        alike = Counter(left.values())
        found |= {shape: ident for shape, ident in left.items() if alike[ident] == 1 or parts == 3}
    return found


def _spelt(label: str, shape: _Shape, parts: int) -> str:
    identity, grid, block, name = shape
    number = zlib.crc32((name or identity).encode())
    told = (f"grid={_dimensions(grid)}", f"block={_dimensions(block)}", f"kernel={number:08x}")
    return "/".join([label, *told[:parts]])


def _dimensions(sides: Iterable[int]) -> str:
    return "x".join(map(str, sides))


def _case(ident: str, names: _Names, found: Mapping[Side, Sequence[_Capture]]) -> Case:
    parts = {name: [(one, _of(one, names, ident)) for one in some] for name, some in found.items()}
    sides = {name: _side(name, ident, names, some) for name, some in parts.items()}
    case = Case(id=ident, kernel=ident.split("/", maxsplit=1)[0], device="cuda", origin="imported", sides=sides)
    if sides["head"].status != "ok":
        case.stopped = "failed"
        return case
    times: dict[Side, list[float]] = {
        name: [seen.wall for _, seen in parts[name] if isinstance(seen, Trace)]
        for name in SIDES
        if name in sides and sides[name].status == "ok" and not _short(ident, names, parts[name])
    }
    number = max(map(len, times.values()), default=0)
    case.pairs = [
        Pair(index=index, values={name: {"time": some[index]} for name, some in times.items() if some[index] > 0})
        for index in range(number)
    ]
    return case


def _short(ident: str, names: _Names, parts: Sequence[tuple[_Capture, Trace | Counters | None]]) -> bool:
    """Tell whether work of the GPU may be missing from a timeline of one side: a time without it is too short."""
    return any(
        one.timeline and concerns(missing, "device_busy") for one, _ in parts for missing in _faults(one, names, ident)
    )


def _faults(one: _Capture, names: _Names, ident: str) -> list[Fault]:
    """Return what a file's profiler missed of a case; what it only left out is a note of the report."""
    name = "" if names.by == "kernel" else names.ids[ident]
    return [*one.seen.faults.get(name, []), *(fault for fault in one.seen.general if not fault.aside)]


def _of(one: _Capture, names: _Names, ident: str) -> Trace | Counters | None:
    """Return what a file holds of a case; None where that is nothing."""
    if names.by == "range":
        return one.seen.seen.get(names.ids[ident])
    for seen in one.seen.seen.values():
        if isinstance(seen, Trace):
            return _launches(seen, names.ids[ident], names.several)
        return _counted(seen, names.ids[ident], names.several)
    return None


def _launches(seen: Trace, shape: _Shape, several: Collection[_Shape]) -> Trace | None:
    """Return the mean launch of a kernel. A host's time, and what lies between launches, no kernel has."""
    uses = [one for one in seen.kernels if _shape(one, several) == shape]
    n = math.fsum(one.count for one in uses)
    if n < 1:
        return None
    seconds = math.fsum(one.seconds for one in uses) / n
    kernels = [one.model_copy(update={"count": one.count / n, "seconds": one.seconds / n}) for one in uses]
    return Trace(
        source=seen.source,
        version=seen.version,
        executions=round(n),
        wall=seconds,
        busy=seconds,
        span=0,
        kernels=kernels,
    )


def _counted(seen: Counters, shape: _Shape, several: Collection[_Shape]) -> Counters | None:
    """Return the counters of the mean launch of a kernel."""
    uses = [one for one in seen.kernels if _shape(one, several) == shape]
    n = sum(one.count for one in uses)
    if not n:
        return None

    def mean(one: KernelCounters) -> KernelCounters:
        sums = {name for name in one.values if COUNTERS[name].aggregate == "sum"}
        values = {name: value / n if name in sums else value for name, value in one.values.items()}
        return one.model_copy(update={"values": values, "seconds": one.seconds / n, "count": 1})

    return seen.model_copy(update={"kernels": [mean(one) for one in uses]})


def _side(name: Side, ident: str, names: _Names, parts: Sequence[tuple[_Capture, Trace | Counters | None]]) -> CaseSide:
    """Return what the files of one side say of a case; one that is not in all of its timelines has failed."""
    if ident in names.twice:
        text = f"several NVTX ranges have the id {ident}: give them names that differ in letters and digits"
        return CaseSide(status="failed", reason=Reason(kind="invalid", text=text))
    if names.by == "range" and (
        lost := [one for one, seen in parts if seen is None and names.ids[ident] in _lost(one)]
    ):
        missing = lost[0].seen.faults[names.ids[ident]][0]
        text = f"{lost[0].path.name}: {missing.tool}: {missing.text}"
        return CaseSide(status="failed", reason=Reason(kind="invalid", text=text[:1000]))
    if not any(seen for _, seen in parts):
        return CaseSide(status="absent", reason=Reason(kind="absent", text=f"no file of {name} has it"))
    for one, seen in parts:
        if one.timeline and seen is None:
            text = f"{one.path.name} does not have it, other files of {name} do"
            return CaseSide(status="failed", reason=Reason(kind="invalid", text=text))
    profile = Profile()
    tools = []
    for kind in (Trace, Counters):
        first = next(((one, seen) for one, seen in parts if isinstance(seen, kind)), None)
        if first is not None and first[1] is not None:
            one, seen = first
            take(profile, seen, _faults(one, names, ident), one.seen.capability, True)
            tools.append(seen.source)
    if (repeated := _repeated(profile)) is not None:
        profile.faults.append(repeated)
        for metric in repeated.metrics:
            profile.metrics.pop(metric, None)
    if names.by == "kernel":  # of a launch there is nothing else
        told = {name for name, one in CATALOGUE.items() if one.tier == "trace"} - {"device_time"}
        profile.metrics = {name: value for name, value in profile.metrics.items() if name not in told}
    gpus = _gpus([one for one, _ in parts])
    timing = Timing(mode="imported", reads=" and ".join(tools), statistic="mean", machine=gpus or None)
    return CaseSide(timing=timing, profile=profile)


def _repeated(profile: Profile) -> Fault | None:
    """Return a fault where more launches were counted than an execution in the timeline has: sums are of several."""
    if profile.trace is None or profile.counters is None:
        return None
    counted = sum(kernel.count for kernel in profile.counters.kernels)
    launches = math.fsum(kernel.count for kernel in profile.trace.kernels)
    if counted <= launches + 1e-9:
        return None
    sums = [name for name, one in COUNTERS.items() if one.aggregate == "sum" and name in CATALOGUE]
    text = f"it counted {counted} launches, and an execution has {launches:.6g}: its sums are of several"
    return fault(profile.counters.source, "counters", "incomplete", text, "let it profile one execution", sums)


def _gpus(some: Sequence[_Capture]) -> str:
    """Return the GPUs that files tell by name, or else the chips of those that ncu counted on; empty for none."""
    names = [one.seen.device for one in some if one.seen.device]
    chips = [seen.chip for one in some for seen in one.seen.seen.values() if isinstance(seen, Counters) and seen.chip]
    return "; ".join(dict.fromkeys(names or chips))


# ---------------------------------------------------------------- notes


def _tools(found: Mapping[Side, Sequence[_Capture]]) -> list[str]:
    """Return `nsys 2023.4.4`, each once."""
    seen = [(seen.source, seen.version) for some in found.values() for one in some for seen in one.seen.seen.values()]
    return list(dict.fromkeys(f"{tool} {version}".strip() for tool, version in seen))


def _notes(found: Mapping[Side, Sequence[_Capture]], by: By, names: _Names, plan: Plan) -> list[str]:
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
        idle = dict.fromkeys(name for name, one in seen if not _worked(one) and plain(name) not in names.ids)
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
