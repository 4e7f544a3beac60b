"""A profile: what profilers saw of one case in one side. Taken in passes of their own; no time in it is a
measurement."""

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
"""The name of a profiler: shown to people, and part of the names of logs."""
Part = Literal["trace", "counters", "code"]
"""The part of a profile that a profiler provides: the field of `Profile` that it fills."""
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
"""The command that people are told, to see the registers, the stack and the shared memory of each kernel."""
LONGEST_CALL = 500
"""Characters of the name of a function."""
MOST_USES = 20_000
"""Kernels, calls or ranges of one case that are told: a file that a stranger wrote can name as many as it likes."""


class Fault(Document):
    """The reason why a tool has nothing, or not all, to say."""

    tool: Tool
    part: Part
    """The part that the tool was to provide."""
    kind: FaultKind
    text: str = Field(max_length=1000)
    """One line: what happened."""
    remedy: str = Field("", max_length=1000)
    """One line: what to do about it."""
    metrics: list[str] = Field(default_factory=list)
    """Quantities that it is about, where what else the tool told is whole; `range:*` for all of the user's ranges."""
    aside: bool = False
    """True where it changes no value: of files that are kept, or worth knowing."""


class KernelUse(Document):
    """A kernel with one launch configuration, in one execution of the case."""

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
    """A block, static and dynamic together, where the tool does not tell them apart."""
    local: Amount | None = None
    """A thread: arrays and spilled registers."""


class Copy(Document):
    """Copies of one kind in one execution, memory sets not among them."""

    kind: CopyKind
    source: Memory
    target: Memory
    count: Amount
    bytes: Amount
    seconds: Amount
    """Device time."""


class Call(Document):
    """A function of the CUDA API, in one execution: time of the host."""

    name: str = Field(max_length=LONGEST_CALL)
    """Without a version suffix such as `_v2`."""
    kind: CallKind
    count: Amount
    seconds: Amount


class OsCall(Document):
    """A function of the OS runtime, such as `poll` or `pthread_cond_wait`, in one execution."""

    name: str = Field(max_length=LONGEST_CALL)
    count: Amount
    seconds: Amount
    """Summed over all threads, those that wait idly among them."""
    launching: Amount
    """The part on threads that launch work of the GPU."""


class MemoryUse(Document):
    """Device memory that the process tree has allocated, whatever part of it an execution uses. In bytes."""

    peak: Amount
    """At most at any moment of the executions, on the GPU that holds most."""
    final: Amount
    """At the end of the last execution, or of the whole command."""


class RangeUse(Document):
    """An NVTX range of the user's own within the case, in one execution."""

    name: str = Field(max_length=500)
    """`outer/inner` where ranges nest."""
    count: Amount
    host: Amount
    """From push to pop."""
    device: Amount
    """From the first start to the last end of what was launched within, as `nvtx_gpu_proj_sum` projects it."""


MOST_SLICES = 200
"""Operations that a trace tells one by one: more cannot be told apart in a picture."""


class Slice(Document):
    """One operation of the device."""

    name: str = Field("", max_length=100)
    """Such as `copy host to device`; empty for a kernel."""
    kernel: int | None = Field(None, ge=0)
    """Of a kernel: place in `Trace.kernels`."""
    stream: int = 0
    start: Amount
    """From the first operation of the execution on."""
    seconds: Amount


class Trace(Document):
    """A timeline. Quantities are of one execution: totals over `executions`."""

    source: Tool
    version: str = ""
    marked: str = Field("", max_length=200)
    """The marker of the executions where the package nvtx did not, and why; empty where it did, or nothing had to."""
    within: str = Field("", max_length=200)
    """The range of a command whose executions these are; empty for those of a case, and for a whole command."""
    executions: int = Field(ge=1)
    wall: Amount
    """Host time of an execution, from its range's begin to its end or to the end of its last device work."""
    busy: Amount
    """Time in which at least one kernel, copy or set ran."""
    span: Amount
    """From the first start to the last end of device work."""
    launching: Amount | None = None
    """Time in which the host is in a call that launches, and nothing of the case runs on the device; None where it is
    not told."""
    kernels: Items[KernelUse] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first."""
    copies: Items[Copy] = Field(default_factory=list, max_length=MOST_USES)
    sets: Amount = 0.0
    """Memory sets."""
    calls: Items[Call] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first."""
    os_calls: Items[OsCall] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first; of those that were asked for, and of captures that hold them."""
    memory: MemoryUse | None = None
    """None where it was not traced."""
    ranges: Items[RangeUse] = Field(default_factory=list, max_length=MOST_USES)
    slices: Items[Slice] = Field(default_factory=list, max_length=MOST_SLICES)
    """The device's operations in the last execution, in the order of their begin: the first MOST_SLICES."""


class Rule(Document):
    """A finding of the profiler's own rules."""

    name: str
    message: str = Field(max_length=2000)
    speedup: Amount | None = None
    """Estimated by the profiler, percent of the kernel's time; None where it estimates none."""


