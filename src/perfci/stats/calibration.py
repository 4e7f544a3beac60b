"""Calibration by pairs of identical code."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from perfci.model.plan import Looks
from perfci.stats.walsh import Array, hodges_lehmann, interval, null_tail

PROMISE = 0.99
"""Share of true changes found, and of unchanged cases within the limit, at the smallest r."""
EFFECT_LEVEL = 0.99
"""Coverage of the intervals of all biases together."""
STEPS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.10, 0.15, 0.20)
"""Changes that people write into a policy."""
_NORMAL_RUNS = 5000
_AT_ONCE = 50
"""Runs whose Walsh averages stay in a core's cache: half the time of all at once."""
_LARGEST_FACTOR = 20.0
MAD = 1.4826
"""A normal distribution's standard deviation in median absolute deviations."""


class Noise(NamedTuple):
    """Pairs of identical code; log ratios, positive is slower in head."""

    pairs: int
    sd: float
    effect: float
    """Hodges–Lehmann estimate of the bias."""
    low: float
    high: float
    level: float
    """Exact coverage of [low, high], corrected for the number of cases; smaller where pairs are few."""
    differs: bool
    """The corrected interval excludes 0."""
    bound: float
    """Of the bias at 99 %, uncorrected."""


def noise(x: Sequence[float] | Array, cases: int) -> Noise:
    """`x`: ln(head/base) per pair of one of `cases` cases, shape (n,).

    Raises ValueError for n < 2, a value not finite, or cases < 1.
    """
    values = np.asarray(x, dtype=np.float64)
    if values.size < 2 or cases < 1:
        raise ValueError("noise needs two pairs at least, of one case at least")
    wanted = 1 - (1 - EFFECT_LEVEL) / cases
    low, high, level = interval(values, wanted)
    own = interval(values, EFFECT_LEVEL)
    return Noise(
        pairs=values.size,
        sd=float(values.std(ddof=1)),
        effect=hodges_lehmann(values),
        low=low,
        high=high,
        level=level,
        differs=level >= wanted and (low > 0 or high < 0),
        bound=max(abs(own.low), abs(own.high)),
    )


def reach(found: Noise, looks: Looks, m: int) -> dict[int, float]:
    """Return cap on pairs → the smallest r, a log ratio, that is found and whose absence is shown in 99 % of cases.

    `factor × sd`, plus twice a proven bias, since a regression must exceed r/2; never under twice the effect that the
    pairs leave possible. Caps at which nothing can be a regression are left out.
    """
    effect = 2 * abs(found.effect) if found.differs else 0.0
    return {cap: max(factor * found.sd + effect, 2 * found.bound) for cap, factor in factors(looks, m).items()}


def factors(looks: Looks, m: int) -> dict[int, float]:
    """Return cap on pairs → smallest r in standard deviations of a pair, from 5 000 simulated cases of normal noise.

    At m = 100 about 3.45, 2.35, 1.95, 1.6 and 1.4 at 16, 24, 32, 48 and 64 pairs.
    """
    return dict(_factors(looks.model_dump_json(), m))


@lru_cache(maxsize=16)
def _factors(looks: str, m: int) -> tuple[tuple[int, float], ...]:
    plan = Looks.model_validate_json(looks)
    bounds = _bounds(looks, m)
    found = []
    for last, cap in enumerate(plan.pairs):
        low, high = 0.0, _LARGEST_FACTOR
        if not _kept(bounds, high, last):
            continue
        while high - low > 0.01:
            half = 0.5 * (low + high)
            low, high = (low, half) if _kept(bounds, half, last) else (half, high)
        found.append((cap, high))
    return tuple(found)


class _Bounds(NamedTuple):
    """Order statistics of simulated Walsh averages, shape (runs, looks), which the tests of `decide` compare."""

    prove: Array
    confirm: Array
    clear: Array


