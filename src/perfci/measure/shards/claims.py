"""Facts that must be the same for a shard as for the plan, step by step, by the name that an error gives them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from perfci.measure.prepare import SideWork, Sources
from perfci.measure.shards.document import Shard
from perfci.model.base import Side, UsageError
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.results import Case
from perfci.model.text import listed

KERNELS = "the set of kernels' cases"


def digest(data: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def of_sources(sources: Sources, sides: Mapping[Side, SideWork]) -> dict[str, str]:
    """Return the facts of base and head as they were copied, before anything is built."""
    commits = {"base": sources.base, "head": sources.head}
    found = {f"the commit of {name}": one.sha for name in sides if (one := commits[name]) is not None}
    for name, side in sides.items():
        found[f"the policy of {name}"] = digest(sources.policies[name].model_dump(mode="json"))
        found[f"the code of {name}"] = side.info.tree
        found[f"the interpreter of {name}"] = side.python
    return found


def of_machine(facts: Fingerprint, environments: Environments | None) -> dict[str, str]:
    """Return the facts of the interpreters."""
    return {
        "the version of Python": facts.python,
        "the version of torch": facts.torch or "",
        "the CUDA version of torch": facts.cuda or "",
        "what differs between the environments of base and head": digest(
            None if environments is None else environments.model_dump(mode="json")
        ),
    }


def of_cases(cases: Sequence[Case]) -> dict[str, str]:
    """Return the set of cases, as far as each shard can tell it: commands report theirs as they are run."""
    return {KERNELS: digest(sorted(case.key for case in cases if case.origin == "kernel"))}


def require_devices(shard: Shard, devices: Sequence[str], facts: Fingerprint) -> None:
    """Raise UsageError where this machine measures other devices, or another model of one, than were planned."""
    for device, then in shard.plan.devices.items():
        now = facts.devices.get(device, "") if device in devices else ""
        if now != then:
            raise UsageError(
                f"--plan: is of {then}, and this machine has {now or f'no {device}'}: shards of one plan run on one "
                "model of each device"
            )


def require_cases(shard: Shard, cases: Sequence[Case]) -> None:
    """Raise UsageError where there are other cases than were planned; of commands those of the shard are known."""
    shard.plan.require(of_cases(cases))
    planned = {case.key for case in shard.cases if case.command}
    found = {case.key for case in cases if case.origin == "command"}
    if planned != found:
        other = listed(sorted(planned ^ found))
        raise UsageError(
            f"--plan: the set of cases is not that of the plan: commands report others ({other}): make a new plan "
            "with `perfci plan`"
        )
