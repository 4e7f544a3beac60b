"""From profiles to metrics: what is summed, what is weighted, and what is left out rather than guessed."""

import json
from pathlib import Path

import pytest

from perfci.model.metrics import combined
from perfci.model.profile import Counters, KernelCounters, KernelUse, Profile, RangeUse, Trace
from perfci.profilers.metrics import of_counters, of_trace

DATA = Path(__file__).parent.parent / "data" / "profiles"


def recorded(case: str, side: str) -> Profile:
    return Profile.model_validate(json.loads((DATA / f"{side}.json").read_text())[case])


def kernel(seconds: float, **values: float) -> KernelCounters:
    return KernelCounters(name="k", count=1, seconds=seconds, grid=(1, 1, 1), block=(32, 1, 1), values=values)


def test_attention_that_fell_off_flash():
    base, head = (recorded("sdpa-seq512", side) for side in ("base", "head"))
    assert of_trace(base.trace)["kernel_launches"] == 1
    assert of_trace(head.trace)["kernel_launches"] == 14
    assert of_counters(base.counters)["dram_bytes"] == pytest.approx(60e6, rel=0.02)
    assert of_counters(head.counters)["dram_bytes"] == pytest.approx(2.6e9, rel=0.02)


def test_uploads():
    pinned, pageable = (of_trace(recorded("upload-mib64", side).trace) for side in ("base", "head"))
    assert pinned["copy_bytes"] == pageable["copy_bytes"] == 2**26
    assert pinned["copy_bandwidth_h2d"] == pytest.approx(55.4e9, rel=0.01)
    assert pageable["copy_bandwidth_h2d"] == pytest.approx(12.1e9, rel=0.01)
    assert "registers" not in pinned, "it launches no kernel"


def test_bytes_add_up_and_percentages_are_weighted_by_time():
    kernels = [
        kernel(3e-6, dram_bytes=10, occupancy=80, registers=32),
        kernel(1e-6, dram_bytes=5, occupancy=40, registers=64),
    ]
    assert of_counters(Counters(source="ncu", kernels=kernels)) == {
        "dram_bytes": 15,
        "dram_bandwidth": pytest.approx(15 / 4e-6),
        "occupancy": 70,
        "registers": 64,
    }


def test_what_one_kernel_lacks_is_not_said_of_the_case():
    kernels = [kernel(3e-6, occupancy=80, dram_bytes=1), kernel(1e-6, dram_bytes=1)]
    assert of_counters(Counters(source="ncu", kernels=kernels)) == {
        "dram_bytes": 2,
        "dram_bandwidth": pytest.approx(2 / 4e-6),
    }
    assert of_counters(Counters(source="ncu")) == {}
    assert of_counters(Counters(source="ncu", kernels=[kernel(0.0, occupancy=80)])) == {}


def test_occupancy_from_the_launch_configuration():
    size = {"registers": 64, "static_shared": 0, "dynamic_shared": 0}
    use = KernelUse(name="k", count=1, seconds=1e-5, grid=(64, 1, 1), block=(256, 1, 1), **size)
    trace = Trace(source="nsys", executions=1, wall=2e-5, busy=1e-5, span=1e-5, kernels=[use])
    found = of_trace(trace, (9, 0))
    assert found["occupancy_theoretical"] == 50
    assert (found["blocks_per_sm"], found["warps_per_sm"], found["threads_per_sm"]) == (4, 32, 1024)
    odd = trace.model_copy(update={"kernels": [use.model_copy(update={"block": (33, 1, 1), "registers": 16})]})
    found = of_trace(odd, (9, 0))
    assert (found["blocks_per_sm"], found["warps_per_sm"], found["threads_per_sm"]) == (32, 64, 32 * 33)
    assert not {"occupancy_theoretical", "blocks_per_sm"} & of_trace(trace).keys()
    unknown = trace.model_copy(update={"kernels": [use, use.model_copy(update={"registers": None})]})
    found = of_trace(unknown, (9, 0))
    assert "occupancy_theoretical" not in found and "registers" not in found
    assert found["device_busy"] == 50 and "launch_overhead" not in found
    assert of_trace(trace.model_copy(update={"launching": 5e-6}))["launch_overhead"] == pytest.approx(25)


def test_how_counters_combine():
    two = [(1.0, 3.0), (5.0, 1.0)]
    assert [combined(name, two) for name in ("fp32_flops", "registers", "occupancy")] == [6.0, 5.0, 2.0]
    for name in ("fp32_flops", "registers", "occupancy"):
        assert combined(name, []) is None and combined(name, [(1.0, 1.0), (None, 1.0)]) is None
        assert combined(name, [(float("inf"), 1.0)]) is None
    assert combined("occupancy", [(1.0, 0.0)]) is None


def test_a_range_that_no_limit_can_name_is_no_metric():
    ranges = [RangeUse(name=name, count=1, host=1e-5, device=1e-6) for name in ("encode", "two\nlines", "", " padded")]
    trace = Trace(source="nsys", executions=1, wall=2e-5, busy=1e-5, span=1e-5, ranges=ranges)
    assert {name for name in of_trace(trace) if name.startswith("range:")} == {"range:encode"}
    Profile.model_validate(Profile(metrics=of_trace(trace)).model_dump())
