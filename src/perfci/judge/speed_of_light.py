"""Rows of cases whose times cannot be: faster than the device does the declared work."""

from perfci.judge.status import Context, of_case
from perfci.model.base import SIDES, DeviceKind
from perfci.model.fingerprint import Ceilings, Fingerprint
from perfci.model.metrics import DERIVED
from perfci.model.report import Row
from perfci.model.results import Case, CaseSide, Work
from perfci.model.timing import Timing
from perfci.model.units import show
from perfci.stats.series import side_values
from perfci.stats.walsh import hodges_lehmann

TIMED = frozenset({"time", "cycles", "speedup", *DERIVED})
"""Metrics that prove nothing where the time is impossible."""


def impossible(context: Context, case: Case, machine: Fingerprint) -> Row | None:
    """Return the row of a case where a side's time, its Hodges–Lehmann centre, is beyond this machine's speed of light;
    else None."""
    ceilings, gpu = machine.ceilings.get(case.device), machine.gpu
    if ceilings is None:
        return None
    for name in reversed(SIDES):
        side = case.sides.get(name, CaseSide())
        times = side_values(case, name, "time")
        least = least_time(side.work, ceilings, side.timing, case.device, None if gpu is None else gpu.l2_bytes)
        if least is None or not times.size or not (times > 0).all():
            continue
        seconds, words = least
        time = hodges_lehmann(times)
        if time < seconds:
            device = "GPU" if case.device == "cuda" else "CPU"
            reason = (
                f"{name} is faster than this {device} can {words}: {show(time, 's')} where {show(seconds, 's')} is the "
                "least; declared work wrong, or work not done"
            )
            return of_case(case, "time", "s", "invalid", context.effect_if_unanswered(case), reason)
    return None


SLACK: dict[DeviceKind, float] = {"cuda": 1.25, "cpu": 2.0}
"""By how much a ceiling may have been missed."""
ROTATED = 2.0
"""Times the L2 from which input sets of `rotating` let reads count."""


def least_time(
    work: Work,
    ceilings: Ceilings,
    timing: Timing | None,
    device: DeviceKind,
    l2_bytes: float | None = None,
) -> tuple[float, str] | None:
    """Return the least seconds, and the amount that says so; None where nothing can be said.

    Declared reads count where no cache can hold them: under `cold`, or `rotating` whose `rotated_bytes` (of all `sets`
    together) are at least twice `l2_bytes`; then of one set, since what sets share stays in the L2, less the share
    l2/rotated, which a cache can serve of a walk in circles. Writes never count: they may stay in the L2. Operations
    count at the best rate of any type.
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
    if device != "cuda" or timing is None:
        return 0.0
    if timing.mode == "cold":
        return work.read
    rotated, sets = timing.rotated_bytes, timing.sets
    if timing.mode != "rotating" or not rotated or not sets or not l2_bytes or rotated < ROTATED * l2_bytes:
        return 0.0
    return float(min(work.read, rotated / sets) * (1 - l2_bytes / rotated))
