"""The run, from sources to results, in the order in which it happens.

It never imports the user's code and never touches the GPU. Each step is a module beside this one.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from perfci.measure.budget import Budget
from perfci.measure.cases import Declarations, ended, mains, merge, redeclared, require_some, subjects
from perfci.measure.checks import check_all, longer_hosts, missed, settle_all, settle_hosts, unredrawn
from perfci.measure.claims import CLAIM_ROUNDS, claimants, fit_claims, loop_plan, plan_claims
from perfci.measure.costs import Costs
from perfci.measure.coverage import everything, require_covered
from perfci.measure.discovery import discover
from perfci.measure.journal import Journal, begun_with, earlier, put_away
from perfci.measure.loop import Loop, can_measure
from perfci.measure.machine import Watch, measure_ceilings
from perfci.measure.place import Place, open_place, require_untouched
from perfci.measure.plan import fitted, identity, make_plan, piped, remarks, shared
from perfci.measure.profiling.collect import Profilers, find_profilers, observe
from perfci.measure.proof.same_code import draw_audit, prove, seeks_proof
from perfci.measure.proof.work import prove_work
from perfci.measure.renamed import renamed
from perfci.measure.request import Progress, Request, What
from perfci.measure.rounds import launch_gap_notes
from perfci.measure.sides.planned import require_cases
from perfci.model.base import MachineError, PerfciError, PolicyError, Side
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.limits import Subject, criteria, looser, told
from perfci.model.plan import Declared, Plan
from perfci.model.results import UNREAD, Case, Reason, ReasonKind, Results
from perfci.system.lease import Lease


@dataclass
class Cases:
    """The cases of a run, and what suites declare."""

    all: list[Case]
    declarations: Mapping[Side, Declarations]
    known: Declared
    idle: list[str]
    devices: Mapping[str, str]
    first: Side
    """The side whose declarations count."""

    @property
    def measured(self) -> list[Case]:
        """Those checked and timed."""
        return [case for case in self.all if case.measured("head")]

    @property
    def open(self) -> list[Case]:
        """Those worth pairs."""
        return [case for case in self.measured if can_measure(case)]

    def subjects(self) -> list[Subject]:
        """Return them as limits see them."""
        return subjects(self.all, self.declarations, self.devices, first=self.first)


@dataclass
class _Settled:
    """What is known before the journal: which cases are asked what, within which budget."""

    cases: Cases
    plan: Plan
    budget: Budget
    run: str = ""
    """The run's identifier."""
    unproved: list[str] = field(default_factory=list)
    """Notes on why nothing could be proved."""


@dataclass(frozen=True)
class _Run:
    """What a run's stages share once it is written down."""

    place: Place
    cases: Cases
    plan: Plan
    budget: Budget
    journal: Journal
    results: Results
    profilers: Profilers | None
    watch: Watch


