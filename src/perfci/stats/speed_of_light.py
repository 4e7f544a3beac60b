"""The speed of light: no device does the declared work faster than its measured ceilings allow.

The roofline (Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model") as a bound from
below, against ceilings that were measured on this very device (worker/ceilings.py) and not taken from a data sheet.
"""

from perfci.model.base import DeviceKind
from perfci.model.fingerprint import Ceilings
from perfci.model.results import Work
from perfci.model.timing import Timing
from perfci.model.units import show

SLACK: dict[DeviceKind, float] = {"cuda": 1.25, "cpu": 2.0}
"""How far a ceiling may have been missed when it was measured. A CPU shares clock and caches with its neighbours."""
ROTATED = 2.0
"""Times the L2 that the input sets of a `rotating` case must pass for its reads to count."""


def least_time(
    work: Work,
    ceilings: Ceilings,
    timing: Timing | None,
    device: DeviceKind,
    l2_bytes: float | None = None,
) -> tuple[float, str] | None:
    """Return the least seconds that `work` takes on `device`, and the amount that says so; None where nothing can be
    said.

    `ceilings`: of the device. Declared reads count under a timing mode
    that leaves none of them in a cache: `cold`, or `rotating` whose `rotated_bytes` (of all `sets` together) are at
    least twice `l2_bytes`. Then at most one set's bytes count, since what the sets share stays in the L2, less
    the share l2/rotated: more than its own size no cache can serve of a walk in circles, whatever it evicts. Writes
    never count: they may stay in the L2. Operations count under every timing mode, at the best rate of any type.
    """
    bounds = []
    rate = ceilings.read.usable
    read = _cold_reads(work, timing, device, l2_bytes)
    if rate and read > 0:
        bounds.append((read / rate / SLACK[device], f"move the declared bytes ({show(rate, 'B/s')} at most)"))
    fastest = max((rate for one in ceilings.matmul.values() if (rate := one.usable)), default=0.0)
    if fastest and work.flops > 0:
        words = f"do the declared operations ({show(fastest / 1e12, 'TFLOP/s')} at most)"
        bounds.append((work.flops / fastest / SLACK[device], words))
    return max(bounds, default=None)


def _cold_reads(work: Work, timing: Timing | None, device: DeviceKind, l2_bytes: float | None) -> float:
    """Return the bytes of the declared reads that must come from the device's memory."""
    if device != "cuda" or timing is None:
        return 0.0
    if timing.mode == "cold":
        return work.read
    rotated, sets = timing.rotated_bytes, timing.sets
    if timing.mode != "rotating" or not rotated or not sets or not l2_bytes or rotated < ROTATED * l2_bytes:
        return 0.0
    return float(min(work.read, rotated / sets) * (1 - l2_bytes / rotated))
