"""The run: from sources to results. It never imports the user's code and never touches the GPU."""

import hashlib
import json
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from perfci.measure.calibrate import history
from perfci.measure.cases import Found, merge, redeclared, require_some, subjects
from perfci.measure.checks import Probes, check_side, unredrawn
from perfci.measure.commands.runner import Runner
from perfci.measure.coverage import everything, require_covered
from perfci.measure.journal import Journal
from perfci.measure.machine import Watch, hold_clock, measure_ceilings
from perfci.measure.options import Options, Progress
from perfci.measure.place import Place, discover, open_place, require_untouched
from perfci.measure.prepare import SideWork, Sources
from perfci.measure.profiling.collect import find_tools, observe
from perfci.measure.rounds import Bench, Outcome, run_round
from perfci.measure.sampling import adapt, next_batch
from perfci.measure.timing import MODES, SCHEDULES, Gpu, Refused, TimingMode, settle
from perfci.model.base import DeviceKind, PerfciError, PolicyError, Side
from perfci.model.comparison import differences
from perfci.model.criteria import Subject, gates, judgements, late, looser, told, waiting
from perfci.model.fingerprint import Fingerprint
from perfci.model.plan import Declared, Looks, Plan
from perfci.model.policy import Command, Policy
from perfci.model.results import Case, Reason, ReasonKind, Results, ever
from perfci.model.text import hides_failures
from perfci.stats.answer import answer
from perfci.system.clocks import Lock
from perfci.system.lease import Lease

PROFILED_PAIRS = 2
"""Worker pairs of a profile: times to stand beside what profilers see, and no more."""
QUICK_BUDGET = 50.0
QUICK_LOOKS = 3
"""`--quick`: seconds, and looks (16 pairs)."""
QUICK_SHARE = 0.9
"""Of α at the only look that convicts. Looks that share α leave room for a last one between them, one alone does not;
simulated beside `stats.decide.LAST`."""
MEASURED = {"memory": True, "extra": {"ceilings", "nvml"}}
"""Of a fingerprint, what differs from one look at a machine to the next."""


def make_plan(options: Options, place: Place, subjects: Sequence[Subject], declared: Declared) -> Plan:
    """Everything that is fixed before the first sample. Without a base there are only absolute limits."""
    asked, gating = judgements(place.limits, subjects), gates(place.limits, subjects, declared.kernels)
    unanswered = waiting(place.limits, subjects, declared.kernels)
    if options.mode == "run":
        asked = [judgement for judgement in asked if judgement.kind != "regression"]
        gating = [gate for gate in gating if gate.kind != "regression"]
        unanswered = [one for one in unanswered if not one.relative]
    if options.profile:
        asked, gating, unanswered = [], [], []
    looks = Looks()
    if options.quick:
        looks = Looks(
            pairs=looks.pairs[:QUICK_LOOKS], alpha_spending=[0.0, 0.0, QUICK_SHARE], beta_spending=[0.5, 0.25, 0.25]
        )
    return Plan(
        seed=place.seed,
        sides=list(place.sides),
        looks=looks,
        devices=list(place.benches),
        schedules={name: SCHEDULES[name] for device in place.benches for name in MODES[device]},
        judgements=asked,
        gates=gating,
        waiting=unanswered,
        declared=declared,
        m=max(1, sum(judgement.gating for judgement in asked)),
        budget=options.budget or (QUICK_BUDGET if options.quick else place.limits.budget),
        max_pairs=looks.pairs[-1],
        exact_pairs=PROFILED_PAIRS if options.profile else options.exact_pairs,
        judged=not options.profile,
    )


class Listing(NamedTuple):
    """What a comparison of this tree would be, before anything is measured."""

    cases: list[Case]
    plan: Plan
    facts: Fingerprint
    broken: list[str]
    """Suite files that do not import, with the reason."""
    notes: list[str]
    """What stands in the way of a measurement, and which limits could not be judged here."""


