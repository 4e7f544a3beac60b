"""Differences beside the kernels: copies, and what the host calls."""

import math

from perfci.judge.explain.numbers import arrow, finite, gain, moved, n_to, number, pair, percent_of
from perfci.judge.explain.seen import UP, Clue, Copied, Seen, calls_of, copied, idle, pinning
from perfci.judge.explain.thresholds import BANDWIDTH, IDLE, IDLE_POINTS, INSTRUCTIONS, ONCE
from perfci.judge.words import call_name
from perfci.model.profile import CopyKind


def copies(base: Seen, head: Seen) -> list[Clue]:
    """Find copies that changed kind, came or went, or move more or slower."""
    if base.trace is None or head.trace is None:
        return []
    found = []
    for kind in UP:
        before, after = (copied(seen.trace, kind) for seen in (base, head))
        if before is not None and after is not None:
            found += _copy_changed(kind, before, after, head.trace.wall)
        elif after is not None:
            found.append(Clue(5, f"{UP[kind]} is new: {_amount(kind, after)}", after.seconds))
        elif before is not None:
            found.append(Clue(5, f"{UP[kind]} is gone: {_amount(kind, before)}", -before.seconds))
    sets = pair(base.trace.sets, head.trace.sets)
    if sets and abs(sets[1] - sets[0]) >= ONCE:
        found.append(Clue(11, f"{arrow(*sets)} memory sets"))
    return found


def _amount(kind: CopyKind, one: Copied) -> str:
    way = {"host to device": " from pageable memory", "device to host": " to pageable memory"}.get(kind, "")
    return f"{number(one.bytes, 'B')} in {number(one.seconds, 's')}{way if one.pageable else ''}"


def _copy_changed(kind: CopyKind, before: Copied, after: Copied, wall: float) -> list[Clue]:
    changed = after.seconds - before.seconds
    rates = pair(before.rate, after.rate)
    faster = f": {arrow(*rates, 'B/s')}" if rates else ""
    if before.pageable is not None and after.pageable is not None and before.pageable != after.pageable:
        now = "pageable" if after.pageable else "pinned"
        step = ""
        if after.pageable:
            step = pinning(kind)
            if rates and rates[0] > 0:
                step += gain(wall, after.seconds - after.bytes / rates[0])
        return [Clue(2, f"{UP[kind]} is {now} now{faster}", changed, step, kind)]
    if moved(before.bytes, after.bytes, INSTRUCTIONS):
        return [Clue(6, f"{UP[kind]} moves {arrow(before.bytes, after.bytes, 'B')}", changed)]
    if abs(after.count - before.count) >= ONCE:
        return [Clue(6, f"{UP[kind]} is in {n_to(before.count, after.count, 'piece')}{faster}", changed)]
    if rates and moved(*rates, BANDWIDTH):
        word = "slower" if rates[1] < rates[0] else "faster"
        return [Clue(9, f"{UP[kind]} is {word}{faster}, from the same kind of memory", changed)]
    return []


def host(base: Seen, head: Seen) -> list[Clue]:
    """Find allocations, synchronisations, and launches that the device waits for.

    Nothing of traces by different tools.
    """
    if base.trace is None or head.trace is None or base.trace.source != head.trace.source:
        return []
    before, after = base.trace, head.trace
    inside = "inside the loop "
    if head.profile.reports and not after.within:
        inside = ""  # a command is its start and end too
    found = []
    for kind, verb in (("allocation", "allocates"), ("synchronisation", "synchronises")):
        old, new = calls_of(before, kind), calls_of(after, kind)
        n, m = sum(call.count for call in old), sum(call.count for call in new)
        if not math.isfinite(n + m) or abs(m - n) < ONCE:
            continue
        more, fresh, left = m > n, n < ONCE, m >= ONCE
        risen = {call.name: call for call in (new if more else old)}
        for call in old if more else new:
            if call.name in risen and abs(risen[call.name].count - call.count) < ONCE:
                del risen[call.name]
        top = max(risen.values(), key=lambda call: (call.seconds, call.count, call.name)) if risen else None
        name = call_name(top.name) if top else f"{kind}s"
        if top:
            n, m = (sum(call.count for call in calls if call.name == top.name) for calls in (old, new))
        spent, was = (sum(call.seconds for call in calls) for calls in (new, old))
        grown = min(max(spent - was, 0.0), max(after.wall - before.wall, 0.0)) if more else spent - was
        where = f"{inside}now" if fresh and more else "more often" if more else "less often" if left else "no more"
        text = f"{verb} {where}: {name} {arrow(n, m)} an execution"
        if more:
            text += f", {percent_of(spent, after.wall)} of the time in {'it' if len(new) == 1 else 'such calls'}"
        found.append(Clue(3 if kind == "allocation" else 4, text, finite(grown)))
    if not found and (gaps := pair(idle(before), idle(after))):
        waited = finite((after.span - after.busy) - (before.span - before.busy))
        if gaps[1] >= IDLE and gaps[1] - gaps[0] >= IDLE_POINTS:
            text = f"launch-bound now: the GPU idles {arrow(*gaps, '%')} of the time between operations"
            if moved(base.launches, head.launches, 0.0, ONCE):
                text += f", {arrow(base.launches, head.launches)} launches"
            step = "fuse the kernels or launch them as one CUDA graph"
            found.append(Clue(7, text, waited, step, "launch"))
        elif gaps[0] >= IDLE and gaps[0] - gaps[1] >= IDLE_POINTS:
            text = f"no longer launch-bound: the GPU idles {arrow(*gaps, '%')} of the time between operations"
            found.append(Clue(7, text, waited))
    return found
