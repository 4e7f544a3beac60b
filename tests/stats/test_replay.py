"""The decision replayed on pairs recorded on one NVIDIA H200: 64 launch pairs of identical code, six kernels, three contracts.

`pair_ratios.json`: `kernel|contract|time or cycles` → ln(B/A) of each pair's launch values (mean over eight placements of
trimmed means; cycles are time × the SM clock measured beside the block).
"""

import json
from pathlib import Path

import numpy as np
import pytest

from perfci.model.plan import Looks
from perfci.stats.decide import decide, final, margin

RATIOS = json.loads((Path(__file__).parents[1] / "data" / "h200" / "pair_ratios.json").read_text())
KERNELS = sorted({key.split("|")[0] for key in RATIOS})
LOOKS = Looks()
M = 100


def replay(key, runs, r, shift, seed=0):
    """Statuses of `runs` runs: pairs drawn with replacement, signs flipped (the arms are alike), a true `shift` added."""
    ratios = np.array(RATIOS[key])
    rng = np.random.default_rng(seed)
    draws = rng.choice(ratios, (runs, 64)) * rng.choice([-1, 1], (runs, 64)) + shift
    return [final(decide(x, margin(r, "lower"), LOOKS, M)) for x in draws]


def share(decisions, status):
    return sum(d.status == status for d in decisions) / len(decisions)


def test_the_recording_is_whole():
    assert len(KERNELS) == 6
    assert len(RATIOS) == 36
    assert all(len(v) == 64 and np.isfinite(v).all() for v in RATIOS.values())


@pytest.mark.parametrize("r", [0.01, 0.005])
@pytest.mark.parametrize("kernel", KERNELS)
def test_steady_cycles_never_cry_wolf_and_find_the_limit(kernel, r):
    key = f"{kernel}|rot|cycles"
    alike = replay(key, 400, r, 0.0)
    assert share(alike, "unchanged") == 1
    assert np.median([d.n for d in alike]) == 8
    slower = replay(key, 400, r, margin(r, "lower"), seed=1)
    assert share(slower, "regression") >= 0.98
    assert np.median([d.n for d in slower]) <= 16


@pytest.mark.parametrize("contract", ["cold", "hot", "rot"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_contract_cries_wolf_in_time_or_cycles(kernel, contract):
    """However loud the contract: identical code is unchanged or inconclusive."""
    for unit in ("time", "cycles"):
        statuses = {d.status for d in replay(f"{kernel}|{contract}|{unit}", 120, 0.01, 0.0, seed=2)}
        assert statuses <= {"unchanged", "inconclusive"}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_steady_cycles_at_length(kernel):
    key = f"{kernel}|rot|cycles"
    for r in (0.01, 0.005):
        assert share(replay(key, 10_000, r, 0.0, seed=3), "unchanged") == 1
        assert share(replay(key, 10_000, r, margin(r, "lower"), seed=4), "regression") >= 0.985
