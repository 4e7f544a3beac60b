"""The profile of a case, for the report."""

import math
from collections.abc import Mapping, Sequence

from perfci.judge.explain.causes import Explanation, explain, explain_one
from perfci.judge.explain.names import short_names
from perfci.judge.explain.roofline import links, of_side
from perfci.judge.explain.seen import faults
from perfci.judge.explain.tuning import MOST_TUNED, changes, variations
from perfci.judge.speed_of_light import TIMED
from perfci.model.base import SIDES, Side
from perfci.model.fingerprint import Ceilings
from perfci.model.metrics import CATALOGUE, resolve
from perfci.model.profile import Call, OsCall, Profile, Trace
from perfci.model.report import BySide, CaseProfile, Class, KernelRow, Observed, Row, Use, UseRow
from perfci.model.results import Case
from perfci.model.text import count
from perfci.model.units import show

MOST_KERNELS = 20
"""Kernels of a case that a report lists."""
MOST_CALLS, LEAST_SHARE = 8, 0.01
"""Functions listed of the CUDA API and the OS runtime, and the least share of the host's time in it."""
CAUSED: frozenset[Class] = frozenset({"regression", "improvement", "clock", "inconclusive"})
"""Classes beside whose change its cause stands."""


def seen(case: Case) -> bool:
    """Tell whether a profiler saw the case, or failed to, or its tuning moved."""
    return bool(changes(case) or variations(case)) or any(_profiled(side.profile) for side in case.sides.values())


def _profiled(profile: Profile | None) -> bool:
    return profile is not None and bool(profile.trace or profile.counters or profile.faults)


def case_profile(case: Case, rows: list[Row], ceilings: Ceilings | None, *, host: bool = False) -> CaseProfile:
    """Return what the report says of a case's profile; write what moved as the cause into rows of timing.

    `host`: list what the host calls and what is copied.
    """
    found = {name: case.sides[name].profile for name in SIDES if name in case.sides}
    base, head = found.get("base"), found.get("head")
    change = next((row.change for row in rows if row.metric == "time" and row.against == "base"), None)
    told = _explained(base, head, change) if case.device == "cuda" else _on_the_cpu(head)
    moved = changes(case)
    cause = moved[0] if moved else told.cause
    reports = head.reports if head and head.reports else 1
    if reports > 1:
        cause = ""  # what moved may be of another one
        told.sentences.insert(0, f"{case.kernel} reports {reports} cases: what profilers saw is of all together")
    for row in rows:
        if row.against == "base" and row.class_ in CAUSED and row.metric in TIMED:
            row.cause = cause
    # Chosen by the very workers that were timed.
    told.sentences[:0] = [*moved, *variations(case)][:MOST_TUNED]
    traces = {name: profile.trace for name, profile in found.items() if profile and profile.trace}
    return CaseProfile(
        case=case.id,
        device=case.device,
        sentences=told.sentences,
        next_steps=told.next_steps,
        roofline=_roofline(case, head, ceilings),
        sources=_sources(base, head),
        kernels=_kernels(traces),
        uses=_uses(traces) if host else [],
        observed=_observed(base, head),
        faults=[
            f"{name}: {fault.tool}: {fault.text}" + (f": {fault.remedy}" if fault.remedy else "")
            for name, profile in found.items()
            for fault in (faults(profile) if profile else ())
        ],
    )


def _explained(base: Profile | None, head: Profile | None, change: float | None) -> Explanation:
    if head is None or not _profiled(head):
        return Explanation()
    if base is None or not _profiled(base):
        return explain_one(head)
    return explain(base, head, change)


def _on_the_cpu(head: Profile | None) -> Explanation:
    trace = head.trace if head else None
    if trace is None:
        return Explanation()
    what = "recorded" if head and head.reports and not trace.within else "an execution takes"
    wall = f"{what} {show(trace.wall, 's')} under {trace.source}, which sees no kernels on the CPU"
    return Explanation(sentences=[wall, *(f"{one.name}: {show(one.host, 's')}" for one in trace.ranges)])


def _roofline(case: Case, head: Profile | None, ceilings: Ceilings | None) -> str:
    if head and head.trace and not head.trace.kernels:
        return "; ".join(links(head.trace, ceilings))
    found = of_side(case, "head", ceilings)
    return found.sentence if found else ""