@lru_cache(maxsize=4)
def _bounds(looks: str, m: int) -> _Bounds:
    plan = Looks.model_validate_json(looks)
    x = np.random.default_rng(0).standard_normal((_NORMAL_RUNS, plan.pairs[-1]))
    shape = (_NORMAL_RUNS, len(plan.pairs))
    bounds = _Bounds(np.full(shape, -np.inf), np.full(shape, -np.inf), np.full(shape, np.inf))
    for look, n in enumerate(plan.pairs):
        i, j = np.triu_indices(n)
        size = i.size
        prove, confirm, clear = _criticals(plan, m, look)
        ranks = [(bounds.prove, size - prove), (bounds.confirm, size - confirm), (bounds.clear, clear - 1)]
        reached = [(bound, rank) for bound, rank in ranks if 0 <= rank < size]
        for begin in range(0, _NORMAL_RUNS if reached else 0, _AT_ONCE):
            runs = slice(begin, begin + _AT_ONCE)
            averages = 0.5 * (x[runs, i] + x[runs, j])
            averages.partition(sorted({rank for _, rank in reached}), axis=1)
            for bound, rank in reached:
                bound[runs, look] = averages[:, rank]
    return bounds


def _kept(bounds: _Bounds, r: float, last: int) -> bool:
    seen = slice(0, last + 1)
    proves = (bounds.prove[:, seen] + r > 0) & (bounds.confirm[:, seen] + r > r / 2)
    clears = bounds.clear[:, seen] < 0
    first = np.where(proves.any(axis=1), proves.argmax(axis=1), last + 1)
    missed = np.where(clears.any(axis=1), clears.argmax(axis=1), last + 1)
    found = (first <= missed) & (first <= last)
    unchanged = (bounds.clear[:, seen] < r).any(axis=1)
    return bool(found.mean() >= PROMISE and unchanged.mean() >= PROMISE)


def expected_pairs(r_log: float, sd: float, looks: Looks, m: int) -> float:
    """Return the mean number of pairs of an unchanged case of normal noise `sd`, for a limit of r_log > 0; undecided
    counts as all."""
    clears = _bounds(looks.model_dump_json(), m).clear * sd < r_log
    look = np.where(clears.any(axis=1), clears.argmax(axis=1), len(looks.pairs) - 1)
    return float(np.array(looks.pairs, dtype=np.float64)[look].mean())


def _criticals(looks: Looks, m: int, look: int) -> tuple[int, int, int]:
    """The smallest statistics that show, confirm, and exclude "slower"; beyond the largest where none does."""
    n = looks.pairs[look]
    tail = null_tail(n)[::-1]

    def least(share: float) -> int:
        return tail.size - int(np.searchsorted(tail, share, side="right"))

    alpha = looks.alpha / m * looks.alpha_spending[look]
    return (
        least(alpha) if alpha > 0 else tail.size,
        least(looks.confirm),
        least(looks.beta * looks.beta_spending[look]),
    )


def clopper_pearson(hits: int, trials: int) -> tuple[float, float]:
    """Return the exact two-sided interval of a share, hits of trials ≥ 1, at 95 % (Clopper & Pearson, Biometrika 26,
    1934)."""
    k = np.arange(trials + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    ways = factorials[trials] - factorials[k] - factorials[trials - k]
    miss = 0.025

    def at_most(most: int, share: float) -> float:
        terms = ways[: most + 1] + k[: most + 1] * math.log(share) + (trials - k[: most + 1]) * math.log1p(-share)
        return float(np.exp(terms).sum())

    def solve(most: int, tail: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            half = 0.5 * (low + high)
            low, high = (half, high) if at_most(most, half) > tail else (low, half)
        return 0.5 * (low + high)

    low = 0.0 if hits == 0 else solve(hits - 1, 1 - miss)
    high = 1.0 if hits == trials else solve(hits, miss)
    return low, high


def step_for(share: float) -> float | None:
    """Return the smallest readable limit of at least `share`; None beyond them all."""
    return next((step for step in STEPS if step >= share * (1 - 1e-9)), None)
