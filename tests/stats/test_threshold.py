"""The decision on which side of a threshold a change lies, as a bisect asks it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.model.plan import Looks
from perfci.stats.decide import decide_threshold
from perfci.stats.obvious import obvious

HALF = 0.05
RUNS = 400
MIRRORED = {"regression": "unchanged", "unchanged": "regression"}


def decided(x, looks, m, **more):
    return decide_threshold(x, HALF, looks, m, **more).status


@pytest.mark.parametrize("m", [1, 30, 1000])
@pytest.mark.parametrize(("level", "status"), [(0.0, "unchanged"), (2 * HALF, "regression")])
def test_what_is_there_or_not_is_found(m, level, status):
    looks, rng = Looks.fitted(m), np.random.default_rng(m)
    drawn = level + rng.normal(0, HALF / 2.5, (RUNS, looks.pairs[-1]))
    found = [decided(x, looks, m, ended=True) for x in drawn]
    assert found.count(status) >= 0.99 * RUNS


def test_on_the_threshold_itself_either_answer_is_rare():
    looks, rng = Looks.fitted(1), np.random.default_rng(1)
    found = [decided(HALF + rng.normal(0, HALF, looks.pairs[-1]), looks, 1, ended=True) for _ in range(RUNS)]
    assert found.count("inconclusive") >= 0.95 * RUNS  # 1 % on either side are allowed


@settings(max_examples=100)
@given(st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=64), st.sampled_from([1, 7, 200]), st.booleans())
def test_both_answers_are_alike(x, m, ended):
    """Mirrored at the threshold, the same pairs give the other answer."""
    looks, values = Looks.fitted(m), np.array(x)
    one, other = decided(values, looks, m, ended=ended), decided(2 * HALF - values, looks, m, ended=ended)
    ties = np.isclose(values[:, None] + values, 2 * HALF, atol=1e-9)  # which rounding breaks
    assert ties.any() or other == MIRRORED.get(one, one)


@settings(max_examples=100)
@given(st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=64), st.floats(0, 0.2), st.sampled_from([1, 30]))
def test_more_change_never_makes_less_of_it(x, more, m):
    looks, values = Looks.fitted(m), np.array(x)
    if decided(values, looks, m, ended=True) == "regression":
        assert decided(values + more, looks, m, ended=True) == "regression"


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_no_answer(wrong):
    assert decide_threshold([wrong] * 20, HALF, Looks(), 1, ended=True).status == "invalid"
    assert decide_threshold([0.1] * 20, wrong, Looks(), 1, ended=True).status == "invalid"


def test_fewer_pairs_than_the_first_look_never_decide():
    looks = Looks.fitted(30)
    few = [0.0] * (looks.first - 1)
    assert decided(few, looks, 30) == "continue"
    assert decided(few, looks, 30, ended=True) == "inconclusive"


def test_plainly_short_of_it_is_obvious_as_plainly_beyond_is():
    calm = np.array([0.001, -0.001, 0.0005, 0.0, -0.0005, 0.001])
    for x, status in ((calm, "unchanged"), (calm + 2 * HALF, "regression")):
        found = obvious(x, x, HALF, 1e-6, threshold=True)
        assert found is not None and (found.status, found.early) == (status, True)
    assert obvious(calm, calm, HALF, 1e-6) is None, "without a threshold, what did not change is not obvious"
    # The clock's doing: plain at equal clock alone.
    assert obvious(calm, calm + 2 * HALF, HALF, 1e-6, threshold=True) is None
