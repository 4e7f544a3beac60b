"""Defences against false numbers: replaced timers, work elsewhere, L2 set aside.

They catch short cuts, by mistake or by a clever optimiser; no sandbox against malice.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

WATCHED = {
    "time": ("perf_counter", "perf_counter_ns", "monotonic"),
    "math": ("isfinite", "isnan"),
    "builtins": ("abs", "isinstance", "issubclass", "len", "type"),
    "torch": ("abs", "where", "isnan", "isfinite", "count_nonzero", "equal", "zeros_like"),
    "torch.cuda": ("Event", "synchronize", "current_stream", "_sleep", "CUDAGraph"),
    "torch.cuda.Event": ("__new__", "record", "query", "synchronize", "elapsed_time"),
    "torch.cuda.CUDAGraph": ("replay",),
    "torch.Tensor": ("zero_", "fill_", "copy_", "clone", "detach", "to", "view"),
}
"""Owner → functions that time and check."""
NOT_OURS = ("boot", "bytecode", "parent")
"""Modules that a worker does not use once the suite is imported."""

LONGER = 1.5
LATER = 30e-6
"""Work elsewhere is reported when the device is busy for LONGER times and LATER seconds more than events and queueing
explain: an idle GPU synchronises within some 10 µs."""
BATCH_SECONDS = 2e-3
"""Seconds between synchronisations, at most BATCH executions."""
BATCH = 20
BATCHES = 5
ENOUGH = 0.25
"""Seconds for all batches, at most BATCHES."""

CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6  # CUlimit of cuda.h
CUDA_ERROR_UNSUPPORTED_LIMIT = 215
AGREEMENT = 0.75
"""The clocks of events and stamps agree within 1 %; the rest is for launch gaps."""
GRANULARITY = 50e-6
"""Seconds: two stamp kernels and their launch gaps."""


# ---------------------------------------------------------------- replaced functions


class Trusted:
    """The functions that time and check, as before any user code ran; unloaded modules are not watched."""

    def __init__(self, watched: Mapping[str, Sequence[str]] = WATCHED, own: bool = True) -> None:
        self.watched = watched
        self.then = {name: _identity(found) for name, found in _resolved(watched) if found is not None}
        if own:
            self.then.update((name, _identity(found)) for name, found in _own())

    def tampered(self) -> Optional[str]:
        """Return one line on the first replaced function, or None.

        Identity and code object are compared: each can be exchanged alone.
        """
        now = {name: _identity(found) for name, found in (*_resolved(self.watched), *_own())}
        for name, then in self.then.items():
            if now.get(name) != then:
                return f"the suite replaced {name}: what was timed and checked with it cannot be trusted"
        return None


def trust() -> None:
    """Record them once, with torch imported and the suite not yet."""
    global _trusted
    if _trusted is _first:
        prefix = (__package__ or "") + "."
        for module in pkgutil.walk_packages([os.path.dirname(os.path.abspath(__file__))], prefix):
            if module.name[len(prefix) :] not in NOT_OURS:
                importlib.import_module(module.name)
        _trusted = Trusted()


def tampered() -> Optional[str]:
    """Return one line on what the suite replaced, or None. Before trust() only clocks are watched."""
    return _trusted.tampered()


def _resolved(watched: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    for name in [f"{owner}.{function}" for owner, functions in watched.items() for function in functions]:
        first, *rest = name.split(".")
        found = sys.modules.get(first)
        for step in rest:
            if found is None:
                break  # None itself has attributes, such as __new__
            # From a class its own dictionary: getattr would bind, and make something new each time.
            inside: Any = vars(found) if isinstance(found, type) else {}
            found = inside[step] if step in inside else getattr(found, step, None)
        yield name, found


def _own() -> Iterator[tuple[str, Any]]:
    prefix = (__package__ or "") + "."
    for path, module in sorted(sys.modules.items()):
        if not path.startswith(prefix) or path[len(prefix) :] in NOT_OURS:
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, (types.FunctionType, types.ModuleType, type)):
                yield f"{path}.{name}", value
            if isinstance(value, type) and value.__module__ == path:
                for method, function in list(vars(value).items()):
                    if isinstance(function, (types.FunctionType, staticmethod, classmethod, property)):
                        yield f"{path}.{name}.{method}", function


def _identity(found: Any) -> tuple[Any, Any]:
    return found, getattr(found, "__code__", None)


_first = _trusted = Trusted({"time": ("perf_counter", "perf_counter_ns")}, own=False)


# ---------------------------------------------------------------- persisting L2


def _driver() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return ctypes.CDLL("libcuda.so.1")


def forbid_persisting_l2() -> None:
    """Set no L2 aside for persisting accesses, and release persisting lines: a flush would spare them.

    Does nothing on GPUs without this (before Ampere, under MIG). Raises RuntimeError for other failures.
    """
    driver = _driver()
    if driver is None or persisting_l2_bytes() is None:
        return
    status = driver.cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(0))
    if status == 0:
        status = driver.cuCtxResetPersistingL2Cache()
    if status not in (0, CUDA_ERROR_UNSUPPORTED_LIMIT):
        raise RuntimeError(f"resetting the persisting L2 failed with CUDA error {status}")


def persisting_l2_bytes() -> Optional[int]:
    """Return the bytes of L2 set aside for persisting accesses, or None."""
    driver = _driver()
    if driver is None:
        return None
    size = ctypes.c_size_t()
    status = driver.cuCtxGetLimit(ctypes.byref(size), CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return int(size.value) if status == 0 else None


def persisting_l2() -> Optional[str]:
    """Return one line if code under test set L2 aside."""
    size = persisting_l2_bytes()
    if not size:
        return None
    return f"set {size / 2**20:.1f} MiB of the L2 aside for itself: its times are not those of a cold cache"


# ---------------------------------------------------------------- work elsewhere, and two clocks


def work_elsewhere(fn: Callable[[], Any], event_seconds: float, queue_seconds: float) -> Optional[str]:
    """Return one line where `fn` still works once the current stream is done, as on a stream that nothing waits for.

    `event_seconds`: one execution by events on the current stream; `queue_seconds`: the CPU's time to queue one. A
    kernel that works where it is timed leaves the device idle within their sum; the best of several batches counts.
    Warm up before. Raises what `fn` and the device raise.
    """
    torch = sys.modules["torch"]
    event, synchronize = torch.cuda.Event, torch.cuda.synchronize
    count = max(1, min(BATCH, int(BATCH_SECONDS / max(event_seconds + queue_seconds, 1e-9))))
    found: list[tuple[float, float, float]] = []
    while len(found) < BATCHES and sum(wall for wall, _, _ in found) < ENOUGH:
        begin, end = event(enable_timing=True), event(enable_timing=True)
        synchronize()
        start = time.perf_counter()
        begin.record()
        for _ in range(count):
            fn()
        end.record()
        queued = time.perf_counter() - start
        synchronize()
        wall = time.perf_counter() - start
        found.append((wall, max(begin.elapsed_time(end) * 1e-3, count * event_seconds), queued))
    return outlasts(found, count)


def outlasts(batches: list[tuple[float, float, float]], count: int) -> Optional[str]:
    """Apply that rule; `batches`: (wall, events, queueing) in seconds of `count` executions."""
    wall, explained = min(
        ((wall, events + queued) for wall, events, queued in batches),
        key=lambda both: both[0] - both[1],
    )
    if wall <= LONGER * explained or wall <= explained + LATER:
        return None
    more = (wall - explained) / count * 1e6
    return f"works on for {more:.0f} µs after the stream that is timed is done: on another stream that it does not join"


def clocks_agree(event_seconds: float, stamp_nanoseconds: float, besides_seconds: float = 0.0) -> Optional[str]:
    """Return one line where a block's event times do not fit the span between its two stamps of the GPU's own timer.

    `event_seconds`: the sum; `besides_seconds`: the rest between the stamps, such as flushes. Events may not exceed the
    span, and with the rest not fall below AGREEMENT of it. Leave out blocks that wait for the CPU: they hold gaps.
    """
    span = stamp_nanoseconds * 1e-9
    told = event_seconds + besides_seconds
    # Written so that a NaN agrees with nothing.
    if event_seconds <= span / AGREEMENT + GRANULARITY and told >= AGREEMENT * span - GRANULARITY:
        return None
    return (
        f"events tell {told * 1e6:.1f} µs for what took {span * 1e6:.1f} µs by the GPU's own timer: "
        "what times the events was replaced, or the work is elsewhere"
    )
