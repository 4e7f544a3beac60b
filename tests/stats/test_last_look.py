"""The last look, where pairs end between two looks: what it may spend, whatever decides when they end.

That a budget ends may depend on the data, by way of the time that pairs take, of what the scheduler chooses, of people
who watch and who continue a run. So what counts is the supremum: the chance that at *any* number of pairs from the
first look on, planned or last, unchanged code would have been a regression.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.looks import SCALES, levels, simulate, spent, worst
from perfci.model.plan import Looks
from perfci.stats.decide import LAST, SEEN, decide, decide_beside, decide_bound
from perfci.stats.walsh import interval, p_greater, p_less
from tests.stats.test_decide import LOOKS, R, noise, shifted

QUICK = Looks.fitted(100, 16)


# The supremum over all ends


@pytest.mark.parametrize("m", [1, 7, 10, 39, 195])
def test_no_stopping_rule_spends_more_than_alpha(m):
    simulated = simulate(20_000, seed=1)
    for looks in (Looks.fitted(m), Looks.fitted(m, 16)):
        share, error = spent(simulated, looks, m)
        assert 0.4 < share <= 1 + 3 * error
    share, error = spent(simulated, LOOKS, 1, rate="beta")
    assert 0.5 < share <= 1 + 3 * error


@pytest.mark.parametrize("looks", [LOOKS, QUICK])
def test_what_is_simulated_is_what_is_decided(looks):
    """The levels above, against `decide` itself with no demand on size: the first end at which each run is a regression."""
    own = looks.model_copy(update={"confirm": 1.0, "beta_spending": [0.0] * len(looks.pairs)})
    rng = np.random.default_rng(2)
    seen = 0
    for m in (1, 7):
        level = levels(looks, "alpha", m)
        for _ in range(25):
            x = rng.standard_normal(len(level)) + rng.uniform(0, 1.5)
            p = [p_greater(x[:n], 0) for n in range(1, len(level) + 1)]
            first = next((n for n in range(1, len(level) + 1) if p[n - 1] <= level[n - 1]), None)
            ends = (
                n for n in range(1, len(level) + 1) if decide(x[:n], 1e-9, own, m, ended=True).status == "regression"
            )
            assert next(ends, None) == first
            seen += first is not None
    assert seen >= 20


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("name", SCALES)
def test_no_stopping_rule_spends_more_than_alpha_at_length(name):
    """400 000 runs for each of twenty sizes: the figures that `LAST` tells."""
    for quick in (False, True):
        share, error, _ = worst(name, 8, quick=quick)
        assert 0.7 < share <= 1 + 3 * error, "or the factor is larger than it need be"
    if name == "growing fourfold":
        assert worst(name, 8, last=6.0)[0] > 1.02


# What is decided


@pytest.mark.parametrize(("m", "fewest"), [(1, 10), (2, 11), (4, 12), (7, 13), (100, 17)])
def test_the_fewest_pairs_of_a_regression(m, fewest):
    """All slower: p = 2^-n, within a tenth of α/m; at the planned looks of 16 pairs within three tenths."""
    x = np.full(64, 0.5) + noise(64)
    for n in range(64):
        found = decide(x[:n], R, LOOKS, m, ended=True)
        by_plan = n >= 16 and 0.01 / m * 0.3 >= 2.0**-16
        if by_plan:
            assert (found.status, found.look, found.n, found.last) == ("regression", 2, 16, False)
        elif n >= fewest:
            assert (found.status, found.look, found.n, found.last) == ("regression", None, n, True)
            assert found.p == 2.0**-n
        else:
            assert (found.status, found.last) == ("inconclusive", False)


def test_with_fewer_pairs_than_the_first_look_nothing_is_said():
    for mean in (-0.5, 0.0, 0.5):
        assert decide(noise(7, mean=mean), R, LOOKS, 1, ended=True).status == "inconclusive"
    assert decide_bound([9.0] * 7, 1.0, "above", LOOKS, 1, ended=True).status == "inconclusive"
    assert decide_bound([0.5] * 7, 1.0, "above", LOOKS, 1, ended=True).status == "inconclusive"


@given(shifted, st.sampled_from([1, 10, 1000]), st.sampled_from([LOOKS, QUICK]))
@settings(max_examples=300)
def test_a_last_look_only_adds_answers(x, m, looks):
    """Answers of planned looks stand; what they leave open is a regression only where all of α/m would show it, too, and
    within the limit only where all of β would."""
    early, late = decide(x, R, looks, m), decide(x, R, looks, m, ended=True)
    assert late.status != "continue"
    if early.status != "continue":
        assert late == early
        return
    at_once = Looks(pairs=[len(x)], alpha_spending=[1.0], beta_spending=[0.0])
    if late.status == "regression":
        assert not early.within
        assert decide(x, R, at_once, m).status == "regression"
        assert late.p <= looks.alpha / m / LAST
    elif late.status in ("unchanged", "improvement") and not early.within and late.within:
        assert p_less(x, R) <= looks.beta / LAST
    elif early.within:
        assert late.status in ("unchanged", "improvement")


@given(shifted, st.sampled_from([1, 10]))
@settings(max_examples=300)
def test_a_case_within_the_limit_is_faster_where_its_interval_says_so(x, m):
    found = decide(x, R, LOOKS, m, ended=True)
    assume(found.within)
    beyond = interval(x[: found.n], 1 - 2 * SEEN).high < -R
    assert found.status == "improvement" or not beyond
    if found.status == "improvement" and found.p > 0.01 / m * 0.3:
        assert beyond


@given(st.lists(st.floats(-0.05, 0.05), min_size=65, max_size=80), st.floats(0, 0.05))
def test_past_the_last_planned_look_nothing_is_spent(x, shift):
    x = [v + shift for v in x]
    at_cap, beyond = decide(x[:64], R, LOOKS, 1, ended=True), decide(x, R, LOOKS, 1, ended=True)
    assert beyond.status == at_cap.status
    assert not beyond.last


def test_a_last_look_shows_within_the_limit():
    """The first eight leave it open by one stray pair, and nine do; fourteen do not."""
    x = noise(15, sd=0.0005)
    x[3] = R + 0.002
    looks = LOOKS.model_copy(update={"pairs": [8, 16, 24, 32, 40, 48, 64]})
    assert decide(x[:11], R, looks, 1).status == "continue"
    assert decide(x[:9], R, looks, 1, ended=True).status == "inconclusive"
    found = decide(x[:14], R, looks, 1, ended=True)
    assert (found.status, found.look, found.last, found.n) == ("unchanged", None, True, 14)
    assert found.p <= 0.01 * 0.6 / LAST


class TestBounds:
    def test_a_clear_break_is_a_violation(self):
        for sign, side in ((1, "above"), (-1, "below")):
            d = decide_bound(sign * (5 + noise(11, sd=0.1)), sign * 4.0, side, LOOKS, 1, ended=True)
            assert (d.status, d.look, d.last, d.n, d.p) == ("violation", None, True, 11, 2.0**-11)

    def test_on_the_right_side_in_the_end_is_within(self):
        """On the wrong side at eight workers, on the right one with all."""
        values = [1.1] * 5 + [0.9] * 3 + [0.1] * 3
        assert decide_bound(values, 0.98, "above", LOOKS, 1).status == "continue"
        d = decide_bound(values, 0.98, "above", LOOKS, 1, ended=True)
        assert (d.status, d.last, d.n) == ("unchanged", True, 11)


class TestClock:
    def test_slower_as_measured_alone_is_the_clock_at_the_last_look(self):
        x = noise(13, sd=0.001)
        assert decide_beside(x, x + 0.03, R, LOOKS, 1).status == "continue"
        d = decide_beside(x, x + 0.03, R, LOOKS, 1, ended=True)
        assert (d.status, d.look, d.last, d.n, d.p) == ("clock", None, True, 13, 2.0**-13)

    def test_slower_at_equal_clock_alone_is_the_clock_at_the_last_look(self):
        x = noise(13, sd=0.001)
        d = decide_beside(x + 0.03, x, R, LOOKS, 1, ended=True)
        assert (d.status, d.look, d.last, d.n) == ("clock", None, True, 13)
        assert decide_beside(x + 0.03, x + 0.03, R, LOOKS, 1, ended=True).status == "regression"

    def test_an_improvement_stays_one_though_the_clock_is_left_open(self):
        x = noise(9, sd=0.001, mean=-0.05)
        measured = x + 0.05 + np.array([0.02] * 8 + [-0.01])
        assert decide_beside(x, measured, R, LOOKS, 1).status == "continue"
        assert decide_beside(x, measured, R, LOOKS, 1, ended=True).status == "improvement"


# Improvements that are none


def called_faster(runs, sd, seed):
    """Share of unchanged cases of noise `sd`, in limits, that are called improvements where pairs end at random."""
    rng = np.random.default_rng(seed)
    found = [decide(rng.normal(0, sd * R, rng.integers(8, 65)), R, LOOKS, 100, ended=True).status for _ in range(runs)]
    return found.count("improvement") / runs


@pytest.mark.parametrize("sd", [0.5, 1.0, 3.0, 10.0, 30.0])
def test_unchanged_code_is_hardly_ever_called_faster(sd):
    assert called_faster(300, sd, seed=5) <= 0.01 + 3 * math.sqrt(0.01 / 300)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("sd", [0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0])
def test_unchanged_code_is_hardly_ever_called_faster_at_length(sd):
    share = called_faster(10_000, sd, seed=6)
    assert share <= (0.001 if sd <= 1 else 0.01)
