"""How readers of profilers' files say what is missing."""

from collections.abc import Iterable

from perfci.model.evidence import Fault, FaultKind, Tool
from perfci.system.files import one_line

LONGEST = 1000
"""Characters of a fault's text and of its remedy."""


def fault(tool: Tool, kind: FaultKind, text: str, remedy: str = "", metrics: Iterable[str] = ()) -> Fault:
    """A fault of `tool`, its text and remedy in one line each and cut where they are too long.

    `metrics`: the quantities that it is about, where what else the tool told is whole.
    """
    remedy = one_line(remedy)[:LONGEST]
    return Fault(tool=tool, kind=kind, text=one_line(text)[:LONGEST], remedy=remedy, metrics=list(metrics))
