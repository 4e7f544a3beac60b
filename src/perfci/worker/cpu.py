"""The CPU sampler: batches of calls between two readings of a monotonic clock."""

from __future__ import annotations

import gc
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from .checks.tolerance import Given

WARM_SECONDS = 0.02
WARM_CALLS = 3
"""Lazy initialisation and caches settle."""

ESTIMATED, MOST_CALLS = 1e-3, 1 << 14
"""Seconds of the CPU, or calls, for an estimate."""


class CpuSampler:
    """Times `fn` in batches with caches warm."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self.fn = fn
        self.learned = None
        self.hertz = None
        self.clocks = None
        self.drained = False

    def settings(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the case."""
        kept = os.environ.get("MALLOC_MMAP_MAX_") == "0"  # the run's setting, unless the policy has another
        return {"timer": "perf_counter_ns", "allocator": "keeps freed memory" if kept else "as found"}

    def warm(self) -> None:
        """Warm up for the first placement of a process."""
        self.estimate()

    def settle(self) -> None:
        """Warm up for a further placement."""
        self.fn()

    def estimate(self) -> float:
        """Warm up, then return the seconds of the shortest of a few calls."""
        deadline = time.perf_counter() + WARM_SECONDS
        calls = 0
        best = float("inf")
        while calls < WARM_CALLS or (time.perf_counter() < deadline and calls < 10_000):
            start = time.perf_counter()
            self.fn()
            best = min(best, time.perf_counter() - start)
            calls += 1
        return max(best, 1e-9)

    def cpu_seconds(self, threads: int) -> float:
        """Return the seconds of one execution by its CPU time over `threads`: a lower bound."""
        calls = 1
        while True:
            start = time.process_time()
            for _ in range(calls):
                self.fn()
            spent = time.process_time() - start
            if spent >= ESTIMATED or calls >= MOST_CALLS:
                return max(spent / calls / threads, 1e-9)
            calls *= 2

    def block(self, batch: int, samples: int, bracket: bool = True, *, warm: bool = False) -> list[float]:
        """Return `samples` times of one execution, in seconds, each the mean over a batch of `batch` calls.

        One untimed batch goes first, as the other side has just used the caches, unless it is `warm`.
        """
        fn, clock = self.fn, time.perf_counter_ns
        times = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for index in range(warm, samples + 1):
                calls = itertools.repeat(None, batch)
                start = clock()
                for _ in calls:
                    fn()
                end = clock()
                if index:
                    times.append((end - start) * 1e-9 / batch)
        finally:
            if collecting:
                gc.enable()
        return times

    def elsewhere(self, seconds: float) -> Optional[str]:
        """Return None: a call is over when it returns."""
        return None

    def verify(self, prepared: Any, given: Given) -> None:
        """Return None: what is timed was already checked."""

    def finish(self) -> None:
        """Do nothing."""
