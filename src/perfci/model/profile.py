"""A profile: what profilers saw of one case in one side, in passes of their own; no time in it is a measurement."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, field_validator

from perfci.model.base import Amount, Document, Finite, Items, UsageError
from perfci.model.metrics import (
    ALL_RANGES,
    CATALOGUE,
    CHECKED,
    COUNTERS,
    PLAIN_NCU,
    RANGE,
    combined,
    counter,
    known_metric,
    resolve,
    unknown,
)

Tool = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=40)]
"""A profiler: shown to people, and part of the names of logs."""
Part = Literal["trace", "counters", "code"]
"""The field of `Profile` that a profiler fills."""
FaultKind = Literal[
    "absent",  # the tool is not installed
    "forbidden",  # counters or tracing are not permitted
    "incompatible",  # tool and driver, chip or report do not fit
    "busy",  # another profiler holds the counters
    "timeout",
    "crash",  # the tool or the case under it died
    "empty",  # nothing of the case in what was captured: no range, no kernel
    "unreadable",  # truncated, foreign, no file of this kind
    "incomplete",  # events or values were dropped, or a value asked for is no finite number
]
CopyKind = Literal["host to device", "device to host", "device to device", "host to host", "peer to peer", "other"]
Memory = Literal["pageable", "pinned", "device", "managed", "array", "unknown"]
CallKind = Literal["launch", "allocation", "synchronisation", "copy", "other"]
RESOURCE_USAGE = "cuobjdump --dump-resource-usage"
"""Shows people registers, stack and shared memory of each kernel."""
LONGEST_CALL = 500
MOST_USES = 20_000
"""Kernels, calls or ranges of one case: a stranger's file can name any number."""


class Fault(Document):
    """Why a tool has nothing, or not all, to say."""

    tool: Tool
    part: Part
    """The part that the tool was to provide."""
    kind: FaultKind
    text: str = Field(max_length=1000)
    """One line: what happened."""
    remedy: str = Field("", max_length=1000)
    """One line: what to do about it."""
    metrics: list[str] = Field(default_factory=list)
    """Quantities that it is about, where the rest is whole; `range:*` for all of the user's ranges."""
    aside: bool = False
    """It changes no value."""


class KernelUse(Document):
    """A kernel with one launch configuration, in one execution."""

    name: str = Field(max_length=2000)
    """Demangled."""
    count: Amount
    """Launches."""
    seconds: Amount
    """Device time of all of them."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None = None
    """A thread."""
    static_shared: Amount | None = None
    """A block."""
    dynamic_shared: Amount | None = None
    """A block."""
    shared: Amount | None = None
    """A block, dynamic included where the tool does not tell it apart."""
    local: Amount | None = None
    """A thread: arrays and spilled registers."""


class Copy(Document):
    """Copies of one kind in one execution, without memory sets."""

    kind: CopyKind
    source: Memory
    target: Memory
    count: Amount
    bytes: Amount
    seconds: Amount
    """Device time."""


class Call(Document):
    """A function of the CUDA API in one execution: host time."""

    name: str = Field(max_length=LONGEST_CALL)
    """Without a version suffix such as `_v2`."""
    kind: CallKind
    count: Amount
    seconds: Amount


class OsCall(Document):
    """A function of the OS runtime, such as `poll`, in one execution."""

    name: str = Field(max_length=LONGEST_CALL)
    count: Amount
    seconds: Amount
    """Over all threads, idle ones included."""
    launching: Amount
    """On threads that launch work of the GPU."""


class MemoryUse(Document):
    """Bytes of device memory that the process tree has allocated, whatever an execution uses."""

    peak: Amount
    """At any moment of the executions, on the GPU that holds most."""
    final: Amount
    """At the end of the last execution, or of the whole command."""


class RangeUse(Document):
    """A user's NVTX range within the case, in one execution."""

    name: str = Field(max_length=500)
    """`outer/inner` where ranges nest."""
    count: Amount
    host: Amount
    """From push to pop."""
    device: Amount
    """From the first start to the last end of what was launched within (`nvtx_gpu_proj_sum`)."""


