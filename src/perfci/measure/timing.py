"""A case's timing mode and amounts, settled before its first pair, the same in base and head."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from perfci.model.base import DeviceKind, Side
from perfci.model.fingerprint import GpuFacts
from perfci.model.plan import Schedule
from perfci.model.timing import Mode, Setting, Timing, TimingMode

MODES: dict[DeviceKind, list[Mode]] = {"cpu": ["cpu"], "cuda": ["rotating", "cold", "hot"]}
ROTATION = 3
"""Inputs of a `rotating` case have this many times the L2's size."""
MOST_SETS = 256
"""Sets of inputs at most. A case with this many inside the L2 is measured with its inputs there."""
REPLAY = 300e-6
"""Seconds to aim at: some hundred times a replay's start."""
LONG_REPLAY = 2e-3
"""Seconds of a replay that needs no others before and behind."""
MOST_EXECUTIONS = 1024
"""In one graph."""
LONGEST_SAMPLE = 0.25
"""Seconds of a CPU batch in the slower side."""
MEMORY_SHARE = 0.9
"""Share of the GPU's memory for two workers."""
HOST_SHARE = 0.03
"""Of a pair, for host times."""
HOST_EXECUTIONS, HOST_ALONE = 8, 40
"""Of each side in a pair whose host time is taken; of one that takes nothing else."""
LEAST_PAIR = 0.3
"""Seconds of a planned pair of replayed graphs, with what opens and closes it (H200: 10 cases took 0.66 s each)."""
HOLD, LEAST_HOLD, MOST_HOLD = 1.5, 50e-6, 50e-3
"""The GPU is held back for this many times an execution's host time, within these seconds."""
CONTEXT = 600 * 2**20
"""Bytes of a CUDA context and of libraries."""

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
    """One side's facts before timing."""

    seconds: float
    """Of one execution: with the L2 flushed on a GPU, in a warm loop on the CPU."""
    settings: Mapping[str, Setting]
    """Settings that times depend on."""
    footprint: int = 0
    peak: int = 0
    graph_seconds: float | None = None
    """Of one execution in a CUDA graph, or None."""
    refused: str = ""
    clocks: str | None = None
    """The GPU's SM clock in words."""
    versus: Literal["", "graph", "cold"] = ""
    """How its alternative can be timed."""
    room: int = 0
    """Bytes of memory that one more set takes, with what it makes besides its inputs."""
    most_sets: int = MOST_SETS
    host: float | None = None
    """Seconds of the host for one execution; None on a CPU."""
    host_waits: bool = False
    """It lasts until the GPU is done with what lies before."""


@dataclass(frozen=True)
class Setup:
    """How a case is measured, in base and head."""

    mode: Mode
    batch: int
    """Executions in one sample."""
    samples: int
    placements: int
    blocks: int
    sets: int = 1
    """Input sets of one placement."""
    bracket: bool = True
    """A graph is replayed around a block's samples, too."""
    alternating: bool = False
    """A pair's workers live one after the other."""
    seconds: float = 0.0
    """Of one block of each side together."""
    pairs: int = 0
    """Pairs of workers that fit into the GPU's memory."""
    versus: Mode | None = None
    """Timing mode of the case beside its alternative, in head."""
    host: int = 0
    """Executions of each side whose host time a pair takes."""
    hold: float = 0.0
    """Seconds that a kernel spins before each of them."""

    @property
    def planned(self) -> float:
        """Seconds of a pair's samples."""
        return self.placements * self.blocks * self.seconds

    @property
    def least(self) -> float:
        """Seconds of the smallest pair's samples."""
        return self.smallest().planned

    def smallest(self) -> "Setup":
        """Return the smallest pair: one placement, two blocks."""
        return replace(self, placements=1, blocks=2)

    def of_host(self) -> "Setup":
        """Return the pair of host times alone."""
        host = HOST_ALONE if self.host > 1 else self.host
        return replace(self, placements=1, blocks=0, versus=None, host=host, sets=min(self.sets, HOST_ALONE))

    def with_host(self, probes: Iterable[Probe]) -> "Setup":
        """Return the pair that takes host times, too, within `HOST_SHARE` of it, but one of each side at least."""
        known = [probe for probe in probes if probe.host is not None]
        hold = min(MOST_HOLD, max(LEAST_HOLD, HOLD * max(probe.host or 0.0 for probe in known)))
        each = max(probe.graph_seconds or probe.seconds for probe in known) + hold
        executions = HOST_SHARE * max(LEAST_PAIR, self.planned) / (2 * each)
        return replace(self, host=_clamp(executions, 1, HOST_EXECUTIONS), hold=hold)


class Refused(Exception):
    """A case cannot be measured so."""


def settle(
    asked: TimingMode, probes: Mapping[Side, Probe], gpu: GpuFacts | None, threads: int
) -> tuple[Setup, dict[Side, Timing]]:
    """Fix how a case is measured. Raises Refused. `gpu`: None on the CPU."""
    setup, said = _cpu(probes) if gpu is None else _gpu(asked, probes, gpu)
    executions = math.fsum(probe.graph_seconds or probe.seconds for probe in probes.values())
    setup = replace(setup, seconds=executions * setup.batch * setup.samples)
    if (head := probes.get("head")) is not None and head.versus:
        # Its alternative may take as long as the case itself: nobody knows before.
        more = 2 * (head.graph_seconds or head.seconds) * setup.batch * setup.samples
        mode: Mode = "cold" if head.versus == "cold" else setup.mode
        setup = replace(setup, versus=mode, seconds=setup.seconds + more)
    said.threads = threads
    own = {name: {"settings": dict(probe.settings), "clocks": probe.clocks} for name, probe in probes.items()}
    return setup, {name: said.model_copy(update=update) for name, update in own.items()}


