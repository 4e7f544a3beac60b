"""Faults of profilers' files, and the metrics that each changes."""

from collections.abc import Iterable

from perfci.model.metrics import following
from perfci.model.profile import Fault, FaultKind, Part, Tool
from perfci.model.text import escaped

LONGEST = 1000
"""Characters of a text or a remedy."""


KERNELS = ("kernels", *following("kernels"))
"""Metrics that a missing kernel changes."""
SETS, COPIES, CALLS = following("sets"), following("copies"), following("calls")
MOVED = tuple(name for name in COPIES if name.startswith("copy_"))
COUNTED = following("launches")
"""Metrics that the number of kernels alone changes."""
NAMED = tuple(name for name in KERNELS if name not in SETS)


def fault(
    tool: Tool,
    part: Part,
    kind: FaultKind,
    text: str,
    remedy: str = "",
    metrics: Iterable[str] = (),
    *,
    aside: bool = False,
) -> Fault:
    """Return a fault, its text and remedy each in one line.

    `metrics`: those that it could change; empty for all. `aside`: it changes none.
    """
    return Fault(
        tool=tool,
        part=part,
        kind=kind,
        text=escaped(text)[:LONGEST],
        remedy=escaped(remedy)[:LONGEST],
        metrics=list(dict.fromkeys(metrics)),
        aside=aside,
    )
