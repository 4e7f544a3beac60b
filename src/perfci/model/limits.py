"""From the limits of a policy and of kernels to the criteria of a plan."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from perfci.model.base import DeviceKind, Loc, Mistake, UsageError, matches
from perfci.model.criteria import Criterion, LimitSource, Purpose, against, asked, asked_in
from perfci.model.metrics import HOST_TIME, OBSERVED, CustomMetric, Metric, resolve
from perfci.model.plan import Declared
from perfci.model.policy import Limit, Policy, own_limit
from perfci.model.text import did_you_mean, listed

DEFAULT_LIMITS: tuple[Limit, ...] = (
    Limit(cases=["*"], metric="time", regression="2%", devices=["cuda"]),
    Limit(cases=["*"], metric="time", regression="10%", devices=["cpu"]),
)
"""The limits of a policy that names none."""
UNSEEN = "another tool's files hold nothing that profilers see"


@dataclass(frozen=True)
class Subject:
    """A case as limits see it."""

    id: str
    device: DeviceKind
    device_name: str = ""
    own: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """The kernel's own."""
    where: str = ""
    """`file:line` of the declaration."""
    reports: frozenset[str] | None = None
    """By its first execution in base, else in head; None: not executed."""
    bounded: frozenset[str] = frozenset()
    """By its first execution in head: bounds hold for these, too."""
    command: bool = False
    """A process of its own, profiled only where a limit is intended for it."""
    unseen: str = ""
    """Why it is not profiled but for a limit that names it."""


def declared(subject: Subject, custom: dict[str, CustomMetric]) -> list[tuple[Limit, LimitSource]]:
    """Return the kernel's own limits, and where each stands. Raises UsageError."""
    limits = []
    for index, raw in enumerate(subject.own):
        source = LimitSource(origin="kernel", index=index, where=subject.where)
        try:
            limit = own_limit({**raw, "cases": [subject.id]}, custom)
        except Mistake as error:
            place = "".join(f".{part}" for part in error.loc if isinstance(part, str))
            raise UsageError(f"{source}{place}: {error}") from None
        limits.append((limit, source))
    return limits


def names(limit: Limit, ident: str) -> bool:
    """Tell whether `limit` speaks of this id, on whatever device."""
    return any(matches(pattern, ident) for pattern in limit.cases)


def elsewhere(limit: Limit, subject: Subject) -> str:
    """Return the devices of `limit` where this is none of them."""
    if any(
        pattern == "*" or matches(pattern, subject.device) or matches(pattern, subject.device_name)
        for pattern in limit.devices
    ):
        return ""
    return f"it is for {', '.join(limit.devices)}, and this is {subject.device_name or subject.device}"


