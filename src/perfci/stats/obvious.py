"""Changes so plain that a few pairs show them: all beyond the limit, and close to each other.

Let pairs be independent, and their log ratios less the limit, y, be symmetric and unimodal about a location of 0 or
less, each with a width of its own. Such a distribution is a mixture of uniform ones on [c - w, c + w] with c ≤ 0
(Khinchin's theorem; Dharmadhikari & Joag-Dev, Unimodality, Convexity, and Applications, 1988, 1.2). Given c and w, all
n are positive with a probability of 2^-n at most. Where they are, each is uniform on [0, w + c]; given the largest, M,
any other is at least t M with a probability of max(0, 1 - t M / (w + c)) ≤ 1 - t. So

    P(all y > 0, min y ≥ t max y) ≤ 2^-n (1 - t)^(n-1)

whatever the widths; with t = min y / max y the right side is a p-value: exact for uniform noise, and smaller still the
heavier the tails. `benchmarks/looks.py` counts it. Two values that pairs fall between, as where a tuner chooses between
two kernels in each process, break it: `one_peak` keeps such cases out.
"""

import math
from collections.abc import Sequence

import numpy as np

from perfci.model.base import SIDES
from perfci.model.results import Case
from perfci.model.timing import GRAPH_MODES
from perfci.stats.decide import Decision, Status
from perfci.stats.series import in_order
from perfci.stats.walsh import Array, hodges_lehmann


def p_beyond(x: Sequence[float] | Array, r_log: float) -> float:
    """Return the p-value of "the location of x, shape (n,), is greater than r_log": 1 where a value is not beyond it.

    Raises ValueError for fewer than two values, and for one not finite.
    """
    y = np.asarray(x, dtype=np.float64) - r_log
    if y.size < 2 or not np.isfinite(y).all():
        raise ValueError("plainly beyond the limit are two finite values or more")
    least, most = float(y.min()), float(y.max())
    return 2.0**-y.size * (1 - least / most) ** (y.size - 1) if least > 0 else 1.0


def obvious(x: Array, measured: Array, r_log: float, alpha: float, *, threshold: bool = False) -> Decision | None:
    """Return the decision that a change is plain within `alpha`, at equal clock and as measured.

    `x`, `measured`: log ratios of the same pairs, shape (n,), positive is worse. `r_log`: from `margin`; NaN shows
    nothing. `threshold`: that there is no such change may be plain, too: all of the above holds of y = r_log - x.
    Raises as `p_beyond`.
    """
    if not (math.isfinite(r_log) and r_log > 0):
        return None
    other: tuple[Status, float] = ("unchanged", -r_log) if threshold else ("improvement", r_log)
    asked: tuple[tuple[Status, float, float], ...] = (("regression", 1.0, r_log), (other[0], -1.0, other[1]))
    for status, way, beyond in asked:
        p = max(p_beyond(way * x, beyond), p_beyond(way * measured, beyond))
        if p <= alpha:
            return Decision(status, None, len(x), p, hodges_lehmann(x), within=status == "unchanged", early=True)
    return None


def one_peak(case: Case, n: int) -> bool:
    """Return whether the first n pairs may be taken to scatter about one value.

    They are of replayed graphs, the workers of a pair live together, and every process tells of tuners
    (`worker/tuners.py`), and has a trace of none.
    """
    for name in SIDES:
        side = case.sides.get(name)
        if (
            side is None
            or side.timing is None
            or side.timing.mode not in GRAPH_MODES
            or side.timing.alternating is not None
        ):
            return False
        if side.tuner != "" or any(pair.tuners.get(name) != "" for pair in in_order(case)[:n]):
            return False
    return len(case.pairs) >= n
