"""One arm's evidence as explanations read it: kernels by identity, counters over several of them, numbers in words."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfci.judge.kernels import Kernel, identify
from perfci.judge.words import one_line, percent
from perfci.model.evidence import Call, CopyKind, Evidence, KernelCounters, KernelUse, Trace
from perfci.model.units import show, significant

ONCE = 0.5
"""A difference of launches or calls an execution from which on it counts: less comes and goes within the executions
of one capture, as a warm-up or a cache that grows, and is not in the loop."""
TIME = 0.05
"""Relative: kernel times under a profiler, at whatever clock it left, scatter by some percent."""
BYTES, LEAST_BYTES = 0.10, 1e6
"""What an L2 still holds differs between executions: by a tenth of the traffic, and by some 100 kB of next to none."""
INSTRUCTIONS = 0.02
"""The same code executes the same number, save for what spins."""
POINTS, HIT_POINTS = 5.0, 10.0
"""Percentage points of occupancy and pipes, and of hit rates: several times what they scatter by from launch to
launch."""
STALL, LEAST_STALL = 0.25, 0.5
"""Relative, and in warps per instruction: less than half a stalled warp per instruction holds nothing up."""
MINOR = 0.01
"""Share of the device time under which a kernel's counters are not compared: it explains nothing."""
IDLE_POINTS, IDLE = 20.0, 50.0
"""Percent of the device's span between operations: its rise that is told, and where launches bind. A profiler makes
launches slower, so that less says nothing."""
CONFLICTS, LEAST_CONFLICTS = 0.25, 1e4
"""Bank conflicts: few of them cost nothing."""
BANDWIDTH = 0.10
"""Relative: copies share the link and the host's memory with others."""
TENSOR, IDLE_TENSOR, LOST = 10.0, 1.0, 4.0
"""Percent of the cycles with tensor pipes active from which on a case lives by them, under which it does without, and
the factor at which that has changed."""
SHARE = 0.05
"""Of the wall time: less of it in allocations or waits is not worth a step of its own."""
DOMINANT = 0.10
"""Of the device time: kernels that are looked at on their own."""
SPILLED = 0.05
"""Of a kernel's instructions: fewer loads and stores of local memory cost next to nothing, and tuned kernels spill
some."""
OCCUPIED = 30.0
"""Percent of occupancy under which latency is hardly hidden, unless tensor pipes do the work: few warps keep these
busy."""
MANY = 3.0
"""Ratio from which on it stands beside the two numbers."""
DETAILS = 4
"""Kernels that are compared on their own: those that changed most."""

