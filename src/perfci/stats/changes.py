"""From which night on a series stands elsewhere: steps and drifts of log ratios to the reference, as proposals.

A generalised likelihood ratio for one change of level, asked anew every night with what was known by then (Lorden, Ann.
Math. Stat. 42, 1971; within a window, as Lai, J. R. Stat. Soc. B 57, 1995):

    z_k = δ_k / se(δ_k),   δ_k = (weighted mean from night k on) - (weighted mean of the segment before k)

for each k of the last `WINDOW` answers. A change is proposed on the first night on which the largest |z_k| is beyond
`THRESHOLD`; from its k on there is a new segment. The noise of night j has the variance f_j² (τ² + s_j²). s_j is the
standard error that the night's interval tells; τ² is what differs from night to night, an autoregression of first order
with parameter ρ; f_j says by how much more all series of the device scatter on that night. What is estimated is
estimated from nights up to the one that asks:

- τ² + s² from winsorised squares of residuals; of few, from those of differences of successive answers over 2 (1 - r),
  in which a step appears once (von Neumann, Ann. Math. Stat. 12, 1941). With ν degrees of freedom z is taken for a t,
  and turned into the normal deviate of the same probability (Wallace, Ann. Math. Stat. 30, 1959).
- r, the correlation of successive answers, from products of winsorised residuals, with the bias (1 + 3r)/n undone
  (Kendall, Biometrika 41, 1954), and drawn to the median of the device's series by what series differ beyond chance
  (empirical Bayes: Efron & Morris, JASA 70, 1975). ρ = r (τ² + s²)/τ².
- f_j from the median distance of the series, about what all have in common, from their levels so far, from the night
  before and from the night after: the least of the three, of which a step that many series share leaves two alone.
- A mean of n nights then has the variance of independent ones times 1 + 2 r Σ (1 - j/n) ρ^(j-1), j < n.

Residuals are winsorised (Huber, Robust Statistics, 1981, 3.2) so that two nights, however far out, propose nothing by
themselves, and three can. Nor is a change below `LEAST`. These constants stand
in `segments`; `THRESHOLD` is calibrated by simulation: benchmarks/history has figures and command.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from perfci.stats.segments import (
    FEWEST,
    MEMORY,
    NORMAL,
    THRESHOLD,
    WINDOW,
    Ints,
    Level,
    Noise,
    bent,
    inside_of,
    level_of,
    median,
    scores,
    winsorised,
)  # fmt: skip
from perfci.stats.walsh import Array

RESOLUTION = 0.0005
"""Standard deviation that the noise of a night has at least."""
RECENT = 7
"""Answers that say where a series stands now."""
PEERS = 20
"""Series of a device from which they tell of a night and each other's correlation."""

_CANDIDATES = slice(0, WINDOW - FEWEST + 1)
_MANY = 30
"""Residuals from which they tell variance and correlation."""
_EVERY_NIGHT, _ESTIMATED = 60, 4
"""Noise is estimated on each answer up to this one; then on every fourth."""
_ALLOWED = 1.5
"""Standard errors by which correlation and variance may exceed what successive differences say."""
_LAG = 8
"""Last answers left out of that: a change may be among them."""
_PRIOR, _WEIGHT = 0.2, 30.0
"""Correlation supposed where neither series nor peers tell; answers that it weighs."""
_NEAR = 10.6
"""Drop of z² within which a night may be that of the change, at 99 %: -2 ln(1 - √0.99) (Siegmund, Ann. Stat. 16,
1988)."""
_DOUBT = 4.0
"""Fall of the sum of squares by which a bend must fit better than a step, and may fit worse than two steps, which have
a level and a place more to choose."""
_WIDER = 1.2


@dataclass(frozen=True)
class Change:
    """Nights are columns of the scanned matrix."""

    kind: Literal["step", "drift"]
    before: int
    """The last night that has its answer from before the change, at 99 %."""
    at: int
    """The likeliest first night of the new level, or of a drift."""
    after: int
    """The first night that has its answer from after the change, at 99 %."""
    known: int
    size: float
    """Of log ratios, by all nights up to the last one."""
    low: float
    high: float
    """Interval of `size`, at `LEVEL`."""


class Scanned(NamedTuple):
    """All that is told of a series."""

    changes: list[Change]
    """Oldest first."""
    now: Level | None
    """By its last answers since the last change; None of a series without an answer."""


