"""Descriptions of samples and worker values."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from perfci.model.report import Stats
from perfci.stats.walsh import Array, middle

LEVEL = 0.95
"""Coverage that the interval of a median aims at."""


def _finite(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError("no values")
    if not np.isfinite(array).all():
        raise ValueError("a value is not a finite number")
    return array


TRIMMED = 0.2
"""Share of samples cut from each end."""


def trimmed_mean(samples: Sequence[float] | Array) -> float:
    """Return the mean after ⌊`TRIMMED` × n⌋ samples are cut from each end of the sorted samples.

    It resolves less than the timer's tick, unlike a median, and ignores stray samples (Tukey & McLaughlin, Sankhya A
    25, 1963). Raises ValueError where samples are empty or not finite.
    """
    array = np.sort(_finite(samples))
    cut = int(TRIMMED * array.size)
    return float(array[cut : array.size - cut].mean())


@lru_cache(maxsize=256)
def _median_rank(n: int, level: float) -> tuple[int, float]:
    """The largest k so that [x_(k), x_(n+1-k)] covers the median with `level`, else 1; and its coverage.

    Hollander & Wolfe, 3.6. Integers, hence exact.
    """
    total = 2**n
    term, missed = 1, 1  # C(n, 0), and the sum of C(n, i) for i < k
    k = 1
    while k < n // 2:
        term = term * (n - k + 1) // k
        if 2 * (missed + term) / total > 1 - level:
            break
        missed += term
        k += 1
    return k, 1 - 2 * missed / total


def describe(values: Sequence[float] | Array) -> Stats:
    """Return number, mean, standard deviation (n - 1; 0 for one value), median, and the median's exact interval.

    It covers 95 % or more; of too few values it is the range, with its exact coverage: 0 for one value. Raises
    ValueError where values are empty or not finite.
    """
    array = np.sort(_finite(values))
    n = array.size
    k, level = _median_rank(n, LEVEL)
    with np.errstate(over="ignore"):  # beyond the largest number lies infinity
        mean, sd = float(array.mean()), float(array.std(ddof=1)) if n > 1 else 0.0
    return Stats(
        n=n,
        mean=mean,
        sd=sd,
        median=middle(array),
        low=float(array[k - 1]),
        high=float(array[n - k]),
        level=level,
    )
