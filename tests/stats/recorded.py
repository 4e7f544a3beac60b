"""64 worker pairs of identical code, six kernels, three timing modes, recorded on one NVIDIA H200.

`equal_clock.json`: `kernel|timing mode` → for each pair the log ratios B/A of time (mean over eight placements of trimmed
means) and of the SM clock measured beside each placement (geometric mean); and for each side of each pair (base is A)
the sums over its placements of squared deviations of ln clock and of products with those of ln time.
"""

import json
from pathlib import Path

import numpy as np

from perfci.model.results import Clock, Pair
from perfci.stats.decide import decide_beside, margin
from perfci.stats.equal_clock import slope

FOLDER = Path(__file__).parents[1] / "data" / "h200"
SUMS = json.loads((FOLDER / "equal_clock.json").read_text())
KERNELS = sorted({key.split("|")[0] for key in SUMS})
BLOCKS = 8
SIDES = ("base", "head")
BOTH = np.array([-1.0, 1.0])


def recorded_pairs(key):
    """The pairs as documents; base takes 1 ms at 1 GHz, since only ratios are recorded."""
    sums = SUMS[key]
    return [
        Pair(
            index=i,
            values={"base": {"time": 1e-3}, "head": {"time": 1e-3 * float(np.exp(sums["time"][i]))}},
            clock={
                side: Clock(
                    hertz=1e9 * float(np.exp(sums["clock"][i] * (side == "head"))),
                    blocks=BLOCKS,
                    variance=sums["variance"][side][i],
                    covariance=sums["covariance"][side][i],
                )
                for side in SIDES
            },
        )
        for i in range(64)
    ]


def replay(key, runs, r, shift, looks, m, seed=0):
    """Decisions of `runs` runs: pairs drawn with replacement, sides exchanged by a coin, a true `shift` in time added.

    As in a run, the slope comes from the first look's pairs.
    """
    pairs, time, clock = recorded_pairs(key), np.array(SUMS[key]["time"]), np.array(SUMS[key]["clock"])
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        drawn = rng.integers(0, 64, 64)
        signs = BOTH[rng.integers(0, 2, 64)]  # as rng.choice draws, in a fifth of its time
        b = slope([pairs[i] for i in drawn[: looks.first]])
        measured = signs * time[drawn] + shift
        x = measured + b * signs * clock[drawn]
        found.append(decide_beside(x, measured, margin(r, "lower"), looks, m, ended=True))
    return found


def share(decisions, status):
    return sum(d.status == status for d in decisions) / len(decisions)
