"""Names of captured cases (a range, or a kernel with its grid), alike in base and head, and their values."""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfci.measure.commands.readers.base import plain
from perfci.measure.imported.capture import By, Capture, lost_ranges, worked
from perfci.model.base import SIDES, Side
from perfci.model.kernels import identify
from perfci.model.metrics import CATALOGUE, COUNTERS, counter, of_ncu
from perfci.model.profile import Counters, Fault, KernelCounters, KernelUse, Profile, Trace, concerns
from perfci.model.results import Case, CaseSide, Pair, Reason, Work
from perfci.model.timing import Timing
from perfci.profilers.faults import fault
from perfci.profilers.metrics import take


@dataclass(frozen=True)
class Names:
    """The names of the cases."""

    by: By
    ids: Mapping[str, Mapping[Side, Any]]
    """Case id → range's name or kernel's shape in each side."""
    twice: frozenset[str] = frozenset()
    """Ids of several ranges."""
    several: "frozenset[_Shape]" = frozenset()
    """Shapes that do not tell kernels apart."""
    named: bool = False
    """All counters name the GPU."""


_Shape = tuple[str, tuple[int, int, int], tuple[int, int, int], str]
"""Identity, grid and block of a kernel, and its whole name where several have these."""


def _shape(kernel: KernelUse | KernelCounters, several: Collection[_Shape] = ()) -> _Shape:
    shape = identify(kernel.name).key, kernel.grid, kernel.block, ""
    return (*shape[:3], kernel.name) if shape in several else shape


def _several(found: Mapping[Side, Sequence[Capture]]) -> frozenset[_Shape]:
    """Shapes that differently named kernels share in one file are no match."""
    several: set[_Shape] = set()
    for one in (one for some in found.values() for one in some):
        named: dict[_Shape, set[str]] = defaultdict(set)
        for seen in one.seen.seen.values():
            for kernel in seen.kernels:
                named[_shape(kernel)].add(kernel.name)
        several |= {shape for shape, names in named.items() if len(names) > 1}
    return frozenset(several)


def names_of(found: Mapping[Side, Sequence[Capture]], by: By) -> Names:
    """Return the cases of files, by id."""
    everything = [one for some in found.values() for one in some]
    seen = [seen for one in everything for seen in one.seen.seen.items()]
    named = all(one.device for _, one in seen if isinstance(one, Counters))
    if by == "range":
        ranges = dict.fromkeys([name for name, one in seen if worked(one)])
        ranges |= dict.fromkeys([name for one in everything for name in lost_ranges(one)])
        ids = Counter(plain(name) for name in ranges)
        twice = frozenset(one for one, n in ids.items() if n > 1)
        return Names("range", {plain(name): dict.fromkeys(SIDES, name) for name in ranges}, twice, named=named)
    several, labels = _several(found), dict[_Shape, str]()
    shapes: dict[Side, dict[_Shape, None]] = {name: {} for name in found}
    for side, some in found.items():
        for kernel in (kernel for one in some for traced in one.seen.seen.values() for kernel in traced.kernels):
            shape = _shape(kernel, several)
            shapes[side][shape] = None
            labels.setdefault(shape, plain(identify(kernel.name).label))
    pairs = {pair.get("base", pair.get("head")): pair for pair in _paired(shapes)}
    told = _distinct({shape: labels[shape] for shape in pairs if shape is not None})
    return Names("kernel", {ident: pairs[shape] for shape, ident in told.items()}, several=several, named=named)


def _paired(shapes: Mapping[Side, Iterable[_Shape]]) -> list[dict[Side, _Shape]]:
    """One kernel's shapes: equal ones; then the only ones of a name and grid; then those of a name."""
    left = {name: list(some) for name, some in shapes.items()}
    pairs: list[dict[Side, _Shape]] = []
    for parts in ((0, 1, 2, 3), (0, 1, 3), (0, 3)) if len(left) > 1 else ():
        alike: dict[tuple[object, ...], list[tuple[Side, _Shape]]] = defaultdict(list)
        for name, some in left.items():
            for shape in some:
                alike[tuple(shape[part] for part in parts)].append((name, shape))
        found = [dict(group) for group in alike.values() if sorted(name for name, _ in group) == sorted(left)]
        taken = {name: {pair[name] for pair in found} for name in left}
        left = {name: [one for one in some if one not in taken[name]] for name, some in left.items()}
        pairs += found
    return pairs + [{name: shape} for name, some in left.items() for shape in some]


def _distinct(labels: Mapping[_Shape, str]) -> dict[_Shape, str]:
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


def case_of(
    ident: str, names: Names, found: Mapping[Side, Sequence[Capture]], work: Work, asked: Mapping[str, bool]
) -> Case:
    """Return one case. `work`: of an execution. `asked`: ncu's metric → whether a limit on it asks this case."""
    parts = {name: [(one, _of(one, name, names, ident)) for one in some] for name, some in found.items()}
    sides = {name: _side(name, ident, names, some, asked) for name, some in parts.items()}
    for side in sides.values():
        side.work = work
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