def scan(x: Array, error: Array) -> list[Scanned]:
    """Return the changes of the series of one device and epoch.

    x: log ratios to the reference, shape (series, nights), in the order of time, NaN where a night has no answer.
    error: their standard errors. What is proposed on a night rests on nights up to it; a gap counts for nothing. Raises
    ValueError for other shapes, an infinite log ratio, or an error negative or not finite.
    """
    if x.ndim != 2 or x.shape != error.shape:
        raise ValueError("log ratios and errors have the shape (series, nights)")
    known = ~np.isnan(x)
    if not (np.isfinite(x[known]).all() and np.isfinite(error[known]).all() and (error[known] >= 0).all()):
        raise ValueError("an answer is a finite log ratio with a standard error")
    one = _Scan(*x.shape)
    for column in range(x.shape[1]):
        one.night(column, x[:, column], error[:, column])
    return one.told(x, error)


class _Proposed(NamedTuple):
    """`first`, `at` and `last` count answers of the series."""

    kind: Literal["step", "drift"]
    first: int
    at: int
    last: int
    known: int
    size: float


class _Scan:
    def __init__(self, series: int, nights: int) -> None:
        shape = (series, MEMORY)
        self.x = np.full(shape, np.nan)
        self.squared = np.full(shape, np.nan)  # errors
        self.at = np.zeros(shape, dtype=np.intp)  # the nights of these answers
        self.residual = np.full(shape, np.nan)  # of segments that ended
        self.centre = np.full(series, np.nan)
        self.n = np.zeros(series, dtype=np.intp)  # answers of the segment, and of the one before it
        self.previous = np.zeros(series, dtype=np.intp)
        self.seen = np.zeros(series, dtype=np.intp)  # answers in all
        self.lag = np.full(series, np.nan)  # correlation by the series alone, and the products that it rests on
        self.products = np.zeros(series, dtype=np.intp)
        self.columns: list[list[int]] = [[] for _ in range(series)]  # of every answer
        self.wider = np.ones(nights)  # f
        self.proposed: list[list[_Proposed]] = [[] for _ in range(series)]
        self.noise = Noise(np.full(series, np.nan), np.full(series, np.nan), np.full(series, np.nan), np.ones(series))

    def night(self, column: int, x: Array, error: Array) -> None:
        rows = np.flatnonzero(~np.isnan(x))
        if not rows.size:
            return
        for buffer, new in (
            (self.x, x[rows]), (self.squared, error[rows] ** 2), (self.at, column), (self.residual, np.nan),
        ):  # fmt: skip
            buffer[rows, :-1] = buffer[rows, 1:]
            buffer[rows, -1] = new
        for row in rows:
            self.columns[row].append(column)
        self._widen(rows[self.n[rows] >= 2 * FEWEST], column)
        self.n[rows] = np.minimum(self.n[rows] + 1, MEMORY)
        self.previous[rows] = np.minimum(self.previous[rows], MEMORY - self.n[rows])
        self.seen[rows] += 1
        due = rows[(self.seen[rows] < _EVERY_NIGHT) | (self.seen[rows] % _ESTIMATED == 0)]
        if due.size:
            self._estimate(due)
        noise = self.noise.of(rows)
        sd = self.wider[self.at[rows]] * np.sqrt(noise.between[:, None] + self.squared[rows])
        z, size = scores(self.x[rows], sd, self.n[rows], noise)
        for i in np.flatnonzero(z[:, _CANDIDATES].max(axis=1) > THRESHOLD):
            self._propose(int(rows[i]), z[i], size[i], sd[i], noise.of(slice(i, i + 1)), column)

    def _widen(self, rows: Ints, column: int) -> None:
        """Of this night, and once more of the one before, now that there is one after it."""
        if rows.size < PEERS:
            return
        x, before = self.x[rows], self.at[rows, -2]
        variance = self.noise.between[rows, None] + self.squared[rows, -2:]
        spreads = [_spread((x[:, -1] - self.centre[rows]) / np.sqrt(variance[:, 1]))]
        common = 2 * self.noise.r[rows] * np.sqrt(variance.prod(axis=1))
        moved = (x[:, -1] - x[:, -2]) / np.sqrt(variance.sum(axis=1) - common)
        for night, number in zip(*np.unique(before, return_counts=True), strict=True):
            if number >= PEERS:
                spreads.append(_spread(moved[before == night]))
                self.wider[night] = _factor(min(self.wider[night], spreads[-1]))
        self.wider[column] = _factor(min(spreads))

    def _estimate(self, rows: Ints) -> None:
        x, squared = self.x[rows], self.squared[rows]
        inside, factor = inside_of(self.n[rows]), self.wider[self.at[rows]]
        self.centre[rows] = median(np.where(inside, x, np.nan))
        residual = np.where(inside, x - self.centre[rows][:, None], self.residual[rows]) / factor
        residual[:, -_LAG:][inside[:, -_LAG:]] = np.nan
        spread, number = winsorised(residual**2, lost=1)
        steps = np.diff(x, axis=1) / np.hypot(factor[:, 1:], factor[:, :-1])
        successive, differences = winsorised(steps**2, lost=0)
        many = number >= _MANY
        total = np.maximum(np.where(many, spread, successive), RESOLUTION**2)
        r = self._correlation(rows, np.clip(residual / np.sqrt(total)[:, None], -3, 3))
        # A drift is in residuals, and hardly in differences: no more correlation and variance than these allow.
        some = np.maximum(1, differences)
        limit = 3 * np.sqrt(np.maximum(successive, RESOLUTION**2))[:, None]
        turned = np.clip(steps, -limit, limit)
        lag = np.nansum(turned[:, 1:] * turned[:, :-1], axis=1) / np.maximum(np.nansum(turned**2, axis=1), 1e-30)
        r = np.where(many, np.clip(1 + 2 * lag + _ALLOWED * np.sqrt(2 / some), 0, r), r)
        most = np.maximum(successive, RESOLUTION**2) / (1 - r)
        total = np.where(many, np.minimum(total, most * (1 + _ALLOWED * np.sqrt(2 / (0.55 * some)))), most)
        within = np.nansum(squared, axis=1) / np.maximum(1, np.count_nonzero(~np.isnan(squared), axis=1))
        between = np.maximum(total - within, RESOLUTION**2)
        rho = np.clip(r * (between + within) / between, r, 0.9)
        # Of a correlated series fewer answers are worth the same (Bayley & Hammersley, J. R. Stat. Soc. B 8, 1946).
        freedom = np.where(many, 0.85 * number * (1 - r**2) / (1 + r**2), 0.55 * differences)
        for old, new in zip(self.noise, (between, r, rho, np.maximum(1.0, freedom)), strict=True):
            old[rows] = new

    def _correlation(self, rows: Ints, residual: Array) -> Array:
        products = residual[:, 1:] * residual[:, :-1]
        n = np.count_nonzero(~np.isnan(products), axis=1)
        some = np.maximum(1, n)
        squares = np.nansum(residual**2, axis=1) / np.maximum(1, np.count_nonzero(~np.isnan(residual), axis=1))
        found = np.nansum(products, axis=1) / some / np.where(squares > 0, squares, 1.0)
        found += (1 + 3 * found) / some
        self.lag[rows], self.products[rows] = found, n
        prior, weight, told = _PRIOR, _WEIGHT, self.products >= _MANY
        if np.count_nonzero(told) >= PEERS:
            of, number = self.lag[told], self.products[told]
            middle = float(np.median(of))
            variance = (NORMAL * float(np.median(np.abs(of - middle)))) ** 2 - float(np.mean(1 / number))
            prior, weight = max(0.0, min(0.9, middle)), 1 / max(variance, 1e-3)
        # Half a standard error more: too small an r proposes what is none, too large a one takes a night longer.
        r: Array = np.clip((n * found + weight * prior) / (n + weight) + 0.5 / np.sqrt(n + weight), 0, 0.9)
        return r

    def _propose(self, row: int, z: Array, size: Array, sd: Array, noise: Noise, column: int) -> None:
        k = int(z[_CANDIDATES].argmax())
        proposed, answers = self.proposed[row], len(self.columns[row])
        begin = answers - MEMORY
        if proposed and self._moved(row, sd, noise):
            return
        at = MEMORY - WINDOW + k
        near = np.flatnonzero(z**2 >= z[k] ** 2 - _NEAR) + MEMORY - WINDOW + begin
        one = _Proposed("step", int(near[0]), begin + at, int(near[-1]), column, float(size[k]))
        last = proposed[-1] if proposed and proposed[-1].size * one.size > 0 else None
        start, joined = None, False
        if WINDOW - k >= _LAG:  # in the fewer nights of a clear step there is no slope to be seen
            start, joined = self._bend(row, at, sd, noise, last)
        if start is None:
            proposed.append(one)
            self._part(row, at)
            return
        drift = one._replace(kind="drift", first=begin + start, at=begin + start, last=answers - 1)
        if last is not None and joined:
            proposed[-1] = drift._replace(known=last.known)
            if last.kind == "drift":
                proposed[-1] = proposed[-1]._replace(first=last.first, at=last.at)
        else:
            proposed.append(drift)
        self._part(row, MEMORY - FEWEST)

    def _bend(self, row: int, at: int, sd: Array, noise: Noise, last: _Proposed | None) -> tuple[int | None, bool]:
        """The place from which a series drifts, None where it steps; and whether the last change began the drift."""
        clip, n, previous = float(noise.clip()[0]), int(self.n[row]), int(self.previous[row])
        own = MEMORY - n
        ended = 0 if last is None else (last.last if last.kind == "drift" else last.at)
        if last is not None and previous and len(self.columns[row]) - n - ended <= 3 * WINDOW:
            begin = own if last.kind == "drift" else own - previous
            steps = [at - begin] if last.kind == "drift" else [own - begin, at - begin]
            start, gain = bent(self.x[row, begin:], sd[begin:], steps, clip)
            if gain > -_DOUBT:
                return begin + start, True
        start, gain = bent(self.x[row, own:], sd[own:], [at - own], clip)
        return (own + start if gain > _DOUBT else None), False

    def _moved(self, row: int, sd: Array, noise: Noise) -> bool:
        last, n = self.proposed[row][-1], int(self.n[row] + self.previous[row])
        if last.kind == "drift" or self.n[row] > WINDOW or not self.previous[row]:
            return False
        x = self.x[row][None]
        z, size = (part[0] for part in scores(x, sd[None], np.array([n]), noise))
        k = int(z[_CANDIDATES].argmax())
        at = MEMORY - WINDOW + k
        begin = len(self.columns[row]) - MEMORY
        if z[k] <= THRESHOLD or size[k] * last.size < 0 or self.columns[row][begin + at] > last.known:
            return False
        after, _ = scores(x, sd[None], np.array([MEMORY - at]), noise)
        shift = MEMORY - at
        before, _ = scores(np.roll(x, shift, axis=1), np.roll(sd[None], shift, axis=1), np.array([n - shift]), noise)
        if max(part[:, _CANDIDATES].max() for part in (before, after)) > THRESHOLD:
            return False
        near = np.flatnonzero(z**2 >= z[k] ** 2 - _NEAR) + MEMORY - WINDOW + begin
        self.proposed[row][-1] = last._replace(
            first=int(near[0]), at=begin + at, last=int(near[-1]), size=float(size[k])
        )
        self.n[row] = n
        self._part(row, at)
        return True

    def _part(self, row: int, at: int) -> None:
        start = MEMORY - int(self.n[row])
        segment = self.x[row, start:at]
        self.residual[row, start:at] = segment - np.median(segment)
        self.previous[row], self.n[row] = at - start, MEMORY - at
        self.centre[row] = np.median(self.x[row, at:])

    def told(self, x: Array, error: Array) -> list[Scanned]:
        found = []
        for row, proposed in enumerate(self.proposed):
            columns = np.array(self.columns[row], dtype=np.intp)
            noise = self.noise.of(slice(row, row + 1))
            sd = self.wider[columns] * np.sqrt(noise.between[0] + error[row, columns] ** 2)
            y = x[row, columns]
            changes, start, level = list[Change](), 0, None
            for index, one in enumerate(proposed):
                end = proposed[index + 1].at if index + 1 < len(proposed) else len(columns)
                placed = _placed(one, y, sd, start, end) if one.kind == "step" else one
                before = level_of(y[start : placed.at], sd[start : placed.at], noise)
                # Of a drift, answers between its begin and its end are of neither level.
                start = placed.at if one.kind == "step" else one.last - FEWEST + 1
                level = level_of(y[start:end], sd[start:end], noise)
                changes.append(_sized(placed, columns, before, level))
            start = max(start, len(columns) - RECENT)
            found.append(Scanned(changes, level_of(y[start:], sd[start:], noise) if len(columns) else None))
        return found


