"""The metric catalogue: stable names, each with unit, direction and tier."""

import math
import re
from collections.abc import Collection
from typing import Literal

from pydantic import Field

from perfci.model.base import Document

Direction = Literal["lower", "higher"]
Tier = Literal["timing", "trace", "counters", "static", "reported"]
OBSERVED: frozenset[Tier] = frozenset({"trace", "counters", "static"})
"""Tiers of which a run makes one observation a side, in a pass of its own."""


class Metric(Document):
    """A named quantity."""

    name: str
    unit: str
    """The unit values are stored in."""
    better: Direction
    """Which way is better."""
    tier: Tier = "timing"
    """Where it comes from: bare timing, a timeline, hardware counters, launch configurations and memory, a command."""
    about: str = ""
    exact: bool = False
    """Whether the same code gives the same value each time, so that two single observations can be compared."""


class CustomMetric(Document):
    """A metric that a command reports itself, declared in the policy so that a mistyped name is an error."""

    unit: str = Field("", max_length=24)
    """Its unit, as it is to be shown."""
    better: Direction = "lower"
    """Which way is better."""


def _timing(name: str, unit: str, better: Direction, about: str) -> Metric:
    return Metric(name=name, unit=unit, better=better, about=about)


def _seen(tier: Tier, name: str, unit: str, better: Direction, about: str, exact: bool = False) -> Metric:
    return Metric(name=name, unit=unit, better=better, tier=tier, about=about, exact=exact)


STALLS = (
    "barrier", "long_scoreboard", "short_scoreboard", "math_pipe_throttle", "mio_throttle", "lg_throttle", "wait",
    "not_selected",
)  # fmt: skip
"""Reasons why a warp did not issue, as Nsight Compute names them."""

CATALOGUE: dict[str, Metric] = {
    m.name: m
    for m in (
        _timing("time", "s", "lower", "time of one execution under the case's timing mode"),
        _timing("cycles", "cycles", "lower", "time × the SM clock measured beside it"),
        _timing("cv", "%", "lower", "relative standard deviation of the samples of a launch"),
        _timing("tflops", "TFLOP/s", "higher", "declared floating-point operations over time"),
        _timing("bandwidth", "B/s", "higher", "declared bytes read and written over time"),
        _timing("throughput", "/s", "higher", "declared items (tokens, samples) over time"),
        _seen(
            "static",
            "peak_memory",
            "B",
            "lower",
            "device memory of the inputs, and what an execution needs besides",
            True,
        ),
        _seen("static", "registers", "", "lower", "a thread, of the kernel that needs most", True),
        _seen("static", "shared_memory", "B", "lower", "static and dynamic, a block, of the kernel with most", True),
        _seen("static", "local_memory", "B", "lower", "spills and arrays, a thread, of the kernel with most", True),
        _seen("static", "occupancy_theoretical", "%", "higher", "what launch configurations allow, weighted by time"),
        _seen("trace", "kernel_launches", "", "lower", "kernels launched", True),
        _seen("trace", "copy_bytes", "B", "lower", "bytes copied between memories", True),
        _seen("trace", "sync_count", "", "lower", "calls that wait for the device", True),
        _seen("trace", "alloc_count", "", "lower", "calls that allocate or free memory", True),
        _seen("trace", "device_time", "s", "lower", "device time of all kernels"),
        _seen("trace", "device_busy", "%", "higher", "share of the wall time in which the device works"),
        _seen(
            "trace", "launch_overhead", "%", "lower", "share of the device's span in which it waits between operations"
        ),
        _seen("trace", "alloc_time", "s", "lower", "host time in calls that allocate or free memory"),
        _seen("trace", "copy_time", "s", "lower", "device time of copies"),
        _seen("trace", "copy_bandwidth_h2d", "B/s", "higher", "bytes over device time of copies to the device"),
        _seen("trace", "copy_bandwidth_d2h", "B/s", "higher", "bytes over device time of copies to the host"),
        _seen("counters", "sm_throughput", "%", "higher", "of the SMs' peak"),
        _seen("counters", "memory_throughput", "%", "higher", "of the peak of whichever memory unit is used most"),
        _seen("counters", "dram_throughput", "%", "higher", "of the device memory's peak"),
        _seen("counters", "dram_bandwidth", "B/s", "higher", "bytes of device memory moved over kernel time"),
        _seen("counters", "dram_bytes", "B", "lower", "bytes of device memory read and written"),
        _seen("counters", "dram_read", "B", "lower", "bytes of device memory read"),
        _seen("counters", "dram_written", "B", "lower", "bytes of device memory written"),
        _seen("counters", "tensor_active", "%", "higher", "cycles in which the tensor pipes work"),
        _seen("counters", "occupancy", "%", "higher", "active warps of those that an SM holds"),
        _seen("counters", "l1_hit_rate", "%", "higher", "sectors found in the L1"),
        _seen("counters", "l2_hit_rate", "%", "higher", "sectors found in the L2"),
        _seen("counters", "instructions", "", "lower", "executed, of all warps", True),
        _seen("counters", "spills", "", "lower", "loads and stores of local memory, of all warps", True),
        _seen("counters", "bank_conflicts", "", "lower", "of shared memory"),
        _seen("counters", "branch_efficiency", "%", "higher", "branches that all threads of a warp take alike"),
        *(
            _seen("counters", f"stall_{name}", "", "lower", f"warps stalled ({name.replace('_', ' ')}) per instruction")
            for name in STALLS
        ),
    )
}
UNSEEN_OF_COMMANDS = frozenset({"device_busy", "launch_overhead", "peak_memory"})
"""What profilers cannot tell of a command: its process starts and ends, and the profiler with it, within what they
record, and no check allocates its inputs."""
RANGE = re.compile(r"range:(?P<name>\S.*)")
"""`range:encode`: device time of an NVTX range of the user's own within the case."""


