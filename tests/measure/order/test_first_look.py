"""Where not all cases fit into the budget, the cheapest come to the first look that can show a regression: chosen by cost alone."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge import judge
from perfci.measure.journal import Journal
from perfci.measure.loop import ROOM
from perfci.measure.rounds import PairOutcome
from perfci.measure.sampling import Need, cheapest
from perfci.measure.timing import SCHEDULES, Setup
from perfci.model.plan import Looks
from perfci.model.results import Case, Moments, Pair, Proof, Results, Scatter
from tests.judge.build import case as empty_case
from tests.judge.build import limit, results
from tests.measure.driven import JOURNAL, Clock, driven


@dataclass(frozen=True)
class Kernel:
    """A case of so many seconds a pair. `known`: the seconds that its samples take, as checks tell."""

    seconds: float
    known: float | None = None
    change: float = 1.0
    scatter: float = 0.001
    command: str = ""
    asked: bool = True
    audited: bool = False
    within: float = 0.0
    """Scatter of its blocks: where there is any, pairs tell it, and could be smaller otherwise."""
    built: float = 0.0
    """Seconds more that a pair's opening takes, if it builds: the first `builds` pairs'."""
    builds: int = 1

    def building(self, pairs: int) -> float:
        return self.built if pairs < self.builds else 0.0


@dataclass
class Machine:
    """The real `Loop` by a clock that moves by what pairs take alone."""

    kernels: dict[str, Kernel]
    budget: float
    start: float = 0.0
    """Seconds in which the workers of a round start."""
    seed: int = 0
    purpose: str = "change"
    clock: Clock = field(default_factory=Clock)
    rounds: list[list[str]] = field(default_factory=list)
    sets: list[list[str]] = field(default_factory=list)
    """The cases that were chosen as each round began."""
    said: list[str] = field(default_factory=list)

    def planned(self) -> Results:
        cases = []
        for name, one in self.kernels.items():
            made = empty_case(name, ratio=None)
            if one.command:
                made = made.model_copy(update={"origin": "command", "kernel": one.command})
            made.proof = Proof(by="files", reason="alike", audited=True) if one.audited else None
            cases.append(made)
        asked = [limit(name) for name, one in self.kernels.items() if one.asked]
        made = results(cases, asked, looks=Looks.fitted(max(1, len(asked))))
        update = {"budget": self.budget, "purpose": self.purpose, "schedules": SCHEDULES}
        return made.model_copy(update={"plan": made.plan.model_copy(update=update)})

    def run(self, made: Results | None = None, journal: Any = JOURNAL, most: int = 10**9) -> Results:
        """`most`: pairs of a case behind which somebody interrupts."""
        made, self.most = made or self.planned(), most
        setups: dict[str, Any] = {}
        for name, one in self.kernels.items():
            known = one.seconds / 2 if one.known is None else one.known
            setups[f"{name}@cuda"] = SimpleNamespace(planned=known, least=known, placements=2)
            if one.within:
                setups[f"{name}@cuda"] = Setup("rotating", 1, 1, 2, 4, seconds=one.seconds / 16)
        runner = SimpleNamespace(once=self.once, run_pair=self.run_pair)
        progress = SimpleNamespace(note=self.said.append, pair=lambda *numbers: None)
        seats: Any = {"setups": setups, "runner": runner, "progress": progress, "journal": journal}
        with driven(made, self.round, self.budget, clock=self.clock, **seats) as self.loop:
            self.loop.run(made.cases)
        return made.model_copy(update={"budget_needed": self.loop.needed})

    def seen(self) -> list[str]:
        """The cases that go on behind their second pair."""
        with suppress(KeyboardInterrupt):
            self.run(most=3)
        return sorted(key.removesuffix("@cuda") for key in self.loop.chosen)

    def once(self, command: str) -> float:
        return next(one.seconds for one in self.kernels.values() if one.command == command)

    def run_pair(self, command: str, cases: Sequence[Case], lot: str, index: int) -> list[PairOutcome]:
        self.begin(cases)
        self.clock.now += self.once(command)
        return [PairOutcome(case, self.pair(case)) for case in cases]

    def round(self, bench: Any, cases: Sequence[Case], index: int, done: Any, deadline: float) -> None:
        self.begin(cases)
        self.clock.now += self.start
        for case in random.Random(f"{self.seed}/{index}").sample(cases, len(cases)):
            if self.clock.now >= deadline:
                break
            self.clock.now += self.kernels[case.id].seconds + self.kernels[case.id].building(len(case.pairs))
            done(PairOutcome(case, self.pair(case)))

    def begin(self, cases: Sequence[Case]) -> None:
        if max(len(case.pairs) for case in cases) >= self.most:
            raise KeyboardInterrupt
        self.rounds.append(sorted(case.id for case in cases))
        self.sets.append(sorted(key.removesuffix("@cuda") for key in self.loop.chosen))

    def pair(self, case: Case) -> Pair:
        one, n = self.kernels[case.id], len(case.pairs)
        noise = float(np.random.default_rng([self.seed, n, *case.id.encode()]).normal(0, one.scatter))
        times = {"base": {"time": 1e-3}, "head": {"time": 1e-3 * one.change * np.exp(noise)}}
        if one.within:
            squares = [Moments(time=degrees * one.within**2, cross=0.0, clock=0.0) for degrees in (1, 6)]
            scatter = Scatter(placements=2, blocks=4, placement=squares[0], block=squares[1])
            parts = {"first": 4, "open": 8, "block": 2, "close": 8}
            each = {name: one.seconds / part for name, part in parts.items()}
            each["first"] += one.building(n)
            return Pair(index=n, values=times, seconds=each, blocks=8, scatter=scatter)
        return Pair(index=n, values=times, seconds={} if one.command else {"block": one.seconds})


def pairs_of(made: Results) -> dict[str, int]:
    return {case.id: len(case.pairs) for case in made.cases}


def classes(made: Results) -> dict[str, str]:
    return {row.case: row.class_ for row in judge(made).rows}


SECONDS = st.floats(0.01, 100)
NEEDS = st.lists(st.builds(Need, st.just([]), st.integers(1, 12), SECONDS, SECONDS, st.booleans()), max_size=12).map(
    lambda found: [one._replace(cases=[empty_case(f"k/n={number}", ratio=None)]) for number, one in enumerate(found)]
)


@given(NEEDS, st.floats(0.1, 300), st.sampled_from([0.0, 0.5, 5.0]), st.booleans(), st.randoms())
def test_what_is_chosen_fits_and_is_the_cheapest(needs, left, start, tries, rng):
    def total(some: list[Need]) -> float:
        return sum(one.seconds for one in some) + start * max((one.pairs for one in some), default=0)

    chosen = cheapest(needs, left, start, tries=tries)
    fitting = sorted((one for one in needs if total([one]) <= left), key=lambda one: one.order)
    assert cheapest(rng.sample(needs, len(needs)), left, start, tries=tries) == chosen, "whatever their order"
    if total(chosen) <= left:
        assert chosen == fitting[: len(chosen)], "the cheapest"
        assert len(chosen) == len(fitting) or total(fitting[: len(chosen) + 1]) > left, "and as many as fit"
    else:
        assert tries and len(chosen) == 1 and total(chosen) <= 2.5 * left, "one that may fit, if it is taken for dearer"
    certain = [one for one in needs if total([one]) > 2.5 * left]
    assert bool(chosen) == bool(fitting or (tries and len(certain) < len(needs)))


KERNELS = st.dictionaries(
    st.sampled_from([f"k/n={number}" for number in range(8)]),
    st.builds(Kernel, st.floats(0.1, 20), st.floats(0.05, 10)),
    min_size=1,
)


@given(KERNELS, st.floats(5, 1000), st.sampled_from([0.0, 2.0]), st.integers(0, 100))
def test_costs_alone_choose(kernels: dict[str, Kernel], budget: float, start: float, seed: int) -> None:
    """Slower, faster or as it was, calm or loud: the same cases go on until one may end."""
    rng = random.Random(seed)
    shown = {
        name: replace(one, change=rng.choice([0.5, 1.0, 1.03, 2.0]), scatter=rng.choice([1e-3, 0.2]))
        for name, one in kernels.items()
    }
    runs = [Machine(some, budget, start) for some in (kernels, shown)]
    for run in runs:
        with suppress(KeyboardInterrupt):
            made = run.run(most=4)
            # A case that is dearer than was known is seen to be so by its second pair.
            assert not run.loop.needed or max(pairs_of(made).values()) <= 2, "an error is said at once"
    assert (runs[0].rounds, runs[0].sets) == (runs[1].rounds, runs[1].sets)


def test_the_cheapest_are_decided_and_what_is_too_dear_says_what_it_needs() -> None:
    run = Machine({"cheap/n=1": Kernel(1.0, change=1.05), "cheap/n=2": Kernel(1.1), "dear": Kernel(20.0)}, 60.0)
    made = run.run()
    assert classes(made) == {"cheap/n=1": "regression", "cheap/n=2": "unchanged", "dear": "invalid"}
    assert pairs_of(made) == {"cheap/n=1": made.plan.first_to_show, "cheap/n=2": 8, "dear": 0}
    assert run.loop.needed == 0
    report = judge(made)
    reason = next(row.reason for row in report.rows if row.case == "dear")
    assert reason == "no finished pair: the budget is too short for it; a budget of 5m would do"
    assert run.said == ["the budget of 60s is too short for dear; a budget of 5m would do"]
    assert report.verdict == "fail"
    calm = judge(Machine({"cheap": Kernel(1.0), "dear": Kernel(20.0)}, 60.0).run())
    assert (calm.verdict, calm.exit_code) == ("undecided", 0)
    assert calm.sentence == f"Undecided: 1 of 2 cases has no answer: `dear`: {reason}"
    assert calm.advice.startswith("A budget of 5m would do (--budget 5m, ")
    strict = judge(Machine({"cheap": Kernel(1.0), "dear": Kernel(20.0)}, 60.0).run(), strict=True)
    assert (strict.verdict, strict.exit_code) == ("fail", 1)


@pytest.mark.parametrize("built", [0.0, 20.0])
def test_a_first_pair_that_builds_leaves_a_case_that_fits(built: float) -> None:
    run = Machine({"quick": Kernel(0.5), "compiled": Kernel(1.0, within=1e-4, built=built)}, 20.0 + built)
    made = run.run()
    assert (pairs_of(made), run.said) == ({"quick": 8, "compiled": 8}, [])


def test_a_case_that_is_as_dear_again_is_left_at_its_second_pair() -> None:
    run = Machine({"quick": Kernel(0.5), "dear": Kernel(1.0, within=1e-4, built=20.0, builds=99)}, 60.0)
    assert pairs_of(run.run()) == {"quick": 8, "dear": 2}, "once nothing else is left"
    assert run.said == ["the budget of 60s is too short for dear; a budget of 5m would do"]


def test_cases_that_build_in_each_process_are_chosen_by_all_that_they_cost() -> None:
    """Else all would seem to fit, and the budget end with none of them at its look."""
    kernels = {f"k/n={n}": Kernel(1.0, within=1e-4, built=5.0 + n / 10, builds=99) for n in range(8)}
    taken = sorted(pairs_of(Machine(kernels, 8 * 6.5 + 2 * 6 * 8).run()).values())
    assert taken[-2:] == [8, 8]
    assert max(taken[:-3]) <= 2, taken


def test_the_budget_that_is_said_to_do_does() -> None:
    kernels = {f"k/n={number}": Kernel(1.0 + number, change=1.05) for number in range(6)}
    for case in Machine(kernels, 40.0).run().cases:
        if case.stopped == "budget":
            again = Machine(kernels, case.budget_needed).run()
            assert classes(again)[case.id] == "regression"
            assert case.budget_needed <= 2 * sum(one.seconds * 12 for one in kernels.values())


@pytest.mark.parametrize(("budget", "fits"), [(20.0, False), (35.0, True)])
def test_an_error_stays_where_not_one_fits(budget: float, fits: bool) -> None:
    """Ten pairs of three seconds at least, and a quarter's doubt."""
    run = Machine({"k/n=1": Kernel(3.0, 0.1), "k/n=2": Kernel(30.0, 20.0)}, budget)
    made = run.run()
    report = judge(made)
    assert (report.verdict, run.loop.needed > 0) == (("undecided", False) if fits else ("error", True))
    assert pairs_of(made) == {"k/n=1": 8 if fits else 1, "k/n=2": 0}
    if not fits:
        assert report.sentence.startswith("The budget of 20s is too short to show a regression of `k/n=1`, `k/n=2`")
        assert "10 pairs of each case take longer; a budget of" in run.said[0]


