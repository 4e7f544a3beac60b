"""Looks at obvious changes: what they take for one, of which cases, and how often by chance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.looks import NOISE, ratio_of, recorded
from perfci.model.plan import OBVIOUS, Looks
from perfci.model.results import Case, Pair
from perfci.model.timing import Timing
from perfci.stats.answer import answer
from perfci.stats.obvious import p_beyond
from tests.judge.build import at_clocks, case, limit, pairs, side, values

M = 7
LOOKS = Looks.fitted(M)
QUESTION = limit("matmul/n=64", bound=0.02)

ratios = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=8)


def told(ratio: float = 1.3, sd: float = 0.002, n: int = 4, mode: str = "rotating", **timing: object) -> Case:
    """A case whose n pairs tell that no tuner was seen."""
    sides = {name: side(timing=Timing(mode=mode, **timing), tuner="") for name in ("base", "head")}
    made = pairs(*values(ratio, n, sd))
    for pair in made:
        pair.tuners = {"base": "", "head": ""}
    return case(base=sides["base"], head=sides["head"], pairs=made)


def decided(made: Case, looks: Looks = LOOKS, m: int = M, *, ended: bool = False):
    return answer(made, QUESTION, looks, m, ended=ended).decision


# The p-value


@given(ratios, st.floats(0, 0.5))
def test_one_pair_within_the_limit_is_enough_to_show_nothing(x, r):
    p = p_beyond(x, r)
    assert 0 <= p <= 1
    assert (p == 1) == (min(np.asarray(x) - r) <= 0)
    assert p == 1 or p <= 2.0 ** -len(x)


@given(st.lists(st.floats(0.001, 0.5), min_size=2, max_size=8), st.floats(0.1, 10))
def test_its_scale_does_not_matter_and_closer_pairs_show_more(x, scale):
    assert p_beyond([scale * v for v in x], 0.0) == pytest.approx(p_beyond(x, 0.0), abs=1e-12)
    closer = [v + 0.1 for v in x]
    assert p_beyond(closer, 0.0) <= p_beyond(x, 0.0) + 1e-15


@pytest.mark.parametrize("bad", [[], [0.1], [0.1, math.nan], [0.1, math.inf]])
def test_what_is_no_pair_of_finite_values_is_refused(bad):
    with pytest.raises(ValueError, match="two finite values"):
        p_beyond(bad, 0.0)


@pytest.mark.parametrize("name", NOISE)
def test_noise_with_one_peak_spends_no_more_than_its_share(name):
    """With two peaks it is spent many times over: why cases with a tuner are left out."""
    for n, share in OBVIOUS.items():
        x = NOISE[name](np.random.default_rng(n), (60_000, n))
        ratio, error = ratio_of(x, share)
        assert ratio > 10 if name.startswith("tuned") else ratio <= 1 + 3 * error


def test_recorded_pairs_spend_no_more_than_their_share():
    """All replayed graphs together, signs turned by a coin: a quarter of it."""
    found = []
    for x in recorded().values():
        rng = np.random.default_rng(0)
        found += [ratio_of(np.array([rng.permutation(x)[:n] for _ in range(4000)]), s)[0] for n, s in OBVIOUS.items()]
    assert len(found) == 24
    assert 0 < np.mean(found) <= 0.75


# Answers


@pytest.mark.parametrize(("ratio", "status"), [(1.3, "regression"), (0.7, "improvement")])
def test_a_plain_change_ends_after_four_pairs(ratio, status):
    found = decided(told(ratio))
    assert (found.status, found.n, found.early, found.look, found.last) == (status, 4, True, None, False)
    assert found.p <= 0.02 * 0.01 / M
    assert found.estimate == pytest.approx(math.log(ratio), abs=0.01)


def test_a_plain_change_that_scatters_ends_after_six():
    made = told(1.3, sd=0.02, n=6)
    assert decided(made.model_copy(update={"pairs": made.pairs[:4]})).status == "continue"
    assert (decided(made).status, decided(made).n) == ("regression", 6)


def test_what_pairs_follow_changes_nothing():
    made = told(n=24)
    at_clocks(made.pairs)
    made.pairs[6].clock["base"].hertz *= 1.1
    early = made.model_copy(update={"pairs": made.pairs[:4]})
    assert decided(made) == decided(early) == decided(early, ended=True)
    assert decided(made).early


@pytest.mark.parametrize("ratio", [1.0, 1.005, 1.019, 1.021, 0.981])
def test_a_change_near_the_limit_takes_the_usual_looks(ratio):
    assert decided(told(ratio, n=6)).status == "continue"


def test_it_must_be_plain_as_measured_and_at_equal_clock():
    plain = told()
    slower_clock = told()
    at_clocks(slower_clock.pairs, base=1.3e9, head=1.0e9)
    assert decided(plain).early
    assert decided(slower_clock).status == "continue", "at equal clock there is no change"
    hidden = told(1.0)
    at_clocks(hidden.pairs, base=1.0e9, head=1.3e9)
    assert decided(hidden).status == "continue", "as measured there is none"


def without(made: Case, name: str, **fields: object) -> Case:
    sides = made.sides | {name: made.sides[name].model_copy(update=fields)}
    return made.model_copy(update={"sides": sides})


def retuned(made: Case, **tuners: str) -> Case:
    last: Pair = made.pairs[-1].model_copy(update={"tuners": tuners})
    return made.model_copy(update={"pairs": [*made.pairs[:-1], last]})


@pytest.mark.parametrize(
    "made",
    [
        told(mode="cold"),
        told(mode="cpu"),
        told(alternating="one after the other"),
        without(told(), "head", timing=None),
        without(told(), "base", tuner=None),
        without(told(), "head", tuner="Triton's autotuner chooses for add"),
        retuned(told()),
        retuned(told(), base="", head="torch.backends.cudnn.benchmark is on"),
        retuned(told(), head=""),
    ],
    ids=["cold", "cpu", "alternating", "untimed", "not told", "tuned", "pair untold", "pair tuned", "base untold"],
)
def test_where_two_peaks_cannot_be_excluded_there_is_no_such_look(made):
    assert decided(told()).early
    assert decided(made).status == "continue"


def test_pairs_behind_the_look_may_tell_what_they_will():
    assert decided(retuned(told(mode="hot", n=64))).early


def test_plans_without_such_looks_take_none():
    assert decided(told(), Looks()).status == "continue"
    assert decided(told(n=24), Looks(), 100).n == 16
