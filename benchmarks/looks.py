"""Shows what the decision spends of its error rates, by simulation; no GPU is needed.

    python -m benchmarks.looks spent 8      # of α/m, whatever decides when pairs end; 8 × 50 000 runs for each table

Ends with 1 where a rate is exceeded beyond what chance explains.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfci.model.plan import Looks
from perfci.stats.decide import LAST
from perfci.stats.walsh import null_tail

Array = NDArray[np.float64]

DRIFTS = (0.25, 0.4, 0.55, 0.75, 1.0, 1.3, 1.7, 2.3)
"""Means, in standard deviations, that simulated pairs are drawn with, so that regressions of 1e-5 are not rare."""
CAP = 64
SIZES = (1, 2, 3, 4, 5, 7, 9, 10, 12, 14, 20, 25, 36, 39, 50, 64, 100, 150, 195, 300)
"""Values of m: p-values come in steps, so that each spends another part."""
SCALES: dict[str, Callable[[np.random.Generator, int], Array | None]] = {
    "alike": lambda rng, runs: None,
    "of any width": lambda rng, runs: np.exp(2 * rng.standard_normal((runs, CAP))),
    "calming down": lambda rng, runs: 4.0 ** -(np.arange(CAP) / CAP),
    "growing fourfold": lambda rng, runs: 4.0 ** (np.arange(CAP) / CAP),
}
"""Noise of each pair, shape (runs, CAP) or (CAP,); None for pairs that are all alike."""


class Simulated(NamedTuple):
    """Pairs of unchanged code by importance sampling."""

    p: Array
    """p-value of "greater than 0" after 1 … CAP pairs, shape (runs, CAP)."""
    weight: Array
    """Likelihood ratio of unchanged code to what was drawn, after as many pairs: E[weight at a stopping time; event]
    is the event's probability (Siegmund, Ann. Stat. 4, 1976)."""


def simulate(runs: int, seed: int | list[int], scale: Array | None = None) -> Simulated:
    """Draw runs of CAP pairs. `scale`: as `SCALES` make it; signed ranks of pairs that are all alike do not depend on
    the distribution."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((runs, CAP)) + rng.choice(DRIFTS, runs)[:, None]
    total, n = np.cumsum(x, axis=1), np.arange(1, CAP + 1)
    likelihood = np.mean([np.exp(drift * total - 0.5 * drift**2 * n) for drift in DRIFTS], axis=0)
    if scale is not None:
        x = x * scale
    p = np.empty((runs, CAP))
    statistic = np.zeros(runs, dtype=np.int64)
    for k in range(CAP):
        statistic += np.count_nonzero(x[:, : k + 1] > -x[:, k : k + 1], axis=1)
        p[:, k] = null_tail(k + 1)[statistic]
    return Simulated(p, 1 / likelihood)


def levels(looks: Looks, shares: list[float], rate: float, last: float = LAST) -> Array:
    """Return the level at which each number of pairs decides: planned looks' own, elsewhere the last look's."""
    found = np.zeros(looks.pairs[-1])
    for n in range(looks.pairs[0], looks.pairs[-1] + 1):
        left = 1 - math.fsum(share for pairs, share in zip(looks.pairs, shares, strict=True) if pairs <= n)
        planned = shares[looks.pairs.index(n)] if n in looks.pairs else 0.0
        found[n - 1] = rate * max(planned, left / last if left > 1e-9 else 0.0)
    return found


def spent(
    simulated: Simulated, looks: Looks, shares: list[float], rate: float, last: float = LAST
) -> tuple[float, float]:
    """Return the most that any stopping rule spends, as a multiple of `rate`, and the standard error of that."""
    level = levels(looks, shares, rate, last)
    hit = simulated.p[:, : len(level)] <= level
    first = hit.argmax(axis=1)
    weight = np.where(hit.any(axis=1), simulated.weight[np.arange(len(hit)), first], 0.0)
    return float(weight.mean() / rate), float(weight.std() / math.sqrt(len(weight)) / rate)


def worst(name: str, parts: int, last: float = LAST, quick: bool = False) -> tuple[float, float, int]:
    """Return the most that is spent of α/m over all `SIZES` under one of `SCALES`, its standard error, and the m."""
    rng = np.random.default_rng(3)
    runs = 50_000
    drawn = [simulate(runs, [4, k], SCALES[name](rng, runs)) for k in range(parts)]
    found = []
    for m in SIZES:
        looks = Looks.fitted(m, 16 if quick else None)
        several = [spent(part, looks, looks.alpha_spending, looks.alpha / m, last) for part in drawn]
        error = math.sqrt(math.fsum(error**2 for _, error in several)) / parts
        found.append((math.fsum(share for share, _ in several) / parts, error, m))
    return max(found)


def show_spent(parts: int) -> bool:
    """Print what is spent of α/m where a last look may spend a tenth, and other parts, of what is left; return whether
    a tenth keeps it."""
    kept = True
    for quick in (False, True):
        print("--quick" if quick else "64 pairs")
        for name in SCALES:
            cells = []
            for last in (4.0, 6.0, 8.0, LAST):
                share, error, m = worst(name, parts, last, quick)
                cells.append(f"/{last:.0f}: {share:.2f} ± {error:.2f} (m = {m})")
            print(f"  {name:18}", "  ".join(cells), flush=True)
            kept = kept and share <= 1 + 3 * error
    return kept


SHOWN = {"spent": show_spent}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHOWN or not sys.argv[2].isdecimal():
        sys.exit(str(__doc__))
    sys.exit(0 if SHOWN[sys.argv[1]](int(sys.argv[2])) else 1)
