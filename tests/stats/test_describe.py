"""Descriptions of worker values against scipy's distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from perfci.model.report import Stats
from perfci.stats.describe import TRIMMED, describe, trimmed_mean

values = st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=80)


@given(values)
def test_trimmed_mean_is_scipys(x):
    assert trimmed_mean(x) == pytest.approx(oracle.trim_mean(x, TRIMMED), rel=1e-9, abs=1e-6)


def test_trimmed_mean_ignores_strays_and_resolves_ticks():
    ticks = [32e-9 * n for n in (4, 4, 5, 5, 5, 4, 4, 5, 5)]
    assert trimmed_mean([*ticks, 1.0]) == pytest.approx(32e-9 * 28 / 6)


@given(values)
def test_interval_of_the_median_is_the_binomial_one(x):
    d = describe(x)
    n = len(x)
    ordered = sorted(x)
    best = [k for k in range(1, n // 2 + 1) if 1 - 2 * oracle.binom.cdf(k - 1, n, 0.5) >= 0.95]
    k = max(best, default=1)
    assert (d.low, d.high) == (ordered[k - 1], ordered[n - k])
    assert d.level == pytest.approx(max(0.0, 1 - 2 * oracle.binom.cdf(k - 1, n, 0.5)), abs=1e-12)
    assert d.low <= d.median <= d.high


@given(values)
def test_moments_are_numpys(x):
    d = describe(x)
    assert d.n == len(x)
    assert d.mean == pytest.approx(np.mean(x), rel=1e-9, abs=1e-6)
    assert d.median == pytest.approx(np.median(x))
    assert d.sd == pytest.approx(np.std(x, ddof=1) if len(x) > 1 else 0.0, rel=1e-6, abs=1e-6)


def test_one_value_has_no_interval():
    assert describe([3.0]) == Stats(n=1, mean=3.0, sd=0.0, median=3.0, low=3.0, high=3.0, level=0.0)


def test_a_median_lies_between_its_neighbours_at_the_ends_of_the_range():
    assert describe([5e-324] * 2).median == 5e-324
    assert describe([1.7e308] * 2).median == 1.7e308


def test_thousands_of_values_are_fine():
    d = describe(np.arange(5000.0))
    assert 0.95 <= d.level < 0.952
    assert d.low < 2499.5 < d.high


@pytest.mark.parametrize("bad", [[], [math.nan], [1.0, math.inf]])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError):
        describe(bad)
    with pytest.raises(ValueError):
        trimmed_mean(bad)