class Measurement:
    """One run or comparison. `measure()` fills `results`, which are worth writing even when it raises."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        self.started = time.monotonic()
        self.results: Results | None = None
        self.watch: Watch | None = None
        self.lock: Lock | None = None
        self.spent: dict[str, list[float]] = {}
        """Case key → wall seconds of its pairs; the first case of a round bears the start of the workers."""

    def measure(self) -> Results:
        """Do everything. Raises PerfciError; results up to then are in `self.results`."""
        with ExitStack() as stack:
            place = open_place(self.options, self.progress, stack)
            for device in place.benches:
                key = place.facts.uuid or "gpu-0" if device == "cuda" else "cpu"
                stack.enter_context(Lease(key, self.options.wait, self.progress.note))
            self.watch = Watch(place)
            self.watch.look()  # while nothing of ours is on the GPU
            self.lock = hold_clock(place, self.options.lock_clocks, stack)
            self._measure(place, stack)
        assert self.results is not None
        return self.results

    def listing(self) -> Listing:
        """The cases of head and the plan of a comparison with all their judgements. Measures nothing."""
        with ExitStack() as stack:
            place = open_place(self.options, self.progress, stack, listing=True)
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
            notes += [*filter(None, [place.lost]), *piped(place.sides["head"].policy.commands), *told(plan.waiting)]
            notes += looser(place.limits, seen, known.kernels)
            if "cuda" in place.benches and plan.gates:
                notes += find_tools(place, plan, options).unanswerable(plan)
            return Listing(cases, plan, place.facts, broken, notes)

    def _measure(self, place: Place, stack: ExitStack) -> None:
        options, sources, limits, facts = self.options, place.sources, place.limits, place.facts
        sides, benches, runner, devices = place.sides, place.benches, place.runner, list(place.benches)
        self.progress.stage("discovering cases")
        found = discover(place)
        cases = merge(found, sides, devices, options.cases)
        self._covered(place, found)  # before commands run, which may take long
        cases += runner.discover(devices, options.cases, self.progress.stage)
        known = everything(place, found)
        require_some(cases, found, known, options.cases)
        idle = self._covered(place, found)
        seen = subjects(cases, found, facts.devices)
        plan = make_plan(options, place, seen, known)
        idle += [] if options.profile else [*redeclared(cases, found, limits), *looser(limits, seen, known.kernels)]
        identity = self._identity(sources, sides, plan, facts, cases)
        journal = Journal(options.out, identity, uuid.uuid4().hex[:12], options.resume)
        stack.callback(journal.close)
        self.results = Results(
            run=journal.run,
            mode=options.mode,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=reproduction(options.command, sources.base.sha if sources.base else None),
            repository=sources.root.name,
            fingerprint=facts,
            sides={name: side.info for name, side in sides.items()},
            policy_from=sources.policy_from,
            policy_digest=digest(limits.model_dump(mode="json")),
            gate=limits.mode,
            on_undecided=limits.on_undecided,
            gpu_hour=limits.gpu_hour,
            custom_metrics=limits.metrics,
            plan=plan,
            cases=cases,
            files=[failure for one in found.values() for failure in one.files],
            notes=[*sources.notes, *idle, *self._notes(sides, options)],
        )
        tools = find_tools(place, plan, options) if "cuda" in benches or options.profile else None
        for line in [*told(plan.waiting), *(tools.unanswerable(plan) if tools is not None else [])]:
            self.progress.note(line)
        if any(case.origin == "kernel" for case in cases):
            self.progress.stage("measuring what the machine can do")
            measure_ceilings(place)
        probes = self._check(cases, place, found, journal, fuzz=not options.quick)
        for case in cases:
            case.pairs = sorted(journal.pairs.get(case.key, []), key=lambda pair: pair.index)
            for name in sides:
                if (case.key, name) in journal.failed:
                    case.sides[name].status = "failed"
                    case.sides[name].reason = journal.failed[case.key, name]
        self._settle(cases, place, found, probes)
        self.results.notes += history.remarks(cases, plan, facts, strict=options.strict)
        self._rounds(cases, plan, benches, runner, journal)
        cases += runner.late_cases(cases, options.cases)
        self.results.cases = cases
        for case in cases:
            runner.hold_units(case)
        self._ask_late(plan, place, subjects(cases, found, facts.devices, ever))
        if tools is not None:
            scratch = place.parent.scratch / "profile"
            self.results.notes += observe(place, tools, cases, plan, scratch, self.progress.stage, options.profile)
        self.results.notes += [*unredrawn(cases), *starved(cases, plan)]
        if self.watch is not None:
            self.results.notes += self.watch.notes()
            self.results.moments = self.watch.moments
        if self.lock is not None:
            self.lock.require()
        require_untouched(place)
        self.results.seconds = time.monotonic() - self.started

    def _ask_late(self, plan: Plan, place: Place, seen: Sequence[Subject]) -> None:
        """Add to the plan what only later executions of commands showed to be asked; `m` stays, since it has no answer.

        `seen`: the cases with all that any execution reported.
        """
        if plan.judged:
            found = late(place.limits, seen, plan.judgements)
            plan.judgements += [one for one in found if self.options.mode == "compare" or one.kind != "regression"]

    def _covered(self, place: Place, found: Mapping[Side, Found]) -> list[str]:
        """Notes on limits that judge nothing. Raises UsageError where one must not.

        What is wrong with base alone is worth results without a number: who publishes them knows by them that head
        mends it.
        """
        known = everything(place, found)
        try:
            return require_covered(place, found, known)
        except PolicyError:
            self.results = Results(
                run=uuid.uuid4().hex[:12],
                mode=self.options.mode,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                command=reproduction(self.options.command, place.sources.base.sha if place.sources.base else None),
                repository=place.sources.root.name,
                fingerprint=place.facts,
                sides={name: side.info for name, side in place.sides.items()},
                policy_from=place.sources.policy_from,
                plan=Plan(seed=place.seed, sides=list(place.sides), declared=known),
            )
            raise

    def _notes(self, sides: Mapping[Side, SideWork], options: Options) -> list[str]:
        notes = piped(sides["head"].policy.commands)
        if sides["head"].info.dirty:
            notes.append("head is the working tree with changes that are not committed")
        if options.mode == "run" and not options.profile:
            notes.append(
                "compared with nothing: only absolute limits were judged (`perfci compare --base REF` compares)"
            )
        if options.profile:
            notes.append(f"profiled, not judged: times are of {PROFILED_PAIRS} workers")
        if options.quick and not options.profile:
            notes.append("--quick: at most 16 pairs, no fuzzed shapes; an undecided case needs a full run")
        return notes

    def _identity(
        self,
        sources: Sources,
        sides: Mapping[Side, SideWork],
        plan: Plan,
        facts: Fingerprint,
        cases: Sequence[Case],
    ) -> dict[str, Any]:
        """What must be the same for `--resume` to continue a journal."""
        return {
            "mode": self.options.mode,
            **{f"the code of {name}": side.info.tree for name, side in sides.items()},
            "the policy of head": digest(sources.policies["head"].model_dump(mode="json")),
            "the set of cases": digest([case.key for case in cases]),
            "the plan": digest(plan.model_dump(mode="json", exclude={"budget"})),
            "the machine": digest(
                facts.model_dump(mode="json", exclude={"memory": True, "extra": {"ceilings", "nvml"}})
            ),
        }

    def _check(
        self,
        cases: Sequence[Case],
        place: Place,
        found: Mapping[Side, Found],
        journal: Journal,
        *,
        fuzz: bool,
    ) -> Probes:
        probes: Probes = {}
        asked = {case.key: timing_of(case, found, place.limits) for case in cases}
        for device, bench in place.benches.items():
            kernels = [case for case in cases if case.device == device and case.origin == "kernel"]
            for name in place.sides:
                with place.sides[name].own():
                    made = check_side(
                        bench, name, kernels, found, journal, fuzz=fuzz, note=self.progress.stage, asked=asked
                    )
                for key, by_side in made.items():
                    probes.setdefault(key, {}).update(by_side)
        return probes

    def _gpu(self, place: Place) -> Gpu:
        """What timing modes need to know of the GPU."""
        extra = place.facts.extra
        exclusive = (extra.get("nvml") or {}).get("compute_mode") == "exclusive"
        return Gpu(extra.get("l2_bytes", 0), extra.get("memory_bytes", 0), exclusive)

    def _settle(self, cases: Sequence[Case], place: Place, found: Mapping[Side, Found], probes: Probes) -> None:
        """Fix how each case is measured, the same in both sides; a case that cannot be measured so has failed."""
        for case in cases:
            working = {name: one for name, one in probes.get(case.key, {}).items() if case.sides[name].status == "ok"}
            if case.origin != "kernel" or not working:
                continue
            asked = timing_of(case, found, place.limits)
            bench = place.benches[case.device]
            try:
                setup = settle(case.device, asked, working, self._gpu(place), bench.threads)
            except Refused as refused:
                for name, probe in working.items():
                    if probe.refused:
                        case.sides[name].status = "failed"
                        case.sides[name].reason = Reason(kind="exception", text=str(refused)[:1000])
                continue
            bench.setups[case.key] = setup
            for name, probe in working.items():
                case.sides[name].timing = {**setup.says, **probe.settings}
                if self.lock is not None and case.device == "cuda":
                    case.sides[name].timing["clocks"] = self.lock.words()

    def _rounds(
        self,
        cases: Sequence[Case],
        plan: Plan,
        benches: Mapping[DeviceKind, Bench],
        runner: Runner,
        journal: Journal,
    ) -> None:
        """Rounds of worker pairs until every case is decided, the cap is reached or the budget is spent."""
        assert self.results is not None
        start = time.monotonic()
        self.progress.stage("measuring")
        measurable = [case for case in cases if can_measure(case)]
        open_cases = [case for case in measurable if self._open(case, plan)]
        try:
            while open_cases:
                spent = time.monotonic() - start
                if spent >= plan.budget:
                    for case in open_cases:
                        case.stopped = "budget"
                    break
                batch = next_batch(open_cases, plan, plan.budget - spent)
                # A number that no other round of this run has, resumed or not: orders and placements are drawn from it.
                index = sum(len(case.pairs) for case in measurable)
                if plan.exact_pairs is None:
                    for case in batch:
                        adapt(case, benches, plan)
                self._round(batch, index, start + plan.budget, plan, benches, runner, journal)
                done = max((len(case.pairs) for case in measurable), default=0)
                open_cases = [case for case in open_cases if self._open(case, plan)]
                self.progress.pair(done, len(open_cases), len(measurable), time.monotonic() - start, plan.budget)
        except KeyboardInterrupt:
            for case in open_cases:
                if self._open(case, plan):
                    case.stopped = "interrupted"
            raise
        finally:
            self.results.measuring_seconds = time.monotonic() - start

    def _open(self, case: Case, plan: Plan) -> bool:
        """Whether a case needs another pair."""
        if not can_measure(case):
            return False
        pairs = len(case.pairs)
        if plan.exact_pairs is not None and pairs < plan.exact_pairs:
            return True
        if pairs >= (plan.exact_pairs or plan.max_pairs):
            case.stopped = "decided" if settled(case, plan) else "cap"
            return False
        return pairs not in plan.looks.pairs or not settled(case, plan)

    def _round(
        self,
        batch: Sequence[Case],
        index: int,
        deadline: float,
        plan: Plan,
        benches: Mapping[DeviceKind, Bench],
        runner: Runner,
        journal: Journal,
    ) -> None:
        mark = time.monotonic()

        def done(outcome: Outcome) -> None:
            nonlocal mark
            case, since, mark = outcome.case, mark, time.monotonic()
            for name, failure in outcome.failures.items():
                reason = failure.model_copy(update={"during": "round"})  # only what was right is measured
                case.sides[name].status = "failed"
                case.sides[name].reason = reason
                case.stopped = "failed"
                journal.add_failure(case.key, name, reason)
            if outcome.pair:
                outcome.pair.at = time.time()
                case.pairs.append(outcome.pair)
                self.spent.setdefault(case.key, []).append(mark - since)
                journal.add_pair(case.key, outcome.pair, outcome.samples)

        if self.watch is not None:
            self.watch.look()
        if self.lock is not None:
            self.lock.require()
        for device, bench in benches.items():
            kernels = [case for case in batch if case.device == device and case.origin == "kernel"]
            if kernels:
                run_round(bench, kernels, index, done, deadline)
        names = list(dict.fromkeys(case.kernel for case in batch if case.origin == "command"))
        random.Random(f"{plan.seed}/commands/{index}").shuffle(names)
        for name in names:
            if time.monotonic() >= deadline:
                break
            for outcome in runner.run_pair(
                name, [c for c in batch if c.kernel == name and c.origin == "command"], plan.seed, index
            ):
                done(outcome)
        if self.watch is not None:
            self.watch.look()


def can_measure(case: Case) -> bool:
    """Whether pairs of this case are worth taking: head works."""
    return case.sides["head"].status == "ok"


def timing_of(case: Case, found: Mapping[Side, Found], limits: Policy) -> TimingMode:
    """The timing mode that a case asks for: base's declaration where base has the case, else head's, else the
    policy's."""
    names: list[Side] = ["base", "head"]
    declared = [found[name].cases[case.key] for name in names if name in found and case.key in found[name].cases]
    asked: TimingMode = (declared[0]["timing"] if declared else None) or limits.timing
    return asked


