"""Reads Kineto's Chrome JSON, as of its `output_json.cpp`, `CuptiActivity.cpp` and `cupti_strings.cpp`."""

import gzip
import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

from perfci.model.base import DeviceKind
from perfci.model.profile import (
    LONGEST_CALL,
    MOST_SLICES,
    MOST_USES,
    Call,
    Copy,
    Fault,
    KernelUse,
    RangeUse,
    Slice,
    Trace,
)
from perfci.model.text import escaped
from perfci.profilers.cuda import Edge, call_kind, sweep
from perfci.profilers.cuda import work as work_of
from perfci.profilers.faults import fault
from perfci.profilers.torch.events import Seen, Span, Work, collect
from perfci.profilers.torch.json import FOREIGN, REMEDY, Bad, members

_KERNEL_LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")


def _executions(seen: Seen, name: str) -> list[Span]:
    found: list[Span] = []
    for span in sorted(seen.named, key=lambda one: (one.start, -one.end)):
        if found and span.start < found[-1].end:
            if span.where != found[-1].where or span.end > found[-1].end:
                raise Bad("incomplete", f"ranges {name} overlap")
            continue
        found.append(span)
    if not found:
        raise Bad("empty", f"no range {name}: the case was not run under this profiler")
    said = seen.header.get("perfci")
    wanted = said.get("executions") if isinstance(said, dict) else None
    if wanted is not None and wanted != len(found):
        raise Bad("incomplete", f"{len(found)} of {wanted} ranges {name} arrived")
    return found


def _captured(calls: list[Span]) -> set[int]:
    """They ran nothing."""
    taken: set[int] = set()
    inside: Counter[tuple[Any, Any]] = Counter()
    for call in sorted(calls, key=lambda one: one.start):
        if "StreamBeginCapture" in call.name:
            inside[call.where] += 1
        elif "StreamEndCapture" in call.name:
            inside[call.where] -= 1
        elif inside[call.where] > 0:
            taken.add(call.ident)
    return taken


def _links(seen: Seen, place: Callable[[int], int | None], executions: int) -> list[tuple[int, Span | None, Work]]:
    calls: dict[int, Span] = {}
    for call in seen.calls:
        if call.ident:
            calls.setdefault(call.ident, call)
    first = min(span.start for span in seen.named)
    linked: list[tuple[int, Span | None, Work]] = []
    lost = 0
    for one in seen.work:
        launch = calls.get(one.correlation)
        # Kineto records no call of some functions of the driver; the operator around it is told all the same.
        begin = launch.start if launch else seen.outer.get(one.external)
        index = place(begin) if begin is not None else None
        if index is not None:
            linked.append((index, launch, one))
        elif begin is None and one.start >= first:
            lost += 1
    if lost:
        raise Bad("incomplete", f"{lost} of {len(seen.work)} kernels and copies have no call that launched them")
    ran = {one.correlation for one in seen.work}
    ours = [call for call in seen.calls if place(call.start) is not None]
    launches = [call for call in ours if _KERNEL_LAUNCH.match(call.name)]
    captured = _captured(ours)
    silent = sum(call.ident not in ran and call.ident not in captured for call in launches)
    if silent:
        raise Bad("incomplete", f"{silent} of {len(launches)} launches have no kernel: events were dropped")
    for kind, category, words in (("copy", "gpu_memcpy", "copies"), ("set", "gpu_memset", "memory sets")):
        asked = [call for call in ours if work_of(call.name) == kind and call.ident not in captured]
        without = Counter(place(call.start) for call in asked if call.ident not in ran)
        # Of zero bytes there is none; but then of none of the executions, and of others there is some.
        alike = len(without) == executions and len(set(without.values())) == 1
        if without and not (alike and any(one.category == category for one in seen.work)):
            raise Bad("incomplete", f"{without.total()} of {len(asked)} {words} have no work: events were dropped")
    return linked


