"""Is what was written down the same as what is here now, and are base and head of a case one question?

Facts that must be the same are JSON values by name; marks are what is written down of them.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue, TypeAdapter

from perfci.model.base import SIDES, UsageError
from perfci.model.fingerprint import Environments, Variable
from perfci.model.results import Case, CaseSide
from perfci.model.text import escaped, one_line
from perfci.model.timing import Setting
from perfci.worker.checks.sketch import LENGTH, SAME

SKETCH_TOLERANCE = 1e-6
"""Relative to the largest projection: far above float64's rounding, far below any change that matters."""

_TEXT = 60
_SAMPLERS = frozenset({"timer", "allocator"})
"""Settings of perfci's own, not of libraries."""
_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)
_READABLE = 100
"""Characters of a claim that is kept as it is."""
_DIGEST = "sha256:"
"""No JSON value begins so."""


def _canonical(value: Any) -> str:
    return json.dumps(_JSON.validate_python(value, strict=True), sort_keys=True)


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of keys. Raises ValueError for any other."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def marks(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the marks: a short line as JSON; else, and of mappings, the digest."""
    return {name: _claim(fact) for name, fact in facts.items()}


def _claim(fact: Any) -> str:
    text = _canonical(fact)
    readable = not isinstance(fact, dict) and len(text) <= _READABLE and r"\n" not in text
    return text if readable else _DIGEST + digest(fact)


def require_same(then: Mapping[str, str], now: Mapping[str, str], where: object, otherwise: str, todo: str) -> None:
    """Raise UsageError for the first claim that differs: `where`, its name, `otherwise` with both values, `todo`."""
    for name in _differing(now, then):
        old, new = (_told(some[name]) if name in some else "nothing" for some in (then, now))
        told = f" ({old}, here {new})" if old and new else ""
        raise UsageError(escaped(f"{where}: {name} {otherwise}{told}: {todo}"))


def _told(claim: str) -> str:
    text = str(claim).strip('"')
    if re.fullmatch(r"[0-9a-f]{40,64}", text):  # of a commit, or of files
        return text[:10]
    return "" if text.startswith(_DIGEST) else "none" if text in ("", "null") else one_line(text, _READABLE)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if name not in one or name not in other or one[name] != other[name]]


def _both(name: str, base: Any, head: Any) -> str:
    return f"{name} is {one_line(base, _TEXT)} in base, {one_line(head, _TEXT)} in head"


def _dicts(what: str, base: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    return [
        _both(f"{what} {name}", base.get(name, "not set"), head.get(name, "not set"))
        for name in sorted(_differing(base, head))
    ]


def _sketches(base: list[float], head: list[float], *, whole: bool) -> list[str]:
    """`whole`: at all checked parameters, too."""
    if not base and not head:
        return []
    if not base or not head:
        return [_both("a reference", "given" if base else "not given", "given" if head else "not given")]
    end = max(len(base), len(head)) if whole else LENGTH
    pieces = (slice(first, first + LENGTH) for first in range(0, end, LENGTH))
    found = (_apart("the reference's result", base[one], head[one], SKETCH_TOLERANCE) for one in pieces)
    return next(filter(None, found), [])


def _apart(what: str, base: list[float], head: list[float], tolerance: float) -> list[str]:
    if len(base) != len(head):
        return [_both(f"the length of {what}'s sketch", len(base), len(head))]
    if not all(map(math.isfinite, base + head)):
        return [f"the sketch of {what} holds values that are not finite"]
    largest = max(abs(v) for v in base + head)
    at = max(range(len(base)), key=lambda i: abs(base[i] - head[i]))
    if abs(base[at] - head[at]) <= tolerance * largest:
        return []
    return [_both(what, f"{base[at]:.7g}", f"{head[at]:.7g}")]


def differences(base: CaseSide, head: CaseSide, environments: Environments | None = None) -> list[str]:
    """Return what makes the sides two questions, a phrase each.

    Not settings of libraries that follow from environments which the command line set apart.
    """
    found = _dicts("parameter", base.params, head.params)
    if base.inputs != head.inputs:
        mine, theirs = (side.inputs[:12] or "unknown" for side in (base, head))
        found.append(_both("the inputs' digest", mine, theirs))
    timings = [side.timing.told() if side.timing else {} for side in (base, head)]
    if environments is not None and environments.asked:
        follow = {name for side in (base, head) for name in _settings(side)} - _SAMPLERS
        timings = [{name: value for name, value in one.items() if name not in follow} for one in timings]
    return found + _dicts("timing", *timings)


def comparable(case: Case, environments: Environments | None = None) -> bool:
    """Tell whether pairs can say how head differs from base, of a proved case in its host time."""
    base, head = case.sides.get("base"), case.sides["head"]
    if base is None or (case.proved and not case.host_open) or base.status != "ok" or head.status != "ok":
        return False
    return not differences(base, head, environments)


def settings_apart(environments: Environments, cases: Sequence[Case]) -> Environments:
    """Return the environments with the settings of libraries that differ between sides."""
    found = set()
    for case in cases:
        base, head = (_settings(case.sides[side]) for side in SIDES)
        if base and head:
            names = (base.keys() | head.keys()) - _SAMPLERS
            differ = [name for name in names if base.get(name) != head.get(name)]
            found |= {(one_line(name, _TEXT), _said(base, name), _said(head, name)) for name in differ}
    settings = [Variable(name=name, base=old, head=new) for name, old, new in sorted(found, key=str)]
    return environments.model_copy(update={"settings": settings})


def _settings(side: CaseSide) -> Mapping[str, Setting]:
    return side.timing.settings if side.timing is not None else {}


def _said(settings: Mapping[str, Setting], name: str) -> str | None:
    return one_line(settings[name], _TEXT) if name in settings else None


def alternatives(base: CaseSide, head: CaseSide) -> str:
    """Return how head's alternative differs; empty where base has none."""
    mine, theirs = base.versus, head.versus
    if mine is None or theirs is None:
        return ""
    if mine.name != theirs.name:
        return _both("the alternative", mine.name, theirs.name)
    if mine.python == theirs.python and mine.code != theirs.code:
        return f"the alternative {theirs.name} does something else in head than in base"
    return ""


def results_apart(base: CaseSide, head: CaseSide) -> list[str]:
    """Return what differs in the results of a case for which nothing says what is right."""
    mine, theirs = base.check, head.check
    if not mine.content or not theirs.content:
        return []
    found = _apart("a projection of it", mine.result, theirs.result, SAME)
    other = mine.content != theirs.content
    return [*found, *["its keys or texts differ"] * other]


def redeclared(base: CaseSide, head: CaseSide, *, whole: bool = False) -> list[str]:
    """Return what head declares otherwise of the same executions; base's declarations judge both.

    `whole`: references are compared at all checked parameters, not at the case's own alone.
    """
    found = _dicts("declared work", base.work.model_dump(), head.work.model_dump())
    for name in ("rtol", "atol"):
        mine, theirs = getattr(base.check, name), getattr(head.check, name)
        if mine != theirs:
            found.append(_both(name, mine, theirs))
    other = alternatives(base, head)
    return [*found, *_sketches(base.check.sketch, head.check.sketch, whole=whole), *([other] if other else [])]
