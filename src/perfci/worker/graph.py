"""Timing modes `rotating` and `hot`: replays of a CUDA graph over the input sets of a case."""

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
from .work.driver import CHILD, CONDITIONAL, COPY, KERNEL, MEMSET, Driver, OpaqueWork

FIRST_REPLAY = 100e-6
"""Seconds to queue a replay until measured."""
PROBED, PROBING = 20, 20e-3
"""Executions in the graph that tries whether a case can be captured, at most, and seconds for them; two at least, since
some cannot be captured twice in one."""
WORKING = (KERNEL, COPY, MEMSET, CHILD, CONDITIONAL)


class NothingCaptured(RuntimeError):
    """No node of a case's graph works on the device."""


class GraphSampler(GpuSampler):
    """One sample is one replay of a graph in which each of `fns` runs equally often, in order.

    Each block captures its graph anew: on an H200 the medians of graphs of the same inputs scatter by 0.03 to 0.6 %, as
    with new inputs; a capture costs 1 to 3 ms, drawing many sets tens.
    """

    def __init__(self, fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__()
        self.fns = list(fns)
        self.graph: Any = None
        self.bracket = True
        self.kept = 0
        """The input set whose result is kept: the case must not know it."""
        self.out: Any = None
        """Valid after a replay."""

    def settle(self) -> None:
        """Run every input set once: first calls may not be capturable."""
        for fn in self.fns:
            fn()
        self.rig.synchronize()

    def warm(self) -> None:
        """Do the lazy initialisation of the kernel's libraries."""
        for _ in range(WARM_CALLS):
            self.fns[0]()
        self.settle()

    def capture(self, batch: int, keep: bool = False, kept: Optional[int] = None) -> None:
        """Capture `batch` executions, a multiple of the number of input sets. Raises what capture raises.

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
        """See GpuSampler.

        `bracket`: the first replay of a block of 0.3 ms takes up to 2 % longer (H200), and the last ends microseconds
        early without work behind it; long replays need none.
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
        """Replay and compare the kept result, then again with its inputs redrawn in place."""
        outcome = self._verified(prepared[self.kept], given)
        if not outcome.ok and prepared[0].scripted:
            self.capture(len(self.fns))  # once each: what works in place is right from its inputs alone
            outcome = self._verified(prepared[self.kept], given)
        return outcome if outcome.ok else replace(outcome, text="as a CUDA graph: " + outcome.text)

    def _verified(self, one: Prepared, given: Given) -> Outcome:
        outcome = verify_replay(one, self.out, self.graph.replay, given)
        if outcome.ok:
            outcome = verify_redrawn_replay(one, self.out, self.graph.replay, given)
        return outcome


def nodes(graph: Any) -> Optional[int]:
    """Return how many of a kept graph's nodes do work on the device; None if unknown."""
    if not hasattr(graph, "raw_cuda_graph"):
        return None
    try:
        driver = Driver()
        return sum(driver.kind(node) in WORKING for node in driver.nodes(graph.raw_cuda_graph()))
    except OpaqueWork:
        return None


def probe(fn: Callable[[], Any], seconds: float) -> float:
    """Capture `fn`, whose execution takes about `seconds`; return those of one in a graph. Raises NothingCaptured, and
    what capture raises."""
    executions = max(2, min(PROBED, round(PROBING / seconds)))
    sampler = GraphSampler([fn])
    sampler.warm()
    try:
        sampler.capture(1, keep=True)
    except TypeError:  # a torch whose graphs cannot be kept
        sampler.capture(1)
    else:
        if nodes(sampler.graph) == 0:
            raise NothingCaptured("it launches nothing on the current stream")
    sampler.capture(executions)
    shared = rig()
    sampler.graph.replay()
    begin, end = shared.event(), shared.event()
    begin.record()
    sampler.graph.replay()
    end.record()
    shared.synchronize()
    return max(float(begin.elapsed_time(end)) * 1e-3 / executions, 1e-9)
