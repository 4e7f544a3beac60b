"""The account of a run: each second of it belongs to one phase, and those after the builds to the budget."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perfci.model.results import Phase

PROFILED = 0.2
"""Share of the budget that profilers may take, and by which a run may pass its end."""


class Budget:
    """The seconds that a run may take once base and head are built: checks, pairs, profilers."""

    def __init__(self, seconds: float, began: float) -> None:
        """`began`: of the monotonic clock."""
        self.seconds, self.end = seconds, began + seconds

    @property
    def left(self) -> float:
        """Seconds until its end; 0 behind it."""
        return max(0.0, self.end - time.monotonic())

    @property
    def spent(self) -> float:
        """Seconds since its begin."""
        return self.seconds - self.end + time.monotonic()

    def outside(self, wait: Callable[[], None]) -> None:
        """Do `wait`, which does not count: whoever waits for others keeps what it has."""
        begun = time.monotonic()
        wait()
        self.end += time.monotonic() - begun

    def profiling(self, needed: bool) -> float:
        """Return how many seconds profilers may take from here on: a fifth of the budget; where what they tell is
        `needed`, and no mere explanation, all that is left of it if that is more."""
        return max(PROFILED * self.seconds, self.left if needed else 0.0)

    def patience(self, seconds: float) -> float:
        """Return how long to wait for a step that may take `seconds`: a fifth of the budget behind its end at most."""
        return min(seconds, self.left + PROFILED * self.seconds)


class Costs:
    """Wall seconds by phase, from here on. A second belongs to the innermost phase that is open then."""

    def __init__(self) -> None:
        self.started = self._since = time.monotonic()
        self._seconds: dict[Phase, float] = {}
        self._open: list[Phase] = ["other"]
        self._whole = False

    @contextmanager
    def phase(self, name: Phase, *, whole: bool = False) -> Iterator[None]:
        """Count what happens meanwhile as `name`; `whole`: phases within it, too."""
        if self._whole:
            yield
            return
        self._settle()
        self._open.append(name)
        self._whole = whole
        try:
            yield
        finally:
            self._settle()
            self._open.pop()
            self._whole = False

    def move(self, name: Phase, seconds: float) -> None:
        """Count `seconds` of the phase that is open as `name`: what a worker says of its answer's time."""
        if self._whole:
            return
        self._settle()
        here = self._open[-1]
        seconds = min(max(seconds, 0.0), self._seconds[here])
        self._seconds[here] -= seconds
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def so_far(self) -> dict[Phase, float]:
        """Return the seconds of all phases since the start. They add up to the time that has passed."""
        self._settle()
        return dict(self._seconds)

    def _settle(self) -> None:
        """Give the time since the last change to the phase that is open."""
        now, here = time.monotonic(), self._open[-1]
        self._seconds[here] = self._seconds.get(here, 0.0) + now - self._since
        self._since = now
