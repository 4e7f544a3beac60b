"""The run, from sources to results: what happens, in the order in which it happens.

It never imports the user's code and never touches the GPU. Each step is a module beside this one: place.py (base and
head built, the machine known), cases.py, coverage.py, plan.py, checks.py, timing.py, loop.py (the rounds), rounds.py
(one of them), sampling.py (who gets the next pair, how large), profiling/.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from perfci.measure.calibrate import history
from perfci.measure.cases import Found, mains, merge, redeclared, require_some, subjects
from perfci.measure.checks import check_all, settle_all, unredrawn
from perfci.measure.costs import Budget, Costs
from perfci.measure.coverage import everything, require_covered
from perfci.measure.journal import Journal, asked_of, earlier, put_away
from perfci.measure.loop import Loop, can_measure
from perfci.measure.machine import Watch, hold_clock, measure_ceilings
from perfci.measure.options import Options, Progress
from perfci.measure.place import Place, discover, open_place, require_untouched
from perfci.measure.plan import ask_late, fitted, identity, make_plan, piped, remarks, shared
from perfci.measure.profiling.collect import find_profilers, observe
from perfci.measure.proof.same_code import draw_audit, prove, seeks_proof
from perfci.measure.proof.work import prove_work
from perfci.measure.rounds import starved
from perfci.measure.shards.deal import share_out
from perfci.measure.shards.document import SharedPlan
from perfci.measure.shards.facts import require_cases
from perfci.model.base import PerfciError, PolicyError, Side
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.limits import criteria, looser, told
from perfci.model.plan import Declared, Plan
from perfci.model.results import Case, Reason, ReasonKind, Results, ever
from perfci.system.lease import Lease


class Measurement:
    """One run or comparison. `measure()` fills `results`, which are worth writing even when it raises."""

    def __init__(
        self,
        options: Options,
        progress: Progress,
        timed: Callable[[Results], None] = lambda results: None,
        barrier: Callable[[], None] = lambda: None,
    ) -> None:
        """`timed` is told the results once all pairs are taken, where profilers come next. `barrier` returns once all
        that measure on this host at this time have come as far: see `_together`."""
        self.options = options
        self.progress = progress
        self.timed = timed
        self.barrier = barrier
        self.costs = Costs()
        self.results: Results | None = None
        self.spent: Mapping[str, Sequence[float]] = {}
        """Case key → wall seconds of its pairs."""

    def measure(self) -> Results:
        """Do everything. Raises PerfciError; results up to then are in `self.results`."""
        with ExitStack() as stack:
            return self._measure(self._open(stack), stack)

    def _open(self, stack: ExitStack) -> Place:
        """Open the place, and wait until its devices are ours."""
        place = open_place(self.options, self.progress, stack, self.costs)
        # In one order for all: two runs would wait for each other.
        for key in sorted(place.facts.uuid or "gpu-0" if device == "cuda" else "cpu" for device in place.benches):
            with self.costs.phase("wait"):
                stack.enter_context(Lease(key, self.options.wait, self.progress.stage))
        return place

    def _measure(self, place: Place, stack: ExitStack) -> Results:
        options, stage, limits, facts = self.options, self.progress.stage, place.limits, place.facts
        watch = Watch(place)
        watch.read()  # while nothing of ours is on the GPU
        lock = hold_clock(place, options.lock_clocks, stack)

        found, cases, known, idle = self._discovered(place)
        first: Side = "head" if options.head_judges else "base"
        seen = subjects(cases, found, facts.devices, first=first)
        plan = make_plan(options, place, seen, known) if options.shard is None else options.shard.own(options.budget)
        budget = Budget(plan.budget, place.built + self.costs.so_far().get("wait", 0.0))
        if not options.profile:
            idle += [] if options.head_judges else redeclared(cases, found, limits)
            idle += looser(limits, seen, known.kernels)
        if not options.resume:
            put_away(options.out)
        run, unproved = self._prove(place, found, cases, plan, budget)
        compared = [case for case in cases if not case.proved]
        measured = [case for case in cases if case.measured("head")]
        asked = asked_of(options, place.sources.base)
        journal = Journal(options.out, identity(options, place, plan, cases), run, options.resume, cases, asked)
        stack.callback(journal.close)
        results = self.results = self._begun(place, journal.run, plan)
        results.gate, results.on_undecided = limits.mode, limits.on_undecided
        results.gpu_hour, results.custom_metrics = limits.gpu_hour, limits.metrics
        results.cases = cases
        results.files = [failure for one in found.values() for failure in one.files]
        results.imports = found["head"].imports
        results.notes = [*place.sources.notes, *unproved, *idle, *remarks(options, place.sides)]
        some = any(can_measure(case) for case in measured)  # else all is proved or skipped
        explained = options.question is None or options.question.explained
        profiled = some and explained and ("cuda" in place.benches or options.profile)
        profilers = find_profilers(place, plan, options) if profiled else None
        for line in [*told(plan.criteria), *(profilers.unanswerable(plan) if profilers is not None else [])]:
            self.progress.note(line)

        self._together(budget)
        if any(case.origin == "kernel" and can_measure(case) for case in measured):
            stage("measuring what the machine can do")
            with self.costs.phase("machine", whole=True):
                measure_ceilings(place)
        self._together(budget)
        with self.costs.phase("check"):
            probes = check_all(measured, place, found, journal, budget, fuzz=not options.quick, note=stage)
        journal.restore(measured)
        settle_all(measured, place, found, probes, None if lock is None else lock.words())
        alike = compared if place.environments is None else []  # a calibration is of forks of one environment
        results.notes += history.remarks(alike, plan, facts, strict=options.strict)
        if seeks_proof(options, place):
            with self.costs.phase("prove", whole=True):
                prove_work(measured, place, plan, self._lot(journal.run), budget, journal, stage)
            compared = [case for case in cases if not case.proved]
            measured = [case for case in cases if case.measured("head")]
            some = any(can_measure(case) for case in measured)

        self._together(budget)
        if proved := [case for case in cases if case.proved]:
            self.progress.decided(results.model_copy(update={"cases": proved}))
        if some:
            stage("measuring")
        loop = Loop(
            plan, place.benches, place.runner, journal, self.progress, watch, lock, self.costs, budget,
            place.environments,
        )  # fmt: skip
        self.spent = loop.spent
        try:
            loop.run(measured, partial(self._decided, results, place))
        finally:
            results.measuring_seconds = loop.seconds if some else 0.0
            results.budget_needed = loop.needed
        self._together(budget)
        late = place.runner.late_cases(cases, options.cases)
        late = mains(late) if options.head_judges else late
        cases += late
        measured += late
        compared += late
        results.cases = cases
        for case in measured:
            place.runner.hold_units(case)
        ask_late(plan, options, place, subjects(cases, found, facts.devices, ever, first=first))

        if profilers is not None and not loop.needed and not options.trial:
            scratch = place.parent.scratch / "profile"
            with self.costs.phase("profile", whole=True):
                say = partial(self.timed, results)
                results.notes += observe(
                    place, profilers, compared, plan, scratch, stage, options.profile, budget, say, options.trace,
                    self.barrier,
                )  # fmt: skip
        results.notes += [*unredrawn(measured), *starved(measured, plan), *watch.notes()]
        results.moments = watch.moments
        if lock is not None:
            lock.require()
        with self.costs.phase("snapshot", whole=True):
            require_untouched(place)
        self.settle(results)
        return results

    def _decided(self, results: Results, place: Place, cases: list[Case]) -> None:
        """Tell what pairs have decided, once nothing that they reported can change it."""
        if unproved := [case for case in cases if not case.proved]:
            for case in unproved:
                place.runner.hold_units(case)
            self.progress.decided(results.model_copy(update={"cases": unproved}))

    def _together(self, budget: Budget) -> None:
        """Wait for those who measure beside this. Called before and behind all that is timed, the same number of times
        in every run: neither imports and checks nor profilers run beside another's pairs."""
        with self.costs.phase("wait"):
            budget.outside(self.barrier)

    def _discovered(self, place: Place) -> tuple[dict[Side, Found], list[Case], Declared, list[str]]:
        """Return the suites, the cases to be measured, all that is declared, and notes on limits that judge nothing.

        Of a shard the cases are its own. Raises PerfciError.
        """
        options, stage, devices = self.options, self.progress.stage, list(place.benches)
        stage("discovering cases")
        found = discover(place)
        cases = merge(found, place.sides, devices, options.cases)
        self._covered(place, found)  # before commands run, which may take long
        with self.costs.phase("commands"):
            commands = None if options.shard is None else options.shard.commands
            cases += place.runner.discover(devices, options.cases, stage, commands)
        if options.shard is not None:
            require_cases(options.shard, cases)
            own = {case.key for case in options.shard.cases}
            cases = [case for case in cases if case.key in own]
        if options.head_judges:
            cases = mains(cases)
        known = everything(place, found)
        require_some(cases, found, known, options.cases if options.shard is None else [])
        return found, cases, known, self._covered(place, found)

    def plan(self, shards: int, last: Path, *, fewer: bool = False) -> SharedPlan:
        """Return the plan of this comparison for `shards` machines: all up to the first sample. Raises PerfciError.

        `last`: results that tell what each case costs. `fewer`: where there are fewer cases, for as many as there are.
        """
        with ExitStack() as stack:
            place = self._open(stack)
            found, cases, known, idle = self._discovered(place)
            plan = make_plan(self.options, place, subjects(cases, found, place.facts.devices), known)
            run, unproved = self._prove(place, found, cases, plan, Budget(plan.budget, place.built))
            require_untouched(place)
            for line in [*unproved, *idle, *told(plan.criteria)]:
                self.progress.note(line)
            return share_out(self.options, place, cases, plan, run, shards, last, fewer=fewer)

    def _prove(
        self, place: Place, found: Mapping[Side, Found], cases: Sequence[Case], plan: Plan, budget: Budget
    ) -> tuple[str, list[str]]:
        """Find the cases that need not be measured, of which none shares α. Returns the identifier of the run, drawn
        once head's code has run, since it decides what is audited; and notes."""
        options, notes = self.options, list[str]()
        if options.shard is not None:  # proved, and drawn, as it was planned
            proofs = {case.key: case.proof for case in options.shard.cases}
            for case in cases:
                case.proof = proofs[case.key]
            return options.shard.plan.run, notes
        known = earlier(options.out) if options.resume else None
        if seeks_proof(options, place) and known is None:
            self.progress.stage("proving what did not change")
            with self.costs.phase("prove", whole=True):
                notes = prove(cases, place, found, plan, budget, self.progress.stage, fuzz=not options.quick)
        run = _new_run()
        if known is None and (lot := self._lot(run)):
            draw_audit(cases, lot)
        elif known is not None and seeks_proof(options, place):
            for case in cases:
                case.proof = known.get(case.key)
        plan.m = shared(plan.criteria, options, {case.key for case in cases if case.code_proved})
        plan.looks = fitted(plan.m, options)
        return run, notes

    def _lot(self, run: str) -> str:
        """Return what says which proved cases are audited; empty where none is."""
        if self.options.question is not None:
            return ""
        return run if self.options.seed is None else str(self.options.seed)

    def settle(self, results: Results) -> None:
        """Put the account so far into `results`."""
        results.costs = self.costs.so_far()
        results.seconds = sum(results.costs.values())

    def _covered(self, place: Place, found: Mapping[Side, Found]) -> list[str]:
        """Return notes on limits that judge nothing. Raises UsageError where one must not.

        What is wrong with base alone is worth results without a number: who publishes them knows by them that head
        fixes it.
        """
        known = everything(place, found)
        if self.options.question is not None:
            return []  # no limit of the policy is asked
        try:
            return require_covered(place, found, known)
        except PolicyError:
            self.results = self._begun(place, _new_run(), make_plan(self.options, place, [], known))
            raise

    def _begun(self, place: Place, run: str, plan: Plan) -> Results:
        """Return results that hold what is known before the first case is checked."""
        sources = place.sources
        return Results(
            run=run,
            mode=self.options.mode,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=reproduction(
                self.options.command, None if self.options.itself or not sources.base else sources.base.sha
            ),
            repository=sources.root.name,
            fingerprint=place.facts,
            environments=place.environments,
            sides={name: side.info for name, side in place.sides.items()},
            policy_from=sources.policy_from,
            plan=plan,
            part=None if self.options.shard is None else self.options.shard.part,
        )

    def listing(self) -> "Listing":
        """Return the cases of head and the plan of a comparison with all their criteria. Measures nothing."""
        with ExitStack() as stack:
            place = open_place(self.options, self.progress, stack, self.costs, listing=True)
            found = discover(place)
            globs, known = self.options.cases, everything(place, found)
            notes = require_covered(place, found, known)
            cases = merge(found, place.sides, list(place.benches), globs)
            cases += place.runner.declared(list(place.benches), globs)
            require_some(cases, found, known, globs)
            seen = subjects(cases, found, place.facts.devices)
            options = replace(self.options, mode="compare")
            plan = make_plan(options, place, seen, known)
            broken = [f"{f.file}: {f.reason.text}" for one in found.values() for f in one.files]
            notes += [*filter(None, [place.lost]), *piped(place.sides["head"].policy.commands), *told(plan.criteria)]
            notes += looser(place.limits, seen, known.kernels)
            if "cuda" in place.benches and plan.observed:
                notes += find_profilers(place, plan, options).unanswerable(plan)
            asked = criteria(place.limits, seen, known.kernels, purpose="reference")
            return Listing(cases, plan, [one for one in asked if one.kind == "creep"], place.facts, broken, notes)


