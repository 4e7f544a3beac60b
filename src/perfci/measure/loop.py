"""Rounds of pairs until every case is decided, the cap is reached or the budget is spent."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from perfci.measure.bench import Bench
from perfci.measure.budget import Budget
from perfci.measure.commands.runner import Runner
from perfci.measure.costs import Costs
from perfci.measure.journal import PairJournal
from perfci.measure.machine import Watch
from perfci.measure.request import PairProgress, Progress
from perfci.measure.rounds import PairOutcome, end_workers, run_round
from perfci.measure.sampling import (
    LEAST_PAIRS,
    Need,
    PairCost,
    adapt,
    cheapest,
    next_batch,
    pair_cost,
    pairs_left,
    planned_pairs,
)
from perfci.model.base import DeviceKind
from perfci.model.comparison import comparable
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Environments
from perfci.model.plan import Plan
from perfci.model.results import Case
from perfci.model.text import listed
from perfci.model.units import show_budget
from perfci.stats.answer import answer, hopeless, precise

ROOM = 1.25
"""Factor on the pairs' likely cost: their scatter may ask for more."""


@dataclass
class Loop:
    """A run's rounds."""

    plan: Plan
    benches: Mapping[DeviceKind, Bench]
    runner: Runner
    journal: PairJournal
    progress: Progress
    watch: Watch
    costs: Costs
    budget: Budget
    environments: Environments | None = None
    first_round: int = 0
    """Number of its first round, behind those of the run's other loop."""
    seconds: float = 0.0
    needed: float = 0.0
    """Budget that would do, where this one cannot show a regression of any case; else 0."""
    asked: int = 0
    chosen: set[str] = field(default_factory=set)
    """Keys of cases that go on: see `_in_turn`."""
    starts: list[float] = field(default_factory=list)
    """Seconds of each round without its pairs."""
    renewed: float = 0.0
    """Seconds in which the next round's workers have started."""
    beside: float = 0.0
    """Least seconds of a kernel's pair without its samples."""

    def run(self, cases: Sequence[Case], decided: Callable[[list[Case]], None] = lambda cases: None) -> None:
        """Append pairs to `cases`, each with why measuring ended. `decided` hears of decided ones.

        Raises MachineError, KeyboardInterrupt.
        """
        start, plan = time.monotonic(), self.plan
        measurable = [case for case in cases if can_measure(case)]
        open_cases = [case for case in measurable if self._goes_on(case)]
        self.asked = sum(bool(self._criteria(case)) for case in measurable)
        try:
            while open_cases:
                if plan.exact_pairs is None:
                    for case in open_cases:
                        adapt(case, self.benches, plan)
                affordable = self._in_turn(open_cases) if self.budget.left else []
                if not affordable:
                    self._leave(open_cases)
                    break
                batch = next_batch(affordable, plan, self.budget.left)
                # A number that no other round of this run has, resumed or not: orders and placements are drawn from it.
                index = self.first_round + sum(len(case.pairs) for case in measurable)
                self._round(batch, index, self._deadline(batch))
                taken = {case.key for case in batch}
                open_cases = [case for case in open_cases if case.key not in taken or self._goes_on(case)]
                going = {case.key for case in open_cases}
                if found := [case for case in batch if case.key not in going and case.stopped == "decided"]:
                    decided(found)
                self.progress.pair(self._standing(measurable, open_cases))
        except KeyboardInterrupt:
            for case in open_cases:
                if self._open(case):
                    case.stopped = "interrupted"
            raise
        finally:
            for bench in self.benches.values():
                if bench.spare:
                    end_workers(bench, bench.spare)
            self.seconds = time.monotonic() - start

    def _standing(self, cases: Sequence[Case], open_cases: Sequence[Case]) -> PairProgress:
        going = {case.key for case in open_cases}
        expected = None
        likely = [case for case in open_cases if case.pairs or not self.chosen or case.key in self.chosen]
        if all(case.pairs for case in likely):
            each = [
                (max(pairs_left(case, self._criteria(case), self.plan) for case in unit), self._cost(unit).planned)
                for unit in _units(likely)
            ]
            seconds = math.fsum(pairs * cost for pairs, cost in each)
            rounds = max((pairs for pairs, _ in each), default=0)
            expected = min(seconds + self.start * rounds, self.budget.left)
        return PairProgress(
            pairs=max(len(case.pairs) for case in cases),
            open=len(going),
            decided=sum(case.key not in going and case.stopped == "decided" for case in cases),
            cases=len(cases),
            seconds=self.budget.spent,
            budget=self.plan.budget,
            expected=expected,
        )

    def _in_turn(self, cases: Sequence[Case]) -> list[Case]:
        """Return the open cases that go on: the cheapest, where not all come to a look that can show a regression.

        Cost alone chooses, never what pairs show, and the choice stands, once two pairs tell what each costs, until
        each has come to that look or has ended. Each is asked as it would be alone, by its own looks and its share of
        α: both error rates hold.
        """
        behind = self._behind(cases)
        if self.plan.exact_pairs is not None or not any(map(self._criteria, behind)):
            return [*cases]
        chosen = [case for case in behind if case.key in self.chosen]
        if min((len(case.pairs) for case in chosen), default=0) <= LEAST_PAIRS:
            tries = sum(bool(self._criteria(case)) for case in behind) == self.asked
            needs, left = self._needs(behind), self.budget.left
            # Where none fits with room for what scatter may ask, one that may fit is tried: else time is left over.
            roomy = cheapest(needs, left, self.start, room=ROOM)
            found = roomy or cheapest(needs, left, self.start, tries=tries)
            if not found:  # one after the other: what has compiled may cost less from its second pair on
                hoped = [need._replace(seconds=need.seconds - need.built) for need in needs if need.built]
                found = cheapest(hoped, left, self.start)[:1]
            chosen = [case for need in found for case in need.cases]
            self.chosen = {case.key for case in chosen}
        keys = {case.key for case in behind}
        return chosen or [case for case in cases if case.key not in keys]

    def _behind(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if len(case.pairs) < self._look(case)]

    @property
    def start(self) -> float:
        """Seconds of a round without pairs; the first one builds what others find built."""
        return median(self.starts[1:] or self.starts or [0.0])

    def _look(self, case: Case) -> int:
        plan = self.plan
        return plan.first_to_show if self._criteria(case) and (not case.proved or case.host_open) else plan.looks.first

    def _needs(self, cases: Sequence[Case]) -> list[Need]:
        found = []
        for unit in _units(cases):
            cost = self._cost(unit)
            pairs = max(self._look(case) - len(case.pairs) for case in unit)
            planned = min(pairs, max(0, *(planned_pairs(case, self.benches) - len(case.pairs) for case in unit)))
            seconds = planned * cost.planned + (pairs - planned) * cost.least
            last = all(not self._criteria(case) or (case.proof is not None and case.proof.by) for case in unit)
            found.append(Need(unit, pairs, pairs * cost.planned, seconds, pairs * cost.built, last))
        return found

    def _cost(self, unit: Sequence[Case]) -> PairCost:
        return pair_cost(unit[0], self.benches, self.runner, self.beside)

    def _deadline(self, batch: Sequence[Case]) -> float:
        if not self.chosen or all(case.pairs for case in batch):
            return self.budget.end
        expected = math.fsum(need.planned / need.pairs for need in self._needs(batch))
        return min(self.budget.end, time.monotonic() + expected + self.budget.left / self.plan.first_to_show)

    def _leave(self, cases: Sequence[Case]) -> None:
        """Tells those asked which budget would do to come to a look."""
        for case in cases:
            case.stopped = "budget"
        if self.plan.exact_pairs is not None:
            return
        short = [case for case in self._behind(cases) if self._criteria(case)]
        total, rounds, spent = 0.0, 0, self.budget.spent
        for need in sorted(self._needs(short), key=lambda need: need.order):
            total, rounds = total + need.planned, max(rounds, need.pairs)
            for case in need.cases:
                case.budget_needed = spent + ROOM * (total + self.start * rounds)
        if not short:
            return
        enough, what = max(case.budget_needed for case in short), f"for {listed(case.id for case in short)}"
        if self.budget.left and len(short) == self.asked:
            self.needed = enough
            what = f"to show a regression: {self.plan.first_to_show} pairs of each case take longer"
        self.progress.note(
            f"the budget of {show_budget(self.plan.budget)} is too short {what}; a budget of {show_budget(enough)} "
            "would do"
        )

    def _open(self, case: Case) -> bool:
        """Tell whether a case may take further pairs, hopeless or not, and write into it why not."""
        if not can_measure(case):
            return False
        plan, pairs = self.plan, len(case.pairs)
        if plan.exact_pairs is not None and pairs < plan.exact_pairs:
            return True
        if pairs >= (plan.exact_pairs or plan.max_pairs):
            case.stopped = "decided" if self._settled(case) else "cap"
            return False
        if plan.purpose != "change" and pairs < plan.looks.first and not self._criteria(case):
            return True  # nothing is asked of it, and its ratio is recorded
        return not plan.looks.at(pairs) or not self._settled(case)

    def _settled(self, case: Case) -> bool:
        asked, plan = self._criteria(case), self.plan
        found = [answer(case, one, plan.looks, plan.m).decision.status for one in asked]
        wide = [
            one
            for one, status in zip(asked, found, strict=True)
            if plan.precise and status in ("regression", "improvement") and not precise(case, one, plan.looks)
        ]
        return "continue" not in found and not wide

    def _criteria(self, case: Case) -> list[Criterion]:
        """Criteria that pairs decide; without changes that a proof answers, or where base does not ask the same."""
        compared = comparable(case, self.environments)
        asked = (one for one in self.plan.timed if one.case_key == case.key)
        return [one for one in asked if not one.relative or (compared and not case.answered(one.metric))]

    def _goes_on(self, case: Case) -> bool:
        """Tell whether a case takes further pairs, and write into it why not: one hopeless at a planned look does not,
        whatever the budget."""
        if not self._open(case):
            return False
        plan = self.plan
        looked = plan.exact_pairs is None and len(case.pairs) in plan.looks.pairs
        if looked and hopeless(case, self._criteria(case), plan.looks, plan.m):
            case.stopped = "hopeless"
            return False
        return True

    def _round(self, batch: Sequence[Case], index: int, deadline: float) -> None:
        """`deadline`: monotonic clock, no case begins behind it."""
        mark, before, besides, self.renewed = time.monotonic(), self.renewed, list[float](), 0.0

        def done(outcome: PairOutcome) -> None:
            nonlocal mark
            since, mark = mark, time.monotonic()
            besides.extend(self._record(outcome, mark - since))

        self.watch.read()
        for device, bench in self.benches.items():
            kernels = [case for case in batch if case.device == device and case.origin == "kernel"]
            if kernels:
                run_round(bench, kernels, index, done, deadline)
                since, mark = mark, time.monotonic()
                self.renewed += mark - since if bench.spare else 0.0
        if besides:
            self.starts.append(before + math.fsum(besides))
        names = list(dict.fromkeys(case.kernel for case in batch if case.origin == "command"))
        lot = next(bench.lot for bench in self.benches.values()) if names else ""
        random.Random(f"{lot}/commands/{index}").shuffle(names)
        for name in names:
            if time.monotonic() >= deadline:
                break
            cases = [case for case in batch if case.kernel == name and case.origin == "command"]
            with self.costs.phase("commands"):
                outcomes = self.runner.run_pair(name, cases, lot, index)
            for outcome in outcomes:
                done(outcome)
        self.watch.read()

    def _record(self, outcome: PairOutcome, seconds: float) -> list[float]:
        """A case of which a worker failed is given up: a second try could hide what fails now and then.

        Returns the seconds beside a kernel's pair.
        """
        case, besides = outcome.case, list[float]()
        for name, failure in outcome.failures.items():
            uneven = case.origin == "command" and failure.kind == "protocol"  # in its reports: it never was right
            reason = failure.model_copy(update={"during": "" if uneven else "round"})
            case.sides[name].status = "failed"
            case.sides[name].reason = reason
            case.stopped = "failed"
            self.journal.add_failure(case.key, name, reason)
        if outcome.pair:
            outcome.pair.at = time.time()
            case.pairs.append(outcome.pair)
            if case.origin == "kernel":
                own = math.fsum(outcome.pair.seconds.values())
                planned = self.benches[case.device].setups[case.key].planned
                self.beside = min(self.beside or math.inf, max(0.0, own - planned))
                besides = [max(0.0, seconds - own)]
            self.journal.add_pair(case.key, outcome.pair, outcome.samples)
        return besides


def _units(cases: Sequence[Case]) -> list[list[Case]]:
    units: dict[str, list[Case]] = {}
    for case in cases:
        units.setdefault(case.kernel if case.origin == "command" else case.key, []).append(case)
    return [*units.values()]


def can_measure(case: Case) -> bool:
    """Tell whether pairs of this case are worth taking: where base failed, head is still held against its bounds."""
    return case.sides["head"].status == "ok"