def test_those_that_end_early_leave_their_time_to_the_next() -> None:
    """Eight of twelve pairs: three cases have the time of two."""
    run = Machine({f"k/n={number}": Kernel(1.0 + number / 100) for number in range(12)}, 40.0 * ROOM)
    made = run.run()
    assert run.sets[0] == ["k/n=0", "k/n=1", "k/n=2"]
    assert [case.id for case in made.cases if case.pairs] == [f"k/n={number}" for number in range(5)]
    assert {len(case.pairs) for case in made.cases} == {0, 8}


def test_first_pairs_that_are_far_dearer_than_their_samples_do_not_spend_the_budget() -> None:
    run = Machine({f"k/n={number}": Kernel(5.0, 0.01) for number in range(18)}, 80.0)
    made = run.run()
    assert sum(class_ == "unchanged" for class_ in classes(made).values()) == 1
    assert judge(made).verdict == "undecided"


def test_pairs_that_cannot_become_smaller_are_not_taken_for_cheap() -> None:
    """Of six cases that scatter within workers, those go on that come to their look; of calm ones all do."""
    loud = {f"k/n={number}": Kernel(1.0 + number / 100, within=0.05) for number in range(6)}
    run = Machine(loud, 40.0 * ROOM)
    assert sorted(pairs_of(run.run()).values()) == [2, 8, 8, 8, 8, 8]
    calm = {name: replace(one, within=1e-5) for name, one in loud.items()}
    assert len(Machine(calm, 40.0).seen()) == 6


