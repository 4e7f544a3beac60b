"""What torch.profiler saw: Kineto's Chrome JSON, as `perfci.worker.kineto` has it written, to a trace.

The format is that of Kineto's `output_json.cpp`, `CuptiActivity.cpp` and `cupti_strings.cpp`, with the categories of
torch 1.13 and later. It is read as a stream, event by event: a trace may be larger than memory.
"""

import gzip
import itertools
import json
import math
import re
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, cast

from perfci.evidence.nsys_events import call_kind, plain_call
from perfci.model.base import DeviceKind
from perfci.model.evidence import Call, Copy, CopyKind, Fault, FaultKind, KernelUse, Memory, RangeUse, Trace

CHUNK = 2**20
"""Characters read at a time."""
LONGEST_VALUE = 16 * 2**20
"""Characters of one value of the JSON at most, an event or an entry of the header: Kineto's have some hundred."""
MOST_EVENTS = 2_000_000
"""Events that are kept, at most: some hundred bytes each."""
LONGEST = 10**16
"""Microseconds that a timestamp or a duration may have, about three hundred years: an epoch is below."""

RANGES = ("user_annotation", "cpu_op")
CALLS = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")

COPY = re.compile(r"Memcpy (\S+) \((.+) -> (.+)\)")
COPY_KINDS: dict[str, CopyKind] = {
    "HtoD": "host to device", "HtoA": "host to device", "DtoH": "device to host", "AtoH": "device to host",
    "DtoD": "device to device", "DtoA": "device to device", "AtoD": "device to device", "AtoA": "device to device",
    "HtoH": "host to host", "PtoP": "peer to peer",
}  # fmt: skip
MEMORY: dict[str, Memory] = {
    "Pageable": "pageable", "Pinned": "pinned", "Device": "device", "Device Static": "device", "Array": "array",
    "Managed": "managed", "Managed Static": "managed",
}  # fmt: skip
KERNEL_LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")
FOREIGN = "no trace of torch.profiler: it has no traceEvents"
REMEDY = "profile the case again; where it stays so, install nsys"


class _Bad(Exception):
    def __init__(self, kind: FaultKind, text: str, remedy: str = REMEDY) -> None:
        super().__init__(text)
        self.kind, self.text, self.remedy = kind, text, remedy


# ---------------------------------------------------------------- the JSON, as a stream


