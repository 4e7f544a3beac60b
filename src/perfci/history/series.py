"""Series over nights: device by device, of every case and metric."""

import gc
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from perfci.history.document import TELLS_OF_LIMIT, Commit, Compared, Instant, Night, Point, Reference
from perfci.history.stores.base import Store
from perfci.model.base import DeviceKind, MachineError, matches
from perfci.model.report import Class
from perfci.model.text import count

_TRUSTED: frozenset[Class] = TELLS_OF_LIMIT | {"inconclusive"}
"""Classes whose ratio is of the two commits alone; an inconclusive one has a wide interval."""
_LEAST_LEVEL, _MOST_LEVEL = 0.5, 1 - 1e-6
_MOST = 12.0
"""Log ratio, a factor of 160 000: beyond it a ratio is none."""

Key = tuple[str, str]
"""Case and metric."""


@dataclass(frozen=True)
class Head:
    """A night without its points."""

    commit: Commit
    last: Commit | None
    reference: Reference | None
    run: str
    attempt: int
    url: str
    started: Instant
    epoch: str
    error: str
    empty: bool
    """It has no point, of any device."""

    @property
    def reference_name(self) -> str:
        """As people call it."""
        return self.reference.name if self.reference else ""


class Interval(NamedTuple):
    """A ratio with its interval, as `Ratio`."""

    ratio: float
    low: float
    high: float
    level: float
    pairs: int


class NightAnswer(NamedTuple):
    """A `Compared` in less memory."""

    class_: Class
    reason: str
    ratio: Interval | None
    limit: float | None


class Entry(NamedTuple):
    """A metric of a case on one night, as `Point`."""

    value: float | None
    scatter: float | None
    last: NightAnswer | None
    reference: NightAnswer | None


@dataclass
class Curve:
    """A metric of a case over the nights of its device."""

    case: str
    metric: str
    unit: str = ""
    """Of the last night."""
    timing: str = ""
    entries: dict[int, Entry] = field(default_factory=dict)
    """Night → what it says; nights ascend."""
    nights: list[int] = field(default_factory=list)
    """With a ratio to the reference; the next four lists have an entry for each."""
    x: list[float] = field(default_factory=list)
    """Log ratio to the reference."""
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    """Its interval, as log ratios too."""
    error: list[float] = field(default_factory=list)
    silent: dict[int, str] = field(default_factory=dict)
    """Night that asked for a ratio to the reference and has none → why."""
    limit: float | None = None
    """Latest relative limit of the distance to the reference."""

    @property
    def values(self) -> dict[int, float]:
        """Return night → median of main, in `unit`."""
        return {night: entry.value for night, entry in self.entries.items() if entry.value is not None}


@dataclass
class Device:
    """All nights of one device."""

    kind: DeviceKind
    name: str
    heads: list[Head] = field(default_factory=list)
    """In the order of their start."""
    curves: dict[Key, Curve] = field(default_factory=dict)


class Series(NamedTuple):
    """A metric of a case on one device, with its last nights."""

    device: Device
    curve: Curve
    nights: list[tuple[Head, Entry]]
    """Oldest first."""


def read(store: Store) -> list[Device]:
    """Return the series of a store; `store.faults` names what is left out.

    Raises MachineError where it cannot be reached, or has no night.
    """
    with _uncollected():
        devices = collect(store.runs())  # a repeated run is no further night
    if not devices:
        why = "it is empty"
        if faults := store.faults:
            why = f"{count(len(faults), 'document')} left out, such as {faults[0].name}, which {faults[0].reason}"
        raise MachineError(
            f"{store.text}: has no night ({why}): see how the store is called; "
            "`perfci history record OUT --store STORE` adds one"
        )
    return devices


@contextmanager
def _uncollected() -> Iterator[None]:
    """Documents have no cycles, and looking for garbage takes as long as reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect(nights: Iterable[Night]) -> list[Device]:
    """Return devices by name; `nights` in the order of their start."""
    devices: dict[tuple[str, DeviceKind], Device] = {}
    for night in nights:
        head = Head(
            night.commit, night.last, night.reference, night.run, night.attempt, night.url, night.started, night.epoch,
            night.error, not night.points,
        )  # fmt: skip
        for kind, name in night.devices.items():
            device = devices.setdefault((name, kind), Device(kind, name))
            for point in night.points:
                if point.device == kind:
                    _add(device, len(device.heads), point)
            device.heads.append(head)
    return [devices[key] for key in sorted(devices)]


def _add(device: Device, night: int, point: Point) -> None:
    key = point.case, point.metric
    if key not in device.curves:
        device.curves[key] = Curve(*key)
    curve = device.curves[key]
    curve.unit, curve.timing = point.unit, point.timing
    entry = Entry(point.value, point.scatter, _answer(point.last), _answer(point.reference))
    curve.entries[night] = entry
    if entry.reference is None:
        return
    measured = ratio_or_why(entry.reference)
    if isinstance(measured, str):
        curve.silent[night] = measured
        return
    curve.limit = entry.reference.limit
    curve.nights.append(night)
    for values, value in zip((curve.x, curve.low, curve.high, curve.error), measured, strict=True):
        values.append(value)


def _answer(compared: Compared | None) -> NightAnswer | None:
    if compared is None:
        return None
    ratio = compared.ratio
    interval = Interval(ratio.ratio, ratio.low, ratio.high, ratio.level, ratio.pairs) if ratio is not None else None
    return NightAnswer(compared.class_, sys.intern(compared.reason), interval, compared.limit)


def choose(devices: Iterable[Device], pattern: str, metric: str, kind_or_name: str | None, limit: int) -> list[Series]:
    """Return the series of a metric of cases that match the glob `pattern`.

    `kind_or_name`: of the device, a glob on names. `limit`: last nights of each.
    """
    chosen = [
        Series(device, curve, [(device.heads[night], entry) for night, entry in [*curve.entries.items()][-limit:]])
        for device in devices
        if kind_or_name is None or kind_or_name == device.kind or matches(kind_or_name, device.name)
        for curve in device.curves.values()
        if curve.metric == metric and matches(pattern, curve.case)
    ]
    return sorted(chosen, key=lambda series: (series.curve.case, series.device.kind, series.device.name))


def read_ratio(compared: Compared | NightAnswer | None) -> tuple[float, float, float] | str:
    """Return the log ratio and its interval; as text why there is none."""
    if compared is None:
        return "the reference has no answer"
    if compared.ratio is None:
        return compared.reason or "no ratio was measured"
    if compared.class_ not in _TRUSTED:
        return compared.reason or f"its class is {compared.class_}"
    ratio = compared.ratio
    if not ratio.low <= ratio.ratio <= ratio.high:
        return "its interval does not hold the ratio"
    return math.log(ratio.ratio), math.log(ratio.low), math.log(ratio.high)


def ratio_or_why(compared: Compared | NightAnswer | None) -> tuple[float, float, float, float] | str:
    """Return log ratio, interval and standard error, as of a normal variable; as text why there is none."""
    distance = read_ratio(compared)
    if isinstance(distance, str):
        return distance
    assert compared is not None and compared.ratio is not None
    ratio, (x, low, high) = compared.ratio, distance
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
