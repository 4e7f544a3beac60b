"""The profile of a case, made ready for the report."""

import math

from perfci.judge.explain.difference import Explanation, explain, explain_one
from perfci.judge.explain.names import short_names
from perfci.judge.explain.roofline import links, of_side
from perfci.judge.explain.seen import faults
from perfci.judge.explain.tuning import changes, variations
from perfci.model.base import SIDES
from perfci.model.fingerprint import Ceilings
from perfci.model.metrics import CATALOGUE, resolve
from perfci.model.profile import KernelUse, Profile
from perfci.model.report import CallRow, CaseProfile, CopyRow, KernelRow, Observed, OsCallRow, Row
from perfci.model.results import Case
from perfci.model.text import count
from perfci.model.units import show

MOST_KERNELS = 20
"""Kernels of a case that a report lists."""
MOST_CALLS, LEAST_SHARE = 8, 0.01
"""Functions of the CUDA API that are listed, and the least share of the host's time in it; of the OS runtime
likewise."""


MOST_TUNED = 3
"""Kernels of a case whose autotuning is told."""


def seen(case: Case) -> bool:
    """Tell whether a profiler saw the case, or failed to, or its tuning moved."""
    return bool(changes(case) or variations(case)) or any(_profiled(side.profile) for side in case.sides.values())


def _profiled(profile: Profile | None) -> bool:
    return profile is not None and bool(profile.trace or profile.counters or profile.faults)


