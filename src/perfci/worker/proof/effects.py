"""Tells the effects of an import on what is in the process already: Python's objects, the environment, settings.

Of each object that the collector knows what it refers to is compared, so that no registry lies too deep; of C code's
state all that can be asked for. An import may add modules, and fill what Python itself keeps to find things sooner.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import linecache
import locale
import logging
import operator
import os
import re
import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from importlib.machinery import FileFinder
from typing import Any

from ..preload.inherited import changed, state

LOT = 256
"""Objects that are compared at a time; one by one where something in a lot differs."""
_MEMORIES = {functools._lru_cache_wrapper, type(vars(abc.ABC)["_abc_impl"])}
"""Types of objects that keep what they were asked, in dicts and sets of their own."""
_PASSING = {types.FrameType, types.GeneratorType, FileFinder, *_MEMORIES}
"""Types of objects that hold nothing which the result of a later call hangs on."""
PRECISIONS = [(part, of) for part in ("generic", "cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")]
"""Back ends and operations that torch ≥ 2.9 knows a precision of."""


class Effects:
    """All that there is when this is made, to be compared with what there is later."""

    def __init__(self) -> None:
        self._settings = settings()
        gc.collect()
        gc.unfreeze()
        whole = [one for one in gc.get_objects() if one is not self]
        # Dicts of plain values are not among them.
        objects = {id(one): one for one in [*whole, *(one for one in gc.get_referents(*whole) if type(one) is dict)]}
        for one in whole:
            if type(one) in _MEMORIES:
                for known in [some for some in gc.get_referents(one) if type(some) in (dict, set)]:
                    objects.pop(id(known), None)
        objects.pop(id(vars(self)), None)
        held = [*objects.values()]
        lots = [held[first : first + LOT] for first in range(0, len(held), LOT)]
        self._lots = [(lot, [len(gc.get_referents(one)) for one in lot], gc.get_referents(*lot)) for lot in lots]

    def changed(self) -> str:
        """Return what is otherwise now, as a clause; empty where nothing is."""
        return next(iter(changed(self._settings, settings())), "") or next(self._objects(), "")

    def _objects(self) -> Iterator[str]:
        for lot, counts, then in self._lots:
            if _same(then, gc.get_referents(*lot)):
                continue
            begin = 0
            for one, count in zip(lot, counts):
                before, after = then[begin : begin + count], gc.get_referents(one)
                begin += count
                if type(one) in _PASSING or _same(before, after) or _harmless(one, before, after):
                    continue
                yield f"changes {_name(one)}"


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _harmless(one: Any, before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Tell whether an object holds all that it held in its place, and more only where that must be asked for."""
    come = [some for some in after if all(some is not other for other in before)]
    if len(come) == 1 and type(come[0]) is dict:  # the attributes of an object, once somebody asked for its __dict__
        values, rest = gc.get_referents(come[0]), [some for some in after if some is not come[0]]
        if _same(before, [*values, *rest]) or _same(before, [*rest, *values]):
            return True
        others = [now for now, then in zip(after, before) if now is not then]
        if type(one) is types.FunctionType and len(before) == len(after) and len(others) == 1:
            return others[0] is one.__annotations__  # likewise
    if any(one is getattr(re, name, None) for name in ("_cache", "_cache2")):
        return True
    if type(one) is not dict or not _same(before, after[: len(before)]):
        return False
    more = after[len(before) :]
    if any(one is some for some in (sys.modules, sys.path_importer_cache, linecache.cache, _loggers())):
        return True
    if all(type(key) is int and type(value) is weakref.ref for key, value in one.items()):
        return True  # the subclasses of a class
    name = one.get("__name__")  # of a module, which may get a package's modules
    own = [one.get("__warningregistry__"), *(sys.modules.get(f"{name}.{part}") for part in one)] if name else []
    return all(any(some is other for other in own if other is not None) for some in more)


def _loggers() -> Any:
    return logging.Logger.manager.loggerDict


def _name(one: Any) -> str:
    """Return how a module calls an object, or what it belongs to."""
    holders = gc.get_referrers(one)
    owners = [some for some in holders if isinstance(some, type) or getattr(some, "__dict__", None) is one] + [one]
    modules = [some for some in list(sys.modules.values()) if isinstance(some, types.ModuleType)]
    names = {id(module): module.__name__ for module in modules}
    for module in modules:
        for name, value in list(vars(module).items()):
            names.setdefault(id(value), f"{module.__name__}.{name}")
    for owner in owners:
        if id(owner) in names:
            return names[id(owner)]
    return f"a {type(owners[0]).__name__}"


# ---------------------------------------------------------------- what no object tells


def settings() -> dict[str, Any]:
    """Return, by what a difference means, the state of this process that lies in C code."""
    with open("/proc/self/limits") as file, open("/proc/self/status") as status:
        limits = [file.read(), *(line for line in status if line.startswith(("Umask", "Cpus_allowed:")))]
    found = {
        **state(),
        "changes the environment": _environment(),
        "changes settings of the interpreter": (
            sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), gc.get_threshold(), gc.isenabled(),
            atexit._ncallbacks(), locale.setlocale(locale.LC_ALL),
        ),
        "changes limits of the process": (limits, os.getpriority(os.PRIO_PROCESS, 0)),
        "changes how numbers are rounded": (sys.float_info.min / 2, 1 + sys.float_info.epsilon * 0.75),
    }  # fmt: skip
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["changes settings of NumPy"] = repr((numpy.geterr(), numpy.get_printoptions()))
    torch = sys.modules.get("torch")
    return found if torch is None else {**found, **_of_torch(torch)}


def _environment() -> list[bytes]:
    """Return the environment as C code sees it."""
    table = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: list[bytes] = []
    while (entry := table[len(found)]) is not None:
        found.append(entry)
    return found


def _of_torch(torch: Any) -> dict[str, Any]:
    """Return what torch tells of its flags: all that its C part has a getter for, which asks no device."""
    names = [name for name in dir(torch._C) if name.startswith("_get_") and "accelerator" not in name]
    whole: list[tuple[str, Any, Any]] = [(name, getattr(torch._C, name), ()) for name in names]
    own = ("get_default_dtype", "get_num_threads", "is_grad_enabled", "is_autocast_cpu_enabled")
    whole += [(name, getattr(torch, name), ()) for name in own if hasattr(torch, name)]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    whole += [(f"precision of {' '.join(args)}", precision, args) for args in PRECISIONS if precision is not None]
    whole.append(("operators", _operators, (torch,)))
    found = {}
    for name, ask, args in whole:
        with contextlib.suppress(TypeError):  # it asks for something
            try:
                said = repr(ask(*args))
            except RuntimeError as error:  # such as for what may be asked no longer, which is an answer, too
                said = type(error).__name__
            if " at 0x" not in said:
                found[f"changes torch's {name.removeprefix('_get_')}"] = said
    return found


def _operators(torch: Any) -> str:
    """Return a digest of what is registered for each operator, and where from."""
    found = hashlib.sha256()
    for name in torch._C._dispatch_get_all_op_names():
        found.update(torch._C._dispatch_dump(name).encode())
    return found.hexdigest()