def test_the_start_of_workers_is_a_round_s_and_no_case_s() -> None:
    """Whichever case comes first."""
    for seed in range(4):
        run = Machine({"cheap/n=1": Kernel(0.5), "cheap/n=2": Kernel(0.6), "dear": Kernel(9.0)}, 60.0, 3.0, seed)
        assert classes(run.run()) == {"cheap/n=1": "unchanged", "cheap/n=2": "unchanged", "dear": "invalid"}
    assert judge(Machine({"k": Kernel(0.5)}, 20.0, 3.0).run()).verdict == "error", "nine times"


def test_a_command_of_several_cases_costs_once() -> None:
    app = Kernel(4.0, command="app", change=1.05)
    run = Machine({"app/x": app, "app/y": app, "app/z": app, "k": Kernel(40.0)}, 60.0)
    made = run.run()
    assert classes(made) == {"app/x": "regression", "app/y": "regression", "app/z": "regression", "k": "invalid"}
    assert all(set(batch) == {"app/x", "app/y", "app/z"} for batch in run.rounds)


def test_what_is_audited_or_not_asked_comes_behind() -> None:
    kernels = {
        "audited": Kernel(0.5, audited=True), "unasked": Kernel(0.5, asked=False), "asked": Kernel(1.0, change=1.05),
    }  # fmt: skip
    short = Machine(kernels, 12.5, purpose="last")
    assert pairs_of(short.run()) == {"audited": 0, "unasked": 0, "asked": short.planned().plan.first_to_show}
    assert set(pairs_of(Machine(kernels, 60.0, purpose="last").run()).values()) == {8, 10}


