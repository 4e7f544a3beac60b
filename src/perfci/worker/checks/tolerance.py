"""How far a result may be from its reference."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

Tolerance = Union[float, Mapping[str, float]]
"""A number for all; or output → number, by position or key as text, and REST for all others."""
Given = tuple[Optional[Tolerance], Optional[Tolerance]]
"""Of base, which replace a side's own where they cover an output."""
NONE: Given = (None, None)
REST = "*"
_SHOWN = 8


class Unnamed(Exception):
    """A tolerance and the outputs do not fit, as one line."""


def read_tolerance(name: str, value: Any) -> Tolerance:
    """Return a tolerance as declared. Raises ValueError for anything but finite numbers from 0 on, or a mapping to
    such."""
    if not isinstance(value, Mapping):
        return require_amount(f"bench.reference({name}=…)", value)
    if not value:
        raise ValueError(
            f"bench.reference({name}={{}}): name an output, such as {{0: 1e-3, '*': 0}}, or write a number"
        )
    found = {}
    for key, one in value.items():
        if isinstance(key, bool) or not isinstance(key, (int, str)) or (isinstance(key, int) and key < 0):
            raise ValueError(
                f"bench.reference({name}={{{key!r}: …}}): name an output by its position from 0 on, by its key, or all "
                "others by '*'"
            )
        if str(key) in found:
            raise ValueError(f"bench.reference({name}=…): names the output {str(key)!r} twice")
        found[str(key)] = require_amount(f"bench.reference({name}={{{key!r}: …}})", one)
    return found


def require_amount(what: str, amount: Any) -> float:
    """Return a float. Raises ValueError for what is no number, negative or not finite."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not math.isfinite(amount) or amount < 0:
        raise ValueError(f"{what}: {amount!r} is no finite number of at least 0")
    return float(amount)


class Tolerances:
    """The tolerances of each output: base's where it covers the output, else the side's."""

    def __init__(
        self,
        rtol: Tolerance,
        atol: Tolerance,
        given: Given = NONE,
        names: tuple[str, ...] = (),
    ) -> None:
        own, first = {"rtol": rtol, "atol": atol}, dict(zip(("rtol", "atol"), given))
        self._own = {kind: _placed(value, names) for kind, value in own.items()}
        self._given = {kind: _placed(value, names) for kind, value in first.items() if value is not None}

    def require(self, outputs: Optional[Iterable[Any]]) -> None:
        """Raise Unnamed where the side names an output that its reference lacks.

        `outputs`: keys or positions; None for a single result.
        """
        known = None if outputs is None else [str(key) for key in outputs]
        for kind, value in self._own.items():
            for name in value if isinstance(value, Mapping) else ():
                if name == REST or (known is not None and name in known):
                    continue
                if known is None:
                    raise Unnamed(f"{kind} names the output {name!r}, but the reference is no tuple, list or dict")
                shown = ", ".join(map(repr, known[:_SHOWN])) + (" …" if len(known) > _SHOWN else "")
                raise Unnamed(f"{kind} names the output {name!r}, which the reference does not have: it has {shown}")

    def of(self, output: Optional[Any]) -> tuple[float, float]:
        """Return rtol and atol of an output, or of a single result (None). Raises Unnamed."""
        return self._find("rtol", output), self._find("atol", output)

    def _find(self, kind: str, output: Optional[Any]) -> float:
        for value in (self._given.get(kind), self._own[kind]):
            if isinstance(value, Mapping):
                found = value.get(str(output)) if output is not None else None
                found = value.get(REST) if found is None else found
                if found is not None:
                    return found
            elif value is not None:
                return value
        raise Unnamed(f"{kind} says nothing of the output {str(output)!r}: name it, or all others by '*'")


def _placed(value: Tolerance, names: tuple[str, ...]) -> Tolerance:
    if not isinstance(value, Mapping):
        return value
    return {str(names.index(name)) if name in names else name: one for name, one in value.items()}


def field_names(result: Any) -> tuple[str, ...]:
    """Return the fields of a named tuple, or none. Runs no code of its class."""
    found = inspect.getattr_static(type(result), "_fields", ()) if issubclass(type(result), tuple) else ()
    return found if type(found) is tuple and all(type(name) is str for name in found) else ()
