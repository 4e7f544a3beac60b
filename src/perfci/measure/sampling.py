"""Size and order of pairs: placements and blocks as a limit needs, by the scatter so far."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from perfci.measure.bench import Bench
from perfci.measure.commands.runner import Runner
from perfci.model.base import DeviceKind
from perfci.model.criteria import Criterion
from perfci.model.plan import Plan
from perfci.model.results import Case
from perfci.stats.answer import answer, pairs_to_decide, tightest_margin
from perfci.stats.calibration import MAD, factors
from perfci.stats.components import Components, Costs, allot, components
from perfci.stats.equal_clock import log_ratios
from perfci.stats.obvious import one_peak
from perfci.stats.walsh import Array

LEAST_PAIRS = 2
"""Pairs of the planned schedule, at most, before it is changed."""
TELLING = 4
"""Placements of a single pair that tell what they contribute, and most of a first one that others follow by scatter."""
KNOWN = 7
"""Degrees of freedom of placements before which a pair has two or more, where a single pair told: with 3 of them
nothing is seen in 30 % of cases that scatter as much from placements as from blocks (F of 3 and 4 below 1/2), and would
never be."""
CALM = 4
"""Pairs that scatter by the margin over this are calm enough: 8 show unchanged code to be within the limit in over 99 %
of runs."""
SHARE = 6
"""Differences within workers may scatter by the margin over this: as much is left for those between workers."""
WORTH = 0.5
"""Scatter within workers by that between them under which samples hardly help: a pair then scatters by 12 % more than
with any number of them. Were samples as dear as the rest of a pair, 1 would be best (Cochran, Sampling Techniques, 3rd
ed., 10.6)."""
SEEN = 4
"""Pairs from which their own scatter counts too: fewer tell little of what placements contribute."""
DEAREST = 2.0
"""Factor on the planned schedule's cost at most."""

BESIDE_SAMPLES = 2.0
"""Factor from samples' time to a pair's: 48 % of a run of the shipped suite on a CPU are samples."""
SURE = 1.25
"""A need this many times what is left certainly does not fit."""


class PairCost(NamedTuple):
    """Seconds of a case's further pair, base and head together."""

    planned: float
    least: float
    """Of the shape that `adapt` chose, or of the smallest that it may choose."""
    built: float = 0.0
    """Of both, which further pairs may not take: a first pair's opening compiles."""


class Need(NamedTuple):
    """The way to the first look that can show a regression, of cases measured as one: one, or a command's."""

    cases: list[Case]
    pairs: int
    planned: float
    """Seconds of pairs of the planned schedule."""
    seconds: float
    """Seconds of the smallest pairs."""
    built: float = 0.0
    """Of `seconds`, which they may not take."""
    last: bool = False
    """Nothing unproved depends on it."""

    @property
    def order(self) -> tuple[bool, float, str]:
        """Return the key of the cheapest first, by cost alone."""
        return self.last, self.seconds, self.cases[0].key

    @property
    def doubt(self) -> float:
        """Return the factor by which its cost may be overestimated: before its first pair only samples are known."""
        return SURE if all(case.pairs for case in self.cases) else SURE * BESIDE_SAMPLES


def cheapest(needs: Sequence[Need], left: float, start: float, *, room: float = 1.0, tries: bool = False) -> list[Need]:
    """Return needs that reach their look within `left` seconds together, the cheapest first.

    `start`: seconds of a round besides its pairs. `room`: factor on what pairs take. `tries`: where none does, return
    the cheapest unless it certainly does not.
    """
    chosen, total, rounds = list[Need](), 0.0, 0
    for need in sorted(needs, key=lambda need: need.order):
        alone = room * need.seconds + start * need.pairs
        if alone > left * (need.doubt if tries and not chosen else 1.0):
            continue
        total, rounds = total + room * need.seconds, max(rounds, need.pairs)
        if chosen and total + start * rounds > left:
            break
        chosen.append(need)
    return chosen


def pair_cost(case: Case, benches: Mapping[DeviceKind, Bench], runner: Runner, beside: float = 0.0) -> PairCost:
    """Return a further pair's cost: as the last one's, else by samples, or executions of a command.

    `beside`: least known seconds of a pair besides its samples.
    """
    if case.origin == "command":
        once = runner.once(case.kernel)
        return PairCost(once, once)
    if not case.pairs:
        setup = benches[case.device].setups[case.key]
        return PairCost(*(max(BESIDE_SAMPLES * one, one + beside) for one in (setup.planned, setup.least)))
    pair = case.pairs[-1]
    whole = math.fsum(pair.seconds.values())
    if not pair.blocks:
        return PairCost(whole, whole)
    placements, blocks, before = 1, 2, 1
    if len(case.pairs) >= planned_pairs(case, benches) and pair.scatter is not None:
        setup, before = benches[case.device].setups[case.key], pair.scatter.placements
        placements, blocks = setup.placements, setup.placements * setup.blocks
    beside = pair.seconds["open"] + pair.seconds["close"]
    saved = pair.seconds["block"] * (1 - blocks / pair.blocks) + beside * (1 - (placements - 1) / max(1, before - 1))
    built = pair.seconds["first"] if len(case.pairs) == 1 else 0.0
    return PairCost(whole, whole - saved, built)


