"""How the profilers' time is shared among their starts."""

import math
import time
from typing import NamedTuple

BEGUN = 0.7
"""Share of the profilers' time in which cases begin: the rest is for reports."""


class Turn(NamedTuple):
    """Times of one start of a tool, monotonic clock."""

    begin: float = math.inf
    end: float = math.inf

    @property
    def over(self) -> bool:
        """No further case begins."""
        return time.monotonic() >= self.begin

    def patience(self, seconds: float) -> float:
        """Return how long to wait for `seconds`: until the end, at least a second."""
        return max(1.0, min(seconds, self.end - time.monotonic()))


UNBOUNDED = Turn()


class Turns:
    """The profilers' time, shared evenly among remaining starts, so that head is seen as base is."""

    def __init__(self, seconds: float, starts: int) -> None:
        now = time.monotonic()
        self.begin, self.end, self.starts = now + BEGUN * seconds, now + seconds, starts

    def skip(self, starts: int) -> None:
        """Leave the time of these to the others."""
        self.starts -= starts

    @property
    def share(self) -> float:
        """Seconds for the next start to begin cases."""
        return (self.begin - time.monotonic()) / max(1, self.starts)

    def next(self) -> Turn:
        """Return the times of the next start."""
        turn = Turn(time.monotonic() + self.share, self.end)
        self.starts -= 1
        return turn
