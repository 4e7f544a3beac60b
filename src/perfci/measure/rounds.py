"""A round: a worker of each side, block by block in turns, over every case that needs pairs."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar

from perfci.measure import second_clock
from perfci.measure.bench import Bench, Beside, Block, Closed, Hosted, Warm, Warmed, case_fields
from perfci.measure.timing import SCHEDULES, Setup
from perfci.model.base import Side
from perfci.model.metrics import HOST_TIME
from perfci.model.plan import Plan
from perfci.model.results import Case, Choice, Clock, Pair, Phase, Reason
from perfci.model.text import listed
from perfci.model.timing import GRAPH_MODES
from perfci.stats.components import Blocks, scatter_of
from perfci.stats.describe import trimmed_mean
from perfci.system.child import Died
from perfci.system.starter import Worker, close_all

Samples = dict[Side, list[list[float]]]
N = TypeVar("N", bound=str)
VERIFIED = 0.25
"""Share of later pairs with results checked again: a check costs as much as a short case's samples, and a kernel right
only before timing is wrong in every pair."""

MOST_CHOICES = 64
"""Configurations of tuners that a pair keeps of a side."""


@dataclass
class PairOutcome:
    """The outcome of one case in one round."""

    case: Case
    pair: Pair | None = None
    samples: Samples = field(default_factory=dict)
    failures: dict[Side, Reason] = field(default_factory=dict)


def run_round(
    bench: Bench,
    cases: Sequence[Case],
    index: int,
    done: Callable[[PairOutcome], None],
    deadline: float = math.inf,
) -> None:
    """Measure one pair of each case. One that breaks a worker costs that case; the rest goes on in new workers.

    `done` is called as each case ends, so that nothing finished is lost. `deadline`: monotonic clock, no case begins
    behind it.
    """
    rng = random.Random(f"{bench.lot}/round/{index}")
    todo = list(cases)
    rng.shuffle(todo)
    sides = [name for name in bench.sides if any(case.measured(name) for case in cases)]
    workers, bench.spare = bench.spare, {}
    order, fresh = list(workers), True
    with ExitStack() as stack:
        stack.callback(end_workers, bench, workers)
        for case in todo:
            if time.monotonic() >= deadline:
                break
            if bench.setups[case.key].alternating:
                end_workers(bench, workers)  # neither memory nor an exclusive device is left to them
                done(_alternate(bench, case, rng))
                continue
            if not all(name in workers and workers[name].alive for name in sides):
                end_workers(bench, workers)
                order, drawn, fresh = list(sides), rng.getrandbits(62), True
                rng.shuffle(order)
                try:
                    for name in order:
                        workers[name] = bench.begin(name, beside=True, seed=drawn)
                    for name in order:
                        bench.loaded(workers[name])
                except Died as died:
                    done(PairOutcome(case, failures={name: died.reason}))
                    continue
            taking = _Taking(bench, case, order, verify=_verified(case), fresh=fresh)
            taking.take(workers, together(bench.setups[case.key], taking.names, rng))
            fresh = False
            done(taking.outcome())
        if workers and all(worker.alive for worker in workers.values()) and time.monotonic() < deadline:
            _renew(bench, workers, rng)


def _renew(bench: Bench, workers: dict[Side, Worker], rng: random.Random) -> None:
    """Nothing is timed now, nor before all are done."""
    order, drawn = [name for name in bench.sides if name in workers], rng.getrandbits(62)
    rng.shuffle(order)
    for worker in workers.values():
        worker.dismiss()
    try:
        for name in order:
            bench.spare[name] = bench.begin(name, beside=True, seed=drawn)
        for name in order:
            bench.loaded(bench.spare[name])
    except Died:
        end_workers(bench, bench.spare)  # the next round's workers will say why
    end_workers(bench, workers)


def _verified(case: Case) -> bool:
    """Others check by a coin that no worker foresees, as it could one drawn from the seed."""
    return not case.pairs or random.SystemRandom().random() < VERIFIED


def end_workers(bench: Bench, workers: dict[Side, Worker]) -> None:
    """End all workers at a time."""
    with bench.costs.phase("close"):
        close_all(workers.values())  # releasing a GPU takes a worker some 150 ms
    workers.clear()


def _alternate(bench: Bench, case: Case, rng: random.Random) -> PairOutcome:
    order = list(bench.sides)
    rng.shuffle(order)
    taking = _Taking(bench, case, order, verify=_verified(case))
    setup = bench.setups[case.key]
    seeds = [rng.getrandbits(62) for _ in range(setup.placements)]
    for name in taking.names:
        start = time.monotonic()
        try:
            worker = bench.loaded(bench.begin(name, seed=seeds[0]))
        except Died as died:
            taking.failures[name] = died.reason
            break
        taking.seconds["first"] += time.monotonic() - start
        taking.take({name: worker}, alone(setup, name, seeds))
        worker.close()
        if taking.failures:
            break
    return taking.outcome()


_Op = Literal["open", "warm", "block", "host", "versus", "close"]
_PHASES: dict[_Op, Phase] = {
    "open": "open",
    "warm": "samples",
    "block": "samples",
    "host": "samples",
    "versus": "samples",
    "close": "close",
}


_KINDS: dict[_Op, str] = {"versus": "block", "warm": "block"}


class Step(NamedTuple):
    """One request to one worker."""

    op: _Op
    side: Side
    seed: int = 0
    placement: int = 0
    last: bool = False


def together(setup: Setup, names: Sequence[Side], rng: random.Random) -> Iterator[Step]:
    """Yield placements of base and head side by side: opened in random order, blocks in turns.

    Each pair draws a placement anew, the same in both.
    """
    for number in range(setup.placements):
        seed = rng.getrandbits(62)
        order = list(names)
        rng.shuffle(order)
        yield from (Step("open", name, seed, number) for name in order)
        yield from _blocks(setup, _turns(setup.blocks, list(names), rng))
        if setup.host and number == setup.placements - 1:
            turns = _turns(2, list(names), rng) if setup.host > 1 else rng.sample(names, len(names))
            yield from (Step("host", name, seed) for name in turns)
        if setup.versus and "head" in names:  # behind what base and head are compared by
            yield Step("versus", "head", seed)
        yield from (Step("close", name, last=number == setup.placements - 1) for name in order)


def _blocks(setup: Setup, turns: Sequence[Side]) -> Iterator[Step]:
    for name in turns:
        if setup.mode == "cpu":  # in a request of its own: the second clock reads what is timed
            yield Step("warm", name)
        yield Step("block", name)


def alone(setup: Setup, name: Side, seeds: Sequence[int]) -> Iterator[Step]:
    """Yield all placements of one side."""
    for number, seed in enumerate(seeds):
        yield Step("open", name, seed, number)
        yield from _blocks(setup, [name] * setup.blocks)
        if setup.host and number == setup.placements - 1:
            yield from (Step("host", name, seed) for _ in range(min(2, setup.host)))
        if setup.versus and name == "head":
            yield Step("versus", name, seed)
        yield Step("close", name, last=number == setup.placements - 1)


class _Taking:
    def __init__(self, bench: Bench, case: Case, order: Sequence[Side], *, verify: bool, fresh: bool = False) -> None:
        """`fresh`: the workers have measured nothing yet."""
        self.bench, self.case, self.setup, self.fresh = bench, case, bench.setups[case.key], fresh
        self.names = [name for name in order if case.sides[name].status == "ok" and case.measured(name)]
        self.first, self.verify = order[0], verify
        self.blocks: dict[Side, list[list[Block]]] = {name: [] for name in self.names}
        self.failures: dict[Side, Reason] = {}
        self.seconds = dict.fromkeys(("first", "open", "block", "close"), 0.0)
        self.versus: dict[str, list[list[float]]] = {"own": [], "other": []}
        self.hosts: dict[Side, list[float]] = {}
        self.readings: dict[Side, list[second_clock.Reading]] = {}
        self.refused = ""
        self.tuners: dict[Side, str] = {}
        self.choices: dict[Side, list[Choice]] = {}
        self.untuned = all(case.sides[name].tuner == "" for name in self.names)
        """A tuner's choice would depend on the other side's work."""
        self.lost = False
        """A worker gave no answer: nothing more is asked."""
        self._number = count()

    def take(self, workers: Mapping[Side, Worker], steps: Iterator[Step]) -> None:
        """A worker that dies, or a wrong result, is a failure of its side."""
        for _, some in groupby(steps, self._beside):
            start, group = time.monotonic(), list(some)
            op = group[0].op
            with self.bench.costs.phase(_PHASES[op]):
                self._take(group, workers)
            if self.lost:
                return
            kind = "first" if op == "open" and group[0].placement == 0 else _KINDS.get(op, op)
            self.seconds[kind] = self.seconds.get(kind, 0.0) + time.monotonic() - start

    def _beside(self, step: Step) -> object:
        """Equal for steps that workers may take at once: nothing is timed then, nor tuned."""
        if step.op == "close" or (step.op == "open" and self.setup.mode in GRAPH_MODES and self.untuned):
            return step.op, step.placement
        return step, next(self._number)

    def _take(self, steps: Sequence[Step], workers: Mapping[Side, Worker]) -> None:
        asked: list[Step] = []
        for step in steps:
            if step.op == "block" and self.setup.mode == "cpu":
                self.readings.setdefault(step.side, []).append(second_clock.Reading(workers[step.side].pid))
            with self._failing(step, workers):
                workers[step.side].begin(step.op, **self._fields(step))
                asked.append(step)
        warm = 0.0
        for step in asked:
            with self._failing(step, workers):
                warm = max(warm, self._keep(step, workers[step.side]))
        self.bench.costs.move("warm", warm)

    @contextmanager
    def _failing(self, step: Step, workers: Mapping[Side, Worker]) -> Iterator[None]:
        try:
            yield
        except Died as died:
            self.lost = True
            log = f"logs/{workers[step.side].log.name}"
            self.failures[step.side] = died.reason.model_copy(update={"log": log})

    def _fields(self, step: Step) -> dict[str, Any]:
        setup = self.setup
        if step.op == "open":
            fields: dict[str, Any] = {"mode": setup.mode, "sets": setup.sets}
            return fields | {"seed": step.seed, "placement": step.placement, **case_fields(self.case, step.side)}
        if step.op == "versus":
            return self._beside_it(step)
        if step.op == "host":
            return {"executions": -(-setup.host // 2), "hold": setup.hold, "seed": step.seed}
        if step.op == "warm":
            return {"batch": setup.batch}
        if step.op == "block":
            return {"batch": setup.batch, "samples": setup.samples, "bracket": setup.bracket}
        check = _tolerance_side(self.case).check
        verify = step.last and self.verify and setup.blocks > 0  # else nothing is timed that could be wrong
        return {"verify": verify, "rtol": check.rtol, "atol": check.atol}

    def _beside_it(self, step: Step) -> dict[str, Any]:
        setup, mode = self.setup, self.setup.versus
        turns = _turns(setup.blocks, ["own", "other"], random.Random(f"{step.seed}/versus"))
        fields: dict[str, Any] = {"own": setup.mode, "mode": mode, "seed": step.seed, "turns": turns}
        if mode == setup.mode:
            return fields | {"batch": setup.batch, "samples": setup.samples, "bracket": setup.bracket}
        return fields | {"batch": 1, "samples": SCHEDULES["cold"].samples, "bracket": False}

    def _keep(self, step: Step, worker: Worker) -> float:
        """Returns the seconds that the worker warmed. Raises Died."""
        reply = worker.answer(self.bench.timeout)
        if step.op == "block" and step.side in self.readings:
            self.readings[step.side][-1].end()
        if step.op == "open":
            self.blocks[step.side].append([])
            return worker.fit(Warmed, step.op, reply).warm
        if step.op == "block":
            self.blocks[step.side][-1].append(worker.fit(Block, step.op, reply))
        elif step.op == "warm":
            worker.fit(Warm, step.op, reply)
        elif step.op == "host":
            self.hosts.setdefault(step.side, []).extend(worker.fit(Hosted, step.op, reply).times)
        elif step.op == "versus":
            beside = worker.fit(Beside, step.op, reply)
            self.refused = self.refused or beside.failed[:400]
            for which, blocks in (("own", beside.own), ("other", beside.other)):
                self.versus[which].append([value for block in blocks for value in block])
        elif not (closed := worker.fit(Closed, step.op, reply)).ok:
            text = f"after timing: {closed.text}"
            self.failures[step.side] = Reason(kind=closed.kind or "invalid", text=text[:1000])
        else:
            if closed.tuner is not None:
                self.tuners[step.side] = self.tuners.get(step.side) or closed.tuner
            known = self.choices.get(step.side, [])
            if found := known + [one for one in closed.chosen if one not in known]:
                self.choices[step.side] = found[:MOST_CHOICES]
        return 0.0

    def _own_seconds(self) -> dict[str, float]:
        """What the first case of a worker takes longer to open is the round's: libraries that load at their first use
        take as long before any other."""
        first, further = self.seconds["first"], self.setup.placements - 1
        if self.fresh and self.case.pairs:
            first = min(first, max(pair.seconds["first"] for pair in self.case.pairs))
        elif self.fresh and further:
            first = min(first, self.seconds["open"] / further)
        return self.seconds | {"first": first}

    def _spent(self) -> dict[Side, float]:
        found = {}
        for name, readings in self.readings.items():
            blocks, value = (
                [block for placement in self.blocks[name] for block in placement],
                self._values(name)["time"],
            )
            executions = self.setup.batch * self.setup.samples
            times = second_clock.spent(readings, [block.times for block in blocks], executions, value)
            if times is not None:
                found[name] = times
        return found

    def _doubt(self, made: PairOutcome) -> None:
        assert made.pair is not None
        for name in made.pair.spent:
            if text := second_clock.contradiction([*self.case.pairs, made.pair], name):
                made.failures[name] = Reason(kind="invalid", text=text)

    def _values(self, name: Side) -> dict[str, float]:
        values = _values(self.blocks[name]) if self.setup.blocks else {}
        if self.setup.host:
            hosts = self.hosts.get(name, [])
            values[HOST_TIME] = median(hosts) if _sound(hosts) else math.nan  # the system interrupts some of them
        return values

    def outcome(self) -> PairOutcome:
        made = PairOutcome(self.case, failures=self.failures)
        if not self.failures:
            blocks = self.blocks
            made.samples = {name: [_joined(placement) for placement in blocks[name]] for name in self.names}
            gaps = {name: sum(b.drained for placement in blocks[name] for b in placement) for name in self.names}
            made.pair = Pair(
                index=len(self.case.pairs),
                first=self.first,
                values={name: self._values(name) for name in self.names},
                samples={name: sum(map(len, made.samples[name])) for name in self.names},
                spread={name: _spread(made.samples[name]) for name in self.names},
                clock=_clocks({name: [b for placement in blocks[name] for b in placement] for name in self.names}),
                scatter=scatter_of(_pairwise(blocks)) if len(self.names) > 1 and self.setup.blocks else None,
                blocks=sum(map(len, blocks[self.names[0]])),
                spent=self._spent(),
                seconds=self._own_seconds(),
                gaps=gaps if any(gaps.values()) else {},
                tuners=self.tuners,
                refused=self.refused,
                choices=self.choices,
            )
            if self.versus["own"] and not self.refused:
                own, other = (worker_value(self.versus[which]) for which in ("own", "other"))
                times = {name: values["time"] for name, values in made.pair.values.items()}
                for name, values in made.pair.values.items():  # base's by its time beside head's
                    values["speedup"] = other / own * times["head"] / times[name]
            self._doubt(made)
        return made


def _pairwise(sides: Mapping[Side, Sequence[Sequence[Block]]]) -> Blocks:
    """As `stats.components` takes them."""
    return {
        name: [[(worker_value([block.times]), block.hertz) for block in placement] for placement in placements]
        for name, placements in sides.items()
    }


def _joined(placement: Sequence[Block]) -> list[float]:
    return [value for block in placement for value in block.times]


def _values(placements: Sequence[Sequence[Block]]) -> dict[str, float]:
    """Time, and cycles where every block has a clock."""
    values = {"time": worker_value([_joined(placement) for placement in placements])}
    if all(block.hertz for placement in placements for block in placement):
        cycles = [[t * (b.hertz or math.nan) for b in placement for t in b.times] for placement in placements]
        values["cycles"] = worker_value(cycles)
    return values


def _clocks(blocks: Mapping[Side, Sequence[Block]]) -> dict[Side, Clock]:
    """Each worker's clock and how block times moved with it."""
    clocks = {}
    for name, found in blocks.items():
        if not found or not all(_sound([*block.times, block.hertz or 0.0]) for block in found):
            return {}
        times = [math.log(worker_value([block.times])) for block in found]
        hertz = [math.log(block.hertz or math.nan) for block in found]
        centre, mean = math.fsum(times) / len(times), math.fsum(hertz) / len(hertz)
        clocks[name] = Clock(
            hertz=math.exp(mean),
            blocks=len(found),
            variance=math.fsum((value - mean) ** 2 for value in hertz),
            covariance=math.fsum((t - centre) * (f - mean) for t, f in zip(times, hertz, strict=True)),
        )
    return clocks


