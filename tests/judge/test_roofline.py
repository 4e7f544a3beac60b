"""The roofline against numbers worked out by hand."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.explain.roofline import links, roofline
from perfci.model.fingerprint import Rate
from perfci.model.profile import Copy, Counters, KernelCounters, Profile, Trace
from perfci.model.results import Work

from .build import ceilings

PROFILES = Path(__file__).parent.parent / "data/profiles"
CEILINGS = ceilings(read=4e12, copied=3e12, bf16=800e12, fp32=50e12, tf32=400e12, fp8=1600e12, fp4=6400e12, int8=None)
CEILINGS.to_device, CEILINGS.to_host = Rate(value=55e9, how="pinned memory"), Rate(value=None, reason="no room")


def counters(*values):
    kernels = [
        KernelCounters(name="k", count=1, seconds=1e-4, grid=(1, 1, 1), block=(1, 1, 1), values=one) for one in values
    ]
    return Counters(source="ncu", kernels=kernels)


def test_bound_by_memory():
    """1 GB of each: at the copy's 3 TB/s 2/3 ms; of 1 ms measured that is 66.7 %, 1.5× to go."""
    found = roofline(Work(flops=1e9, read=1e9, written=1e9), 1e-3, CEILINGS, None, "bf16")
    assert found.point.bound == "memory"
    assert found.memory == pytest.approx(3e12)
    assert found.point.share == pytest.approx(2 / 3)
    assert found.point.intensity == 0.5
    assert found.point.measured_intensity is None
    assert found.assumptions == []
    assert found.sentence == (
        "memory-bound (0.500 FLOP/B, ridge at 267): 66.7 % of the measured 3.00 TB/s, up to 1.5× faster"
    )


def test_reads_and_writes_have_ceilings_of_their_own():
    """3 GB read, 1 GB written: 2 GB at 4 TB/s and 2 GB at 3 TB/s are 0.5 + 0.667 ms, 3.43 TB/s."""
    found = roofline(Work(read=3e9, written=1e9), 2e-3, CEILINGS)
    assert found.memory == pytest.approx(4e9 / (0.5e-3 + 2e9 / 3e12))
    only_read = roofline(Work(read=4e9), 2e-3, CEILINGS)
    assert (only_read.memory, only_read.point.share) == (pytest.approx(4e12), pytest.approx(0.5))
    assert roofline(Work(written=3e9), 2e-3, CEILINGS).point.share == pytest.approx(0.5)


def test_bound_by_compute():
    """4096³ in bf16: 137.4 GFLOP take 171.8 µs at 800 TFLOP/s; of 200 µs that is 85.9 %."""
    n = 4096
    found = roofline(Work(flops=2 * n**3, read=4 * n * n, written=2 * n * n), 200e-6, CEILINGS, None, "torch.bfloat16")
    assert (found.point.bound, found.dtype, found.compute) == ("compute", "bf16", 800e12)
    assert found.point.intensity == pytest.approx(2 * n**3 / (6 * n * n))
    assert found.point.share == pytest.approx(0.8589934592)
    assert "85.9 % of the measured 800 TFLOP/s of bf16, up to 1.2× faster" in found.sentence


def test_the_type_is_what_is_known_else_the_largest_ceiling_and_said():
    work = Work(flops=1e12)
    unknown = roofline(work, 1.0, CEILINGS)
    assert (unknown.dtype, unknown.compute) == ("fp8", 1600e12)
    assert unknown.assumptions == ["the largest compute ceiling, fp8: the type is not known"]
    assert roofline(work, 1.0, CEILINGS, None, "int8").assumptions == [
        "the largest compute ceiling, fp8: no ceiling of int8 was measured"
    ]
    assert roofline(work, 1.0, CEILINGS, None, "float32").dtype == "fp32"
    through = roofline(work, 1.0, CEILINGS, counters({"tensor_active": 40.0}), "float32")
    assert (through.dtype, through.compute) == ("tf32", 400e12)
    assert "TF32" in through.assumptions[0]
    assert roofline(work, 1.0, CEILINGS, counters({"tensor_active": 0.0}), "float32").dtype == "fp32"
    assert roofline(work, 1.0, CEILINGS, None, "float8_e4m3fn").dtype == "fp8"


