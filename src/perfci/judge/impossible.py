"""Rows of cases whose times cannot be: faster than the device does the declared work."""

from perfci.judge.status import Context, about, centre
from perfci.model.base import Side
from perfci.model.fingerprint import Fingerprint
from perfci.model.metrics import DERIVED
from perfci.model.report import Row
from perfci.model.results import Case, CaseSide
from perfci.model.units import show
from perfci.stats.series import side_values
from perfci.stats.speed_of_light import least_time
from perfci.stats.walsh import hodges_lehmann

TIMED = frozenset({"time", "cycles", *DERIVED})
"""Metrics that prove nothing where the time is impossible."""


def too_fast(case: Case, machine: Fingerprint) -> str | None:
    """Say in one line that a side's time is beyond the speed of light of this machine; None where it is not.

    The time of a side is the Hodges–Lehmann centre of its workers.
    """
    ceilings, gpu = machine.ceilings.get(case.device), machine.gpu
    if ceilings is None:
        return None
    names: tuple[Side, Side] = ("head", "base")
    for name in names:
        side = case.sides.get(name, CaseSide())
        times = side_values(case, name, "time")
        found = least_time(side.work, ceilings, side.timing, case.device, None if gpu is None else gpu.l2_bytes)
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


def impossible(context: Context, case: Case, machine: Fingerprint) -> Row | None:
    """Return the row of a case whose time cannot be, else None. Its timed metrics are then not judged."""
    reason = too_fast(case, machine)
    if reason is None:
        return None
    base, head = (centre(side_values(case, side, "time")) for side in ("base", "head"))
    fields = {"class": "invalid", "effect": context.effect("invalid"), "reason": reason, "base": base, "head": head}
    return Row(**about(case), **fields, metric="time", unit="s", kind="presence", pairs=len(case.pairs))
