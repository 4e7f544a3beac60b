"""Base and head with other interpreters or variables.

Their workers are processes of their own: a fork inherits its parent's interpreter and libraries, and a parent per side,
with one address space for the whole run, is a fixed effect that passes for a change.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from perfci.measure.prepare import STEADY_MALLOC, SideWork
from perfci.model.base import DeviceKind, Document, MachineError, Side, UsageError
from perfci.model.fingerprint import Environments, GpuFacts, Interpreter, Package, Variable
from perfci.model.text import escaped
from perfci.sources.environment import is_own, is_secret
from perfci.worker.discover import normalized

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_TEXT = re.compile("[\ud800-\udfff]")  # bytes of the command line that are no UTF-8
LONGEST = 8_000
"""Characters: workers that are no forks get variables on a command line."""
_SHOWN = 200


class Seen(Document):
    """A worker's answer to `facts`."""

    python: str
    torch: str | None
    cuda: str | None
    name: str | None
    uuid: str | None
    gpu: GpuFacts | None
    packages: list[tuple[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=100)]]]
    """Name and version."""


def parse_variables(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the variables of `--env`, each `NAME=VALUE`. `option` begins errors. Raises UsageError."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not _NAME.fullmatch(name):
            shown = escaped(name, 80) if equals else "what has no ="
            raise UsageError(f"{option}{shown}: write NAME=VALUE, a name of letters, digits and _")
        if is_own(name) or name in STEADY_MALLOC or name == "PYTHONHASHSEED":
            raise UsageError(f"{option}{name[:80]}: perfci sets it itself, alike in base and head: leave it out")
        if is_secret(name, value):
            raise UsageError(
                f"{option}{name[:80]}: looks like a secret, and the command line is published: "
                f"name it under pass_env: in perfci.yaml"
            )
        if len(value) > LONGEST or _NO_TEXT.search(value):
            raise UsageError(f"{option}{name[:80]}: takes UTF-8 text of at most {LONGEST} characters")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option}{name[:80]}: is given twice: give one value")
    return found


def differing_variables(sides: Mapping[Side, SideWork]) -> list[str]:
    """Return variables that differ, but for the sides' own folders."""
    first, *others = (
        {name: value.replace(str(side.folder), "…") for name, value in side.env.items()} for side in sides.values()
    )
    return sorted({name for other in others for name, _ in first.items() ^ other.items()})


def alike(sides: Mapping[Side, SideWork]) -> bool:
    """Tell whether all sides have one interpreter and variables."""
    return len({side.python for side in sides.values()}) == 1 and not differing_variables(sides)


def compare_environments(sides: Mapping[Side, SideWork], seen: Mapping[Side, Seen], *, asked: bool) -> Environments:
    """Return what differs, without values that may be secrets, by name or look, and what a policy takes over from the
    caller."""
    base, head = sides["base"], sides["head"]
    packages = {name: {normalized(package): (package, version) for package, version in one.packages}
                for name, one in seen.items()}  # fmt: skip
    ours, theirs = packages["base"], packages["head"]
    changed = []
    for one in sorted(ours.keys() | theirs.keys()):
        old, new = ours.get(one), theirs.get(one)
        if (old and old[1]) != (new and new[1]):
            changed.append(Package(name=(new or old or (one, ""))[0], base=old and old[1], head=new and new[1]))
    return Environments(
        asked=asked,
        interpreters={
            name: Interpreter(
                path=escaped(sides[name].python, 1000),
                python=one.python[:100],
                torch=one.torch and one.torch[:100],
                cuda=one.cuda and one.cuda[:100],
            )
            for name, one in seen.items()
        },
        packages=changed,
        variables=[_variable(name, base, head) for name in differing_variables(sides) if not _follows(name, sides)],
    )


def _follows(name: str, sides: Mapping[Side, SideWork]) -> bool:
    return name == "PATH" and len({side.env["PATH"].partition(":")[2].replace(str(side.folder), "…")
                                   for side in sides.values()}) == 1  # fmt: skip


def _variable(name: str, base: SideWork, head: SideWork) -> Variable:
    values = [side.env.get(name) for side in (base, head)]
    passed = any(name in side.policy.pass_env and name not in side.written for side in (base, head))
    if passed or any(is_secret(name, value or "") for value in values):
        return Variable(name=escaped(name, _SHOWN), hidden=True)
    old, new = (
        None if value is None else escaped(value.replace(str(side.folder), "…"), _SHOWN)
        for value, side in zip(values, (base, head), strict=True)
    )
    return Variable(name=escaped(name, _SHOWN), base=old, head=new)


def require_devices(found: Environments, seen: Mapping[Side, Seen], devices: Sequence[DeviceKind]) -> None:
    """Raise MachineError where head's interpreter has a GPU and base's has none."""
    if "cuda" in devices and seen["base"].gpu is None:
        base = found.interpreters["base"]
        has = f"torch {base.torch} there uses none" if base.torch else "it has no torch"
        raise MachineError(
            f"{base.path}: base cannot be measured on the GPU ({has}): install a torch that fits the driver, or "
            "measure with --device cpu"
        )
