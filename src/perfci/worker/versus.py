"""Another implementation of a case, timed beside it in the same process."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Versus:
    """An implementation that a case is to be faster than."""

    name: str
    fn: Callable[[], Any]

    def told(self) -> dict[str, str]:
        """Return its name, a digest of its own code, not of what it calls, and the Python whose bytecode that is."""
        return {"name": self.name, "code": _digest(self.fn), "python": "{}.{}".format(*sys.version_info)}


def _digest(fn: Callable[[], Any]) -> str:
    called = fn if hasattr(fn, "__code__") else type(fn).__call__
    code = getattr(called, "__code__", None)
    if isinstance(code, CodeType):
        text = _plain(code)
    else:  # written in C
        text = "{}.{}".format(type(fn).__module__, getattr(fn, "__qualname__", type(fn).__qualname__))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(code: CodeType) -> str:
    """A comment above changes nothing."""
    return repr((code.co_code, code.co_names, code.co_freevars, [_constant(one) for one in code.co_consts]))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _plain(value)
    if isinstance(value, frozenset):  # in an order that the hash seed decides
        return repr(sorted(map(_constant, value)))
    return f"{type(value).__name__} {value!r}"


def in_turns(own: Any, other: Any, message: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    """Take blocks of the case and of its alternative in the order of `turns`, with two samplers of one timing mode.

    Return the seconds of each sample, by block, of `own` and of `other`.
    """
    samplers = {"own": own, "other": other}
    times: dict[str, list[list[float]]] = {"own": [], "other": []}
    turns: Sequence[str] = message["turns"]
    for which in turns:
        times[which].append(samplers[which].block(message["batch"], message["samples"], message["bracket"]))
    for sampler in samplers.values():
        sampler.finish()
    return times
