"""Error rates and power of the decision on simulated worker pairs: the promises made to users, counted."""

import math

import numpy as np
import pytest

from perfci.model.plan import Looks
from perfci.stats.decide import decide, decide_bound, margin
from perfci.stats.walsh import interval

LOOKS = Looks()
R = margin(0.01, "lower")
M = 100


def outcomes(draw, runs, seed=0, m=M, r=R, looks=LOOKS):
    rng = np.random.default_rng(seed)
    statuses = [decide(draw(rng), r, looks, m, ended=True).status for _ in range(runs)]
    return {status: statuses.count(status) / runs for status in set(statuses)}


def normal(sd, mean=0.0):
    return lambda rng: rng.normal(mean, sd, 64)


def heavy(sd, mean=0.0):
    return lambda rng: mean + sd / math.sqrt(3) * rng.standard_t(3, 64)


def bimodal(gap, mean=0.0):
    """Each worker of each side falls into one of two modes, as with the placement of buffers."""
    return lambda rng: mean + gap * (rng.integers(0, 2, 64) - rng.integers(0, 2, 64)) + rng.normal(0, 0.001, 64)


def drifting(per_pair, mean=0.0):
    """The machine slows down through the run; the coin decides which side is started first, hence hurt less."""
    return lambda rng: mean + per_pair * rng.choice([-1, 1], 64) * np.linspace(1, 3, 64) + rng.normal(0, 0.001, 64)


ALIKE = {
    "quiet": normal(0.002),
    "loud": normal(0.01),
    "heavy tails": heavy(0.005),
    "bimodal": bimodal(0.005),
    "drift": drifting(0.002),
}


@pytest.mark.parametrize("name", ALIKE)
def test_unchanged_code_never_fails(name):
    """A run of 100 criteria may fail in 1 % of runs, a criterion hence in 1e-4: 1 500 trials must show none."""
    share = outcomes(ALIKE[name], 1500, seed=1)
    assert share.get("regression", 0) == 0
    assert share.get("improvement", 0) == 0


@pytest.mark.parametrize("name", ["quiet", "heavy tails", "drift"])
def test_unchanged_code_is_called_unchanged(name):
    assert outcomes(ALIKE[name], 600, seed=2)["unchanged"] >= 0.99


@pytest.mark.parametrize("draw", [normal(0.004), heavy(0.004), bimodal(0.004), drifting(0.002)])
def test_the_false_alarm_rate_is_alpha_at_most_where_it_can_be_counted(draw):
    """With α at 20 %, no demand on size, and none for "within", every look spends its share: the union bound must hold."""
    looks = LOOKS.model_copy(update={"alpha": 0.2, "confirm": 1.0, "beta_spending": [0.0] * 7})
    share = outcomes(draw, 800, seed=3, m=1, r=1e-9, looks=looks)
    assert 0.02 <= share["regression"] <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 800)


@pytest.mark.parametrize("draw", [normal(0.002, R), normal(0.003, R), heavy(0.003, R), bimodal(0.003, R)])
def test_a_true_slow_down_of_the_limit_is_found(draw):
    share = outcomes(draw, 1000, seed=4)
    assert share["regression"] >= 0.985  # 99 % promised; 1000 runs of 99 % have sd 0.3 %
    assert share.get("unchanged", 0) <= 0.01 + 3 * math.sqrt(0.01 / 1000)


def test_a_true_speed_up_is_named():
    """Of the limit's size in most runs (the rest ends early as unchanged), half as large again practically always."""
    assert outcomes(normal(0.002, -R), 500, seed=5)["improvement"] >= 0.9
    assert outcomes(normal(0.002, -1.5 * R), 500, seed=5)["improvement"] >= 0.985


def test_what_is_too_noisy_is_inconclusive_rather_than_within():
    """At 3 % per pair a true 1 % is beyond 64 pairs: at most β of such cases may pass as unchanged."""
    share = outcomes(normal(0.03, R), 800, seed=6)
    assert share.get("unchanged", 0) <= 0.01 + 3 * math.sqrt(0.01 / 800)
    assert share["inconclusive"] >= 0.8


@pytest.mark.parametrize("mean", [1.0, 1.02])
def test_a_bound_is_broken_falsely_in_alpha_of_runs_at_most(mean):
    rng = np.random.default_rng(7)
    looks = LOOKS.model_copy(update={"alpha": 0.2})
    found = [decide_bound(rng.normal(mean, 0.02, 64), 1.02, "above", looks, 1).status for _ in range(600)]
    assert found.count("violation") / 600 <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 600)


@pytest.mark.parametrize("n", [8, 16, 24])
@pytest.mark.parametrize("draw", [np.random.Generator.standard_normal, lambda rng, n: rng.standard_t(3, n)])
def test_intervals_cover_what_they_say(n, draw):
    rng = np.random.default_rng(8)
    hits, runs = 0, 2000
    for _ in range(runs):
        low, high, level = interval(draw(rng, n), 0.95)
        hits += low <= 0 <= high
    assert abs(hits / runs - level) <= 4 * math.sqrt(level * (1 - level) / runs)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_unchanged_code_fails_in_one_run_of_a_hundred_at_most(name):
    """1 000 runs of 100 criteria each."""
    rng = np.random.default_rng(9)
    failed = sum(
        any(decide(ALIKE[name](rng), R, LOOKS, M).status == "regression" for _ in range(M)) for _ in range(1000)
    )
    assert failed <= 10


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("draw", [normal(0.002, R), normal(0.003, R), heavy(0.005, R), bimodal(0.005, R)])
def test_a_true_slow_down_of_the_limit_is_found_in_99_of_100(draw):
    assert outcomes(draw, 10_000, seed=10)["regression"] >= 0.99 - 0.003