def _gpu(asked: TimingMode, probes: Mapping[Side, Probe], gpu: GpuFacts) -> tuple[Setup, Timing]:
    refusals = [(name, probe.refused) for name, probe in probes.items() if probe.refused]
    mode: Mode = asked if asked != "auto" else "cold" if refusals else "rotating"
    said = Timing(mode=mode)
    if refusals:
        name, text = refusals[0]
        because = f"{name} cannot be captured into a CUDA graph: {text}"
        if mode != "cold":
            raise Refused(f"timing mode {asked}: {because}")
        if asked == "auto":
            said.because = because
    sets = _sets(probes, gpu) if mode == "rotating" else 1
    most = min(_most_sets(probe, gpu) for probe in probes.values())
    if sets > most and asked == "auto":
        mode = said.mode = "cold"
        said.because = f"each of {sets} input sets would be a run of its script"
    sets = min(sets, most)
    said.alternating = _must_alternate(probes, gpu, mode)
    alternating, schedule = said.alternating is not None, SCHEDULES[mode]
    if mode == "cold":
        said.cache = "L2 flushed"
        slowest = max(probe.seconds for probe in probes.values())
        samples = _clamp(schedule.block_time / slowest, 1, schedule.samples)
        return Setup(mode, 1, samples, schedule.placements, schedule.blocks, alternating=alternating), said
    times = [probe.graph_seconds or probe.seconds for probe in probes.values()]
    walks = _clamp(REPLAY / (min(times) * sets), 1, max(1, MOST_EXECUTIONS // sets))
    executions = sets * walks
    footprint = min(probe.footprint for probe in probes.values())
    said.cache, said.executions_per_graph = _cache(mode, sets, footprint, gpu.l2_bytes), executions
    if mode == "rotating":
        said.sets, said.rotated_bytes = sets, sets * footprint
    samples = _clamp(schedule.block_time / (max(times) * executions), 2, schedule.samples)
    bracket = max(times) * executions < LONG_REPLAY
    pairs = int(MEMORY_SHARE * gpu.memory_bytes // _needed(probes, gpu, mode))
    return Setup(
        mode, executions, samples, schedule.placements, schedule.blocks, sets, bracket=bracket, alternating=alternating,
        pairs=pairs,
    ), said  # fmt: skip


def _cpu(probes: Mapping[Side, Probe]) -> tuple[Setup, Timing]:
    """The faster one repeats for a whole sample time, a much slower one never for long."""
    schedule = SCHEDULES["cpu"]
    times = [probe.seconds for probe in probes.values()]
    batch = max(1, min(math.ceil(schedule.sample_time / min(times)), int(LONGEST_SAMPLE / max(times))))
    samples = _clamp(schedule.block_time / (max(times) * batch), 1, schedule.samples)
    setup = Setup("cpu", batch, samples, schedule.placements, schedule.blocks)
    return setup, Timing(mode="cpu", cache="warm")


def rotation_sets(footprint: int, l2_bytes: int) -> int:
    """Return how many input sets exceed ROTATION times the L2; 1 where nothing was drawn there."""
    if footprint <= 0:
        return 1
    return _clamp(math.ceil(ROTATION * l2_bytes / footprint), 1, MOST_SETS)


def _cache(mode: Mode, sets: int, footprint: int, l2_bytes: int) -> str:
    if mode == "hot":
        return "hot: one input set"
    if footprint * sets >= ROTATION * l2_bytes:
        return f"input sets rotated, {ROTATION} × L2 or more"
    return f"input sets rotated, {footprint * sets / max(l2_bytes, 1):.2g} × L2: inputs may stay in the L2"


def _must_alternate(probes: Mapping[Side, Probe], gpu: GpuFacts, mode: Mode) -> str | None:
    """None where two workers fit on the GPU."""
    if len(probes) < 2:
        return None
    if gpu.exclusive:
        return "one after the other: the GPU serves one process at a time (compute mode EXCLUSIVE_PROCESS)"
    needed = _needed(probes, gpu, mode)
    if needed > MEMORY_SHARE * gpu.memory_bytes:
        return f"one after the other: together they need {needed / 1e9:.3g} GB of device memory"
    return None


def _needed(probes: Mapping[Side, Probe], gpu: GpuFacts, mode: Mode) -> float:
    sets = min(_sets(probes, gpu), *(_most_sets(p, gpu) for p in probes.values())) if mode == "rotating" else 1
    return sum(p.peak + (sets - 1) * max(p.footprint, p.room) + CONTEXT for p in probes.values())


def _most_sets(probe: Probe, gpu: GpuFacts) -> int:
    """Of a script: as many as fit, each with all that a run makes."""
    if probe.room <= probe.footprint:
        return probe.most_sets
    free = MEMORY_SHARE * gpu.memory_bytes - CONTEXT - probe.peak
    return max(1, min(probe.most_sets, 1 + int(max(0.0, free) // probe.room)))


def _sets(probes: Mapping[Side, Probe], gpu: GpuFacts) -> int:
    return rotation_sets(max(probe.footprint for probe in probes.values()), gpu.l2_bytes)


def _clamp(value: float, low: int, high: int) -> int:
    return max(low, min(high, round(value)))
