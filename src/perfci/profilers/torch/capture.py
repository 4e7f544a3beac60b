"""Reads a trace of torch.profiler that perfci did not make: of its annotations, or of its kernels."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from perfci.model.profile import Trace
from perfci.profilers.base import Read
from perfci.profilers.cuda import gpus
from perfci.profilers.faults import fault
from perfci.profilers.torch.events import Seen, Span, collect
from perfci.profilers.torch.json import Bad, members
from perfci.profilers.torch.trace import trace_of

MOST_NAMES = 200
"""Annotations of different names: each is read for itself."""
_STEP = re.compile(r"ProfilerStep#\d+")
STEP = "ProfilerStep"
"""The annotation of each step of torch.profiler's schedule, which adds a number."""


def read(path: Path, by: Literal["range", "kernel"]) -> Read[Trace]:
    """Return the traces of annotations (`record_function`) that lie in no other of their process, or of all work under
    the key "". Of an annotation the trace is a mean over its executions, each from its own begin to the end of its own
    last work. What goes wrong is a fault, never an exception.
    """
    found: Read[Trace] = Read()
    try:
        seen = collect(members(path), None)
        told = seen.header.get("deviceProperties")
        devices = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
        found.device, found.capability = gpus(
            (one.get("name"), one.get("computeMajor"), one.get("computeMinor")) for one in devices
        )
        named, overlapping = outermost(seen.ranges) if by == "range" else ({"": [_whole(seen)]}, set[str]())
        if len(named) > MOST_NAMES:
            raise Bad("incomplete", f"more than {MOST_NAMES} annotations of different names", "give them fewer names")
    except Bad as bad:
        found.general.append(fault("torch.profiler", "trace", bad.kind, f"{path.name}: {bad.text}", bad.remedy))
        return found
    for name, spans in named.items():
        own = {id(span) for span in spans}
        ranges = [span for span in seen.ranges if id(span) not in own] if by == "range" else []
        try:
            if name in overlapping:
                raise Bad("incomplete", f"annotations {name[:80]} overlap others", "let one end before the next begins")
            found.seen[name] = trace_of(replace(seen, named=spans, ranges=ranges), name, "cpu", apart=True)
        except Bad as bad:
            text = f"{path.name}: {bad.text}"
            found.faults[name] = [fault("torch.profiler", "trace", bad.kind, text, bad.remedy)]
    return found


def outermost(spans: Iterable[Span]) -> tuple[dict[str, list[Span]], set[str]]:
    """Return the spans that lie in no other of their process, by name, the steps of a schedule under STEP; and the
    names of those that overlap, so that whose a call is could not be told."""
    found: dict[str, list[Span]] = defaultdict(list)
    overlapping: set[str] = set()
    last: dict[str, tuple[int, str]] = {}
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        process, name = str(span.where[0]), STEP if _STEP.fullmatch(span.name) else span.name
        reach, before = last.get(process, (span.start, name))
        if span.end <= reach:
            continue
        if span.start < reach:
            overlapping |= {name, before}
        last[process] = span.end, name
        found[name].append(span)
    return dict(found), overlapping


def _whole(seen: Seen) -> Span:
    """Return a span around all that was seen. Raises Bad where that is nothing."""
    times = [(one.start, one.end) for one in seen.work] + [(one.start, one.end) for one in seen.calls]
    if not times:
        raise Bad("empty", "no kernel and no copy", "let torch.profiler record activities of CUDA")
    return Span("", ("", ""), min(start for start, _ in times), max(end for _, end in times) + 1)
