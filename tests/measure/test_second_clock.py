"""When the run's own clock contradicts a worker, and when it says nothing."""

import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.measure.second_clock import BOUND, FLOOR, READINGS, Reading, contradiction, spent
from perfci.model.results import Pair


def pair(index: int, times: float | None, seconds: float = 3e-6) -> Pair:
    known = {} if times is None else {"head": times}
    return Pair(index=index, values={"base": {"time": 1e-3}, "head": {"time": seconds}}, spent=known)


def pairs(*times: float | None) -> list[Pair]:
    return [pair(index, one) for index, one in enumerate(times)]


def read(*seconds: float | None) -> list[Reading]:
    found = [Reading(os.getpid()) for _ in seconds]
    for one, known in zip(found, seconds, strict=True):
        one.seconds = known
    return found


def test_a_worker_that_forges_its_times_is_contradicted_in_words() -> None:
    text = contradiction(pairs(290.0, 290.0, 291.0, 290.0), "head")
    assert text == "the worker says 3.00 µs an execution, the machine spent 870 µs"
    assert contradiction(pairs(290.0, 290.0, 291.0, 290.0), "base") == ""


@pytest.mark.parametrize(
    "times", [(), (290.0,) * 3, (290.0, 290.0, 1.0, 1.0), (None, 290.0, None, 290.0, None, 290.0), (BOUND,) * 9]
)
def test_few_readings_or_the_higher_half_contradict_nobody(times: tuple[float | None, ...]) -> None:
    assert contradiction(pairs(*times), "head") == ""


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_the_lower_median_of_the_pairs_decides(times: list[float]) -> None:
    above = sum(one > BOUND for one in times)
    contradicted = len(times) >= READINGS and above > len(times) / 2
    assert bool(contradiction(pairs(*times), "head")) == contradicted


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.integers(1, 10**6), st.floats(1e-9, 1))
def test_what_is_shorter_or_short_at_all_is_no_contradiction(
    seconds: list[float], executions: int, value: float
) -> None:
    times = spent(read(*seconds), [[value]] * len(seconds), executions, value)
    assert times is not None
    most = sorted(seconds)[(len(seconds) - 1) // 2]
    if most - executions * value <= FLOOR:
        assert times <= 1 or times == min(one / (executions * value) for one in seconds)
    else:
        assert times == pytest.approx(most / (executions * value)) and times > 1


def test_of_few_slow_blocks_nothing_is_made_and_slow_samples_count_in_their_block() -> None:
    assert spent(read(1.0, 90.0, 1.0), [[1.0]] * 3, 1, 1.0) == 1.0
    assert spent(read(90.0, 90.0, 1.0), [[1.0]] * 3, 1, 1.0) == 90.0
    assert spent(read(*[90.0] * 3), [[1.0, 1.0, 28.0]] * 3, 3, 1.0) == 3.0, "though the value leaves them out"


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_is_not_compared(value: float) -> None:
    assert spent(read(1.0), [[1.0]], 10, value) is None
    assert spent(read(None), [[1.0]], 10, 1.0) is None
    assert spent(read(1.0), [[]], 10, 1.0) is None
    assert spent([], [], 10, 1.0) is None
    assert spent(read(1.0), [[1.7e308] * 3], 1, 1.0) == 1.0


PROGRAM = """
import sys, threading, time
def spin():
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
for line in sys.stdin:
    if line == "spin\\n":
        spin()
    elif line == "thread\\n":
        thread = threading.Thread(target=spin); thread.start(); thread.join()
    else:
        time.sleep(0.2)
    print("done", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the scheduler's count is Linux's")
def test_the_clock_counts_what_the_main_thread_computes() -> None:
    """No other threads, which may hold it up though they are not timed, and no waiting."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None and child.stdout is not None

        def asked(what: str) -> float:
            reading = Reading(child.pid)
            child.stdin.write(what + "\n")
            child.stdin.flush()
            child.stdout.readline()
            reading.end()
            assert reading.seconds is not None
            return reading.seconds

        assert asked("spin") >= 0.1
        assert asked("wait") < 0.1 and asked("thread") < 0.1
        child.stdin.close()


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    reading = Reading(child.pid)
    reading.end()
    assert reading.seconds is None
