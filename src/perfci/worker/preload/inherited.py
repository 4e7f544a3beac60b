"""Tells what a fork would inherit of an import, and a worker should not."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from typing import Any


def state() -> dict[str, Any]:
    """Return, by what a difference means, all that a fork would inherit and a worker should not."""
    found: dict[str, Any] = {
        "starts a thread": len(os.listdir("/proc/self/task")),
        "leaves a child": _has_children(),
        "opens a descriptor": _descriptors(),
        "changes the folder": os.getcwd(),
        "seeds Python's random numbers": random.getstate()[1][:-1],  # draws move the last alone, forks draw anew
    }
    with open("/proc/self/status") as file:
        found["handles signals"] = [line for line in file if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    numpy = sys.modules.get("numpy.random")
    found["draws NumPy's random numbers"] = None if numpy is None else numpy.get_state()[1].tobytes()
    torch = sys.modules.get("torch")
    if torch is not None:
        found["draws torch's random numbers"] = torch.get_rng_state().tolist()
        found["touches the GPU"] = torch.cuda.is_initialized()
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return what an import did that a fork would inherit; empty where that is nothing."""
    for what, now in after.items():
        if before.get(what) != now and not (what.startswith("draws") and before.get(what) is None):
            return what
    return ""


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            target = os.readlink("/proc/self/fd/" + name)
            if target not in ("/dev/null", "/dev/urandom"):
                found[name] = target
    return found


def shared_memory() -> list[str]:
    """Return the files that are mapped writable and shared: writes of one worker would reach all others."""
    with open("/proc/self/maps") as file:
        return [line.split()[-1] for line in file if line.split()[1] == "rw-s"]


def spoils_forks() -> bool:
    """Tell whether CUDA would refuse to work in a fork of this process."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(int(bool(torch.cuda._is_in_bad_fork())))
    return os.waitpid(pid, 0)[1] != 0
