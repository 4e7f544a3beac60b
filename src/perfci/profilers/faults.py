"""Faults: readers of profilers' files say with them what is missing."""

from collections.abc import Iterable

from perfci.model.metrics import following
from perfci.model.profile import Fault, FaultKind, Part, Tool
from perfci.model.text import escaped

LONGEST = 1000
"""Characters of a fault's text and of its remedy."""


KERNELS = ("kernels", *following("kernels"))
"""Metrics that follow from the kernels of a trace, and so change where one is missing."""
SETS, COPIES, CALLS = following("sets"), following("copies"), following("calls")
"""The same of memory sets, of copies, and of calls of the CUDA API."""
MOVED = tuple(name for name in COPIES if name.startswith("copy_"))
"""Metrics that follow from the copies alone: what else they take part in needs no bytes."""
COUNTED = following("launches")
"""Metrics that follow from how many kernels there are: not the largest configuration, nor the names."""
NAMED = tuple(name for name in KERNELS if name not in SETS)
"""Metrics that kernels with their names tell."""


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
    """Return a fault of `tool`, its text and remedy in one line each and cut where they are too long.

    `metrics`: the quantities that it could change, where what else the tool told is whole; all for none. `aside`: it
    changes none at all.
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
