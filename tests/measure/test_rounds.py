"""The schedule of a worker pair, and what becomes of its samples."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.measure.rounds import _turns, starved, worker_value


@given(st.integers(1, 20), st.integers())
def test_turns_mirror_each_other(couples: int, seed: int) -> None:
    """Each side gets every block, and a drift that is linear in time cancels within each couple."""
    turns = _turns(2 * couples, ["base", "head"], random.Random(seed))
    assert turns.count("base") == turns.count("head") == 2 * couples
    for start in range(0, len(turns), 4):
        couple = turns[start : start + 4]
        assert couple == couple[::-1]
        assert couple.count("base") == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1e-3])
def test_an_unsound_sample_is_never_averaged_away(bad: float) -> None:
    assert math.isnan(worker_value([[1e-3] * 20, [1e-3, bad, *[1e-3] * 18]]))


def test_no_samples_are_no_value() -> None:
    assert math.isnan(worker_value([]))
    assert math.isnan(worker_value([[1e-3], []]))


def test_an_outlier_is_trimmed() -> None:
    assert worker_value([[1e-3] * 9 + [5e-2]]) == pytest.approx(1e-3)


def test_a_case_that_starves_the_gpu_is_named() -> None:
    """In more than half of its blocks the GPU waited: its times hold launch gaps, and the report must say so."""
    from perfci.model.plan import Plan
    from perfci.model.results import Case, CaseSide, Pair

    plan = Plan(seed=0, sides=["base", "head"])

    def case(name: str, gaps: int) -> Case:
        pairs = [
            Pair(index=i, values={"head": {"time": 1.0}}, blocks=4, gaps={"base": 0, "head": gaps}) for i in range(8)
        ]
        return Case(id=name, kernel=name, device="cuda", sides={"head": CaseSide()}, pairs=pairs)

    assert starved([case("queued", 0), case("now_and_then", 2)], plan) == []
    (note,) = starved([case("queued", 0), case("synchronises", 4)], plan)
    assert "times of synchronises:" in note
