"""Where noise comes from: what is planted is found, and time is spent where it helps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.model.results import Case, Clock, Pair
from perfci.stats.components import MOST, Components, Costs, allot, components, scatter_of, sentence

SIDES = ("base", "head")
WORKER, PLACEMENT, BLOCK = 0.001, 0.003, 0.004


def drawn(rng, worker=WORKER, placement=PLACEMENT, block=BLOCK, a=4, n=6, wander=0.0):
    """(log times, log clocks) of one pair, shape (2, a, n); the sds are those of the pair's ratio."""
    half = math.sqrt(0.5)
    # Drift and placement, alike in base and head.
    shared = rng.normal(0, 0.05, (1, a, n)) + rng.normal(0, 0.05, (1, a, 1))
    clock = rng.normal(0, wander, (2, a, n)) if wander else np.zeros((2, a, n))
    parts = (worker, (2, 1, 1)), (placement, (2, a, 1)), (block, (2, a, n))
    return sum((rng.normal(0, sd * half, shape) for sd, shape in parts), shared - clock), clock


def blocks_of(time, clock=None):
    hertz = np.exp(clock) * 1.5e9 if clock is not None else np.full(time.shape, None)
    return {
        side: [[(math.exp(t), f) for t, f in zip(*rows, strict=True)] for rows in zip(time[k], hertz[k], strict=True)]
        for k, side in enumerate(SIDES)
    }


def pair_of(index, time, clock=None):
    def sums(k):
        df, dt = clock[k].ravel() - clock[k].mean(), time[k].ravel() - time[k].mean()
        hertz = 1.5e9 * math.exp(clock[k].mean())
        return Clock(hertz=hertz, blocks=df.size, variance=float(df @ df), covariance=float(df @ dt))

    return Pair(
        index=index,
        values={side: {"time": math.exp(time[k].mean())} for k, side in enumerate(SIDES)},
        clock={side: sums(k) for k, side in enumerate(SIDES)} if clock is not None else {},
        scatter=scatter_of(blocks_of(time, clock)),
    )


def case_of(pairs):
    return Case(id="k", kernel="k", device="cuda", sides={}, pairs=pairs)


def planted(rng, pairs=400, **sds):
    return components(case_of([pair_of(i, drawn(rng, **sds)[0]) for i in range(pairs)]), 8)


def test_what_is_planted_is_found_and_what_base_and_head_share_is_not():
    """400 pairs; drift and placement of 5 % that base and head share leave no trace."""
    found = planted(np.random.default_rng(0), worker=0.002)
    assert found.worker == pytest.approx(0.002, rel=0.25)
    assert found.placement == pytest.approx(PLACEMENT, rel=0.1)
    assert found.block == pytest.approx(BLOCK, rel=0.05)
    assert (found.placements, found.blocks) == (4, 6)
    assert found.noise() == pytest.approx(math.sqrt(0.002**2 + PLACEMENT**2 / 4 + BLOCK**2 / 24), rel=0.1)


def test_the_noise_of_other_numbers_of_placements_and_blocks_is_foretold():
    rng = np.random.default_rng(1)
    found = planted(rng)
    other = [pair_of(i, drawn(rng, a=8, n=2)[0]) for i in range(400)]
    seen = np.std([math.log(p.values["head"]["time"] / p.values["base"]["time"]) for p in other])
    assert found.noise(8, 2) == pytest.approx(seen, rel=0.12)


def test_estimates_are_unbiased():
    """Mean of the variances over 300 cases of 16 pairs; the worker component is large enough not to be cut at 0."""
    rng = np.random.default_rng(2)
    found = [planted(rng, pairs=16, worker=0.004, a=2, n=2) for _ in range(150)]
    for name, true in (("worker", 0.004), ("placement", PLACEMENT), ("block", BLOCK)):
        assert np.mean([getattr(one, name) ** 2 for one in found]) == pytest.approx(true**2, rel=0.12)


def test_it_agrees_with_the_sums_worked_by_hand():
    """Two placements of two blocks: ratios 0 and 2, 4 and 6 (thousandths), and a pair of nothing but zeros."""
    head = np.array([[0.0, 2e-3], [4e-3, 6e-3]])
    one, none = (np.stack([np.zeros((2, 2)), h]) for h in (head, np.zeros((2, 2))))
    scatter = scatter_of(blocks_of(one))
    assert scatter.block.time == pytest.approx(4 * 1e-6)
    assert scatter.placement.time == pytest.approx(2 * 4e-6)
    assert (scatter.placements, scatter.blocks, scatter.block.clock, scatter.block.cross) == (2, 2, 0, 0)
    found = components(case_of([pair_of(0, one), pair_of(1, none)]), 8)
    assert found.block == pytest.approx(1e-3)  # 4e-6 over 4 degrees of freedom
    assert found.placement == pytest.approx(math.sqrt(4e-6 - 0.5e-6))  # 8e-6 over 2, less half a block's
    assert found.worker == pytest.approx(math.sqrt(4.5e-6 - (3.5e-6 + 0.5e-6) / 2))


