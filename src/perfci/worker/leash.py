"""How a fresh child is bound to the process that started it, and a thread to a core."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
from collections.abc import Iterator
from typing import Optional

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1


def prctl(option: int, value: int) -> None:
    """Call prctl(2) on Linux; elsewhere do nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def leash(cores: Optional[list[int]] = None) -> None:
    """In a fresh child: die with the parent, be the first to go when memory runs out, stay on `cores`."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no /proc: macOS
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def drawn_core(seed: object) -> Optional[int]:
    """Return one of the cores that this process may use, the same for the same seed; None where the system does not
    tell them."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return random.Random(f"core/{seed}").choice(sorted(os.sched_getaffinity(0)))


@contextlib.contextmanager
def on_core(core: Optional[int]) -> Iterator[None]:
    """Keep the calling thread on one core meanwhile. Threads that are there already go where they like."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # it was taken from the container since: timed where the system puts it
        os.sched_setaffinity(0, [core])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