@dataclass
class Measurement:
    """`measure()` fills `results`, worth writing even when it raises."""

    request: Request
    progress: Progress
    timed: Callable[[Results], None] = lambda results: None
    """Gets the results before profilers start."""
    barrier: Callable[[], None] = lambda: None
    """Returns once all runs on this host have come as far."""
    costs: Costs = field(default_factory=Costs)
    results: Results | None = None

    def measure(self) -> Results:
        """Do everything. Raises PerfciError."""
        with ExitStack() as stack:
            place = self._open(stack)
            watch = Watch(place)
            watch.read()  # while nothing of ours is on the GPU
            settled = self._plan(place, self._discover(place))
            self._tell_idle(place, settled)
            if not self.request.how.resume:
                put_away(self.request.where.out)
            self._settle_plan(place, settled)
            run = self._begin(place, settled, watch, stack)
            self._check(run)
            self._prove_work(run)
            self._time(run)
            self._profile(run)
            self._claim(run)
            self._end(run)
            return run.results

    def _open(self, stack: ExitStack) -> Place:
        place = open_place(self.request, self.progress, stack, self.costs)
        # In one order for all: two runs would wait for each other.
        for key in sorted(place.facts.uuid or "gpu-0" if device == "cuda" else "cpu" for device in place.benches):
            with self.costs.phase("wait"):
                stack.enter_context(Lease(key, self.request.how.wait, self.progress.stage))
        return place

    def _discover(self, place: Place) -> Cases:
        what, planned = self.request.what, self.request.planned
        stage, devices = self.progress.stage, list(place.benches)
        declarations = discover(place, what.cases, stage)
        cases = merge(declarations, place.sides, devices, what.cases)
        self._covered(place, declarations)  # before commands run, which may take long
        with self.costs.phase("commands"):
            commands = None if planned is None else planned.known.values()
            cases += place.runner.discover(devices, what.cases, stage, commands)
        if planned is not None:
            cases = require_cases(planned, cases)
        if what.head_judges:
            cases = mains(cases)
        known = everything(place, declarations)
        require_some(cases, declarations, known, what.cases if planned is None else [])
        idle = self._covered(place, declarations)
        return Cases(cases, declarations, known, idle, place.facts.devices, "head" if what.head_judges else "base")

    def _plan(self, place: Place, cases: Cases) -> _Settled:
        planned = self.request.planned
        if planned is None:
            plan = make_plan(self.request, place, cases.subjects(), cases.known)
            plan.claims = plan_claims(self.request.what, cases.measured)
        else:
            plan = planned.plan
        plan.budget = self.request.how.budget or plan.budget
        began = place.built + self.costs.so_far().get("wait", 0.0)
        return _Settled(cases, plan, Budget(plan.budget, began, place.parent.builds))

    def _tell_idle(self, place: Place, settled: _Settled) -> None:
        """Find scripts that fail, and limits that ask nothing, or less than base's. Raises UsageError."""
        cases, limits = settled.cases, place.limits
        cases.idle += ended(cases.declarations)
        if settled.plan.judged:
            cases.idle += [] if self.request.what.head_judges else redeclared(cases.all, cases.declarations, limits)
            cases.idle += looser(limits, cases.subjects(), cases.known.kernels)

    def _settle_plan(self, place: Place, settled: _Settled) -> None:
        """Prove cases by their code, which then share no α: fix the plan's `m` and looks, and the run's identifier.

        That one decides on audits, and is drawn once head's code has run.
        """
        what, cases, plan = self.request.what, settled.cases.all, settled.plan
        if self.request.planned is not None:  # proved, and drawn, as it was planned
            settled.run = self.request.planned.run
            for case in cases:
                case.proof = self.request.planned.proofs[case.key]
            return
        known = earlier(self.request.where.out) if self.request.how.resume else None
        seeks = seeks_proof(what, place, plan)
        if seeks and known is None:
            self.progress.stage("proving what did not change")
            with self.costs.phase("prove", whole=True):
                settled.unproved = prove(
                    cases,
                    place,
                    settled.cases.declarations,
                    plan,
                    settled.budget,
                    self.progress.stage,
                    fuzz=not what.quick,
                )
        settled.run = _new_run()
        if known is None and (lot := self._lot(settled.run)):
            draw_audit(cases, lot)
        elif known is not None and seeks:
            for case in cases:
                case.proof = known.get(case.key)
        plan.m = shared(plan.criteria, what, {case.key for case in cases if case.code_proved})
        plan.looks = fitted(plan.m, what)
        if plan.claims is not None:
            fit_claims(what, plan.claims, cases)

    def _begin(self, place: Place, settled: _Settled, watch: Watch, stack: ExitStack) -> _Run:
        """Write down what is known before the first check."""
        what, how, limits = self.request.what, self.request.how, place.limits
        cases, plan, budget = settled.cases, settled.plan, settled.budget
        request = self.request.but(command=self._command(place))
        begun = begun_with(request, place.sources.base, cases.all)
        marks = identity(self.request, place, plan, cases.all)
        journal = Journal(self.request.where.out, marks, settled.run, how.resume, begun)
        stack.callback(journal.close)
        results = self.results = self._begun(place, journal.run, plan)
        results.fail_on = limits.fail_on
        results.gpu_hour, results.custom_metrics = limits.gpu_hour, limits.metrics
        results.cases = cases.all
        results.files = [failure for one in cases.declarations.values() for failure in one.files]
        results.imports = cases.declarations["head"].imports
        trees = {name: side.tree for name, side in place.sides.items()}
        results.changed = place.sources.changed
        results.notes = [*place.sources.notes, *settled.unproved, *cases.idle, *renamed(cases.all, trees)]
        results.notes += remarks(what, plan, place.sides)
        explained = what.question is None or what.question.explained
        profiled = cases.open and explained and ("cuda" in place.benches or not plan.judged)
        profilers = find_profilers(place, plan, how, self.request.where.out) if profiled else None
        for line in [*told(plan.criteria), *(profilers.unanswerable(plan) if profilers is not None else [])]:
            self.progress.note(line)
        return _Run(place, cases, plan, budget, journal, results, profilers, watch)

    def _check(self, run: _Run) -> None:
        place, cases, stage = run.place, run.cases, self.progress.stage
        self._together(run.budget)
        if any(case.origin == "kernel" for case in cases.open):
            stage("measuring what the machine can do")
            with self.costs.phase("machine", whole=True):
                measure_ceilings(place)
        self._together(run.budget)
        fuzz = not self.request.what.quick
        with self.costs.phase("check"):
            probes = check_all(
                cases.measured, place, cases.declarations, run.journal, run.budget, fuzz=fuzz, note=stage
            )
        run.journal.restore(cases.measured)
        settle_all(cases.measured, place, cases.declarations, probes)
        settle_hosts(cases.measured, place, run.plan.criteria, probes)

    def _prove_work(self, run: _Run) -> None:
        if seeks_proof(self.request.what, run.place, run.plan):
            lot = self._lot(run.journal.run)
            with self.costs.phase("prove", whole=True):
                prove_work(run.cases.measured, run.place, run.plan, lot, run.budget, run.journal, self.progress.stage)

    def _time(self, run: _Run) -> None:
        place, results, some = run.place, run.results, bool(run.cases.open)
        self._together(run.budget)
        run.budget.count_builds()  # what is kept was built by checks; the rest is compiled for each pair
        if proved := [case for case in run.cases.all if case.proved and not case.host_open]:
            self.progress.decided(results.model_copy(update={"cases": proved}))
        if some:
            self.progress.stage("measuring")
        loop = Loop(
            run.plan, place.benches, place.runner, run.journal, self.progress, run.watch, self.costs, run.budget,
            place.environments,
        )  # fmt: skip
        try:
            loop.run(run.cases.measured, partial(self._decided, results))
        finally:
            results.measuring_seconds = loop.seconds if some else 0.0
            results.budget_needed = loop.needed
        self._together(run.budget)

    def _profile(self, run: _Run) -> None:
        if run.profilers is None or run.results.budget_needed:
            return
        unproved = [case for case in run.cases.all if not case.proved]
        with self.costs.phase("profile", whole=True):
            run.results.notes += observe(
                run.place, run.profilers, unproved, run.plan, run.place.parent.scratch / "profile",
                self.progress.stage, run.budget, partial(self.timed, run.results), self.request.how.trace, self.barrier,
            )  # fmt: skip

    def _claim(self, run: _Run) -> None:
        """Take pairs for what is claimed, once all is known that limits and explanations rest on."""
        place, claims = run.place, run.plan.claims
        if claims is None or run.results.budget_needed:
            return
        with claimants(run.cases.measured, claims, run.journal, place.environments) as cases:
            if cases:
                self.progress.stage("measuring what is claimed")
            loop = Loop(
                loop_plan(run.plan, claims),
                place.benches,
                place.runner,
                run.journal.of_claims(),
                self.progress,
                run.watch,
                self.costs,
                run.budget,
                place.environments,
                CLAIM_ROUNDS,
            )
            try:
                loop.run(cases)
            except (MachineError, KeyboardInterrupt) as error:
                if not claims.described:
                    raise  # else it is the description's alone: limits are decided, and no description ends a run
                run.results.notes.append(f"what the description claims was not measured: {str(error) or 'interrupted'}")

    def _end(self, run: _Run) -> None:
        measured, results = run.cases.measured, run.results
        results.notes += [*missed(measured), *unredrawn(measured), *longer_hosts(run.cases.all, run.plan.criteria)]
        results.notes += [*launch_gap_notes(measured, run.plan), *run.watch.notes()]
        results.moments = run.watch.moments
        with self.costs.phase("snapshot", whole=True):
            require_untouched(run.place)
        self.settle(results)

    def _decided(self, results: Results, cases: list[Case]) -> None:
        if unproved := [case for case in cases if not case.proved or case.host_open]:
            self.progress.decided(results.model_copy(update={"cases": unproved}))

    def _together(self, budget: Budget) -> None:
        """Wait, as often in every run: neither imports and checks nor profilers run beside another's pairs."""
        with self.costs.phase("wait"):
            budget.outside(self.barrier)

    def plan(self) -> tuple[Place, list[Case], Plan, str]:
        """Do all up to the first sample; return also the run's identifier. Raises PerfciError."""
        with ExitStack() as stack:
            place = self._open(stack)
            cases = self._discover(place)
            settled = self._plan(place, cases)
            self._settle_plan(place, settled)
            require_untouched(place)
            for line in [*settled.unproved, *cases.idle, *told(settled.plan.criteria)]:
                self.progress.note(line)
            return place, cases.all, settled.plan, settled.run

    def _lot(self, run: str) -> str:
        if self.request.what.question is not None:
            return ""
        return run if self.request.what.seed is None else str(self.request.what.seed)

    def settle(self, results: Results) -> None:
        """Put the account so far into `results`."""
        results.costs = self.costs.so_far()
        results.seconds = sum(results.costs.values())

    def _covered(self, place: Place, declarations: Mapping[Side, Declarations]) -> list[str]:
        """Where base alone is wrong, results without a number are written: their publisher sees that head fixes it."""
        known = everything(place, declarations)
        if self.request.what.question is not None:
            return []  # no limit of the policy is asked
        try:
            return require_covered(place, declarations, known)
        except PolicyError:
            self.results = self._begun(place, _new_run(), make_plan(self.request, place, [], known))
            raise

    def _command(self, place: Place) -> list[str]:
        what, sources = self.request.what, place.sources
        named = {} if what.itself else {"base": sources.base, "head": sources.head}
        commits = {name: commit.sha for name, commit in named.items() if commit is not None}
        return reproduction(self.request.how.command, what, commits)

    def _begun(self, place: Place, run: str, plan: Plan) -> Results:
        sources, what = place.sources, self.request.what
        return Results(
            run=run,
            mode=what.mode,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=self._command(place),
            repository=sources.root.name,
            fingerprint=place.facts,
            environments=place.environments,
            sides={name: side.info for name, side in place.sides.items()},
            policy_from=sources.policy_from,
            plan=plan,
            part=None if self.request.planned is None else self.request.planned.part,
        )

    def listing(self) -> "Listing":
        """Return head's cases and the plan of a comparison."""
        with ExitStack() as stack:
            place = open_place(self.request, self.progress, stack, self.costs, listing=True)
            globs = self.request.what.cases
            declarations = discover(place, globs, self.progress.stage, listing=True)
            known = everything(place, declarations)
            notes = require_covered(place, declarations, known)
            cases = merge(declarations, place.sides, list(place.benches), globs)
            cases += place.runner.declared(list(place.benches), globs)
            require_some(cases, declarations, known, globs)
            seen = subjects(cases, declarations, place.facts.devices)
            request = self.request.but(mode="compare")
            plan = make_plan(request, place, seen, known)
            broken = [f"{UNREAD[f.why]}: {f.file}: {f.reason.text}" for one in declarations.values() for f in one.files]
            notes += [*filter(None, [place.lost]), *piped(place.sides["head"].policy.commands), *told(plan.criteria)]
            notes += looser(place.limits, seen, known.kernels)
            if "cuda" in place.benches and plan.observed:
                notes += find_profilers(place, plan, request.how, request.where.out).unanswerable(plan)
            asked = criteria(place.limits, seen, known.kernels, purpose="reference")
            notes += ended(declarations)
            return Listing(cases, plan, [one for one in asked if one.kind == "creep"], place.facts, broken, notes)


