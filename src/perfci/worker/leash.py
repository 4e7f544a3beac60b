"""Binds a child to its parent and a thread to a core, and ends processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Callable, Optional

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1
ENDING = 5.0
"""Seconds."""


def prctl(option: int, value: int) -> None:
    """Call prctl(2) on Linux; elsewhere do nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def leash(cores: Optional[list[int]] = None) -> None:
    """In a fresh child: die with the parent, go first when memory runs out, stay on `cores`."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no /proc: macOS
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def children() -> dict[int, list[int]]:
    """Return process → children for all live processes; empty without /proc."""
    table: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open("/proc/" + name + "/stat", "rb") as file:
                    fields = file.read().rsplit(b")", 1)[1].split()
            except (OSError, IndexError):
                continue  # it ended meanwhile
            if fields[0] != b"Z":
                table.setdefault(int(fields[1]), []).append(int(name))
    return table


def descendants(pid: int, table: dict[int, list[int]]) -> list[int]:
    """Return all processes below `pid`."""
    found, todo = [], [pid]
    while todo:
        below = table.get(todo.pop(), [])
        found += below
        todo += below
    return found


def send(pid: int, number: int) -> None:
    """Send a signal to a process, gone or not."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already, or no longer ours
        os.kill(pid, number)


def end_all(find: Callable[[], Iterable[int]]) -> None:
    """Kill what `find` finds until it finds nothing, for at most `ENDING` seconds.

    All is stopped first: one may restart another.
    """
    end = time.monotonic() + ENDING
    found = set(find())
    while found:
        stopped: set[int] = set()
        while found - stopped and time.monotonic() < end:
            for pid in found:
                send(pid, signal.SIGSTOP)
            stopped |= found
            found = set(find())
        for pid in stopped | found:
            send(pid, signal.SIGKILL)
        if time.monotonic() >= end:
            return
        time.sleep(0.005)
        found = set(find())


def drawn_core(seed: object) -> Optional[int]:
    """Return a usable core, the same for the same seed, or None."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return random.Random(f"core/{seed}").choice(sorted(os.sched_getaffinity(0)))


@contextlib.contextmanager
def on_core(core: Optional[int]) -> Iterator[None]:
    """Keep the calling thread on one core meanwhile."""
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
