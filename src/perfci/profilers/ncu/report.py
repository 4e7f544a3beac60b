"""Reads what ncu counted: a report (`.ncu-rep`), or the raw page as CSV, which has two decimals and no rules.

An absent, infinite or negative value is a fault. Missing kernels show where `most` is reached, and beside a trace.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path

from perfci.model.metrics import NcuSum, combined
from perfci.model.profile import Counters, Fault, KernelCounters, Rule
from perfci.profilers.base import Read
from perfci.profilers.ncu import chips
from perfci.profilers.ncu import file as ncu_file
from perfci.profilers.ncu.launch import EMPTY_REMEDY, METRICS, PASSES, Launch, fault, scaled
from perfci.profilers.ncu.module import Module

DOMAINS = ("perfci", "<default domain>")
"""NVTX domains of cases' ranges: the `nvtx` package's, torch's."""
TIMEOUT = 120.0
"""Seconds to read a report."""


def read(
    path: Path,
    *,
    ranges: Sequence[str] | None = None,
    whole: bool = False,
    names: str | Iterable[str] | None = None,
    own: Sequence[str] = (),
    further: bool = False,
    most: int | None = None,
    ncu: Path | None = None,
    modules: Sequence[Module] | None = None,
    timeout: float = TIMEOUT,
) -> Read[Counters]:
    """Return each range's counters in a report or raw CSV. Never raises for a file's content.

    `ranges`: the cases'; a launch belongs to the first open around it, and a range without a launch is a fault. None:
    to the outermost range in DOMAINS. `whole`: every launch belongs to "". `names`: what every launch must have,
    perfci's or ncu's names or a set's; None takes the table's. `own`: ncu's metrics that limits need, of a file that
    perfci did not ask for. `further`: take the table's besides `names`. `most`: ncu's `--launch-count`. `ncu`: reads
    the report where no `ncu_report` does; `modules`: those to try, None all. `timeout`: seconds of `ncu`.

    Raises UsageError for a name that is no counter of ncu.
    """
    wanted = None if names is None else chips.expand(names)
    by_own_name = [name for name in (*(wanted or ()), *own) if name not in chips.COUNTED]
    content = ncu_file.content(path, ncu, modules, timeout, list(dict.fromkeys([*METRICS, *by_own_name])))
    reading: Read[Counters] = Read(general=[*content.faults])
    found: dict[str, list[Launch]] = {}
    outside = 0
    for launch in content.launches:
        name = "" if whole else _range(launch, ranges)
        if name is None:
            outside += 1
        else:
            found.setdefault(name, []).append(launch)
    if outside:
        reading.general.append(
            fault(
                "incomplete",
                f"{path.name}: {outside} of {len(content.launches)} launches lie in no range of a case",
                "launches of other threads, such as autograd's, show in ranges of start and end only",
                aside=ranges is None,  # nobody said that all of them belong to cases
            )
        )
    if most is not None and len(content.launches) >= most:
        reading.general.append(
            fault(
                "incomplete",
                f"{path.name}: holds {len(content.launches)} launches, as many as ncu was to take: some may be missing",
                "raise the launch count, or choose kernels by name",
            )
        )
    for name, launches in found.items():
        counters, faults = _count(launches, wanted, tuple(own), further, content.version)
        if counters.kernels:
            reading.seen[name] = counters
        if faults:
            reading.faults[name] = faults
    for name in sorted(set(ranges or ()) - set(found)):
        why = "the file could not be read" if any(one.kind == "unreadable" for one in content.faults) else ""
        reading.faults[name] = [
            fault("empty", f"ncu has no kernel in range {name}" + (f": {why}" if why else ""), EMPTY_REMEDY)
        ]
    return reading


def _range(launch: Launch, ranges: Collection[str] | None) -> str | None:
    for domain, name in launch.nvtx:
        if domain in DOMAINS and name and (ranges is None or name in ranges):
            return name
    return None


# ---------------------------------------------------------------- from launches to counters


def _count(
    launches: Sequence[Launch], wanted: tuple[str, ...] | None, own: tuple[str, ...], further: bool, version: str
) -> tuple[Counters, list[Fault]]:
    capability = next((one.capability for one in launches if one.capability), None)
    chip = (capability and chips.chip_of(*capability)) or ""
    told = _told(launches, chip) if wanted is None or further else ()
    names = tuple(dict.fromkeys([*(wanted or ()), *told, *own]))
    lacking = chips.unavailable(names, chip) if chip else {}
    names = tuple(name for name in names if name not in lacking)

    numbered = dict(enumerate(launches, 1))
    usable = {number: one for number, one in numbered.items() if _seconds(one) and one.name and one.grid and one.block}
    values = {number: {name: _value(one, name, chip) for name in names} for number, one in usable.items()}
    missing = {
        name: without for name in names if (without := [number for number in usable if values[number][name] is None])
    }
    absent = [name for name in missing if not (name in chips.COUNTED or any(name in one.values for one in launches))]
    some = {name: without for name, without in missing.items() if name not in absent}
    faults = [
        *_unavailable(lacking),
        *_unmeasured(launches, numbered.keys() - usable.keys()),
        *(_absent(name, chip, asked=name not in own) for name in absent),
        *([_without(launches, some, chip)] if some else []),
    ]

    apart = ["registers", "shared_memory", *(name for name in names if chips.counted(name).aggregate == "same")]
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, one in usable.items():
        configuration = tuple(values[number].get(name) for name in apart)
        groups.setdefault((one.name, one.grid, one.block, configuration), []).append(number)
    kernels = [_group([(usable[number], values[number]) for number in own_numbers]) for own_numbers in groups.values()]
    kernels.sort(key=lambda kernel: (-kernel.seconds, kernel.name, kernel.grid, kernel.block))
    passes = [value for one in launches if (value := one.values.get(PASSES, (None, ""))[0]) is not None]
    most = max((value for value in passes if math.isfinite(value) and 0 < value < 2**31), default=None)
    counters = Counters(
        source="ncu",
        version=version,
        chip=chip,
        device=next((one.device for one in launches if one.device), ""),
        passes=None if most is None else round(most),
        kernels=kernels,
    )
    return counters, faults


