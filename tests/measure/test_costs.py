"""The account of a run: every second in one phase, the innermost that is open."""

import math
import time

import pytest

from perfci.measure import costs as module
from perfci.measure.budget import Budget
from perfci.measure.costs import Costs


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a test says so."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def passing(seconds: float) -> None:
        now[0] += seconds

    return passing


def test_a_second_belongs_to_the_innermost_phase(clock):
    costs = Costs()
    clock(1)
    with costs.phase("check"):
        clock(2)
        with costs.phase("import"):
            clock(4)
        clock(8)
    clock(16)
    assert costs.so_far() == {"other": 17, "check": 10, "import": 4}


def test_a_phase_may_count_as_a_whole(clock):
    costs = Costs()
    with costs.phase("profile", whole=True):
        clock(1)
        with costs.phase("import"):
            clock(2)
            costs.move("warm", 1)
        clock(4)
    with costs.phase("import"):
        clock(8)
    assert costs.so_far() == {"other": 0, "profile": 7, "import": 8}


@pytest.mark.parametrize(("told", "counted"), [(3.0, 3.0), (-1.0, 0.0), (50.0, 5.0)])
def test_seconds_that_a_worker_tells_of_never_exceed_what_has_passed(clock, told, counted):
    costs = Costs()
    with costs.phase("open"):
        clock(5)
        costs.move("warm", told)
    assert costs.so_far() == {"other": 0, "open": 5 - counted, "warm": counted}


def test_an_error_ends_its_phase(clock):
    costs = Costs()
    with pytest.raises(KeyError), costs.phase("build"):
        clock(2)
        raise KeyError
    clock(1)
    assert costs.so_far() == {"other": 1, "build": 2}


def test_the_phases_add_up_to_the_time_that_has_passed():
    start = time.monotonic()
    costs = Costs()
    for _ in range(100):
        with costs.phase("open"), costs.phase("samples"):
            costs.move("warm", 1e-7)
    first = math.fsum(costs.so_far().values())
    assert 0 < first <= time.monotonic() - start


def test_a_budget_counts_from_the_end_of_the_builds(clock):
    clock(3)
    budget = Budget(10, began=101)
    assert (budget.spent, budget.left, budget.end) == (2, 8, 111)
    assert (budget.patience(5), budget.patience(50)) == (5, 10), "until its end, and a fifth more"
    assert (budget.profiling(needed=False), budget.profiling(needed=True)) == (2, 8)
    clock(9)
    assert (budget.spent, budget.left) == (11, 0)
    assert (budget.profiling(needed=False), budget.profiling(needed=True)) == (2, 2)