_ADDED = frozenset({"dram_bytes", "dram_read", "dram_written", "instructions", "spills", "bank_conflicts"})
_LARGEST = frozenset({"registers", "shared_memory", "local_memory"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that differs or stands out."""

    order: int
    """Where no time tells: the smaller, the more telling."""
    text: str
    """One line."""
    seconds: float | None = None
    """Difference head - base of one execution that it accounts for; None where no time tells."""
    step: str = ""
    """What to do about it; empty where nothing general helps."""
    topic: str = ""
    """What the step is about: of two about the same the first is told."""


@dataclass(slots=True)
class Group:
    """All launches of one kernel in one arm."""

    kernel: Kernel
    count: float = 0.0
    seconds: float = 0.0
    uses: list[KernelUse | KernelCounters] = field(default_factory=list)
    """Longest first; from the trace, or from the counters where there is no trace to compare."""
    counted: list[KernelCounters] = field(default_factory=list)
    types: frozenset[str] = frozenset()

    def value(self, name: str) -> float | None:
        """A counter over all launches; None where any of them lacks it or there is no finite answer."""
        return value(self.counted, name)


@dataclass(frozen=True, slots=True)
class Seen:
    """One arm's evidence with its kernels by identity."""

    evidence: Evidence
    trace: Trace | None
    """None where there is none, or an empty one of which a fault says that it is."""
    groups: dict[str, Group] | None
    """None where no kernels were seen in the way that they are compared."""
    counted: list[KernelCounters]

    @property
    def launches(self) -> float:
        """Of all kernels."""
        return sum(group.count for group in (self.groups or {}).values())

    @property
    def device(self) -> float:
        """Device time of all kernels."""
        return sum(group.seconds for group in (self.groups or {}).values())


def finite(number: float | None) -> float | None:
    """`number` where it is finite, else None."""
    return number if number is not None and math.isfinite(number) else None


def value(counted: Sequence[KernelCounters], name: str) -> float | None:
    """A counter over kernels: sums added, sizes a thread or block the largest, the rest a mean weighted by time.

    None where there is no kernel, one lacks it, or the result is not finite.
    """
    values = [(one.values.get(name), one.seconds) for one in counted]
    known = [(number, weight) for number, weight in values if number is not None]
    if not known or len(known) < len(values):
        return None
    if name in _ADDED:
        return finite(sum(number for number, _ in known))
    if name in _LARGEST:
        return max(number for number, _ in known)
    total = sum(weight for _, weight in known)
    if total <= 0 or not math.isfinite(total):
        return None
    return finite(sum(number * (weight / total) for number, weight in known))


def usable(evidence: Evidence) -> Trace | None:
    """The trace, unless it holds nothing and a fault says why: an empty table is then no observation."""
    trace = evidence.trace
    if trace is None or trace.kernels or trace.copies:
        return trace
    return None if any(fault.tool in ("nsys", "torch.profiler") for fault in evidence.faults) else trace


def see(evidence: Evidence, traced: bool) -> Seen:
    """Group the kernels: of the trace where `traced`, else of the counters."""
    trace = usable(evidence)
    counted = list(evidence.counters.kernels) if evidence.counters else []
    uses: list[KernelUse | KernelCounters] | None = None
    if traced:
        uses = [*trace.kernels] if trace else None
    elif evidence.counters:
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
    return Seen(evidence, trace, groups, counted)


# ---------------------------------------------------------------- numbers in words


def number(amount: float, unit: str = "") -> str:
    """A quantity; whole ones without a decimal point."""
    if not unit and amount == int(amount) and abs(amount) < 1e5:
        return str(int(amount))
    return show(amount, unit)


def arrow(base: float, head: float, unit: str = "") -> str:
    """`64 → 96`, `16.9 → 42.2 MB`, `59.7 MB → 2.64 GB`."""
    before, after = number(base, unit), number(head, unit)
    if unit:
        short, _, suffix = before.rpartition(" ")
        if short and after.endswith(f" {suffix}"):
            before = short
    return f"{before} → {after}"


def times(base: float, head: float) -> str:
    """` (44×)` where head is that many times base, else nothing."""
    grown = finite(head / base) if base > 0 else None
    return f" ({significant(grown, 2)}×)" if grown is not None and MANY <= grown < 1e6 else ""


def counted(n: float, what: str) -> str:
    """`1 kernel`, `14 kernels`."""
    return f"{number(n)} {what}{'' if n == 1 else 'es' if what.endswith('ch') else 's'}"


def moved(base: float | None, head: float | None, relative: float, least: float = 0.0) -> bool:
    """Whether two known quantities differ by more than `relative` of the smaller one and by more than `least`."""
    if base is None or head is None:
        return False
    gap = abs(head - base)
    return math.isfinite(gap) and gap > least and gap > relative * min(abs(base), abs(head))


def gain(whole: float, part: float) -> str:
    """` up to 9×`: how much faster at most without `part` of `whole`; empty where that is next to nothing.

    Amdahl's bound 1 / (1 - part/whole), rounded down, since it is one.
    """
    rest = whole - part
    if not 0 < part < whole or not math.isfinite(whole) or rest <= whole * 1e-3:
        return ""
    factor = whole / rest
    if factor < 1.05:
        return ""
    return f", up to {int(factor)}×" if factor >= MANY else f", up to {math.floor(factor * 10 + 1e-9) / 10:g}×"


def listed(labels: Iterable[str], most: int = 3) -> str:
    """`a`, `b`, `c` and 2 more."""
    names = [f"`{label}`" for label in labels]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def percent_of(part: float, whole: float) -> str:
    """`31.2 %`; `0 %` of nothing."""
    share = finite(part / whole) if whole > 0 else None
    return percent(min(share, 1.0)) if share is not None else "0 %"


def n_to(n: float, m: float, what: str) -> str:
    """`1 → 3 casts`."""
    return f"{number(n)} → {counted(m, what)}"


def pair(base: float | None, head: float | None) -> tuple[float, float] | None:
    """Two quantities, both finite, or None."""
    return (
        (base, head) if base is not None and head is not None and math.isfinite(base) and math.isfinite(head) else None
    )


# ---------------------------------------------------------------- copies and calls


UP: Mapping[CopyKind, str] = {
    "host to device": "the upload",
    "device to host": "the download",
    "device to device": "the copy within the device",
    "host to host": "the copy within the host",
    "peer to peer": "the copy between GPUs",
    "other": "the copy",
}


@dataclass(frozen=True, slots=True)
class Copied:
    """All copies of one kind in one execution."""

    count: float
    bytes: float
    seconds: float
    pageable: bool | None
    """Whether most of the bytes are of pageable host memory; None where most are of unknown or no host memory."""

    @property
    def rate(self) -> float | None:
        """Bytes per second; None where there is none."""
        return finite(self.bytes / self.seconds) if self.seconds > 0 and self.bytes > 0 else None


def copied(trace: Trace | None, kind: CopyKind) -> Copied | None:
    """The copies of `kind`; None where there are none or their sums are not finite."""
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
    """The host's calls of one kind."""
    return [call for call in trace.calls if call.kind == kind]


def call_name(name: str) -> str:
    """A function's name as sentences hold it."""
    return f"`{one_line(printable(name).replace('`', chr(39)), 40)}`"


def printable(text: str) -> str:
    """`text` with blanks for what does not print."""
    return "".join(character if character.isprintable() else " " for character in text)


def idle(trace: Trace) -> float | None:
    """Percent of the device's span in which nothing runs; None where there is no span."""
    percent_idle = finite(100 * (trace.span - trace.busy) / trace.span) if trace.span > 0 else None
    return max(percent_idle, 0.0) if percent_idle is not None else None