def test_the_clock_is_taken_out():
    """At the power limit blocks scatter with the clock; the components are those at equal clock."""
    rng = np.random.default_rng(3)
    pairs = [pair_of(i, *drawn(rng, wander=0.03)) for i in range(200)]
    assert components(case_of(pairs), 8).block == pytest.approx(BLOCK, rel=0.1)
    in_time = [p.model_copy(update={"clock": {}}) for p in pairs]
    assert components(case_of(in_time), 8).block > 0.03


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b | {"head": b["head"][:-1]},
        lambda b: b | {"head": [b["head"][0][:-1], *b["head"][1:]]},
        lambda b: b | {"head": [[(math.nan, None)] * 6] * 4},
        lambda b: b | {"head": [[(0.0, None)] * 6] * 4},
        lambda b: {"head": b["head"]},
        lambda b: {"head": [[]], "base": [[]]},
        lambda b: {},
    ],
)
def test_blocks_that_do_not_match_or_are_no_times_tell_nothing(spoil):
    assert scatter_of(spoil(blocks_of(drawn(np.random.default_rng(4))[0]))) is None


def test_too_little_tells_nothing():
    rng = np.random.default_rng(5)
    one, two = (pair_of(i, drawn(rng)[0]) for i in range(2))
    assert components(case_of([one]), 8) is None
    assert components(case_of([one, two]), 8) is not None
    assert components(case_of([one, two.model_copy(update={"scatter": None})]), 8) is None
    assert components(case_of([pair_of(i, drawn(rng, a=1)[0]) for i in range(4)]), 8) is None
    assert components(case_of([pair_of(i, drawn(rng, n=1)[0]) for i in range(4)]), 8) is None


def test_the_sentence_names_what_dominates_and_what_helps():
    of = Components(worker=0.001, placement=0.0001, block=0.001, placements=3, blocks=4)
    assert sentence(of) == "92 % of the variance from workers: only more pairs help"
    assert "more placements in a worker help" in sentence(of._replace(placement=0.01))
    assert "more blocks or longer ones help" in sentence(of._replace(block=0.02))
    assert sentence(Components(0, 0, 0, 3, 4)) == "pairs do not differ at all"


@pytest.mark.parametrize(("block", "cost"), [(0.02, 0.02), (0.01, 0.09), (0.02, 0.04)])
def test_blocks_are_allotted_as_cochran_says(block, cost):
    """In T seconds no less variance can be had than (P √cost of a placement + B √cost of a block)² / T; whole
    placements and even blocks come within a tenth of it."""
    found = Components(worker=0.0, placement=0.005, block=block, placements=3, blocks=4)
    a, n = allot(found, Costs(placement=cost, block=0.005), target=0.0, seconds=0.8, most=1.6)
    best = (0.005 * math.sqrt(cost) + block * math.sqrt(0.005)) ** 2 / 0.8
    assert best <= found.noise(a, n) ** 2 <= 1.1 * best


positive = st.floats(1e-5, 0.1)


@given(positive, positive, positive, positive, positive, st.floats(0.0, 2.0))
def test_an_allotment_keeps_to_its_time_or_meets_its_target(worker, placement, block, opening, each, seconds):
    found = Components(worker, placement, block, 3, 4)
    costs = Costs(opening, each)

    def scatter(a, n):
        return math.sqrt(placement**2 / a + block**2 / (a * n))

    target = scatter(3, 4)
    a, n = allot(found, costs, target, seconds, 2 * seconds)
    assert 1 <= a <= MOST
    assert 2 <= n <= MOST
    assert n % 2 == 0
    spent = a * (opening + n * each)
    if scatter(a, n) <= target and (a, n) != (1, 2):
        assert spent <= 2 * seconds
    else:
        assert spent <= seconds or (a, n) == (1, 2)


def test_no_more_is_spent_than_the_target_asks():
    calm = Components(worker=0.01, placement=1e-5, block=1e-5, placements=3, blocks=4)
    assert allot(calm, Costs(0.1, 0.01), target=1e-3, seconds=1.0, most=2.0) == (1, 2)


@pytest.mark.parametrize("costs", [Costs(0.0, 0.1), Costs(0.1, -1.0), Costs(math.nan, 0.1)])
def test_costs_that_are_no_times_are_refused(costs):
    with pytest.raises(ValueError, match="positive"):
        allot(Components(0.1, 0.1, 0.1, 3, 4), costs, 0.1, 1.0, 2.0)
