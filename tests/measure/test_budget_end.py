"""Budgets that end anywhere: recorded pairs and recorded costs under the real scheduler, rounds and last looks.

What is real: `Loop` with its rounds and choices, `next_batch`, `settled`, the deadline within a round, and the judge's
answers after it. What is replayed: pairs of identical code and what a pair takes, recorded on one NVIDIA H200; the clock
stands still but for these.
"""

import json
import lzma
import random
import re
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from perfci.judge import judge
from perfci.measure.rounds import PairOutcome
from perfci.model.base import SIDES
from perfci.model.fingerprint import Environments, Interpreter
from perfci.model.plan import Looks, Plan
from perfci.model.results import Case
from perfci.model.timing import Timing
from perfci.stats.answer import answer
from tests.judge.build import case as empty_case
from tests.judge.build import limit, results, side
from tests.stats.recorded import FOLDER

from .driven import KEYS, PAIRS, Clock, driven, taken

COSTS = [
    [sum(pair["seconds"].values()) for pair in case["pairs"]]
    for case in json.loads(lzma.decompress((FOLDER / "planted.json.xz").read_bytes()))["cases"]
]
"""Seconds of each pair of ten cases of one run."""
R = 0.02
M = len(KEYS)
PAIR = sum(sum(costs) / len(costs) for costs in COSTS) / len(COSTS)
"""Seconds of a pair of one case, mean."""


class Replayed:
    """One run whose pairs and costs are drawn from what was recorded. `factors`: number of a case → head's true factor."""

    def __init__(
        self,
        seed: int,
        factors: dict[int, float] | None = None,
        *,
        cases: int = M,
        clocks: bool = True,
        chooses: bool = False,
        told: bool = False,
        environments: Environments | None = None,
    ) -> None:
        self.clocks, self.chooses, self.told, self.environments = clocks, chooses, told, environments
        self.rng, self.clock, self.factors = random.Random(seed), Clock(), factors or {}
        self.sources = {f"k/n={number}": PAIRS[key] for number, key in enumerate(KEYS[:cases])}
        self.costs = {name: self.rng.choice(COSTS) for name in self.sources}

    def round(self, bench: Any, cases: list[Case], index: int, done: Any, deadline: float) -> None:
        """As `rounds.run_round`: cases shuffled, none begun after the deadline."""
        todo = list(cases)
        random.Random(f"{bench.seed}/round/{index}").shuffle(todo)
        for case in todo:
            if self.clock.now >= deadline:
                break
            pair, swap = self.rng.choice(self.sources[case.id]), self.rng.random() < 0.5
            factor = self.factors.get(int(case.id.split("=")[1]), 1.0)
            cost = self.rng.choice(self.costs[case.id])
            self.clock.now += cost
            made = taken(len(case.pairs), pair, swap=swap, factor=factor, seconds=cost)
            if not self.clocks:
                made.clock = {}
            if self.told:
                made.tuners = {"base": "", "head": ""}
            done(PairOutcome(case, made))

    def run(self, budget: float, looks: Looks | None = None, r: float = R) -> tuple[list[Case], Plan]:
        """The cases as they stand when the budget has ended, or all are decided."""
        tuner = "" if self.told else None
        tf32 = {"tf32": True} if self.environments is not None else {}
        timing = Timing(mode="rotating", settings={"timer": "events", **tf32})
        cases = [
            empty_case(name, ratio=None, base=side(tuner=tuner), head=side(tuner=tuner, timing=timing))
            for name in self.sources
        ]
        made = results(
            cases, [limit(name, bound=r) for name in self.sources], looks=looks or Looks.fitted(len(self.sources))
        )
        plan = made.plan.model_copy(update={"budget": budget})
        self.made = made.model_copy(update={"plan": plan, "environments": self.environments})
        seed = self.rng.randrange(2**32)
        with driven(self.made, self.round, budget, clock=self.clock, chooses=self.chooses, seed=seed) as self.loop:
            self.loop.run(self.made.cases)
        return self.made.cases, plan


def answers(cases: list[Case], plan: Plan):
    return [
        answer(case, one, plan.looks, plan.m, ended=True).decision
        for case, one in zip(cases, plan.criteria, strict=True)
    ]