class Listing(NamedTuple):
    """A comparison of this tree, as it would be before anything is measured."""

    cases: list[Case]
    plan: Plan
    creep: list[Criterion]
    """Criteria that a comparison with the reference asks in the place of relative limits."""
    facts: Fingerprint
    broken: list[str]
    """Suite files that do not import, with the reason."""
    notes: list[str]
    """Obstacles to a measurement, and limits that could not be judged here."""


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


def reproduction(command: Sequence[str], base: str | None) -> list[str]:
    """Return the command line with base as its commit, so that it measures the same once branches have moved."""
    words = list(command)
    if base is None:
        return words
    for index, word in enumerate(words):
        if word == "--base" and index + 1 < len(words):
            return [*words[: index + 1], base, *words[index + 2 :]]
        if word.startswith("--base="):
            return [*words[:index], f"--base={base}", *words[index + 1 :]]
    return [*words, "--base", base]


def failed_results(measurement: Measurement, error: PerfciError | KeyboardInterrupt) -> Results | None:
    """Return the results worth writing after an error: everything measured so far, with the reason why it ended."""
    results = measurement.results
    if results is None:
        return None
    kind: ReasonKind = "policy" if isinstance(error, PolicyError) else "exit"
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
        if not measurement.options.profile:  # which is short, and begins anew
            kind, text = "interrupt", "interrupted: continue with --resume"
    results.error = Reason(kind=kind, text=text[:1000])
    measurement.settle(results)
    return results