def test_counted_traffic_stands_beside_the_declared_bytes():
    work = Work(flops=1e9, read=1e9, written=1e9)
    found = roofline(work, 2e-3, CEILINGS, counters({"dram_bytes": 3e9}, {"dram_bytes": 1e9}))
    assert found.point.measured_intensity == pytest.approx(0.25)
    assert found.sentence.endswith("; moves 2.0× the declared bytes")
    partly = roofline(work, 2e-3, CEILINGS, counters({"dram_bytes": 3e9}, {}))
    assert partly.point.measured_intensity is None
    assert "declared bytes" not in partly.sentence


def test_faster_than_the_ceiling_is_said():
    found = roofline(Work(read=4e9), 0.5e-3, CEILINGS)
    assert found.point.share == pytest.approx(2.0)
    assert "200 % of the measured 4.00 TB/s, more than the ceiling" in found.sentence
    assert "faster" not in found.sentence
    near = roofline(Work(read=4e9), 0.98e-3, CEILINGS).sentence
    assert near.endswith("102 % of the measured 4.00 TB/s"), "ceilings are measured, too"


@pytest.mark.parametrize(
    ("work", "seconds", "known"),
    [
        (Work(), 1e-3, CEILINGS),
        (Work(items=5), 1e-3, CEILINGS),
        (Work(read=1e9), 0.0, CEILINGS),
        (Work(read=1e9), float("nan"), CEILINGS),
        (Work(read=float("inf")), 1e-3, CEILINGS),
        (Work(flops=float("nan"), read=1e9), 1e-3, CEILINGS),
        (Work(read=1e9), 1e-3, ceilings()),
        (Work(flops=1e9), 1e-3, ceilings(read=1e12)),
        (Work(read=-1.0), 1e-3, CEILINGS),
    ],
)
def test_nothing_to_draw(work, seconds, known):
    assert roofline(work, seconds, known) is None


def test_a_ceiling_that_was_not_measured_is_said():
    found = roofline(Work(flops=1e12, read=1e9), 1e-2, ceilings(read=4e12))
    assert found.point.bound == "memory"
    assert "ridge" not in found.sentence
    assert found.sentence.endswith("no compute ceiling was measured")
    without_copy = roofline(Work(read=1e9, written=1e9), 1e-3, ceilings(read=4e12))
    assert without_copy.assumptions == ["writes at the rate of reads: the copy was not measured"]


def test_links_of_the_recorded_upload():
    cases = {side: json.loads((PROFILES / f"{side}.json").read_text("utf-8")) for side in ("base", "head")}
    base, head = (Profile.model_validate(cases[side]["upload-mib64"]).trace for side in ("base", "head"))
    (pinned,), (pageable,) = links(base, CEILINGS), links(head, CEILINGS)
    assert pinned == "the upload reaches 55.4 GB/s, 101 % of the measured link (55.0 GB/s)"
    assert pageable == "the upload reaches 12.1 GB/s, 22.0 % of the measured link (55.0 GB/s)"


def test_no_link_without_a_ceiling_or_a_copy():
    down = Copy(kind="device to host", source="device", target="pinned", count=1, bytes=1e6, seconds=1e-3)
    inside = Copy(kind="device to device", source="device", target="device", count=1, bytes=1e6, seconds=1e-3)
    trace = Trace(source="nsys", executions=1, wall=1, busy=1, span=1, copies=[down, inside])
    assert links(trace, CEILINGS) == []
    assert links(Trace(source="nsys", executions=1, wall=1, busy=1, span=1), CEILINGS) == []


numbers = st.one_of(st.floats(0, 1e18), st.floats())
rates = st.one_of(st.floats(), st.none())


@given(
    numbers, numbers, numbers, numbers, st.lists(rates, min_size=4, max_size=4), st.sampled_from(["bf16", None, "x"])
)
def test_any_numbers(flops, read, written, seconds, values, dtype):
    """Nothing raises, no number is none, and more time for the same work is a smaller share."""
    a, b, c, d = values
    work = Work(flops=flops, read=read, written=written)
    found = roofline(work, seconds, ceilings(a, b, bf16=c, fp32=d), None, dtype)
    if found is None:
        return
    assert "\n" not in found.sentence
    assert not {"nan", "inf"} & set(found.sentence.split())
    longer = roofline(work, 2 * seconds, ceilings(a, b, bf16=c, fp32=d), None, dtype)
    if longer is not None:
        assert longer.point.share <= found.point.share
        assert longer.point.bound == found.point.bound
