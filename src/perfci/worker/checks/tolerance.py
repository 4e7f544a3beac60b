"""How far a result may be from its reference: one number, or one for each of its outputs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

Tolerance = Union[float, Mapping[str, float]]
"""A number for all outputs; or output → number, each by its position or key as text, and REST for all others."""
Given = tuple[Optional[Tolerance], Optional[Tolerance]]
"""rtol and atol of base, which count before those that a side declares, where they say something of an output."""
NONE: Given = (None, None)
REST = "*"
_SHOWN = 8
"""Outputs that an error names."""


class Unnamed(Exception):
    """A tolerance and the outputs do not fit. The text is one line."""


def read_tolerance(name: str, value: Any) -> Tolerance:
    """Return a tolerance as declared. Raises ValueError for one that is no number from 0 on, finite, or no mapping of
    outputs to such numbers."""
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
    """Return a number as float. Raises ValueError for one that is negative or not finite, and for all else."""
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not math.isfinite(amount) or amount < 0:
        raise ValueError(f"{what}: {amount!r} is no finite number of at least 0")
    return float(amount)


class Tolerances:
    """The tolerances of each output: base's where base says something of it, else those of the side itself."""

    def __init__(
        self,
        rtol: Tolerance,
        atol: Tolerance,
        given: Given = NONE,
        names: tuple[str, ...] = (),
    ) -> None:
        """`rtol` and `atol`: as the side declares them. `names`: of the fields of a named tuple, in order."""
        own, first = {"rtol": rtol, "atol": atol}, dict(zip(("rtol", "atol"), given))
        self._own = {kind: _placed(value, names) for kind, value in own.items()}
        self._given = {kind: _placed(value, names) for kind, value in first.items() if value is not None}

    def require(self, outputs: Optional[Iterable[Any]]) -> None:
        """Raise Unnamed where the side names an output that its reference does not have.

        `outputs`: keys or positions; None where the result is a single one.
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
        """Return rtol and atol of an output, None for a result that is a single one. Raises Unnamed where nothing says
        so."""
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
    """Return a tolerance with the fields of a named tuple by their positions."""
    if not isinstance(value, Mapping):
        return value
    return {str(names.index(name)) if name in names else name: one for name, one in value.items()}


def field_names(result: Any) -> tuple[str, ...]:
    """Return the fields of a named tuple, in order; none of anything else. Runs no code of its class."""
    found = inspect.getattr_static(type(result), "_fields", ()) if issubclass(type(result), tuple) else ()
    return found if type(found) is tuple and all(type(name) is str for name in found) else ()
