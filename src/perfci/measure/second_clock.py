"""The second clock: what the machine spent on a case of the CPU, seen from this process, beside what its worker says.

The worker shares its process with the code under test, which can forge what it says. Of each request for samples this
process reads the wall, and what the worker's main thread computed. A worker is contradicted where both are longer, in
most blocks of most pairs.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median_low

from perfci.model.base import Side
from perfci.model.results import Pair
from perfci.model.units import show

BOUND = 3.0
"""How many times the machine may have spent what the worker says. Of honest suites with garbage, waits, threads, caches
and states of their own none read more than 1 (some 500 readings on two cores, busy and idle)."""
FLOOR = 2e-3
"""Seconds of a block by which both clocks may differ anyhow: two messages take some 0.2 ms."""
READINGS = 4
"""Pairs in which nobody is contradicted yet."""


class Reading:
    """The samples of one block."""

    def __init__(self, pid: int) -> None:
        """Begin with the request."""
        self.pid = pid
        self.seconds: float | None = None
        """The smaller of wall and computing; None where the kernel does not tell the latter."""
        self._start, self._computed = time.perf_counter(), _computed(pid)

    def end(self) -> None:
        """End with the answer."""
        wall, computed = time.perf_counter() - self._start, _computed(self.pid)
        if computed is not None and self._computed is not None:
            self.seconds = min(wall, computed - self._computed)


def _computed(pid: int) -> float | None:
    """Seconds that a process's main thread ran (Linux's sched-stats.rst): others may hold it up, who are not timed."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) * 1e-9
    except (OSError, IndexError):  # it has ended; or the kernel keeps no such count
        return None


def spent(
    readings: Sequence[Reading], blocks: Sequence[Sequence[float]], executions: int, value: float
) -> float | None:
    """Return how many times the machine spent what a worker says, by the lower median over the blocks of a pair; 1 for
    a block where it is not more by more than FLOOR. None where something is not known.

    `blocks`: seconds an execution, sample by sample; `executions`: of a block; `value`: the worker's, which leaves rare
    slow samples out.
    """
    found = []
    for reading, times in zip(readings, blocks, strict=True):
        if reading.seconds is None or not times or not (math.isfinite(value) and value > 0):
            return None
        told = executions * max(value, sum(times) / len(times))
        found.append(reading.seconds / told if reading.seconds - told > FLOOR else 1.0)
    return median_low(found) if found else None


def contradiction(pairs: Sequence[Pair], side: Side) -> str:
    """Return how the machine contradicts a worker by the lower median over the pairs that were read, or empty."""
    read = [(pair.spent[side], pair.values[side]["time"]) for pair in pairs if side in pair.spent]
    if len(read) < READINGS:
        return ""
    times = median_low(one for one, _ in read)
    if not times > BOUND:
        return ""
    seconds = next(value for one, value in read if one == times)
    return f"the worker says {show(seconds, 's')} an execution, the machine spent {show(times * seconds, 's')}"
