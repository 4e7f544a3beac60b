"""One round: a launch of each arm, block by block in turns, over every case that still needs pairs."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfci.measure.prepare import ArmWork
from perfci.model.base import ArmName
from perfci.model.plan import Schedule
from perfci.model.results import Case, Clock, Pair, Reason
from perfci.stats.describe import trimmed_mean
from perfci.system.process import Died, Launch, Parent

Samples = dict[ArmName, list[list[float]]]
LONGEST_SAMPLE = 0.25
"""Seconds."""


@dataclass
class Bench:
    """What rounds of one device need: the arms, their parent, cores and time-outs."""

    parent: Parent
    arms: Mapping[ArmName, ArmWork]
    schedule: Schedule
    seed: int
    threads: int
    cores: list[int]
    timeout: float
    forbidden: list[str]
    logs: Path
    batches: dict[str, int] = field(default_factory=dict)
    """Case key → calls per timed batch, the same in both arms."""
    block_samples: dict[str, int] = field(default_factory=dict)
    """Case key → samples per block."""

    def launch(self, name: ArmName) -> Launch:
        """A fresh launch of one arm with its suite imported. Raises Died."""
        arm = self.arms[name]
        launch = self.parent.launch(arm.arena(self.threads, self.cores), self.logs / f"{name}.log")
        try:
            launch.ask("load", max(self.timeout, 60.0), suite=arm.suite, forbidden=self.forbidden)
        except Died:
            launch.kill()
            raise
        return launch

    def plan_batch(self, key: str, estimates: Sequence[float], device: str) -> None:
        """Fix batch and block sizes from the estimated seconds of one execution in each arm.

        Both arms get the same sizes. The faster arm's batches last `sample_time` at least; a much slower arm is not
        made to repeat its execution for longer than LONGEST_SAMPLE.
        """
        schedule, shortest, longest = self.schedule, min(estimates), max(estimates)
        batch = 1
        if device == "cpu":
            batch = max(1, min(math.ceil(schedule.sample_time / shortest), int(LONGEST_SAMPLE / longest)))
        self.batches[key] = batch
        self.block_samples[key] = max(1, min(schedule.samples, int(schedule.block_time / (longest * batch))))


@dataclass
class Outcome:
    """What became of one case in one round."""

    case: Case
    pair: Pair | None = None
    samples: Samples = field(default_factory=dict)
    failures: dict[ArmName, Reason] = field(default_factory=dict)


def run_round(bench: Bench, cases: Sequence[Case], index: int, done: Callable[[Outcome], None]) -> None:
    """Measure one pair of each case. A case that breaks a launch costs that case; the rest goes on in new launches.

    `done` is called as each case ends, so that nothing finished is lost.
    """
    rng = random.Random(f"{bench.seed}/round/{index}")
    todo = list(cases)
    rng.shuffle(todo)
    launches: dict[ArmName, Launch] = {}
    order: list[ArmName] = []
    with ExitStack() as stack:
        stack.callback(_close_all, launches)
        for case in todo:
            if not launches or not all(launch.alive for launch in launches.values()):
                _close_all(launches)
                order = list(bench.arms)
                rng.shuffle(order)
                try:
                    for name in order:
                        launches[name] = bench.launch(name)
                except Died as died:
                    done(Outcome(case, failures={name: died.reason}))
                    continue
            done(_measure(bench, case, launches, rng, order[0]))


def _close_all(launches: dict[ArmName, Launch]) -> None:
    for launch in launches.values():
        launch.close()
    launches.clear()


def _measure(
    bench: Bench, case: Case, launches: Mapping[ArmName, Launch], rng: random.Random, first: ArmName
) -> Outcome:
    """One case in a live launch pair: placements, blocks in random order, a last check."""
    outcome = Outcome(case)
    takes_part = [name for name in launches if case.arms[name].status == "ok"]
    samples: Samples = {name: [] for name in takes_part}
    cycles: Samples = {name: [] for name in takes_part}
    blocks: dict[ArmName, list[tuple[float, float | None]]] = {name: [] for name in takes_part}
    gaps = dict.fromkeys(takes_part, 0)
    name = takes_part[0]
    try:
        for number in range(bench.schedule.placements):
            # A placement is drawn anew in every pair, and alike in both arms.
            seed = rng.getrandbits(62)
            order = list(takes_part)
            rng.shuffle(order)
            for name in order:
                fields = _fields(case, name)
                launches[name].ask("open", bench.timeout, seed=seed, placement=number, **fields)
                samples[name].append([])
                cycles[name].append([])
            for name in _turns(bench.schedule.blocks, list(takes_part), rng):
                block = launches[name].ask(
                    "block",
                    bench.timeout,
                    batch=bench.batches[case.key],
                    samples=bench.block_samples[case.key],
                )
                samples[name][-1] += block["times"]
                gaps[name] += block["drained"]
                blocks[name].append((launch_value([block["times"]]), block["hertz"]))
                if block["hertz"] is not None:
                    cycles[name][-1] += [time * block["hertz"] for time in block["times"]]
            last = number == bench.schedule.placements - 1
            for name in order:
                check = _tolerance_arm(case).check
                closed = launches[name].ask("close", bench.timeout, verify=last, rtol=check.rtol, atol=check.atol)
                if not closed["ok"]:
                    text = f"after timing: {closed['text']}"
                    outcome.failures[name] = Reason(kind=closed["kind"], text=text[:1000])
    except Died as died:
        reason = died.reason.model_copy(update={"log": f"logs/{launches[name].log.name}"})
        outcome.failures[name] = reason
    if not outcome.failures:
        outcome.samples = samples
        outcome.pair = Pair(
            index=len(case.pairs),
            first=first,
            values={name: _values(samples[name], cycles[name]) for name in samples},
            samples={name: sum(map(len, samples[name])) for name in samples},
            spread={name: _spread(samples[name]) for name in samples},
            clock=_clocks(blocks),
            gaps=gaps if any(gaps.values()) else {},
        )
    return outcome


def _values(samples: list[list[float]], cycles: list[list[float]]) -> dict[str, float]:
    """Time of a launch, and its cycles where the clock was measured beside every sample."""
    values = {"time": launch_value(samples)}
    if [len(placement) for placement in cycles] == [len(placement) for placement in samples]:
        values["cycles"] = launch_value(cycles)
    return values


def _clocks(blocks: Mapping[ArmName, Sequence[tuple[float, float | None]]]) -> dict[ArmName, Clock]:
    """The clock of each launch from (block time in seconds, clock in hertz); empty where a block lacks either."""
    clocks = {}
    for name, found in blocks.items():
        if not found or not all(_sound([time, hertz or 0.0]) for time, hertz in found):
            return {}
        times, hertz = ([math.log(value or math.nan) for value in column] for column in zip(*found, strict=True))
        centre, mean = math.fsum(times) / len(times), math.fsum(hertz) / len(hertz)
        clocks[name] = Clock(
            hertz=math.exp(mean),
            blocks=len(found),
            variance=math.fsum((value - mean) ** 2 for value in hertz),
            covariance=math.fsum((t - centre) * (f - mean) for t, f in zip(times, hertz, strict=True)),
        )
    return clocks


def _turns(blocks: int, names: list[ArmName], rng: random.Random) -> list[ArmName]:
    """The order of blocks: in each couple a coin decides who goes first, and the next couple mirrors it (A B B A)."""
    turns: list[ArmName] = []
    for _ in range(blocks // 2):
        rng.shuffle(names)
        turns += [*names, *reversed(names)]
    return turns


def _fields(case: Case, name: ArmName) -> dict[str, Any]:
    arm = case.arms[name]
    return {"kernel": case.kernel, "params": arm.params, "device": case.device}


def _tolerance_arm(case: Case) -> Any:
    """Base's tolerances hold for both arms where base has the case."""
    base = case.arms.get("base")
    return base if base is not None and base.status == "ok" else case.arms["head"]


def launch_value(placements: Sequence[Sequence[float]]) -> float:
    """Value of a launch, in the samples' unit: the mean over placements of trimmed means of their samples.

    NaN where a sample is no finite positive number: judged `invalid`, never averaged away.
    """
    if not placements or any(not _sound(samples) for samples in placements):
        return math.nan
    return math.fsum(trimmed_mean(samples) for samples in placements) / len(placements)


def _sound(samples: Sequence[float]) -> bool:
    return len(samples) > 0 and all(math.isfinite(value) and value > 0 for value in samples)


def _spread(placements: Sequence[Sequence[float]]) -> float:
    """Relative standard deviation of all samples of a launch."""
    flat = [value for samples in placements for value in samples]
    if len(flat) < 2 or not _sound(flat):
        return 0.0
    mean = math.fsum(flat) / len(flat)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / (len(flat) - 1)) / mean
