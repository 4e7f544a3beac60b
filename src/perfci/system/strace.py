"""strace(1), which tells what names the processes of a case hand to the kernel."""

import re
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from perfci.model.text import one_line
from perfci.worker.leash import PR_SET_PTRACER, PR_SET_PTRACER_ANY

OLDEST = (5, 3)
"""The first version whose output was read by perfci."""
INSTALL = "apt-get install strace"
ALLOW = "update strace, or allow ptrace: kernel.yama.ptrace_scope under 2, in a container the default seccomp profile"
TIMEOUT = 20.0
"""Seconds for one look at an idle program."""
ATTACHED = re.compile(rb"Process \d+ attached")
"""Said once it sees every call of a process."""
_IDLE = (
    "import ctypes, os, sys\n"
    f"ctypes.CDLL(None).prctl({PR_SET_PTRACER}, ctypes.c_ulong({PR_SET_PTRACER_ANY}), 0, 0, 0)\n"
    "print(os.getpid(), flush=True)\n"
    "sys.stdin.read()\n"
)
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


def command(tool: str, output: Path, pid: int) -> list[str]:
    """Return the command line that attaches strace to a process: it writes to `output` all calls that name files, of
    the process and of those that it will start.

    Names are in hexadecimal, so that none can look like a piece of another line; descriptors come with their path.
    """
    calls = ",".join(["%file", "fchdir", "connect", *(f"?{name}" for name in (*_LISTS, *SENDS, *ESCAPES))])
    return [
        tool, "-f", "-y", "-xx", "-s", "0", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(output),
        "-p", str(pid),
    ]  # fmt: skip


def version(text: str) -> tuple[int, int] | None:
    """Return what `strace --version` says; None where that is no version."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def refusal(tool: str, prefix: Sequence[str] = (), python: str = sys.executable) -> str:
    """Return why strace cannot be used here, as a clause; empty where it can be attached to an idle program.

    `prefix`: of the command line, where that runs it as another user; `python`: an interpreter that this user may run.
    """
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        found = version(said.stdout)
        if found is None or found < OLDEST:
            return f"strace is older than {'.'.join(map(str, OLDEST))}"
        words = _words(tool, prefix, python)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"strace does not run: {type(error).__name__}"
    lines = words.strip().splitlines() or ["it says nothing"]
    return "" if ATTACHED.search(words.encode()) else f"strace may trace nothing here: {one_line(lines[0], 200)}"


def _words(tool: str, prefix: Sequence[str], python: str) -> str:
    """Return what strace says as it is attached to an idle program, and that ends."""
    idle = [*prefix, python, "-I", "-S", "-c", _IDLE]
    with subprocess.Popen(idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdin is not None and program.stdout is not None
        try:
            if not (number := program.stdout.readline()):
                return f"{python} does not run"
            argv = [*prefix, *command(tool, Path("/dev/null"), int(number))]
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as tracer:
                assert tracer.stderr is not None
                if not select.select([tracer.stderr], [], [], TIMEOUT)[0]:
                    tracer.kill()
                first = tracer.stderr.readline()  # that it is attached, or why it is not
                program.stdin.close()
                rest = tracer.communicate(timeout=TIMEOUT)[1]
        finally:
            program.kill()
    return (first + rest).decode(errors="replace")
