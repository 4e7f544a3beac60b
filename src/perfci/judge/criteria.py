"""Rows of what is asked of a case."""

from collections.abc import Iterable

from perfci.judge.observed import inapplicable, observed_row
from perfci.judge.proved import contradicted, proved_row
from perfci.judge.speed_of_light import TIMED, impossible
from perfci.judge.status import (
    Context,
    about_criterion,
    about_id,
    criterion_row,
    declared_otherwise,
    effect_if_missing,
    judged,
    presence,
    state,
)
from perfci.judge.timed import timed_row
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.report import Effect, Row
from perfci.model.results import Case
from perfci.model.text import listed


def rows_of(context: Context, cases: Iterable[Case], machine: Fingerprint) -> list[Row]:
    """Return the rows of all that is asked of cases."""
    rows: list[Row] = []
    known = set()
    for case in cases:
        known.add(case.key)
        found, unbelievable = presence(context, case), impossible(context, case, machine)
        rows += filter(None, (found or declared_otherwise(context, case), unbelievable))
        if state(case, "head").status == "ok":
            comparable = context.compared and found is None
            rows += _of_case(context, case, comparable=comparable, believable=unbelievable is None)
    lost = [one for key, asked in context.criteria.items() if key not in known for one in asked if not one.waits]
    return rows + [_unknown(one) for one in lost if context.compared or not one.relative]


def _of_case(context: Context, case: Case, *, comparable: bool, believable: bool) -> list[Row]:
    """For a case that works in head. `comparable`: base asks the same question. `believable`: its time can be."""
    asked = context.criteria.get(case.key, [])
    answerable = [one for one in asked if not one.waits]
    if not answerable:
        return _unanswered(context, case, asked)
    return [
        _row(context, case, one)
        for one in answerable
        if (comparable or not one.relative)
        and (believable or one.metric not in TIMED)
        and not (one.observed and inapplicable(case, one))
    ]


def not_asked(context: Context, cases: Iterable[Case]) -> list[str]:
    """Return a line on each limit that asks cases for what they lack."""
    of: dict[tuple[str, str], dict[str, None]] = {}
    for case in cases:
        for one in context.criteria.get(case.key, []) if state(case, "head").status == "ok" else ():
            if one.observed and inapplicable(case, one):
                of.setdefault((str(one.source), one.metric), {})[case.id] = None
    return [
        f"{source}: {metric} is not asked of {listed(ids, 3)}: no side has any" for (source, metric), ids in of.items()
    ]


def _row(context: Context, case: Case, criterion: Criterion) -> Row:
    if criterion.metric == "throughput":
        criterion = criterion.model_copy(update={"unit": context.unit(case, criterion.metric)})
    if found := proved_row(case, criterion):
        return found
    if criterion.timed:
        return contradicted(case, timed_row(context, case, criterion))
    return observed_row(context, case, criterion)


def _unknown(criterion: Criterion) -> Row:
    fields = judged("invalid", effect_if_missing(criterion), "not measured: the results hold no such case")
    return Row(**about_id(criterion.case, criterion.device), **about_criterion(criterion), **fields)


def _unanswered(context: Context, case: Case, waiting: list[Criterion]) -> list[Row]:
    if not waiting:
        return []
    first = next((one for one in waiting if "broken" in one.fail_on), waiting[0])
    others = len({(str(one.source), one.metric) for one in waiting}) - 1
    more = f"; nor {others} more" if others else ""
    reason = (
        f"no limit on it can be judged here: {first.source} on {first.metric}: {first.waits}{more}: measure where it "
        "can be, or give the case a limit that holds here"
    )
    # A case of which nothing is known does not pass, though its limits only warn.
    fails = any(context.effect("invalid", one) == "fail" for one in waiting)
    effect: Effect = "fail" if fails else "undecided"
    unit = context.unit(case, first.metric)
    return [criterion_row(case, first, "invalid", effect, reason, unit=unit, kind="presence", limit=None)]
