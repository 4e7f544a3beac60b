"""Log ratios of time at equal SM clock.

At the power limit a GPU's clock wanders, and with it the time of what computes, not of what waits for memory. How far a
case follows is read from its own blocks: the slope b of ln time on ln clock within workers, pooled over the workers of
base and head. The log ratio of a pair is then adjusted as in an analysis of covariance (Cochran, Biometrics 13, 1957;
Snedecor & Cochran, Statistical Methods, 8th ed., ch. 18):

    x = ln(time_head / time_base) + b ln(clock_head / clock_base),   b = -Σ covariance / Σ variance, within [0, 1]

b is 1 where a case takes the same cycles at any clock, and 0 where the clock does not matter. Noise in the measured
clock draws b towards 0 (Fuller, Measurement Error Models, 1987, 1.1), that is, towards time as it is, as far as
correcting by a noisy clock would add more noise than it takes away.

It is a fair basis for an exact test. b comes from deviations within workers, so that exchanging the sides of any pair
leaves b and turns the sign of x: a signed-rank test of identical code keeps its level, and a change that moves the mean
clock does not enter b. And b comes from the first look's pairs alone, so that the x of a pair never changes once a
decision may rest on it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfci.model.base import SIDES
from perfci.model.metrics import DERIVED
from perfci.model.results import Case, Pair
from perfci.stats.series import paired, values_of
from perfci.stats.walsh import Array


class LogRatios(NamedTuple):
    """Values and log ratios of the pairs that have base and head, in the order measured."""

    base: Array
    """In the metric's unit, shape (pairs,)."""
    head: Array
    x: Array
    """ln(head/base) at equal clock, shape (pairs,); as measured without a slope."""
    measured: Array
    """ln(head/base) as measured, shape (pairs,). Not finite where a value is not finite or not positive."""
    slope: float | None
    """b; None without a clock, or where it does not concern the metric."""
    hertz: tuple[Array, Array] | None
    """Base's and head's, shape (pairs,) each; NaN in a pair without. None without a slope."""

    def first(self, n: int) -> "LogRatios":
        """Return the first n pairs, with the same slope."""
        return self.taken(np.arange(min(n, self.x.size)))

    def taken(self, places: NDArray[np.intp]) -> "LogRatios":
        """Return the pairs at these places, with the same slope."""
        base, head, x, measured = (values[places] for values in self[:4])
        hertz = self.hertz and (self.hertz[0][places], self.hertz[1][places])
        return LogRatios(base, head, x, measured, self.slope, hertz)


def slope(pairs: Sequence[Pair]) -> float | None:
    """Return b of these pairs, in [0, 1]; 0 where the clock stood still.

    None without pairs, or where one lacks a clock. NaN where a sum is not finite: the decision is invalid.
    """
    clocks = [pair.clock.get(side) for pair in pairs for side in SIDES]
    known = [clock for clock in clocks if clock is not None]
    if not known or len(known) < len(clocks):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        variance = np.sum([clock.variance for clock in known])
        covariance = np.sum([clock.covariance for clock in known])
        if not (np.isfinite(variance) and np.isfinite(covariance)):
            return float("nan")
        return float(np.clip(-covariance / variance, 0.0, 1.0)) if variance > 0 else 0.0


def log_ratios(case: Case, metric: str, first: int) -> LogRatios:
    """Return the log ratios of `metric`: at equal clock for time and what derives from it, else as measured.

    `first`: pairs of the first look, from which alone the slope comes. A later pair without a clock enters as measured.
    """
    found = paired(case, metric)
    pairs, (base, head) = [pair for pair, _, _ in found], values_of(found)
    with np.errstate(divide="ignore", invalid="ignore"):
        measured = np.log(head) - np.log(base)
    b = slope(pairs[:first]) if metric == "time" or metric in DERIVED else None
    if b is None:
        return LogRatios(base, head, measured, measured, None, None)
    hertz_base, hertz_head = (
        np.array([pair.clock[side].hertz if len(pair.clock) == len(SIDES) else np.nan for pair in pairs])
        for side in SIDES
    )
    lacking = np.array([len(pair.clock) < len(SIDES) for pair in pairs])
    with np.errstate(all="ignore"):
        clock = np.where(lacking, 0.0, np.log(hertz_head) - np.log(hertz_base))
    adjustment = b * clock
    x = measured + adjustment if metric == "time" else measured - adjustment
    return LogRatios(base, head, x, measured, b, (hertz_base, hertz_head))
