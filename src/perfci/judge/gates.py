"""Rows that hold what a profiler saw once against a limit. No statistics: base and head are single observations.

A value beside a fault that could have changed it is none: it neither keeps a limit nor breaks one.
"""

from typing import Any

from perfci.judge import already
from perfci.judge.explain.names import brief_names
from perfci.judge.explain.seen import kernelless
from perfci.judge.status import Context, about
from perfci.judge.words import beyond, change_words
from perfci.model.base import Side
from perfci.model.metrics import CHECKED, UNSEEN_OF_COMMANDS
from perfci.model.plan import Gate
from perfci.model.profile import Fault, Profile, concerns, doubt
from perfci.model.report import Class, Effect, Row
from perfci.model.results import Case
from perfci.model.text import finds, listed
from perfci.model.units import limit_percent, show


def gate_row(context: Context, case: Case, gate: Gate) -> Row:
    """The row of one gate of a case that works in head, and for a relative limit is compared with base."""
    if case.origin == "command" and (why := _not_of_the_case(case, gate)):
        fields = _judged("invalid", gate.on_missing, f"not judged: {why}")
    else:
        fields = _kernels(context, case, gate) if gate.kind == "kernels" else _value(context, case, gate)
    said: dict[str, Any] = {"metric": gate.metric, "unit": gate.unit, "kind": gate.kind, "limit_source": gate.source}
    if gate.kind != "kernels":
        said["limit"] = gate.bound
    return Row(**about(case), **said, **fields)


def _judged(class_: Class, effect: Effect, reason: str, **values: float | None) -> dict[str, Any]:
    return {"class": class_, "effect": effect, "reason": reason, **values}


def _profile(case: Case, side: Side) -> Profile:
    found = case.sides[side].profile if side in case.sides else None
    return found or Profile()


def _not_of_the_case(case: Case, gate: Gate) -> str:
    """Why what profilers see of a command, as a whole, does not tell this of its case; empty where it does."""
    reports = max((side.profile.reports or 1 for side in case.sides.values() if side.profile), default=1)
    if reports > 1:
        text = f"profilers see {case.kernel} as a whole, and it reports {reports} cases"
        return f"{text}: declare a command that reports this one alone"
    if gate.metric in UNSEEN_OF_COMMANDS:
        return f"{gate.metric} of a command would hold its start and end, or has no check: declare a kernel"
    return ""


def _told(profile: Profile, gate: Gate) -> float | None:
    """The value of a gate's metric; None where there is none that stands."""
    return None if doubt(profile, gate.metric) else profile.metrics.get(gate.metric)


def _value(context: Context, case: Case, gate: Gate) -> dict[str, Any]:
    base = _told(_profile(case, "base"), gate)
    head = _told(_profile(case, "head"), gate)
    if head is None:
        return _judged("invalid", gate.on_missing, f"not measured: {_why(case, 'head', gate)}", base=base)
    shown = show(head, gate.unit)
    if gate.kind == "regression":
        if base is None:
            if context.compared and not _has_none(_profile(case, "base"), gate):
                return _judged("invalid", gate.on_missing, f"not measured: {_why(case, 'base', gate)}", head=head)
            reason = f"head has {gate.metric}, base has not: nothing to compare with"
            return _judged("added", "pass", reason, head=head)
        return _relative(context, gate, base, head)
    sign = 1 if gate.kind == "max" else -1
    bound = show(gate.bound, gate.unit)
    if sign * (head - gate.bound) <= 0:
        return _judged("unchanged", "pass", f"{shown} is within the limit of {bound}", base=base, head=head)
    broken = f"{shown} is {beyond(gate.kind)} the limit of {bound}"
    effect = context.effect("violation", gate.severity)
    if base is not None and sign * (base - gate.bound) > 0:
        effect, broken = already.observed(context, gate, base, head, broken)
    return _judged("violation", effect, broken, base=base, head=head)


def _has_none(profile: Profile, gate: Gate) -> bool:
    """Whether it was seen whole that there is nothing to tell of a gate's metric, as of a range that is new in head."""
    if doubt(profile, gate.metric):
        return False
    if gate.metric in CHECKED:
        return True
    if gate.metric.startswith(("range:", "copy_bandwidth")):
        return profile.trace is not None
    return kernelless(profile)


