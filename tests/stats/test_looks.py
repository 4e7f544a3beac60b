"""The looks of a run: where they stand, and that they spend no more than there is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.model.plan import Looks
from perfci.stats.decide import LAST, decide, last_share, margin

from . import recorded
from .recorded import KERNELS, share

R = margin(0.01, "lower")


@pytest.mark.parametrize(("m", "first"), [(1, 9), (2, 10), (7, 12), (20, 13), (100, 16), (196, 16), (197, 17)])
def test_a_regression_is_called_as_soon_as_its_p_can_be_small_enough(m, first):
    looks = Looks.fitted(m)
    x = 0.05 + np.random.default_rng(0).normal(0, 0.002, 64)
    found = decide(x, R, looks, m)
    assert (found.status, found.n, found.p) == ("regression", first, 2.0**-first)
    assert decide(x[: first - 1], R, looks, m).status == "continue"


@given(st.integers(1, 10**6), st.sampled_from([None, 16]))
def test_no_look_spends_what_another_has_spent(m, most):
    looks = Looks.fitted(m, most)
    assert math.fsum(looks.obvious_spending + looks.alpha_spending) <= 1 + 1e-9
    assert looks.obvious_pairs == [4, 6] and math.fsum(looks.obvious_spending) == pytest.approx(0.025)
    for n in range(8, looks.pairs[-1] + 1):
        planned = [part for pairs, part in zip(looks.pairs, looks.alpha_spending, strict=True) if pairs <= n]
        assert math.fsum([*looks.obvious_spending, *planned, LAST * last_share(looks, "alpha", n)]) <= 1 + 1e-9
    assert math.fsum(looks.beta_spending) == pytest.approx(1)
    assert looks.first == 8 and looks.pairs[-1] == (most or 64)
    spending = [n for n, part in zip(looks.pairs, looks.alpha_spending, strict=True) if part]
    assert spending[0] == min(looks.pairs[-1], math.ceil(math.log2(m / (0.3 * looks.alpha))))


def test_no_criterion_has_no_looks():
    with pytest.raises(ValueError, match="at least 1"):
        Looks.fitted(0)


@pytest.mark.parametrize("m", [1, 7, 20])
@pytest.mark.parametrize("kernel", KERNELS)
def test_recorded_pairs_are_answered_as_with_sixteen_pairs_and_sooner(kernel, m):
    """Against looks of which 16 pairs are the first to call a regression: as many found, no more false alarms."""
    key, shift = f"{kernel}|rot", margin(0.01, "lower")
    fitted, fixed = Looks.fitted(m), Looks()
    alike = recorded.replay(key, 300, 0.01, 0.0, fitted, m, seed=20)
    assert share(alike, "unchanged") >= 0.99 and share(alike, "regression") == 0
    assert np.median([d.n for d in alike]) == 8
    slower, before = (recorded.replay(key, 300, 0.01, shift, looks, m, seed=21) for looks in (fitted, fixed))
    assert share(slower, "regression") >= 0.95 * share(before, "regression")
    first = next(n for n, part in zip(fitted.pairs, fitted.alpha_spending, strict=True) if part)
    assert np.median([d.n for d in slower]) == first < np.median([d.n for d in before]) == 16
