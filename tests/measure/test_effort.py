"""A pair takes as much as the limit of its case needs, alike whichever side is called base."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfci.measure.bench import Bench
from perfci.measure.costs import Costs
from perfci.measure.sampling import DEAREST, KNOWN, TELLING, WORTH, adapt
from perfci.measure.timing import SCHEDULES, Setup
from perfci.model.base import SIDES, Side
from perfci.model.plan import Looks, Plan, Schedule
from perfci.model.results import Case, CaseSide, Pair
from perfci.model.timing import Timing
from perfci.stats.components import scatter_of
from tests.judge.build import limit

PLANNED = SCHEDULES["rotating"]
OPEN, BLOCK = 0.02, 0.01


def pair(
    index: int, rng: np.random.Generator, worker: float, placement: float, block: float, placements: int = 2
) -> Pair:
    shift = worker * rng.standard_normal()
    blocks: dict[Side, list[list[tuple[float, float | None]]]] = {"base": [], "head": []}
    for _ in range(placements):
        own = shift + placement * rng.standard_normal()
        ratios = own + block * rng.standard_normal(PLANNED.blocks)
        blocks["base"].append([(1e-5, None)] * PLANNED.blocks)
        blocks["head"].append([(1e-5 * math.exp(x), None) for x in ratios])
    values: dict[Side, dict[str, float]] = {
        name: {"time": float(np.mean([np.mean([t for t, _ in p]) for p in placements]))}
        for name, placements in blocks.items()
    }
    count = placements * PLANNED.blocks
    seconds = {"first": 0.1, "open": OPEN * (placements - 1), "close": 0.0, "block": BLOCK * count}
    return Pair(index=index, values=values, scatter=scatter_of(blocks), blocks=count, seconds=seconds)


def adapted(
    pairs: list[Pair], r: float | None, tuner: str | None = None, planned: Schedule = PLANNED
) -> tuple[int, int]:
    """Placements and blocks of the next pair. `tuner`: as sides and pairs tell it; None where they do not."""
    setup = Setup("rotating", 20, 6, planned.placements, planned.blocks)
    bench = Bench(None, {}, 0, 1, [], 60.0, [], Path(), Costs(), {"k@cuda": setup})  # type: ignore[arg-type]
    plan = Plan(
        seed=0,
        sides=["base", "head"],
        schedules={"rotating": planned},
        looks=Looks.fitted(1),
        criteria=[] if r is None else [limit("k", bound=r)],
    )
    sides: dict[Side, CaseSide] = {name: CaseSide(timing=Timing(mode="rotating"), tuner=tuner) for name in SIDES}
    if tuner is not None:
        pairs = [one.model_copy(update={"tuners": dict.fromkeys(SIDES, tuner)}) for one in pairs]
    case = Case(id="k", kernel="k", device="cuda", sides=sides, pairs=pairs)
    adapt(case, {"cuda": bench}, plan)
    chosen = bench.setups["k@cuda"]
    assert replace(chosen, placements=1, blocks=2) == replace(setup, placements=1, blocks=2), "nothing else changes"
    return chosen.placements, chosen.blocks


def taken(count: int, seed: int = 1, worker: float = 0.0, placement: float = 0.0, block: float = 0.0) -> list[Pair]:
    rng = np.random.default_rng(seed)
    return [pair(index, rng, worker, placement, block) for index in range(count)]


def cost(shape: tuple[int, int]) -> float:
    return shape[0] * (OPEN + shape[1] * BLOCK)


def test_a_calm_case_takes_the_least() -> None:
    assert adapted(taken(3, placement=1e-4, block=1e-4), r=0.02) == (1, 2)


def test_scatter_of_placements_asks_for_placements_and_of_blocks_for_blocks() -> None:
    placements, _ = adapted(taken(20, placement=0.004, block=1e-4), r=0.01)
    assert placements > PLANNED.placements
    a, n = adapted(taken(20, placement=1e-4, block=0.006), r=0.01)
    assert a * n > PLANNED.placements * PLANNED.blocks
    assert a <= placements


@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_what_is_out_of_reach_costs_no_more_than_planned(noise: float) -> None:
    shape = adapted(taken(8, placement=noise, block=noise), r=0.01)
    assert cost(shape) <= cost((PLANNED.placements, PLANNED.blocks)) * 1.001


def test_pairs_that_scatter_more_than_their_parts_tell_get_more_until_these_are_known() -> None:
    """Within workers all is calm, the workers differ: more effort is tried, within what is allowed, until enough
    placements were seen to say that samples would not help."""
    few, many = KNOWN - 3, KNOWN + 1
    loud = adapted(taken(few, worker=0.004, block=0.003), r=0.01)
    assert cost(adapted(taken(few, block=0.003), r=0.01)) < cost(loud)
    assert cost(loud) <= DEAREST * cost((PLANNED.placements, PLANNED.blocks)) * 1.001
    assert cost(adapted(taken(many, worker=0.004, block=0.003), r=0.01)) < cost(loud)


@pytest.mark.parametrize("block", [0.005, 0.02, 0.05])
def test_what_workers_scatter_by_is_not_sampled_away(block: float) -> None:
    """Samples are worth their time as far as a pair then scatters by an eighth more than with any number of them."""
    a, n = adapted(changed(taken(16, worker=0.06, block=block), 2.0), r=0.01)
    assert block / math.sqrt(a * n) <= 0.06 * (WORTH + 0.1)
    fewer = cost((a, n - 2)) if n > 2 else 0.0
    assert fewer == 0.0 or block / math.sqrt(a * (n - 2)) > 0.06 * (WORTH - 0.1)


def changed(pairs: list[Pair], factor: float) -> list[Pair]:
    """The pairs with a head that takes so many times as long."""
    return [
        one.model_copy(update={"values": one.values | {"head": {"time": factor * one.values["head"]["time"]}}})
        for one in pairs
    ]


@pytest.mark.parametrize("factor", [0.5, 1.3, 3.0])
def test_a_large_change_costs_no_more_than_a_small_one(factor: float) -> None:
    """What counts is how pairs scatter about each other, not how far from 1 they are."""
    for count in (3, 4, 8):
        pairs = taken(count, worker=0.001, placement=1e-4, block=1e-4)
        assert adapted(changed(pairs, factor), r=0.02) == adapted(pairs, r=0.02) == (1, 2)
    loud = changed(taken(4, worker=0.02, block=0.003), factor)
    assert cost(adapted(loud, r=0.02)) > cost((1, 2))


def test_where_a_change_may_be_obvious_the_sizes_of_pairs_wait_for_its_looks() -> None:
    """Its p-value asks how close pairs are, each of a width that does not hang on the others."""
    for count, waits in ((4, True), (5, True), (6, False)):
        calm = taken(count, block=0.003)
        loud = changed(taken(count, block=0.003), 1.015)
        assert adapted(calm, r=0.02) != adapted(loud, r=0.02)
        assert (adapted(calm, r=0.02, tuner="") == adapted(loud, r=0.02, tuner="")) == waits


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_nothing_depends_on_which_side_is_called_base(factor: float) -> None:
    """The same pairs with some of their sides exchanged: the signs of x must tell nothing of what is measured next."""
    pairs = changed(taken(8, seed=5, worker=0.001, placement=0.003, block=0.003), factor)
    rng = np.random.default_rng(2)
    flipped = []
    for one in pairs:
        if rng.random() < 0.5 and one.scatter is not None:
            values: dict[Side, dict[str, float]] = {"base": one.values["head"], "head": one.values["base"]}
            one = one.model_copy(update={"values": values})  # sums of squares do not change
        flipped.append(one)
    assert adapted(pairs, r=0.01) == adapted(flipped, r=0.01)


def test_a_single_pair_of_many_placements_tells_enough_but_not_that_one_would_do() -> None:
    rng = np.random.default_rng(6)
    assert adapted([pair(0, rng, 0.0, 1e-6, 1e-6)], 0.05) == (PLANNED.placements, PLANNED.blocks)
    calm = [pair(0, rng, 0.0, 1e-6, 1e-6, placements=TELLING)]
    for index in range(1, KNOWN - TELLING + 2):
        assert adapted(calm, 0.05) == (2, 2)
        calm.append(pair(index, rng, 0.0, 1e-6, 1e-6))
    assert adapted(calm, 0.05) == (1, 2)
    noisy = [adapted([pair(0, rng, 0.0, 0.02, 1e-6, placements=TELLING)], 0.05)[0] for _ in range(20)]
    assert np.median(noisy) > 2, "two placements would not do"


def test_only_a_first_pair_that_others_follow_by_scatter_is_small() -> None:
    cold = SCHEDULES["cold"]
    assert adapted([], 0.05, planned=cold) == (TELLING, cold.blocks)
    assert adapted([], None, planned=cold) == (cold.placements, cold.blocks), "nothing says how large the next would be"
