"""What a fault does to the values beside it that profilers saw: one that it could have changed answers nothing."""

import math
from collections.abc import Callable

from perfci.model.counters import combined
from perfci.model.evidence import Evidence, Fault, KernelUse, Tool
from perfci.model.metrics import RANGE, resolve

TRACERS: tuple[Tool, ...] = ("nsys", "torch.profiler")
ALL_RANGES = "range:*"
UNPROFILED = frozenset({"peak_memory"})
"""What the checks before timing tell, and no profiler."""


def concerns(fault: Fault, metric: str) -> bool:
    """Whether a fault could have changed its tool's value of `metric`, or is why there is none.

    `metric`: of the catalogue or of a range, or `kernels` for their names.
    """
    if fault.aside:
        return False
    ranged = ALL_RANGES in fault.metrics and RANGE.fullmatch(metric) is not None
    return not fault.metrics or metric in fault.metrics or ranged


def tellers(evidence: Evidence, metric: str) -> list[tuple[Tool, ...]]:
    """The tools whose faults bear on the value of `metric`: of whoever could have told it, where there is no value; of
    each that tells this very one, where there is."""
    if metric in UNPROFILED:
        return []
    trace = (evidence.trace.source,) if evidence.trace else TRACERS
    if metric == "kernels":
        return [trace if evidence.trace or not evidence.counters else ("ncu",)]
    try:
        tier = resolve(metric, {}).tier
    except KeyError:
        return []
    match tier:
        case "trace":
            return [trace]
        case "counters":
            return [("ncu",)]
        case "static" if metric not in evidence.metrics:
            return [(*trace, "ncu")]
        case "static":
            told: list[tuple[Tool, ...]] = [("ncu",)] if _counted(evidence, metric) else []
            return [*told, trace] if not told or _traced(evidence, metric) else told
        case _:
            return []


def doubt(evidence: Evidence, metric: str) -> Fault | None:
    """The first fault that could have changed the value of `metric`, or is why there is none; None where none is."""
    found = [
        next((one for one in evidence.faults if one.tool in tools and concerns(one, metric)), None)
        for tools in tellers(evidence, metric)
    ]
    return None if None in found else next(iter(found), None)


def _counted(evidence: Evidence, metric: str) -> bool:
    """Whether the counters tell the value that there is."""
    if evidence.counters is None:
        return False
    found = combined(metric, [(one.values.get(metric), one.seconds) for one in evidence.counters.kernels])
    return found is not None and math.isclose(found, evidence.metrics[metric], rel_tol=1e-9)


def _shared(use: KernelUse) -> float | None:
    return None if use.static_shared is None or use.dynamic_shared is None else use.static_shared + use.dynamic_shared


_OF_KERNELS: dict[str, Callable[[KernelUse], float | None]] = {
    "registers": lambda use: use.registers, "local_memory": lambda use: use.local, "shared_memory": _shared,
}  # fmt: skip


def _traced(evidence: Evidence, metric: str) -> bool:
    """Whether the trace's kernels tell it too."""
    of = _OF_KERNELS.get(metric)
    if of is None or evidence.trace is None:
        return False
    values = [of(use) for use in evidence.trace.kernels]
    return max((one for one in values if one is not None), default=None) == evidence.metrics[metric]
