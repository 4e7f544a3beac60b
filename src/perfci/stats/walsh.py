"""Exact signed-rank tests, estimate and interval, all read from the Walsh averages (x_i + x_j)/2, i ≤ j.

The number of Walsh averages above c is Wilcoxon's signed-rank statistic of x - c (Tukey 1949; Hollander & Wolfe,
Nonparametric Statistical Methods, 2nd ed., 3.1-3.4); their median is the Hodges-Lehmann estimate (Hodges & Lehmann,
Ann. Math. Stat. 34, 1963); their order statistics are the exact interval. Everything is exact for observations
symmetric about the location, and monotone: raising any x never raises the p-value of "greater".
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Bounds(NamedTuple):
    """An interval and its exact coverage."""

    low: float
    high: float
    level: float


@lru_cache(maxsize=256)
def _upper(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(n)


@lru_cache(maxsize=256)
def null_tail(n: int) -> Array:
    """Return P(W ≥ w), w = 0 … n(n+1)/2, of the signed-rank statistic W of n observations symmetric about 0.

    Shape (n(n+1)/2 + 1,), read-only: a convolution of n two-point distributions (Hollander & Wolfe, 3.1, comment 5).
    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError("a signed-rank distribution needs at least one observation")
    mass = np.zeros(n * (n + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, n + 1):
        mass[rank:] = 0.5 * (mass[rank:] + mass[:-rank])
        mass[:rank] *= 0.5
    # Summed from the thin end: tails of 1e-19 keep their digits.
    tail: Array = np.minimum(np.cumsum(mass[::-1])[::-1], 1.0)
    tail.flags.writeable = False
    return tail


def _averages(x: Sequence[float] | Array) -> Array:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("no observations")
    if not np.isfinite(values).all():
        raise ValueError("an observation is not a finite number")
    i, j = _upper(values.size)
    half = 0.5 * values  # halved first, so that the largest numbers do not overflow
    averages: Array = half.take(i) + half.take(j)
    return averages


def middle(ordered: Array) -> float:
    """Return the median of sorted values, without overflow or underflow."""
    low, high = ordered[(ordered.size - 1) // 2], ordered[ordered.size // 2]
    return float(min(max(0.5 * low + 0.5 * high, low), high))


def walsh(x: Sequence[float] | Array) -> Array:
    """Return the n(n+1)/2 Walsh averages of x (shape (n,)), sorted. Raises ValueError where x is empty or not
    finite."""
    return np.sort(_averages(x))


class Averages:
    """The Walsh averages of x, taken once."""

    def __init__(self, x: Sequence[float] | Array) -> None:
        """x: shape (n,). Raises ValueError where it is empty or not finite."""
        self._averages = _averages(x)
        self._tail = null_tail(len(x))

    def p_greater(self, c: float) -> float:
        """As the function."""
        return self._p(self._averages > c, c)

    def p_less(self, c: float) -> float:
        """As the function."""
        return self._p(self._averages < c, c)

    def _p(self, beyond: NDArray[np.bool_], c: float) -> float:
        if math.isnan(c):
            raise ValueError("the location to test is not a number")
        return float(self._tail[np.count_nonzero(beyond)])

    def hodges_lehmann(self) -> float:
        """As the function."""
        return middle(np.sort(self._averages))


def p_greater(x: Sequence[float] | Array, c: float) -> float:
    """Return the exact one-sided p-value of "the location of x is greater than c".

    Ties with c count against. Raises ValueError where x is empty or not finite, or c is not a number.
    """
    return Averages(x).p_greater(c)


def p_less(x: Sequence[float] | Array, c: float) -> float:
    """Return the exact one-sided p-value of "the location of x is less than c", as `p_greater`."""
    return Averages(x).p_less(c)


def hodges_lehmann(x: Sequence[float] | Array) -> float:
    """Return the median of the Walsh averages."""
    return Averages(x).hodges_lehmann()


def interval(x: Sequence[float] | Array, level: float) -> Bounds:
    """Return the narrowest interval between Walsh averages that covers the location with `level` or more.

    Of too small an n it is the widest there is, with its exact coverage 1 - 2^(1-n). Raises ValueError where x is empty
    or not finite, or level is outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not at {level}")
    averages = walsh(x)
    missed = null_tail(len(x))[::-1]  # missed[k - 1] = P(W ≤ k - 1): beyond the k-th average from one end
    k = max(1, int(np.count_nonzero(2 * missed <= 1 - level)))
    return Bounds(float(averages[k - 1]), float(averages[-k]), max(0.0, 1 - 2 * float(missed[k - 1])))