class _Json:
    """The members of one JSON object too large to be held, in order."""

    def __init__(self, text: TextIOWrapper) -> None:
        self._text = text
        self._buffer, self._at, self._ended = "", 0, False
        self._decode = json.JSONDecoder(parse_float=Decimal, parse_constant=float).raw_decode

    def _fill(self) -> bool:
        if self._ended:
            return False
        more = self._text.read(CHUNK)
        self._ended = not more
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        return bool(more)

    def peek(self) -> str:
        """The next character that is no white space, "" at the end."""
        while True:
            while self._at < len(self._buffer):
                if not self._buffer[self._at].isspace():
                    return self._buffer[self._at]
                self._at += 1
            if not self._fill():
                return ""

    def take(self, wanted: str) -> str:
        """The next character, one of `wanted`."""
        found = self.peek()
        if not found:
            raise _Bad("unreadable", "the file ends in the middle")
        if found not in wanted:
            raise _Bad("unreadable", "no JSON as torch.profiler writes it")
        self._at += 1
        return found

    def value(self) -> Any:
        """The next whole value."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
                if end < len(self._buffer) or not self._fill():  # else a number may go on in the next chunk
                    self._at = end
                    return value
            except json.JSONDecodeError:
                if len(self._buffer) - self._at > LONGEST_VALUE:
                    raise _Bad("unreadable", "no JSON as torch.profiler writes it") from None
                if not self._fill():
                    raise _Bad("unreadable", "the file ends in the middle, or is no JSON") from None
            except (ValueError, ArithmeticError, RecursionError):  # a number or a nesting beyond all reason
                raise _Bad("unreadable", "no JSON as torch.profiler writes it") from None

    def members(self) -> Iterator[tuple[str, Any]]:
        """Keys and values; each element of the array `traceEvents` for itself."""
        self.take("{")
        if self.peek() == "}":
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise _Bad("unreadable", "no JSON as torch.profiler writes it")
            self.take(":")
            if key == "traceEvents":
                yield key, None  # there is such an array, be it empty
                self.take("[")
                if self.peek() == "]":
                    self.take("]")
                else:
                    yield key, self.value()
                    while self.take(",]") == ",":
                        yield key, self.value()
            else:
                yield key, self.value()
            if self.take(",}") == "}":
                return


def _open(path: Path) -> TextIOWrapper:
    raw = path.open("rb")
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    binary = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
    return TextIOWrapper(binary, encoding="utf-8", errors="replace")


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with _open(path) as text:
            yield from _Json(text).members()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "it is truncated or damaged"
        raise _Bad("unreadable", f"cannot be read: {why}") from None


# ---------------------------------------------------------------- the events


@dataclass(slots=True)
class _Span:
    name: str
    where: tuple[Any, Any]
    """Process and thread."""
    start: int
    """Nanoseconds, as all times here."""
    end: int
    ident: int = 0
    """Correlation of a call; external id of a range."""


@dataclass(slots=True)
class _Work:
    category: str
    start: int
    end: int
    correlation: int
    external: int
    key: tuple[Any, ...]
    """Of a kernel: name, grid, block, registers, shared memory; of a copy: kind, source, target."""
    bytes: int = 0


@dataclass(slots=True)
class _Seen:
    header: dict[str, Any] = field(default_factory=dict)
    events: bool = False
    named: list[_Span] = field(default_factory=list)
    """The executions' own."""
    ranges: list[_Span] = field(default_factory=list)
    """The user's."""
    outer: dict[int, int] = field(default_factory=dict)
    """Start of the operator or range by its external id."""
    calls: list[_Span] = field(default_factory=list)
    work: list[_Work] = field(default_factory=list)


