"""Tells what a fork would inherit of an import, and a worker should not."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from typing import Any, Optional

QUIET = frozenset({"jemalloc_bg_thd"})
"""Names of threads that a fork does without: jemalloc's handlers of forks take their work back (pyarrow has them)."""
GLIBC = 3 << 31
"""The signals 32 and 33, which glibc handles for itself once there was a thread (nptl(7))."""
NAMED = 0.05
"""Seconds within which a new thread has given itself its name."""
_loud: dict[str, bool] = {}


def state(links: Optional[dict[str, str]] = None) -> dict[str, Any]:
    """Return, by what a difference means, all that a fork would inherit and a worker should not.

    `links`: descriptor → its target, as they were at the look before: they are not read again, and brought up to date.
    """
    found: dict[str, Any] = {
        "starts a thread": _threads(),
        "leaves a child": _has_children(),
        "opens a descriptor": _descriptors({} if links is None else links),
        "changes the folder": os.getcwd(),
        "seeds Python's random numbers": random.getstate()[1][:-1],  # draws move the last alone, forks draw anew
    }
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    found["handles signals"] = [int(mask, 16) & ~GLIBC for _, mask in lines]
    numpy: Any = getattr(sys.modules.get("numpy.random"), "get_state", None)  # which is not there while it is loaded
    found["draws NumPy's random numbers"] = None if numpy is None else numpy()[1].tobytes()
    torch = sys.modules.get("torch")
    if torch is not None:
        found["draws torch's random numbers"] = bytes(torch.get_rng_state().numpy())
        found["touches the GPU"] = torch.cuda.is_initialized()
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what an import did that a fork would inherit; empty where that is nothing."""
    return [
        what
        for what, now in after.items()
        if before.get(what) != now and not (what.startswith("draws") and before.get(what) is None)
    ]


def _threads() -> int:
    """Return how many threads there are that a fork would miss."""
    return sum(_is_loud(thread) for thread in os.listdir("/proc/self/task"))


def _is_loud(thread: str) -> bool:
    """Tell whether a fork would miss a thread, by its name; one that has none yet bears that of the process."""
    if thread not in _loud:
        deadline = time.monotonic() + NAMED
        name = _name(thread)
        while thread != str(os.getpid()) and name == _name(str(os.getpid())) and time.monotonic() < deadline:
            time.sleep(0.001)
            name = _name(thread)
        _loud[thread] = name not in QUIET
    return _loud[thread]


def _name(thread: str) -> str:
    """Return a thread's name; empty where it has ended."""
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descriptors(links: dict[str, str]) -> dict[str, str]:
    names = os.listdir("/proc/self/fd")
    for name in links.keys() - set(names):
        del links[name]
    for name in names:
        if name not in links:
            with contextlib.suppress(OSError):  # the listing's own
                links[name] = os.readlink("/proc/self/fd/" + name)
    return {name: target for name, target in links.items() if target not in ("/dev/null", "/dev/urandom")}


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
