"""Device memory that what a script passed to its timer can reach: only that is read or written, not all it has made."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any, Callable

from ..checks.kinds import content, names_of, slot_of, slots
from ..checks.plain import ATOMS, is_tensor
from ..checks.saved import OpaqueGraph, kept, nodes

MOST = 50_000
"""Objects to look at."""


def device_bytes(fn: Callable[[], Any], device: str = "cuda") -> int:
    """Return the bytes of the memory of a device's tensors, what backward passes keep included."""
    sizes: dict[int, int] = {}
    seen: dict[int, Any] = {}
    todo: list[Any] = [fn]
    while todo and len(seen) < MOST:
        one = todo.pop()
        if type(one) in ATOMS or id(one) in seen:
            continue
        seen[id(one)] = one  # kept alive, so that no id is reused
        if is_tensor(one) and one.device.type == device:
            with contextlib.suppress(RuntimeError):  # as torch raises for a layout without one memory, such as sparse
                storage = one.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        with contextlib.suppress(Exception):  # whatever attributes of the code under test raise
            todo.extend(_parts(one))
    return sum(sizes.values())


def _parts(one: Any) -> Iterator[Any]:
    if is_tensor(one):
        with contextlib.suppress(OpaqueGraph):
            for node in nodes(one):
                yield from kept(node).values()
    elif isinstance(one, types.FunctionType):
        yield from map(content, one.__closure__ or ())
        yield from one.__defaults__ or ()
        yield from (one.__kwdefaults__ or {}).values()
        if one.__globals__.get("__name__") == "__main__":
            yield from (one.__globals__[name] for name in names_of(one.__code__) if name in one.__globals__)
    elif isinstance(one, types.BuiltinMethodType):
        yield one.__self__
    elif isinstance(one, types.MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, (list, tuple, set)):
        yield from one
    elif not isinstance(one, (type, types.ModuleType)):
        if hasattr(one, "__dict__"):
            yield from vars(one).values()
        yield from (slot_of(slot, one) for slot in slots(type(one)))