def _nanoseconds(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value < LONGEST:
        raise _Bad("incomplete", f"{what} is no time: {str(value)[:40]}")
    return round(value * 1000)


def _whole(value: Any, what: str, most: int = 2**63) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise _Bad("incomplete", f"{what} is no count: {str(value)[:40]}")
    return value


def _triple(value: Any, what: str) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise _Bad("incomplete", f"{what} has no three dimensions: {str(value)[:40]}")
    x, y, z = (_whole(one, what, 2**31) for one in value)
    return x, y, z


def _work(category: str, name: str, start: int, end: int, args: dict[str, Any]) -> _Work:
    correlation = _whole(args.get("correlation", 0), f"correlation of {name[:80]}")
    external = args.get("External id", 0)
    external = external if isinstance(external, int) else 0
    size = 0
    key: tuple[Any, ...] = ()
    if category == "kernel":
        registers, shared = args.get("registers per thread"), args.get("shared memory")
        key = (
            name,
            _triple(args.get("grid"), f"grid of {name[:80]}"),
            _triple(args.get("block"), f"block of {name[:80]}"),
            None if registers is None else _whole(registers, f"registers of {name[:80]}"),
            None if shared is None else _whole(shared, f"shared memory of {name[:80]}"),
        )
    elif category == "gpu_memcpy":
        size = _whole(args.get("bytes"), f"bytes of {name[:80]}")
        found = COPY.fullmatch(name)
        kind, source, target = found.groups() if found else ("", "", "")
        key = (COPY_KINDS.get(kind, "other"), MEMORY.get(source, "unknown"), MEMORY.get(target, "unknown"))
    return _Work(category, start, end, correlation, external, key, size)


def _collect(members: Iterable[tuple[str, Any]], name: str) -> _Seen:
    seen = _Seen()
    kept = 0
    for key, event in members:
        if key != "traceEvents":
            seen.header[key] = event
            continue
        seen.events = True
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = event.get("cat")
        if category not in RANGES and category not in CALLS and category not in WORK:
            continue
        kept += 1
        if kept > MOST_EVENTS:
            raise _Bad("incomplete", f"more than {MOST_EVENTS} events", "profile fewer executions of the case")
        title = event.get("name")
        if not isinstance(title, str):
            raise _Bad("incomplete", "an event has no name")
        start = _nanoseconds(event.get("ts"), f"begin of {title[:80]}")
        end = start + _nanoseconds(event.get("dur"), f"duration of {title[:80]}")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if category in WORK:
            seen.work.append(_work(category, title, start, end, args))
            continue
        where = (str(event.get("pid")), str(event.get("tid")))
        if category in CALLS:
            ident = _whole(args.get("correlation", 0), f"correlation of {title[:80]}")
            seen.calls.append(_Span(plain_call(title), where, start, end, ident))
            continue
        ident = args.get("External id", 0)
        if isinstance(ident, int) and ident:
            seen.outer.setdefault(ident, start)
        if title == name:
            seen.named.append(_Span(title, where, start, end))
        elif category == "user_annotation":
            seen.ranges.append(_Span(title, where, start, end))
    return seen


# ---------------------------------------------------------------- to a trace


def _executions(seen: _Seen, name: str) -> list[_Span]:
    """The outermost ranges of that name, in order; all of one thread."""
    found: list[_Span] = []
    for span in sorted(seen.named, key=lambda one: (one.start, -one.end)):
        if found and span.start < found[-1].end:
            if span.where != found[-1].where or span.end > found[-1].end:
                raise _Bad("incomplete", f"ranges {name} overlap")
            continue
        found.append(span)
    if not found:
        raise _Bad("empty", f"no range {name}: the case was not run under this profiler")
    said = seen.header.get("perfci")
    wanted = said.get("executions") if isinstance(said, dict) else None
    if wanted is not None and wanted != len(found):
        raise _Bad("incomplete", f"{len(found)} of {wanted} ranges {name} arrived")
    return found


def _union(spans: Iterable[tuple[int, int]]) -> int:
    """Nanoseconds that at least one of the intervals covers."""
    covered, reach = 0, -1
    for start, end in sorted(spans):
        covered += max(0, end - max(start, reach))
        reach = max(reach, end)
    return covered


def _captured(calls: list[_Span]) -> set[int]:
    """Correlations of launches that a stream capture took: they ran nothing."""
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


def _links(seen: _Seen, place: Callable[[int], int | None]) -> list[tuple[int, _Span | None, _Work]]:
    """Device work of the executions: index of the execution, the call that launched it, the work."""
    calls: dict[int, _Span] = {}
    for call in seen.calls:
        if call.ident:
            calls.setdefault(call.ident, call)
    first = min(span.start for span in seen.named)
    linked: list[tuple[int, _Span | None, _Work]] = []
    lost = 0
    for work in seen.work:
        launch = calls.get(work.correlation)
        # Kineto records no call of some functions of the driver; the operator around it is told all the same.
        begin = launch.start if launch else seen.outer.get(work.external)
        index = place(begin) if begin is not None else None
        if index is not None:
            linked.append((index, launch, work))
        elif begin is None and work.start >= first:
            lost += 1
    if lost:
        raise _Bad("incomplete", f"{lost} of {len(seen.work)} kernels and copies have no call that launched them")
    ran = {work.correlation for work in seen.work}
    ours = [call for call in seen.calls if place(call.start) is not None]
    launches = [call for call in ours if KERNEL_LAUNCH.match(call.name)]
    captured = _captured(ours)
    silent = sum(call.ident not in ran and call.ident not in captured for call in launches)
    if silent:
        raise _Bad("incomplete", f"{silent} of {len(launches)} launches have no kernel: events were dropped")
    return linked


def _paths(spans: list[_Span]) -> Iterator[tuple[str, _Span]]:
    """Each range with its path through the ranges around it, on its thread."""
    for _, group in itertools.groupby(sorted(spans, key=lambda s: (s.where, s.start, -s.end)), key=lambda s: s.where):
        stack: list[_Span] = []
        for span in group:
            while stack and stack[-1].end <= span.start:
                stack.pop()
            stack.append(span)
            yield "/".join(one.name for one in stack)[:500], span


def _ranges(spans: list[_Span], linked: list[tuple[int, _Span | None, _Work]], n: int) -> list[RangeUse]:
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


def _trace(seen: _Seen, name: str, device: DeviceKind) -> Trace:
    if not seen.events:
        raise _Bad("unreadable", FOREIGN)
    executions = _executions(seen, name)
    n = len(executions)
    starts = [span.start for span in executions]

    def place(time: int) -> int | None:
        index = bisect_right(starts, time) - 1
        return index if index >= 0 and time < executions[index].end else None

    linked = _links(seen, place)
    if device == "cuda" and not linked:
        text = "no kernel and no copy in any execution"
        raise _Bad("empty", text, "let CUPTI trace: end other profilers, and see `perfci doctor`")
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
    calls: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in seen.calls:
        if place(call.start) is not None:
            calls[call.name][0] += 1
            calls[call.name][1] += call.end - call.start
    said = seen.header.get("perfci")
    return Trace(
        source="torch.profiler",
        version=str(said.get("torch", ""))[:80] if isinstance(said, dict) else "",
        executions=n,
        wall=(reach - starts[0]) * 1e-9 / n,
        busy=_union((work.start, work.end) for _, _, work in linked) * 1e-9 / n,
        span=sum(end - begin for begin, end in extents.values()) * 1e-9 / n,
        kernels=[
            KernelUse(
                name=title[:2000], count=count / n, seconds=time * 1e-9 / n, grid=grid, block=block,
                registers=registers, shared=shared,
            )
            for (title, grid, block, registers, shared), (count, time) in sorted(
                kernels.items(), key=lambda one: (-one[1][1], str(one[0]))
            )
        ],
        copies=[
            Copy(kind=kind, source=source, target=target, count=count / n, bytes=size / n, seconds=time * 1e-9 / n)
            for (kind, source, target), (count, size, time) in sorted(copies.items(), key=lambda one: -one[1][2])
        ],
        sets=sets / n,
        calls=[
            Call(name=title, kind=call_kind(title), count=count / n, seconds=time * 1e-9 / n)
            for title, (count, time) in sorted(calls.items(), key=lambda one: (-one[1][1], one[0]))
        ],
        ranges=_ranges([span for span in seen.ranges if place(span.start) is not None], linked, n),
    )  # fmt: skip


def read(path: Path, name: str, device: DeviceKind = "cuda") -> Trace | Fault:
    """The trace of the executions in ranges `name`, from Kineto's JSON at `path`, plain or compressed with gzip.

    Work of the device belongs to the execution in which the call that launched it began, whichever thread made it. The
    host's time is from the first range's begin to the end of the last range or of its work, over the executions.
    Where `device` is `cuda`, a trace without any is a fault; so is one in which launches have no kernel.
    """
    try:
        return _trace(_collect(_members(path), name), name, device)
    except _Bad as bad:
        return Fault(tool="torch.profiler", kind=bad.kind, text=f"{path.name}: {bad.text}"[:1000], remedy=bad.remedy)


def _plain(value: Any) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_finite(one) for one in value.values())
    if isinstance(value, list):
        return all(_finite(one) for one in value)
    return not isinstance(value, float | Decimal) or math.isfinite(float(value))


def publish(path: Path, out: Path) -> Fault | None:
    """Write the events of Kineto's JSON at `path` to `out`, compressed with gzip, for a browser: without its header,
    which tells the host's name. An event with a number that JSON cannot hold is left out.

    A fault where `path` cannot be read, and no `out` then. Raises OSError where `out` cannot be written.
    """
    partial = out.with_name(out.name + ".partial")
    try:
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as target:
            target.write('{"displayTimeUnit": "ns", "traceEvents": [')
            comma = "\n"
            foreign = True
            for key, event in _members(path):
                foreign = foreign and key != "traceEvents"
                if key == "traceEvents" and isinstance(event, dict) and _finite(event):
                    target.write(comma + json.dumps(event, default=_plain))
                    comma = ",\n"
            if foreign:
                raise _Bad("unreadable", FOREIGN)
            target.write("\n]}\n")
        partial.replace(out)
    except _Bad as bad:
        return Fault(tool="torch.profiler", kind=bad.kind, text=f"{path.name}: {bad.text}"[:1000], remedy=bad.remedy)
    finally:
        partial.unlink(missing_ok=True)
    return None
