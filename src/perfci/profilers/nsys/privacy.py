"""Privacy under nsys, which stores the environment of every process that it can see in four places of the SQLite
export: META_DATA_CAPTURE and TARGET_INFO_SYSTEM_ENV (its own and the program's), StringIds and with it ProcessStreams
(as root, of every process on the machine, and the program's output)."""

import functools
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from perfci.profilers.base import trimmed
from perfci.system.bounded import run


def environment(base: Mapping[str, str], written: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return what a process under nsys gets of `base`, as `trimmed`."""
    # Else nsys takes only registered strings for the names of ranges that open a capture.
    return trimmed(base, written) | {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


@dataclass(frozen=True, slots=True)
class Isolation:
    """How nsys is kept from other processes' environments."""

    prefix: tuple[str, ...]
    """Words before its command line; empty where nothing can be done."""
    holds: bool
    """It sees no process but its own."""
    text: str


@functools.cache
def isolation(user: tuple[str, ...] = ()) -> Isolation:
    """Return the isolation that works here: a PID namespace, as root or in a user namespace, which dies with its first
    process, daemons included.

    `user`: words that start a command as nsys's user, where that is another.
    """
    unshare = shutil.which("unshare")
    ways = [
        ["--kill-child"],
        ["--kill-child", "--user", "--map-current-user"],
        ["--kill-child", "--user", "--map-root-user"],
    ]
    if unshare is not None:
        for way in ways:
            prefix = (unshare, *way, "--pid", "--fork", "--mount-proc")
            if _alone((*user, *prefix)):
                how = "in a user namespace" if "--user" in way else "as root"
                return Isolation(prefix, True, f"nsys runs in a PID namespace of its own, opened {how}")
    why = "unshare is not installed" if unshare is None else "this user may not open a PID namespace"
    whose = "of the code under test, whose user it runs as" if user else "of all processes that /proc shows this user"
    return Isolation((), False, f"{why}: nsys sees the environments {whose}")


def isolate(argv: Sequence[str], user: tuple[str, ...] = ()) -> list[str]:
    """Return `argv` in a PID namespace, where there can be one."""
    return [*isolation(user).prefix, *argv]


def _alone(prefix: Sequence[str]) -> bool:
    script = 'read -r name </proc/1/comm && [ "$$" = 1 ] && [ "$name" = sh ]'
    return run([*prefix, "/bin/sh", "-c", script], 20).fine
