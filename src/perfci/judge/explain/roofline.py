"""The declared work against this very device's measured ceilings.

Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model". The ceilings are those that the
worker measures, not a data sheet's.
"""

import math
from typing import Literal, NamedTuple

from perfci.judge.explain.seen import UP, copied
from perfci.model.base import SIDES, Side
from perfci.model.fingerprint import Ceilings, Rate
from perfci.model.profile import CopyKind, Counters, Trace
from perfci.model.report import Roof, RoofPoint
from perfci.model.results import Case, Work
from perfci.model.units import percent, show, significant
from perfci.stats.least_time import compute_rate, memory_time_of
from perfci.stats.series import side_values

TENSOR = 5.0
"""Percent of cycles with tensor pipes active from which float32 operands are taken for TF32."""
CLOSE = 1.05
"""Times a ceiling: no nearer than the clocks of both measurements differ by."""
TRAFFIC = 1.10
"""Measured over declared bytes that is told: an L2 keeps or refetches up to that."""

Bound = Literal["memory", "compute"]


class Roofline(NamedTuple):
    """The place of a case under the roofline."""

    point: RoofPoint
    """Above 1 where caches served bytes, the declared work is too large, or the type is another."""
    memory: float | None
    """Ceiling in bytes per second, for the declared mix of reads and writes."""
    compute: float | None
    """Ceiling in floating-point operations per second."""
    dtype: str
    """Of the compute ceiling."""
    traffic: float | None
    """Measured over declared bytes."""
    assumptions: list[str]

    @property
    def sentence(self) -> str:
        """`memory-bound (0.25 of 194 FLOP/B): 82.0 % of the measured 4.10 TB/s, up to 1.2× faster; …`."""
        point, where, ridge = self.point, "", _over(self.compute or 0.0, self.memory or 0.0)
        if point.intensity is not None and ridge is not None:
            where = f" ({significant(point.intensity)} FLOP/B, ridge at {significant(ridge)})"
        by_memory = point.bound == "memory"
        compute = f"{show((self.compute or 0.0) / 1e12, 'TFLOP/s')} of {self.dtype}"
        ceiling = show(self.memory, "B/s") if by_memory else compute
        text = f"{point.bound}-bound{where}: {percent(point.share)} of the measured {ceiling}"
        if point.share > CLOSE:
            text += ", more than the ceiling: "
            text += "served by caches, or declared too large" if by_memory else "declared work or type are off"
        elif point.share <= 1 / CLOSE:
            text += f", up to {significant(1 / point.share, 2)}× faster"
        if point.intensity is not None and (self.memory is None or self.compute is None):
            text += f"; no {'memory' if self.memory is None else 'compute'} ceiling was measured"
        if self.traffic is not None and self.traffic >= TRAFFIC:
            text += f"; moves {significant(self.traffic, 2)}× the declared bytes"
        return text


def roofline(
    work: Work, seconds: float, ceilings: Ceilings, counters: Counters | None = None, dtype: str | None = None
) -> Roofline | None:
    """Return the roofline of `work` done in `seconds`; None where it cannot be drawn.

    `counters`: of one execution. `dtype`: of the operands, as far as known (`bf16`, `torch.bfloat16`, …). The memory
    ceiling follows the declared mix: each written byte goes with a read one at the rate of the copy, reads beyond that
    at the rate of reads, writes beyond at that of the copy. The compute ceiling is that of `dtype`, else the largest of
    any type, which makes headroom an upper bound.
    """
    moved = work.read + work.written
    if not all(math.isfinite(one) and one >= 0 for one in (work.flops, work.read, work.written, moved)):
        return None
    if not (math.isfinite(seconds) and seconds > 0):
        return None
    assumptions: list[str] = []
    memory_time = memory_time_of(work, ceilings, assumptions)
    kernels = counters.kernels if counters is not None else []
    active = any(one.values.get("tensor_active", 0.0) >= TENSOR for one in kernels)
    by = f"{counters.source} saw them active" if counters is not None and active else ""
    found = compute_rate(ceilings, dtype, by, assumptions) if work.flops > 0 else None
    compute_time = work.flops / found[0] if found else None
    times: list[tuple[float, Bound]] = []
    if memory_time:
        times.append((memory_time, "memory"))
    if compute_time:
        times.append((compute_time, "compute"))
    if not times:
        return None
    attainable, bound = max(times)
    share = attainable / seconds
    if not 0 < share * 100 < math.inf:  # it is told in percent
        return None
    memory = moved / memory_time if memory_time else None
    compute, kind = found if found else (None, "")
    counted = _counted(counters)
    point = RoofPoint(
        rate=_over(work.flops, seconds),
        bandwidth=_over(moved, seconds),
        intensity=_over(work.flops, moved),
        measured_intensity=_over(work.flops, counted),
        share=share,
        bound=bound,
    )
    return Roofline(point, memory, compute, kind, _over(counted, moved), assumptions)


def links(trace: Trace, ceilings: Ceilings | None) -> list[str]:
    """Say what share of the measured link copies reach, to the device first."""
    if ceilings is None:
        return []
    found = []
    measured: dict[CopyKind, Rate | None] = {"host to device": ceilings.to_device, "device to host": ceilings.to_host}
    for kind, link in measured.items():
        copies, ceiling = copied(trace, kind), link and link.usable
        if copies and copies.rate and ceiling and (share := _over(copies.rate, ceiling)):
            of = f"{percent(share)} of the measured link ({show(ceiling, 'B/s')})"
            found.append(f"{UP[kind]} reaches {show(copies.rate, 'B/s')}, {of}")
    return found


def roof(case: Case, ceilings: Ceilings | None) -> Roof | None:
    """Return base and head under one roofline, head's if any."""
    found = {name: one for name in SIDES if (one := of_side(case, name, ceilings)) is not None}
    if not found:
        return None
    told = found.get("head") or found["base"]
    return Roof(
        memory=told.memory,
        compute=told.compute,
        dtype=told.dtype,
        sides={name: one.point for name, one in found.items()},
        assumptions=told.assumptions,
    )


def of_side(case: Case, name: Side, ceilings: Ceilings | None) -> Roofline | None:
    """Return the roofline of one side by the median of its times."""
    times = side_values(case, name, "time")
    if not times.size or ceilings is None:
        return None
    side = case.sides[name]
    profile = side.profile
    # A command's counters are of more than its declared work.
    counters = profile.counters if profile and not profile.reports else None
    return roofline(side.work, float(sorted(times)[len(times) // 2]), ceilings, counters, side.dtype)


def _over(part: float, whole: float) -> float | None:
    if not (part > 0 and whole > 0):
        return None
    ratio = part / whole
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def _counted(counters: Counters | None) -> float:
    """Bytes; 0 where any kernel lacks them."""
    known = [one.values.get("dram_bytes") for one in counters.kernels] if counters else []
    total = sum(one for one in known if one is not None)
    return total if known and None not in known and math.isfinite(total) else 0.0