def test_where_nothing_is_asked_all_go_on_until_the_budget_ends() -> None:
    made = Machine({"k/n=1": Kernel(1.0, asked=False), "k/n=2": Kernel(9.0, asked=False)}, 45.0, purpose="last").run()
    assert set(pairs_of(made).values()) <= {4, 5}
    assert all(case.budget_needed == 0 for case in made.cases)


def test_what_was_left_out_is_reached_when_it_is_resumed(tmp_path: Path) -> None:
    kernels = {"cheap": Kernel(1.0), "dear": Kernel(20.0)}

    def go_on(budget: float, most: int = 10**9) -> tuple[Machine, Results]:
        run = Machine(kernels, budget)
        made = run.planned()
        journal = Journal(tmp_path, {}, made.run, (tmp_path / "journal.jsonl").exists())
        journal.restore(made.cases)
        try:
            return run, run.run(made, journal, most)
        except KeyboardInterrupt:
            return run, made
        finally:
            journal.close()

    _, first = go_on(60.0, most=3)
    assert {case.stopped for case in first.cases} == {"interrupted"} and pairs_of(first) == {"cheap": 3, "dear": 0}
    run, second = go_on(60.0)
    assert pairs_of(second) == {"cheap": 8, "dear": 0} and run.loop.needed == 0
    assert classes(second) == {"cheap": "unchanged", "dear": "invalid"}
    third = go_on(second.cases[1].budget_needed)[1]
    assert classes(third) == {"cheap": "unchanged", "dear": "unchanged"}
