"""Shows what the decision spends of its error rates, by simulation; no GPU is needed.

    python -m benchmarks.looks spent 8          # of α/m, whatever decides when pairs end: 8 × 50 000 runs each
    python -m benchmarks.looks obvious 400000   # by looks at obvious changes, with noise of several kinds: runs of each
    python -m benchmarks.looks alike 400        # by them on pairs of identical code recorded on an H200: 400 × 64 runs
    python -m benchmarks.looks hopeless 20      # cases given up that more pairs would have decided, 20 of each noise
    python -m benchmarks.looks found 60         # of slower code: pairs until it is found, 60 runs of each size

Ends with 1 where a rate is exceeded beyond what chance explains.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from perfci.model.plan import OBVIOUS, Looks
from perfci.stats.answer import futile
from perfci.stats.decide import LAST, Decision, decide, decide_bound, decide_threshold, last_share, margin
from perfci.stats.obvious import p_beyond
from perfci.stats.walsh import null_tail

Array = NDArray[np.float64]

DRIFTS = (0.25, 0.4, 0.55, 0.75, 1.0, 1.3, 1.7, 2.3)
"""Means, in standard deviations, that simulated pairs are drawn with, so that regressions of 1e-5 are not rare."""
CAP = 64
ROOT = Path(__file__).resolve().parent.parent
SIZES = (1, 2, 3, 4, 5, 7, 9, 10, 12, 14, 20, 25, 36, 39, 50, 64, 100, 150, 195, 300)
"""Values of m: p-values come in steps, so that each spends another part."""
SCALES: dict[str, Callable[[np.random.Generator, int], Array | None]] = {
    "alike": lambda rng, runs: None,
    "of any width": lambda rng, runs: np.exp(2 * rng.standard_normal((runs, CAP))),
    "calming down": lambda rng, runs: 4.0 ** -(np.arange(CAP) / CAP),
    "growing fourfold": lambda rng, runs: 4.0 ** (np.arange(CAP) / CAP),
    "Student's t, 3": lambda rng, runs: np.sqrt(3 / rng.chisquare(3, (runs, CAP))),
    "outliers": lambda rng, runs: np.where(rng.random((runs, CAP)) < 0.02, 100.0, 1.0),
}
"""Noise of each pair, shape (runs, CAP) or (CAP,); None for pairs that are all alike and normal."""


class Simulated(NamedTuple):
    """Pairs of unchanged code by importance sampling."""

    p: Array
    """p-value of "greater than 0" after 1 … CAP pairs, shape (runs, CAP)."""
    obvious: dict[int, Array]
    """Pairs of a look at obvious changes → p-value there, shape (runs,). The limit is 0, where it comes by most."""
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
    early = {n: np.array([p_beyond(values, 0.0) for values in x[:, :n]]) for n in OBVIOUS}
    return Simulated(p, early, 1 / likelihood)


def levels(looks: Looks, rate: Literal["alpha", "beta"], m: int, last: float = LAST) -> Array:
    """Return the level at which each number of pairs decides: planned looks' own, elsewhere the last look's."""
    shares = looks.alpha_spending if rate == "alpha" else looks.beta_spending
    planned = dict(zip(looks.pairs, shares, strict=True))
    whole = looks.alpha / m if rate == "alpha" else looks.beta
    ends = range(1, looks.pairs[-1] + 1)
    return whole * np.array([max(planned.get(n, 0.0), last_share(looks, rate, n) * LAST / last) for n in ends])


def spent(
    simulated: Simulated, looks: Looks, m: int, last: float = LAST, rate: Literal["alpha", "beta"] = "alpha"
) -> tuple[float, float]:
    """Return the most that any stopping rule spends, as a multiple of α/m or of β, and the standard error of that."""
    level = levels(looks, rate, m, last)
    whole = looks.alpha / m if rate == "alpha" else looks.beta
    hit = simulated.p[:, : len(level)] <= level
    if rate == "alpha":
        for n, share in zip(looks.obvious_pairs, looks.obvious_spending, strict=True):
            hit[:, n - 1] |= simulated.obvious[n] <= share * whole
    first = hit.argmax(axis=1)
    weight = np.where(hit.any(axis=1), simulated.weight[np.arange(len(hit)), first], 0.0)
    return float(weight.mean() / whole), float(weight.std() / math.sqrt(len(weight)) / whole)


def worst(name: str, parts: int, last: float = LAST, quick: bool = False) -> tuple[float, float, int]:
    """Return the most that is spent of α/m over all `SIZES` under one of `SCALES`, its standard error, and the m."""
    rng = np.random.default_rng(3)
    runs = 50_000
    drawn = [simulate(runs, [4, k], SCALES[name](rng, runs)) for k in range(parts)]
    found = []
    for m in SIZES:
        looks = Looks.fitted(m, 16 if quick else None)
        several = [spent(part, looks, m, last) for part in drawn]
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
            for last in (6.0, 8.0, LAST):
                share, error, m = worst(name, parts, last, quick)
                cells.append(f"/{last:.0f}: {share:.2f} ± {error:.2f} (m = {m})")
            print(f"  {name:18}", "  ".join(cells), flush=True)
            kept = kept and share <= 1 + 3 * error
    return kept


def _outliers(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.02, 100.0, 1.0)


def _tuned(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Each side's process takes one of two kernels, 20 standard deviations apart."""
    return rng.standard_normal(shape) + 20.0 * (rng.integers(0, 2, shape) - rng.integers(0, 2, shape))


