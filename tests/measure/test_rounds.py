"""The schedule of a launch pair, and what becomes of its samples."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.measure.place import SCHEDULES
from perfci.measure.rounds import LONGEST_SAMPLE, Bench, _turns, launch_value


def bench(device: str) -> Bench:
    return Bench(None, {}, SCHEDULES[device], 0, 1, [], 60.0, [], Path())  # type: ignore[arg-type]


@given(st.floats(1e-8, 100), st.floats(1e-8, 100))
def test_batches_are_alike_and_bounded(base: float, head: float) -> None:
    """Both arms repeat alike: the faster one for a whole sample time, the slower one never for long."""
    plan = bench("cpu")
    plan.plan_batch("k", [base, head], "cpu")
    batch, samples = plan.batches["k"], plan.block_samples["k"]
    assert 1 <= samples <= plan.schedule.samples
    assert batch == 1 or batch * max(base, head) <= LONGEST_SAMPLE
    assert batch == 1 or batch * min(base, head) < 2 * plan.schedule.sample_time + min(base, head)
    if max(base, head) < 10 * min(base, head) and max(base, head) < 1e-3:
        assert batch * min(base, head) >= plan.schedule.sample_time * 0.999


def test_a_gpu_sample_is_one_execution() -> None:
    plan = bench("cuda")
    plan.plan_batch("k", [1e-6, 1e-6], "cuda")
    assert plan.batches["k"] == 1


@given(st.integers(1, 20), st.integers())
def test_turns_mirror_each_other(couples: int, seed: int) -> None:
    """Each arm gets every block, and a drift that is linear in time cancels within each couple."""
    turns = _turns(2 * couples, ["base", "head"], random.Random(seed))
    assert turns.count("base") == turns.count("head") == 2 * couples
    for start in range(0, len(turns), 4):
        couple = turns[start : start + 4]
        assert couple == couple[::-1]
        assert couple.count("base") == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1e-3])
def test_an_unsound_sample_is_never_averaged_away(bad: float) -> None:
    assert math.isnan(launch_value([[1e-3] * 20, [1e-3, bad, *[1e-3] * 18]]))


def test_no_samples_are_no_value() -> None:
    assert math.isnan(launch_value([]))
    assert math.isnan(launch_value([[1e-3], []]))


def test_an_outlier_is_trimmed() -> None:
    assert launch_value([[1e-3] * 9 + [5e-2]]) == pytest.approx(1e-3)


def test_a_case_that_starves_the_gpu_is_named() -> None:
    """In more than half of its blocks the GPU waited: its times hold launch gaps, and the report must say so."""
    from perfci.measure.conductor import starved
    from perfci.model.plan import Plan, Schedule
    from perfci.model.results import Case, CaseArm, Pair

    plan = Plan(seed=0, arms=["base", "head"], schedules={"cuda": Schedule(placements=2, blocks=2)})

    def case(name: str, gaps: int) -> Case:
        pairs = [Pair(index=i, values={"head": {"time": 1.0}}, gaps={"base": 0, "head": gaps}) for i in range(8)]
        return Case(id=name, kernel=name, device="cuda", arms={"head": CaseArm()}, pairs=pairs)

    assert starved([case("queued", 0), case("now_and_then", 2)], plan) == []
    (note,) = starved([case("queued", 0), case("synchronises", 4)], plan)
    assert "times of synchronises:" in note
