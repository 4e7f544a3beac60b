"""When the run's own clock is read, how long for, and what contradicts it."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.measure.second_clock import (
    BOUND,
    FASTER,
    LEAST,
    MOST,
    READINGS,
    Stretch,
    computed,
    contradiction,
    is_due,
    spent,
    stretches,
    timed,
)
from perfci.model.results import Spent


def pair(said: float, least: float | None, most: float | None = None) -> Any:
    values = {"base": {"time": 1e-3}, "head": {"time": said}}
    if least is None:
        return SimpleNamespace(values=values, spent={})
    told = {"base": Spent(least=1e-3, most=1e-3), "head": Spent(least=least, most=least if most is None else most)}
    return SimpleNamespace(values=values, spent=told)


def test_four_pairs_are_always_enough_for_a_median() -> None:
    for _ in range(200):
        case: Any = SimpleNamespace(pairs=[])
        for _ in range(4):
            case.pairs.append(pair(1e-3, 1e-3 if is_due(case) else None))
        assert sum(bool(one.spent) for one in case.pairs) >= READINGS


@given(st.floats(1e-9, 10), st.floats(1e-9, 10), st.integers(1, 10_000))
def test_stretches_last_as_long_as_asked_and_a_forged_time_makes_them_little_longer(
    base: float, head: float, batch: int
) -> None:
    short, long = stretches({"base": base, "head": head}, "head", batch)
    likely = batch * max(head, base / FASTER)
    assert 1 <= short < long
    for batches in (short, long - short):
        assert batches <= max(1, math.ceil(MOST / batch))
        if batches < MOST / batch:
            assert LEAST <= batches * likely <= max(1.5 * LEAST, LEAST + likely) * 1.001 + likely


@pytest.mark.parametrize("said", [0.0, -1.0, math.nan, math.inf])
def test_a_worker_that_names_no_time_is_asked_for_the_least(said: float) -> None:
    assert stretches({"head": said}, "head", 5) == (1, 2)
    assert contradiction([pair(said, 1e-3)] * 4, "head") == ""


def test_one_reading_contradicts_nothing_and_a_median_does() -> None:
    forged, honest = pair(3e-7, 870e-6), pair(1e-3, 1.1e-3)
    assert contradiction([forged], "head") == contradiction([honest] * 3 + [pair(1e-3, None)], "head") == ""
    said = "the worker says 300 ns an execution, the machine spent 870 µs"
    assert contradiction([forged, pair(3e-7, None), forged], "head") == said
    assert contradiction([forged, honest], "head") == "", "of two the one that says less counts"
    assert contradiction([forged, honest, honest], "head") == ""
    assert contradiction([forged, forged, honest], "head") == said
    assert contradiction([forged, forged, honest], "base") == ""


def test_work_that_is_skipped_behind_the_samples_contradicts_them() -> None:
    assert (
        contradiction([pair(1e-3, 0.0)] * 2, "head") == "the worker says 1.00 ms an execution, the machine spent 0 ns"
    )


@given(st.lists(st.floats(-1.09, 1.09), min_size=2, max_size=9))
def test_readings_within_the_bound_are_believed(logs: list[float]) -> None:
    assert math.log(BOUND) > 1.09
    assert contradiction([pair(1e-3, 1e-3 * math.exp(log)) for log in logs], "head") == ""


@pytest.mark.parametrize(
    ("wall", "cpu"),
    [
        (9e-3, 1.1e-3),  # a busy machine
        (1e-3, 8e-3),  # eight threads
        (1e-3, 0.0),  # it waits for another process
        (1e-3, 1e-3),
    ],
)
def test_what_a_worker_says_between_what_it_computed_and_what_passed_is_believed(wall: float, cpu: float) -> None:
    told = spent([Stretch(n, n * wall, n * cpu) for n in (25, 60)])
    assert told is not None
    assert contradiction([pair(1e-3, told.least, told.most)] * 5, "head") == ""
    forged = min(wall, cpu or wall) / 4
    assert bool(contradiction([pair(forged, told.least, told.most)] * 2, "head")) == (cpu > 0)


@pytest.mark.parametrize(("first", "second"), [(0.0, 0.0), (0.03, 0.0), (0.0, 0.03), (0.2, 0.2)])
def test_what_holds_up_a_stretch_is_no_time_of_an_execution(first: float, second: float) -> None:
    told = spent([Stretch(25, 0.0251 + first, 0.025 + first), Stretch(60, 0.0601 + second, 0.06 + second)])
    assert told is not None and told.least <= 1.01e-3 and told.most >= 0.99e-3
    assert contradiction([pair(1e-3, told.least, told.most)] * 3, "head") == ""


def test_two_stretches_are_needed() -> None:
    assert spent([]) is spent([Stretch(10, 1.0, 1.0)]) is None
    skipped = spent([Stretch(25, 2e-4, 1e-4), Stretch(60, 2e-4, 1e-4)])
    assert skipped is not None and skipped.most < 1e-5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux's scheduler")
def test_what_processes_below_a_worker_compute_is_its_own() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    found: list[Stretch] = []
    with timed(os.getpid(), 3, found):
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
    child.communicate(b"\n")
    ((executions, wall, cpu),) = found
    assert executions == 3 and wall >= 0.29 and cpu >= 0.29
    assert computed(child.pid) is None, "it has ended"
