"""strace(1): the names that a case's processes hand to the kernel."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from perfci.model.text import one_line
from perfci.system.bounded import run
from perfci.worker.leash import PR_SET_PTRACER, PR_SET_PTRACER_ANY

OLDEST = (5, 3)
"""The oldest version tried."""
INSTALL = "apt-get install strace"
ALLOW = "update strace, or allow ptrace: kernel.yama.ptrace_scope under 2, in a container the default seccomp profile"
TIMEOUT = 20.0
"""Seconds."""
ATTACHED = re.compile(rb"Process \d+ attached")
"""Said once every call of a process is traced."""
_TRACED = f"""
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl({PR_SET_PTRACER}, ctypes.c_ulong({PR_SET_PTRACER_ANY}), 0, 0, 0)
tracer = subprocess.Popen([*sys.argv[1:], "-p", str(os.getpid())])
while tracer.poll() is None and "TracerPid:\\t0" in open("/proc/self/status").read():
    time.sleep(0.01)
"""
ESCAPES = (
    "io_uring_setup", "open_by_handle_at", "pidfd_getfd", "process_vm_readv", "process_vm_writev", "shmget", "msgget",
    "mq_open", "add_key", "request_key", "keyctl", "unshare", "setns", "chroot", "pivot_root", "mount", "umount2",
    "open_tree", "move_mount", "accept", "accept4",
)  # fmt: skip
"""Calls that bring contents in without opening a file by its name."""
SENDS = ("sendto", "sendmsg", "sendmmsg")
"""They may name another process's socket, as `connect` does."""
_LISTS = ("getdents", "getdents64")


def find() -> str | None:
    """Return the path of strace, or None."""
    return shutil.which("strace")


def command(tool: str, output: Path) -> list[str]:
    """Return the command line that writes all calls that name files, of a process (add `-p PID`) and all it starts.

    Names are in hexadecimal, so that none can look like another line.
    """
    calls = ",".join(["%file", "fchdir", "connect", *(f"?{name}" for name in (*_LISTS, *SENDS, *ESCAPES))])
    return [tool, "-f", "-y", "-xx", "-s", "0", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(output)]


def version(text: str) -> tuple[int, int] | None:
    """Return what `strace --version` says, or None."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def refusal(tool: str, prefix: Sequence[str] = (), python: str = sys.executable) -> str:
    """Return why strace cannot be attached to an idle program here, as a clause, or empty.

    `prefix`: runs it as another user; `python`: one that this user may run.
    """
    told = run([tool, "--version"], TIMEOUT)
    found = version(told.out)
    if told.fine and (found is None or found < OLDEST):
        return f"strace is older than {'.'.join(map(str, OLDEST))}"
    traced = [*prefix, python, "-I", "-S", "-c", _TRACED, *command(tool, Path("/dev/null"))]
    told = run(traced, TIMEOUT) if told.fine else told
    if told.problem:
        return f"strace does not run: {told.problem}"
    lines = told.err.strip().splitlines() or [f"neither it nor {python} says anything"]
    return "" if ATTACHED.search(told.err.encode()) else f"strace may trace nothing here: {one_line(lines[0], 200)}"
