"""Change-points of simulated histories: what is planted is found, what is not is left alone, night by night."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.history.__main__ import DEVICES, LEAST_FOUND, MOST_FALSE, proposed
from benchmarks.history.score import Score
from benchmarks.history.simulate import ALL, SHARED, STEPS, WHITE, simulate
from perfci.stats.changes import RECENT, Scanned, scan

SD = 0.003


def scored(world, devices=1, seed=0):
    score = Score()
    for one in range(devices):
        simulated = simulate(world, np.random.default_rng(seed + one))
        score.add(simulated, proposed(simulated))
    return score


def one(x, error=None):
    """Scan one series."""
    x = np.asarray(x, dtype=float)[None]
    errors = np.where(np.isnan(x), np.nan, SD / 2) if error is None else np.asarray(error, dtype=float)[None]
    return scan(x, errors)[0]


def noise(nights, seed=0, sd=SD):
    return np.random.default_rng(seed).normal(0, sd, nights)


def test_a_step_of_one_percent_is_proposed_within_four_nights():
    score = scored(replace(STEPS, cases=80))
    assert len(score.delays) > 250
    assert score.within(4) >= LEAST_FOUND - 0.02  # a standard error and a half of so many steps
    assert score.within(8) >= 0.99
    assert score.misplaced <= 0.02 * len(score.delays)


@pytest.mark.parametrize("stepping", [1, 18, 36, *(pytest.param(n, marks=pytest.mark.slow) for n in (12, 24))])
@pytest.mark.parametrize(("before", "size", "within"), [(30, 0.01, 10), (30, 0.02, 4), (30, 0.05, 3), (120, 0.01, 4)])
def test_a_step_of_many_series_on_one_night_is_proposed_as_soon_as_one_alone(stepping, before, size, within):
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.normal(0, SD, (36, before + within))
        x[:stepping, before:] += rng.choice((1, -1), stepping)[:, None] * size
        cases = scan(x, SD * np.sqrt(rng.chisquare(15, x.shape) / 30))[:stepping]
        found += [any(one.before < before <= one.after for one in case.changes) for case in cases]
    assert np.mean(found) >= 0.85


def test_steps_that_half_of_the_cases_share_are_found_as_others_are():
    score = scored(replace(SHARED, cases=80))
    assert len(score.delays) > 100
    assert score.within(4) >= LEAST_FOUND - 0.04  # a standard error and a half of so many steps
    assert score.within(8) >= 0.98
    assert score.false <= 8


def test_a_night_on_which_all_series_scatter_more_still_counts_less():
    rng = np.random.default_rng(0)
    x = rng.normal(0, SD, (60, 90))
    x[:, 60:63] *= 6
    assert not any(case.changes for case in scan(x, np.full_like(x, SD / 2)))


def test_nothing_is_proposed_where_nothing_changes():
    # One a month is 3.2 in two years of 80 cases: Poisson's 99 % point.
    assert scored(replace(WHITE, cases=80)).false <= 8


@pytest.mark.slow
@pytest.mark.parametrize("world", [STEPS, ALL], ids=["independent", "all"])
@pytest.mark.simulation
def test_a_store_of_three_devices_has_at_most_one_false_proposal_a_month(world):
    score = scored(world, devices=DEVICES)
    assert score.a_month(DEVICES) <= MOST_FALSE
    assert score.within(8) >= 0.88
    assert score.drifts_told >= 0.9 * score.drifting


def test_a_drift_is_told_as_one():
    score = scored(replace(WHITE, cases=40, drifts=1.0))
    assert score.drifts_told == 40
    assert score.drifts_named >= 0.9 * 40


def test_five_changes_of_less_than_two_percent_are_each_seen_and_so_is_their_sum():
    x = noise(200)
    for night in (30, 60, 90, 120, 150):
        x[night:] += np.log(1.018)
    found = one(x)
    assert [change.at for change in found.changes] == pytest.approx([30, 60, 90, 120, 150], abs=1)
    assert all(change.low < np.log(1.018) < change.high for change in found.changes)
    assert found.now.low < 5 * np.log(1.018) < found.now.high
    assert found.now.nights == RECENT


@pytest.mark.parametrize("nights", [1, 2, 3, 5])
def test_a_few_nights_are_answered_with_where_they_stand(nights):
    found = one(noise(nights))
    assert found.changes == []
    assert found.now.low < found.now.value < found.now.high


def test_a_large_step_is_seen_after_three_nights_before_and_after():
    x = noise(6) / 10
    x[3:] += 0.1
    assert [change.at for change in one(x, np.full(6, SD / 20)).changes] == [3]


def test_two_nights_far_out_propose_nothing_and_three_do():
    x = noise(60)
    x[40:42] += 1.0
    assert one(x).changes == []
    x[42] += 1.0
    assert one(x).changes


def test_a_step_that_is_taken_back_is_two():
    x = noise(120)
    x[50:80] += 0.02
    up, down = one(x).changes
    assert (up.at, down.at) == (50, 80)
    assert up.size > 0 > down.size


def test_the_nights_of_a_proposal_have_the_change_between_them_across_a_gap():
    x = noise(100)
    x[50:] += 0.02
    x[45:55] = np.nan
    (change,) = one(x).changes
    assert change.before <= 44
    assert change.after >= 55


def test_series_without_an_answer_say_nothing():
    assert one(np.full(20, np.nan)) == Scanned([], None)
    assert scan(np.empty((0, 3)), np.empty((0, 3))) == []


def test_what_never_varies_and_then_moves_is_a_step():
    x = np.zeros(40)
    x[20:] = np.log(42 / 40)
    (change,) = one(x, np.zeros(40)).changes
    assert change.at == 20
    assert change.size == pytest.approx(np.log(42 / 40))


@pytest.mark.parametrize(
    ("x", "error"), [([0.0, np.inf], [0.1, 0.1]), ([0.0, 0.0], [0.1, np.nan]), ([0.0, 0.0], [0.1, -1.0])]
)
def test_answers_that_are_none_are_refused(x, error):
    with pytest.raises(ValueError, match="standard error"):
        one(x, error)


@settings(deadline=None)
@given(arrays(float, (3, 40), elements=st.floats(-3, 3) | st.just(float("nan"))), st.integers(1, 39))
def test_proposals_do_not_depend_on_nights_to_come(x, cut):
    errors = np.where(np.isnan(x), np.nan, 0.01)
    early, whole = scan(x[:, :cut], errors[:, :cut]), scan(x, errors)
    for before, after in zip(early, whole, strict=True):
        assert [c.known for c in before.changes] == [c.known for c in after.changes if c.known < cut][
            : len(before.changes)
        ]
        for change in after.changes:
            assert change.before < change.after <= 39
            assert change.low <= change.size <= change.high
            assert np.isfinite([change.size, change.low, change.high]).all()


@given(st.floats(-0.5, 0.5))
def test_the_level_before_does_not_matter(level):
    x = noise(80)
    x[40:] += 0.02
    moved, plain = one(x + level).changes, one(x).changes
    assert [(c.before, c.at, c.after, c.known) for c in moved] == [(c.before, c.at, c.after, c.known) for c in plain]


def test_rows_of_other_cases_do_not_hide_a_step_that_they_share():
    rng = np.random.default_rng(0)
    x = rng.normal(0, SD, (60, 90))
    x[:, 60:] += 0.012
    found = scan(x, np.full_like(x, SD / 2))
    assert sum(len(case.changes) == 1 for case in found) >= 55