def piped(commands: Sequence[Command]) -> list[str]:
    """A note on each command whose crash might go unseen."""
    return [
        f"command {one.name}: a shell tells the exit code of a pipe's last program alone, so that a crash of another "
        "goes unseen: write `bash -o pipefail -c '…'`"
        for one in commands
        if hides_failures(one.run)
    ]


def settled(case: Case, plan: Plan) -> bool:
    """Whether the pairs so far answer every judgement of the case."""
    base, head = case.sides.get("base"), case.sides["head"]
    compared = base is not None and base.status == "ok" and not differences(base, head)
    return all(
        answer(case, judgement, plan.looks, plan.m).decision.status != "continue"
        for judgement in plan.judgements
        if (judgement.case, judgement.device) == (case.id, case.device) and (compared or judgement.kind != "regression")
    )


def starved(cases: Sequence[Case], plan: Plan) -> list[str]:
    """A note on cases in most of whose blocks the GPU waited for the CPU."""
    found = []
    for case in cases:
        if case.pairs:
            blocks = sum(pair.blocks for pair in case.pairs)
            if max(sum(pair.gaps.get(name, 0) for pair in case.pairs) for name in plan.sides) > blocks / 2:
                found.append(case.id)
    if not found:
        return []
    named = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    return [f"launch gaps are in the times of {named}: the GPU waited for the CPU (does the case synchronise?)"]


def reproduction(command: Sequence[str], base: str | None) -> list[str]:
    """The command line with base as the commit that it was, so that it measures the same once branches have moved."""
    words = list(command)
    if base is None:
        return words
    for index, word in enumerate(words):
        if word == "--base" and index + 1 < len(words):
            return [*words[: index + 1], base, *words[index + 2 :]]
        if word.startswith("--base="):
            return [*words[:index], f"--base={base}", *words[index + 1 :]]
    return [*words, "--base", base]


def digest(data: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def failed_results(measurement: Measurement, error: PerfciError | KeyboardInterrupt) -> Results | None:
    """What is worth writing after an error: everything measured so far, with the reason why it ended."""
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
    results.seconds = time.monotonic() - measurement.started
    return results