def _seconds(launch: Launch) -> float:
    return scaled(launch, chips.TIME, "s") or 0.0


def _unavailable(lacking: Mapping[str, str]) -> list[Fault]:
    by_reason = {why: [name for name in lacking if lacking[name] == why] for why in lacking.values()}
    remedy = "ask for it on another chip only"
    return [fault("incompatible", f"{', '.join(names)}: {why}", remedy, names) for why, names in by_reason.items()]


def _unmeasured(launches: Sequence[Launch], numbers: Set[int]) -> list[Fault]:
    if not numbers:
        return []
    text = f"{len(numbers)} of {len(launches)} launches have no time, name or launch configuration; "
    text += f"the first is {_launch(launches, min(numbers))}"
    return [fault("incomplete", text, "profile again, and see what ncu prints")]


def _without(launches: Sequence[Launch], missing: Mapping[str, Sequence[int]], chip: str) -> Fault:
    text = ", ".join(f"{name} ({len(which)})" for name, which in sorted(missing.items()))
    first, name = min((which[0], name) for name, which in missing.items())
    launch = launches[first - 1]
    said = "; ".join(f"{metric} is {launch.said(metric)}" for metric in _unusable(launch, name, chip))
    some = f"no usable value for some of {len(launches)} launches"
    return fault(
        "incomplete",
        f"{some}: {text}; the first is {_launch(launches, first)}: {said}",
        "ask ncu for these metrics; a kernel that failed under ncu has none, a very small one no rates",
        sorted(missing),
    )


def _absent(name: str, chip: str, *, asked: bool) -> Fault:
    if not asked:
        return fault("incomplete", f"no launch has {name}", f"capture it too: ncu --metrics {name}", [name])
    of = f" --chips {chip}" if chip else ""
    remedy = f"see what ncu has: ncu --query-metrics{of}; a counter needs a rollup, such as .sum"
    return fault("incompatible", f"ncu gave no {name}", remedy, [name])


def _told(launches: Sequence[Launch], chip: str) -> tuple[str, ...]:
    return tuple(
        name
        for name in chips.COUNTED
        if any(all(m in one.values for m in source.metrics) for source in chips.sources(name, chip) for one in launches)
    )


def _source(launch: Launch, name: str, chip: str) -> NcuSum | None:
    known = chips.sources(name, chip)
    held = (one for one in known if all(metric in launch.values for metric in one.metrics))
    return next(held, next(iter(known), None))


def _value(launch: Launch, name: str, chip: str) -> float | None:
    """None where a part is absent, or the sum more than it can be."""
    source, counter = _source(launch, name, chip), chips.counted(name)
    total = 0.0
    for metric, factor in source.metrics.items() if source else ():
        part = scaled(launch, metric, counter.unit)
        if part is None:
            return None
        total += factor * part
    return total if source and math.isfinite(total) and total <= counter.most else None


def _unusable(launch: Launch, name: str, chip: str) -> list[str]:
    source = _source(launch, name, chip)
    metrics = list(source.metrics) if source else []
    return [one for one in metrics if scaled(launch, one, chips.counted(name).unit) is None] or metrics


def _launch(launches: Sequence[Launch], number: int) -> str:
    return f"launch {number}, {launches[number - 1].name[:80] or 'without a name'}"


def _group(members: Sequence[tuple[Launch, Mapping[str, float | None]]]) -> KernelCounters:
    first, names = members[0]
    values = {name: combined(name, [(held[name], _seconds(launch)) for launch, held in members]) for name in names}
    assert first.grid is not None and first.block is not None
    return KernelCounters(
        name=first.name[:2000],
        count=len(members),
        seconds=math.fsum(_seconds(launch) for launch, _ in members),
        grid=first.grid,
        block=first.block,
        values={name: value for name, value in values.items() if value is not None},
        rules=_ordered(rule for launch, _ in members for rule in launch.rules),
    )


def _ordered(rules: Iterable[Rule]) -> list[Rule]:
    best: dict[str, Rule] = {}
    for rule in rules:
        known = best.get(rule.name)
        if known is None or (rule.speedup or 0.0) > (known.speedup or 0.0):
            best[rule.name] = rule
    return sorted(best.values(), key=lambda rule: -1.0 if rule.speedup is None else rule.speedup, reverse=True)