def _short(ident: str, names: Names, parts: Sequence[tuple[Capture, Trace | Counters | None]]) -> bool:
    return any(
        one.timeline and concerns(missing, "device_busy") for one, _ in parts for missing in _faults(one, names, ident)
    )


def _faults(one: Capture, names: Names, ident: str) -> list[Fault]:
    name = "" if names.by == "kernel" else names.ids[ident]["head"]
    return [*one.seen.faults.get(name, []), *(fault for fault in one.seen.general if not fault.aside)]


def _of(one: Capture, name: Side, names: Names, ident: str) -> Trace | Counters | None:
    own = names.ids[ident].get(name)
    if own is None:
        return None
    if names.by == "range":
        return one.seen.seen.get(own)
    for seen in one.seen.seen.values():
        if isinstance(seen, Trace):
            return _launches(seen, own, names.several)
        return _counted(seen, own, names.several)
    return None


def _launches(seen: Trace, shape: _Shape, several: Collection[_Shape]) -> Trace | None:
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
    uses = [one for one in seen.kernels if _shape(one, several) == shape]
    n = sum(one.count for one in uses)
    if not n:
        return None

    def mean(one: KernelCounters) -> KernelCounters:
        sums = {name for name in one.values if counter(name).aggregate == "sum"}
        values = {name: value / n if name in sums else value for name, value in one.values.items()}
        return one.model_copy(update={"values": values, "seconds": one.seconds / n, "count": 1})

    return seen.model_copy(update={"kernels": [mean(one) for one in uses]})


def _side(
    name: Side, ident: str, names: Names, parts: Sequence[tuple[Capture, Trace | Counters | None]],
    asked: Mapping[str, bool],
) -> CaseSide:  # fmt: skip
    """A case missing in any timeline of the side has failed."""
    if ident in names.twice:
        text = f"several NVTX ranges have the id {ident}: give them names that differ in letters and digits"
        return CaseSide(status="failed", reason=Reason(kind="invalid", text=text))
    if names.by == "range" and (
        lost := [one for one, seen in parts if seen is None and names.ids[ident][name] in lost_ranges(one)]
    ):
        missing = lost[0].seen.faults[names.ids[ident][name]][0]
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
            others = {metric for metric, here in asked.items() if not here}
            own = [lack for lack in _faults(one, names, ident) if not lack.metrics or {*lack.metrics} - others]
            take(profile, seen, own, one.seen.capability, True)
            tools.append(seen.source)
    if (wanted := [metric for metric, here in asked.items() if here]) and profile.counters is None:
        remedy = f"import what ncu counts of it, too: ncu --metrics {','.join(wanted)}"
        profile.faults.append(fault("ncu", "counters", "absent", f"no file of {name} counts it", remedy, wanted))
    if (repeated := _repeated(profile)) is not None:
        profile.faults.append(repeated)
        for metric in repeated.metrics:
            profile.metrics.pop(metric, None)
    if names.by == "kernel":  # of a launch there is nothing else
        told = {name for name, one in CATALOGUE.items() if one.tier == "trace"} - {"device_time"}
        profile.metrics = {name: value for name, value in profile.metrics.items() if name not in told}
    gpus = gpus_of([one for one, _ in parts], names.named)
    timing = Timing(mode="imported", reads=" and ".join(tools), statistic="mean", machine=gpus or None)
    params = {"grid": _dimensions(names.ids[ident][name][1])} if names.by == "kernel" else {}
    return CaseSide(timing=timing, profile=profile, params=params)


def _repeated(profile: Profile) -> Fault | None:
    if profile.trace is None or profile.counters is None:
        return None
    counted = sum(kernel.count for kernel in profile.counters.kernels)
    launches = math.fsum(kernel.count for kernel in profile.trace.kernels)
    if counted <= launches + 1e-9:
        return None
    sums = [name for name, one in COUNTERS.items() if one.aggregate == "sum" and name in CATALOGUE]
    sums += [name for name in profile.metrics if (one := of_ncu(name)) and one.aggregate == "sum"]
    text = f"it counted {counted} launches, and an execution has {launches:.6g}: its sums are of several"
    return fault(profile.counters.source, "counters", "incomplete", text, "let it profile one execution", sums)


def gpus_of(some: Sequence[Capture], named: bool) -> str:
    """Return the GPUs' names, or else the chips that ncu counted on.

    `named`: all of ncu's pages have a name, so that base and head compare.
    """
    counted = [seen for one in some for seen in one.seen.seen.values() if isinstance(seen, Counters)]
    names = [one.seen.device for one in some if one.seen.device]
    names += [seen.device for seen in counted if named]
    return "; ".join(dict.fromkeys(names or [seen.chip for seen in counted if seen.chip]))
