"""Executions of a case for a profiler that watches this process: each in an NVTX range of a plain name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, Optional

WARM_CALLS = 5
"""Executions before those that count: compilation, autotuning and first allocations are not the case's."""


def marker(threads: bool = False) -> tuple[str, Callable[[str], Any], Callable[[Any], Any]]:
    """What opens and closes NVTX ranges here: its name and both functions; the second takes what the first returned.

    `threads`: ranges of the whole process, which hold the work of other threads too, such as autograd's. The name is ""
    where nothing can. torch's own where it is built with CUDA: ranges of the `nvtx` package are lost under some
    versions of nsys.
    """
    with contextlib.suppress(ImportError):
        import torch

        if torch.version.cuda:
            own = torch.cuda.nvtx
            if threads:
                return "torch.cuda.nvtx", own.range_start, own.range_end
            return "torch.cuda.nvtx", own.range_push, lambda _: own.range_pop()
    try:
        import nvtx
    except ImportError:
        return "", lambda name: None, lambda _: None
    if threads:
        return "nvtx", nvtx.start_range, nvtx.end_range
    return "nvtx", nvtx.push_range, lambda _: nvtx.pop_range()


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


def execute(fn: Callable[[], Any], name: str, executions: int, threads: bool = False) -> str:
    """Execute `fn` that often, one behind the other, each in a range of this name. Returns what marked them."""
    marked, begin, end = marker(threads)
    for _ in range(executions):
        opened = begin(name)
        try:
            fn()
        finally:
            end(opened)
    return marked


def warm(fn: Callable[[], Any], synchronize: Optional[Callable[[], Any]]) -> None:
    """Execute `fn` a few times and wait for it."""
    for _ in range(WARM_CALLS):
        fn()
    if synchronize is not None:
        synchronize()
