"""Pairs that resemble those before them are found, and others hardly ever taken for such."""

import json

import numpy as np
import pytest

from perfci.judge import judge
from perfci.model.plan import Looks
from perfci.stats.decide import decide, margin
from perfci.stats.lag import correlation, kept, lag
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
    assert kept(LOOKS, None) == LOOKS


def slow(order):
    """A case 5 % slower, with pairs that scatter by a percent, sorted or not."""
    x = 0.05 + np.random.default_rng(2).normal(0, 0.004, 9)
    return case(pairs=pairs(np.full(9, 1e-3), 1e-3 * np.exp(order(x))))


def test_a_verdict_that_needs_all_of_alpha_is_undecided_where_pairs_are_not_independent():
    """Nine pairs show a regression with α, and not with half of it."""
    calm, drifting = judge(results([slow(np.asarray)])), judge(results([slow(np.sort)]))
    assert (calm.verdict, calm.rows[0].class_, calm.rows[0].pairs) == ("fail", "regression", 9)
    assert not any("resemble" in note for note in calm.notes)
    assert (drifting.verdict, drifting.rows[0].class_) == ("undecided", "inconclusive")
    (note,) = [note for note in drifting.notes if "resemble" in note]
    assert "lag-1 correlation 0." in note and "p = 0.00" in note and "50% of α" in note


def test_what_half_of_alpha_shows_stands():
    x = np.sort(0.05 + np.random.default_rng(2).normal(0, 0.004, 24))
    made = case(pairs=pairs(np.full(24, 1e-3), 1e-3 * np.exp(x)))
    report = judge(results([made], [limit(bound=0.02)]))
    assert any("resemble" in note for note in report.notes)
    assert (report.verdict, report.rows[0].pairs) == ("fail", 12)
