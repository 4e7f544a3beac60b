"""Hints: words of a case, and what a suite mostly has there.

A hint rests on words that torch, or the check of a result, really said.
"""

from typing import NamedTuple

from perfci.model.text import one_line, shorten

LONGEST = 400


class Hint(NamedTuple):
    """Words of a reason, and what to do then."""

    seen: str
    advice: str
    heading: str
    """Of docs/suite.md."""

    @property
    def text(self) -> str:
        """The advice, and where more is said."""
        return f"{self.advice} (docs/suite.md#{self.heading})"


_BACKWARD, _IN_PLACE = "a-backward-pass", "a-kernel-that-works-in-place"
HINTS = (
    # A capture into a CUDA graph, as torch refuses it.
    Hint(
        "nothing on the current stream",
        "launch on torch's current stream, which is not the default stream then",
        "launches-on-the-default-stream",
    ),
    Hint(
        "not permitted when stream is capturing",
        "something in it may synchronise, as .item() does",
        "item-within-a-case",
    ),
    # What torch raises.
    Hint(
        "Trying to backward through the graph a second time",
        "the graph of a forward pass that the set-up has made is kept by retain_graph=True",
        _BACKWARD,
    ),
    Hint(
        "does not require grad",
        "inputs of a gradient are drawn as bench.randn(…).requires_grad_(), before the forward pass",
        _BACKWARD,
    ),
    # What `worker/checks/state.py` has found.
    Hint(
        "adds to the .grad of what the case has drawn",
        "ask for gradients with torch.autograd.grad, which adds to none",
        _BACKWARD,
    ),
    Hint(
        "overwrites what the case has drawn",
        "a kernel that works in place needs a reference that reads the same memory when it is called",
        _IN_PLACE,
    ),
    Hint(
        "holds infinities or NaN by now",
        "the state of a kernel that works in place has to stay bounded however often it runs",
        _IN_PLACE,
    ),
)
IMPORTS = Hint(
    "in each worker",
    "logs/imports.log says why it is not imported once a run",
    "imports-that-take-long",
)


def hinted(reason: str) -> str:
    """Return a reason in at most LONGEST characters, with the first hint for it."""
    found = next((hint.text for hint in HINTS if hint.seen in reason), None)
    line = one_line(reason, LONGEST if found is None else len(reason))
    return line if found is None else f"{shorten(line, LONGEST - len(found) - 2, middle=True)}: {found}"
