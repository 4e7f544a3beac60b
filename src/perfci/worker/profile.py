"""Executions of a case for a profiler, outside of this process or torch's own within it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Callable, Optional

PROFILE_WARM_CALLS = 5
"""Compilation, autotuning and first allocations do not count."""
NSYS = "PERFCI_NSYS"
"""The version of the nsys that watches this process."""
LOST = ((2023, 4), (0, 2, 12), (0, 2, 17))
"""This nsys silently records no range of these versions of nvtx, first and last."""


def records(nsys: str, package: str) -> bool:
    """Tell whether this nsys records the ranges of this nvtx."""
    tool, first, last = LOST
    return _numbers(nsys)[:2] != tool or not first <= _numbers(package) <= last


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def marker(threads: bool = False) -> tuple[str, Callable[[str], Any], Callable[[Any], Any]]:
    """Return functions that open and close NVTX ranges; closing takes what opening returned.

    They are the package nvtx's, if the nsys at hand records its ranges, else torch's with CUDA; the first member tells
    what replaces the package, and why. `threads`: ranges of the whole process, with other threads' work, such as
    autograd's.
    """
    package: Any = None
    own: Any = None
    version = ""
    with contextlib.suppress(ImportError, metadata.PackageNotFoundError):
        import nvtx

        package, version = nvtx, metadata.version("nvtx")
    with contextlib.suppress(ImportError):
        import torch

        own = torch.cuda.nvtx if torch.version.cuda else None
    nsys = os.environ.get(NSYS, "")
    lost = f"nsys {nsys} records no range of nvtx {version}" if package and not records(nsys, version) else ""
    if package and (own is None or (nsys and not lost)):
        if threads:
            return lost, package.start_range, package.end_range
        return lost, package.push_range, lambda _: package.pop_range()
    why = lost or ("ncu is watching" if package else "nvtx is not installed")
    if own is None:
        return f"nothing: {why}", lambda name: None, lambda _: None
    if threads:
        return f"torch.cuda.nvtx: {why}", own.range_start, own.range_end
    return f"torch.cuda.nvtx: {why}", own.range_push, lambda _: own.range_pop()


@contextlib.contextmanager
def capture(cuda: bool) -> Iterator[None]:
    """Have a waiting profiler record meanwhile: between cudaProfilerStart and cudaProfilerStop."""
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
    """Execute `fn`, each time in a range of this name. Return the first member of `marker`."""
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
    for _ in range(PROFILE_WARM_CALLS):
        fn()
    if synchronize is not None:
        synchronize()


NAME = "perfci-execution"


def trace(fn: Callable[[], Any], executions: int, path: str, device: str) -> None:
    """Run `executions` executions of a warm case on `device` (`cuda`, `cpu`), each in a range NAME; write the trace.

    One goes before without a range, for the profiler's first steps. `path`: of the Chrome JSON, ending in `.gz` for
    torch to compress it.

    Raises what `fn` raises, RuntimeError where the profiler does not start, OSError.
    """
    import torch
    from torch.profiler import ProfilerActivity, record_function, supported_activities

    activities = [ProfilerActivity.CPU]
    if device == "cuda" and ProfilerActivity.CUDA in supported_activities():
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        profiler.add_metadata_json("perfci", json.dumps({"executions": executions, "torch": str(torch.__version__)}))
        fn()
        if device == "cuda":
            torch.cuda.synchronize()
        for _ in range(executions):
            with record_function(NAME):
                fn()
        if device == "cuda":
            torch.cuda.synchronize()
    profiler.export_chrome_trace(path)
