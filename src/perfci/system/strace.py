"""strace(1), which tells what names the processes of a case hand to the kernel."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from perfci.model.text import one_line

OLDEST = (5, 3)
"""The first version with --seccomp-bpf, without which every system call would stop its process (its NEWS)."""
INSTALL = "apt-get install strace"
ALLOW = "update strace, or allow ptrace: kernel.yama.ptrace_scope under 3, in a container the default seccomp profile"
TIMEOUT = 20.0
"""Seconds for an empty program under it."""
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


def command(tool: str, output: Path, argv: Sequence[str]) -> list[str]:
    """Return `argv` under strace, which writes all calls that name files to `output`.

    Names are in hexadecimal, so that none can look like a piece of another line; descriptors come with their path.
    """
    calls = ",".join(["%file", "fchdir", "connect", *(f"?{name}" for name in (*_LISTS, *SENDS, *ESCAPES))])
    return [
        tool, "-f", "--seccomp-bpf", "-q", "-y", "-xx", "-s", "0", "-e", f"trace={calls}", "-e", "signal=none",
        "-o", str(output), "--", *argv,
    ]  # fmt: skip


def version(text: str) -> tuple[int, int] | None:
    """Return what `strace --version` says; None where that is no version."""
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def refusal(tool: str, prefix: Sequence[str] = ()) -> str:
    """Return why strace cannot be used here, as a clause; empty where an empty program runs under it.

    `prefix`: of the command line, where that runs it as another user.
    """
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        argv = [*prefix, *command(tool, Path("/dev/null"), ["true"])]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"strace does not run: {type(error).__name__}"
    found = version(said.stdout)
    if found is None or found < OLDEST:
        return f"strace is older than {'.'.join(map(str, OLDEST))}"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ends with {done.returncode}"]
        return f"strace may trace nothing here: {one_line(lines[0], 200)}"
    return ""
