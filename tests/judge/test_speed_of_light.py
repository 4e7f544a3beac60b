"""The speed of light: high enough to tell a cheat, never above an honest kernel."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.speed_of_light import least_time
from perfci.model.results import Work
from perfci.model.timing import Timing
from tests.judge.build import ceilings

H200 = ceilings(read=4.3e12, copied=4.0e12, bf16=7.0e14, fp8=1.3e15, fp32=None)
COLD = Timing(mode="cold")
L2 = 60_000_000


def test_reads_of_a_cold_case():
    """1 GB at 4.3 TB/s takes 233 µs; a quarter less is still believed."""
    seconds, words = least_time(Work(read=1e9), H200, COLD, "cuda", L2)
    assert seconds == pytest.approx(1e9 / 4.3e12 / 1.25)
    assert words == "move the declared bytes (4.30 TB/s at most)"


def test_operations_count_at_the_best_rate_of_any_type_under_every_timing_mode():
    for timing in (COLD, Timing(mode="hot"), Timing(mode="rotating"), None):
        seconds, words = least_time(Work(flops=1e12), H200, timing, "cuda", L2)
        assert seconds == pytest.approx(1e12 / 1.3e15 / 1.25)
        assert words == "do the declared operations (1300 TFLOP/s at most)"


def test_the_larger_of_both_counts():
    work = Work(flops=1e12, read=1e9)
    assert least_time(work, H200, COLD, "cuda", L2)[1].startswith("do the declared operations")
    assert least_time(work.model_copy(update={"read": 1e10}), H200, COLD, "cuda", L2)[1].startswith("move")


@pytest.mark.parametrize(
    "timing",
    [
        Timing(mode="hot"),
        Timing(mode="rotating"),
        Timing(mode="rotating", rotated_bytes=19 * L2 // 10, sets=4),
        Timing(mode="cpu"),
        None,
    ],
)
def test_reads_that_a_cache_may_hold_do_not_count(timing):
    assert least_time(Work(read=1e9), H200, timing, "cuda", L2) is None


def test_reads_on_a_cpu_do_not_count_and_its_slack_is_larger():
    assert least_time(Work(read=1e9), H200, COLD, "cpu") is None
    assert least_time(Work(flops=1.3e15), H200, Timing(mode="cpu"), "cpu")[0] == pytest.approx(0.5)


def test_written_bytes_never_count():
    assert least_time(Work(written=1e12), H200, COLD, "cuda", L2) is None


@given(st.integers(2, 200), st.integers(1000, 10**8), st.floats(0, 1e9))
def test_a_cache_of_any_policy_stays_under_the_speed_of_light_of_rotating(sets, each, shared):
    """Bytes that an ideal cache must read again in a walk through the sets take longer than the least time.

    `shared` bytes are read by every set and belong to none: they may stay in the cache, for nothing.
    """
    timing = Timing(mode="rotating", rotated_bytes=sets * each, sets=sets)
    found = least_time(Work(read=each + shared), H200, timing, "cuda", L2)
    honest = max(0.0, sets * each - L2) / sets / 4.3e12
    if sets * each < 2 * L2:
        assert found is None
    else:
        assert found[0] * 1.2 < honest


@pytest.mark.parametrize("value", [None, 0, -1.0, math.nan, math.inf])
def test_a_ceiling_that_was_not_measured_forbids_nothing(value):
    found = ceilings(read=value, bf16=value)
    assert least_time(Work(read=1e9, flops=1e15), found, COLD, "cuda", L2) is None
