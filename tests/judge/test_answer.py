"""The questions that run and judge ask of a case's pairs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.model.plan import Looks
from perfci.model.results import Work
from perfci.stats.answer import answer, replay
from perfci.stats.series import metrics, side_values

from .build import T, alone, at_clocks, case, limit, pairs, side, values

LOOKS = Looks()


def status(a_case, criterion, m=100):
    return answer(a_case, criterion, LOOKS, m).decision.status


def test_a_slow_down_in_time_is_a_fall_in_everything_derived_from_it():
    work = Work(flops=1e9, read=6e6, written=2e6, items=32)
    slow = case(ratio=1.05, base=side(work=work), head=side(work=work))
    for metric in ("time", "tflops", "bandwidth", "throughput"):
        assert status(slow, limit(metric=metric)) == "regression"
    assert side_values(slow, "base", "tflops")[0] == pytest.approx(1e9 / slow.pairs[0].values["base"]["time"] / 1e12)
    assert side_values(slow, "base", "bandwidth")[0] == pytest.approx(8e6 / slow.pairs[0].values["base"]["time"])
    assert side_values(slow, "base", "throughput")[0] == pytest.approx(32 / slow.pairs[0].values["base"]["time"])
    assert metrics(slow) == ["time", "tflops", "bandwidth", "throughput"]


def test_a_least_change_widens_the_limit_to_what_the_timer_can_show():
    slow = case(ratio=1.05)
    assert status(slow, limit(bound=0.02, min_change=1e-7)) == "regression"
    found = answer(slow, limit(bound=0.02, min_change=10e-6), LOOKS, 1)
    assert found.decision.status == "unchanged"
    assert found.limit == pytest.approx(10e-6 / T, rel=0.02)


def test_the_least_change_is_the_same_at_every_look():
    """Workers that become slower later must not loosen the limit that earlier looks were judged by."""
    base, head = values(1.05, n=64)
    base[8:] *= 0.01
    limits = {
        answer(case(pairs=pairs(base[:n], head[:n])), limit(min_change=1e-6), LOOKS, 1).limit for n in (8, 16, 64)
    }
    assert len(limits) == 1


def test_the_answer_does_not_change_when_more_pairs_come():
    for ratio in (1.0, 1.05, 0.9):
        base, head = values(ratio, n=64)
        early = answer(case(pairs=pairs(base[:16], head[:16])), limit(), LOOKS, 1)
        late = answer(case(pairs=pairs(base, head)), limit(), LOOKS, 1)
        assert early.decision == late.decision
        assert early.head == pytest.approx(late.head)


def test_only_pairs_with_both_sides_are_compared():
    base, head = values(1.0)
    assert answer(case(pairs=pairs(base, head[:9])), limit(), LOOKS, 1).decision.n == 8
    assert answer(case(pairs=pairs(base, head[:7])), limit(), LOOKS, 1).decision.status == "continue"


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ([], "empty"),
        (pairs(values()[0], None), "unmeasured"),
        (pairs(None, values()[1]), "base_unmeasured"),
        (pairs(values()[0], np.full(24, math.nan)), "nonfinite"),
        (pairs(values()[0], np.full(24, math.inf)), "nonfinite"),
        (pairs(np.full(24, -math.inf), values()[0]), "nonfinite"),
        (pairs(values()[0], np.zeros(24)), "nonpositive"),
        (pairs(values()[0], -values()[0]), "nonpositive"),
    ],
)
def test_what_is_no_measurement_is_invalid(made, code):
    decision = answer(case(pairs=made), limit(), LOOKS, 1).decision
    assert (decision.status, decision.reason_code) == ("invalid", code)


def test_a_bound_on_a_reported_metric_takes_any_finite_value():
    one = alone()
    one.pairs = pairs(None, np.zeros(24), metric="errors")
    assert status(one, limit(metric="errors", kind="max", bound=0.0)) == "unchanged"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ratio=st.sampled_from([0.97, 1.0, 1.01, 1.03]),
    sd=st.sampled_from([0.0, 0.002, 0.02]),
    m=st.sampled_from([1, 20, 1000]),
    metric=st.sampled_from(["time", "throughput"]),
    slope=st.sampled_from([None, 0.0, 1.0]),
)
def test_a_replayed_run_is_the_answer_itself(seed, ratio, sd, m, metric, slope):
    rng, sides = np.random.default_rng(seed), {"base": side(work=Work(items=32)), "head": side(work=Work(items=32))}
    measured = pairs(*values(ratio, n=12, sd=sd, seed=seed))
    recorded = case(**sides, pairs=measured if slope is None else at_clocks(measured, head=1.97e9, slope=slope))
    places = rng.integers(0, 12, (4, LOOKS.pairs[-1]))
    runs = [[recorded.pairs[at].model_copy(update={"index": n}) for n, at in enumerate(where)] for where in places]
    wanted = [answer(case(**sides, pairs=run), limit(metric=metric), LOOKS, m, ended=True).decision for run in runs]
    found = replay(recorded, limit(metric=metric), LOOKS, m, places)
    assert [(one.status, one.n) for one in found] == [(one.status, one.n) for one in wanted]
