"""The signed-rank machinery against scipy, and the properties that the decisions lean on."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from perfci.stats.walsh import hodges_lehmann, interval, null_tail, p_greater, p_less, walsh

numbers = st.floats(-1e6, 1e6, allow_nan=False)
samples = st.lists(numbers, min_size=1, max_size=20)


def test_null_distribution_is_the_one_obtained_by_flipping_every_sign():
    for n in range(1, 9):
        flips = itertools.product([0, 1], repeat=n)
        sums = [sum(itertools.compress(range(1, n + 1), signs)) for signs in flips]
        expected = [sum(s >= w for s in sums) / 2**n for w in range(n * (n + 1) // 2 + 1)]
        assert null_tail(n) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [16, 64, 200])
def test_the_thinnest_tail_keeps_its_digits(n):
    tail = null_tail(n)
    assert tail[-1] == pytest.approx(2.0**-n, rel=1e-9)
    assert tail[-4] == pytest.approx(5 * 2.0**-n, rel=1e-9)  # sums missing 0, 1, 2, or 3 (as 3 and as 1 + 2)
    assert tail[0] == pytest.approx(1)


@pytest.mark.parametrize("n", [3, 8, 12, 16, 33, 50])
@pytest.mark.parametrize("shift", [0.0, 0.3, -0.7])
def test_p_values_are_scipys_exact_ones_where_there_are_no_ties(n, shift):
    x = np.random.default_rng(n).normal(shift, 1, n)
    greater = oracle.wilcoxon(x, alternative="greater", method="exact")
    less = oracle.wilcoxon(x, alternative="less", method="exact")
    assert p_greater(x, 0) == pytest.approx(greater.pvalue, rel=1e-9)
    assert p_less(x, 0) == pytest.approx(less.pvalue, rel=1e-9)
    assert p_greater(x + 5, 5) == pytest.approx(greater.pvalue, rel=1e-9)


@given(samples, st.data(), st.floats(0, 1e6), numbers)
def test_worse_numbers_never_raise_the_p_value_of_worse(x, data, raised, c):
    where = data.draw(st.integers(0, len(x) - 1))
    worse = list(x)
    worse[where] += raised
    assert p_greater(worse, c) <= p_greater(x, c)
    assert p_less(worse, c) >= p_less(x, c)
    assert hodges_lehmann(worse) >= hodges_lehmann(x)


@given(samples, numbers)
def test_ties_and_zeros_are_conservative(x, c):
    """Both one-sided p-values are at least those of any way of breaking the ties, so that they sum to 1 or more."""
    assert p_greater(x, c) + p_less(x, c) >= 1 - 1e-12


def test_values_equal_to_the_bound_show_nothing():
    assert p_greater([2.0] * 20, 2.0) == 1
    assert p_less([2.0] * 20, 2.0) == 1


@given(samples, st.randoms())
def test_order_does_not_matter(x, random):
    shuffled = list(x)
    random.shuffle(shuffled)
    assert p_greater(shuffled, 0.5) == p_greater(x, 0.5)
    assert hodges_lehmann(shuffled) == hodges_lehmann(x)
    assert interval(shuffled, 0.9) == interval(x, 0.9)


@given(samples, st.floats(0.05, 0.99))
def test_interval_and_test_agree(x, level):
    """A location inside the interval is rejected by neither test at its level; one outside is rejected by one."""
    low, high, exact = interval(x, level)
    assert low <= hodges_lehmann(x) <= high
    if len(x) > 8:
        assert exact >= level - 1e-12
    alpha = (1 - exact) / 2
    assert p_less(x, high) > alpha - 1e-12
    assert p_greater(x, low) > alpha - 1e-12
    assert p_greater(x, math.nextafter(low, -math.inf)) <= alpha + 1e-12
    assert p_less(x, math.nextafter(high, math.inf)) <= alpha + 1e-12


def test_interval_coverage_is_that_of_the_tables():
    """Hollander & Wolfe, table A.4: n = 10, 56 − 9 = the 9th average from each end covers 0.951."""
    x = np.arange(10.0) ** 2
    low, high, level = interval(x, 0.95)
    assert level == pytest.approx(0.951, abs=5e-4)
    assert (low, high) == (walsh(x)[8], walsh(x)[-9])


@pytest.mark.parametrize(("n", "level"), [(1, 0.0), (2, 0.5), (4, 0.875), (5, 0.9375)])
def test_too_few_values_give_the_widest_interval_with_its_true_coverage(n, level):
    x = np.arange(float(n))
    assert interval(x, 0.95) == (0.0, n - 1, pytest.approx(level))


def test_numbers_at_the_ends_of_the_range_neither_overflow_nor_vanish():
    assert hodges_lehmann([1.7e308] * 3) == 1.7e308
    assert hodges_lehmann([1e-323] * 2) == 1e-323


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
@pytest.mark.parametrize(
    "function", [walsh, hodges_lehmann, lambda x: p_greater(x, 0), lambda x: p_less(x, 0), lambda x: interval(x, 0.9)]
)
def test_what_is_no_number_is_refused(function, bad):
    with pytest.raises(ValueError):
        function(bad)


@pytest.mark.parametrize("level", [0, 1, -1, math.nan])
def test_levels_outside_zero_and_one_are_refused(level):
    with pytest.raises(ValueError, match="level"):
        interval([1.0, 2.0], level)


def test_a_location_that_is_no_number_is_refused():
    for test in (p_greater, p_less):
        with pytest.raises(ValueError, match="not a number"):
            test([1.0], math.nan)
