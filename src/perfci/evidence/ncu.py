"""Reads what ncu counted: a report (`.ncu-rep`) through NVIDIA's `ncu_report`, or the raw page as CSV.

Both ways give the same values, save that the CSV is printed to two decimals and knows no rules. A value that is absent,
no finite number or below zero is a fault, never a number. What neither source tells: how often a range was pushed, and
kernels that were never written; the latter show where `most` is reached and by comparison with a trace.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfci.evidence import chips, ncu_file
from perfci.evidence.ncu_launch import EMPTY_REMEDY, PASSES, Launch, fault, scaled
from perfci.model.counters import combined
from perfci.model.evidence import Counters, Fault, KernelCounters, Rule

DOMAINS = ("perfci", "<default domain>")
"""NVTX domains that may hold the ranges of cases: the `nvtx` package uses the first, torch the second."""
RATES = ("l1_hit_rate", "l2_hit_rate")
"""Hits and look-ups are counted in different passes: of a kernel with few of them ncu tells 246 %, seen on an H200."""
TIMEOUT = 120.0
"""Seconds to read one report."""


@dataclass(frozen=True)
class Reading:
    """What a file says, by NVTX range."""

    counters: dict[str, Counters] = field(default_factory=dict)
    """Range → what was counted in it. No range without a measured kernel."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """Range → what is missing of it."""
    general: list[Fault] = field(default_factory=list)
    """What holds for the whole file."""
    source: str = ""
    """`ncu_report` with its version, or `csv`."""
    version: str = ""
    """Of the ncu that wrote the report; empty where the source does not tell."""


def read(
    path: Path,
    *,
    ranges: Collection[str] | None = None,
    whole: bool = False,
    names: str | Iterable[str] | None = None,
    most: int | None = None,
    ncu: Path | None = None,
    root: Path = Path("/"),
    timeout: float = TIMEOUT,
    user: Sequence[str] = (),
) -> Reading:
    """What the report or raw CSV at `path` says of each range. Never raises for what a file holds or lacks.

    `ranges`: names of the cases' ranges; a launch belongs to the first of them that is open around it, and one of them
    without a launch is a fault. None: to the outermost range in DOMAINS. `whole`: every launch belongs to "", whatever
    ranges are open.
    `names`: quantities of `chips.QUANTITIES` or the name of a set that every launch must have; None takes what the
    file has. `most`: ncu's `--launch-count`: where that many launches are found, more may be missing.
    `ncu`: reads the report where no `ncu_report` does; `root`: where to look for a copy of that module beside ncu.
    `timeout`: seconds for a native reader. `user`: what starts it as whoever the report is of, where that is not this
    process's user; the file is one that this user may read.

    Raises ValueError for a name that is no quantity.
    """
    wanted = None if names is None else chips.expand(names)
    content = ncu_file.content(path, ncu, root, timeout, user)
    reading = Reading(source=content.source, version=content.version, general=list(content.faults))
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
        counters, faults = _count(launches, wanted, content.version)
        if counters.kernels:
            reading.counters[name] = counters
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


def _count(launches: Sequence[Launch], wanted: tuple[str, ...] | None, version: str) -> tuple[Counters, list[Fault]]:
    """Launches of one range, grouped by name and launch configuration, and what they lack."""
    capability = next((one.capability for one in launches if one.capability), None)
    chip = (capability and chips.chip_of(*capability)) or ""
    names = wanted if wanted is not None else _told(launches, chip)
    lacking: dict[str, list[str]] = {}
    for name, why in (chips.unavailable(names, chip) if chip else {}).items():
        lacking.setdefault(why, []).append(name)
    faults = [
        fault("incompatible", f"{', '.join(lacked)}: {why}", "ask for it on another chip only", lacked)
        for why, lacked in lacking.items()
    ]
    names = tuple(name for name in names if chips.source(name, chip) is not None or not chip)
    groups: dict[tuple[object, ...], list[tuple[Launch, float, dict[str, float]]]] = {}
    untimed, unknown = 0, 0
    missing: dict[str, int] = {}
    for launch in launches:
        seconds = scaled(launch, chips.TIME, "s")
        if seconds is None or seconds <= 0:
            untimed += 1
            continue
        if not launch.name or launch.grid is None or launch.block is None:
            unknown += 1
            continue
        values = {name: value for name in names if (value := _value(launch, name, chip)) is not None}
        for name in names:
            if name not in values:
                missing[name] = missing.get(name, 0) + 1
        configuration = tuple(values.get(name) for name in ("registers", "shared_memory"))
        key = (launch.name, launch.grid, launch.block, configuration)
        groups.setdefault(key, []).append((launch, seconds, values))
    for number, what in ((untimed, "time"), (unknown, "name or launch configuration")):
        if number:
            text = f"{number} of {len(launches)} launches have no {what}: ncu did not measure them"
            faults.append(fault("incomplete", text, "see ncu's log for what failed"))
    if missing:
        text = ", ".join(f"{name} ({number})" for name, number in sorted(missing.items()))
        faults.append(
            fault(
                "incomplete",
                f"no usable value for some of {len(launches)} launches: {text}",
                "ask ncu for these metrics; a kernel that failed under ncu has none, a very small one no rates",
                sorted(missing),
            )
        )
    kernels = [_group(members, names) for members in groups.values()]
    kernels.sort(key=lambda kernel: (-kernel.seconds, kernel.name, kernel.grid, kernel.block))
    passes = [value for one in launches if (value := one.values.get(PASSES, (None, ""))[0]) is not None]
    most = max((value for value in passes if math.isfinite(value) and 0 < value < 2**31), default=None)
    return (
        Counters(version=version, chip=chip, passes=None if most is None else round(most), kernels=kernels),
        faults,
    )


def _told(launches: Sequence[Launch], chip: str) -> tuple[str, ...]:
    """Quantities that the file has for at least one launch: where others lack them, that is told."""
    return tuple(
        name
        for name in chips.QUANTITIES
        if any(all(m in one.values for m in source.metrics) for source in _sources(name, chip) for one in launches)
    )


def _sources(name: str, chip: str) -> tuple[chips.Source, ...]:
    """The source on this chip; where the chip is not known, each, since a report names its metrics itself."""
    if chip:
        one = chips.source(name, chip)
        return () if one is None else (one,)
    return chips.QUANTITIES[name].sources


def _value(launch: Launch, name: str, chip: str) -> float | None:
    """A quantity of one launch in perfci's unit; None where a part of it is absent or no finite number, or a rate is
    over 100 %."""
    for source in _sources(name, chip):
        parts = [
            None if (part := scaled(launch, metric, chips.QUANTITIES[name].unit)) is None else factor * part
            for metric, factor in source.metrics.items()
        ]
        if None not in parts:
            total = math.fsum(part for part in parts if part is not None)
            return total if math.isfinite(total) and not (name in RATES and total > 100) else None
    return None


def _group(members: Sequence[tuple[Launch, float, dict[str, float]]], names: Iterable[str]) -> KernelCounters:
    """Launches of one kernel and configuration. A quantity that one of them lacks, the group lacks."""
    first = members[0][0]
    values = {name: combined(name, [(told.get(name), seconds) for _, seconds, told in members]) for name in names}
    assert first.grid is not None and first.block is not None
    return KernelCounters(
        name=first.name[:2000],
        count=len(members),
        seconds=math.fsum(seconds for _, seconds, _ in members),
        grid=first.grid,
        block=first.block,
        values={name: value for name, value in values.items() if value is not None},
        rules=_ordered(rule for launch, _, _ in members for rule in launch.rules),
    )


def _ordered(rules: Iterable[Rule]) -> list[Rule]:
    """Each finding once, with the largest estimate of any launch, largest first; those without one in ncu's order."""
    best: dict[str, Rule] = {}
    for rule in rules:
        known = best.get(rule.name)
        if known is None or (rule.speedup or 0.0) > (known.speedup or 0.0):
            best[rule.name] = rule
    return sorted(best.values(), key=lambda rule: -1.0 if rule.speedup is None else rule.speedup, reverse=True)
