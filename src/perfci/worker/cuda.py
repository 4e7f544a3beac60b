"""The CUDA sampler, contract `cold`: L2 flushed, one event pair per sample, the queue kept full."""

from __future__ import annotations

import gc
import time
from typing import Any, Callable, Optional

from .clock import sm_clock

FLUSH_FACTOR = 2
"""The flush writes this many times the size of the L2 (FlashInfer and pygpubench use 2, NVBench 1)."""
WARM_CALLS = 3
AHEAD = 1.5
"""The GPU is held back for this many times what the CPU needs to queue a block."""
HOLD_LIMIT = 0.1
"""Seconds that the GPU is held back at most: a case that synchronises cannot be queued ahead."""


class CudaSampler:
    """Times `fn` on the current device and stream with CUDA events."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        import torch

        self.torch = torch
        self.fn = fn
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.flush = torch.empty(FLUSH_FACTOR * properties.L2_cache_size, dtype=torch.int8, device="cuda")
        self.cycles_per_second = getattr(properties, "clock_rate", 2_000_000) * 1e3
        self.queue_seconds = 0.0
        self.drained = 0
        self.clock = sm_clock(torch)
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
        sample. A block whose queueing outlasted the hold is counted in `drained`.
        """
        hold = min(HOLD_LIMIT, AHEAD * self.queue_seconds * (samples + 1))
        collecting = gc.isenabled()
        gc.disable()
        try:
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
            self.drained += bool(held.query())
            self.torch.cuda.synchronize()
            self.hertz = self.clock.hertz() if self.clock is not None else None
        finally:
            if collecting:
                gc.enable()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in events]

    def finish(self) -> None:
        """Wait for the whole device, side streams too. Raises what the device reports."""
        self.torch.cuda.synchronize()