def _paths(spans: list[Span]) -> Iterator[tuple[str, Span]]:
    for _, group in itertools.groupby(sorted(spans, key=lambda s: (s.where, s.start, -s.end)), key=lambda s: s.where):
        stack: list[tuple[int, str]] = []
        for span in group:
            while stack and stack[-1][0] <= span.start:
                stack.pop()
            path = f"{stack[-1][1]}/{span.name}" if stack else span.name
            stack.append((span.end, path[:500]))
            yield path[:500], span


def _ranges(spans: list[Span], linked: list[tuple[int, Span | None, Work]], n: int) -> list[RangeUse]:
    launched: dict[tuple[Any, Any], list[tuple[int, int, int]]] = defaultdict(list)
    for _, call, work in linked:
        if call:
            launched[call.where].append((call.start, work.start, work.end))
    for one in launched.values():
        one.sort()
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path, span in _paths(spans):
        there = launched.get(span.where, [])
        inside = there[bisect_left(there, (span.start,)) : bisect_left(there, (span.end,))]
        device = max(end for _, _, end in inside) - min(start for _, start, _ in inside) if inside else 0
        for at, value in enumerate((1, span.end - span.start, device)):
            totals[path][at] += value
    return [
        RangeUse(name=path, count=count / n, host=host * 1e-9 / n, device=device * 1e-9 / n)
        for path, (count, host, device) in totals.items()
    ]


def _slices(linked: list[tuple[int, Span | None, Work]], kernels: list[tuple[Any, ...]]) -> list[Slice]:
    last = max((index for index, _, _ in linked), default=0)
    work = sorted((one for index, _, one in linked if index == last), key=lambda one: (one.start, one.end))
    places = {key: number for number, key in enumerate(kernels)}
    return [
        Slice(
            name="" if one.category == "kernel" else f"copy {one.key[0]}" if one.key else "memory set",
            kernel=places.get(one.key) if one.category == "kernel" else None,
            stream=one.stream,
            start=(one.start - work[0].start) * 1e-9,
            seconds=(one.end - one.start) * 1e-9,
        )
        for one in work[:MOST_SLICES]
    ]


def _busy(
    seen: Seen, linked: list[tuple[int, Span | None, Work]], place: Callable[[int], int | None]
) -> tuple[int, int]:
    """Ns in which device work runs; and in which a launching call runs, and no work."""
    calls = [call for call in seen.calls if call_kind(call.name) == "launch" and place(call.start) is not None]
    edges: list[Edge] = [(0, -1, 0, 1, 0, 0)]
    for _, _, work in linked:
        edges += [(0, work.start, None, 0, 1, 0), (0, work.end, None, 0, -1, 0)]
    for call in calls:
        edges += [(0, call.start, 0, 0, 0, 1), (0, call.end, 0, 0, 0, -1)]
    busy, launching = sweep(sorted(edges, key=itemgetter(1)))
    return busy[0], launching[0]


