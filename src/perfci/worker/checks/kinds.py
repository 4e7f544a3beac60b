"""Kinds of objects that a timed function may keep."""

from __future__ import annotations

import ctypes
import types
from _ctypes import CFuncPtr
from collections.abc import Iterator
from typing import Any, Optional

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE of object.h: made by a class statement, or by an extension
_NO_STATE = ("Stream", "Event", "CUDAGraph", "Generator")
_EMPTY = object()


def content(cell: Any) -> Any:
    """Return the content of a closure's cell."""
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def names_of(code: types.CodeType) -> set[str]:
    """Return the names that a function, or one within it, looks up in its module."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(names_of, inner))


def names_something(kind: type) -> bool:
    """Tell whether objects of this kind are names of torch's, such as dtypes."""
    return kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "layout", "memory_format", "Size")


def has_no_state(kind: type) -> bool:
    """Tell whether nothing in such objects follows from inputs, as in libraries and streams."""
    if issubclass(kind, (ctypes.CDLL, CFuncPtr)):
        return True
    return any(one.__name__.lstrip("_").replace("StreamBase", "Stream") in _NO_STATE and _of_torch(one)
               for one in kind.__mro__)  # fmt: skip


def _of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def is_python_class(kind: type) -> bool:
    """Tell whether attributes are all that such objects hold."""
    if has_no_state(kind) or not all(one.__flags__ & HEAP_TYPE for one in kind.__mro__[:-1]):
        return False
    made: Optional[Any] = None
    for one in kind.__mro__:
        made = vars(one).get("__new__")
        if made is not None and not isinstance(made, staticmethod):
            break
    room = object.__basicsize__ + tuple.__itemsize__ * (2 + sum(1 for _ in slots(kind)))
    return made is vars(object)["__new__"] and kind.__basicsize__ <= room


def slots(kind: type) -> Iterator[Any]:
    """Yield the descriptors of `__slots__`, of all base classes."""
    for one in kind.__mro__:
        for found in vars(one).values():
            if isinstance(found, types.MemberDescriptorType):
                yield found


def slot_of(slot: Any, one: Any) -> Any:
    """Return the content of a slot."""
    try:
        return slot.__get__(one)
    except AttributeError:
        return _EMPTY
