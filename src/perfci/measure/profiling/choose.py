"""Which cases are profiled, and in which order."""

import math
from collections.abc import Sequence

from perfci.model.metrics import CHECKED
from perfci.model.plan import Plan
from perfci.model.policy import When
from perfci.model.results import Case
from perfci.stats.answer import answer
from perfci.stats.decide import margin
from perfci.stats.walsh import hodges_lehmann

SLOWER, FASTER = 1.03, 0.90
"""Ratios of time from which a profile is worth its seconds, whatever the limit."""
OPEN, LAST = 2, 3
"""Ranks: no answer and beyond its limit; behind all."""


def rank(case: Case, plan: Plan) -> int:
    """Return how much a case asks for a profile: 0 for a regression, 1 for an improvement or a large change within its
    limit, OPEN, or LAST where it is not worth it."""
    ranks = [LAST]
    for criterion in plan.timed:
        if criterion.case_key != case.key or not criterion.relative:
            continue
        found = answer(case, criterion, plan.looks, plan.m, ended=True)
        if found.decision.status in ("regression", "clock"):
            return 0
        if found.ratios is None:
            continue
        change = hodges_lehmann(found.ratios.x)
        if found.decision.status == "inconclusive":
            worse = criterion.sign * change
            ranks += [OPEN] if worse > margin(found.limit, criterion.better) else []
        large = criterion.metric == "time" and not math.log(FASTER) < change < math.log(SLOWER)
        if found.decision.status == "improvement" or (found.decision.status == "unchanged" and large):
            ranks.append(1)
    return min(ranks)


def wanted(cases: Sequence[Case], plan: Plan, when: When, *, room: bool = True) -> tuple[list[Case], list[Case]]:
    """Return cases to trace, and to count, for limits and by `when`, by rank.

    `room`: budget is left for undecided cases. Counted cases are traced too: the timeline weighs kernels, and has the
    launches where counting is refused.
    """
    traced, counted = [], []
    working = [case for case in cases if case.device == "cuda" and case.sides["head"].status == "ok"]
    ranks = {c.key: rank(c, plan) if c.pairs and c.stopped != "hopeless" else LAST for c in working}
    for case in sorted(working, key=lambda case: ranks[case.key]):
        asked = when == "always" or (when == "on_change" and ranks[case.key] < (LAST if room else OPEN))
        own = [one for one in plan.observed if one.case_key == case.key]
        tiers = {one.tier for one in own if one.metric not in CHECKED or case.origin == "command"}
        if asked or tiers:
            traced.append(case)
        if asked or "counters" in tiers:
            counted.append(case)
    return traced, counted
