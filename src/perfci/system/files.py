"""Files that survive a full disk and a killed process."""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perfci.model.base import MachineError
from perfci.model.text import escaped

_REMEDIES = {
    errno.ENOSPC: "free space, or choose a folder on another disk",
    errno.EDQUOT: "free space within your quota, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
    errno.EROFS: "choose a folder on a file system that can be written",
    errno.EACCES: "choose a folder that you may write to, or fix its permissions",
    errno.EPERM: "choose a folder that you may write to, or fix its permissions",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "a part of this path is a file: choose another",
    errno.EISDIR: "this is a folder: name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "this is a link: remove it, or name a file",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
}


def disk_error(action: str, path: Path, error: OSError) -> MachineError:
    """Return the error as `PATH: cannot be ACTION: why: what to do`."""
    remedy = _REMEDIES.get(error.errno or 0, "fix the disk or the folder, or choose another")
    return MachineError(f"{escaped(path)}: cannot be {action}: {error.strerror}: {remedy}")


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Raise an OSError as `disk_error` words it."""
    try:
        yield
    except OSError as error:
        raise disk_error(action, path, error) from None


def end_of(path: Path, most: int) -> bytes:
    """Return the last `most` bytes of a file. Raises OSError."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - most))
        return file.read(most)


def unused(folder: Path, name: str) -> Path:
    """Return an absent path: `ncu.log`, else `ncu-2.log` …"""
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    return path


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file: a crash leaves the old file or the new one, never a part. Raises MachineError.

    What of a text cannot be encoded is escaped; the mode is 0644 less the umask.
    """
    with _temporary(path, data.encode(errors="backslashreplace") if isinstance(data, str) else data) as temporary:
        temporary.replace(path)


def write_new(path: Path, data: bytes) -> bool:
    """Write a whole file, of several writers one; return False where the name is taken. Raises MachineError."""
    with _temporary(path, data) as temporary:
        try:
            os.link(temporary, path)  # which, unlike a rename, takes no other's place
        except FileExistsError:
            return False
    return True


@contextmanager
def _temporary(path: Path, data: bytes) -> Iterator[Path]:
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    with disk_errors("written", path):
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(fd, "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(fd)
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """EINVAL: this file system cannot."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


class Appender:
    """Appends JSON objects to a file, one a line; for one writer at a time. Raises MachineError.

    Opening drops a torn last line; a line that cannot be written in full is taken back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors("opened", path):
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                self._drop_torn_line()
            except OSError:
                self.close()
                raise

    def _drop_torn_line(self) -> None:
        end = size = os.fstat(self._fd).st_size
        step = 1 << 16
        while end > 0:
            start = max(0, end - step)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)

    def append(self, record: Mapping[str, Any], *, sync: bool = False) -> None:
        """Append one record; `sync`: to the disk before this returns. Raises ValueError for NaN and infinity."""
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with disk_errors("written", self.path):
            before = os.fstat(self._fd).st_size
            try:
                written = os.write(self._fd, line)
                while written < len(line):  # a nearly full disk takes a part; the next write tells why
                    written += os.write(self._fd, line[written:])
                if sync:
                    os.fsync(self._fd)
            except BaseException:
                os.ftruncate(self._fd, before)
                raise

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of an Appender, without a torn last line.

    Raises MachineError for what is no JSON object, or holds NaN or infinity.
    """
    return list(each_line(path))


def each_line(path: Path, longest: int = 2**30) -> Iterator[dict[str, Any]]:
    """Yield them likewise; a line over `longest` bytes is refused, too."""
    with disk_errors("read", path), path.open("rb") as file:
        number = 0
        while (line := file.readline(longest + 1)).endswith(b"\n") or len(line) > longest:
            number += 1
            if len(line) > longest:
                raise MachineError(f"{escaped(path)}:{number}: has more than {longest >> 20} MiB: remove that line")
            try:
                record = json.loads(line, parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise MachineError(f"{escaped(path)}:{number}: is no JSON object: remove that line, or the file")
            yield record


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_OWNER = "owner"


@contextmanager
def make_scratch() -> Iterator[Path]:
    """Yield a new temporary folder `perfci-PID-RANDOM`, mode 0700, locked by its owner. Raises MachineError."""
    path = Path(f"perfci-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path = Path(tempfile.gettempdir()) / path
        hidden = path.with_name(f".{path.name}")
        hidden.mkdir(mode=0o700)
        try:
            lock = os.open(hidden / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Only now, with its owner locked, it gets a name that a sweep checks.
            hidden.rename(path)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
    except OSError as error:
        raise disk_error("created", path, error) from None
    try:
        yield path
    finally:
        # A run that has measured must not fail over its litter.
        with suppress(OSError):
            remove_tree(path)
        os.close(lock)


def sweep_scratch() -> list[Path]:
    """Remove and return this user's scratch folders without a living owner."""
    swept = []
    pattern = re.compile(r"perfci-\d+-[0-9a-f]{8}")
    for path in sorted(Path(tempfile.gettempdir()).iterdir()):
        if not pattern.fullmatch(path.name):
            continue
        with suppress(OSError), _dead(path) as dead:
            if dead:
                remove_tree(path)
                swept.append(path)
    return swept


@contextmanager
def _dead(path: Path) -> Iterator[bool]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            yield False
            return
        lock = os.open(_OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def remove_tree(path: Path) -> None:
    """Remove a folder and its content, folders without permissions too. Raises OSError."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        path.chmod(stat.S_IRWXU)
        for folder, names, _ in os.walk(path):
            for name in names:
                inner = Path(folder, name)
                if not inner.is_symlink():
                    inner.chmod(stat.S_IRWXU)
        shutil.rmtree(path)


def remove(path: Path) -> None:
    """Remove a link, a file, or a folder with its content. Raises OSError."""
    with suppress(FileNotFoundError):  # another run was faster
        if stat.S_ISDIR(path.lstat().st_mode):
            remove_tree(path)
        else:
            path.unlink()
