"""Results of all shards of a plan become those of one run. Pure.

A begun shard stands for good: choosing between two measurements of it by what they say would spend α twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from perfci.model.base import MachineError, UsageError
from perfci.model.comparison import marks, require_same
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Ceilings, Fingerprint, Rate
from perfci.model.results import Case, PlanPart, Reason, Results
from perfci.model.text import escaped, listed, one_line

N = TypeVar("N", bound=str)


class Shared(NamedTuple):
    """A results document to be merged."""

    name: str
    """In errors: its folder."""
    results: Results
    part: PlanPart


def merge(found: Sequence[tuple[str, Results]]) -> Results:
    """Return one run's results over all cases of a plan. `found`: name and content of documents.

    Raises UsageError for documents of no plan or several, or a duplicate shard; MachineError for a missing shard. One
    that ended by an error before it measured counts until a later one replaces it; if it
    stays, the run is an error.
    """
    shared = [_shared(name, results) for name, results in found]
    _require_one_plan(shared)
    attempts: dict[int, list[Shared]] = {}
    for one in shared:
        attempts.setdefault(one.part.shards[0], []).append(one)
    part = shared[0].part
    if strange := sorted(number for number in attempts if number > part.of):
        raise UsageError(f"{attempts[strange[0]][0].name}: is shard {strange[0]} of {part.of}: it was changed")
    chosen = [_standing(number, attempts[number]) for number in sorted(attempts)]
    missing = [number for number in range(1, part.of + 1) if number not in attempts]
    if missing:
        several = len(missing) > 1
        which = (
            f"shard{'s' * several} {listed(map(str, missing), 20)} of {part.of} of plan {escaped(part.plan[:12], 40)}"
        )
        raise MachineError(
            f"merge: {which} {'are' if several else 'is'} missing, and there is no verdict without: measure what is "
            "missing, and merge all"
        )
    return _merged(chosen)


def merge_models(found: Sequence[tuple[str, Results]]) -> list[Results]:
    """Return the merged results of each model of device that shares α. Raises as `merge` and `require_models`."""
    plans: dict[str, list[tuple[str, Results]]] = {}
    for name, results in found:
        part = _shared(name, results).part
        plans.setdefault(part.plan if part.models > 1 else "", []).append((name, results))
    merged = [merge(shards) for shards in plans.values()] or [merge([])]
    require_models(merged)
    return merged


def require_models(merged: Sequence[Results], asked: int = 0) -> None:
    """Raise UsageError where merged results of several plans do not share α; MachineError where a model is missing.
    `asked`: required number of models; 0: as the plans say."""
    models = max((one.part.models for one in merged if one.part is not None), default=1)
    if asked and models != asked:
        raise UsageError(
            f"merge: {asked} models of device are asked for, and {models} share α: give the jobs that plan the same "
            "`models`"
        )
    if models == 1:
        return
    first, names = merged[0], [model_of(one) for one in merged]
    for one, name in zip(merged, names, strict=True):
        if one.part is None or one.part.models != models:
            raise UsageError(f"merge: the plan of {name} does not share α with {models - 1} others: make new plans")
        require_same(_tree(first), _tree(one), f"merge: {name}", f"is not that of {names[0]}", "make new plans")
        if names.count(name) > 1:
            raise UsageError(f"merge: {name} has two plans: each model of device shares α once")
    if len(names) != models:
        here = f"{listed(names)} {'is' if len(names) == 1 else 'are'}"
        raise MachineError(
            f"merge: of {models} models of device only {here} here, and there is no verdict without the others: "
            "measure what is missing, and merge all"
        )


def model_of(results: Results) -> str:
    """Return the measured model of device."""
    return escaped(" ".join(results.fingerprint.devices.get(one, one) for one in results.plan.devices), 100)


def plan_of(results: Results) -> str:
    """Return the digest of the plan whose shard was measured; empty for any other results."""
    return results.part.plan if results.part is not None else ""


def _shared(name: str, results: Results) -> Shared:
    part = results.part
    if part is None or results.mode != "compare":
        raise UsageError(f"{name}: is no shard of a plan: only results of `perfci compare --shard` are merged")
    if len(part.shards) != 1:
        raise UsageError(f"{name}: was merged already: name the folders of its shards")
    return Shared(name, results, part)


def _require_one_plan(shared: Sequence[Shared]) -> None:
    if not shared:
        raise UsageError("merge: names no results: name the folders of all shards")
    first, *others = shared
    then, todo = _marks(first), "merge the shards of one plan, each as it was measured"
    for one in others:
        require_same(then, _marks(one), one.name, f"is not that of {first.name}", todo)


def _tree(results: Results) -> dict[str, str]:
    return marks({f"the tree of {name}": [side.commit, side.tree] for name, side in results.sides.items()})


def _marks(shared: Shared) -> dict[str, str]:
    one, part = shared.results, shared.part
    plan = one.plan.model_dump(mode="json", exclude={"criteria", "budget"})
    policy = {"fail_on", "policy_from", "custom_metrics"}
    found = {
        "the plan": part.plan,
        "the number of shards": part.of,
        "the number of models": part.models,
        "the set of cases": part.cases,
        "the run": one.run,
        "the policy": one.model_dump(mode="json", include=policy),
        "the environment": one.environments and one.environments.model_dump(mode="json"),
        **{f"the plan's {name}": value for name, value in plan.items()},
        **{f"the model of {device}": one.fingerprint.devices.get(device) for device in one.plan.devices},
    }
    return marks(found) | _tree(one)


def _standing(number: int, attempts: Sequence[Shared]) -> Shared:
    """The attempt that began counts. Raises UsageError for two."""
    counting = [one for one in attempts if one.results.error is None or begun(one.results)]
    if len(counting) > 1:
        raise UsageError(
            f"{counting[1].name}: is shard {number} again, which {counting[0].name} holds, and a shard counts once: "
            "name the one that was begun first and, where it did not end, go on with it (--resume), or make a new plan"
        )
    return counting[0] if counting else max(attempts, key=lambda one: one.results.started)


def begun(results: Results) -> bool:
    """Tell whether a shard holds a pair or a failure."""
    return any(case.pairs or any(side.status == "failed" for side in case.sides.values()) for case in results.cases)


def _merged(shards: Sequence[Shared]) -> Results:
    first, all_ = shards[0], [one.results for one in shards]
    cases = _cases(shards)
    order = {key: at for at, key in enumerate(first.part.cases)}
    criteria: list[Criterion] = sorted(
        (one for results in all_ for one in results.plan.criteria),
        key=lambda one: order.get(one.case_key, len(order)),
    )
    broken = next((one for one in shards if one.results.error is not None), None)
    budget = max(results.plan.budget for results in all_)
    return first.results.model_copy(
        update={
            "started": min(results.started for results in all_),
            "seconds": sum(results.seconds for results in all_),
            "measuring_seconds": sum(results.measuring_seconds for results in all_),
            "budget_needed": max(results.budget_needed for results in all_),
            "costs": _joined([results.costs for results in all_], sum),
            "imports": _joined([results.imports for results in all_], max),
            "fingerprint": _machine([results.fingerprint for results in all_]),
            "sides": {
                name: side.model_copy(
                    update={
                        "build_seconds": sum(results.sides[name].build_seconds for results in all_),
                        "modules": {k: v for results in all_ for k, v in results.sides[name].modules.items()},
                    }
                )
                for name, side in first.results.sides.items()
            },
            "plan": first.results.plan.model_copy(update={"criteria": criteria, "budget": budget}),
            "part": first.part.model_copy(update={"shards": [one.part.shards[0] for one in shards]}),
            "cases": sorted(cases, key=lambda case: (order.get(case.key, len(order)), case.key)),
            "moments": sorted((one for results in all_ for one in results.moments), key=lambda one: one.at),
            "files": list({(one.side, one.file): one for results in reversed(all_) for one in results.files}.values()),
            "notes": [*dict.fromkeys(note for results in all_ for note in results.notes), *_machines(shards)],
            "error": None if broken is None else _error(broken),
        },
        deep=True,
    )


def _cases(shards: Sequence[Shared]) -> list[Case]:
    """Raises UsageError where a case is duplicate or missing."""
    held: dict[str, str] = {}
    for one in shards:
        for case in one.results.cases:
            if case.key in held:
                raise UsageError(
                    f"{one.name}: holds {escaped(case.key, 200)}, which {held[case.key]} holds too: it was changed"
                )
            held[case.key] = one.name
    whole = all(one.results.error is None for one in shards)
    lost = [key for key in shards[0].part.cases if key not in held] if whole else []
    if lost:
        raise UsageError(f"merge: no shard holds {escaped(listed(lost), 400)}: results were changed")
    return [case for one in shards for case in one.results.cases]


def _error(broken: Shared) -> Reason:
    reason = broken.results.error
    assert reason is not None
    told = f"shard {broken.part.shards[0]}/{broken.part.of} ({broken.name}): {one_line(reason.text, 900)}"
    # An interrupted merge is nothing to be gone on with: its shard is.
    return reason.model_copy(update={"text": told, "kind": "exit" if reason.kind == "interrupt" else reason.kind})


def _joined(each: Sequence[Mapping[N, float]], join: Callable[[Iterable[float]], float]) -> dict[N, float]:
    names = dict.fromkeys(name for seconds in each for name in seconds)
    return {name: join(seconds[name] for seconds in each if name in seconds) for name in names}


def _machine(facts: Sequence[Fingerprint]) -> Fingerprint:
    """With the highest ceilings no time that a machine reaches is impossible."""
    first = facts[0]
    ceilings = {}
    for device in first.ceilings:
        told = [one.ceilings[device] for one in facts if device in one.ceilings]
        ceilings[device] = _highest(told)
    others = {device: one.ceilings[device] for one in facts[1:] for device in one.ceilings if device not in ceilings}
    alike = all(one.uuid == first.uuid for one in facts)
    return first.model_copy(update={"ceilings": ceilings | others, "uuid": first.uuid if alike else None})


def _highest(found: Sequence[Ceilings]) -> Ceilings:
    def best(rates: Iterable[Rate | None]) -> Rate | None:
        known = [rate for rate in rates if rate is not None]
        return max(known, key=lambda rate: rate.usable or 0.0, default=None)

    first = found[0]
    types = dict.fromkeys(name for one in found for name in one.matmul)
    matmul = {name: best(one.matmul.get(name) for one in found) for name in types}
    return first.model_copy(
        update={
            "read": best(one.read for one in found),
            "copied": best(one.copied for one in found),
            "matmul": {name: rate for name, rate in matmul.items() if rate is not None},
            "to_device": best(one.to_device for one in found),
            "to_host": best(one.to_host for one in found),
            "seconds": sum(one.seconds for one in found),
        }
    )


_TOLD = ("host", "cpu", "cores", "python", "torch", "cuda", "driver")
"""Facts in which machines may differ."""


def _machines(shards: Sequence[Shared]) -> list[str]:
    notes = []
    for name in _TOLD:
        of: dict[str, list[str]] = {}
        for one in shards:
            value = escaped(str(getattr(one.results.fingerprint, name)), 100)
            of.setdefault(value, []).append(str(one.part.shards[0]))
        if len(of) > 1:
            told = "; ".join(f"{value} (shard {listed(numbers, 20)})" for value, numbers in of.items())
            notes.append(f"the shards' machines differ in {name}: {told}")
    return notes
