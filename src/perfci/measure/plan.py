"""The plan, fixed before the first sample, and notes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perfci.measure.place import Place
from perfci.measure.prepare import SideWork
from perfci.measure.request import Question, Request, What
from perfci.measure.sides.planned import of_environments, of_sides
from perfci.measure.timing import MODES, SCHEDULES
from perfci.model.base import Side, UsageError
from perfci.model.comparison import marks
from perfci.model.criteria import Criterion, LimitSource
from perfci.model.criteria import asked as asks
from perfci.model.limits import Subject, criteria
from perfci.model.metrics import OBSERVED, resolve
from perfci.model.plan import Declared, Looks, Plan, count_sharing
from perfci.model.policy import FAIL_ON, Command, Limit, Policy
from perfci.model.results import Case
from perfci.model.text import hides_failures, listed

PROFILED_PAIRS = 2
"""Pairs of a profile."""
QUICK_BUDGET = 60.0
QUICK_PAIRS = 16
"""`--quick`: pairs at most."""


def fitted(m: int, what: What) -> Looks:
    """Return the looks where m criteria share α."""
    return Looks.fitted(m, QUICK_PAIRS if what.quick else None)


def make_plan(request: Request, place: Place, subjects: Sequence[Subject], declared: Declared) -> Plan:
    """Return the plan. Without base only absolute limits."""
    what, how = request.what, request.how
    asked: list[Criterion] = []
    if not how.profile:
        compared = what.mode == "compare"
        asked = criteria(place.limits, subjects, declared.kernels, compared=compared, purpose=what.purpose)
    if what.question is not None:
        asked = [_criterion(what.question, asked, subjects, place.limits)]
    m = shared(asked, what)
    looks = fitted(m, what)
    return Plan(
        seed=place.seed,
        sides=list(place.sides),
        looks=looks,
        devices=list(place.benches),
        schedules={name: SCHEDULES[name] for device in place.benches for name in MODES[device]},
        criteria=asked,
        declared=declared,
        m=m,
        purpose=what.purpose,
        comparisons=what.comparisons,
        budget=how.budget or (QUICK_BUDGET if what.quick and not how.profile else place.limits.budget),
        max_pairs=looks.pairs[-1],
        precise=what.question is not None and what.question.precise,
        exact_pairs=PROFILED_PAIRS if how.profile else what.exact_pairs,
        judged=not how.profile,
        held=bool(what.only),
    )


def shared(asked: Sequence[Criterion], what: What, proved: Collection[str] = ()) -> int:
    """Return the number of criteria, or questions, that share α: see `count_sharing`."""
    if what.question is not None:
        return what.question.sharing
    return count_sharing(asked, proved, what.models, what.comparisons)


def _criterion(
    question: Question, asked: Sequence[Criterion], subjects: Sequence[Subject], limits: Policy
) -> Criterion:
    """Raises UsageError unless it is about one case, pairs decide its metric, and it or the policy has a limit."""
    names = [f"{one.id} on {one.device}" for one in subjects]
    device = ", with --device" if len({one.device for one in subjects}) > 1 else ""
    if len(subjects) != 1:
        raise UsageError(
            f"one case is asked for, and there are {len(subjects)}: name one of {listed(names, 6)}{device}"
        )
    (subject,) = subjects
    metric = resolve(question.metric, limits.metrics)
    if metric.tier in OBSERVED or metric.better is None:
        raise UsageError(f"{metric.name}: is not decided by pairs of workers: name time, or a metric of a command")
    found = next((one for one in asked if one.timed and one.relative and one.metric == metric.name), None)
    bound = question.bound
    if bound is None and found is None:
        raise UsageError(
            f"{subject.id}: no limit on {metric.name} holds it against a base: give one, such as --limit 2%"
        )
    if found is None:
        made = asks(Limit(cases=[subject.id], metric=metric.name, regression="100%"), metric, subject.device)
        source = LimitSource(origin="default")
        found = Criterion(
            case=subject.id, device=subject.device, kind="regression", source=source, **made["regression"]
        )
    update: dict[str, Any] = {"better": question.better or found.better, "fail_on": list(FAIL_ON)}
    update |= {} if bound is None else {"bound": bound}
    if question.threshold:
        update |= {"threshold": True, "min_change": 0.0, "tick": 0.0}
    return found.model_copy(update=update)


def identity(request: Request, place: Place, plan: Plan, cases: Sequence[Case]) -> dict[str, str]:
    """Return marks that `--resume` must repeat."""
    return marks(
        place.facts.lasting()
        | of_sides(place.sources, place.sides)
        | of_environments(place.environments)
        | {
            "the command": request.what.mode,
            "the shard": None if request.planned is None else request.planned.name,
            "the set of --env": request.what.env,
            "the set of cases": [case.key for case in cases],
            "the plan": plan.model_dump(mode="json", exclude={"budget"}),
        }
    )


def remarks(what: What, plan: Plan, sides: Mapping[Side, SideWork]) -> list[str]:
    """Return notes on what is compared and judged."""
    notes = piped(sides["head"].policy.commands)
    if sides["head"].info.dirty:
        notes.append("head is the working tree with changes that are not committed")
    if what.mode == "run" and plan.judged:
        notes.append("compared with nothing: only absolute limits were judged (`perfci compare REF` compares)")
    if plan.purpose == "reference":
        notes.append("compared with the reference: `creep` limits stand in the place of `regression`")
    if plan.purpose == "seam":
        notes.append("one reference compared with the one before: nothing is judged")
    if not plan.judged:
        notes.append(f"profiled, not judged: times are of {PROFILED_PAIRS} workers")
    if plan.claims is not None and not plan.claims.criteria:
        notes.append(f"claimed of no case that is measured: {what.described}")
    if what.quick and plan.judged:
        notes.append(f"--quick: at most {QUICK_PAIRS} pairs, no fuzzed shapes; an undecided case needs a full run")
    return notes


def piped(commands: Sequence[Command]) -> list[str]:
    """Return notes on commands whose crash might go unseen."""
    return [
        f"command {one.name}: a shell tells the exit code of a pipe's last program alone, so that a crash of another "
        "goes unseen: write `bash -o pipefail -c '…'`"
        for one in commands
        if hides_failures(one.run)
    ]
