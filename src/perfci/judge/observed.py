"""Rows of criteria on what was observed once a side.

A value beside a fault that could have changed it is none.
"""

from typing import assert_never

from perfci.judge.explain.names import brief_names
from perfci.judge.explain.seen import kernelless
from perfci.judge.status import Context, criterion_row, effect_if_missing
from perfci.judge.words import change_words, still_worse
from perfci.model.base import SIDES, Side
from perfci.model.criteria import Criterion
from perfci.model.metrics import CHECKED, TOLD_OF_RANGES, known_metric
from perfci.model.profile import Fault, Profile, concerns, doubt
from perfci.model.report import Class, Effect, Row
from perfci.model.results import Case
from perfci.model.text import finds, listed
from perfci.model.units import limit_percent, show

CAPTURES = "let the profiler trace it (docs/import.md#captures)"
_BANDWIDTH = "copy_bandwidth"
SCATTER, SCATTER_POINTS = 0.10, 5.0
"""By how much a profiler's inexact value may differ between runs of the same code: a share, and percentage points. An
L2's contents differ by a tenth of the traffic."""
TMA = ("gh", "gb")
"""They have the Tensor Memory Accelerator: Hopper's, Blackwell's."""


def observed_row(context: Context, case: Case, criterion: Criterion) -> Row:
    """Return the row of a case that works in head, comparable where relative."""
    if case.origin == "command" and (why := _not_of_the_case(case, criterion)):
        return criterion_row(case, criterion, "invalid", effect_if_missing(criterion), f"not judged: {why}")
    if criterion.against == "names":
        return _kernels(context, case, criterion)
    base, head = (_told(_profile(case, side), criterion) for side in SIDES)
    if head is None and base is not None and _has_none(case, "head", criterion):
        reason = f"in base, and {_why(case, 'head', criterion)}"
        return criterion_row(case, criterion, "missing", effect_if_missing(criterion), reason, base=base)
    if head is None:
        reason = f"not measured: {_why(case, 'head', criterion)}"
        return criterion_row(case, criterion, "invalid", effect_if_missing(criterion), reason, base=base)
    match criterion.against:
        case "base":
            if base is None:
                return _new(context, case, criterion, head)
            return _relative(context, case, criterion, base, head)
        case "bound":
            return _absolute(context, case, criterion, base, head)
        case _:
            assert_never(criterion.against)


def _profile(case: Case, side: Side) -> Profile:
    found = case.sides[side].profile if side in case.sides else None
    return found or Profile()


def _not_of_the_case(case: Case, criterion: Criterion) -> str:
    reports = max((side.profile.reports or 1 for side in case.sides.values() if side.profile), default=1)
    if reports > 1:
        text = f"profilers see {case.kernel} as a whole, and it reports {reports} cases"
        return f"{text}: declare a command that reports this one alone"
    if criterion.metric in TOLD_OF_RANGES:
        profiled = [side.profile for side in case.sides.values() if side.profile]
        traces = [one.trace for one in profiled if one.trace]
        if profiled and all(trace.within for trace in traces):
            return ""
        text = f"{criterion.metric} of a whole command would hold its start and end"
        return f"{text}: name the NVTX range of its loop (range: NAME), or declare a kernel"
    return ""


def _told(profile: Profile, criterion: Criterion) -> float | None:
    return None if doubt(profile, criterion.metric) else profile.metrics.get(criterion.metric)


def _new(context: Context, case: Case, criterion: Criterion, head: float) -> Row:
    if context.compared and not _has_none(case, "base", criterion):
        reason = f"not measured: {_why(case, 'base', criterion)}"
        return criterion_row(case, criterion, "invalid", effect_if_missing(criterion), reason, head=head)
    reason = f"head has {criterion.metric}, base has not: nothing to compare with"
    return criterion_row(case, criterion, "added", "pass", reason, head=head)


def _absolute(context: Context, case: Case, criterion: Criterion, base: float | None, head: float) -> Row:
    shown, bound = show(head, criterion.unit), show(criterion.bound, criterion.unit)
    if not criterion.broken_by(head):
        reason = f"{shown} is within the limit of {bound}"
        return criterion_row(case, criterion, "unchanged", "pass", reason, base=base, head=head)
    broken = f"{shown} is {criterion.beyond} the limit of {bound}{_round_l1(case, criterion, head)}"
    effect = context.effect("violation", criterion)
    if base is not None and criterion.broken_by(base):
        effect, broken = _already_broken(context, criterion, base, head, broken)
    return criterion_row(case, criterion, "violation", effect, broken, base=base, head=head)


def inapplicable(case: Case, criterion: Criterion) -> bool:
    """Tell whether a limit not naming the case asks it for what no side has."""
    if criterion.named or not (_of_kernels(criterion) or criterion.metric.startswith(_BANDWIDTH)):
        return False
    sides = [name for name in SIDES if name in case.sides and case.sides[name].status != "absent"]
    return all(_told(_profile(case, name), criterion) is None and _has_none(case, name, criterion) for name in sides)


def _of_kernels(criterion: Criterion) -> bool:
    return criterion.tier == "counters" or (criterion.tier == "static" and criterion.metric not in CHECKED)


def _has_none(case: Case, side: Side, criterion: Criterion) -> bool:
    profile = _profile(case, side)
    if _of_kernels(criterion):
        return kernelless(profile)
    if doubt(profile, criterion.metric):
        return False
    if criterion.metric in CHECKED:
        return case.origin == "kernel"
    return criterion.metric.startswith(("range:", _BANDWIDTH)) and profile.trace is not None


