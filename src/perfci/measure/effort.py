"""How much of what a pair takes: as many placements and blocks as a limit needs, from the scatter seen so far."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from perfci.measure.rounds import Bench
from perfci.model.base import DeviceKind
from perfci.model.plan import Plan
from perfci.model.results import Case
from perfci.stats.answer import tightest_margin
from perfci.stats.components import Costs, allot, components
from perfci.stats.equal_clock import log_ratios

LEAST_PAIRS = 2
"""Pairs of the planned schedule before it is changed."""
CALM = 4
"""Pairs that scatter by the margin over this are calm enough: 8 of them acquit unchanged code in over 99 % of runs."""
SHARE = 6
"""What differs within launches may scatter by the margin over this: that leaves as much again for what differs
between launches."""
SEEN = 4
"""Pairs from which on their own scatter counts too: few pairs tell little of what placements contribute."""
DEAREST = 2.0
"""A pair may take this many times what the planned schedule takes."""


def adapt(case: Case, benches: Mapping[DeviceKind, Bench], plan: Plan) -> None:
    """Set the placements and blocks of the next pair of `case`, alike in both arms.

    What is looked at, scatter within launches and squares of the pairs' log ratios, is the same whichever arm is called
    base: the signs of the pairs stay independent of what is chosen, and the tests stay exact.
    """
    bench = benches.get(case.device)
    if bench is None or case.key not in bench.setups or len(case.pairs) < LEAST_PAIRS:
        return
    setup = bench.setups[case.key]
    asked = tightest_margin(case, plan.judgements)
    found, costs = components(case, plan.looks.pairs[0]), _costs(case)
    if asked is None or found is None or costs is None:
        return
    target = asked / SHARE
    ratios = log_ratios(case, "time", plan.looks.pairs[0]).x
    if len(ratios) >= SEEN:
        size = math.sqrt(math.fsum(x * x for x in ratios) / len(ratios))
        target *= min(1.0, asked / CALM / size) if size > 0 else 1.0
    planned = plan.schedules[setup.contract]
    spent = planned.placements * (costs.placement + planned.blocks * costs.block)
    a, n = allot(found, costs, target, spent, DEAREST * spent)
    bench.setups[case.key] = replace(setup, placements=a, blocks=n)


def _costs(case: Case) -> Costs | None:
    """Seconds of a further placement and of a block of each arm, from the pairs so far."""
    opens, blocks = [], []
    for pair in case.pairs:
        placements = pair.scatter.placements if pair.scatter else 0
        if placements > 1:
            opens.append(pair.seconds["open"] / (placements - 1) + pair.seconds["close"] / placements)
        if pair.blocks:
            blocks.append(pair.seconds["block"] / pair.blocks)
    if not opens or not blocks or min(opens + blocks) <= 0:
        return None
    return Costs(median(opens), median(blocks))
