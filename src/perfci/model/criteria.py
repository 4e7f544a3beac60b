"""From a policy and the cases to the judgements of a plan."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from perfci.model.base import DeviceKind, UsageError, matches
from perfci.model.metrics import OBSERVED, CustomMetric, Metric, resolve
from perfci.model.plan import Gate, Judgement, Waiting
from perfci.model.policy import Limit, Mistake, Policy, bound_in_unit, own_limit
from perfci.model.timing import Timing

DEFAULT_LIMITS: tuple[Limit, ...] = (
    Limit(cases=["*"], metric="time", regression="2%", devices=["cuda"]),
    Limit(cases=["*"], metric="time", regression="10%", devices=["cpu"]),
)
"""What a policy without limits asks for."""
TIMER_TICK: dict[DeviceKind, float] = {"cuda": 32e-9, "cpu": 0.0}
"""Seconds, of one sample. CUDA events tick in 32 ns (measured on an H200). On the CPU a batch lasts 1 ms at least,
of which two readings of perf_counter (90 ns) are under 0.01 %: a min_change would only loosen short kernels' limits."""

Key = tuple[str, str, str, str]
"""Case, device, metric and kind of bound."""
BoundKind = Literal["regression", "min", "max"]
Asked = TypeVar("Asked", Judgement, Gate)

_IN_POLICY = re.compile(r"limits\[\d+\]")
UNSEEN = "another tool's files hold nothing that profilers see"
"""Of an imported case."""


@dataclass(frozen=True)
class Subject:
    """A case as limits see it."""

    id: str
    device: DeviceKind
    device_name: str = ""
    own: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """Limits that the kernel declares itself: they add to the policy's, and tighten them."""
    where: str = ""
    """`file:line` of the declaration."""
    reports: frozenset[str] | None = None
    """Metrics that its first execution in base, else in head, reported; None where it was not executed."""
    bounded: frozenset[str] = frozenset()
    """Metrics that its first execution in head reported: a bound holds for those that base does not report, too."""
    command: bool = False
    """Whether it is a process of its own: a profiler looks at it only where a limit is meant for it."""
    unseen: str = ""
    """Why no profiler looks at it, but for a limit that names it; empty where one can."""


def declared(subject: Subject, custom: dict[str, CustomMetric]) -> list[tuple[Limit, str]]:
    """The kernel's own limits. Raises UsageError, naming the declaration, for a bad one."""
    limits = []
    for index, raw in enumerate(subject.own):
        source = f"{subject.where}: limits[{index}]"
        try:
            limit = own_limit({**raw, "cases": [subject.id]}, custom)
        except Mistake as error:
            place = "".join(f".{part}" for part in error.loc if isinstance(part, str))
            raise UsageError(f"{source}{place}: {error}") from None
        limits.append((limit, source))
    return limits


def names(limit: Limit, subject: Subject) -> bool:
    """Whether `limit` speaks of this case, on whatever device."""
    return any(matches(pattern, subject.id) for pattern in limit.cases)


def elsewhere(limit: Limit, subject: Subject) -> str:
    """Which devices `limit` is for, where this is none of them; empty where it is one."""
    if any(
        pattern == "*" or matches(pattern, subject.device) or matches(pattern, subject.device_name)
        for pattern in limit.devices
    ):
        return ""
    return f"it is for {', '.join(limit.devices)}, and this is {subject.device_name or subject.device}"


def unseen(limit: Limit, subject: Subject, kernels: Collection[str]) -> str:
    """Why no profiler looks at this case for `limit`; empty where one does. `kernels`: ids of all cases of kernels.

    A profiler looks at a command as a whole, which takes long and tells little of several cases: it does so where a
    limit names the command, or where a glob can be meant for nothing else.
    """
    if subject.device != "cuda":
        return "profilers see nothing of it on the CPU"
    if not subject.command or subject.id in limit.cases:
        return ""
    if subject.unseen:
        return subject.unseen
    own = [pattern for pattern in limit.cases if matches(pattern, subject.id)]
    if any(not any(matches(pattern, ident) for ident in kernels) for pattern in own):
        return ""
    return f"{own[0]!r} takes kernels too, and profilers look at a command only for a limit of its own"


def applies(limit: Limit, subject: Subject) -> bool:
    """Whether `limit` speaks of this case on this device."""
    return names(limit, subject) and not elsewhere(limit, subject)


def asked_of(limit: Limit, metric: Metric, subject: Subject, kind: str) -> bool:
    """Whether a limit asks this case for a metric: one that names the case does, a glob where the case reports it.

    A case that stops to report what it reported in base is still asked for it. What head alone reports is held to
    bounds; of its change nothing can be said. `kind`: `regression`, `min` or `max`.
    """
    if subject.reports is None or subject.id in limit.cases:
        return True
    reports = subject.reports if kind == "regression" else subject.reports | subject.bounded
    return ("time" if metric.tier == "timing" else metric.name) in reports


