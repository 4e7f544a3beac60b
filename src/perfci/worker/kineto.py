"""A trace of a case by torch.profiler (Kineto, over CUPTI), for machines without nsys."""

from __future__ import annotations

import json
import os
from typing import Any, Callable

NAME = "perfci-execution"
"""The range around each execution; `perfci.evidence.kineto` looks for it."""


def profile(fn: Callable[[], Any], executions: int, path: str, device: str) -> dict[str, Any]:
    """Run `executions` executions of a warm case on `device` (`cuda`, `cpu`), each in a range NAME; write the trace.

    One more goes before them without a range: the profiler's own first steps are no part of the case. The device is
    waited for once, after the last range, so that nothing of the case is lost. `path`: where the Chrome JSON goes,
    compressed with gzip; its folder exists. It holds the name of the host: `perfci.evidence.kineto.publish` makes a
    copy without it.

    The answer: `executions`, `torch` (its version), `activities` (what was recorded: without `CUDA` no kernel can be in
    the trace), `bytes` of the file. Raises what `fn` raises, RuntimeError where the profiler does not start, OSError.
    """
    import torch
    from torch.profiler import ProfilerActivity, record_function, supported_activities

    activities = [ProfilerActivity.CPU]
    if device == "cuda" and ProfilerActivity.CUDA in supported_activities():
        activities.append(ProfilerActivity.CUDA)
    said = {
        "executions": executions,
        "torch": str(torch.__version__),
        "activities": [activity.name for activity in activities],
    }
    with torch.profiler.profile(activities=activities) as profiler:
        profiler.add_metadata_json("perfci", json.dumps(said))
        fn()
        if device == "cuda":
            torch.cuda.synchronize()
        for _ in range(executions):
            with record_function(NAME):
                fn()
        if device == "cuda":
            torch.cuda.synchronize()
    target = path if path.endswith(".gz") else path + ".gz"  # torch compresses by the name
    profiler.export_chrome_trace(target)
    if target != path:
        os.replace(target, path)
    return dict(said, bytes=os.path.getsize(path))
