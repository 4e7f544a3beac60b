"""A pair takes as much as the limit of its case needs, alike whichever side is called base."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfci.measure.costs import Costs
from perfci.measure.rounds import Bench
from perfci.measure.sampling import DEAREST, adapt
from perfci.measure.timing import SCHEDULES, Setup
from perfci.model.base import Side
from perfci.model.plan import Plan
from perfci.model.results import Case, CaseSide, Pair
from perfci.stats.components import scatter_of
from tests.judge.build import limit

PLANNED = SCHEDULES["rotating"]
OPEN, BLOCK = 0.02, 0.01


def pair(index: int, rng: np.random.Generator, worker: float, placement: float, block: float) -> Pair:
    shift = worker * rng.standard_normal()
    blocks: dict[Side, list[list[tuple[float, float | None]]]] = {"base": [], "head": []}
    for _ in range(PLANNED.placements):
        own = shift + placement * rng.standard_normal()
        ratios = own + block * rng.standard_normal(PLANNED.blocks)
        blocks["base"].append([(1e-5, None)] * PLANNED.blocks)
        blocks["head"].append([(1e-5 * math.exp(x), None) for x in ratios])
    values: dict[Side, dict[str, float]] = {
        name: {"time": float(np.mean([np.mean([t for t, _ in p]) for p in placements]))}
        for name, placements in blocks.items()
    }
    count = PLANNED.placements * PLANNED.blocks
    seconds = {"first": 0.1, "open": OPEN * (PLANNED.placements - 1), "close": 0.0, "block": BLOCK * count}
    return Pair(index=index, values=values, scatter=scatter_of(blocks), blocks=count, seconds=seconds)


def adapted(pairs: list[Pair], r: float) -> tuple[int, int]:
    setup = Setup("rotating", 20, 6, PLANNED.placements, PLANNED.blocks)
    bench = Bench(None, {}, 0, 1, [], 60.0, [], Path(), Costs(), {"k@cuda": setup})  # type: ignore[arg-type]
    plan = Plan(seed=0, sides=["base", "head"], schedules={"rotating": PLANNED}, criteria=[limit("k", bound=r)])
    case = Case(id="k", kernel="k", device="cuda", sides={"base": CaseSide(), "head": CaseSide()}, pairs=pairs)
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


def test_the_first_pairs_are_as_planned() -> None:
    assert adapted(taken(1, block=1e-4), r=0.02) == (PLANNED.placements, PLANNED.blocks)


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


def test_pairs_that_scatter_more_than_their_parts_tell_get_more() -> None:
    """Within workers all is calm, the workers differ: more effort is tried, within what is allowed."""
    calm = adapted(taken(8, block=0.003), r=0.01)
    loud = adapted(taken(8, worker=0.004, block=0.003), r=0.01)
    assert cost(calm) < cost(loud) <= DEAREST * cost((PLANNED.placements, PLANNED.blocks)) * 1.001


def test_nothing_depends_on_which_side_is_called_base() -> None:
    """The same pairs with some of their sides exchanged: the signs of x must tell nothing of what is measured next."""
    pairs = taken(8, seed=5, worker=0.001, placement=0.003, block=0.003)
    rng = np.random.default_rng(2)
    flipped = []
    for one in pairs:
        if rng.random() < 0.5 and one.scatter is not None:
            values: dict[Side, dict[str, float]] = {"base": one.values["head"], "head": one.values["base"]}
            one = one.model_copy(update={"values": values})  # sums of squares do not change
        flipped.append(one)
    assert adapted(pairs, r=0.01) == adapted(flipped, r=0.01)