def _relative(context: Context, case: Case, criterion: Criterion, base: float, head: float) -> Row:
    class_: Class = "unchanged"
    effect: Effect = "pass"
    change = head / base if base > 0 else None
    values = f"{show(base, criterion.unit)} → {show(head, criterion.unit)}"
    words = values if change is None else f"{values}: {change_words(change, criterion.metric)}"
    worse, limit, known = criterion.worse(head, base), limit_percent(criterion.bound), known_metric(criterion.metric)
    if base == head:
        reason = f"{values}: the same"
    elif known is not None and abs(head - base) <= known.scatter * abs(base):
        reason = f"{words}, and runs of the same code differ by up to {limit_percent(known.scatter)}"
    elif not worse:
        class_, reason = "improvement", words
    elif not criterion.broken_by(head, base):
        reason = f"{words}, within the limit of {limit}"
    else:
        class_, effect = "regression", context.effect("regression", criterion)
        reason = f"{words}; the limit is {limit}"
    moved = None if head == base else worse
    return criterion_row(case, criterion, class_, effect, reason, base=base, head=head, change=change, worse=moved)


def _round_l1(case: Case, criterion: Criterion, head: float) -> str:
    counters = _profile(case, "head").counters
    if criterion.metric != "l1_hit_rate" or head >= 1 or counters is None or not counters.chip.startswith(TMA):
        return ""
    return "; what TMA copies to shared memory goes round L1 and counts as neither hit nor miss"


def _already_broken(
    context: Context, criterion: Criterion, base: float, head: float, broken: str
) -> tuple[Effect, str]:
    """Without a relative limit head may be worse by what such values scatter by."""
    was = show(base, criterion.unit)
    limit = context.relative_to(criterion)
    if limit is not None:
        allowed = abs(base) * limit.bound
    elif (known := known_metric(criterion.metric)) is not None and known.exact:
        allowed = known.scatter * abs(base)
    else:
        allowed = SCATTER_POINTS if criterion.unit == "%" else abs(base) * SCATTER
    if criterion.worse(head, base) and abs(head - base) > allowed:
        reason = still_worse(broken, was, base, head, metric=criterion.metric)
        return context.effect("violation", criterion), reason
    return "warn", f"{broken}, as it already was in base ({was})"


def _kernels(context: Context, case: Case, criterion: Criterion) -> Row:
    seen = _profile(case, "head")
    names = _names(seen)
    if not names:
        reason = f"no kernel was seen: {_why(case, 'head', criterion)}"
        return criterion_row(case, criterion, "invalid", effect_if_missing(criterion), reason)
    if any(finds(criterion.pattern, name) for name in names):  # what was lost beside it cannot undo it
        return criterion_row(case, criterion, "unchanged", "pass", f"a kernel matches {criterion.pattern}")
    # Of a command only the kernels are counted that were asked for.
    if doubt(seen, criterion.metric) or (case.origin == "command" and seen.trace is None):
        reason = (
            f"no kernel that was seen matches {criterion.pattern}, and not all were: {_why(case, 'head', criterion)}"
        )
        return criterion_row(case, criterion, "invalid", effect_if_missing(criterion), reason)
    broken = f"no kernel matches {criterion.pattern}: {listed(brief_names(names), 2, '`')}"
    effect = context.effect("violation", criterion)
    base = _profile(case, "base")
    in_base = [] if doubt(base, criterion.metric) else _names(base)
    if in_base and not any(finds(criterion.pattern, name) for name in in_base):
        effect, broken = "warn", f"{broken}, as it already was in base"
    return criterion_row(case, criterion, "violation", effect, broken)


def _names(profile: Profile) -> list[str]:
    seen = profile.trace or profile.counters
    return list(dict.fromkeys(kernel.name for kernel in seen.kernels)) if seen else []


def _why(case: Case, side: Side, criterion: Criterion) -> str:
    profile = _profile(case, side)
    if _of_kernels(criterion) and case.device == "cuda" and kernelless(profile):
        return f"{side} launches no kernel, so that there is none to count: take the limit off the case"
    fault = doubt(profile, criterion.metric) or _absence(profile, criterion)
    traced = criterion.metric in CHECKED and case.origin != "kernel"
    if traced and fault is None:
        fault = next((one for one in profile.faults if criterion.metric in one.metrics), None)
    if fault is not None:
        return f"{fault.tool}: {fault.text}" + (f": {fault.remedy}" if fault.remedy else "")
    if criterion.metric.startswith("range:"):
        return f"{side} has no NVTX range {criterion.metric.removeprefix('range:')!r} with device work"
    if profile.trace is None and profile.counters is None:
        return "it was not profiled"
    if traced:
        return f"the use of device memory is not in the timeline of {side}: {CAPTURES}"
    if criterion.tier == "counters" and profile.counters is not None:
        return f"{criterion.metric} is not among what was counted of {side}: measure or import anew with this limit"
    return f"{side} has no {criterion.metric}"


def _absence(profile: Profile, criterion: Criterion) -> Fault | None:
    if criterion.metric != "kernels" or profile.trace is not None:
        return None
    return next((one for one in profile.faults if one.part == "trace" and concerns(one, criterion.metric)), None)