class KernelCounters(Document):
    """Counters of one kernel launch configuration."""

    name: str = Field(max_length=2000)
    count: int = Field(ge=1)
    """Launches that were profiled; sums are over them, rates and percentages their mean weighted by time."""
    seconds: Amount
    """Device time under the profiler, of all of them: a weight, no measurement."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: dict[str, Finite] = Field(
        default_factory=dict,
        json_schema_extra={"propertyNames": {"anyOf": [{"enum": [*COUNTERS]}, {"pattern": PLAIN_NCU}]}},
    )
    """By name of the table of metrics, in its units, or of ncu where a limit asks for it. No other is read, since
    nothing says how its values aggregate."""
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
    """Name of the GPU; empty where it is not told."""
    passes: int | None = None
    """Replays of each kernel."""
    kernels: Items[KernelCounters] = Field(default_factory=list, max_length=MOST_USES)
    """Longest first."""


class KernelCode(Document):
    """The machine code of a kernel. Counts are of instructions as they stand, not as they are executed."""

    name: str = Field(max_length=2000)
    """As the trace has it."""
    arch: str
    """Such as `sm_90a`."""
    tensor: dict[str, int] = Field(default_factory=dict)
    """Instructions of the tensor cores by opcode; empty where there is none."""
    local_loads: int = 0
    local_stores: int = 0
    """Of local memory: spilled registers, and arrays that are indexed at run time."""
    registers: int | None = None
    """A thread; None where the tool does not tell them, as all of these."""
    stack: int | None = None
    """Bytes a thread."""
    shared: int | None = None
    """Bytes a block, static; from 9.0 on the driver's 1 KiB is among them."""


class Profile(Document):
    """Everything that profilers saw of one case in one side."""

    reports: int | None = Field(None, ge=1)
    """Of a command, which profilers see as a whole: how many cases it reports. None for a kernel."""
    trace: Trace | None = None
    counters: Counters | None = None
    code: Items[KernelCode] = Field(default_factory=list)
    """Of the trace's kernels that the side itself built or compiled, where there are no counters; others are absent."""
    metrics: dict[str, Finite] = Field(default_factory=dict)
    """Values of the catalogue's trace, counters and static tiers, and of ncu's own metrics, of one execution."""
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
    """Tell whether a fault could have changed its tool's value of `metric`, or is why there is none.

    `metric`: of the catalogue or of a range, or `kernels` for their names.
    """
    if fault.aside:
        return False
    ranged = ALL_RANGES in fault.metrics and RANGE.fullmatch(metric) is not None
    return not fault.metrics or metric in fault.metrics or ranged


def source(profile: Profile, part: Part) -> Tool | None:
    """Return which profiler provided a part; None where none did, or it is the code of kernels."""
    seen = {"trace": profile.trace, "counters": profile.counters}.get(part)
    return seen.source if seen else None


def bears_on(fault: Fault, profile: Profile, part: Part) -> bool:
    """Tell whether a fault speaks of a part as it is there: of another profiler's attempt at it only where none is."""
    return fault.part == part and source(profile, part) in (None, fault.tool)


def needs(profile: Profile, metric: str) -> list[tuple[Part, ...]]:
    """Return the parts of a profile whose faults bear on the value of `metric`: each that tells this very one, where
    there is a value; of all that could have told it together, where there is none."""
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
    """Return the first fault that could have changed the value of `metric`, or is why there is none; None where none
    is."""

    def first(parts: tuple[Part, ...]) -> Fault | None:
        faults = (one for one in profile.faults if concerns(one, metric))
        return next((one for one in faults if any(bears_on(one, profile, part) for part in parts)), None)

    found = [first(parts) for parts in needs(profile, metric)]
    return None if None in found else next(iter(found), None)


def _counted(profile: Profile, metric: str) -> bool:
    """Tell whether the counters tell the value that there is."""
    if profile.counters is None:
        return False
    found = combined(metric, [(one.values.get(metric), one.seconds) for one in profile.counters.kernels])
    return found is not None and math.isclose(found, profile.metrics[metric], rel_tol=1e-9)


def _shared(use: KernelUse) -> float | None:
    return None if use.static_shared is None or use.dynamic_shared is None else use.static_shared + use.dynamic_shared


OF_KERNELS: dict[str, Callable[[KernelUse], float | None]] = {
    "registers": lambda use: use.registers, "local_memory": lambda use: use.local, "shared_memory": _shared,
}  # fmt: skip
"""Metrics that a timeline tells of each kernel, the largest being the case's: metric → a kernel's value, if any."""


def _traced(profile: Profile, metric: str) -> bool:
    """Tell whether the trace's kernels tell it too."""
    of = OF_KERNELS.get(metric)
    if of is None or profile.trace is None:
        return False
    values = [of(use) for use in profile.trace.kernels]
    return max((one for one in values if one is not None), default=None) == profile.metrics[metric]
