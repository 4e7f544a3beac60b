"""The decision at each look: what it must never do, whatever the data."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.model.plan import Looks
from perfci.stats.decide import SEEN, Decision, decide, decide_bound, margin
from perfci.stats.walsh import p_greater, p_less

LOOKS = Looks()
R = margin(0.01, "lower")
RANK = {"improvement": 0, "unchanged": 1, "inconclusive": 2, "regression": 3}

ratios = st.lists(st.floats(-0.05, 0.05).map(lambda v: round(v, 4)), min_size=8, max_size=64)
shifted = st.tuples(
    ratios, st.sampled_from([-0.03, -0.01, 0.0, 0.005, 0.01, 0.03]), st.sampled_from([1.0, 0.1, 0.01])
).map(lambda t: [t[1] + t[2] * v for v in t[0]])


def noise(n, sd=0.002, mean=0.0, seed=0):
    return np.random.default_rng(seed).normal(mean, sd, n)


def test_default_shares_keep_the_error_rates():
    assert sum(LOOKS.alpha_spending) <= 1
    assert sum(LOOKS.beta_spending) <= 1


def test_margins_are_logs_of_the_ratio_that_r_means():
    assert margin(0.02, "lower") == pytest.approx(math.log(1.02))
    assert margin(0.02, "higher") == pytest.approx(-math.log(0.98))
    assert math.isnan(margin(1.0, "higher"))
    assert math.isnan(margin(-0.1, "lower"))
    assert math.isnan(margin(math.nan, "lower"))


def test_unchanged_code_is_within_the_limit_at_the_first_look():
    d = decide(noise(64), R, LOOKS, m=100)
    assert (d.status, d.look, d.n, d.within) == ("unchanged", 0, 8, True)
    assert d.p == pytest.approx(2.0**-8)


def test_a_slow_down_is_a_regression_at_sixteen_pairs():
    d = decide(noise(64, mean=R), R, LOOKS, m=100)
    assert (d.status, d.look, d.n) == ("regression", 2, 16)
    assert d.p <= 0.01 / 100 * 0.3
    assert d.estimate == pytest.approx(R, abs=0.002)


def test_a_speed_up_is_named_although_a_slow_down_was_excluded_long_before():
    x = noise(64, mean=-0.02)
    assert decide(x[:8], R, LOOKS, m=100) == Decision(
        "continue", 0, 8, 2.0**-8, pytest.approx(-0.02, abs=0.002), within=True
    )
    d = decide(x, R, LOOKS, m=100)
    assert (d.status, d.n, d.within) == ("improvement", 16, True)


def test_a_speed_up_that_no_later_look_can_name_ends_at_once():
    x = noise(8, mean=-0.02)
    looks = Looks(pairs=[8, 12], alpha_spending=[0.0, 1.0], beta_spending=[0.5, 0.5])
    assert decide(x, R, looks, m=1).status == "continue"
    assert decide(x, R, looks, m=100).status == "improvement", "2^-12 is above 1 % / 100, and it was seen all the same"
    assert decide(noise(8, mean=-0.0002), R, looks, m=100).status == "unchanged"


@pytest.mark.parametrize("n", [8, 9, 11, 12, 15])
def test_what_is_faster_beyond_the_limit_is_never_called_unchanged(n):
    x = noise(n, mean=-0.02)
    assert decide(x, R, LOOKS, m=100).status == "continue"
    ended = decide(x, R, LOOKS, m=100, ended=True)
    assert (ended.status, ended.look, ended.last, ended.n, ended.within) == ("improvement", None, True, n, True)


def test_undecided_at_the_cap_is_inconclusive_never_unchanged():
    d = decide(noise(64, sd=0.05, mean=0.01), R, LOOKS, m=100)
    assert (d.status, d.look, d.n, d.p) == ("continue", 6, 64, None)
    assert decide(noise(64, sd=0.05, mean=0.01), R, LOOKS, m=100, ended=True) == replace(d, status="inconclusive")


def test_too_few_pairs_ask_for_more():
    assert decide(noise(7), R, LOOKS, m=1) == Decision("continue", None, 7, None, pytest.approx(0, abs=0.01))
    assert decide([], R, LOOKS, m=1) == Decision("continue", None, 0, None, None)


def test_a_change_under_half_the_limit_is_not_a_regression_however_certain():
    looks = Looks(beta_spending=[0.0] * 7)
    assert decide(noise(64, sd=1e-5, mean=0.4 * R), R, looks, m=1).status == "continue"
    assert decide(noise(64, sd=1e-5, mean=0.6 * R), R, looks, m=1).status == "regression"


@given(shifted, st.sampled_from([1, 10, 1000]))
@settings(max_examples=300)
def test_beyond_and_within_the_limit_hold_what_they_promise(x, m):
    """For any data: a regression is shown within its share of α and by more than half the limit at `confirm`;
    "within" excludes the limit within its share of β."""
    d = decide(x, R, LOOKS, m)
    used = x[: d.n]
    if d.status == "regression":
        assert p_greater(used, 0) <= LOOKS.alpha / m * LOOKS.alpha_spending[d.look]
        assert p_greater(used, R / 2) <= LOOKS.confirm
    elif d.status == "improvement" and d.within and d.p > LOOKS.alpha / m * LOOKS.alpha_spending[d.look]:
        assert p_less(used, -R) <= SEEN
    elif d.status == "improvement":
        assert p_less(used, 0) <= LOOKS.alpha / m * LOOKS.alpha_spending[d.look]
        assert p_less(used, -R / 2) <= LOOKS.confirm
    elif d.status == "unchanged":
        assert any(
            p_less(x[:n], R) <= LOOKS.beta * share
            for n, share in zip(LOOKS.pairs, LOOKS.beta_spending, strict=True)
            if n <= d.n
        )


@given(shifted, st.data())
@settings(max_examples=300)
def test_worse_numbers_never_better_the_outcome_at_a_fixed_look(x, data):
    n = data.draw(st.sampled_from([k for k in LOOKS.pairs if k <= len(x)]))
    x = x[:n]
    look = LOOKS.pairs.index(n)
    share = [float(k == look) for k in range(7)]
    only = LOOKS.model_copy(update={"alpha_spending": share, "beta_spending": share})
    worse = list(x)
    for where in data.draw(st.lists(st.integers(0, n - 1), max_size=n)):
        worse[where] += data.draw(st.floats(0, 0.1))
    before, after = (RANK[decide(v, R, only, m=1, ended=True).status] for v in (x, worse))
    assert after >= before


@pytest.mark.parametrize("ended", [False, True])
@given(shifted, st.data(), st.sampled_from([1, 100]))
@settings(max_examples=300)
def test_worse_numbers_never_undo_a_regression_over_all_looks(ended, x, data, m):
    if decide(x, R, LOOKS, m, ended=ended).status != "regression":
        x = [abs(v) + 0.02 for v in x] + [0.05] * (0 if ended else 16)
    worse = list(x)
    for where in data.draw(st.lists(st.integers(0, len(x) - 1), max_size=len(x))):
        worse[where] += data.draw(st.floats(0, 0.1))
    if decide(x, R, LOOKS, m, ended=ended).status == "regression":
        assert decide(worse, R, LOOKS, m, ended=ended).status == "regression"


def test_a_case_within_the_limit_is_never_a_regression_by_what_comes_later():
    """At first faster and within the limit, hence measured on; then, against all that was seen, far slower."""
    x = np.concatenate([noise(8, mean=-0.02), noise(56, mean=0.05)])
    looks = Looks(pairs=[8, 64], alpha_spending=[0.0, 1.0], beta_spending=[0.5, 0.5])
    assert decide(x, R, looks.model_copy(update={"beta_spending": [0.0, 0.5]}), m=1).status == "regression"
    assert decide(x, R, looks, m=1).status == "unchanged"


@given(shifted, shifted, st.sampled_from([1, 100]))
def test_data_after_the_deciding_look_change_nothing(x, later, m):
    d = decide(x, R, LOOKS, m)
    if d.status != "continue":
        assert decide(x[: d.n] + later, R, LOOKS, m) == d


@pytest.mark.parametrize("ended", [False, True])
@given(shifted, st.sampled_from([1, 10]))
def test_faster_and_slower_are_mirror_images(ended, x, m):
    looks = LOOKS.model_copy(update={"beta_spending": [0.0] * 7, "beta": 0.0})
    status, turned = (decide(values, R, looks, m, ended=ended).status for values in (x, [-v for v in x]))
    assert turned == {"regression": "improvement", "improvement": "regression"}.get(status, status)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 20, 63])
def test_a_value_that_is_no_number_is_invalid_wherever_it_stands(bad, where):
    x = noise(64)
    x[where] = bad
    assert (decide(x, R, LOOKS, 1).status, decide(x, R, LOOKS, 1).reason_code) == ("invalid", "nonfinite")
    assert decide_bound(x, 1.0, "above", LOOKS, 1).reason_code == "nonfinite"


@pytest.mark.parametrize("r", [0.0, -0.01, math.nan, math.inf])
def test_a_limit_that_is_no_change_is_invalid(r):
    d = decide(noise(64), r, LOOKS, 1)
    assert (d.status, d.reason_code) == ("invalid", "margin")
    assert decide(noise(64), r, LOOKS, 1, ended=True) == d


@pytest.mark.parametrize(
    "fields",
    [
        {"pairs": []},
        {"pairs": [8, 8, 16, 24, 32, 48, 64]},
        {"pairs": [0, 12, 16, 24, 32, 48, 64]},
        {"pairs": [8, 12]},
        {"beta_spending": [0.5]},
        {"alpha_spending": [0.0, 0.0, 0.5, 0.5, 0.5, 0.0, 0.0]},
    ],
)
def test_looks_that_do_not_fit_together_are_refused(fields):
    """Uneven lists, and shares of an error rate that sum to more than all of it."""
    with pytest.raises(ValueError, match="looks need"):
        Looks(**fields)


def test_no_criterion_has_no_share_of_alpha():
    with pytest.raises(ValueError, match="at least 1"):
        decide(noise(64), R, LOOKS, 0)
    with pytest.raises(ValueError, match="at least 1"):
        decide_bound(noise(64), 0, "above", LOOKS, 0)


class TestBounds:
    def test_a_clear_break_is_a_violation_on_either_side(self):
        for sign, side in ((1, "above"), (-1, "below")):
            d = decide_bound(sign * (5 + noise(64, sd=0.1)), sign * 4.0, side, LOOKS, m=100)
            assert (d.status, d.look, d.n) == ("violation", 2, 16)
            assert d.estimate == pytest.approx(sign * 5, abs=0.2)

    def test_within_at_the_first_look(self):
        d = decide_bound(5 + noise(8, sd=0.1), 6.0, "above", LOOKS, m=100)
        assert (d.status, d.n, d.within) == ("unchanged", 8, True)

    def test_exactly_on_the_bound_is_within(self):
        assert decide_bound([40.0] * 8, 40.0, "above", LOOKS, 1).status == "unchanged"
        assert decide_bound([40.0] * 8, 40.0, "below", LOOKS, 1).status == "unchanged"

    def test_values_need_not_be_positive(self):
        """Nor need they vary."""
        assert decide_bound([-3.0] * 16, 0.0, "below", LOOKS, 100).status == "violation"
        assert decide_bound([0.0] * 16, 0.0, "above", LOOKS, 100).status == "unchanged"

    def test_on_the_wrong_side_but_not_certain_goes_on_and_ends_inconclusive(self):
        d = decide_bound([1.5, 0.51] * 32, 1.0, "above", LOOKS, 100)
        assert (d.status, d.look, d.n, d.p) == ("continue", 6, 64, None)
        assert d.estimate == pytest.approx(1.005)
        ended = decide_bound([1.5, 0.51] * 32, 1.0, "above", LOOKS, 100, ended=True)
        assert ended == replace(d, status="inconclusive")

    def test_too_few_values_are_not_within(self):
        assert decide_bound([0.5] * 7, 1.0, "above", LOOKS, 1).status == "continue"
        assert decide_bound([], 1.0, "above", LOOKS, 1) == Decision("continue", None, 0, None, None)

    @pytest.mark.parametrize("bound", [math.nan, math.inf])
    def test_a_bound_that_is_no_number_is_invalid(self, bound):
        assert decide_bound([1.0] * 64, bound, "above", LOOKS, 1).reason_code == "bound"

    @pytest.mark.parametrize("ended", [False, True])
    @given(st.lists(st.floats(0, 10), min_size=8, max_size=32), st.floats(-5, 5), st.data())
    def test_worse_numbers_never_undo_a_violation(self, ended, x, bound, data):
        worse = [v + data.draw(st.floats(0, 10)) for v in x]
        if decide_bound(x, bound, "above", LOOKS, 1, ended=ended).status == "violation":
            assert decide_bound(worse, bound, "above", LOOKS, 1, ended=ended).status == "violation"
