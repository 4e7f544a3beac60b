"""The rules that perfci is compared by, each on data whose answer is known."""

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.sensitivity import judge
from benchmarks.sensitivity.recording import Recording


def processes(rng, level, count=4, samples=60, spread=0.01):
    """Processes whose samples scatter around `level`."""
    return np.array([level * (1 + spread * rng.standard_normal(samples)) for _ in range(count)])


def recorded(slower=1.02, spread=0.001):
    rng = np.random.default_rng(5)
    recording = Recording()
    recording.put(processes(rng, 1e-5, spread=spread), "samples", "k", "cold", "base")
    recording.put(processes(rng, 1e-5, spread=spread), "samples", "k", "cold", "again")
    recording.put(processes(rng, 1e-5 * slower, spread=spread), "samples", "k", "cold", 0.02)
    return recording


@pytest.mark.parametrize(("hits", "trials"), [(0, 48), (3, 40), (40, 40), (1, 1)])
def test_the_interval_is_clopper_pearsons(hits, trials):
    exact = binomtest(hits, trials).proportion_ci(0.95, method="exact")
    assert judge.clopper_pearson(hits, trials) == pytest.approx((exact.low, exact.high))


def test_no_trials_say_nothing():
    assert judge.clopper_pearson(0, 0) == (0.0, 1.0)


def test_measured_slower_code_is_used_as_it_is_and_unchanged_code_is_scaled():
    recording = recorded(slower=1.5)
    assert np.median(judge.stored_ratios(recording, "k", "cold", 0.02, 1)) == pytest.approx(1.5, rel=0.01)
    assert np.median(judge.stored_ratios(recording, "k", "cold", 0.05, 1)) == pytest.approx(1.05, rel=0.01)


def pairs(count, shift=0.0, sd=0.001, seed=3):
    """Rows of a `pairs` array: times scatter by `sd`, the clock was not measured."""
    rng = np.random.default_rng(seed)
    rows = np.full((count, 8), np.nan)
    rows[:, 0] = 1e-5
    rows[:, 4] = 1e-5 * np.exp(shift + sd * rng.standard_normal(count))
    return rows


def test_trials_that_are_called_independent_share_no_pair():
    """Unchanged code is within the limit with 8 pairs, a slow-down is a regression with 16: 64 pairs make 8 and 4 trials."""
    alike = judge.consumed(judge.pairs_of(pairs(64)), 0.01)
    assert [status for status, _ in alike] == ["unchanged"] * 8
    slower = judge.consumed(judge.pairs_of(pairs(64, shift=0.02)), 0.01)
    assert [status for status, _ in slower] == ["regression"] * 4
    assert sum(used for _, used in slower) <= 64


def test_pairs_that_run_out_before_a_decision_are_no_trial():
    assert judge.consumed(judge.pairs_of(pairs(12, shift=0.02)), 0.01) == []


def test_exchanging_the_sides_exchanges_everything_that_was_measured():
    row = np.array([[1.0, 1.9e9, 0.1, -0.1, 2.0, 1.8e9, 0.2, -0.2]])
    (pair,) = judge.pairs_of(row)
    swapped = judge.exchanged(pair)
    assert swapped.values == {"base": {"time": 2.0}, "head": {"time": 1.0}}
    assert swapped.clock["base"].covariance == -0.2
    assert judge.exchanged(swapped) == pair


def test_a_clock_that_sags_in_head_is_no_alarm():
    """The gate's own adjustment is what is judged: 3 % more time at a 3 % lower clock is the clock."""
    rows = np.full((32, 8), 0.0)
    rng = np.random.default_rng(1)
    rows[:, 0], rows[:, 4] = 1e-3, 1e-3 * 1.03 * np.exp(0.0005 * rng.standard_normal(32))
    rows[:, 1], rows[:, 5] = 1.9e9, 1.9e9 / 1.03
    rows[:, [2, 6]], rows[:, [3, 7]] = 1e-4, -1e-4  # within workers, time follows the clock fully
    status, _ = judge.decided(judge.pairs_of(rows), 0.01, judge.Looks(), judge.M)
    assert status != "regression"
    rows[:, 4] *= 1.02
    status, _ = judge.decided(judge.pairs_of(rows), 0.01, judge.Looks(), judge.M)
    assert status == "regression"


def test_missing_data_are_no_row_rather_than_a_pass():
    assert judge.perfci_row(Recording(), "k", "rotating", 0.0, 0.01, 10, 0) is None
    assert judge.peer_rows(Recording(), "k", 0.0) == []
    with pytest.raises(ValueError, match="no worker pairs"):
        judge.failing_runs(Recording(), "rotating", 0.01, 1)


def test_the_table_shows_every_tool_once_and_unmeasured_cells_as_a_dash():
    text = judge.table(judge.pooled(judge.peer_rows(recorded(), "k", 0.0)))
    lines = text.splitlines()
    assert len({line.split("|")[1] for line in lines[2:]}) == len(lines) - 2
    assert "false alarms" in lines[0]
    assert "nan" not in text
