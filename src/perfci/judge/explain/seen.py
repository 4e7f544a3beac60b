"""One side's profile as explanations read it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfci.judge.explain.numbers import finite
from perfci.model.kernels import Kernel, identify
from perfci.model.metrics import combined
from perfci.model.profile import Call, CopyKind, Fault, KernelCounters, KernelUse, Profile, Trace, bears_on, concerns


@dataclass(frozen=True, slots=True)
class Clue:
    """What differs or stands out."""

    order: int
    """The smaller, the more telling, where no time tells: 0 attention or allocation, 1 casts or waiting, 2 another
    library or pinning, 3 and 4 other kernels, calls and launches, 5 types, tensor cores, spills, 6 configuration and
    bytes, 7 the host, 8 counters alone, 9 to 11 metrics, ranges, memory sets, 12 a time without a cause."""
    text: str
    """One line."""
    seconds: float | None = None
    """Head - base of one execution; None where no time tells."""
    step: str = ""
    """The remedy; empty where nothing general helps."""
    topic: str = ""
    """Of two steps with the same topic the first is told."""


@dataclass(slots=True)
class Group:
    """All launches of one kernel in one side."""

    kernel: Kernel
    count: float = 0.0
    seconds: float = 0.0
    uses: list[KernelUse | KernelCounters] = field(default_factory=list)
    """Longest first; from the counters without a trace to compare."""
    counted: list[KernelCounters] = field(default_factory=list)
    types: frozenset[str] = frozenset()

    def value(self, name: str) -> float | None:
        """Return a counter over all launches; None where one lacks it."""
        return value(self.counted, name)


@dataclass(frozen=True, slots=True)
class Seen:
    """One side's profile with its kernels by identity."""

    profile: Profile
    trace: Trace | None
    """None also for an empty one beside a fault."""
    groups: dict[str, Group] | None
    """None where kernels were not seen in the way that they are compared."""
    counted: list[KernelCounters]

    @property
    def launches(self) -> float:
        """Of all kernels."""
        return sum(group.count for group in (self.groups or {}).values())

    @property
    def device(self) -> float:
        """Device time of all kernels."""
        return sum(group.seconds for group in (self.groups or {}).values())


def value(counted: Sequence[KernelCounters], name: str) -> float | None:
    """Return a counter over kernels, if finite; None where one lacks it."""
    return combined(name, [(one.values.get(name), one.seconds) for one in counted])


def usable(profile: Profile) -> Trace | None:
    """Return the trace, unless it is empty beside a fault."""
    trace = profile.trace
    if trace is None or trace.kernels or trace.copies:
        return trace
    return None if any(fault.part == "trace" and not fault.aside for fault in profile.faults) else trace


def kernelless(profile: Profile) -> bool:
    """Tell whether a whole timeline shows that no kernel runs."""
    trace = usable(profile)
    if trace is None or trace.kernels:
        return False
    return not any(bears_on(one, profile, "trace") and concerns(one, "kernel_launches") for one in profile.faults)


def faults(profile: Profile) -> list[Fault]:
    """Return the faults, without a count of failed kernels where there are none."""
    if not kernelless(profile):
        return profile.faults
    return [fault for fault in profile.faults if (fault.part, fault.kind) != ("counters", "empty")]


def see(profile: Profile, traced: bool) -> Seen:
    """Group the kernels of the trace where `traced`, else of the counters."""
    trace = usable(profile)
    counted = list(profile.counters.kernels) if profile.counters else []
    uses: list[KernelUse | KernelCounters] | None = None
    if traced:
        uses = [*trace.kernels] if trace else None
    elif profile.counters:
        uses = [*counted]
    groups: dict[str, Group] | None = None
    if uses is not None:
        groups = {}
        for use in sorted(uses, key=lambda one: -one.seconds):
            kernel = identify(use.name)
            group = groups.setdefault(kernel.key, Group(kernel))
            group.count += use.count
            group.seconds += use.seconds
            group.uses.append(use)
            group.types |= frozenset(kernel.types)
        for one in counted:
            key = identify(one.name).key
            if key in groups:
                groups[key].counted.append(one)
        if not math.isfinite(sum(group.seconds + group.count for group in groups.values())):
            groups = None
    return Seen(profile, trace, groups, counted)


UP: Mapping[CopyKind, str] = {
    "host to device": "the upload",
    "device to host": "the download",
    "device to device": "the copy within the device",
    "host to host": "the copy within the host",
    "peer to peer": "the copy between GPUs",
    "other": "the copy",
}


def pinning(kind: CopyKind) -> str:
    """Return the remedy for a pageable copy."""
    return f"pin the host memory of {UP[kind]} (pin_memory=True, cudaHostAlloc)"


@dataclass(frozen=True, slots=True)
class Copied:
    """All copies of one kind in one execution."""

    count: float
    bytes: float
    seconds: float
    pageable: bool | None
    """Of most bytes; None: of unknown or no host memory."""

    @property
    def rate(self) -> float | None:
        """Bytes per second; None where there is none."""
        return finite(self.bytes / self.seconds) if self.seconds > 0 and self.bytes > 0 else None


def copied(trace: Trace | None, kind: CopyKind) -> Copied | None:
    """Return the copies of `kind`; None without any."""
    of_kind = [one for one in trace.copies if one.kind == kind] if trace else []
    count, moved_bytes, seconds = (sum(getattr(one, name) for one in of_kind) for name in ("count", "bytes", "seconds"))
    if count <= 0 or not math.isfinite(count + moved_bytes + seconds):
        return None

    def share(memory: str) -> float:
        return sum(one.bytes for one in of_kind if memory in (one.source, one.target))

    pageable, pinned = share("pageable"), share("pinned")
    sure = max(pageable, pinned) > moved_bytes / 2
    return Copied(count, moved_bytes, seconds, pageable > pinned if sure else None)


def calls_of(trace: Trace, kind: str) -> list[Call]:
    """Return the host's calls of one kind."""
    return [call for call in trace.calls if call.kind == kind]


def idle(trace: Trace) -> float | None:
    """Return the percent of the device's span in which nothing runs."""
    percent_idle = finite(100 * (trace.span - trace.busy) / trace.span) if trace.span > 0 else None
    return max(percent_idle, 0.0) if percent_idle is not None else None
