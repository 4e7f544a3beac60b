"""Which cases get the next pair when the budget will not do for all: those that it can still decide."""

import math
from collections.abc import Sequence

import numpy as np

from perfci.model.plan import Plan
from perfci.model.results import Case
from perfci.stats.answer import tightest_margin
from perfci.stats.calibration import factors
from perfci.stats.equal_clock import log_ratios

MAD = 1.4826
"""A normal distribution's standard deviation in median absolute deviations."""


def next_batch(cases: Sequence[Case], plan: Plan, left: float) -> list[Case]:
    """The open cases that are measured next. `left`: seconds of the budget.

    Up to the first look all go on alike, those with the fewest pairs first. After it, where what all still need does
    not fit into `left`, those that need least come first, as many as fit, and those whose scatter says that no number
    of pairs will decide them come last, in turns by the time that they have had.
    """
    fewest = min(len(case.pairs) for case in cases)
    first = plan.looks.pairs[0]
    if plan.exact_pairs is not None or fewest < first:
        return [case for case in cases if len(case.pairs) == fewest]
    needs = {case.key: _seconds_needed(case, plan) for case in cases}
    if math.fsum(needs.values()) <= left:
        return list(cases)
    chosen: list[Case] = []
    taken = 0.0
    for case in sorted(cases, key=lambda case: (needs[case.key], _spent(case), case.key)):
        if chosen and taken + needs[case.key] > left:
            break
        chosen.append(case)
        taken += needs[case.key]
    return chosen


def _spent(case: Case) -> float:
    """Seconds that the pairs of a case have taken."""
    return math.fsum([math.fsum(pair.seconds.values()) for pair in case.pairs])


def _seconds_needed(case: Case, plan: Plan) -> float:
    """Until the look at which pairs that scatter like these are decided; infinite where there is none.

    A change that is larger than the limit shows in pairs that scatter more than the limit allows. What is asked is how
    large, never which way: no outcome is favoured. A last look may decide earlier; it is not counted on.
    """
    ratios = log_ratios(case, "time", plan.looks.pairs[0]).x
    # Robust, as the decision is: one pair far off costs it a few pairs and not the answer.
    centre = float(np.median(ratios)) if len(ratios) > 1 else math.nan
    spread = MAD * float(np.median(np.abs(ratios - centre))) if len(ratios) > 1 else math.nan
    asked = tightest_margin(case, plan.judgements)
    each = _spent(case) / len(case.pairs)
    if asked is None or not math.isfinite(spread):
        return each  # an absolute limit, or a metric of its own: one pair at a time
    shown = max(asked, abs(centre) - asked / 2)  # a conviction must exceed half the limit
    for pairs, factor in sorted(factors(plan.looks, plan.m).items()):
        if pairs > len(case.pairs) and factor * spread <= shown:
            return (pairs - len(case.pairs)) * each
    return math.inf
