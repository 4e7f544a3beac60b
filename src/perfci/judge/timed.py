"""Rows of criteria that worker pairs decide."""

from typing import Any

import numpy as np

from perfci.judge.inconclusive import DRIFTS, LEVEL, enough, stopped, too_few, undecided, unproved
from perfci.judge.starved import unreached
from perfci.judge.status import Context, centre, criterion_row, effect_if_missing
from perfci.judge.words import change_words, show_clock, still_worse
from perfci.model.base import SIDES
from perfci.model.comparison import alternatives
from perfci.model.criteria import Criterion
from perfci.model.metrics import DERIVED, HOST_TIME
from perfci.model.profile import concerns
from perfci.model.report import UNANSWERED, Class, Effect, Interval, Row
from perfci.model.results import Case
from perfci.model.units import limit_percent, percent, show
from perfci.stats.answer import Answer, answer
from perfci.stats.decide import margin
from perfci.stats.equal_clock import LogRatios
from perfci.stats.lag import beyond_drift
from perfci.stats.series import paired, side_values, values_of
from perfci.stats.walsh import Array, hodges_lehmann, interval

NOISE = 1e-9
"""Relative change beyond which a value differs at all."""


def timed_row(context: Context, case: Case, criterion: Criterion) -> Row:
    """Return the row of a case that runs in head, where relative in base."""
    found = answer(case, criterion, context.looks, context.m, ended=True)
    decision = found.decision
    if criterion.metric == HOST_TIME and (untold := _untold(case, criterion)) is not None:
        row = untold
    elif criterion.metric == "speedup" and (unlike := _unlike(context, case, criterion)) is not None:
        row = unlike
    elif decision.status == "invalid":
        row = _invalid(context, case, criterion, found)
    else:
        row = _decided(context, case, criterion, found)
    fails = row.effect == "fail" or "broken" not in criterion.fail_on
    failed = fails and row.class_ in ("regression", "violation")
    update: dict[str, Any] = {"limit": found.limit}
    if context.dependent and failed and not _stands(criterion, found):
        # Its effect stays: drift must not turn a slow-down green.
        update |= {"class_": "inconclusive", "look": None, "reason": f"{row.reason}; {DRIFTS}"}
    return row.model_copy(update=update)


def _decided(context: Context, case: Case, criterion: Criterion, found: Answer) -> Row:
    decision = found.decision
    if found.ratios is not None:
        row = _relative(context, case, criterion, found, found.ratios)
    else:
        row = _absolute(context, case, criterion, found)
    return row.model_copy(
        update={
            "base": centre(found.base),
            "head": centre(found.head),
            "pairs": decision.n,
            "look": None if row.class_ == "inconclusive" else decision.look,
            "last_look": decision.last,
            "early_look": decision.early,
            "p": decision.p,
        }
    )


def _stands(criterion: Criterion, found: Answer) -> bool:
    if found.ratios is None:
        sign = 1 if criterion.beyond == "above" else -1
        already = bool(found.base.size) and criterion.broken_by(hodges_lehmann(found.base))
        return not already and beyond_drift(sign * (found.head - found.limit))
    worse = criterion.sign * found.ratios.x
    return beyond_drift(worse - margin(found.limit, criterion.better))


def _unlike(context: Context, case: Case, criterion: Criterion) -> Row | None:
    """Of an alternative that differs between the sides, or did not always run; for a wrong one see `_unmeasured`."""
    sides = case.sides
    if "base" in sides and "head" in sides and (why := alternatives(sides["base"], sides["head"])):
        effect = context.effect_if_unanswered(case)
        return criterion_row(case, criterion, "changed", effect, f"no speed-up to hold head to: {why}")
    if refused := next((pair.refused for pair in case.pairs if pair.refused), ""):
        reason = f"not measured: {_alternative_name(case)} failed: {refused}"
        return criterion_row(case, criterion, "invalid", effect_if_missing(criterion), reason)
    return None


def _untold(case: Case, criterion: Criterion) -> Row | None:
    """Of a host time that cannot be told from the GPU's: head is not at fault where base's cannot be either."""
    timing = case.sides["head"].timing
    if timing is None or timing.host is None:
        return None
    base = case.sides.get("base")
    effect = "warn" if base is not None and base.host is None else effect_if_missing(criterion)
    return criterion_row(case, criterion, "invalid", effect, f"not measured: {timing.host}")


def _alternative_name(case: Case) -> str:
    head = case.sides.get("head")
    return head.versus.name if head is not None and head.versus is not None else ""


def _effect(context: Context, case: Case, class_: Class, criterion: Criterion) -> Effect:
    if class_ in UNANSWERED and context.starved and unreached(context, case):
        return "undecided"
    return context.effect(class_, criterion)


