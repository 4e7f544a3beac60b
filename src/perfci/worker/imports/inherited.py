"""What a fork would inherit of an import, and a worker should not; and names that hold paths of a side."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Optional

from ..maps import pieces

QUIET = frozenset({"jemalloc_bg_thd"})
"""jemalloc's fork handlers take over their work (pyarrow)."""
GLIBC = 3 << 31
"""Signals 32 and 33, which glibc handles once there was a thread (nptl(7))."""
NAMED = 0.05
"""Seconds for a new thread to name itself."""
_loud: dict[str, bool] = {}
Place = tuple[dict[str, Any], str]
"""A module's or object's names, and one of them."""


def state(links: Optional[dict[str, str]] = None) -> dict[str, Any]:
    """Return what a fork would inherit and a worker should not.

    `links`: descriptor → target as of the last call, reused and updated.
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
    """Return what an import did."""
    return [
        what
        for what, now in after.items()
        if before.get(what) != now and not (what.startswith("draws") and before.get(what) is None)
    ]


def _threads() -> int:
    return sum(_is_loud(thread) for thread in os.listdir("/proc/self/task"))


def _is_loud(thread: str) -> bool:
    """A thread without a name of its own bears that of the process."""
    if thread not in _loud:
        deadline = time.monotonic() + NAMED
        name = _name(thread)
        while thread != str(os.getpid()) and name == _name(str(os.getpid())) and time.monotonic() < deadline:
            time.sleep(0.001)
            name = _name(thread)
        _loud[thread] = name not in QUIET
    return _loud[thread]


def _name(thread: str) -> str:
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
    """Return files mapped writable and shared: a worker's writes would reach others."""
    return [piece.path for piece in pieces() if piece.rights == "rw-s"]


def holders(path: str) -> tuple[dict[int, Any], list[dict[Any, Any]]]:
    """Return texts with `path`, by id, that tracked, not frozen objects lead to, and untracked dicts on the way."""
    raw = os.fsencode(path)
    found: dict[int, Any] = {}
    reached = gc.get_referents(*gc.get_objects())
    seen: dict[int, Any] = {}
    while reached:
        for one in reached:
            # By its type: some objects warn when they are asked for their class. It keeps the text of a path.
            text = str(one) if issubclass(type(one), PurePath) else one
            if (type(text) is str and path in text) or (type(text) is bytes and raw in text and text is not raw):
                found[id(text)] = text
        # Tuples of plain values are not tracked either, and so not among the objects.
        flat = {id(one): one for one in reached if type(one) in (tuple, dict) and not gc.is_tracked(one)}
        reached = gc.get_referents(*(one for ident, one in flat.items() if ident not in seen))
        seen.update(flat)
    return found, [one for one in seen.values() if type(one) is dict]


def places(texts: dict[int, Any], plain: Sequence[dict[Any, Any]]) -> tuple[list[Place], str]:
    """Return the names by which modules, objects and `plain` dicts hold these texts, and the first text held otherwise,
    or empty.

    A reference count above the names shows that: C code's references count as well.
    """
    found: dict[tuple[int, str], Place] = {}
    for one in [*gc.get_referrers(*texts.values()), *plain]:
        names = one if type(one) is dict else getattr(one, "__dict__", None)
        if one is texts or type(names) is not dict:
            continue
        held = [name for name in names if type(name) is str and type(names[name]) is str and id(names[name]) in texts]
        found.update(((id(names), name), (names, name)) for name in held)
    times = dict.fromkeys(texts, 0)
    for names, name in found.values():
        times[id(names[name])] += 1
    counts = {ident: sys.getrefcount(texts[ident]) - 2 for ident in times}  # but for `texts` and the argument
    return list(found.values()), next((str(texts[ident]) for ident in times if counts[ident] != times[ident]), "")


def relocate(held: Sequence[Place], nowhere: str, folder: str) -> None:
    """Replace `nowhere` by a side's folder, as in the side's environment."""
    for names, name in held:
        names[name] = names[name].replace(nowhere, folder)
