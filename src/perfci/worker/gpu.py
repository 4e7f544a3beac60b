"""Timing on a GPU: event pairs, and a GPU held back until a block is queued."""

from __future__ import annotations

import abc
import functools
import gc
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import guard
from .clock import sm_clock
from .leash import drawn_core, on_core

if TYPE_CHECKING:
    from .checks.tolerance import Given

FLUSH_FACTOR = 2
"""The flush writes this many times the L2 (FlashInfer and pygpubench use 2, NVBench 1)."""
WARM_CALLS = 3
AHEAD = 1.5
"""The hold, in times that the CPU needs to queue a block."""
ATTEMPTS = 3
"""To have a block without launch gaps."""
HOLD_LIMIT = 0.1
"""Seconds: a case that synchronises cannot be queued ahead."""
EMPTY_PAIRS = 100
"""For the reported median (pygpubench)."""
KEPT_SHARE = 0.1
"""Of the GPU's memory, up to which a worker keeps freed memory."""
EMPTY_HOLD = 10e-3
"""Seconds; queueing them takes 1 to 2 ms."""

Events = list[tuple[Any, Any]]


class Rig:
    """What all placements of a worker share, made before the suite is imported."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.event = functools.partial(torch.cuda.Event, enable_timing=True)
        self.synchronize = torch.cuda.synchronize
        self.sleep = torch.cuda._sleep

    @functools.cached_property
    def properties(self) -> Any:
        """Of the current device."""
        return self.torch.cuda.get_device_properties(self.torch.cuda.current_device())

    @functools.cached_property
    def flush(self) -> Any:
        """A buffer: written whole, it displaces all of the case in the L2."""
        with self.torch.inference_mode(False):  # whatever mode the first case stands in: it serves all
            return self.torch.empty(FLUSH_FACTOR * self.properties.L2_cache_size, dtype=self.torch.int8, device="cuda")

    @functools.cached_property
    def flush_seconds(self) -> float:
        """Of a flush."""
        begin, end = self.event(), self.event()
        self.flush.zero_()
        begin.record()
        self.flush.zero_()
        end.record()
        self.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    @functools.cached_property
    def clock(self) -> Any:
        """None where it cannot be measured."""
        return sm_clock(self.torch)

    @functools.cached_property
    def stream(self) -> Any:
        """For captures, which cannot begin on the default stream."""
        return self.torch.cuda.Stream()

    @functools.cached_property
    def pool(self) -> Any:
        """Memory of all graphs, kept alive by a graph of one node, lest a capture asks the driver for it."""
        pool = self.torch.cuda.graph_pool_handle()
        self.keeper = self.torch.cuda.CUDAGraph()
        with self.torch.inference_mode(False):
            one = self.torch.zeros(1, device="cuda")
        with self.torch.cuda.stream(self.stream):
            self.keeper.capture_begin(pool=pool, capture_error_mode="thread_local")
            one.add_(1)
            self.keeper.capture_end()
        return pool

    def forget_pool(self) -> None:
        """Give the next graph memory placed independently of earlier graphs."""
        self.__dict__.pop("pool", None)
        self.keeper = None

    def hold(self, seconds: float) -> None:
        """Queue a kernel that spins."""
        self.sleep(int(seconds * getattr(self.properties, "clock_rate", 2_000_000) * 1e3))

    def empty_pair(self) -> float:
        """Median seconds of an event pair with nothing between: a part of every sample."""
        self.hold(EMPTY_HOLD)
        pairs = []
        for _ in range(EMPTY_PAIRS):
            begin, end = self.event(), self.event()
            begin.record()
            end.record()
            pairs.append((begin, end))
        self.synchronize()
        return float(sorted(begin.elapsed_time(end) for begin, end in pairs)[EMPTY_PAIRS // 2]) * 1e-3

    def settings(self) -> dict[str, Any]:
        """Settings of torch that change what a kernel computes or which kernel runs."""
        backends = self.torch.backends
        return {
            "timer": "cuda events",
            "tf32": bool(backends.cuda.matmul.allow_tf32),
            "tf32_convolution": bool(backends.cudnn.allow_tf32),
            "deterministic": bool(self.torch.are_deterministic_algorithms_enabled()),
            "cudnn_benchmark": bool(backends.cudnn.benchmark),
        }


@functools.lru_cache(maxsize=1)
def rig() -> Rig:
    """Return the process's rig."""
    return Rig()


class Learned:
    """What a case's blocks have shown so far in this process."""

    def __init__(self) -> None:
        self.queue_seconds = 0.0
        """For the CPU to queue one sample."""
        self.synchronises = False
        """It outlasted the longest hold, so holding is in vain."""