def _invalid(context: Context, case: Case, criterion: Criterion, found: Answer) -> Row:
    metric, code = criterion.metric, found.decision.reason_code
    class_: Class = "invalid"
    effect = _effect(context, case, "invalid", criterion)
    match code:
        case "empty" | "unmeasured" if why := _counted_alone(case):
            effect, reason = effect_if_missing(criterion), f"not measured: {why}"
        case "empty" | "unmeasured" | "base_unmeasured" if why := _lost(case):
            effect, reason = effect_if_missing(criterion), f"not measured: {why}"
        case "empty" if not case.pairs:
            reason = f"no finished pair{stopped(case)}{enough(case)}"
        case "empty":
            reason = f"no finished pair has {metric} in base and in head"
        case "unmeasured":
            effect, reason = effect_if_missing(criterion), f"not measured: {_unmeasured(case, metric)}"
        case "base_unmeasured":
            class_, effect = "added", "pass"
            reason = f"head has {metric}, base has not: nothing to compare with"
        case "nonfinite":
            reason = f"{metric} of a worker is not a finite number"
        case "nonpositive":
            reason = f"{metric} of a worker is not positive"
        case "bad_clock":
            reason = "the clock measured beside a worker is not a finite positive number"
        case "margin" if criterion.better == "higher" and found.limit >= 1:
            reason = f"{metric} cannot fall by {limit_percent(found.limit)}: choose a limit under 100 %"
        case "margin":
            reason = f"measured values cannot be held to {limit_percent(found.limit)}: choose a larger limit"
        case _:
            reason = f"the limit {found.limit} is not a finite number"
    base, head = (centre(side_values(case, side, metric)) for side in SIDES)
    return criterion_row(case, criterion, class_, effect, reason, base=base, head=head, pairs=found.decision.n)


def _counted_alone(case: Case) -> str:
    profiles = [side.profile for side in case.sides.values() if side.profile is not None]
    counters = next((one.counters for one in profiles if one.counters is not None), None)
    if case.origin != "imported" or counters is None or any(one.trace for one in profiles):
        return ""
    how = "it runs kernels one by one, with caches flushed and clocks as it sets them"
    return f"times under {counters.source} are no latency: {how}: import a timeline beside it, or measure with perfci"


def _lost(case: Case) -> str:
    lacking = (
        f"{name}: {fault.tool}: {fault.text}"
        for name, side in case.sides.items()
        for fault in (side.profile.faults if case.captured and side.profile is not None else ())
        if fault.part == "trace" and concerns(fault, "device_busy")
    )
    return next(lacking, "")


def _unmeasured(case: Case, metric: str) -> str:
    if metric == "throughput" and case.captured:
        return "a capture does not tell how many items an execution has: give --items GLOB=NUMBER"
    if metric == "speedup" and case.origin == "kernel":
        versus = case.sides["head"].versus
        if versus is None:
            return "head declares no alternative: bench.versus(NAME, lambda: …)"
        return f"{versus.name} is no alternative: {versus.wrong}" if versus.wrong else f"{versus.name} was not timed"
    if metric in DERIVED and side_values(case, "head", "time").size:
        return f"head declares no {DERIVED[metric].words}"
    if side_values(case, "base", metric).size:
        return f"base has {metric}, head has not"
    return f"head has no {metric}"


def ratio(logs: Array) -> tuple[float, Interval]:
    """Return the ratio head/base, and its interval."""
    low, high, level = interval(logs, LEVEL)
    with np.errstate(over="ignore"):  # a ratio beyond all numbers is infinite
        change, low, high = (float(v) for v in np.exp([hodges_lehmann(logs), low, high]))
    return change, Interval(low=low, high=high, level=level)