def replays(
    runs: int,
    seed: int,
    factors: dict[int, float] | None = None,
    *,
    cases: int = M,
    clocks: bool = True,
    most: float = 30,
    chooses: bool = False,
    **run: Any,
):
    """The decisions of `runs` runs and the pairs at which undecided cases were left.

    Budgets are drawn from too little for the first look of all to what `most` pairs of all take.
    """
    rng = np.random.default_rng(seed)
    found, ends = [], []
    for number in range(runs):
        replay = Replayed(seed * 100_000 + number, factors, cases=cases, clocks=clocks, chooses=chooses)
        measured, plan = replay.run(float(rng.uniform(5, most)) * PAIR * cases, **run)
        found.append(answers(measured, plan))
        ends += [len(case.pairs) for case in measured if case.stopped == "budget"]
    return found, ends


def share(found: list[list[Any]], *statuses: str) -> float:
    flat = [decision.status for run in found for decision in run]
    return sum(status in statuses for status in flat) / len(flat)


def failing(found: list[list[Any]]) -> int:
    return sum(any(decision.status == "regression" for decision in run) for run in found)


def test_budgets_end_between_looks_and_unchanged_code_does_not_fail() -> None:
    found, ends = replays(8, seed=2)
    assert set(ends) - set(Looks.fitted(M).pairs), "budgets are to end between looks"
    assert failing(found) == 0
    assert share(found, "continue", "invalid") == 0
    assert share(found, "unchanged") >= 0.6


@pytest.mark.parametrize("seconds", [6, 9, 11, 60, 120, 480])
def test_a_budget_is_refused_after_a_first_pair_exactly_where_no_case_comes_to_the_look_that_convicts(seconds):
    """Pairs that take a second each, and cannot take less: twelve of a case and a quarter's doubt."""
    replay = Replayed(7, chooses=True)
    replay.costs = {name: [1.0] for name in replay.costs}
    cases, plan = replay.run(seconds)
    assert plan.first_to_show == 12
    report = judge(replay.made.model_copy(update={"budget_needed": replay.loop.needed}))
    refused = 1.25 * (seconds - 1) < 11
    assert refused == (seconds < 10) == (replay.loop.needed > 0)
    left = [case for case in cases if case.stopped == "budget" and len(case.pairs) <= 1]
    if refused:
        assert left == cases
        assert (report.verdict, report.exit_code) == ("error", 3)
        assert "is too short to show a regression" in report.sentence
    else:
        assert len(cases) - len(left) >= min(M, seconds // 12)
        assert report.verdict == "undecided" or not left
    if left:
        spent = sum(len(case.pairs) for case in cases)
        todo = sum(12 - len(case.pairs) for case in left)
        assert max(case.budget_needed for case in left) == pytest.approx(spent + 1.25 * todo)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "class_"), [(4.6, "regression"), (0.4, "improvement")])
def test_the_judge_says_what_the_last_look_says(factor: float, class_: str) -> None:
    """A case far from its limit when the budget ends: the row says so, and the trail at how many pairs."""
    replay = Replayed(7, {0: factor}, cases=1)
    cases, plan = replay.run(12.5 * sum(replay.costs["k/n=0"]) / len(replay.costs["k/n=0"]), looks=Looks())
    assert (cases[0].stopped, plan.m) == ("budget", 1)
    n = len(cases[0].pairs)
    assert 10 <= n < 16 and n != 12
    report = judge(replay.made)
    (row,), (trail,) = report.rows, report.trails
    assert (row.class_, row.look, row.last_look, row.pairs) == (class_, None, True, n)
    assert (report.exit_code == 1) == (class_ == "regression")
    assert row.p == 2.0**-n <= 0.01 / 10
    assert trail.looks[-1].pairs == n and trail.looks[-1].interval == row.interval


@pytest.mark.parametrize(
    ("factor", "status", "enough"),
    [(0.5, "improvement", 8), pytest.param(4.6, "regression", 12, marks=pytest.mark.slow)],
)
def test_a_large_change_is_said_however_early_the_budget_ends(factor: float, status: str, enough: int) -> None:
    """Heads that take 4.6 times as long: those with a last look's pairs are regressions, none is unchanged."""
    assert next(n for n in range(8, 64) if 2.0**-n <= 0.01 / M * 0.3) == 12, "the planned look comes before a last one"
    found, ends = replays(8, seed=3, factors=dict.fromkeys(range(M), factor))
    assert ends
    for decision in (decision for run in found for decision in run):
        assert decision.status == (status if decision.n >= enough else "inconclusive")
    assert share(found, status) >= 0.3