def unseen(limit: Limit, subject: Subject, kernels: Collection[str]) -> str:
    """Return why this case is not profiled for `limit`.

    `kernels`: ids of all kernels' cases. A command is profiled as a whole, which takes long: only for a limit that
    names it, or a glob that fits nothing else.
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
    return f"{own[0]!r} takes kernels too, and a command is profiled only for a limit of its own"


def hostless(subject: Subject) -> str:
    """Return why a case has no host time, or empty."""
    if subject.command:
        return "host times are of kernels, and this is a process of its own"
    return "" if subject.device == "cuda" else "on the CPU a case's time is its host time"


def asked_of(limit: Limit, metric: Metric, subject: Subject, *, relative: bool) -> bool:
    """Tell whether a limit asks this case for a metric: one that names it does, a glob where the case reports it.

    A case that stops to report is still asked; what head alone reports is held to bounds. `relative`: on the change.
    """
    if subject.id in limit.cases:
        return True
    if metric.name == HOST_TIME and hostless(subject):
        return False
    if subject.reports is None:
        return True
    reports = subject.reports if relative else subject.reports | subject.bounded
    return ("time" if metric.tier == "timing" else metric.name) in reports


def criteria(
    policy: Policy,
    subjects: Iterable[Subject],
    kernels: Collection[str] = (),
    *,
    compared: bool = True,
    purpose: Purpose = "change",
) -> list[Criterion]:
    """Return all that the policy and the kernels ask of these cases: timed, observed, waiting, each in order.

    Of the policy's limits on one metric of a case, of one kind, the last counts, and a kernel's own may tighten it.
    Those that name a case and cannot be judged here wait, unless another of the kind can be. `kernels`: ids of all
    kernels' cases. `compared`: there is a base. Raises UsageError for a kernel's own limit that is wrong.
    """
    judged: list[Criterion] = []
    waiting: list[Criterion] = []
    for subject in subjects:
        of_policy = list(_asked(_written(policy), subject, policy, kernels))
        own = list(_asked(declared(subject, policy.metrics), subject, policy, kernels))
        counts = strictest(of_policy, own)
        judged += counts
        known = {one.key for one in counts}
        # Of the default limits one fits here: the others wait for nothing.
        written = [one for one in (*of_policy, *own) if one.waits and one.source.origin != "default"]
        waiting += [one for one in written if one.key not in known]
    waiting.sort(key=lambda one: (one.case, one.device, str(one.source), one.metric, one.kind))
    found = (*strictest(judged, ()), *waiting)
    return [one for one in found if asked_in(one.kind, purpose) and (compared or not one.relative)]


def answerable(asked: Iterable[Criterion], *, timed: bool) -> list[Criterion]:
    """Leave out default limits on times where there are none."""
    return [one for one in asked if timed or one.source.origin != "default"]


def strictest(of_policy: Iterable[Criterion], own: Iterable[Criterion]) -> list[Criterion]:
    """Return the criteria that count, of those that can be judged here, in the order of `criteria`."""
    made = {one.key: one for one in of_policy if not one.waits}
    for key, one in {one.key: one for one in own if not one.waits}.items():
        made[key] = made[key].tightened(one) if key in made else one
    return sorted(made.values(), key=lambda one: (one.observed, one.key))


def looser(policy: Policy, subjects: Iterable[Subject], kernels: Collection[str] = ()) -> list[str]:
    """Return a line on each kernel's own limit that is less strict than the policy's.

    Raises UsageError for a kernel's own limit that is wrong.
    """
    found: dict[str, None] = {}
    for subject in subjects:
        counts = {one.key: one for one in _asked(_written(policy), subject, policy, kernels) if not one.waits}
        own = {one.key: one for one in _asked(declared(subject, policy.metrics), subject, policy, kernels)}
        for key, one in own.items():
            if one.waits or key not in counts:
                continue
            if counts[key].stricter_than(one) or counts[key].pattern != one.pattern:
                found[f"{one.source}: is less strict than the policy's own ({counts[key].source}), which counts"] = None
    return list(found)


def told(found: Iterable[Criterion]) -> list[str]:
    """Return a line on each limit that waits, with its cases."""
    of: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in found:
        if one.waits:
            of.setdefault((str(one.source), one.metric, one.waits), {})[one.case_key] = one.case
    return [
        f"{source}: {metric} of {next(iter(cases.values()))}{f' and {len(cases) - 1} more' if len(cases) > 1 else ''} "
        f"is not judged here: {why}"
        for (source, metric, why), cases in sorted(of.items())
    ]


def _written(policy: Policy) -> list[tuple[Limit, LimitSource]]:
    written = [(limit, LimitSource(origin="policy", index=index)) for index, limit in enumerate(policy.limits)]
    return written or [(limit, LimitSource(origin="default")) for limit in DEFAULT_LIMITS]


def _asked(
    limits: Iterable[tuple[Limit, LimitSource]], subject: Subject, policy: Policy, kernels: Collection[str]
) -> Iterator[Criterion]:
    for limit, source in limits:
        if not names(limit, subject.id):
            continue
        added = limit.fail_on or [] if source.origin == "kernel" else []
        own = limit.fail_on is None or source.origin == "kernel"
        metric = resolve(limit.metric, policy.metrics)
        for kind, fields in asked(limit, metric, subject.device).items():
            profiled = fields["tier"] in OBSERVED
            waits = elsewhere(limit, subject) or (unseen(limit, subject, kernels) if profiled else "")
            waits = waits or (hostless(subject) if metric.name == HOST_TIME else "")
            if profiled or asked_of(limit, metric, subject, relative=against(kind) == "base"):
                yield Criterion(
                    case=subject.id,
                    device=subject.device,
                    kind=kind,
                    fail_on=sorted({*policy.fail_on, *added}) if own else limit.fail_on,
                    added=added,
                    source=source,
                    named=subject.id in limit.cases,
                    waits=waits,
                    **fields,
                )


SHOWN = 6
LONGEST, MOST = 200, 5000
"""Characters of an id, and ids, that are searched: a stranger may bring any."""
_LITERAL = re.compile(r"[^*?\[]*")


class Idle(NamedTuple):
    """A limit that judges nothing."""

    limit: int
    loc: Loc
    """The wrong value: of a glob, which of them."""
    text: str
    """Begins with its field in the policy."""
    wrong: bool
    """A mistake; not where its metric may be missing."""


def idle(policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> Iterator[Idle]:
    """Yield the limits of `policy` that no case of `declared` can answer.

    A device that is not here is no reason. `reports`: id of a command's case → its metrics; others may report any.
    """
    ids = [*declared.kernels, *declared.commands]
    for index, limit in enumerate(policy.limits):
        where = f"limits[{index}]"
        lost = {n: pattern for n, pattern in enumerate(limit.cases) if not matched(pattern, ids, declared)}
        for n, pattern in lost.items():
            text = f"{where}.cases: {pattern!r} matches no case: {_remedy(pattern, ids)}"
            yield Idle(index, ("limits", index, "cases", n), text, True)
        if not lost and (text := _unreported(limit, policy, declared, reports)):
            fail_on = policy.fail_on if limit.fail_on is None else limit.fail_on
            yield Idle(index, ("limits", index, "metric"), f"{where}: {text}", "missing" in fail_on)


def mistake(policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]], file: str) -> str:
    """Return the first mistake of `idle`, with its line in `file`."""
    found = (f"{policy.place(file, one.loc)}: {one.text}" for one in idle(policy, declared, reports) if one.wrong)
    return next(found, "")


def matched(pattern: str, ids: Iterable[str], declared: Declared) -> bool:
    """Tell whether a glob matches an id, or may match a case that is not known."""
    if not declared.whole or any(matches(pattern, ident) for ident in ids):
        return True
    literal = _LITERAL.match(pattern)
    start = literal[0] if literal else ""
    return any(
        pattern == name or start.startswith(f"{name}/") or (start != pattern and f"{name}/".startswith(start))
        for name in (*declared.unknown, *declared.unrun)
    )


def nearest(pattern: str, ids: Iterable[str]) -> str:
    """Return what a glob that matches no id was probably meant for."""
    known = [ident for ident in dict.fromkeys(ids) if len(ident) <= LONGEST][:MOST]
    pattern = pattern[:LONGEST]
    of_kernels = dict.fromkeys(f"{ident.split('/', maxsplit=1)[0]}/*" for ident in known if "/" in ident)
    groups = dict.fromkeys([*of_kernels, *(ident for ident in known if "/" not in ident)])
    return did_you_mean(pattern, [*of_kernels, *known], f"there are {listed(groups, SHOWN)}")


def _remedy(pattern: str, ids: Iterable[str]) -> str:
    known = list(ids)
    if not known:
        return "no kernel or command is declared: see `suite` and `commands`"
    found = nearest(pattern, known)
    return found if found.endswith("?") else f"{found}: fix or remove it"


def _unreported(limit: Limit, policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> str:
    metric = resolve(limit.metric, policy.metrics)
    if all(against(kind) == "names" for kind in asked(limit, metric, "cuda")):
        return ""
    if metric.tier in OBSERVED or not declared.whole:
        return ""  # a profiler sees it, or what is not known may report it
    if metric.tier == "timing" and any(names(limit, ident) for ident in declared.kernels):
        return ""
    possible = declared if metric.tier == "timing" else declared.model_copy(update={"unrun": []})
    if any(matched(pattern, (), possible) for pattern in limit.cases):
        return ""
    if metric.name == HOST_TIME:
        return (
            f"no case that {listed(limit.cases, SHOWN)} matches has a {HOST_TIME}: commands are processes of their own"
        )
    own = [ident for ident in declared.commands if names(limit, ident)]
    wanted = "time" if metric.tier == "timing" else metric.name
    if any(wanted in reports.get(ident, {wanted}) for ident in own):
        return ""
    found = sorted({name for ident in own for name in reports[ident]})
    if any(names(limit, ident) for ident in declared.kernels):
        found = sorted({*found, "time"})
    hint = did_you_mean(metric.name, found, f"they report {listed(found, SHOWN)}")
    return f"no case that {listed(limit.cases, SHOWN)} matches reports {metric.name}: {hint}"