NOISE: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "Student's t, 3": lambda rng, shape: rng.standard_t(3, shape),
    "outliers": _outliers,
    "uniform, of any width": lambda rng, shape: rng.uniform(-1, 1, shape) * np.exp(2 * rng.standard_normal(shape)),
    "tuned, which is left out": _tuned,
}
"""Noise of pairs at the limit itself; all but the last is symmetric with one peak."""
M = 7
"""Criteria that share α."""


def ratio_of(x: Array, share: float) -> tuple[float, float]:
    """Return how often rows of noise x, shape (runs, n), are obvious changes at this share of α/M, as a multiple of it,
    with its standard error. Signs are not drawn: all of n are positive once in 2^n."""
    level = share * Looks().alpha / M
    hits = np.array([p_beyond(row, 0.0) <= level for row in np.abs(x)])
    scale = 2.0 ** -x.shape[1] / level
    return float(hits.mean() * scale), float(hits.std() / math.sqrt(len(hits)) * scale)


def show_obvious(runs: int) -> bool:
    """Print what the looks spend of their share under each noise; return whether none but the last exceeds it."""
    kept = True
    for name, draw in NOISE.items():
        found = [ratio_of(draw(np.random.default_rng(n), (runs, n)), share) for n, share in OBVIOUS.items()]
        told = "  ".join(f"{n} pairs: {r:.2f} ± {e:.2f}" for n, (r, e) in zip(OBVIOUS, found, strict=True))
        print(f"{name:24}", told, flush=True)
        kept = kept and (draw is _tuned or all(r <= 1 + 3 * e for r, e in found))
    return kept


def show_alike(runs: int) -> bool:
    """Print the same of recorded pairs, signs turned by a coin, drawn without replacement; return whether all of them
    together keep their share."""
    everything: list[list[float]] = []
    for key, x in recorded().items():
        rng = np.random.default_rng(0)
        found = []
        for n, share in OBVIOUS.items():
            drawn = np.array([rng.permutation(x)[:n] for _ in range(runs * len(x))])
            found.append(ratio_of(drawn, share))
        everything.append([r for r, _ in found])
        print(f"{key:24}", "  ".join(f"{n} pairs: {r:.2f} ± {e:.2f}" for n, (r, e) in zip(OBVIOUS, found, strict=True)))
    means = np.mean(everything, axis=0)
    print(f"{'all of them':24}", "  ".join(f"{n} pairs: {r:.2f}" for n, r in zip(OBVIOUS, means, strict=True)))
    return bool((means <= 1).all())


