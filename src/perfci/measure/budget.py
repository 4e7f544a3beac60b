"""A run's budget: who may take which share of it stands here, in `proof/same_code.py` and `proof/work.py`."""

import time
from collections.abc import Callable

from perfci.system.builds import NONE, Builds

PROFILING_SHARE = 0.2
"""Share that profilers may take."""
OVERRUN_SHARE = 0.2
"""Share by which a run may pass its end."""


class Budget:
    """Seconds for checks, pairs and profilers, once base and head are built."""

    def __init__(self, seconds: float, began: float, builds: Builds = NONE) -> None:
        """`began`: monotonic clock. `builds`: of cases, which do not count."""
        self.seconds, self._end, self._builds = seconds, began + seconds, builds

    @property
    def end(self) -> float:
        """On the monotonic clock."""
        return self._end + self._builds.seconds

    def count_builds(self) -> None:
        """Count what cases compile from now on, too."""
        self._end, self._builds = self.end, NONE

    @property
    def left(self) -> float:
        """Seconds until its end, at least 0."""
        return max(0.0, self.end - time.monotonic())

    @property
    def spent(self) -> float:
        """Seconds since its begin."""
        return self.seconds - self.end + time.monotonic()

    def outside(self, wait: Callable[[], None]) -> None:
        """Call `wait` without counting its seconds."""
        begun = time.monotonic()
        wait()
        self._end += time.monotonic() - begun

    def profiling(self, needed: bool) -> float:
        """Return profilers' seconds from here on: a fifth of the budget; where limits have them `needed`, all that is
        left, if more."""
        return max(PROFILING_SHARE * self.seconds, self.left if needed else 0.0)

    def patience(self, seconds: float) -> float:
        """Return how long to wait for a step of `seconds`: at most a fifth of the budget past its end."""
        return min(seconds, self.left + OVERRUN_SHARE * self.seconds)
