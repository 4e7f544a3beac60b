"""Rows of cases whose times cannot be: faster than the device does the declared work."""

from collections.abc import Mapping
from typing import Any

from perfci.judge.status import Context, about, centre
from perfci.model.base import Side
from perfci.model.metrics import DERIVED
from perfci.model.report import Row
from perfci.model.results import Case, CaseSide
from perfci.model.units import show
from perfci.stats.series import side_values
from perfci.stats.speed_of_light import least_time
from perfci.stats.walsh import hodges_lehmann

TIMED = frozenset({"time", "cycles", *DERIVED})
"""Metrics that are no evidence where the time is none."""


def too_fast(case: Case, extra: Mapping[str, Any]) -> str | None:
    """One line where a side's time is beyond the speed of light, else None.

    `extra`: of the fingerprint: `ceilings`, a mapping from device kind to what was measured of it, and `l2_bytes`.
    The time of a side is the Hodges–Lehmann centre of its workers.
    """
    ceilings = (extra.get("ceilings") or {}).get(case.device)
    if not ceilings:
        return None
    names: tuple[Side, Side] = ("head", "base")
    for name in names:
        side = case.sides.get(name, CaseSide())
        times = side_values(case, name, "time")
        found = least_time(side.work, ceilings, side.timing, case.device, extra.get("l2_bytes"))
        if found is None or not times.size or not (times > 0).all():
            continue
        seconds, words = found
        time = hodges_lehmann(times)
        if time < seconds:
            device = "GPU" if case.device == "cuda" else "CPU"
            return (
                f"{name} is faster than this {device} can {words}: {show(time, 's')} where {show(seconds, 's')} is the "
                "least; declared work wrong, or work not done"
            )
    return None


def impossible(context: Context, case: Case, extra: Mapping[str, Any]) -> Row | None:
    """The row of a case whose time cannot be, else None. Its timed metrics are then not judged."""
    reason = too_fast(case, extra)
    if reason is None:
        return None
    base, head = (centre(side_values(case, side, "time")) for side in ("base", "head"))
    fields = {"class": "invalid", "effect": context.effect("invalid"), "reason": reason, "base": base, "head": head}
    return Row(**about(case), **fields, metric="time", unit="s", kind="presence", pairs=len(case.pairs))