def _sources(*sides: Profile | None) -> list[str]:
    found = []
    for profile in sides:
        if profile and profile.trace:
            marked = f" (ranges by {profile.trace.marked})" if profile.trace.marked else ""
            if profile.trace.within:
                marked = f" (range {profile.trace.within}, {count(profile.trace.executions, 'execution')})"
            found.append(f"{profile.trace.source} {profile.trace.version}".strip() + marked)
        if profile and profile.counters:
            found.append(f"{profile.counters.source} {profile.counters.version}".strip())
        if profile and profile.code:
            found.append("machine code")
    return sorted(set(found))


def _longest_first(row: KernelRow | UseRow) -> tuple[float, str]:
    return -max(row.seconds.values(), default=0.0), row.name


def _add(sums: BySide, side: Side, amount: float) -> None:
    sums[side] = sums.get(side, 0.0) + amount


def _kernels(traces: Mapping[Side, Trace]) -> list[KernelRow]:
    rows: dict[str, KernelRow] = {}
    for side, trace in traces.items():
        for kernel in trace.kernels:
            row = rows.setdefault(kernel.name, KernelRow(name=kernel.name))
            _add(row.count, side, kernel.count)
            _add(row.seconds, side, kernel.seconds)
    longest = sorted(rows.values(), key=_longest_first)
    short = short_names(row.name for row in longest)
    return [row.model_copy(update={"short": short[row.name]}) for row in longest[:MOST_KERNELS]]


def _uses(traces: Mapping[Side, Trace]) -> list[UseRow]:
    return [
        *_calls("call", {side: trace.calls for side, trace in traces.items()}),
        *_copies(traces),
        *_calls("os_call", {side: trace.os_calls for side, trace in traces.items()}),
        *_memory(traces),
    ]


def _calls(kind: Use, called: Mapping[Side, Sequence[Call | OsCall]]) -> list[UseRow]:
    rows: dict[str, UseRow] = {}
    large = set()
    for side, calls in called.items():
        launching = {call.name: call.launching for call in calls if isinstance(call, OsCall)}
        whole, launching_whole = math.fsum(call.seconds for call in calls), math.fsum(launching.values())
        for call in calls:
            row = rows.setdefault(call.name, UseRow(kind=kind, name=call.name))
            row.count[side], row.seconds[side] = call.count, call.seconds
            if whole > 0:
                row.share[side] = call.seconds / whole
            if launching_whole > 0:
                row.launching[side] = launching[call.name]
            on_launching = launching.get(call.name, 0.0)
            if call.seconds >= LEAST_SHARE * whole > 0 or on_launching >= LEAST_SHARE * launching_whole > 0:
                large.add(call.name)
    return sorted((rows[name] for name in large), key=_longest_first)[:MOST_CALLS]


def _copies(traces: Mapping[Side, Trace]) -> list[UseRow]:
    rows: dict[str, UseRow] = {}
    for side, trace in traces.items():
        for copy in trace.copies:
            memory = {"host to device": copy.source, "device to host": copy.target}.get(copy.kind, "unknown")
            name = copy.kind if memory == "unknown" else f"{copy.kind}, {memory}"
            row = rows.setdefault(name, UseRow(kind="copy", name=name))
            _add(row.bytes, side, copy.bytes)
            _add(row.seconds, side, copy.seconds)
    return sorted(rows.values(), key=_longest_first)


def _memory(traces: Mapping[Side, Trace]) -> list[UseRow]:
    held = {side: trace.memory for side, trace in traces.items() if trace.memory}
    if not held:
        return []
    peaks, ends = ({side: getattr(memory, part) for side, memory in held.items()} for part in ("peak", "final"))
    return [
        UseRow(kind="memory", name="allocated at most", bytes=peaks),
        UseRow(kind="memory", name="allocated at the end", bytes=ends),
    ]


def _observed(base: Profile | None, head: Profile | None) -> list[Observed]:
    values = [profile.metrics if profile else {} for profile in (base, head)]
    names = [name for name in CATALOGUE if any(name in one for one in values)]
    names += sorted({name for one in values for name in one} - set(CATALOGUE))
    return [
        Observed(metric=name, unit=resolve(name, {}).unit, base=values[0].get(name), head=values[1].get(name))
        for name in names
    ]
