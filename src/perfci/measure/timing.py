"""Under which timing mode a case is measured, and with how much of what: settled before its first pair, alike in
both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perfci.model.base import DeviceKind, Side
from perfci.model.plan import Schedule

TimingMode = Literal["auto", "rotating", "cold", "hot"]
Mode = Literal["cpu", "rotating", "cold", "hot"]

MODES: dict[DeviceKind, list[Mode]] = {"cpu": ["cpu"], "cuda": ["rotating", "cold", "hot"]}
ROTATION = 3
"""A `rotating` case walks through inputs of this many times the size of the L2, so that none is found there again."""
MOST_SETS = 256
"""Input sets at most. A case whose sets are so small that these fit into the L2 is measured with its inputs there."""
REPLAY = 300e-6
"""Seconds that a replay of a graph aims at: some hundred times what starting it costs."""
LONG_REPLAY = 2e-3
"""Seconds from which on a replay needs no other one before and behind those measured."""
MOST_EXECUTIONS = 1024
"""Executions in one graph at most."""
LONGEST_SAMPLE = 0.25
"""Seconds that a batch of executions on the CPU may take in the slower side."""
MEMORY_SHARE = 0.9
"""Share of the GPU's memory that two live workers may need together."""
CONTEXT = 600 * 2**20
"""Bytes of device memory that a CUDA context and the libraries' workspaces take besides tensors."""

SCHEDULES: dict[Mode, Schedule] = {
    # Some 100 ms of samples per worker and case: pairs then scatter by 0.3-1 % on an idle machine of two cores.
    "cpu": Schedule(placements=3, blocks=6, samples=5, sample_time=1e-3, block_time=6e-3),
    # 8 graphs a worker, as the noise of tests/data/h200 was measured with; a graph scatters as much as a placement.
    "rotating": Schedule(placements=2, blocks=4, samples=6, block_time=5e-3),
    "hot": Schedule(placements=2, blocks=4, samples=6, block_time=5e-3),
    # 8 placements of 14 samples: what the noise of `cold` was measured with.
    "cold": Schedule(placements=8, blocks=2, samples=7, block_time=50e-3),
}


@dataclass(frozen=True)
class Probe:
    """What one side's worker found out about a case before it is timed."""

    seconds: float
    """Of one execution: with the L2 flushed on a GPU, in a warm loop on the CPU."""
    settings: Mapping[str, Any]
    """Timer and library settings that the times depend on."""
    footprint: int = 0
    """Bytes of device memory that one set of inputs takes."""
    peak: int = 0
    """Bytes of device memory that the worker has needed at most."""
    graph_seconds: float | None = None
    """Of one execution in a CUDA graph; None where it was not captured."""
    refused: str = ""
    """Why it cannot be captured."""


@dataclass(frozen=True)
class Setup:
    """How a case is measured, in both sides."""

    mode: Mode
    batch: int
    """Executions in one sample: calls of a CPU batch, those of a CUDA graph, one under `cold`."""
    samples: int
    """Per block."""
    placements: int
    blocks: int
    """Per side and placement."""
    sets: int = 1
    """Input sets of one placement."""
    bracket: bool = True
    """Whether a graph is replayed before and behind the samples of a block too."""
    alternating: bool = False
    """Whether the workers of a pair live one after the other instead of together."""
    says: Mapping[str, Any] = field(default_factory=dict)
    """The timing mode as it stands in the results."""


@dataclass(frozen=True)
class Gpu:
    """What timing modes need to know of the GPU."""

    l2_bytes: int = 0
    memory_bytes: int = 0
    exclusive: bool = False
    """Whether it serves one process at a time (compute mode EXCLUSIVE_PROCESS)."""


class Refused(Exception):
    """A case cannot be measured under the timing mode that it asks for."""