def _spread(u: Array) -> float:
    return NORMAL * float(np.median(np.abs(u - np.median(u))))


def _factor(spread: float) -> float:
    return spread if spread > _WIDER else 1.0


def _placed(one: _Proposed, x: Array, sd: Array, start: int, end: int) -> _Proposed:
    levels = np.median(x[start : one.at]), np.median(x[one.at : end])
    x, sd = x[start:end], sd[start:end]
    weight = sd**-2
    shown = np.clip(x, min(levels) - 3 * sd, max(levels) + 3 * sd)
    before, of_before = weight.cumsum()[:-1], (weight * shown).cumsum()[:-1]
    after, of_after = weight.sum() - before, (weight * shown).sum() - of_before
    squared = (of_after / after - of_before / before) ** 2 / (1 / after + 1 / before)
    squared[: FEWEST - 1] = 0.0
    near = np.flatnonzero(squared >= squared.max() - _NEAR) + start + 1
    at = int(squared.argmax()) + start + 1
    return one._replace(first=int(near[0]), at=at, last=int(near[-1]))


def _sized(one: _Proposed, columns: Ints, before: Level, after: Level) -> Change:
    size = after.value - before.value
    half = float(np.hypot(before.high - before.low, after.high - after.low)) / 2
    first, at, last = (int(columns[i]) for i in (one.first - 1, one.at, one.last))
    return Change(one.kind, first, at, last, one.known, size, size - half, size + half)
