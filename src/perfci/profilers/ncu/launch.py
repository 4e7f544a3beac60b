"""A kernel launch as ncu tells it, and ncu's numbers in perfci's units."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from perfci.model.profile import Fault, Rule
from perfci.profilers.faults import fault as any_fault
from perfci.profilers.ncu import chips

MOST_READ = 20_000
"""Of one file."""
EMPTY_REMEDY = "see what ncu prints; a case without kernels has no counters"

CAPABILITY = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")
DEVICE_NAME = "device__attribute_display_name"
"""Such as `NVIDIA H200`."""
PASSES = "profiler__replayer_passes"
GRID = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
BLOCK = tuple(f"launch__block_dim_{axis}" for axis in "xyz")
METRICS = tuple(
    dict.fromkeys(
        [
            chips.TIME,
            *(
                metric
                for one in chips.COUNTED.values()
                for source in one.ncu + one.ncu_also
                for metric in source.metrics
            ),
            *CAPABILITY,
            PASSES,
            *GRID,
            *BLOCK,
        ]
    )
)
"""All read, beside those asked for by ncu's names."""

Values = Mapping[str, tuple[float | None, str]]
"""Metric → value and unit; None for what is no number."""

fault = partial(any_fault, "ncu", "counters")


@dataclass(frozen=True)
class Launch:
    """A launch as a source tells it."""

    name: str
    nvtx: tuple[tuple[str, str], ...]
    """(domain, range), outermost first."""
    values: Values
    capability: tuple[int, int] | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    rules: tuple[Rule, ...] = ()
    device: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Metric → text in its number's place."""

    def said(self, metric: str) -> str:
        """Return the source's text for a metric."""
        if metric not in self.values:
            return "absent"
        value, unit = self.values[metric]
        told = self.unread.get(metric, "no number") if value is None else str(value)
        return f"{told[:40]} {unit}".strip()


@dataclass(frozen=True)
class Content:
    """Launches in order, and what the source lacks."""

    launches: Sequence[Launch] = ()
    faults: Sequence[Fault] = ()
    version: str = ""


_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
"""ncu scales by thousands, for bytes as well."""
_SECONDS = {
    "s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "ns": 1e-9, "nsecond": 1e-9,
}  # fmt: skip
_BYTES = {
    f"{prefix}byte{each}": factor
    for prefix, factor in _PREFIXES.items()
    for each in ("", "/block", "/thread")
}  # fmt: skip
_RATES = {f"{prefix}byte/{per}": factor for prefix, factor in _PREFIXES.items() for per in ("s", "second")}
_UNITS = {"s": _SECONDS, "B": _BYTES, "B/s": _RATES, "%": {"%": 1.0}}
"""Unit of perfci → ncu's, in CSV and `ncu_report` → factor."""
_COUNT = re.compile(r"(?P<prefix>[KMGTP]?)(?P<what>%|SM|CTA|Hz|[a-z]+)(?:/(?P<per>[a-z]+))?")
"""A counted unit, such as `Kinst`, `sector/request`, `%/register`, `cycle/nsecond`."""
_PHYSICAL = frozenset({"byte", "hz", "%", *_SECONDS})


@lru_cache(maxsize=1024)
def factor(unit: str, told: str) -> float | None:
    """Return the factor from ncu's unit `told` to perfci's `unit`, or None. Counts and ratios (no unit) take any word
    that is no physical quantity."""
    if unit in _UNITS:
        return _UNITS[unit].get(told)
    match = _COUNT.fullmatch(told)
    if match is None:
        return 1.0 if not unit and not told else None
    scale, what, per = _PREFIXES[match["prefix"]], match["what"].lower(), match["per"]
    if unit in ("/s", "Hz"):
        if what == "hz" and per is None:
            return scale
        fits = per in _SECONDS and what not in _PHYSICAL and (unit == "/s" or what == "cycle")
        return scale / _SECONDS[per] if fits and per is not None else None
    if per is None:
        return None if what in _PHYSICAL else scale
    return None if per in _SECONDS else scale


def scaled(launch: Launch, metric: str, unit: str) -> float | None:
    """Return a metric in perfci's unit; None where it is absent, not finite, negative, or of another unit."""
    value, told = launch.values.get(metric, (None, ""))
    by = factor(unit, told)
    if value is None or by is None:
        return None
    value *= by
    return value if math.isfinite(value) and value >= 0 else None


def triple_of(values: Values, names: Iterable[str]) -> tuple[int, int, int] | None:
    """Return the sides of a grid or block."""
    numbers = [values.get(name, (None, ""))[0] for name in names]
    whole = [int(n) for n in numbers if n is not None and math.isfinite(n) and 0 < n < 2**32 and n == int(n)]
    return (whole[0], whole[1], whole[2]) if len(whole) == 3 else None


def capability_of(values: Values) -> tuple[int, int] | None:
    """Return (major, minor)."""
    numbers = [values.get(name, (None, ""))[0] for name in CAPABILITY]
    whole = [int(n) for n in numbers if n is not None and math.isfinite(n) and 0 <= n < 1000]
    return (whole[0], whole[1]) if len(whole) == 2 else None