def case_profile(case: Case, rows: list[Row], ceilings: Ceilings | None, *, host: bool = False) -> CaseProfile:
    """Return all that the report says of a case's profile. `ceilings`: of its device.

    `host`: list what the host calls and what is copied.
    """
    found = {name: case.sides[name].profile for name in SIDES if name in case.sides}
    base, head = found.get("base"), found.get("head")
    change = next((row.change for row in rows if row.metric == "time" and row.against == "base"), None)
    told = _explained(base, head, change) if case.device == "cuda" else _on_the_cpu(head)
    reports = head.reports if head and head.reports else 1
    if reports > 1:
        told.sentences.insert(0, f"{case.kernel} reports {reports} cases: what profilers saw is of all together")
    # Chosen by the very workers that were timed.
    told.sentences[:0] = [*changes(case), *variations(case)][:MOST_TUNED]
    missing = {name: faults(profile) for name, profile in found.items() if profile}
    remedies = {fault.remedy for one in missing.values() for fault in one}
    return CaseProfile(
        case=case.id,
        device=case.device,
        sentences=told.sentences,
        next_steps=[step for step in told.next_steps if step not in remedies],  # they stand beside their faults
        roofline=_roofline(case, head, ceilings),
        sources=_sources(base, head),
        kernels=_kernels(base, head),
        calls=_calls(base, head) if host else [],
        copies=_copies(base, head) if host else [],
        os_calls=_os_calls(base, head) if host else [],
        memory=_memory(base, head) if host else [],
        observed=_observed(base, head),
        faults=[
            f"{name}: {fault.tool}: {fault.text}" + (f": {fault.remedy}" if fault.remedy else "")
            for name, one in missing.items()
            for fault in one
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


def _kernels(base: Profile | None, head: Profile | None) -> list[KernelRow]:
    rows: dict[str, KernelRow] = {}
    for side, profile in (("base", base), ("head", head)):
        for kernel in _used(profile):
            row = rows.setdefault(kernel.name, KernelRow(name=kernel.name))
            setattr(row, f"{side}_count", (getattr(row, f"{side}_count") or 0.0) + kernel.count)
            setattr(row, f"{side}_seconds", (getattr(row, f"{side}_seconds") or 0.0) + kernel.seconds)
    longest = sorted(rows.values(), key=lambda row: (-max(row.base_seconds or 0, row.head_seconds or 0), row.name))
    short = short_names(row.name for row in longest)
    return [row.model_copy(update={"short": short[row.name]}) for row in longest[:MOST_KERNELS]]


def _calls(base: Profile | None, head: Profile | None) -> list[CallRow]:
    rows: dict[str, CallRow] = {}
    for side, profile in (("base", base), ("head", head)):
        told = profile.trace.calls if profile and profile.trace else []
        whole = math.fsum(call.seconds for call in told)
        for call in told:
            row = rows.setdefault(call.name, CallRow(name=call.name))
            setattr(row, f"{side}_count", call.count)
            setattr(row, f"{side}_seconds", call.seconds)
            setattr(row, f"{side}_share", call.seconds / whole if whole > 0 else None)
    large = [row for row in rows.values() if max(row.base_share or 0.0, row.head_share or 0.0) >= LEAST_SHARE]
    return sorted(large, key=lambda row: (-max(row.base_seconds or 0.0, row.head_seconds or 0.0), row.name))[
        :MOST_CALLS
    ]


def _copies(base: Profile | None, head: Profile | None) -> list[CopyRow]:
    rows: dict[str, CopyRow] = {}
    for side, profile in (("base", base), ("head", head)):
        for copy in profile.trace.copies if profile and profile.trace else []:
            memory = {"host to device": copy.source, "device to host": copy.target}.get(copy.kind, "unknown")
            name = copy.kind if memory == "unknown" else f"{copy.kind}, {memory}"
            row = rows.setdefault(name, CopyRow(name=name))
            setattr(row, f"{side}_bytes", (getattr(row, f"{side}_bytes") or 0.0) + copy.bytes)
            setattr(row, f"{side}_seconds", (getattr(row, f"{side}_seconds") or 0.0) + copy.seconds)
    return sorted(rows.values(), key=lambda row: (-max(row.base_seconds or 0.0, row.head_seconds or 0.0), row.name))


def _os_calls(base: Profile | None, head: Profile | None) -> list[OsCallRow]:
    rows: dict[str, OsCallRow] = {}
    least: dict[str, float] = {}
    for side, profile in (("base", base), ("head", head)):
        told = profile.trace.os_calls if profile and profile.trace else []
        whole, launching = math.fsum(call.seconds for call in told), math.fsum(call.launching for call in told)
        for call in told:
            row = rows.setdefault(call.name, OsCallRow(name=call.name))
            setattr(row, f"{side}_count", call.count)
            setattr(row, f"{side}_seconds", call.seconds)
            setattr(row, f"{side}_share", call.seconds / whole if whole > 0 else None)
            setattr(row, f"{side}_launching", call.launching if launching > 0 else None)
            shares = [call.seconds / whole if whole > 0 else 0.0, call.launching / launching if launching > 0 else 0.0]
            least[call.name] = max(least.get(call.name, 0.0), *shares)
    large = [row for row in rows.values() if least[row.name] >= LEAST_SHARE]
    return sorted(large, key=lambda row: (-max(row.base_seconds or 0.0, row.head_seconds or 0.0), row.name))[
        :MOST_CALLS
    ]


def _memory(base: Profile | None, head: Profile | None) -> list[Observed]:
    used = [profile.trace.memory if profile and profile.trace else None for profile in (base, head)]
    if not any(used):
        return []
    peaks, ends = ([getattr(one, name) if one else None for one in used] for name in ("peak", "final"))
    return [
        Observed(metric="allocated at most", unit="B", base=peaks[0], head=peaks[1]),
        Observed(metric="allocated at the end", unit="B", base=ends[0], head=ends[1]),
    ]


def _used(profile: Profile | None) -> list[KernelUse]:
    return profile.trace.kernels if profile and profile.trace else []


def _observed(base: Profile | None, head: Profile | None) -> list[Observed]:
    values = [profile.metrics if profile else {} for profile in (base, head)]
    names = [name for name in CATALOGUE if any(name in one for one in values)]
    names += sorted({name for one in values for name in one} - set(CATALOGUE))
    return [
        Observed(metric=name, unit=resolve(name, {}).unit, base=values[0].get(name), head=values[1].get(name))
        for name in names
    ]