@pytest.mark.parametrize(("factor", "status"), [(4.6, "regression"), (0.25, "improvement")])
def test_an_obvious_change_takes_four_or_six_pairs(factor: float, status: str) -> None:
    """Of half of the cases; the others take what they take, and none fails."""
    changed = dict.fromkeys(range(0, M, 2), factor)
    cases, plan = Replayed(1, changed, told=True).run(1000 * PAIR * M)
    found = answers(cases, plan)
    assert {(one.status, one.n, one.early, case.stopped) for case, one in zip(cases[::2], found[::2], strict=True)} <= {
        (status, 4, True, "decided"),
        (status, 6, True, "decided"),
    }
    assert [len(case.pairs) for case in cases[::2]] == [one.n for one in found[::2]]
    assert all(one.n >= 8 and one.status != status for one in found[1::2])


class Noisy(Replayed):
    """Pairs a percent slower that scatter by a tenth, and take a second each."""

    def round(self, bench: Any, cases: list[Case], index: int, done: Any, deadline: float) -> None:
        for case in cases:
            self.clock.now += 1.0
            place = (len(case.pairs) * 13 % 32 + 0.5) / 32
            times = {"base": {"time": 1e-3}, "head": {"time": 1e-3 * (1 + NormalDist(0.01, 0.1).inv_cdf(place))}}
            fields = {"index": len(case.pairs), "values": times, "clock": {}}
            done(PairOutcome(case, PAIRS[KEYS[0]][0].model_copy(update=fields)))


@pytest.mark.parametrize("budget", [60.5, 1000.0])
def test_a_hopeless_case_is_left_whatever_remains_of_the_budget(budget: float) -> None:
    replay = Noisy(3, cases=1)
    (case,), _ = replay.run(budget)
    assert case.stopped == "hopeless"
    assert 12 <= len(case.pairs) <= 48
    (row,) = judge(replay.made).rows
    assert row.class_ == "inconclusive"
    assert "would not have decided it" in row.reason
    held = re.search(r"; 64 pairs could hold a limit of about ([\d.]+) %;", row.reason)
    assert held is not None and 8 <= float(held[1]) <= 30, row.reason
    assert row.reason.endswith("a larger limit or a quieter machine would help")


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("r", "chooses"), [(0.005, False), (0.01, True), (0.02, False)])
def test_budgets_that_end_anywhere_at_length(r: float, chooses: bool) -> None:
    """3 × 150 runs of twelve cases on unchanged code: at most one in a hundred fails, every false alarm counted."""
    found, ends = replays(150, seed=5, chooses=chooses, most=30 if not chooses else 15, r=r)
    assert len(set(ends) - set(Looks.fitted(M).pairs)) >= 15
    assert failing(found) <= 0.01 * len(found)
    assert share(found, "improvement") <= 0.01


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_true_slow_down_of_the_limit_at_length() -> None:
    """All cases slower by the limit: found or undecided, hardly ever unchanged."""
    found, _ = replays(100, seed=6, factors=dict.fromkeys(range(M), 1 + R))
    assert share(found, "unchanged", "improvement") <= 0.01
    assert share(found, "regression") >= 0.3


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chooses", [False, True])
def test_the_false_alarm_rate_of_runs_is_alpha_where_it_can_be_counted(chooses: bool) -> None:
    """With α at 30 %, no demand on size and none within the limit, every look and the last one spend what they may.
    Four cases, without clocks: where no size is asked for, the clock would excuse all."""
    looks = Looks(alpha=0.3, confirm=1.0, beta_spending=[0.0] * 7)
    found, ends = replays(200, seed=8, cases=4, clocks=False, most=70, chooses=chooses, looks=looks, r=1e-9)
    assert len(set(ends) - set(Looks.fitted(M).pairs)) >= 30
    last = any(decision.last and decision.status == "regression" for run in found for decision in run)
    assert last or chooses, "who is chosen comes to a planned look"
    assert 0.1 <= failing(found) / 200 <= 0.3 + 3 * (0.3 * 0.7 / 200) ** 0.5


@pytest.mark.parametrize("asked", [True, False])
def test_settings_that_environments_change_are_measured_to_an_answer(asked):
    """Those that the command line asks for; others make of it another question, for which pairs tell nothing."""
    both = {name: Interpreter(path="python", python="3.12") for name in SIDES}
    replayed = Replayed(1, cases=4, environments=Environments(asked=asked, interpreters=both))
    cases, _ = replayed.run(1e6)
    assert {len(case.pairs) >= 8 for case in cases} == {asked}
    assert {row.class_ for row in judge(replayed.made).rows} == {"unchanged" if asked else "changed"}
