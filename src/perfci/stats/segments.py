"""Thresholds of changes, and arithmetic of segments: series of nights, right-aligned, whose noise differs, and
resembles that of the night before.

Shapes are (series, MEMORY) unless said otherwise; places before a segment are NaN.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfci.stats.walsh import Array

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

THRESHOLD = 4.5
"""Normal deviate from which a change is proposed."""
CLIP = 0.75
"""Of the threshold, for a residual: two such nights and a third as before do not reach it below √3/2, three do above
1/√3."""
FEWEST = 3
"""Answers before a change and after it."""
WINDOW = 30
"""Answers among which a change is sought."""
MEMORY = 360
"""Answers kept of a series."""
LEAST = 0.002
"""Log ratio of the smallest change proposed."""
LEVEL = 0.95
"""Coverage of intervals."""
NORMAL = 1.4826
"""Standard deviation of a normal variable whose absolute value has the median 1."""
_DEVIATE = 1.959964
"""Two-sided normal deviate of `LEVEL`."""


class Level(NamedTuple):
    """A log ratio with its interval at `LEVEL`."""

    value: float
    low: float
    high: float
    nights: int
    """Answers that it rests on."""


class Noise(NamedTuple):
    """Noise of series, shape (series,) each."""

    between: Array
    """τ²."""
    r: Array
    """Correlation of successive nights."""
    rho: Array
    """ρ."""
    freedom: Array
    """ν."""

    def of(self, rows: Ints | slice) -> "Noise":
        """Return the noise of these series."""
        return Noise(*(part[rows] for part in self))

    def inflation(self, n: Array | Ints) -> Array:
        """Return the variance of a mean of n nights over that of independent ones; n: shape (series, any)."""
        r, rho, n = self.r[:, None], self.rho[:, None], np.maximum(n, 1)
        found: Array = 1 + 2 * r * (1 / (1 - rho) - (1 - rho**n) / (n * (1 - rho) ** 2))
        return found

    def clip(self) -> Array:
        """Return the standard deviations at which a residual is winsorised."""
        return CLIP * _quantile(THRESHOLD, self.freedom) * np.sqrt(1 + self.r)


def inside_of(n: Ints) -> Bools:
    """Return the last n places, shape (series, MEMORY)."""
    found: Bools = np.arange(MEMORY) >= MEMORY - n[:, None]
    return found


def median(values: Array) -> Array:
    """Return the median of each row without its NaN; NaN of an empty one."""
    n = np.maximum(1, np.count_nonzero(~np.isnan(values), axis=1))
    ordered, rows = np.sort(values, axis=1), np.arange(len(values))
    found: Array = (ordered[rows, (n - 1) // 2] + ordered[rows, n // 2]) / 2
    return found


def winsorised(squares: Array, lost: int) -> tuple[Array, Ints]:
    """Return the mean of squares, those beyond 3 standard deviations taken for 3, and their number; 0 of none."""
    n = np.count_nonzero(~np.isnan(squares), axis=1)
    bound = 9 * NORMAL**2 * np.nan_to_num(median(squares))
    found: Array = np.nansum(np.minimum(squares, bound[:, None]), axis=1) / np.maximum(1, n - lost)
    return found, n


def _deviate(t: Array, freedom: Array) -> Array:
    found: Array = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t * t / freedom))
    return found


def _quantile(z: float, freedom: Array) -> Array:
    """The inverse of `_deviate`."""
    found: Array = np.sqrt(freedom * np.expm1((z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))
    return found


def scores(x: Array, sd: Array, n: Ints, noise: Noise) -> tuple[Array, Array]:
    """Return |z| and size of a change before each of the last `WINDOW` answers, shape (series, WINDOW).

    n: answers of each segment, shape (series,). z is 0 of fewer than `FEWEST` answers before, or a change under
    `LEAST`.
    """
    inside, clip = inside_of(n), noise.clip()[:, None]
    centre = median(np.where(inside, x, np.nan))[:, None]
    weight = np.where(inside, sd**-2, 0.0)
    weighted = np.where(inside, np.clip((x - centre) / sd, -clip, clip) / sd, 0.0)
    after, of_after = (part[:, : -WINDOW - 1 : -1].cumsum(axis=1)[:, ::-1] for part in (weight, weighted))
    before, of_before = weight.sum(axis=1)[:, None] - after, weighted.sum(axis=1)[:, None] - of_after
    last = np.broadcast_to(WINDOW - np.arange(WINDOW), after.shape)
    first = n[:, None] - last
    asked = first >= FEWEST
    after, before = np.where(asked, after, 1.0), np.where(asked, before, 1.0)
    size = np.where(asked, of_after / after - of_before / before, 0.0)
    error = np.sqrt(noise.inflation(last) / after + noise.inflation(first) / before)
    z = _deviate(np.abs(size) / error, noise.freedom[:, None])
    return np.where(asked & (np.abs(size) >= LEAST), z, 0.0), size


def bent(x: Array, sd: Array, steps: list[int], clip: float) -> tuple[int, float]:
    """Return the answer after which a segment bends, and by how much that fits better than `steps`.

    Weighted least squares of a level and a slope that sets in, residuals winsorised.
    """
    places = np.arange(x.size)

    def misfit(*shapes: Array) -> float:
        design = np.column_stack((np.ones(x.size), *shapes)) / sd[:, None]
        solved = np.linalg.lstsq(design, x / sd, rcond=None)[0]
        return float(np.minimum((x / sd - design @ solved) ** 2, clip**2).sum())

    stepped = misfit(*((places >= one).astype(float) for one in steps))
    starts = range(max(FEWEST - 1, steps[0] - 3 * WINDOW), steps[-1] + 1)
    bends = [misfit(np.maximum(0.0, places - start).astype(float)) for start in starts]
    best = int(np.argmin(bends))
    return starts[best] + 1, stepped - bends[best]


def level_of(x: Array, sd: Array, noise: Noise) -> Level:
    """Return the level of a segment, shape (nights,)."""
    middle = float(np.median(x))
    shown = middle + np.clip(x - middle, -3 * sd, 3 * sd)
    weight = sd**-2
    value = float((weight * shown).sum() / weight.sum())
    inflation = float(noise.inflation(np.array([[x.size]]))[0, 0])
    half = float(_quantile(_DEVIATE, noise.freedom)[0]) * float(np.sqrt(inflation / weight.sum()))
    return Level(value, value - half, value + half, x.size)