MOST_SLICES = 200
"""More operations cannot be told apart in a picture."""


class Slice(Document):
    """One operation of the device."""

    name: str = Field("", max_length=100)
    """Such as `copy host to device`; empty for a kernel."""
    kernel: int | None = Field(None, ge=0)
    """Of a kernel: place in `Trace.kernels`."""
    stream: int = 0
    start: Amount
    """From the execution's first operation on."""
    seconds: Amount


class Trace(Document):
    """A timeline. Quantities are of one execution: totals over `executions`."""

    source: Tool
    version: str = ""
    marked: str = Field("", max_length=200)
    """How executions were marked without the package nvtx, and why."""
    within: str = Field("", max_length=200)
    """The range of a command whose executions these are."""
    executions: int = Field(ge=1)
    wall: Amount
    """Host time from a range's begin to its end or that of its last device work."""
    busy: Amount
    """Time with at least one kernel, copy or set."""
    span: Amount
    """From the first start to the last end of device work."""
    launching: Amount | None = None
    """Host in a call that launches, and nothing of the case on the device; None where not told."""
    kernels: Items[KernelUse] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first."""
    copies: Items[Copy] = Field(default_factory=list, max_length=MOST_USES)
    sets: Amount = 0.0
    """Memory sets."""
    calls: Items[Call] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first."""
    os_calls: Items[OsCall] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first, where traced."""
    memory: MemoryUse | None = None
    """None where it was not traced."""
    ranges: Items[RangeUse] = Field(default_factory=list, max_length=MOST_USES)
    slices: Items[Slice] = Field(default_factory=list, max_length=MOST_SLICES)
    """The last execution's first operations of the device."""


class Rule(Document):
    """A finding of the profiler's own rules."""

    name: str
    message: str = Field(max_length=2000)
    speedup: Amount | None = None
    """Of the kernel's time, estimated by the profiler; None without."""


class KernelCounters(Document):
    """Counters of one kernel launch configuration."""

    name: str = Field(max_length=2000)
    count: int = Field(ge=1)
    """Launches; sums are over them, rates and percentages means weighted by time."""
    seconds: Amount
    """Under the profiler: a weight, no measurement."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: dict[str, Finite] = Field(
        default_factory=dict,
        json_schema_extra={"propertyNames": {"anyOf": [{"enum": [*COUNTERS]}, {"pattern": PLAIN_NCU}]}},
    )
    """By name of the table of metrics, in its units, or of ncu where a limit asks for it."""
    rules: Items[Rule] = Field(default_factory=list)
    """Largest estimated speed-up first."""

    @field_validator("values")
    @classmethod
    def _known(cls, values: dict[str, float]) -> dict[str, float]:
        for name in values:
            try:
                counter(name)
            except UsageError as error:
                raise ValueError(str(error)) from None
        return values


class Counters(Document):
    """Hardware counters of one execution."""

    source: Tool
    version: str = ""
    chip: str = ""
    """Such as `gh100`."""
    device: str = Field("", max_length=200)
    """Of the GPU; empty where not told."""
    passes: int | None = None
    """Replays of each kernel."""
    kernels: Items[KernelCounters] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first."""


class KernelCode(Document):
    """Machine code of a kernel. Counts are of instructions as they stand, not as executed."""

    name: str = Field(max_length=2000)
    """As the trace has it."""
    arch: str
    """Such as `sm_90a`."""
    tensor: dict[str, int] = Field(default_factory=dict)
    """Tensor cores' instructions by opcode."""
    local_loads: int = 0
    local_stores: int = 0
    """Spilled registers, and arrays indexed at run time."""
    registers: int | None = None
    """A thread; None where not told, as all of these."""
    stack: int | None = None
    """Bytes a thread."""
    shared: int | None = None
    """Bytes a block; from 9.0 on with the driver's 1 KiB."""


