"""Claims, answered from the pairs taken for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perfci.judge.headline import UNDECIDED, Headline
from perfci.judge.inconclusive import DRIFTS, stopped
from perfci.judge.status import Context, because, presence
from perfci.judge.timed import ratio
from perfci.judge.words import change_words
from perfci.model.base import Side
from perfci.model.criteria import Criterion
from perfci.model.plan import ClaimPlan
from perfci.model.report import ClaimAnswer, ClaimRow
from perfci.model.results import Case, Results
from perfci.model.text import count
from perfci.model.units import limit_percent
from perfci.stats.answer import answer
from perfci.stats.decide import margin
from perfci.stats.lag import lag
from perfci.stats.walsh import Array, p_greater

_FAILED: dict[Side, ClaimAnswer] = {"head": "not shown", "base": "undecided"}
_ORDER: dict[ClaimAnswer, int] = {"not shown": 0, "undecided": 1, "shown": 2}


def claim_rows(context: Context, results: Results) -> list[ClaimRow]:
    """Return an answer for each claim and case, those that are not shown first."""
    plan = results.plan.claims
    if plan is None:
        return []
    cases = {case.key: case for case in sorted(results.cases, key=lambda case: case.key)}
    own = {key: _own(case) for key, case in cases.items() if case.claimed is not None}
    dependence = lag(own.values(), plan.looks)
    drifts = dependence is not None and dependence.beyond_chance
    rows = [
        _unmeasured(context, case, one) or _measured(plan, own[case.key], one, drifts=drifts)
        for one in plan.criteria
        for case in [cases.get(one.case_key)]
        if case is not None
    ]
    return sorted(rows, key=lambda row: (_ORDER[row.answer], row.case, row.device, row.fall))


def _own(case: Case) -> Case:
    claimed = case.claimed
    return case if claimed is None else case.model_copy(update={"pairs": claimed.pairs, "stopped": claimed.stopped})


def _answered(case: Case, criterion: Criterion, said: ClaimAnswer, reason: str, **values: Any) -> ClaimRow:
    return ClaimRow(case=case.id, device=case.device, fall=criterion.bound, answer=said, reason=reason, **values)


def _unmeasured(context: Context, case: Case, criterion: Criterion) -> ClaimRow | None:
    """What answers without pairs; None where pairs do."""
    if case.proved:
        return _answered(case, criterion, "not shown", "proved unchanged")
    if (row := presence(context, case)) is not None:
        return _answered(case, criterion, "undecided", f"{row.class_}: {row.reason}")
    if case.claimed is None:
        return _answered(case, criterion, "undecided", f"not measured for it{stopped(case)}")
    for name, said in _FAILED.items():
        if reason := case.claimed.failures.get(name):
            failed = case.sides[name].model_copy(update={"reason": reason})
            return _answered(case, criterion, said, f"{name} failed when it was measured for it{because(failed)}")
    return None


def _measured(plan: ClaimPlan, case: Case, criterion: Criterion, *, drifts: bool) -> ClaimRow:
    found = answer(case, criterion, plan.looks, plan.m, ended=True)
    if case.pairs and found.ratios is None:
        return _answered(case, criterion, "undecided", "its pairs have no times to compare")
    if found.ratios is None or found.ratios.x.size < 2:
        return _answered(case, criterion, "undecided", f"{count(len(found.head), 'pair')} of its own{stopped(case)}")
    n, ratios = found.decision.n, found.ratios
    change, bounds = ratio(ratios.x)
    values = {"change": change, "interval": bounds, "pairs": n}
    slow, fast = (change_words(end, "time") for end in (bounds.high, bounds.low))
    seen = f"{change_words(change, 'time')}, between {slow} and {fast}, by {n} pairs of its own"
    match found.decision.status:
        case "regression" | "unchanged" if drifts:
            return _answered(case, criterion, "undecided", f"{seen}; {DRIFTS}", **values)
        case "unchanged":
            return _answered(case, criterion, "not shown", seen, **values)
        case "regression" if found.decision.early or _as_measured(plan, criterion, ratios.measured):
            return _answered(case, criterion, "shown", seen, **values)
        case "regression":
            why = "as it was measured, the clock of head was lower, and so much is not shown"
            return _answered(case, criterion, "undecided", f"{seen} at equal clock; {why}", **values)
        case _:
            return _answered(case, criterion, "undecided", f"{seen}{stopped(case)}", **values)


def _as_measured(plan: ClaimPlan, criterion: Criterion, measured: Array) -> bool:
    """Whoever waits for a result waits by the clock as it was. Looks before the first one ask that themselves."""
    r_log = margin(criterion.bound, criterion.better)
    return p_greater(criterion.sign * measured, r_log) <= plan.looks.confirm


def claimed(first: Headline, rows: Sequence[ClaimRow], *, strict: bool) -> Headline:
    """Return the beginning of a report that answers claims, too: what fails by limits fails first."""
    if not rows or first.verdict in ("error", "fail"):
        return first
    worst, others = rows[0], sum(row.answer == rows[0].answer for row in rows) - 1
    more = f" (+{others} more)" if others else ""
    what = f"`{worst.case.replace('`', chr(39))}`: {limit_percent(worst.fall)} faster"
    match worst.answer:
        case "not shown":
            return Headline("fail", f"{what} was claimed and is excluded: {worst.reason}{more}", "")
        case "undecided" if first.verdict == "undecided" and not first.unjudged:
            return first
        case "undecided":
            sentence = f"{UNDECIDED}{what} was claimed and is not shown: {worst.reason}{more}"
            return Headline(
                "fail" if strict else "undecided", sentence, "A larger budget, or a smaller claim, would help."
            )
        case "shown":
            return replace(first, sentence=f"{first.sentence}; {count(len(rows), 'claim')} shown")