def _relative(context: Context, case: Case, criterion: Criterion, found: Answer, ratios: LogRatios) -> Row:
    metric, decision = criterion.metric, found.decision
    (change, bounds), (measured, measured_bounds) = ratio(ratios.x), ratio(ratios.measured)
    words, seen = change_words(change, metric), _seen(change, bounds, metric)
    limit = limit_percent(found.limit)
    line = f"half of the whole change is {percent(found.limit)}" if criterion.threshold else f"the limit is {limit}"
    # The clock is spoken of where it is plain to see beside limit and noise, or where equal clock alone decides.
    shown = max(found.limit / 10, (bounds.high - bounds.low) / 4)
    aside = ""
    if ratios.hertz is not None and (abs(measured / change - 1) > shown or found.only_at_equal_clock):
        aside = f" at equal clock ({_seen(measured, measured_bounds, metric)} as measured: {_clocks(ratios)})"
    class_: Class
    match decision.status:
        case "regression":
            short = not criterion.threshold and abs(change - 1) < found.limit
            end = f", shown to be more than half of the limit of {limit}" if short else f"; {line}"
            class_, reason = "regression", f"{words}{aside}{end}"
        case "clock":
            class_ = "clock"
            if found.only_at_equal_clock:
                reason = f"{words} at equal clock, not as measured: {_clocks(ratios)}"
            else:
                reason = f"{change_words(measured, metric)} as measured, not at equal clock: {_clocks(ratios)}"
            change, bounds = measured, measured_bounds
        case "improvement":
            class_, reason = "improvement", f"{words}{aside}, {_between(bounds, metric)}"
        case "unchanged":
            class_, reason = "unchanged", f"a change for the worse of {limit} is excluded{aside}"
        case _:
            class_ = "inconclusive"
            told = f"{seen}{aside}" if bounds.holds(1) else f"{seen}{aside}, {_between(bounds, metric)}"
            reason = undecided(context, case, criterion, found, ratios.x, told)
    plain = not measured_bounds.holds(1) and (measured > 1) == (change > 1)
    if aside and class_ in ("regression", "improvement") and plain:
        # Beside the measured values of base and head, and in the headline, stands what was measured.
        change, bounds = measured, measured_bounds
    effect = _effect(context, case, class_, criterion)
    worse = None if change == 1 else criterion.worse(change, 1)
    return criterion_row(case, criterion, class_, effect, reason, change=change, worse=worse, interval=_known(bounds))


def _known(bounds: Interval) -> Interval | None:
    return bounds if bounds.level > 0 else None  # of a single pair or worker there is none


def _seen(change: float, bounds: Interval, metric: str) -> str:
    """The change; its interval where that holds no change at all, and so no direction."""
    return _between(bounds, metric) if bounds.holds(1) else change_words(change, metric)


def _between(bounds: Interval, metric: str) -> str:
    return f"between {change_words(bounds.low, metric)} and {change_words(bounds.high, metric)}"


def _clocks(ratios: LogRatios) -> str:
    """Geometric means over the pairs decided on."""
    if ratios.hertz is None:
        return "the clock was not measured"
    base, head = (show_clock(float(np.exp(np.nanmean(np.log(hertz))))) for hertz in ratios.hertz)
    return f"head ran at {head}, base at {base}"


def _absolute(context: Context, case: Case, criterion: Criterion, found: Answer) -> Row:
    head, base = centre(found.head), centre(found.base)
    bound, value = show(found.limit, criterion.unit), show(head, criterion.unit)
    if criterion.metric == "speedup":
        value += f" against {_alternative_name(case)}"
    bounds = Interval(**interval(found.head, LEVEL)._asdict())
    broken = f"{value} is {criterion.beyond} the limit of {bound}"
    class_: Class
    match found.decision.status:
        case "violation":
            class_, reason = "violation", broken
        case "unchanged":
            class_, reason = "unchanged", f"{value} is within the limit of {bound}"
        case _:
            class_ = "inconclusive"
            reason = unproved(context, case, criterion, found, broken)
    effect = _effect(context, case, class_, criterion)
    if class_ == "violation" and case.answered(criterion.metric) and case.proof is not None:
        effect, reason = "warn", f"{broken}, and base's as well: {case.proof.reason}"
    elif class_ == "violation" and base is not None and criterion.broken_by(base):
        effect, reason = _already_broken(context, case, criterion, base, broken)
    return criterion_row(case, criterion, class_, effect, reason, interval=_known(bounds))


def _already_broken(context: Context, case: Case, criterion: Criterion, base: float, broken: str) -> tuple[Effect, str]:
    """`base`: its centre, beyond the bound; `broken`: how head breaks it.

    Head fails where it is worse by more than the relative limit, or without one where it is shown to be worse at all,
    within the bound's own share of α.
    """
    was = show(base, criterion.unit)
    relative = context.relative_to(criterion) or criterion.against_base(NOISE)
    found = answer(case, relative, context.looks, context.m, ended=True).decision
    if found.status == "regression":
        centres = (hodges_lehmann(values) for values in values_of(paired(case, criterion.metric)))
        reason = still_worse(broken, was, *centres, metric=criterion.metric)
        return context.effect("violation", criterion), reason
    already = f"{broken}, as it already was in base ({was})"
    if found.status == "invalid":
        why = f"what is known of {criterion.metric} does not show whether head is worse"
        return context.effect("invalid", criterion), f"{already}; {why}"
    needed = context.looks.fewest_to_show(context.m)
    if found.n < needed:
        why = too_few(found.n, needed)
        return context.effect("inconclusive", criterion), f"{already}; {why}"
    return "warn", already
