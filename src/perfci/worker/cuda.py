"""The CUDA sampler, contract `cold`: L2 flushed, one event pair per sample, the queue kept full."""

from __future__ import annotations

import functools
import gc
import time
from typing import Any, Callable, Optional

from .clock import sm_clock

FLUSH_FACTOR = 2
"""The flush writes this many times the size of the L2 (FlashInfer and pygpubench use 2, NVBench 1)."""
WARM_CALLS = 3
AHEAD = 1.5
"""The GPU is held back for this many times what the CPU needs to queue a block."""
ATTEMPTS = 3
"""How often a block is taken, at most, to have one without launch gaps."""
HOLD_LIMIT = 0.1
"""Seconds that the GPU is held back at most: a case that synchronises cannot be queued ahead."""


class Rig:
    """What every placement of a launch shares: the flush buffer and the clock."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.flush = torch.empty(FLUSH_FACTOR * properties.L2_cache_size, dtype=torch.int8, device="cuda")
        self.cycles_per_second = getattr(properties, "clock_rate", 2_000_000) * 1e3
        self.clock = sm_clock(torch)


@functools.lru_cache(maxsize=1)
def rig() -> Rig:
    """The rig of this process."""
    return Rig()


class CudaSampler:
    """Times `fn` on the current device and stream with CUDA events."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        shared = rig()
        self.torch = shared.torch
        self.fn = fn
        self.flush = shared.flush
        self.clock = shared.clock
        self.cycles_per_second = shared.cycles_per_second
        self.queue_seconds = 0.0
        self.drained = False
        """Whether the GPU had to wait for the CPU within the last block: then launch gaps are in its samples."""
        self.synchronises = False
        """Whether the longest hold was outlasted: then holding is in vain."""
        self.hertz: Optional[float] = None
        """SM clock during the last block; None where it could not be measured."""

    def contract(self) -> dict[str, Any]:
        """What the numbers mean."""
        return {
            "name": "cold",
            "timer": "cuda events",
            "cache": "L2 flushed",
            "clocks": "as found" if self.clock is None else "as found, measured",
            "tf32": bool(self.torch.backends.cuda.matmul.allow_tf32),
        }

    def _queue(self, samples: int) -> list[tuple[Any, Any]]:
        events = []
        for _ in range(samples):
            begin = self.torch.cuda.Event(enable_timing=True)
            end = self.torch.cuda.Event(enable_timing=True)
            self.flush.zero_()
            begin.record()
            self.fn()
            end.record()
            events.append((begin, end))
        # The last sample would end 0.4-1.3 µs early without equal work behind it.
        self.flush.zero_()
        self.fn()
        return events

    def settle(self) -> None:
        """Before a further placement in a process that is warm already."""
        start = time.perf_counter()
        self._queue(1)
        self.queue_seconds = (time.perf_counter() - start) / 2
        self.torch.cuda.synchronize()

    def estimate(self) -> float:
        """Warm up, then the median of five samples, in seconds; learns how long queueing takes."""
        for _ in range(WARM_CALLS):
            self.fn()
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        events = self._queue(5)
        self.queue_seconds = (time.perf_counter() - start) / 6
        self.torch.cuda.synchronize()
        times = sorted(begin.elapsed_time(end) for begin, end in events)
        return max(float(times[2]) * 1e-3, 1e-9)

    def block(self, batch: int, samples: int) -> list[float]:
        """`samples` GPU times of one execution, in seconds. `batch` is 1 under this contract.

        The GPU is held by a spinning kernel while the block is queued, so that no gap of the CPU's making enters a
        sample. A block whose queueing outlasted the hold is taken again with a longer one. A case that synchronises
        outlasts every hold: `drained` says so, and its further blocks are not held in vain.
        """
        hold = 0.0 if self.synchronises else min(HOLD_LIMIT, AHEAD * self.queue_seconds * (samples + 1))
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(ATTEMPTS):
                events = self._held(hold, samples)
                self.synchronises |= self.drained and hold == HOLD_LIMIT
                if self.synchronises or not self.drained:
                    break
                hold = min(HOLD_LIMIT, 4 * hold)
        finally:
            if collecting:
                gc.enable()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in events]

    def _held(self, hold: float, samples: int) -> list[tuple[Any, Any]]:
        """Queue one block behind a kernel that spins for `hold` seconds, and wait for it."""
        held = self.torch.cuda.Event()
        self.torch.cuda._sleep(int(hold * self.cycles_per_second))
        held.record()
        if self.clock is not None:
            self.clock.stamp(0)
        start = time.perf_counter()
        events = self._queue(samples)
        if self.clock is not None:
            self.clock.stamp(1)
        self.queue_seconds = 0.5 * (self.queue_seconds + (time.perf_counter() - start) / (samples + 1))
        self.drained = bool(held.query())
        self.torch.cuda.synchronize()
        self.hertz = self.clock.hertz() if self.clock is not None else None
        return events

    def finish(self) -> None:
        """Wait for the whole device, side streams too. Raises what the device reports."""
        self.torch.cuda.synchronize()