def judgements(policy: Policy, subjects: Iterable[Subject]) -> list[Judgement]:
    """One judgement per case, metric and kind of bound: of the policy's limits the last counts, and a kernel's own may
    tighten it.

    Sorted by case, device, metric and kind, so that the plan does not depend on the order of discovery.
    Raises UsageError for a kernel's own limit that is wrong.
    """
    made: dict[Key, Judgement] = {}
    for subject in subjects:
        made |= _strictest(
            _judged(_common(policy), subject, policy), _judged(declared(subject, policy.metrics), subject, policy)
        )
    return [made[key] for key in sorted(made)]


def is_own(source: str) -> bool:
    """Whether the source of a limit is a kernel's declaration, and not a policy."""
    return source != "default" and not _IN_POLICY.fullmatch(source)


def _written(policy: Policy) -> list[tuple[Limit, str]]:
    return [(limit, f"limits[{i}]") for i, limit in enumerate(policy.limits)]


def _common(policy: Policy) -> list[tuple[Limit, str]]:
    return _written(policy) or [(limit, "default") for limit in DEFAULT_LIMITS]


def _judged(limits: Iterable[tuple[Limit, str]], subject: Subject, policy: Policy) -> dict[Key, Judgement]:
    """What these limits ask of one case; the last counts."""
    made: dict[Key, Judgement] = {}
    for limit, source in limits:
        if not applies(limit, subject):
            continue
        metric = resolve(limit.metric, policy.metrics)
        if metric.tier in OBSERVED:
            continue
        for kind, bound in _bounds(limit, metric).items():
            if bound is None or not asked_of(limit, metric, subject, kind):
                continue
            timed = metric.unit == "s" and kind == "regression"
            made[subject.id, subject.device, metric.name, kind] = Judgement(
                case=subject.id,
                device=subject.device,
                metric=metric.name,
                unit=metric.unit,
                better=metric.better,
                kind=kind,
                bound=bound,
                min_change=(limit.min_change or 0.0) if timed else 0.0,
                tick=TIMER_TICK[subject.device] if timed and limit.min_change is None else 0.0,
                severity=limit.severity,
                on_missing=limit.on_missing,
                source=source,
            )
    return made


def _bounds(limit: Limit, metric: Metric) -> dict[BoundKind, float | None]:
    return {
        "regression": limit.regression,
        "min": None if limit.min is None else bound_in_unit(limit.min, metric),
        "max": None if limit.max is None else bound_in_unit(limit.max, metric),
    }


def tightened(one: Asked, own: Asked) -> Asked:
    """Of a policy's limit and a kernel's own on the same: nothing that the policy asks is asked less strictly.

    So a change cannot loosen a limit beside the code that it changes.
    """
    changes: dict[str, Any] = {
        "severity": "fail" if "fail" in (one.severity, own.severity) else "warn",
        "on_missing": "fail" if "fail" in (one.on_missing, own.on_missing) else "warn",
    }
    if isinstance(one, Judgement) and isinstance(own, Judgement):
        lower = min(one, own, key=lambda limit: (limit.min_change, limit.tick))
        changes |= {"min_change": lower.min_change, "tick": lower.tick}
    if is_stricter(own, one):
        changes |= {"bound": own.bound, "source": own.source}
    return one.model_copy(update=changes)


def is_stricter(one: Judgement | Gate, other: Judgement | Gate) -> bool:
    """Whether the bound of `one` is beyond that of `other`. Of two expressions for a kernel's name none is."""
    if one.kind == "kernels":
        return False
    return one.bound > other.bound if one.kind == "min" else one.bound < other.bound


def _strictest(of_policy: Mapping[Key, Asked], own: Mapping[Key, Asked]) -> dict[Key, Asked]:
    return {
        **of_policy,
        **{key: tightened(of_policy[key], one) if key in of_policy else one for key, one in own.items()},
    }


def looser(policy: Policy, subjects: Iterable[Subject], kernels: Collection[str] = ()) -> list[str]:
    """The kernels' own limits that are less strict than the policy's, which count: one line each.

    `kernels`: as of gates(). Raises UsageError for a kernel's own limit that is wrong.
    """
    found: dict[str, None] = {}
    for subject in subjects:
        own = declared(subject, policy.metrics)
        both: list[tuple[Mapping[Key, Judgement | Gate], Mapping[Key, Judgement | Gate]]] = [
            (_judged(_common(policy), subject, policy), _judged(own, subject, policy)),
            (_gated(_written(policy), subject, policy, kernels), _gated(own, subject, policy, kernels)),
        ]
        for counts, asked in both:
            for key, one in asked.items():
                other = key in counts and one.kind == "kernels" and one != counts[key]
                if key in counts and (other or is_stricter(counts[key], one)):
                    found[
                        f"{one.source}: is less strict than the policy's own ({counts[key].source}), which counts"
                    ] = None
    return list(found)


