"""Pairs that resemble those before them are found, and others hardly ever taken for such."""

import json

import numpy as np
import pytest

from perfci.judge import judge
from perfci.model.plan import Looks
from perfci.stats.decide import decide, margin
from perfci.stats.lag import correlation, lag
from tests.judge.build import case, limit, pairs, results
from tests.stats.recorded import FOLDER

CASES = 7
LOOKS = Looks.fitted(CASES)
R = margin(0.02, "lower")


def series(rng, rho, sd, common=0.0):
    """A run of cases that end where they are decided; `common`: share of the variance that a round's pairs share."""
    shared, found = rng.standard_normal(64), []
    for _ in range(CASES):
        noise = rng.standard_normal(64)
        x = np.empty(64)
        x[0] = noise[0]
        for i in range(1, 64):
            x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * noise[i]
        x = sd * R * (np.sqrt(1 - common) * x + np.sqrt(common) * shared)
        found.append(x[: decide(x, R, LOOKS, CASES, ended=True).n])
    return found


def beyond_chance(runs, **how):
    rng = np.random.default_rng(1)
    return np.mean([correlation(series(rng, **how)).beyond_chance for _ in range(runs)])


@pytest.mark.parametrize("how", [{"sd": 0.3}, {"sd": 0.8}, {"sd": 0.6, "common": 0.5}], ids=str)
def test_independent_pairs_are_taken_for_others_in_one_run_of_a_hundred(how):
    """Whatever decides when a case ends, and whatever the cases of a round share."""
    assert beyond_chance(250, rho=0.0, **how) <= 0.01 + 3 * (0.01 / 250) ** 0.5


@pytest.mark.parametrize(("rho", "sd", "least"), [(0.6, 0.3, 0.4), (0.6, 0.8, 0.7), (0.9, 0.3, 0.8)])
def test_pairs_that_resemble_their_neighbours_are_found(rho, sd, least):
    assert beyond_chance(60, rho=rho, sd=sd) >= least


def test_recorded_pairs_are_independent():
    recorded = [np.array(x) for x in json.loads((FOLDER / "pair_ratios.json").read_text()).values()]
    found = correlation(recorded)
    assert abs(found.r) <= 0.03
    assert not found.beyond_chance


def test_what_nothing_can_be_said_of():
    assert correlation([]) is None
    assert correlation([np.zeros(8), np.arange(3.0), np.array([1.0, np.nan, 2.0, 3.0])]) is None
    imported = case(origin="imported", values={"n": 24})
    assert lag([imported], LOOKS) is None


def test_what_would_have_failed_is_undecided_and_does_not_pass_where_pairs_are_not_independent():
    x = np.sort(0.03 + np.random.default_rng(2).normal(0, 0.01, 24))
    turned = np.random.default_rng(0).permutation(x)
    calm, drifting = (judge(results([case(pairs=pairs(np.ones(24), np.exp(y)))])) for y in (turned, x))
    assert (calm.verdict, calm.rows[0].class_) == ("fail", "regression")
    assert not any("resemble" in note for note in calm.notes)
    (row,) = drifting.rows
    assert (drifting.verdict, drifting.exit_code, row.class_, row.effect) == ("fail", 1, "inconclusive", "fail")
    assert "resemble those before them" in row.reason
    (note,) = [note for note in drifting.notes if "resemble" in note]
    assert "lag-1 correlation 0." in note and "p = 0.00" in note


def test_what_is_slower_in_every_pair_by_more_than_their_range_stays_failed():
    x = np.sort(0.05 + np.random.default_rng(2).normal(0, 0.004, 24))
    made = case(pairs=pairs(np.full(24, 1e-3), 1e-3 * np.exp(x)))
    report = judge(results([made], [limit(bound=0.02)]))
    assert any("resemble" in note for note in report.notes)
    assert (report.verdict, report.rows[0].class_) == ("fail", "regression")


def test_a_bound_broken_while_pairs_drift_is_undecided_and_does_not_pass():
    drift = 1e-3 * (1.002 + 0.02 * np.linspace(0, 1, 24))
    made = case(pairs=pairs(np.full(24, 0.9e-3), drift))
    asked = limit(kind="max", bound=1e-3)
    (row,) = judge(results([made], [asked])).rows
    assert (row.class_, row.effect) == ("inconclusive", "fail")


def test_drift_alone_accuses_nobody():
    """Half of the runs on unchanged code whose pairs resemble their neighbours like this would fail by the test
    alone."""
    rng, accused, failed = np.random.default_rng(5), 0, 0
    for _ in range(40):
        found = [
            case(key, pairs=pairs(np.ones(len(x)), np.exp(x)))
            for key, x in zip("abcdefg", series(rng, 0.6, 5.0), strict=True)
        ]
        report = judge(results(found, [limit(key, bound=0.02) for key in "abcdefg"]))
        accused += any(row.class_ == "regression" for row in report.rows)
        failed += report.exit_code
    assert failed >= 5, "else nothing was asked"
    assert accused <= 1
