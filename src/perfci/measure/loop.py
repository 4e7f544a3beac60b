"""Rounds of worker pairs until every case is decided, the cap is reached or the budget is spent."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from perfci.measure.bench import Bench
from perfci.measure.commands.runner import Runner
from perfci.measure.costs import Budget, Costs
from perfci.measure.journal import Journal
from perfci.measure.machine import Watch
from perfci.measure.options import Progress, Standing
from perfci.measure.rounds import PairOutcome, close_all, run_round
from perfci.measure.sampling import LEAST_PAIRS, adapt, next_batch, pair_cost, pairs_left
from perfci.model.base import DeviceKind
from perfci.model.comparison import differences
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Environments
from perfci.model.plan import Plan
from perfci.model.results import Case
from perfci.model.units import show_budget
from perfci.stats.answer import answer, hopeless, precise
from perfci.system.clocks import Lock

SURE = 1.25
"""A run is ended for want of budget where what it is known to need exceeds what is left by this factor."""
ROOM = 1.25
"""A budget that would do is the pairs' likely cost and a quarter."""


class Loop:
    """The rounds of one run: which cases go on, and what becomes of each pair."""

    def __init__(
        self,
        plan: Plan,
        benches: Mapping[DeviceKind, Bench],
        runner: Runner,
        journal: Journal,
        progress: Progress,
        watch: Watch,
        lock: Lock | None,
        costs: Costs,
        budget: Budget,
        environments: Environments | None = None,
    ) -> None:
        self.plan, self.benches, self.runner, self.journal = plan, benches, runner, journal
        self.progress, self.watch, self.lock, self.costs, self.budget = progress, watch, lock, costs, budget
        self.environments = environments
        """Of base and head, where they differ."""
        self.seconds = 0.0
        """Wall time of all rounds."""
        self.spent: dict[str, list[float]] = {}
        """Case key → wall seconds of its pairs; the first case of a round bears the start of the workers."""
        self.needed = 0.0
        """Seconds of budget that would do, where this one cannot show a regression of every case; else 0."""

    def run(self, cases: Sequence[Case], decided: Callable[[list[Case]], None] = lambda cases: None) -> None:
        """Append pairs to `cases` and say in each why measuring ended. Raises MachineError, KeyboardInterrupt.

        `decided` is told the cases that their pairs have decided, as they are.
        """
        start, plan = time.monotonic(), self.plan
        measurable = [case for case in cases if can_measure(case)]
        open_cases = [case for case in measurable if self._goes_on(case)]
        try:
            while open_cases:
                if not self.budget.left or self._too_short(open_cases):
                    for case in open_cases:
                        case.stopped = "budget"
                    break
                batch = next_batch(open_cases, plan, self.budget.left)
                # A number that no other round of this run has, resumed or not: orders and placements are drawn from it.
                index = sum(len(case.pairs) for case in measurable)
                if plan.exact_pairs is None:
                    for case in batch:
                        adapt(case, self.benches, plan)
                self._round(batch, index, self.budget.end)
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
                    close_all(bench, bench.spare)
            self.seconds = time.monotonic() - start

    def _standing(self, cases: Sequence[Case], open_cases: Sequence[Case]) -> Standing:
        """Return how far `cases` have come, of which those go on."""
        going = {case.key for case in open_cases}
        expected = None
        if all(case.pairs for case in open_cases):
            likely = (
                pairs_left(case, self._criteria(case), self.plan)
                * pair_cost(case, self.benches, self.spent.get(case.key, []), self.runner).likely
                for case in open_cases
            )
            expected = min(math.fsum(likely), self.budget.left)
        return Standing(
            pairs=max(len(case.pairs) for case in cases),
            open=len(going),
            decided=sum(case.key not in going and case.stopped == "decided" for case in cases),
            cases=len(cases),
            seconds=self.budget.spent,
            budget=self.plan.budget,
            expected=expected,
        )

    def _too_short(self, cases: Sequence[Case]) -> bool:
        """Tell, and say, whether the budget is certain to end before a regression of each of `cases` could be shown.

        Asked before the first pair, by the samples alone, and once more after the first pair of all, by its seconds.
        Both count what is known to be needed: pairs of the planned schedule until `adapt` may choose another, then
        pairs of the least shape there is. So no run is ended that merely might not come so far.
        """
        plan, left = self.plan, self.budget.left
        taken, first = max((len(spent) for spent in self.spent.values()), default=0), plan.looks.pairs[0]
        waits = any(self._criteria(case) and len(case.pairs) < first for case in cases)
        if plan.exact_pairs is not None or plan.max_pairs < plan.convicting or taken > 1 or not waits:
            return False
        least = likely = 0.0
        for case in cases:
            wanted = plan.convicting if self._criteria(case) and not case.proved else first
            cost = pair_cost(case, self.benches, self.spent.get(case.key, []), self.runner)
            todo = max(0, wanted - len(case.pairs))
            planned = min(todo, max(0, LEAST_PAIRS - len(case.pairs)))
            least += planned * cost.planned + (todo - planned) * cost.least
            likely += todo * cost.likely
        if least <= SURE * left:
            return False
        self.needed = self.budget.spent + ROOM * likely
        self.progress.note(
            f"the budget of {show_budget(plan.budget)} is too short to show a regression: {plan.convicting} pairs of "
            f"each case take longer; a budget of {show_budget(self.needed)} would do"
        )
        return True

    def _open(self, case: Case) -> bool:
        """Tell whether a case needs another pair."""
        if not can_measure(case):
            return False
        plan, pairs = self.plan, len(case.pairs)
        if plan.exact_pairs is not None and pairs < plan.exact_pairs:
            return True
        if pairs >= (plan.exact_pairs or plan.max_pairs):
            case.stopped = "decided" if self._settled(case) else "cap"
            return False
        if plan.purpose != "change" and pairs < plan.looks.pairs[0] and not self._criteria(case):
            return True  # nothing is asked of it, and its ratio is recorded
        return not plan.looks.at(pairs) or not self._settled(case)

    def _settled(self, case: Case) -> bool:
        """Tell whether the pairs so far answer every criterion that pairs of the case decide."""
        asked, plan = self._criteria(case), self.plan
        found = [answer(case, one, plan.looks, plan.m).decision.status for one in asked]
        wide = [
            one
            for one, status in zip(asked, found, strict=True)
            if plan.precise and status in ("regression", "improvement") and not precise(case, one, plan.looks)
        ]
        return "continue" not in found and not wide

    def _criteria(self, case: Case) -> list[Criterion]:
        """Return the criteria that pairs of the case decide: where base does not ask the same, those without it."""
        base, head = case.sides.get("base"), case.sides["head"]
        compared = (
            base is not None and base.status == "ok" and not case.proved
            and not differences(base, head, self.environments)
        )  # fmt: skip
        return [one for one in self.plan.timed if one.case_key == case.key and (compared or not one.relative)]

    def _goes_on(self, case: Case) -> bool:
        """Tell whether a case needs another pair and is worth it: at a planned look one that is hopeless is left,
        whatever there is of the budget."""
        if not self._open(case):
            return False
        plan = self.plan
        looked = plan.exact_pairs is None and len(case.pairs) in plan.looks.pairs
        if looked and hopeless(case, self._criteria(case), plan.looks, plan.m):
            case.stopped = "hopeless"
            return False
        return True

    def _round(self, batch: Sequence[Case], index: int, deadline: float) -> None:
        """Take one pair of each case of `batch`; no case is begun after `deadline`, of the monotonic clock."""
        mark = time.monotonic()

        def done(outcome: PairOutcome) -> None:
            nonlocal mark
            since, mark = mark, time.monotonic()
            self._keep(outcome, mark - since)

        self.watch.read()
        if self.lock is not None:
            self.lock.require()
        for device, bench in self.benches.items():
            kernels = [case for case in batch if case.device == device and case.origin == "kernel"]
            if kernels:
                run_round(bench, kernels, index, done, deadline)
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

    def _keep(self, outcome: PairOutcome, seconds: float) -> None:
        """Write down what became of one case in one round, which took so long."""
        case = outcome.case
        for name, failure in outcome.failures.items():
            reason = failure.model_copy(update={"during": "round"})  # only what was right is measured
            case.sides[name].status = "failed"
            case.sides[name].reason = reason
            case.stopped = "failed"
            self.journal.add_failure(case.key, name, reason)
        if outcome.pair:
            outcome.pair.at = time.time()
            case.pairs.append(outcome.pair)
            self.spent.setdefault(case.key, []).append(seconds)
            self.journal.add_pair(case.key, outcome.pair, outcome.samples)


def can_measure(case: Case) -> bool:
    """Tell whether pairs of this case are worth taking: head works."""
    return case.sides["head"].status == "ok"