def _relative(context: Context, gate: Gate, base: float, head: float) -> dict[str, Any]:
    """Exact: the same code gives the same value."""
    worse = head > base if gate.better == "lower" else head < base
    change = head / base if base > 0 else None
    values = f"{show(base, gate.unit)} → {show(head, gate.unit)}"
    fields: dict[str, Any] = {"change": change, "worse": None if head == base else worse}
    if base == head:
        return {**_judged("unchanged", "pass", f"{values}: the same", base=base, head=head), **fields}
    words = values if change is None else f"{values}: {change_words(change, gate.metric)}"
    if not worse:
        return {**_judged("improvement", "pass", words, base=base, head=head), **fields}
    allowed = base * (1 + gate.bound) if gate.better == "lower" else base * (1 - gate.bound)
    if head <= allowed if gate.better == "lower" else head >= allowed:
        reason = f"{words}, within the limit of {limit_percent(gate.bound)}"
        return {**_judged("unchanged", "pass", reason, base=base, head=head), **fields}
    reason = f"{words}; the limit is {limit_percent(gate.bound)}"
    row = _judged("regression", context.effect("regression", gate.severity), reason, base=base, head=head)
    return {**row, **fields}


def _kernels(context: Context, case: Case, gate: Gate) -> dict[str, Any]:
    """Whether some kernel has the name that the limit expects."""
    seen = _profile(case, "head")
    names = _names(seen)
    if not names:
        return _judged("invalid", gate.on_missing, f"no kernel was seen: {_why(case, 'head', gate)}")
    if any(finds(gate.pattern, name) for name in names):  # what was lost beside it cannot undo it
        return _judged("unchanged", "pass", f"a kernel matches {gate.pattern}")
    # Of a command only the kernels are counted that were asked for.
    if doubt(seen, gate.metric) or (case.origin == "command" and seen.trace is None):
        reason = f"no kernel that was seen matches {gate.pattern}, and not all were: {_why(case, 'head', gate)}"
        return _judged("invalid", gate.on_missing, reason)
    broken = f"no kernel matches {gate.pattern}: {listed(brief_names(names), 2, '`')}"
    effect = context.effect("violation", gate.severity)
    base = _profile(case, "base")
    in_base = [] if doubt(base, gate.metric) else _names(base)
    if in_base and not any(finds(gate.pattern, name) for name in in_base):
        effect, broken = "warn", f"{broken}, as it already was in base"
    return _judged("violation", effect, broken)


def _names(profile: Profile) -> list[str]:
    """Names of the kernels, longest first: of the timeline, else of the counters."""
    seen = profile.trace or profile.counters
    return list(dict.fromkeys(kernel.name for kernel in seen.kernels)) if seen else []


def _why(case: Case, side: Side, gate: Gate) -> str:
    """Why a side has no value of a gate's metric that stands."""
    profile = _profile(case, side)
    of_kernels = gate.tier == "counters" or (gate.tier == "static" and gate.metric not in CHECKED)
    if of_kernels and case.device == "cuda" and kernelless(profile):
        return f"{side} launches no kernel, so that there is none to count: take the limit off the case"
    fault = doubt(profile, gate.metric) or _absence(profile, gate)
    if fault is not None:
        return f"{fault.tool}: {fault.text}" + (f": {fault.remedy}" if fault.remedy else "")
    if gate.metric.startswith("range:"):
        return f"{side} has no NVTX range {gate.metric.removeprefix('range:')!r} with device work"
    if profile.trace is None and profile.counters is None:
        return "no profiler looked at it"
    return f"{side} has no {gate.metric}"


def _absence(profile: Profile, gate: Gate) -> Fault | None:
    """Return the first fault of the timeline where names of kernels are asked and it is missing."""
    if gate.metric != "kernels" or profile.trace is not None:
        return None
    return next((one for one in profile.faults if one.part == "trace" and concerns(one, gate.metric)), None)
