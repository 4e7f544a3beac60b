"""Kineto's events, checked and in nanoseconds."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from perfci.profilers.cuda import copy_kind, memory, plain_call
from perfci.profilers.torch.json import Bad

MOST_EVENTS = 500_000
"""Some hundred bytes each."""
LONGEST_NAME = 2000
LONGEST = 10**16
"""Microseconds, three hundred years: an epoch is below."""

RANGES = ("user_annotation", "cpu_op")
CALLS = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#\d+")

_COPY = re.compile(r"Memcpy (\S+) \((.+) -> (.+)\)")


@dataclass(slots=True)
class Span:
    """A call or a range on the host."""

    name: str
    where: tuple[Any, Any]
    start: int
    """Nanoseconds, as all times here."""
    end: int
    ident: int = 0
    """Correlation of a call; external id of a range."""


@dataclass(slots=True)
class Work:
    """Work on the device."""

    category: str
    start: int
    end: int
    correlation: int
    external: int
    key: tuple[Any, ...]
    """Of a kernel: name, grid, block, registers, shared memory; of a copy: kind, source, target."""
    bytes: int = 0
    stream: int = 0


@dataclass(slots=True)
class Seen:
    """Events of one name's executions."""

    header: dict[str, Any] = field(default_factory=dict)
    events: bool = False
    named: list[Span] = field(default_factory=list)
    """The executions' own."""
    ranges: list[Span] = field(default_factory=list)
    """The user's."""
    outer: dict[int, int] = field(default_factory=dict)
    """Start by external id."""
    calls: list[Span] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


def _text(name: str) -> str:
    """JSON can hold lone surrogates, perfci's documents cannot."""
    return name[:LONGEST_NAME].encode(errors="replace").decode()


def _nanoseconds(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value < LONGEST:
        raise Bad("incomplete", f"{what} is no time: {str(value)[:40]}")
    return round(value * 1000)


def _whole(value: Any, what: str, most: int = 2**63) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise Bad("incomplete", f"{what} is no count: {str(value)[:40]}")
    return value


def _number(args: dict[str, Any], name: str) -> int:
    found = args.get(name, 0)
    return found if isinstance(found, int) else 0


def _triple(value: Any, what: str) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3:
        raise Bad("incomplete", f"{what} has no three dimensions: {str(value)[:40]}")
    x, y, z = (_whole(one, what, 2**31) for one in value)
    return x, y, z


def _work(category: str, name: str, start: int, end: int, args: dict[str, Any]) -> Work:
    correlation = _whole(args.get("correlation", 0), f"correlation of {name[:80]}")
    external = _number(args, "External id") or _number(args, "external id")
    stream = _number(args, "stream")
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
        found = _COPY.fullmatch(name)
        kind, source, target = found.groups() if found else ("", "", "")
        key = (copy_kind(kind), memory(source), memory(target))
    return Work(category, start, end, correlation, external, key, size, stream)


def collect(members: Iterable[tuple[str, Any]], name: str | None) -> Seen:
    """Return the events that count; `name`: of the executions' ranges, None takes all for the user's.

    Raises Bad for an incomplete event, and for more than MOST_EVENTS.
    """
    seen = Seen()
    kept = 0
    for key, event in members:
        if key != "traceEvents":
            seen.header[key] = event
            continue
        seen.events = True
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = event.get("cat")
        if category not in (*RANGES, *CALLS, *WORK):
            continue
        kept += 1
        if kept > MOST_EVENTS:
            raise Bad("incomplete", f"more than {MOST_EVENTS} events", "profile fewer executions of the case")
        title = event.get("name")
        if not isinstance(title, str):
            raise Bad("incomplete", "an event has no name")
        title = _text(title)
        if category in CALLS and title.startswith("hip"):
            raise Bad("incompatible", "is of ROCm, and CUDA's alone are read", "record it on NVIDIA's GPU")
        start = _nanoseconds(event.get("ts"), f"begin of {title[:80]}")
        end = start + _nanoseconds(event.get("dur"), f"duration of {title[:80]}")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if category in WORK:
            seen.work.append(_work(category, title, start, end, args))
            continue
        where = (str(event.get("pid"))[:80], str(event.get("tid"))[:80])
        if category in CALLS:
            ident = _whole(args.get("correlation", 0), f"correlation of {title[:80]}")
            seen.calls.append(Span(plain_call(title), where, start, end, ident))
            continue
        if ident := _number(args, "External id"):
            seen.outer.setdefault(ident, start)
        if title == name:
            seen.named.append(Span(title, where, start, end))
        elif category == "user_annotation" or STEP.fullmatch(title):
            seen.ranges.append(Span(title, where, start, end))
    return seen
