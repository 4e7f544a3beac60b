"""The real `Loop` without workers: a test takes its rounds, by a clock that moves by what pairs take alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.measure import budget as measure_budget
from perfci.measure import loop as measure_loop
from perfci.measure.budget import Budget
from perfci.measure.costs import Costs
from perfci.measure.loop import Loop
from perfci.model.base import SIDES
from perfci.model.results import Pair, Results
from tests.stats.recorded import KERNELS, recorded_pairs

PAIRS = {f"{kernel}|{timing}": recorded_pairs(f"{kernel}|{timing}") for kernel in KERNELS for timing in ("rot", "cold")}
KEYS = [*PAIRS]
SILENT: Any = SimpleNamespace(stage=lambda text: None, note=lambda text: None, pair=lambda *numbers: None)
JOURNAL: Any = SimpleNamespace(add_pair=lambda *pair: None, add_failure=lambda *failure: None, close=lambda: None)
WATCH: Any = SimpleNamespace(read=lambda: None)
UNKNOWN = SimpleNamespace(planned=0.0, least=0.0, placements=2)
"""A setup that does not tell what samples take: whether a budget will do is asked after the first pair alone."""


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


def taken(index: int, pair: Pair, *, swap: bool, factor: float, seconds: float) -> Pair:
    """A recorded pair as one of a run. `swap`: with its sides exchanged, as likely as the pair itself where the code is
    the same; `factor`: head's true one."""
    base, head = SIDES[::-1] if swap else SIDES
    return Pair(
        index=index,
        values={"base": pair.values[base], "head": {"time": pair.values[head]["time"] * factor}},
        clock={"base": pair.clock[base], "head": pair.clock[head]},
        seconds={"block": seconds},
    )


@contextmanager
def driven(
    made: Results,
    rounds: Callable[..., None],
    budget: float,
    *,
    clock: Clock | None = None,
    chooses: bool = True,
    setups: Mapping[str, Any] | None = None,
    seed: int = 0,
    runner: Any = None,
    journal: Any = JOURNAL,
    progress: Any = SILENT,
) -> Iterator[Loop]:
    """The loop of a run on a GPU. `rounds`: in the place of `run_round`; `clock`: None is the real one; `chooses`: the
    cheapest go on where not all cases fit into the budget, as they do, else all of them; `setups`: by case key."""
    known = dict.fromkeys((case.key for case in made.cases), UNKNOWN) | (setups or {})
    bench: Any = SimpleNamespace(seed=seed, lot=str(seed), setups=known, spare={})
    with pytest.MonkeyPatch.context() as patched:
        for module in (measure_loop, measure_budget) if clock else ():
            patched.setattr(module, "time", clock)
        patched.setattr(measure_loop, "run_round", rounds)
        if not chooses:
            patched.setattr(Loop, "_in_turn", lambda loop, cases: cases)
        end = Budget(budget, measure_loop.time.monotonic())
        yield Loop(made.plan, {"cuda": bench}, runner, journal, progress, WATCH, Costs(), end, made.environments)