def trace_of(seen: Seen, name: str, device: DeviceKind, *, apart: bool = False) -> Trace:
    """Return the trace of one name's executions. Raises Bad.

    `apart`: anything may lie between executions: the wall time is the mean of their own.
    """
    if not seen.events:
        raise Bad("unreadable", FOREIGN)
    executions = _executions(seen, name)
    n = len(executions)
    starts = [span.start for span in executions]

    def place(time: int) -> int | None:
        index = bisect_right(starts, time) - 1
        return index if index >= 0 and time < executions[index].end else None

    linked = _links(seen, place, n)
    if device == "cuda" and not linked:
        text = "no kernel and no copy in any execution"
        raise Bad("empty", text, "let CUPTI trace: end other profilers, and see `perfci doctor`")
    reach = executions[-1].end
    extents: dict[int, tuple[int, int]] = {}
    kernels: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    copies: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    sets = 0
    for index, _, work in linked:
        reach = max(reach, work.end)
        begin, end = extents.get(index, (work.start, work.end))
        extents[index] = (min(begin, work.start), max(end, work.end))
        if work.category == "kernel":
            kernels[work.key][0] += 1
            kernels[work.key][1] += work.end - work.start
        elif work.category == "gpu_memcpy":
            for at, value in enumerate((1, work.bytes, work.end - work.start)):
                copies[work.key][at] += value
        else:
            sets += 1
    wall = reach - starts[0]
    if apart:
        wall = sum(
            max(span.end, extents[index][1] if index in extents else span.end) - span.start
            for index, span in enumerate(executions)
        )
    calls: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in seen.calls:
        if place(call.start) is not None:
            calls[call.name][0] += 1
            calls[call.name][1] += call.end - call.start
    ranges = _ranges([span for span in seen.ranges if place(span.start) is not None], linked, n)
    for what, found in (("kernels", kernels), ("calls", calls), ("ranges", ranges)):
        if len(found) > MOST_USES:
            raise Bad("incomplete", f"more than {MOST_USES} different {what}", "profile fewer shapes in one case")
    busy, launching = _busy(seen, linked, place)
    said = seen.header.get("perfci")
    longest = sorted(kernels.items(), key=lambda one: (-one[1][1], str(one[0])))
    return Trace(
        source="torch.profiler",
        version=escaped(said.get("torch", ""))[:80] if isinstance(said, dict) else "",
        executions=n,
        wall=wall * 1e-9 / n,
        busy=busy * 1e-9 / n,
        span=sum(end - begin for begin, end in extents.values()) * 1e-9 / n,
        launching=launching * 1e-9 / n,
        kernels=[
            KernelUse(
                name=title[:2000], count=count / n, seconds=time * 1e-9 / n, grid=grid, block=block,
                registers=registers, shared=shared,
            )
            for (title, grid, block, registers, shared), (count, time) in longest
        ],
        copies=[
            Copy(kind=kind, source=source, target=target, count=count / n, bytes=size / n, seconds=time * 1e-9 / n)
            for (kind, source, target), (count, size, time) in sorted(copies.items(), key=lambda one: -one[1][2])
        ],
        sets=sets / n,
        calls=[
            Call(name=title[:LONGEST_CALL], kind=call_kind(title), count=count / n, seconds=time * 1e-9 / n)
            for title, (count, time) in sorted(calls.items(), key=lambda one: (-one[1][1], one[0]))
        ],
        ranges=ranges,
        slices=_slices(linked, [key for key, _ in longest]),
    )  # fmt: skip


def read(path: Path, name: str, device: DeviceKind = "cuda") -> Trace | Fault:
    """Return the trace of the executions in ranges `name`, from Kineto's JSON, plain or gzip.

    Device work belongs to the execution in which its launching call began, on any thread. The host's time is from the
    first range's begin to the end of the last range or of its work, over the executions. On `cuda` no device work is a
    fault, as are launches without a kernel.
    """
    try:
        return trace_of(collect(members(path), name), name, device)
    except Bad as bad:
        return fault("torch.profiler", "trace", bad.kind, f"{path.name}: {bad.text}", bad.remedy or REMEDY)


def _plain(value: Any) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def publish(path: Path, out: Path) -> Fault | None:
    """Write the events of Kineto's JSON to `out`, gzip: without its header, which tells the host's name, and without
    events whose numbers JSON cannot hold.

    A fault, and no `out`, where `path` cannot be read. Raises OSError where `out` cannot be written.
    """
    partial = out.with_name(out.name + ".partial")
    try:
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as target:
            target.write('{"displayTimeUnit": "ns", "traceEvents": [')
            comma = "\n"
            foreign = True
            for key, event in members(path):
                foreign = foreign and key != "traceEvents"
                if key == "traceEvents" and isinstance(event, dict):
                    with suppress(ValueError, RecursionError):
                        target.write(comma + json.dumps(event, default=_plain, allow_nan=False))
                        comma = ",\n"
            if foreign:
                raise Bad("unreadable", FOREIGN)
            target.write("\n]}\n")
        partial.replace(out)
    except Bad as bad:
        return fault("torch.profiler", "trace", bad.kind, f"{path.name}: {bad.text}", bad.remedy or REMEDY)
    finally:
        partial.unlink(missing_ok=True)
    return None
