"""The user that the code under test runs as, where another than this process's.

`PERFCI_WORKER=UID:GID` names it. The run stays root, and starts code of the sides behind setpriv(1): another user, no
capability, and no way to gain one. What that user writes is taken back before it is read.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from perfci.model.base import MachineError, UsageError
from perfci.model.text import escaped
from perfci.system.files import disk_errors
from perfci.worker.leash import PR_SET_CHILD_SUBREAPER, children, descendants, end_all, prctl

VARIABLE = "PERFCI_WORKER"
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38
"""Bits of capabilities(7) in linux/capability.h."""
NEEDED = {0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 5: "KILL", 6: "SETGID", 7: "SETUID", 8: "SETPCAP"}
"""Capabilities to run another user, give it files and end it."""
_LARGEST = 2**32 - 2
"""The next number means `none` (chown(2))."""
_GIVEN = "given to another user"


@dataclass(frozen=True)
class Account:
    """Who runs the code under test; without `ids` this process's user, for whom methods do nothing."""

    ids: tuple[int, int] | None = None
    setpriv: str = ""

    def prefix(self, capabilities: Sequence[int] = ()) -> tuple[str, ...]:
        """Return the start of a command line that runs as this user with only these `capabilities`."""
        if self.ids is None:
            return ()
        kept = ",".join(["-all", *(f"+cap_{number}" for number in capabilities)])
        user, group = self.ids
        return (
            self.setpriv, "--reuid", str(user), "--regid", str(group), "--clear-groups", "--inh-caps", kept,
            "--ambient-caps", kept, "--bounding-set", kept, "--no-new-privs", "--",
        )  # fmt: skip

    def show(self, folder: Path) -> None:
        """Make a folder ours, for the user to pass, not to list or change. Raises MachineError."""
        if self.ids is not None:
            with disk_errors(_GIVEN, folder):
                os.chown(folder, os.geteuid(), os.getegid(), follow_symlinks=False)
                folder.chmod(0o711)

    def give(self, path: Path) -> None:
        """Give the user a file, or a folder with all in it. Raises MachineError."""
        if self.ids is None:
            return
        with disk_errors(_GIVEN, path):
            os.chown(path, *self.ids, follow_symlinks=False)
            for name, folder, _ in _below(path):
                with suppress(FileNotFoundError):  # caches: another process of the same user has just removed it
                    os.chown(name, *self.ids, dir_fd=folder, follow_symlinks=False)

    def seal(self, folder: Path) -> None:
        """Take back a folder: the user may read it and add to it, not change what it holds. Raises MachineError."""
        if self.ids is None:
            return
        with disk_errors(_GIVEN, folder):
            _hold(folder)
            for name, inside, info in _below(folder):
                # Nobody else changes the folder that this lies in any more, so the name stays with the file.
                if stat.S_ISDIR(info.st_mode):
                    _hold(name, inside)
                elif info.st_uid == self.ids[0]:
                    if info.st_nlink > 1 and stat.S_ISREG(info.st_mode):
                        _copy_in_place(name, inside)  # its other names may lie outside
                    os.chown(name, os.geteuid(), self.ids[1], dir_fd=inside, follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        mode = 0o755 if info.st_mode & stat.S_IXUSR else 0o644
                        os.chmod(name, mode, dir_fd=inside)
            for name, inside, info in _below(folder):
                if stat.S_ISDIR(info.st_mode):
                    os.chown(name, os.geteuid(), self.ids[1], dir_fd=inside)
                    os.chmod(name, 0o1775, dir_fd=inside)
            os.chown(folder, os.geteuid(), self.ids[1])
            folder.chmod(0o1775)

    def reclaim(self, folder: Path) -> None:
        """Take back a folder to read what the user wrote there. Raises MachineError.

        Links, files of several names, pipes and the like are removed: what they lead to is not what the user wrote.
        """
        if self.ids is None:
            return
        with disk_errors(_GIVEN, folder):
            _hold(folder)
            for name, inside, info in _below(folder):
                if stat.S_ISDIR(info.st_mode):
                    _hold(name, inside)
                elif stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                    os.chown(name, os.geteuid(), os.getegid(), dir_fd=inside)
                    os.chmod(name, 0o755 if info.st_mode & stat.S_IXUSR else 0o644, dir_fd=inside)
                else:
                    with suppress(FileNotFoundError):  # another process of perfci's takes it back, too
                        os.unlink(name, dir_fd=inside)

    def adopt(self) -> None:
        """Become the parent of orphans, so that no process gets away from `sweep`."""
        if self.ids is not None:
            prctl(PR_SET_CHILD_SUBREAPER, 1)

    def sweep(self) -> None:
        """Kill the user's processes below this one."""
        if self.ids is None:
            return
        end_all(lambda: [pid for pid in descendants(os.getpid(), children()) if self._owns(pid)])
        for child in psutil.Process().children():  # orphans, whom nobody else collects
            if self._owns(child.pid):
                with suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)

    def strangers(self) -> list[int]:
        """Return the user's other processes, a neighbour's perhaps."""
        ours = {one.pid for one in psutil.Process().children(recursive=True)}
        return [pid for pid in psutil.pids() if pid not in ours and self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        try:
            return self.ids is not None and psutil.Process(pid).uids().real == self.ids[0]
        except psutil.NoSuchProcess:
            return False

    def may_replace(self, path: Path) -> Path | None:
        """Return the folder above `path` in which the user can replace what leads to it, or None."""
        if self.ids is None:
            return None
        for inner, folder in zip((path, *path.parents), path.parents, strict=False):
            info = folder.stat()
            own = info.st_uid == self.ids[0]
            kept = info.st_mode & stat.S_ISVTX and not own and inner.lstat().st_uid != self.ids[0]
            mounted = os.path.ismount(inner) or os.statvfs(folder).f_flag & os.ST_RDONLY
            if self._may(info, stat.S_IWOTH) and not kept and not mounted:
                return folder
        return None

    def may_change(self, path: Path) -> Path | None:
        """Return what the user can change: what leads to `path`, it, or what it holds or links to; or None."""
        if self.ids is None or not path.exists():
            return None
        found = [path, path.resolve()]
        for place, names, files in os.walk(path.resolve()):
            found += (Path(place, name) for name in (*names, *files))
        entered = {one.parent: one for one in found[:2]}
        for one in found:
            real = one.resolve() if one.is_symlink() else one
            while not real.exists():  # of a link that leads nowhere: whoever may make what it leads to
                real = real.parent
            if real != one:
                entered[real.parent] = real
            info = real.stat()
            plain = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
            if plain and self._may(info, stat.S_IWOTH) and not os.statvfs(real).f_flag & os.ST_RDONLY:
                return one
        return next((above for one in entered.values() if (above := self.may_replace(one))), None)

    def may_read(self, path: Path) -> bool:
        """Tell whether the user can open an existing file, or list a folder."""
        folders = {*path.parents, *path.resolve().parents}
        return self.ids is None or (
            self._may(path.stat(), stat.S_IROTH) and all(self._may(one.stat(), stat.S_IXOTH) for one in folders)
        )

    def _may(self, info: os.stat_result, right: int) -> bool:
        """`right`: its bit for others. An owner can take each."""
        user, group = self.ids or (os.geteuid(), os.getegid())
        return info.st_uid == user or bool(info.st_mode & (right << 3 if info.st_gid == group else right))


SAME = Account()
"""The user of this process."""


def find_account(env: Mapping[str, str] = os.environ) -> Account:
    """Return the user that `PERFCI_WORKER` names, else that of this process. Raises UsageError, and MachineError where
    this process may not run anything as another."""
    text = env.get(VARIABLE)
    if text is None:
        return SAME
    match = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", text)
    user, group = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < user <= _LARGEST or group > _LARGEST:
        raise UsageError(f"{VARIABLE}={escaped(text)[:80]}: is no user to run code as: write UID:GID, not root's")
    given = held(list(NEEDED)) or []
    lacking = [name for bit, name in NEEDED.items() if bit not in given]
    if lacking:
        raise MachineError(
            f"{VARIABLE}={text}: this process may not run code as another user: "
            f"start it as root with the capabilities {', '.join(lacking)}, or unset {VARIABLE}"
        )
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise MachineError(f"{VARIABLE}={text}: setpriv is not on PATH: install util-linux, or unset {VARIABLE}")
    return Account((user, group), setpriv)


def held(capabilities: Sequence[int], root: Path = Path("/")) -> list[int] | None:
    """Return those of `capabilities` in effect here; None where /proc does not tell."""
    try:
        status = (root / "proc/self/status").read_text(errors="replace")
    except OSError:
        return None
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return [number for number in capabilities if int(effective[1], 16) >> number & 1] if effective else None


@dataclass(frozen=True)
class Outputs:
    """The folder of the results."""

    folder: Path
    descriptor: int
    """Negative where it need not be held."""

    def require(self) -> None:
        """Raise MachineError where the folder was replaced."""
        try:
            same = self.descriptor < 0 or os.path.samestat(os.fstat(self.descriptor), self.folder.lstat())
        except OSError:
            same = False
        if not same:
            raise MachineError(
                f"{escaped(self.folder)}: the code under test has put something else in its place: "
                "mount the sources read-only, and this folder on its own"
            )


@contextmanager
def keep_outputs(folder: Path, sources: Path, account: Account | None = None) -> Iterator[Outputs]:
    """Make `folder` and hold it against `account`; in the end it belongs to the owner of `sources`.

    Does nothing where the code under test runs as this process's user. Raises MachineError.
    """
    if (account or find_account()).ids is None:
        yield Outputs(folder, -1)
        return
    made = folder
    while not made.parent.exists():
        made = made.parent
    with disk_errors("made", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with disk_errors(_GIVEN, folder):
        owner = sources.stat()
        _own(folder, os.geteuid(), os.getegid(), 0o7755)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    outputs = Outputs(folder, descriptor)
    try:
        yield outputs
    finally:
        try:
            outputs.require()
            with disk_errors(_GIVEN, folder):
                _own(made, owner.st_uid, owner.st_gid, 0o7777)
        finally:
            os.close(descriptor)


def _own(top: Path, user: int, group: int, mask: int) -> None:
    os.chown(top, user, group, follow_symlinks=False)
    top.chmod(stat.S_IMODE(top.lstat().st_mode) & mask)
    for name, folder, info in _below(top):
        if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
            continue
        os.chown(name, user, group, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            os.chmod(name, stat.S_IMODE(info.st_mode) & mask, dir_fd=folder)


def _hold(name: "str | Path", inside: int | None = None) -> None:
    os.chown(name, os.geteuid(), os.getegid(), dir_fd=inside, follow_symlinks=False)
    os.chmod(name, 0o755, dir_fd=inside)


def _copy_in_place(name: str, inside: int) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=inside)
    with os.fdopen(source, "rb") as old:
        os.unlink(name, dir_fd=inside)
        info = os.fstat(source)
        new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=inside)
        with os.fdopen(new, "wb") as copy:
            shutil.copyfileobj(old, copy)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=inside)


def _below(top: Path) -> Iterator[tuple[str, int, os.stat_result]]:
    """(Name, descriptor of its folder, facts) of all below `top`, without following links; a folder is read after the
    caller has dealt with it."""
    if not stat.S_ISDIR(top.lstat().st_mode):
        return
    for _, folders, files, descriptor in os.fwalk(top, onerror=_raise, follow_symlinks=False):
        real = []
        for name in (*folders, *files):
            try:
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue  # its owner has just removed it
            if stat.S_ISDIR(info.st_mode):
                real.append(name)
            yield name, descriptor, info
        folders[:] = real


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
