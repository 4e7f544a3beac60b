"""strace(1), which tells what names the processes of a case hand to the kernel."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from perfci.model.text import one_line
from perfci.system.bounded import run
from perfci.worker.leash import PR_SET_PTRACER, PR_SET_PTRACER_ANY

OLDEST = (5, 3)
"""The first version whose output was read by perfci."""
INSTALL = "apt-get install strace"
ALLOW = "update strace, or allow ptrace: kernel.yama.ptrace_scope under 2, in a container the default seccomp profile"
TIMEOUT = 20.0
"""Seconds for one look at an idle program."""
ATTACHED = re.compile(rb"Process \d+ attached")
"""Said once it sees every call of a process."""
_TRACED = f"""
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl({PR_SET_PTRACER}, ctypes.c_ulong({PR_SET_PTRACER_ANY}), 0, 0, 0)
tracer = subprocess.Popen([*sys.argv[1:], "-p", str(os.getpid())])
while tracer.poll() is None and "TracerPid:\\t0" in open("/proc/self/status").read():
    time.sleep(0.01)
"""
"""An idle program that has itself traced, and ends."""
ESCAPES = (
    "io_uring_setup", "open_by_handle_at", "pidfd_getfd", "process_vm_readv", "process_vm_writev", "shmget", "msgget",
    "mq_open", "add_key", "request_key", "keyctl", "unshare", "setns", "chroot", "pivot_root", "mount", "umount2",
    "open_tree", "move_mount", "accept", "accept4",
)  # fmt: skip
"""Calls by which contents come into a process without a name of a file that it opens, or under another name."""
SENDS = ("sendto", "sendmsg", "sendmmsg")
"""Calls that may name another process's socket, as `connect` does."""
_LISTS = ("getdents", "getdents64")


def find() -> str | None:
    """Return the path of strace; None where it is not installed."""
    return shutil.which("strace")


def command(tool: str, output: Path) -> list[str]:
    """Return the command line by which strace writes to `output` all calls that name files, of a process (to be added:
    `-p PID`) and of those that it will start.

    Names are in hexadecimal, so that none can look like a piece of another line; descriptors come with their path.
    """
    calls = ",".join(["%file", "fchdir", "connect", *(f"?{name}" for name in (*_LISTS, *SENDS, *ESCAPES))])
    return [tool, "-f", "-y", "-xx", "-s", "0", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(output)]


def version(text: str) -> tuple[int, int] | None:
    """Return what `strace --version` says; None where that is no version."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def refusal(tool: str, prefix: Sequence[str] = (), python: str = sys.executable) -> str:
    """Return why strace cannot be used here, as a clause; empty where it can be attached to an idle program.

    `prefix`: of the command line, where that runs it as another user; `python`: an interpreter that this user may run.
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
