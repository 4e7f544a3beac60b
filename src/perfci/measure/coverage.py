"""Coverage: limits must have something to judge."""

from collections.abc import Mapping

from perfci.measure.cases import Declarations, ended
from perfci.measure.place import Place
from perfci.model.base import PolicyError, Side, UsageError
from perfci.model.limits import Subject, declared, idle, mistake
from perfci.model.plan import Declared
from perfci.model.policy_text import FILE
from perfci.model.publication import ACCEPT_LABEL


def everything(place: Place, declarations: Mapping[Side, Declarations]) -> Declared:
    """Return what base and head declare. Raises UsageError where a command has a kernel's name."""
    kernels = {case["id"] for one in declarations.values() for case in one.cases.values()}
    taken = {ident.partition("/")[0] for ident in kernels}
    for name, side in sorted(place.sides.items(), reverse=True):  # head's first
        for command in side.policy.commands:
            if command.name in taken:
                where = place.sources.policy_name(name)
                raise UsageError(f"{where}: commands: {command.name} is a kernel's name, too: rename one of them")
    return Declared(
        kernels=sorted(kernels),
        commands=sorted(place.runner.idents()),
        unknown=sorted(place.runner.unknown()),
        unrun=sorted({name for one in declarations.values() for name in one.unrun}),
        whole=not any(one.broken for one in declarations.values())
        and not any(side.failure for side in place.sides.values()),
    )


def require_covered(place: Place, declarations: Mapping[Side, Declarations], known: Declared) -> list[str]:
    """Return notes on limits that judge nothing and allow it. Raises UsageError where a limit, now or once head is
    merged, judges nothing or is wrong; PolicyError where that is base's alone."""
    if not (known.kernels or known.commands or known.unknown or known.unrun) and (why := ended(declarations)):
        raise UsageError(why[0])  # of which no limit is the cause
    base = place.sources.policy_from == "base"
    wrong = {name: _wrong(place, name, declarations, known) for name in place.sides if name == "head" or base}
    if wrong.get("base"):
        remedy = (
            f"{FILE} of head has it too: fix it there, and have that change accepted with the label {ACCEPT_LABEL}"
            if wrong["head"]
            else f"this change fixes it: the label {ACCEPT_LABEL} accepts it"
        )
        text = f"{wrong['base']} (base's limits judge; {remedy})"
        raise UsageError(text) if wrong["head"] else PolicyError(text)
    if wrong["head"]:
        raise UsageError(wrong["head"])
    notes = [
        f"{one.text}: nothing was held against it"
        for one in idle(place.limits, known, place.runner.reports())
        if not one.wrong
    ]
    if base and known.whole:
        merged = known.model_copy(
            update={
                "kernels": sorted({case["id"] for case in declarations["head"].cases.values()}),
                "commands": sorted(place.runner.idents("head")),
            }
        )
        if text := mistake(place.sources.policies["head"], merged, place.runner.reports(), FILE):
            notes.append(f"once this is merged, {text}")
    return notes


def _wrong(place: Place, name: Side, declarations: Mapping[Side, Declarations], known: Declared) -> str:
    policy, file = place.sources.policies[name], place.sources.policy_name(name)
    if text := mistake(policy, known, place.runner.reports(), file):
        return text
    try:
        for case in declarations[name].cases.values() if name in declarations else ():
            where = f"{file.removesuffix(FILE)}{case['file']}:{case['line']}"
            declared(Subject(case["id"], case["device"], own=case["limits"], where=where), policy.metrics)
    except UsageError as error:
        return str(error)
    return ""