def planned_pairs(case: Case, benches: Mapping[DeviceKind, Bench]) -> int:
    """Return how many pairs are of the planned schedule before `adapt` changes it."""
    first = next((pair.scatter.placements for pair in case.pairs if pair.scatter is not None), 0)
    bench = benches.get(case.device)
    if not case.pairs and bench is not None and case.key in bench.setups:
        first = bench.setups[case.key].placements
    return 1 if first >= TELLING else LEAST_PAIRS


def adapt(case: Case, benches: Mapping[DeviceKind, Bench], plan: Plan) -> None:
    """Set placements and blocks of the next pair of `case`, the same in base and head.

    What is used, scatter within workers and sizes of log ratios, does not depend on which side is called base: the
    signs of the pairs stay independent of the choice, and the tests stay exact. Where a change may be obvious, a pair's
    width must not depend on the sizes of others: up to the last of those looks, which ask how close the sizes are, it
    follows from the scatter within workers alone.
    """
    bench = benches.get(case.device)
    asked = tightest_margin(case, plan.criteria)
    if bench is None or case.key not in bench.setups or asked is None:
        return
    setup = bench.setups[case.key]
    if not case.pairs and setup.placements > TELLING:
        bench.setups[case.key] = replace(setup, placements=TELLING)
    if len(case.pairs) < planned_pairs(case, benches):
        return
    found, costs = components(case, plan.looks.first, least=1), _costs(case)
    if found is None or costs is None:
        return
    target = asked / SHARE
    freedom = sum(pair.scatter.placements - 1 for pair in case.pairs if pair.scatter is not None)
    ratios = log_ratios(case, "time", plan.looks.first).x
    if len(ratios) >= (max([SEEN, *plan.looks.obvious_pairs]) if one_peak(case, len(case.pairs)) else SEEN):
        spread = _spread(ratios, asked)
        target *= min(1.0, asked / CALM / spread) if spread > 0 else 1.0
        if freedom >= KNOWN:
            about = float(np.abs(ratios).std(ddof=1))  # not about 0, where a change lies that is smaller than asked
            target = max(target, WORTH * math.sqrt(max(0.0, about**2 - _within(case, found))))
    planned = plan.schedules[setup.mode]
    spent = planned.placements * (costs.placement + planned.blocks * costs.block)
    a, n = allot(found, costs, target, spent, DEAREST * spent)
    if planned_pairs(case, benches) < LEAST_PAIRS and freedom < KNOWN:
        a = max(a, 2)
    bench.setups[case.key] = replace(setup, placements=a, blocks=n)


def _within(case: Case, found: Components) -> float:
    scatters = [pair.scatter for pair in case.pairs if pair.scatter is not None]
    return fmean((found.placement**2 + found.block**2 / one.blocks) / one.placements for one in scatters)


def _spread(ratios: Array, asked: float) -> float:
    """Scatter from the sizes of log ratios: about 0, or about each other where all exceed `asked`, as the change then
    does."""
    sizes = np.abs(ratios)
    return float(sizes.std(ddof=1) if sizes.min() > asked else np.sqrt(np.mean(sizes**2)))


def _costs(case: Case) -> Costs | None:
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


def next_batch(cases: Sequence[Case], plan: Plan, left: float) -> list[Case]:
    """Return the open cases measured next. `left`: seconds of the budget.

    Up to the first look that can show a regression, those with the fewest pairs. After it, where not all fit into
    `left`, those that need least come first, as many as fit, and those whose scatter says that no number of pairs
    decides them come last, in turns by the time they have had.
    """
    fewest = min(len(case.pairs) for case in cases)
    if plan.exact_pairs is not None or fewest < plan.first_to_show:
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


def pairs_left(case: Case, criteria: Iterable[Criterion], plan: Plan) -> int:
    """Return an open case's probable further pairs: to its next look, or the one that decides `criteria` where pairs go
    on like these. A case that no look would decide may end at the next."""
    taken = len(case.pairs)
    if plan.exact_pairs is not None:
        return plan.exact_pairs - taken
    found = ((one, answer(case, one, plan.looks, plan.m)) for one in criteria)
    wanted = [
        pairs_to_decide(one, so_far, plan.looks, plan.m)
        for one, so_far in found
        if so_far.decision.status == "continue"
    ]
    look = next((one for one in plan.looks.pairs if one > taken), plan.max_pairs)
    return min(max([look, *filter(None, wanted)]), plan.max_pairs) - taken


def _spent(case: Case) -> float:
    return math.fsum([math.fsum(pair.seconds.values()) for pair in case.pairs])


def _seconds_needed(case: Case, plan: Plan) -> float:
    """Until the look that decides pairs of this scatter; infinite where there is none.

    A change larger than the limit shows in pairs that scatter more than the limit allows. How large is asked, never
    which way: no outcome is favoured. A last look may decide earlier; that is not counted on.
    """
    ratios = log_ratios(case, "time", plan.looks.first).x
    # Robust, as the decision is: one pair far off costs it a few pairs and not the answer.
    centre = float(np.median(ratios)) if len(ratios) > 1 else math.nan
    spread = MAD * float(np.median(np.abs(ratios - centre))) if len(ratios) > 1 else math.nan
    asked = tightest_margin(case, plan.criteria)
    each = _spent(case) / len(case.pairs)
    if asked is None or not math.isfinite(spread):
        return each  # an absolute limit, or a metric of its own: one pair at a time
    shown = max(asked, abs(centre) - asked / 2)  # a regression must exceed half the limit
    for pairs, factor in sorted(factors(plan.looks, plan.m).items()):
        if pairs > len(case.pairs) and factor * spread <= shown:
            return (pairs - len(case.pairs)) * each
    return math.inf
