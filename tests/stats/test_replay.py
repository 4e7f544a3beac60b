"""The decision replayed on pairs recorded on one NVIDIA H200: 64 worker pairs of identical code, six kernels, three timing modes.

`pair_ratios.json`: `kernel|timing mode|time or cycles` → ln(B/A) of each pair's worker values (mean over eight placements of
trimmed means; cycles are time × the SM clock measured beside the block). `equal_clock.json`: see `recorded.py`.
"""

import json

import numpy as np
import pytest

from perfci.model.plan import Looks
from perfci.model.results import Case
from perfci.stats.decide import decide, margin
from perfci.stats.equal_clock import log_ratios, slope

from . import recorded
from .recorded import FOLDER, recorded_pairs, share

RATIOS = json.loads((FOLDER / "pair_ratios.json").read_text())
KERNELS = sorted({key.split("|")[0] for key in RATIOS})
LOOKS = Looks()
M = 100


def replay(key, runs, r, shift, seed=0):
    """Statuses of `runs` runs: pairs drawn with replacement, signs flipped (the sides are alike), a true `shift` added."""
    ratios = np.array(RATIOS[key])
    rng = np.random.default_rng(seed)
    draws = rng.choice(ratios, (runs, 64)) * rng.choice([-1, 1], (runs, 64)) + shift
    return [decide(x, margin(r, "lower"), LOOKS, M, ended=True) for x in draws]


def test_the_recording_is_whole():
    assert len(KERNELS) == 6
    assert len(RATIOS) == 36
    assert all(len(v) == 64 and np.isfinite(v).all() for v in RATIOS.values())


@pytest.mark.parametrize("r", [0.01, 0.005])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rotating_cycles_never_cry_wolf_and_find_the_limit(kernel, r):
    key = f"{kernel}|rot|cycles"
    alike = replay(key, 400, r, 0.0)
    assert share(alike, "unchanged") == 1
    assert np.median([d.n for d in alike]) == 8
    slower = replay(key, 400, r, margin(r, "lower"), seed=1)
    assert share(slower, "regression") >= 0.98
    assert np.median([d.n for d in slower]) <= 16


@pytest.mark.parametrize("mode", ["cold", "hot", "rot"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_timing_mode_cries_wolf_in_time_or_cycles(kernel, mode):
    """However loud the timing mode: identical code is unchanged or inconclusive."""
    for unit in ("time", "cycles"):
        statuses = {d.status for d in replay(f"{kernel}|{mode}|{unit}", 120, 0.01, 0.0, seed=2)}
        assert statuses <= {"unchanged", "inconclusive"}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_rotating_cycles_at_length(kernel):
    key = f"{kernel}|rot|cycles"
    for r in (0.01, 0.005):
        assert share(replay(key, 10_000, r, 0.0, seed=3), "unchanged") == 1
        assert share(replay(key, 10_000, r, margin(r, "lower"), seed=4), "regression") >= 0.985


PAIR_SD = {"add64k": 0.16, "copy512M": 0.01, "mm1024": 0.135, "mm8192": 0.09, "resample": 0.036, "sdpa512": 0.18}
"""Percent, of a pair's log ratio at equal clock, timing mode rot; in time mm8192 has 0.58, sdpa512 0.83, copy512M 0.016."""


def log_ratios_of(key):
    case = Case(id="k", kernel="k", device="cuda", sides={}, pairs=recorded_pairs(key))
    return log_ratios(case, "time", LOOKS.first)


@pytest.mark.parametrize("kernel", KERNELS)
def test_pairs_scatter_no_more_at_equal_clock_than_in_time_or_cycles(kernel):
    """The slope of the first eight pairs serves as well as one of all would."""
    ratios = log_ratios_of(f"{kernel}|rot")
    by_time, by_cycles = (np.std(RATIOS[f"{kernel}|rot|{unit}"], ddof=1) for unit in ("time", "cycles"))
    here = ratios.x.std(ddof=1)
    assert here * 100 <= PAIR_SD[kernel]
    assert here <= 1.1 * min(by_time, by_cycles)
    clock = np.log(ratios.hertz[1] / ratios.hertz[0])
    of_all = (ratios.measured + slope(recorded_pairs(f"{kernel}|rot")) * clock).std(ddof=1)
    assert here <= 1.05 * of_all


def replay_at_equal_clock(kernel, mode, runs, r, seed, slower=False):
    shift = margin(r, "lower") if slower else 0.0
    return recorded.replay(f"{kernel}|{mode}", runs, r, shift, LOOKS, M, seed)


@pytest.mark.parametrize("r", [0.01, 0.005])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rotating_times_at_equal_clock_never_cry_wolf_and_find_the_limit(kernel, r):
    """12 × 600 decisions on identical code and as many of a true slow-down of r."""
    alike = replay_at_equal_clock(kernel, "rot", 600, r, seed=5)
    assert share(alike, "unchanged") >= 0.99
    assert {d.status for d in alike} <= {"unchanged", "inconclusive"}
    assert np.median([d.n for d in alike]) == 8
    slower = replay_at_equal_clock(kernel, "rot", 600, r, seed=6, slower=True)
    assert share(slower, "regression") >= 0.99 - 3 * (0.99 * 0.01 / 600) ** 0.5
    assert np.median([d.n for d in slower]) <= 16


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if PAIR_SD[kernel] <= 0.1])
def test_a_quarter_of_a_percent_is_found_where_pairs_agree_within_a_tenth(kernel):
    assert share(replay_at_equal_clock(kernel, "rot", 600, 0.0025, seed=7), "unchanged") >= 0.99
    assert share(replay_at_equal_clock(kernel, "rot", 600, 0.0025, seed=8, slower=True), "regression") >= 0.95


@pytest.mark.parametrize("mode", ["cold", "hot"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_other_timing_modes_do_not_cry_wolf_at_equal_clock(kernel, mode):
    """A regression by chance has 1 in 10 000 here, as anywhere."""
    statuses = {d.status for d in replay_at_equal_clock(kernel, mode, 200, 0.01, seed=9)}
    assert statuses <= {"unchanged", "inconclusive"}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_rotating_times_at_equal_clock_at_length(kernel):
    for r in (0.01, 0.005):
        alike = replay_at_equal_clock(kernel, "rot", 10_000, r, seed=10)
        assert share(alike, "regression") == share(alike, "clock") == 0
        assert share(alike, "unchanged") >= 0.99
        assert share(replay_at_equal_clock(kernel, "rot", 10_000, r, seed=11, slower=True), "regression") >= 0.99
