"""Facts of a run by their names in errors, and those that must be as planned."""

from collections.abc import Mapping, Sequence
from typing import Any

from perfci.measure.prepare import SideWork, Sources
from perfci.measure.request import ANEW, Planned
from perfci.model.base import DeviceKind, Side
from perfci.model.comparison import marks, require_same
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.results import Case


def of_sides(sources: Sources, sides: Mapping[Side, SideWork]) -> dict[str, Any]:
    """Return facts of base and head as copied, before any build."""
    return {
        f"the {what} of {name}": fact
        for name, side in sides.items()
        for what, fact in (
            ("policy", sources.policies[name].model_dump(mode="json")),
            ("code", side.info.tree),
            ("interpreter", side.python),
        )
    }


def of_sources(sources: Sources, sides: Mapping[Side, SideWork]) -> dict[str, Any]:
    """Return facts of base and head with their commits."""
    commits = {"base": sources.base, "head": sources.head}
    found = {f"the commit of {name}": one.sha for name in sides if (one := commits[name]) is not None}
    return found | of_sides(sources, sides)


def of_environments(environments: Environments | None) -> dict[str, Any]:
    """Return what base and head do not share."""
    found = None if environments is None else environments.model_dump(mode="json")
    return {"what differs between the environments of base and head": found}


def of_machine(facts: Fingerprint, devices: Sequence[DeviceKind], environments: Environments | None) -> dict[str, Any]:
    """Return facts of the interpreters, and each device's model."""
    models = {f"the model of {device}": facts.devices.get(device) for device in devices}
    versions = {f"the version of {name}": getattr(facts, name) for name in ("python", "torch", "cuda")}
    return models | versions | of_environments(environments)


def require_planned(then: Mapping[str, str], now: Mapping[str, Any]) -> None:
    """Raise UsageError where a fact differs from the plan's marks `then`."""
    todo = f"measure what was planned, or {ANEW} on this machine"
    require_same(then, marks(now), "--shard", "is not that of the plan", todo)


def require_cases(planned: Planned, cases: Sequence[Case]) -> list[Case]:
    """Return those of `cases` measured here. Raises UsageError for other cases than planned."""
    then = {f"the case {key}": command for key, command in planned.known.items()}
    now = {f"the case {one.key}": one.kernel if one.origin == "command" else "" for one in cases}
    require_planned(marks(then), now)
    return [case for case in cases if case.key in planned.proofs]
