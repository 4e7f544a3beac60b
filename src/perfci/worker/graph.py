"""Timing modes `rotating` and `hot`: replays of a CUDA graph that walks through the input sets of a case."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any, Callable, Optional

from .bench import Prepared
from .checks.check import verify_redrawn_replay, verify_replay
from .checks.compare import Outcome
from .checks.tolerance import Given
from .gpu import WARM_CALLS, Events, GpuSampler, rig
from .work.driver import CHILD, CONDITIONAL, COPY, KERNEL, MEMSET, Driver, Unreadable

FIRST_REPLAY = 100e-6
"""Seconds that queueing a replay is taken to need until it was seen."""
PROBED = 20
"""Executions in the graph that finds out whether a case can be captured, and how long it takes."""
WORKING = (KERNEL, COPY, MEMSET, CHILD, CONDITIONAL)
"""Kinds of nodes that may do work on the device."""


class NothingCaptured(RuntimeError):
    """The graph of a case has no node that does work on the device."""


class GraphSampler(GpuSampler):
    """One sample is one replay of a graph in which every one of `fns` runs equally often, in order.

    Each block captures its graph anew: on an H200 the medians of graphs captured from the same inputs scatter by
    0.03 to 0.6 %, much like those of inputs drawn anew, and a capture costs 1 to 3 ms where drawing many sets costs
    tens.
    """

    def __init__(self, fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__()
        self.fns = list(fns)
        self.graph: Any = None
        self.bracket = True
        self.kept = 0
        """The input set whose result is kept: chosen anew for each graph, and not by a seed that the case knows."""
        self.out: Any = None
        """The result of its last execution in the graph: valid after a replay."""

    def settle(self) -> None:
        """Run every input set once: what a case sets up at its first call cannot be captured."""
        for fn in self.fns:
            fn()
        self.rig.synchronize()

    def warm(self) -> None:
        """The first placement of a process: lazy initialisation of the kernel's libraries."""
        for _ in range(WARM_CALLS):
            self.fns[0]()
        self.settle()

    def capture(self, batch: int, keep: bool = False, kept: Optional[int] = None) -> None:
        """Capture a graph of `batch` executions, a multiple of the number of input sets. Raises what capture raises.

        `kept`: the input set whose result is kept; None draws it.
        """
        torch, stream = self.rig.torch, self.rig.stream
        self.graph = self.out = out = None
        kept = SystemRandom().randrange(len(self.fns)) if kept is None else kept
        self.kept = kept
        pool = self.rig.pool
        graph = torch.cuda.CUDAGraph(keep_graph=True) if keep else torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # a tensor that is collected during capture would be freed into it
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    for _ in range(batch // len(self.fns)):
                        for number, fn in enumerate(self.fns):
                            returned = fn()
                            if number == kept:
                                out = returned
                            del returned  # its memory serves the next execution
                except BaseException:
                    self._abandon(graph)
                    raise
                graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph, self.out = graph, out

    @staticmethod
    def _abandon(graph: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the capture is invalid: that is why we are here
            graph.capture_end()

    def block(self, batch: int, samples: int, bracket: bool = True) -> list[float]:
        """As of GpuSampler, over a graph of its own. `bracket`: with a replay before and behind those measured.

        The first replay of a block of 0.3 ms takes up to 2 % longer (H200), and the last ends early without work
        behind it: by microseconds, so that where replays are long neither matters.
        """
        self.bracket = bracket
        self.capture(batch)
        self.learned.queue_seconds = self.learned.queue_seconds or FIRST_REPLAY
        return super().block(batch, samples, bracket)

    def _besides(self, times: list[float]) -> float:
        return times[0] + times[-1] if self.bracket else 0.0

    def _queue(self, samples: int) -> Events:
        if self.bracket:
            self.graph.replay()
        events = []
        for _ in range(samples):
            begin, end = self.rig.event(), self.rig.event()
            begin.record()
            self.graph.replay()
            end.record()
            events.append((begin, end))
        if self.bracket:
            self.graph.replay()
        return events

    def verify(self, prepared: Sequence[Prepared], given: Given) -> Outcome:
        """Replay and compare what the last graph computes of the set whose result was kept, twice: the second time with
        the inputs of that set redrawn in place."""
        one = prepared[self.kept]
        outcome = verify_replay(one, self.out, self.graph.replay, given)
        if outcome.ok:
            outcome = verify_redrawn_replay(one, self.out, self.graph.replay, given)
        return outcome if outcome.ok else replace(outcome, text="as a CUDA graph: " + outcome.text)


def nodes(graph: Any) -> Optional[int]:
    """Return the number of nodes of a kept graph that do work on the device; None where torch or the driver cannot
    tell."""
    if not hasattr(graph, "raw_cuda_graph"):
        return None
    try:
        driver = Driver()
        return sum(driver.kind(node) in WORKING for node in driver.nodes(graph.raw_cuda_graph()))
    except Unreadable:
        return None


def probe(fn: Callable[[], Any]) -> float:
    """Capture `fn`: the seconds of one execution in a graph. Raises what capture raises, and NothingCaptured."""
    sampler = GraphSampler([fn])
    sampler.warm()
    try:
        sampler.capture(1, keep=True)
    except TypeError:  # a torch whose graphs cannot be kept
        sampler.capture(1)
    else:
        if nodes(sampler.graph) == 0:
            raise NothingCaptured("it launches nothing on the current stream")
    sampler.capture(PROBED)
    shared = rig()
    sampler.graph.replay()
    begin, end = shared.event(), shared.event()
    begin.record()
    sampler.graph.replay()
    end.record()
    shared.synchronize()
    return max(float(begin.elapsed_time(end)) * 1e-3 / PROBED, 1e-9)
