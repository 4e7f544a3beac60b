"""The lease: at most one measuring perfci per device."""

import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from perfci.model.base import MachineError
from perfci.model.text import escaped
from perfci.system.files import disk_errors

FOLDER = "perfci-leases"
POLL = 0.2
"""Seconds."""


class Lease:
    """A lock on `device_key` (a GPU's UUID, or `cpu`) that the kernel releases when this process dies.

    Waits up to `wait` seconds, after one call of `on_wait`. Raises MachineError after that, or for an unusable file.
    """

    def __init__(self, device_key: str, wait: float, on_wait: Callable[[str], None]) -> None:
        self.device_key = device_key
        self.wait = wait
        self.on_wait = on_wait
        self._fd = -1

    @property
    def path(self) -> Path:
        """It stays when the lease ends: removing it would let two processes hold two files."""
        return Path(tempfile.gettempdir()) / FOLDER / f"{re.sub(r'[^A-Za-z0-9._-]', '_', self.device_key)}.lock"

    def __enter__(self) -> "Lease":
        deadline = time.monotonic() + self.wait
        told = False
        while not self._try():
            left = deadline - time.monotonic()
            if left <= 0:
                raise MachineError(
                    f"{escaped(self.device_key)}: another perfci{self._holder()} still measures on it after "
                    f"{self.wait:g} s: wait for it to end (PERFCI_WAIT=30m waits longer), or choose another device"
                )
            if not told:
                told = True
                self.on_wait(
                    f"another perfci{self._holder()} measures on {escaped(self.device_key)}; "
                    f"waiting up to {self.wait:g} s"
                )
            time.sleep(min(POLL, left))
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def _try(self) -> bool:
        with disk_errors("locked", self.path):
            fd = self._locked()
        if fd is None:
            return False
        self._fd = fd
        note = {"pid": os.getpid(), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{json.dumps(note)}\n".encode(), 0)
        return True

    def _locked(self) -> int | None:
        while True:
            with ExitStack() as cleanup:
                fd = self._open()
                cleanup.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                # A file that was removed before it was locked is no lease: the next process makes another.
                if _is_named(fd, self.path):
                    cleanup.pop_all()
                    return fd

    def _open(self) -> int:
        make_folder()
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            # Without O_CREAT first: in a sticky folder fs.protected_regular refuses that to other users.
            fd = os.open(self.path, flags)
        except FileNotFoundError:
            try:
                fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(fd, 0o666)
            except FileExistsError:
                fd = os.open(self.path, flags)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise MachineError(f"{escaped(self.path)}: is no ordinary file: remove it")
        return fd

    def _holder(self) -> str:
        try:
            note = json.loads(self.path.read_bytes())
            return f" (pid {int(note['pid'])}, since {escaped(note['started'])})"
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def make_folder() -> Path:
    """Return the folder of the locks, writable for all users. Raises MachineError, OSError."""
    folder = Path(tempfile.gettempdir()) / FOLDER
    try:
        folder.mkdir()
        folder.chmod(0o1777)
    except FileExistsError:
        if folder.is_symlink() or not folder.is_dir():
            raise MachineError(f"{escaped(folder)}: is no folder: remove it") from None
    return folder


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
