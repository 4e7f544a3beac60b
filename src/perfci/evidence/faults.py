"""How readers of profilers' files say what is missing."""

from perfci.model.evidence import Fault, FaultKind, Tool
from perfci.system.files import one_line

LONGEST = 1000
"""Characters of a fault's text and of its remedy."""


def fault(tool: Tool, kind: FaultKind, text: str, remedy: str = "") -> Fault:
    """A fault of `tool`, its text and remedy in one line each and cut where they are too long."""
    return Fault(tool=tool, kind=kind, text=one_line(text)[:LONGEST], remedy=one_line(remedy)[:LONGEST])
