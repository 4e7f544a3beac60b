"""Imports of captures for tests: policies, reports, and traces as torch.profiler writes them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfci.judge.judge import judge
from perfci.model.policy import Limit, Policy
from perfci.model.report import Report
from perfci.model.results import Results

SDPA, MATMUL, RESAMPLE, UPLOAD = "sdpa-seq512", "matmul-n4096", "trajectory_resample-batch32", "upload-mib64"
"""The ranges of the captures of an H200."""
Event = dict[str, Any]


def policy(*limits: dict[str, Any]) -> Policy:
    return Policy(version=1, limits=[Limit(**one) for one in limits])


def judged(results: Results, **how: Any) -> Report:
    """The report of what was written and read again."""
    return judge(Results.model_validate_json(results.model_dump_json()), **how)


def event(cat: str, name: str, start: float, length: float, thread: int = 7, **args: Any) -> Event:
    """Begin and length in µs."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args}


def kernel(number: int, name: str, start: float, length: float, *, grid: int = 4, block: int = 128) -> Event:
    """A kernel, launched by the call of this number."""
    shape: Any = {"correlation": number, "grid": [grid, 1, 1], "block": [block, 1, 1], "stream": 7}
    return event("kernel", name, start, length, **shape, **{"registers per thread": 32, "shared memory": 0})


def call(number: int, start: float, thread: int = 7) -> Event:
    return event("cuda_runtime", "cudaLaunchKernel", start, 3, thread, correlation=number)


def write_trace(path: Path, events: Sequence[Event]) -> Path:
    """Packed, where the name says so."""
    document = {"schemaVersion": 1, "traceName": path.name, "deviceProperties": [], "traceEvents": events}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
