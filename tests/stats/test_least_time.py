"""The least time of declared work, against the roofline that reports draw and numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.explain.roofline import roofline
from perfci.model.plan import Looks
from perfci.model.results import CaseSide, Work
from perfci.stats.answer import answer
from perfci.stats.least_time import least_seconds
from perfci.stats.series import side_values
from tests.judge.build import case, ceilings, limit

LOOKS = Looks()
CEILINGS = ceilings(read=4e12, copied=3e12, bf16=800e12, fp32=50e12, tf32=400e12, fp4=6400e12, int8=None)
AMOUNTS = st.one_of(st.just(0.0), st.floats(1e3, 1e15))


def test_by_hand():
    """3 GB read and 1 GB written: 2 GB at 4 TB/s and 2 GB at 3 TB/s; 4096³ in bf16: 137.4 GFLOP at 800 TFLOP/s."""
    assert least_seconds(Work(read=3e9, written=1e9), CEILINGS) == pytest.approx(0.5e-3 + 2e9 / 3e12)
    work = Work(flops=2 * 4096**3, read=4 * 4096**2, written=2 * 4096**2)
    assert least_seconds(work, CEILINGS, "torch.bfloat16") == pytest.approx(171.8e-6, rel=1e-3)
    assert least_seconds(work, CEILINGS, "torch.float32") == pytest.approx(2 * 4096**3 / 50e12)
    assert least_seconds(work, CEILINGS, "torch.float32", tf32=True) == pytest.approx(2 * 4096**3 / 400e12)


@pytest.mark.parametrize(
    ("work", "dtype"),
    [
        (Work(), "bf16"),
        (Work(flops=1e9), "float64"),  # no ceiling of it was measured, and none of another type is taken
        (Work(flops=1e9), "int8"),
        (Work(flops=1e9), ""),
        (Work(read=math.nan), ""),
        (Work(read=math.inf), ""),
        (Work(read=-1.0), ""),
    ],
)
def test_where_nothing_can_be_said(work, dtype):
    assert least_seconds(work, CEILINGS, dtype) == 0.0


def test_a_rate_that_was_not_measured_says_nothing():
    assert least_seconds(Work(read=1e9), ceilings(read=None, copied=None, bf16=1e12)) == 0.0


@given(AMOUNTS, AMOUNTS, AMOUNTS, st.floats(1e-9, 1e3))
def test_it_is_the_share_that_the_roofline_tells(flops, read, written, seconds):
    work = Work(flops=flops, read=read, written=written)
    found = roofline(work, seconds, CEILINGS, None, "bf16")
    least = least_seconds(work, CEILINGS, "bf16")
    assert (found is None) == (least == 0)
    if found is not None:
        assert least / seconds == pytest.approx(found.point.share, rel=1e-9)


def test_limits_on_it_hold_or_break_as_the_time_says():
    measured = case()
    times = side_values(measured, "head", "time")
    for name, side in measured.sides.items():
        measured.sides[name] = CaseSide(**{**side.model_dump(), "least": 0.5 * float(times.mean())})
    assert side_values(measured, "head", "peak") == pytest.approx(100 * 0.5 * times.mean() / times)
    looks = limit(metric="peak", kind="min", bound=40.0)
    assert looks.better == "higher" and looks.unit == "%"
    assert (
        answer(measured, limit(metric="peak"), LOOKS, 1).decision.status
        == answer(measured, limit(metric="time"), LOOKS, 1).decision.status
    )
