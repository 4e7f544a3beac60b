"""Flags of a process that its calls may depend on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import locale
import os
import sys
from typing import Any

PRECISIONS = [(part, of) for part in ("generic", "cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")]
"""Back ends and operations with a precision in torch ≥ 2.9."""


def flags() -> dict[str, Any]:
    """Return the flags by name."""
    with open("/proc/self/limits") as file, open("/proc/self/status") as status:
        limits = [file.read(), *(line for line in status if line.startswith(("Umask", "Cpus_allowed:")))]
    found = {
        "the environment": _environment(),
        "settings of the interpreter": (
            sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), gc.get_threshold(), gc.isenabled(),
            locale.setlocale(locale.LC_ALL),
        ),
        "limits of the process": (limits, os.getpriority(os.PRIO_PROCESS, 0)),
        "how numbers are rounded": (sys.float_info.min / 2, 1 + sys.float_info.epsilon * 0.75),
    }  # fmt: skip
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["settings of NumPy"] = repr((numpy.geterr(), numpy.get_printoptions()))
    torch = sys.modules.get("torch")
    return found if torch is None else {**found, **_of_torch(torch)}


def _environment() -> list[bytes]:
    table = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found: list[bytes] = []
    while (entry := table[len(found)]) is not None:
        found.append(entry)
    return found


def _of_torch(torch: Any) -> dict[str, Any]:
    """Those with a getter in torch's C part, without asking a device."""
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
                found[f"torch's {name.removeprefix('_get_')}"] = said
    return found


def _operators(torch: Any) -> str:
    found = hashlib.sha256()
    for name in torch._C._dispatch_get_all_op_names():
        found.update(torch._C._dispatch_dump(name).encode())
    return found.hexdigest()
