"""How a case is measured follows from what its workers found out."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.measure.timing import (
    HOST_EXECUTIONS,
    HOST_SHARE,
    LEAST_PAIR,
    LONGEST_SAMPLE,
    MOST_HOLD,
    MOST_SETS,
    REPLAY,
    ROTATION,
    SCHEDULES,
    Probe,
    Refused,
    Setup,
    settle,
)
from perfci.model.fingerprint import GpuFacts, NvmlFacts
from perfci.model.timing import TimingMode
from perfci.worker import declare, serve

H200 = GpuFacts(
    multiprocessors=132, capability="9.0", l2_bytes=62_914_560, memory_bytes=150_000_000_000, empty_pair_seconds=1e-6
)
SETTINGS = {"timer": "cuda events", "tf32": False}
MIB = 2**20


def gpu_probe(seconds: float = 1e-5, footprint: int = 4 * MIB, refused: str = "", peak: int = 0) -> Probe:
    captured = None if refused else seconds
    return Probe(seconds, SETTINGS, footprint, peak or footprint, captured, refused)


@given(st.floats(1e-8, 100), st.floats(1e-8, 100))
def test_cpu_batches_are_alike_and_bounded(base: float, head: float) -> None:
    """Both sides repeat alike: the faster one for a whole sample time, the slower one never for long."""
    setup, _ = settle("auto", {"base": Probe(base, {}), "head": Probe(head, {})}, None, 1)
    schedule = SCHEDULES["cpu"]
    assert setup.mode == "cpu"
    assert 1 <= setup.samples <= schedule.samples
    assert setup.batch == 1 or setup.batch * max(base, head) <= LONGEST_SAMPLE
    assert setup.batch == 1 or setup.batch * min(base, head) < 2 * schedule.sample_time + min(base, head)
    if max(base, head) < 10 * min(base, head) and max(base, head) < 1e-3:
        assert setup.batch * min(base, head) >= schedule.sample_time * 0.999


@given(st.floats(1e-6, 1e-1), st.integers(1, 2**36))
def test_rotating_rotates_past_the_l2(seconds: float, footprint: int) -> None:
    """The graph runs every input set equally often; the sets pass three times the L2 unless they are too many."""
    setup, said = settle("auto", {"head": gpu_probe(seconds, footprint)}, H200, 1)
    assert setup.mode == "rotating"
    assert setup.batch % setup.sets == 0
    assert 1 <= setup.sets <= MOST_SETS <= serve.SETS_APART
    assert setup.sets == MOST_SETS or setup.sets * footprint >= (ROTATION - 0.5 * (setup.sets > 1)) * H200.l2_bytes
    assert setup.batch * seconds >= REPLAY / 2 or setup.batch > 512
    assert "may stay" in said["head"].cache or setup.sets * footprint >= ROTATION * H200.l2_bytes


def test_a_case_without_inputs_of_its_own_has_one_set() -> None:
    assert settle("rotating", {"head": gpu_probe(footprint=0)}, H200, 1)[0].sets == 1


def test_auto_is_cold_where_one_side_cannot_be_captured() -> None:
    """Both sides are measured alike, and the timing mode says why."""
    probes = {"base": gpu_probe(), "head": gpu_probe(refused="operation not permitted when stream is capturing")}
    setup, said = settle("auto", probes, H200, 1)
    assert setup.mode == "cold"
    assert setup.batch == 1
    assert said["base"] == said["head"]
    assert said["base"].because.startswith("head cannot be captured into a CUDA graph: operation not permitted")


@pytest.mark.parametrize(("most", "mode"), [(16, "cold"), (50, "rotating")])
def test_a_script_that_would_run_for_many_input_sets_is_cold(most: int, mode: str) -> None:
    probe = replace(gpu_probe(), most_sets=most, room=64 * MIB)
    made, said = settle("auto", {"base": probe, "head": probe}, H200, 1)
    assert made.mode == said["base"].mode == mode
    assert (said["base"].because == "each of 45 input sets would be a run of its script") == (mode == "cold")
    assert settle("rotating", {"base": probe, "head": probe}, H200, 1)[0].sets == min(most, 45)


@pytest.mark.parametrize("asked", ["rotating", "hot"])
def test_a_timing_mode_that_was_asked_for_is_not_replaced(asked: str) -> None:
    with pytest.raises(Refused, match=f"timing mode {asked}: head cannot be captured"):
        settle(asked, {"head": gpu_probe(refused="it synchronises")}, H200, 1)  # type: ignore[arg-type]


def test_workers_know_the_timing_modes() -> None:
    assert get_args(TimingMode) == declare.MODES
    with pytest.raises(ValueError, match="warm"):
        serve._sampler("warm", [], 0)


def test_cold_and_hot_on_request() -> None:
    assert settle("cold", {"head": gpu_probe()}, H200, 1)[0].mode == "cold"
    hot, _ = settle("hot", {"head": gpu_probe()}, H200, 1)
    assert (hot.mode, hot.sets) == ("hot", 1)


def test_workers_that_do_not_fit_together_alternate_and_say_so() -> None:
    large = gpu_probe(1e-3, 70_000_000_000, peak=80_000_000_000)
    setup, said = settle("auto", {"base": large, "head": large}, H200, 1)
    assert setup.alternating
    assert said["head"].alternating.startswith("one after the other: together they need 161 GB")
    assert not settle("auto", {"head": large}, H200, 1)[0].alternating
    exclusive = H200.model_copy(update={"nvml": NvmlFacts(compute_mode="exclusive")})
    small, said = settle("auto", {"base": gpu_probe(), "head": gpu_probe()}, exclusive, 1)
    assert small.alternating
    assert "EXCLUSIVE_PROCESS" in said["base"].alternating


@settings(max_examples=200)
@given(
    gpu=st.floats(1e-6, 1.0), hosts=st.lists(st.floats(1e-6, 0.5), min_size=1, max_size=2), planned=st.floats(0.0, 5.0)
)
def test_host_times_take_their_share_of_a_pair_or_one_execution_of_each_side(
    gpu: float, hosts: list[float], planned: float
) -> None:
    probes = [Probe(gpu, {}, graph_seconds=gpu, host=host) for host in hosts]
    setup = Setup("rotating", 1, 1, 1, 1, seconds=planned).with_host(probes)
    assert setup.hold >= min(MOST_HOLD, 1.5 * max(hosts)) and 1 <= setup.host <= HOST_EXECUTIONS
    taken = 2 * setup.host * (gpu + setup.hold)
    assert setup.host == 1 or taken <= 1.5 * HOST_SHARE * max(LEAST_PAIR, planned), "rounded to whole executions"
