"""How much of what a pair takes: as many placements and blocks as a limit needs, from the scatter seen so far."""

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from perfci.measure.contracts import Setup
from perfci.measure.rounds import Bench
from perfci.model.base import DeviceKind
from perfci.model.plan import Plan
from perfci.model.results import Case
from perfci.stats.components import Components, Costs, components
from perfci.stats.decide import margin
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
MOST = 16
"""Placements of a launch, and blocks of a placement, at most."""
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
    margins = [
        margin(judgement.bound, judgement.better)
        for judgement in plan.judgements
        if (judgement.case, judgement.device, judgement.kind) == (case.id, case.device, "regression")
    ]
    found = components(case, plan.looks.pairs[0])
    if found is None or not margins:
        return
    costs = _costs(case)
    if costs is None:
        return
    target = min(margins) / SHARE
    ratios = log_ratios(case, "time", plan.looks.pairs[0]).x
    if len(ratios) >= SEEN:
        size = math.sqrt(math.fsum(x * x for x in ratios) / len(ratios))
        target *= min(1.0, min(margins) / CALM / size) if size > 0 else 1.0
    bench.setups[case.key] = _chosen(setup, found, costs, target, plan)


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
    return Costs(0.0, median(opens), median(blocks))


def _chosen(setup: Setup, found: Components, costs: Costs, target: float, plan: Plan) -> Setup:
    """The cheapest placements and blocks whose scatter is within `target`; else the calmest for the planned time."""

    def cost(a: int, n: int) -> float:
        return a * (costs.placement + n * costs.block)

    def scatter(a: int, n: int) -> float:
        return math.sqrt(found.placement**2 / a + found.block**2 / (a * n))

    planned = plan.schedules[setup.contract]
    spent = cost(planned.placements, planned.blocks)
    choices = [(a, n) for a in range(1, MOST + 1) for n in range(2, MOST + 1, 2) if cost(a, n) <= DEAREST * spent]
    within = [choice for choice in choices if scatter(*choice) <= target]
    if within:
        a, n = min(within, key=lambda choice: (cost(*choice), scatter(*choice)))
    else:  # out of reach: as planned, in the best shape
        a, n = min((c for c in choices if cost(*c) <= spent), key=lambda c: (scatter(*c), cost(*c)), default=(1, 2))
    return replace(setup, placements=a, blocks=n)
