"""Series over the nights of a history: device by device, of every case and metric the ratio to the reference."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

from perfci.history.document import Compared, Night, Seam
from perfci.model.base import DeviceKind
from perfci.model.report import Class

TRUSTED: frozenset[Class] = frozenset({"regression", "violation", "improvement", "unchanged", "inconclusive"})
"""Classes whose ratio is one of the two commits alone: an inconclusive one is told by its wide interval."""
_LEAST_LEVEL, _MOST_LEVEL = 0.5, 1 - 1e-6
_MOST = 12.0
"""Log ratio from which on a ratio is none: a factor of 160 000."""

Key = tuple[str, str]
"""Case and metric."""


@dataclass(frozen=True)
class Head:
    """A night without its points."""

    sha: str
    date: str
    title: str
    run: str
    url: str
    started: str
    epoch: str
    reference: str
    """As people call it; empty where there is none."""
    error: str


@dataclass
class Trace:
    """A metric of a case over the nights of its device; all lists have one entry for each answer."""

    case: str
    metric: str
    unit: str
    nights: list[int] = field(default_factory=list)
    """Index of the night, ascending."""
    x: list[float] = field(default_factory=list)
    """Log ratio to the reference."""
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    """Its interval, as log ratios too."""
    error: list[float] = field(default_factory=list)
    """Its standard error."""
    values: dict[int, float] = field(default_factory=dict)
    """Night → median of main, in `unit`, of every night that has one."""
    silent: dict[int, str] = field(default_factory=dict)
    """Night whose comparison with the reference asked about it, and has no ratio → why."""
    limit: float | None = None
    """The latest relative limit of the distance to the reference."""


@dataclass
class Device:
    """All nights of one device."""

    kind: DeviceKind
    name: str
    heads: list[Head] = field(default_factory=list)
    """In the order of their start."""
    seams: dict[int, Seam] = field(default_factory=dict)
    """Night → how its reference stands to the one before."""
    traces: dict[Key, Trace] = field(default_factory=dict)


def collect(nights: Iterable[Night]) -> list[Device]:
    """Return the series of all devices, in the order of their names. `nights` are in the order of their start."""
    found: dict[tuple[DeviceKind, str], Device] = {}
    for night in nights:
        for kind, name in night.devices.items():
            device = found.setdefault((kind, name), Device(kind, name))
            _add(device, night)
    return [found[key] for key in sorted(found, key=lambda key: (key[1], key[0]))]


def _add(device: Device, night: Night) -> None:
    reference, commit, index = night.reference, night.commit, len(device.heads)
    device.heads.append(
        Head(
            commit.sha, commit.date, commit.title, night.run, night.url, night.started, night.epoch,
            reference.name if reference else "", night.error,
        )
    )  # fmt: skip
    if night.seam is not None:
        device.seams[index] = night.seam
    for point in night.points:
        if point.device != device.kind:
            continue
        trace = device.traces.get((point.case, point.metric))
        if trace is None:
            trace = device.traces[point.case, point.metric] = Trace(point.case, point.metric, point.unit)
        if index in trace.values or index in trace.silent or (trace.nights and trace.nights[-1] == index):
            continue  # the document says it twice: its first word stands
        if point.value is not None:
            trace.values[index] = point.value
        answer = answered(point.reference)
        if isinstance(answer, str):
            if point.reference is not None:
                trace.silent[index] = answer
            continue
        trace.limit = point.reference.limit if point.reference is not None else None
        trace.nights.append(index)
        for values, value in zip((trace.x, trace.low, trace.high, trace.error), answer, strict=True):
            values.append(value)


def answered(compared: Compared | None) -> tuple[float, float, float, float] | str:
    """Return log ratio, its interval and its standard error; as text why there is none.

    The standard error is that of a normal variable whose interval of that coverage is as wide.
    """
    if compared is None:
        return "the reference has no answer"
    if compared.ratio is None:
        return compared.reason or "no ratio was measured"
    if compared.class_ not in TRUSTED:
        return compared.reason or f"its class is {compared.class_}"
    ratio = compared.ratio
    if not ratio.low <= ratio.ratio <= ratio.high:
        return "its interval does not hold the ratio"
    x, low, high = math.log(ratio.ratio), math.log(ratio.low), math.log(ratio.high)
    if max(abs(low), abs(high)) > _MOST:
        return "its interval has no bounds"
    if ratio.pairs == 0:
        return (x, low, high, 0.0) if low == high else "it rests on no pair"
    if ratio.level < _LEAST_LEVEL:
        return "too few pairs for an interval"
    return x, low, high, (high - low) / 2 / _deviate(min(ratio.level, _MOST_LEVEL))


@lru_cache(maxsize=1024)
def _deviate(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