def _turns(blocks: int, names: list[N], rng: random.Random) -> list[N]:
    """A coin decides who goes first in a couple, the next couple mirrors it (A B B A)."""
    turns: list[N] = []
    for _ in range(blocks // 2):
        rng.shuffle(names)
        turns += [*names, *reversed(names)]
    return turns


def _tolerance_side(case: Case) -> Any:
    """Base's where it was checked, else head's: its tolerances hold for both."""
    base = case.sides.get("base")
    checked = base is not None and base.status == "ok" and case.measured("base")
    return base if checked else case.sides["head"]


def worker_value(placements: Sequence[Sequence[float]]) -> float:
    """Return the mean over placements of trimmed means of their samples, in the samples' unit; NaN where a sample is no
    finite positive number."""
    if not placements or any(not _sound(samples) for samples in placements):
        return math.nan
    return math.fsum(trimmed_mean(samples) for samples in placements) / len(placements)


def _sound(samples: Sequence[float]) -> bool:
    return len(samples) > 0 and all(math.isfinite(value) and value > 0 for value in samples)


def _spread(placements: Sequence[Sequence[float]]) -> float:
    flat = [value for samples in placements for value in samples]
    if len(flat) < 2 or not _sound(flat):
        return 0.0
    mean = math.fsum(flat) / len(flat)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / (len(flat) - 1)) / mean


def launch_gap_notes(cases: Sequence[Case], plan: Plan) -> list[str]:
    """Return a note on cases that mostly waited for the CPU."""
    found = []
    for case in cases:
        if case.pairs:
            blocks = sum(pair.blocks for pair in case.pairs)
            if max(sum(pair.gaps.get(name, 0) for pair in case.pairs) for name in plan.sides) > blocks / 2:
                found.append(case.id)
    if not found:
        return []
    named = listed(found, 5)
    return [f"launch gaps are in the times of {named}: the GPU waited for the CPU (does the case synchronise?)"]