def resolve(name: str, custom: dict[str, CustomMetric]) -> Metric:
    """The metric `name` from the catalogue, of an NVTX range, or the policy's own. Raises KeyError for any other."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    if RANGE.fullmatch(name):
        return Metric(name=name, unit="s", better="lower", tier="trace", about="device time of an NVTX range")
    own = custom[name]
    return Metric(name=name, unit=own.unit, better=own.better, tier="reported")


Fold = Literal["sum", "maximum", "mean"]
"""Added up, the largest, or averaged with the device times as weights."""

SUMMED = frozenset(
    {
        "dram_bytes", "dram_read", "dram_written", "instructions", "tensor_instructions", "spills", "bank_conflicts",
        "fp32_flops", "fp64_flops",
    }
)  # fmt: skip
LARGEST = frozenset({"registers", "shared_memory", "local_memory", "grid_size", "block_size"})
"""Of a thread, a block or a launch."""


def fold(name: str) -> Fold:
    """How the counter `name` combines; all but SUMMED and LARGEST are rates, shares or ratios."""
    return "sum" if name in SUMMED else "maximum" if name in LARGEST else "mean"


def combined(name: str, parts: Collection[tuple[float | None, float]]) -> float | None:
    """The counter `name` over `parts`: values and their device times in seconds.

    None where there is no part, one has no value, a mean has no weight, or the result is not finite.
    """
    known = [(value, seconds) for value, seconds in parts if value is not None]
    if not known or len(known) < len(parts):
        return None
    how, weight = fold(name), sum(seconds for _, seconds in known)
    if how == "maximum":
        total = max(value for value, _ in known)
    elif how == "sum":
        total = sum(value for value, _ in known)
    elif 0 < weight < math.inf:
        total = sum(value * (seconds / weight) for value, seconds in known)
    else:
        return None
    return total if math.isfinite(total) else None
