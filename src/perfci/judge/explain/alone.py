"""Findings in the profile of one side, and the time they could give back."""

import math

from perfci.judge.explain.numbers import counted, finite, gain, number, percent_of
from perfci.judge.explain.seen import UP, Clue, Group, Seen, calls_of, copied, idle, pinning, value
from perfci.judge.explain.thresholds import (
    AGAIN,
    DOMINANT,
    IDLE,
    IDLE_TENSOR,
    OCCUPIED,
    ONCE,
    PINNED,
    SHARE,
    SPILLED,
    TENSOR,
)
from perfci.judge.words import call_name
from perfci.model.profile import Call, CallKind, CopyKind, Trace
from perfci.model.units import show

_LINKS: tuple[CopyKind, ...] = ("host to device", "device to host")


def standing(seen: Seen) -> list[Clue]:
    """Find what stands out on one side, most time first."""
    host: list[Clue] = []
    if seen.trace:
        host = _process(seen.trace) if seen.profile.reports and not seen.trace.within else _host(seen, seen.trace)
    found = [*host, *_kernels(seen)]
    return sorted(found, key=lambda one: (one.seconds is None, -(one.seconds or 0.0), one.order, one.text))


def _host(seen: Seen, trace: Trace) -> list[Clue]:
    found = []
    spent, rest = sum(call.seconds for call in calls_of(trace, "allocation")), trace.wall - trace.busy
    if top := _longest(trace, "allocation", spent):
        name, share = call_name(top.name), percent_of(spent, trace.wall)
        step = f"{name} is {share} of the time: allocate outside the loop{gain(trace.wall, spent)}"
        text = f"allocates inside the loop: {name}, {counted(top.count, 'call')} an execution, {share} of the time"
        found.append(Clue(0, text, min(spent, trace.wall), step, "allocation"))
    if top := _longest(trace, "synchronisation", rest):
        name, share = call_name(top.name), percent_of(rest, trace.wall)
        step = f"{name} in the loop: wait once behind it; the GPU idles {share} of the time{gain(trace.wall, rest)}"
        text = f"synchronises inside the loop: {name}, {counted(top.count, 'call')} an execution, "
        text += f"the GPU idles {share} of the time"
        found.append(Clue(1, text, rest, step, "synchronisation"))
    bound = not found
    found += _pageable(trace)
    share_idle = idle(trace)
    if bound and share_idle is not None and share_idle >= IDLE and seen.launches >= 2:
        mean = finite(seen.device / seen.launches)
        each = f" of {number(mean, 's')}" if mean is not None else ""
        text = f"launch-bound under the profiler: the GPU idles {number(share_idle, '%')} of the time between "
        text += f"{number(seen.launches)} kernels{each}"
        # No gain is told: a profiler adds microseconds to each launch.
        found.append(Clue(8, text, None, f"fuse the kernels{each} or launch them as one CUDA graph", "launch"))
    return found


def _process(trace: Trace) -> list[Clue]:
    found = []
    spent = sum(call.seconds for call in calls_of(trace, "allocation"))
    top = _longest(trace, "allocation", spent)
    if top and top.count >= AGAIN:
        text = f"allocates again and again: {call_name(top.name)}, {counted(top.count, 'call')}, "
        text += f"{percent_of(spent, trace.wall)} of the process's time, in which its first call makes the context"
        step = "allocate once, and reuse it (a pool, cudaMallocAsync); name the NVTX range of the loop under "
        step += "range: to see it without the process's start"
        # How much of it the context takes is not known.
        found.append(Clue(0, text, None, step, "allocation"))
    return found + _pageable(trace)


def _longest(trace: Trace, kind: CallKind, seconds: float) -> Call | None:
    calls = calls_of(trace, kind)
    if not (SHARE * trace.wall <= seconds < math.inf and trace.wall > 0 and sum(call.count for call in calls) >= ONCE):
        return None
    return max(calls, key=lambda call: (call.seconds, call.name))


def _pageable(trace: Trace) -> list[Clue]:
    found = []
    for kind in _LINKS:
        one = copied(trace, kind)
        if one and one.pageable and one.rate and one.seconds >= SHARE * trace.wall:
            text = f"{UP[kind]} is pageable: {show(one.rate, 'B/s')}, {percent_of(one.seconds, trace.wall)} of the time"
            found.append(Clue(2, text, PINNED * min(one.seconds, trace.wall), pinning(kind), kind))
    return found


def _kernels(seen: Seen) -> list[Clue]:
    if not seen.groups or seen.device <= 0:
        return []
    found = []
    casts = [group for group in seen.groups.values() if group.kernel.family == "cast"]
    spent = sum(group.seconds for group in casts)
    if spent >= DOMINANT * seen.device:
        share = percent_of(spent, seen.device)
        launched = counted(sum(group.count for group in casts), "cast")
        step = f"stay in one type: casts take {share} of the device time{gain(seen.device, spent)}"
        found.append(Clue(4, f"{launched} between types, {share} of the device time", spent, step, "cast"))
    for group in seen.groups.values():
        if group.seconds >= DOMINANT * seen.device:
            found += _kernel(group)
    return found


def _kernel(group: Group) -> list[Clue]:
    label, found = f"`{group.kernel.label}`", []
    spills = group.value("spills")
    local = max((one for use in group.uses if (one := getattr(use, "local", None)) is not None), default=0.0)
    instructions = group.value("instructions")
    if spills and (instructions is None or spills >= SPILLED * instructions):
        where = f", {number(local, 'B')} a thread" if local else ""
        text = f"{label} spills: {number(spills)} loads and stores of local memory{where}"
        step = f"{label}: check launch bounds, unrolling and arrays that are indexed by variables"
        found.append(Clue(5, text, None, step, f"resources {group.kernel.key}"))
    elif local and spills is None:
        found.append(Clue(6, f"{label} has {number(local, 'B')} of local memory a thread: spills or arrays"))
    active = group.value("tensor_active")
    if group.kernel.family == "matrix multiply" and (
        group.kernel.scalar or (active is not None and active < IDLE_TENSOR)
    ):
        how = f"they are active {number(active, '%')} of the time" if active is not None else "by its name"
        found.append(Clue(5, f"{label} multiplies matrices without tensor cores: {how}"))
    reached = group.value("occupancy")
    theory = group.value("occupancy_theoretical")
    low = reached if reached is not None else theory
    if low is not None and low < OCCUPIED and not (active is not None and active >= TENSOR):
        word = "occupancy" if reached is not None else "theoretical occupancy"
        found.append(Clue(7, f"{label} has {number(low, '%')} {word}"))
    return found


def longest(seen: Seen) -> str:
    """Return where the device time goes."""
    if seen.groups and math.isfinite(seen.device) and seen.device > 0:
        group = max(seen.groups.values(), key=lambda one: (one.seconds, one.kernel.key))
        share = percent_of(group.seconds, seen.device)
        traffic = value(seen.counted, "dram_bytes")
        text = f"`{group.kernel.label}` is {share} of the kernel time, {counted(group.count, 'launch')}"
        return text + (f", {number(traffic, 'B')} of DRAM traffic in all" if traffic is not None else "")
    moved = [(one.seconds, UP[kind], one) for kind in UP if (one := copied(seen.trace, kind))]
    if not moved:
        return ""
    _, name, one = max(moved, key=lambda each: each[:2])
    return f"{name} moves {number(one.bytes, 'B')}" + (f" at {show(one.rate, 'B/s')}" if one.rate else "")