def recorded() -> dict[str, Array]:
    """Return `kernel|timing mode` → log ratios of time of 64 pairs of identical code, of replayed graphs."""
    ratios = json.loads((ROOT / "tests" / "data" / "h200" / "equal_clock.json").read_text())
    return {key: np.array(one["time"]) for key, one in ratios.items() if key.split("|")[1] in ("rot", "hot")}


def show_found(runs: int) -> bool:
    """Print after how many pairs a slow-down is found under a limit of 2 %, normal noise, M criteria; return whether
    what is much slower is found by the first look."""
    looks, r_log = Looks.fitted(M), margin(0.02, "lower")
    rng = np.random.default_rng(0)
    quick = 0
    for sd in (0.002, 0.01):
        for factor in (1.03, 1.05, 1.1, 1.3, 2.0):
            pairs = [found_after(rng.normal(math.log(factor), sd, CAP), r_log, looks) for _ in range(runs)]
            early = [sum(n <= at for n in pairs) / runs for at in OBVIOUS]
            shares = ", ".join(f"{share:.0%} by {at}" for at, share in zip(OBVIOUS, early, strict=True))
            print(f"sd {sd:.1%}  × {factor:<4}: {np.median(pairs):.0f} pairs (median); {shares}")
            quick += factor == 2.0 and early[-1] >= 0.95
    return quick == 2


def found_after(x: Array, r_log: float, looks: Looks) -> int:
    """Return the pairs after which x, shape (CAP,), is answered."""
    for n, share in zip(looks.obvious_pairs, looks.obvious_spending, strict=True):
        if p_beyond(x[:n], r_log) <= looks.alpha / M * share:
            return n
    return decide(x, r_log, looks, M, ended=True).n


def show_hopeless(runs: int) -> bool:
    """Print how many cases are given up as hopeless, after how many pairs, and how many of these 64 pairs would have
    decided; return whether that is 1 % at most of all that 64 pairs decide."""
    whole = Counter[str]()
    for (told, asked), m in product(ASKED.items(), (1, M, 36)):
        looks, rng, after = Looks.fitted(m), np.random.default_rng(0), []
        found = Counter[str]()
        for sd, change in product((0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0), (0.0, 0.5, 1.0, 2.0, 4.0)):
            for x in rng.normal(change, sd, (runs, CAP)):
                n = given_up_at(x, looks, m, asked)
                settled = asked(x, looks, m, True).status != "inconclusive"
                found.update(decided=settled, wrong=settled and n > 0)
                after += [n] * (n > 0)
        print(
            f"{told:9} m = {m:2}: {len(after)} given up, half by {np.median(after):.0f} pairs; {found['wrong']} of "
            f"{found['decided']} that 64 pairs decide",
            flush=True,
        )
        whole += found
    print(f"{whole['wrong'] / whole['decided']:.2%} of all that 64 pairs decide")
    return whole["wrong"] <= 0.01 * whole["decided"]


class Asked(Protocol):
    """A decision about pairs, in units of the limit."""

    def __call__(self, x: Array, looks: Looks, m: int, ended: bool, /) -> Decision:
        """Return what `decide` and its like do."""


ASKED: dict[str, Asked] = {
    "limit": lambda x, looks, m, ended: decide(x, 1.0, looks, m, ended=ended),
    "threshold": lambda x, looks, m, ended: decide_threshold(x, 1.0, looks, m, ended=ended),
    "bound": lambda x, looks, m, ended: decide_bound(x, 0.0, "above", looks, m, ended=ended),
}


def given_up_at(x: Array, looks: Looks, m: int, asked: Asked) -> int:
    """Return the pairs of the first look at which a case is hopeless; 0 where there is none before it is decided."""
    for n in looks.pairs[:-1]:
        if asked(x[:n], looks, m, False).status != "continue":
            return 0
        if futile(n, looks, lambda drawn: asked(x[drawn], looks, m, True)):
            return n
    return 0


SHOWN = {
    "hopeless": show_hopeless,
    "spent": show_spent,
    "obvious": show_obvious,
    "alike": show_alike,
    "found": show_found,
}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHOWN or not sys.argv[2].isdecimal():
        sys.exit(str(__doc__))
    sys.exit(0 if SHOWN[sys.argv[1]](int(sys.argv[2])) else 1)