def late(policy: Policy, subjects: Iterable[Subject], planned: Iterable[Judgement]) -> list[Judgement]:
    """What is asked of `subjects`, the cases with all that any execution reported, and not among the planned.

    It has no answer: the error rates are shared out by what is planned before the first sample, so that what is known
    to be asked only afterwards can neither pass nor fail. Raises UsageError as judgements() does.
    """
    known = {(one.case, one.device, one.metric, one.kind) for one in planned}
    return [
        one.model_copy(update={"late": True})
        for one in judgements(policy, subjects)
        if (one.case, one.device, one.metric, one.kind) not in known
    ]


def gates(policy: Policy, subjects: Iterable[Subject], kernels: Collection[str] = ()) -> list[Gate]:
    """One gate per case on a GPU, observed metric and kind of bound, of limits as judgements() takes them.

    `kernels`: ids of all cases of kernels, asked for or not. Sorted as judgements are. Raises UsageError for a
    kernel's own limit that is wrong.
    """
    made: dict[Key, Gate] = {}
    for subject in subjects:
        own = declared(subject, policy.metrics)
        made |= _strictest(_gated(_written(policy), subject, policy, kernels), _gated(own, subject, policy, kernels))
    return [made[key] for key in sorted(made)]


def _gated(
    limits: Iterable[tuple[Limit, str]], subject: Subject, policy: Policy, kernels: Collection[str]
) -> dict[Key, Gate]:
    """What these limits ask profilers of one case; the last counts."""
    made: dict[Key, Gate] = {}
    for limit, source in limits:
        metric = resolve(limit.metric, policy.metrics)
        if not applies(limit, subject) or unseen(limit, subject, kernels):
            continue
        common: dict[str, Any] = {
            "case": subject.id,
            "device": subject.device,
            "better": metric.better,
            "severity": limit.severity,
            "on_missing": limit.on_missing,
            "source": source,
        }
        for kind, bound in _bounds(limit, metric).items():
            if bound is not None and metric.tier in OBSERVED:
                made[subject.id, subject.device, metric.name, kind] = Gate(
                    metric=metric.name, unit=metric.unit, tier=metric.tier, kind=kind, bound=bound, **common
                )
        if limit.expect_kernels is not None:
            made[subject.id, subject.device, "kernels", "kernels"] = Gate(
                metric="kernels", unit="", tier="trace", kind="kernels", pattern=limit.expect_kernels, **common
            )
    return made


def least_change(judgement: Judgement, timing: Timing | None) -> float:
    """Seconds under which a change of one execution is never a regression, for a case under this timing mode.

    What the limit says, or what the timer resolves of an execution: a sample under `rotating` holds hundreds of them.
    """
    executions = (timing and timing.executions_per_graph) or 1
    return max(judgement.min_change, judgement.tick / executions)


def waiting(policy: Policy, subjects: Iterable[Subject], kernels: Collection[str] = ()) -> list[Waiting]:
    """The limits that name a case and cannot be judged of it here, sorted by case, device, limit and metric.

    Not those beside which another asks the same of the case on this device: of limits for several devices the one that
    fits counts. What a command does not report, a glob does not ask it for. `kernels`: as of gates(). Raises UsageError
    for a kernel's own limit that is wrong.
    """
    written = _written(policy)
    seen = list(subjects)
    judged: list[Judgement | Gate] = [*judgements(policy, seen), *gates(policy, seen, kernels)]
    answered = {(one.case, one.device, one.metric, one.kind) for one in judged}
    found = []
    for subject in seen:
        for limit, source in [*written, *declared(subject, policy.metrics)]:
            if not names(limit, subject):
                continue
            metric = resolve(limit.metric, policy.metrics)
            bounds = {"regression": limit.regression, "min": limit.min, "max": limit.max}
            kinds = [kind for kind, bound in bounds.items() if bound is not None]
            asked = [(metric.name, metric.tier in OBSERVED, kinds)] if kinds else []
            if limit.expect_kernels is not None:
                asked.append(("kernels", True, ["kernels"]))
            for name, profiled, of in asked:
                why = elsewhere(limit, subject) or (unseen(limit, subject, kernels) if profiled else "")
                if not why or not (profiled or any(asked_of(limit, metric, subject, kind) for kind in of)):
                    continue
                if all((subject.id, subject.device, name, kind) in answered for kind in of):
                    continue
                found.append(
                    Waiting(
                        case=subject.id,
                        device=subject.device,
                        metric=name,
                        relative=of == ["regression"],
                        why=why,
                        severity=limit.severity,
                        on_missing=limit.on_missing,
                        source=source,
                    )
                )
    return sorted(found, key=lambda one: (one.case, one.device, one.source, one.metric))


def told(found: Iterable[Waiting]) -> list[str]:
    """Each limit that waits, and why, in one line: with the cases that it would be of."""
    of: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        of.setdefault((one.source, one.metric, one.why), []).append(one.case)
    return [
        f"{source}: {metric} of {cases[0]}{f' and {len(cases) - 1} more' if len(cases) > 1 else ''} is not judged "
        f"here: {why}"
        for (source, metric, why), cases in sorted(of.items())
    ]
