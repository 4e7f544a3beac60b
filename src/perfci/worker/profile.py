"""Executions of a case for a profiler that watches this process: each in an NVTX range of a plain name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, Optional

WARM_CALLS = 5
"""Executions before those that count: compilation, autotuning and first allocations are not the case's."""

FLUSHED = 1.0
"""Seconds before a capture ends: a profiler hands on at intervals what the GPU told it, and some lose the last."""


def marker() -> tuple[str, Callable[[str], Any], Callable[[], Any]]:
    """What pushes and pops NVTX ranges here: its name and both functions. The name is "" where nothing can.

    torch's own where it is built with CUDA: ranges of the `nvtx` package are lost under some versions of nsys.
    """
    with contextlib.suppress(ImportError):
        import torch

        if torch.version.cuda:
            return "torch.cuda.nvtx", torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    try:
        import nvtx
    except ImportError:
        return "", lambda name: None, lambda: None
    return "nvtx", nvtx.push_range, nvtx.pop_range


@contextlib.contextmanager
def capture(cuda: bool) -> Iterator[None]:
    """Within it the profiler records, where it waits to be told: between cudaProfilerStart and cudaProfilerStop."""
    if not cuda:
        yield
        return
    import torch

    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def execute(fn: Callable[[], Any], name: str, executions: int) -> str:
    """Execute `fn` that often, one behind the other, each in a range of this name. Returns what marked them."""
    marked, push, pop = marker()
    for _ in range(executions):
        push(name)
        try:
            fn()
        finally:
            pop()
    return marked


def warm(fn: Callable[[], Any], synchronize: Optional[Callable[[], Any]]) -> None:
    """Execute `fn` a few times and wait for it."""
    for _ in range(WARM_CALLS):
        fn()
    if synchronize is not None:
        synchronize()