class Profile(Document):
    """All that profilers saw of one case in one side."""

    reports: int | None = Field(None, ge=1)
    """Cases of a command, which profilers see as a whole. None for a kernel."""
    trace: Trace | None = None
    counters: Counters | None = None
    code: Items[KernelCode] = Field(default_factory=list)
    """Of the trace's kernels that the side built or compiled, where there are no counters."""
    metrics: dict[str, Finite] = Field(default_factory=dict)
    """Of the trace, counters and static tiers, and ncu's own, of one execution."""
    faults: Items[Fault] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    """Logs and artifacts, relative to the output folder."""

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: dict[str, float]) -> dict[str, float]:
        for name in metrics:
            if known_metric(name) is None and not RANGE.fullmatch(name):
                raise ValueError(unknown(name, "metric", CATALOGUE))
        return metrics


def concerns(fault: Fault, metric: str) -> bool:
    """Tell whether a fault could have changed the value of `metric`, or is why there is none.

    `metric`: also of a range, or `kernels` for their names.
    """
    if fault.aside:
        return False
    ranged = ALL_RANGES in fault.metrics and RANGE.fullmatch(metric) is not None
    return not fault.metrics or metric in fault.metrics or ranged


def source(profile: Profile, part: Part) -> Tool | None:
    """Return the profiler of a part; None for none, or the code of kernels."""
    seen = {"trace": profile.trace, "counters": profile.counters}.get(part)
    return seen.source if seen else None


def bears_on(fault: Fault, profile: Profile, part: Part) -> bool:
    """Tell whether a fault is about a part as it is there."""
    return fault.part == part and source(profile, part) in (None, fault.tool)


def needs(profile: Profile, metric: str) -> list[tuple[Part, ...]]:
    """Return the parts whose faults bear on `metric`: each that tells its value, else all that could have."""
    if metric in CHECKED:  # of a kernel a check tells them
        return [("trace",)] if profile.reports is not None or (profile.trace and profile.trace.memory) else []
    if metric == "kernels":
        return [("trace",) if profile.trace or not profile.counters else ("counters",)]
    try:
        entry = resolve(metric, {})
    except KeyError:
        return []
    match entry.tier:
        case "trace" | "counters":
            return [(entry.tier,)]
        case "static" if entry.sources == ("trace",):
            return [("trace",)]
        case "static" if metric not in profile.metrics:
            return [("trace", "counters")]
        case "static":
            told: list[tuple[Part, ...]] = [("counters",)] if _counted(profile, metric) else []
            return [*told, ("trace",)] if not told or _traced(profile, metric) else told
        case _:
            return []


def doubt(profile: Profile, metric: str) -> Fault | None:
    """Return the first fault that concerns `metric`."""

    def first(parts: tuple[Part, ...]) -> Fault | None:
        faults = (one for one in profile.faults if concerns(one, metric))
        return next((one for one in faults if any(bears_on(one, profile, part) for part in parts)), None)

    found = [first(parts) for parts in needs(profile, metric)]
    return None if None in found else next(iter(found), None)


def _counted(profile: Profile, metric: str) -> bool:
    if profile.counters is None:
        return False
    found = combined(metric, [(one.values.get(metric), one.seconds) for one in profile.counters.kernels])
    return found is not None and math.isclose(found, profile.metrics[metric], rel_tol=1e-9)


def _shared(use: KernelUse) -> float | None:
    return None if use.static_shared is None or use.dynamic_shared is None else use.static_shared + use.dynamic_shared


OF_KERNELS: dict[str, Callable[[KernelUse], float | None]] = {
    "registers": lambda use: use.registers, "local_memory": lambda use: use.local, "shared_memory": _shared,
}  # fmt: skip
"""Of each kernel in a timeline, the largest being the case's: metric → value."""


def _traced(profile: Profile, metric: str) -> bool:
    of = OF_KERNELS.get(metric)
    if of is None or profile.trace is None:
        return False
    values = [of(use) for use in profile.trace.kernels]
    return max((one for one in values if one is not None), default=None) == profile.metrics[metric]