def settle(device: DeviceKind, asked: TimingMode, probes: Mapping[Side, Probe], gpu: Gpu, threads: int) -> Setup:
    """How to measure a case of which these sides work. Raises Refused."""
    any_side = next(iter(probes.values()))
    says: dict[str, Any] = {**any_side.settings, "threads": threads}
    if device == "cpu":
        return _cpu(probes, says)
    refusals = [(name, probe.refused) for name, probe in probes.items() if probe.refused]
    mode: Mode = "cold" if asked == "cold" or (asked == "auto" and refusals) else "rotating"
    if asked == "hot":
        mode = "hot"
    if refusals:
        name, text = refusals[0]
        because = f"{name} cannot be captured into a CUDA graph: {text}"
        if mode != "cold":
            raise Refused(f"timing mode {asked}: {because}")
        if asked == "auto":
            says["because"] = because
    alternating = _must_alternate(probes, gpu, mode)
    if alternating:
        says["sides"] = alternating
    schedule = SCHEDULES[mode]
    if mode == "cold":
        says.update(name="cold", cache="L2 flushed")
        slowest = max(probe.seconds for probe in probes.values())
        samples = _clamp(schedule.block_time / slowest, 1, schedule.samples)
        return _setup(mode, schedule, 1, samples, 1, bool(alternating), says)
    sets = rotation_sets(max(probe.footprint for probe in probes.values()), gpu.l2_bytes) if mode == "rotating" else 1
    times = [probe.graph_seconds or probe.seconds for probe in probes.values()]
    walks = _clamp(REPLAY / (min(times) * sets), 1, max(1, MOST_EXECUTIONS // sets))
    executions = sets * walks
    footprint = min(probe.footprint for probe in probes.values())
    says.update(name=mode, cache=_cache(mode, sets, footprint, gpu.l2_bytes), executions_per_graph=executions)
    if mode == "rotating":
        says.update(sets=sets, rotated_bytes=sets * footprint)
    samples = _clamp(schedule.block_time / (max(times) * executions), 2, schedule.samples)
    bracket = max(times) * executions < LONG_REPLAY
    return replace(_setup(mode, schedule, executions, samples, sets, bool(alternating), says), bracket=bracket)


def _setup(
    mode: Mode, schedule: Schedule, batch: int, samples: int, sets: int, alternating: bool, says: dict[str, Any]
) -> Setup:
    return Setup(mode, batch, samples, schedule.placements, schedule.blocks, sets, alternating=alternating, says=says)


def _cpu(probes: Mapping[Side, Probe], says: dict[str, Any]) -> Setup:
    """Both sides repeat alike: the faster one for a whole sample time, a much slower one never for long."""
    schedule = SCHEDULES["cpu"]
    times = [probe.seconds for probe in probes.values()]
    batch = max(1, min(math.ceil(schedule.sample_time / min(times)), int(LONGEST_SAMPLE / max(times))))
    samples = _clamp(schedule.block_time / (max(times) * batch), 1, schedule.samples)
    says.update(name="cpu", cache="warm")
    return _setup("cpu", schedule, batch, samples, 1, False, says)


def rotation_sets(footprint: int, l2_bytes: int) -> int:
    """How many input sets of `footprint` bytes pass ROTATION times the L2; one where nothing was drawn there."""
    if footprint <= 0:
        return 1
    return _clamp(math.ceil(ROTATION * l2_bytes / footprint), 1, MOST_SETS)


def _cache(mode: Mode, sets: int, footprint: int, l2_bytes: int) -> str:
    if mode == "hot":
        return "hot: one input set"
    if footprint * sets >= ROTATION * l2_bytes:
        return f"input sets rotated, {ROTATION} × L2 or more"
    return f"input sets rotated, {footprint * sets / max(l2_bytes, 1):.2g} × L2: inputs may stay in the L2"


def _must_alternate(probes: Mapping[Side, Probe], gpu: Gpu, mode: Mode) -> str:
    """Why two workers cannot live together on the GPU; empty where they can."""
    if len(probes) < 2:
        return ""
    if gpu.exclusive:
        return "one after the other: the GPU serves one process at a time (compute mode EXCLUSIVE_PROCESS)"
    sets = rotation_sets(max(p.footprint for p in probes.values()), gpu.l2_bytes) if mode == "rotating" else 1
    needed = [probe.peak + (sets - 1) * probe.footprint + CONTEXT for probe in probes.values()]
    if gpu.memory_bytes and sum(needed) > MEMORY_SHARE * gpu.memory_bytes:
        return f"one after the other: together they need {sum(needed) / 1e9:.3g} GB of device memory"
    return ""


def _clamp(value: float, low: int, high: int) -> int:
    return max(low, min(high, round(value)))
