"""Reads a trace of torch.profiler that perfci did not make."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from perfci.model.profile import Trace
from perfci.profilers.base import Read
from perfci.profilers.cuda import gpus, work
from perfci.profilers.faults import fault
from perfci.profilers.torch.events import STEP, Seen, Span, Work, collect
from perfci.profilers.torch.json import FOREIGN, Bad, members
from perfci.profilers.torch.trace import trace_of

MOST_NAMES = 200
STEPS = "ProfilerStep"
"""All steps of torch.profiler's schedule."""
AGAIN = "record it again"
_ON_CPU = "record it where a GPU is, with ProfilerActivity.CUDA among its activities"


def read(path: Path, by: Literal["range", "kernel"]) -> Read[Trace]:
    """Return the traces of annotations (`record_function`) that lie in no other of their process, each a mean over
    executions to the end of their last work; or of all work under the key "". Never raises."""
    found: Read[Trace] = Read()
    try:
        seen = collect(members(path), None)
        told = seen.header.get("deviceProperties")
        devices = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
        found.device, found.capability = gpus(
            (one.get("name"), one.get("computeMajor"), one.get("computeMinor")) for one in devices
        )
        if not seen.events:
            raise Bad("unreadable", FOREIGN)
        if not seen.work and not any(work(call.name) for call in seen.calls):
            raise Bad("empty", "holds no work of a GPU, no kernel and no copy", _ON_CPU)
        early, since = before(seen)
        named, overlapping = outermost(seen.ranges) if by == "range" else ({"": [_whole(seen)]}, set[str]())
        if len(named) > MOST_NAMES:
            raise Bad("incomplete", f"more than {MOST_NAMES} annotations of different names", "give them fewer names")
    except Bad as bad:
        text, remedy = f"{path.name}: {bad.text}", bad.remedy or AGAIN
        found.general.append(fault("torch.profiler", "trace", bad.kind, text, remedy))
        return found
    if early:
        text = f"{path.name}: {len(early)} kernels and copies were launched before its first call: left out"
        found.general.append(fault("torch.profiler", "trace", "incomplete", text, aside=True))
    # What was launched before a call may have been so in an execution that was open by then.
    unsure = min(since, max(one.start for one in early)) if early and by == "range" else -1
    for name, spans in named.items():
        own = {id(span) for span in spans}
        ranges = [span for span in seen.ranges if id(span) not in own] if by == "range" else []
        whole = [span for span in spans if span.start > unsure]
        try:
            if name in overlapping:
                raise Bad("incomplete", f"annotations {name[:80]} overlap others", "let one end before the next begins")
            if not whole:
                raise Bad("incomplete", "it was open before the first call that the trace holds", "record more of them")
            found.seen[name] = trace_of(replace(seen, named=whole, ranges=ranges), name, "cpu", apart=True)
        except Bad as bad:
            found.faults[name] = [fault("torch.profiler", "trace", bad.kind, bad.text, bad.remedy or AGAIN)]
        if (cut := len(spans) - len(whole)) and whole:
            text = f"executions of {name[:80]} that were open before that call: {cut} of {len(spans)} left out"
            found.general.append(fault("torch.profiler", "trace", "incomplete", text, aside=True))
    return found


def outermost(spans: Iterable[Span]) -> tuple[dict[str, list[Span]], set[str]]:
    """Return the spans that lie in no other of their process, by name, schedule steps under STEPS; and the names that
    overlap, whose calls could not be told apart."""
    found: dict[str, list[Span]] = defaultdict(list)
    overlapping: set[str] = set()
    last: dict[str, tuple[int, str]] = {}
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        process, name = str(span.where[0]), STEPS if STEP.fullmatch(span.name) else span.name
        reach, before = last.get(process, (span.start, name))
        if span.end <= reach:
            continue
        if span.start < reach:
            overlapping |= {name, before}
        last[process] = span.end, name
        found[name].append(span)
    return dict(found), overlapping


def before(seen: Seen) -> tuple[list[Work], int]:
    """Remove from `seen` the work launched before its first call, queued when recording began. Return it, and the time
    at which that call had begun.

    CUDA numbers calls in order: where each thread's numbers rise, a smaller number is older.
    """
    numbered = sorted((call for call in seen.calls if call.ident), key=lambda one: (one.start, one.ident))
    last: dict[tuple[str, str], int] = {}
    for call in numbered:
        if call.ident < last.get(call.where, 0):
            return [], 0
        last[call.where] = call.ident
    if not numbered:
        return [], 0
    first = min(numbered, key=lambda one: one.ident)
    early = [one for one in seen.work if 0 < one.correlation < first.ident and one.external not in seen.outer]
    taken = {id(one) for one in early}
    seen.work = [one for one in seen.work if id(one) not in taken]
    return early, first.end


def _whole(seen: Seen) -> Span:
    times = [(one.start, one.end) for one in seen.work] + [(one.start, one.end) for one in seen.calls]
    return Span("", ("", ""), min(start for start, _ in times), max(end for _, end in times) + 1)