class GpuSampler(abc.ABC):
    """Times blocks of samples on the current device and stream."""

    windows = False
    """Stamp the clock around every sample: something else lies between them."""

    def __init__(self) -> None:
        self.rig = rig()
        self.learned = Learned()
        self.drained = False
        """The GPU waited for the CPU: the last block's samples hold launch gaps."""
        self.hertz: Optional[float] = None
        self.doubts: list[Optional[str]] = []
        """For each block, how the GPU's own timer contradicts its events."""

    @abc.abstractmethod
    def _queue(self, samples: int) -> Events:
        """Queue samples with an event before and behind each, and equal work behind the last."""

    @abc.abstractmethod
    def _besides(self, times: list[float]) -> float:
        """GPU seconds of a block besides its samples."""

    def elsewhere(self, seconds: float) -> Optional[str]:
        """Return one line where the case still works once the current stream is done."""
        return None

    def block(self, batch: int, samples: int, bracket: bool = True) -> list[float]:
        """Return `samples` GPU times of one execution, in seconds; each sample is `batch` executions.

        `bracket`: replay a graph before and behind the samples too.

        A spinning kernel holds the GPU while the block is queued, so that no gap of the CPU enters a sample. If
        queueing outlasts the hold, the next is longer; if the case synchronises, `drained` is set and holding ends.
        """
        guard.forbid_persisting_l2()
        hold = 0.0 if self.learned.synchronises else min(HOLD_LIMIT, AHEAD * self.learned.queue_seconds * (samples + 2))
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(ATTEMPTS):
                events = self._held(hold, samples)
                self.learned.synchronises |= self.drained and hold == HOLD_LIMIT
                if self.learned.synchronises or not self.drained:
                    break
                hold = min(HOLD_LIMIT, 4 * max(hold, AHEAD * self.learned.queue_seconds * (samples + 2)))
        finally:
            if collecting:
                gc.enable()
        aside = guard.persisting_l2()
        if aside:
            raise RuntimeError(aside)
        return [begin.elapsed_time(end) * 1e-3 / batch for begin, end in events]

    def _forget(self, samples: int) -> None:
        if self.rig.clock is not None:
            self.rig.clock.forget(1 + samples * self.windows)

    def _held(self, hold: float, samples: int) -> Events:
        held, clock = self.rig.event(), self.rig.clock
        self._forget(samples)
        self.rig.hold(hold)
        held.record()
        if clock is not None:
            clock.stamp(0)
        start = time.perf_counter()
        events = self._queue(samples)
        if clock is not None:
            clock.stamp(1)
        seconds = (time.perf_counter() - start) / (samples + 1)
        self.learned.queue_seconds = 0.5 * (self.learned.queue_seconds + seconds)
        self.drained = bool(held.query())
        self.rig.synchronize()
        self.hertz = clock.hertz() if clock is not None else None
        if clock is not None and clock.span and not self.drained:
            times = [begin.elapsed_time(end) * 1e-3 for begin, end in events]
            self.doubts.append(guard.clocks_agree(sum(times), clock.span, self._besides(times)))
        return events

    @property
    def clocks(self) -> str:
        """The SM clock in words for reports."""
        return "as found" if self.rig.clock is None else "as found, measured"

    def settings(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the case."""
        return self.rig.settings()

    def verify(self, prepared: Any, given: Given) -> Any:
        """Return the Outcome of a check of what was timed, or None for the function itself."""
        return None

    def finish(self) -> None:
        """Wait for the whole device, side streams too.

        Raises what the device reports, and RuntimeError if no block's events fit the GPU's own timer.
        """
        self.rig.synchronize()
        if self.doubts and all(self.doubts):
            raise RuntimeError(self.doubts[0])


class ColdSampler(GpuSampler):
    """Timing mode `cold`: one execution a sample, the L2 flushed before it.

    A case that synchronises has its core in its times: on a shared host some are slower by a third for minutes (an
    H200's virtual machine). Blocks stay on a core drawn from `seed`, for base and head alike.
    """

    windows = True

    def __init__(self, fn: Callable[[], Any], seed: object) -> None:
        super().__init__()
        self.fn = fn
        self.core = drawn_core(seed)

    def block(self, batch: int, samples: int, bracket: bool = True) -> list[float]:
        """See GpuSampler."""
        with on_core(self.core):
            return super().block(batch, samples, bracket)

    def _queue(self, samples: int) -> Events:
        events, clock = [], self.rig.clock
        for number in range(samples):
            begin, end = self.rig.event(), self.rig.event()
            self.rig.flush.zero_()
            if clock is not None:
                clock.stamp(0, 1 + number)
            begin.record()
            self.fn()
            end.record()
            if clock is not None:
                clock.stamp(1, 1 + number)
            events.append((begin, end))
        # The last sample would end 0.4-1.3 µs early without equal work behind it.
        self.rig.flush.zero_()
        self.fn()
        return events

    def _besides(self, times: list[float]) -> float:
        return (len(times) + 1) * self.rig.flush_seconds + times[-1]

    def elsewhere(self, seconds: float) -> Optional[str]:
        """See GpuSampler."""
        return guard.work_elsewhere(self.fn, seconds, self.learned.queue_seconds)

    def settle(self) -> None:
        """Warm up for a further placement."""
        self._forget(1)
        start = time.perf_counter()
        self._queue(1)
        self.learned.queue_seconds = (time.perf_counter() - start) / 2
        self.rig.synchronize()

    def warm(self) -> None:
        """Warm up for the first placement of a process."""
        self.estimate()

    def estimate(self) -> float:
        """Warm up, then return the median seconds of five samples."""
        for _ in range(WARM_CALLS):
            self.fn()
        self._forget(5)
        self.rig.synchronize()
        start = time.perf_counter()
        events = self._queue(5)
        self.learned.queue_seconds = (time.perf_counter() - start) / 6
        self.rig.synchronize()
        times = sorted(begin.elapsed_time(end) for begin, end in events)
        return max(float(times[2]) * 1e-3, 1e-9)


def allocated(device: str) -> int:
    """Return the device bytes of this process's tensors."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.memory_allocated()) if torch is not None and device.startswith("cuda") else 0


def transient(device: str, fn: Any) -> int:
    """Return the most device bytes that one execution adds."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = fn()
    torch.cuda.synchronize()
    del out
    return max(0, int(torch.cuda.max_memory_allocated()) - int(before))


def give_back(share: float = KEPT_SHARE) -> None:
    """Release cached memory above this share of the GPU's, for other workers."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    if torch.cuda.memory_reserved() > share * torch.cuda.get_device_properties(0).total_memory:
        torch.cuda.empty_cache()