class Listing(NamedTuple):
    """A comparison before any measurement."""

    cases: list[Case]
    plan: Plan
    creep: list[Criterion]
    """Criteria of a comparison with the reference."""
    facts: Fingerprint
    broken: list[str]
    """Suite files that do not import, and why."""
    notes: list[str]
    """Obstacles, and limits that cannot be judged here."""


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


def reproduction(command: Sequence[str], what: What, commits: Mapping[str, str]) -> list[str]:
    """Return the command line with commits in place of their names: it measures the same once branches have moved."""
    words, base = list(command), commits.get("base")
    for index, word in enumerate(words):
        if base and word.startswith("--base="):
            words[index] = f"--base={base}"
        elif base and words[index - 1] == "--base" and index:
            words[index] = base
    for named, commit in ((what.base, base), (what.head, commits.get("head"))):
        for index, word in enumerate(words[2:], 2):
            behind = words[index - 1] if index > 2 else ""
            if commit and word == named and (behind in _TAKING_NONE or not behind.startswith("-")):
                words[index] = commit
                break
    if base and "compare" in words and base not in words and f"--base={base}" not in words:
        words.insert(words.index("compare") + 1, base)
    return words


_TAKING_NONE = ("--quick", "--strict", "--resume", "--json", "--committed", "--creep", "--measure-all")
"""Options before a commit, which is the value of another."""


def failed_results(measurement: Measurement, error: PerfciError | KeyboardInterrupt) -> Results | None:
    """Return what was measured so far, with the reason of the end."""
    results = measurement.results
    if results is None:
        return None
    kind: ReasonKind = "policy" if isinstance(error, PolicyError) else "exit"
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
        if results.plan.judged:  # a profile is short, and begins anew
            kind, text = "interrupt", "interrupted: continue with --resume"
    results.error = Reason(kind=kind, text=text[:1000])
    measurement.settle(results)
    return results
