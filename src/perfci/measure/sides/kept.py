"""Base's build, kept between runs: taken where the same files would be built the same way by the same tools.

Only a run with `PERFCI_KEEP` writes one, which is to be a run of the base branch; the code under test runs as another
user, who can neither list nor read what is kept; and what is taken is copied, and compared with its digests, before
anything runs.

FOLDER/lock is held by the run that uses the folder. FOLDER/entries/KEY holds `entry.json` and a side's folders. A run
builds in FOLDER/sides: what is built often names its own folder.
"""

import fcntl
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pydantic import ValidationError

import perfci
from perfci.measure.prepare import SideWork, environment
from perfci.model.base import Document, MachineError, UsageError
from perfci.model.comparison import digest
from perfci.model.text import escaped
from perfci.sources.snapshot import file_digests
from perfci.system.child import Died
from perfci.system.files import disk_errors, remove, remove_tree, write_atomic
from perfci.system.process import Parent
from perfci.system.users import VARIABLE, Account

MOST_BYTES = 20 * 2**30
"""Bytes of all entries; the longest unused go first."""
STALE = 86_400.0
"""Seconds after which an unfinished entry is a dead run's."""
TIMEOUT = 120.0
TOOLS = (
    "cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "ld.lld", "mold", "nvcc", "ptxas", "hipcc", "cmake", "ninja",
    "make", "meson", "ccache", "sccache", "rustc", "cargo", "go", "git", "pip", "uv",
)  # fmt: skip
"""Programs whose versions count, beside those of CC, CXX, NVCC, CUDACXX and CUDAHOSTCXX."""
_TELL = f"""
for tool in {" ".join(TOOLS)} $CC $CXX $NVCC $CUDACXX $CUDAHOSTCXX; do
    path=$(command -v "$tool") || continue
    echo "$tool $path"
    "$tool" --version 2>&1 || echo "exit $?"
done
exec "$0" -I -c 'import sys, importlib.metadata as found
print(sys.version, sys.prefix)
print(*sorted({{"%s %s" % (one.metadata["Name"], one.version) for one in found.distributions()}}), sep="\\n")'
"""
_PATHS = re.compile(r"/[^\s:;,=\"'/][^\s:;,=\"']*")
_PARTS = ("tree", "site", "cache")


class Entry(Document):
    """The document beside a kept build."""

    key: str
    files: dict[str, str]
    """Path below the entry → digest; empty for a folder, whose path ends with `/`."""
    bytes: int


class Kept:
    """The folder of kept builds, held by this run."""

    def __init__(self, folder: Path, account: Account, note: Callable[[str], None]) -> None:
        self.entries, self.home = folder / "entries", folder / "sides"
        self.account, self.note = account, note

    def take(self, key: str, side: SideWork) -> bool:
        """Put the build of `key` in place of the side's files, if it is whole; else drop it. Raises MachineError."""
        entry, fresh = self.entries / key, side.folder / "kept"
        if not os.path.lexists(entry):
            return False
        try:
            made = _read(entry, key)
            _copy(entry, fresh)
            if _digests(fresh) != made.files:
                raise ValueError("its files are not those that were kept")
        except (OSError, ValueError, MachineError) as error:  # shutil.Error is an OSError, ValidationError a ValueError
            self.note(f"a build that was kept cannot be used: {_words(error)}")
            with disk_errors("removed", entry):
                remove_tree(fresh)
                remove(entry)
            return False
        with disk_errors("moved", fresh):
            for part in _PARTS:
                remove_tree(side.folder / part)
                (fresh / part).rename(side.folder / part)
            fresh.rmdir()
            os.utime(entry / "entry.json")
        return True

    def keep(self, key: str, side: SideWork) -> None:
        """Keep a side as just built. A disk that refuses costs the entry alone."""
        if os.path.lexists(self.entries / key):
            return
        if self.account.strangers():
            self.note(f"the build of {side.name} is not kept: others ran as the user of the code under test meanwhile")
            return
        fresh = self.entries / f".new-{secrets.token_hex(8)}"
        try:
            fresh.mkdir(mode=0o700)
            _copy(side.folder, fresh)
            size = sum(path.lstat().st_size for path in fresh.rglob("*"))
            if size > MOST_BYTES:
                raise ValueError(f"it takes {size / 2**30:.1f} GiB")
            made = Entry(key=key, files=_digests(fresh), bytes=size)
            write_atomic(fresh / "entry.json", made.model_dump_json() + "\n")
            fresh.rename(self.entries / key)  # onto an entry of another machine's run: it refuses
        except (OSError, ValueError, MachineError) as error:
            self.note(f"the build of {side.name} is not kept: {_words(error)}")
            shutil.rmtree(fresh, ignore_errors=True)  # what stays has no key, and goes once it is STALE
            return
        self._bound(key)

    def _bound(self, newest: str) -> None:
        """Drops dead runs' entries, and others until the rest fits into MOST_BYTES."""
        left, found = MOST_BYTES, []
        for entry in self.entries.iterdir():
            try:
                if entry.name.startswith("."):
                    if time.time() - entry.lstat().st_mtime > STALE:
                        remove(entry)
                    continue
                made = Entry.model_validate_json((entry / "entry.json").read_bytes())
                found.append((entry.name == newest, (entry / "entry.json").stat().st_mtime, entry.name, made.bytes))
            except (OSError, ValueError):
                self._remove(entry)
        for _, _, name, size in sorted(found, reverse=True):
            left -= size
            if left < 0:
                self._remove(self.entries / name)

    def _remove(self, entry: Path) -> None:
        """A disk that refuses makes the folder grow, which is reported."""
        try:
            remove(entry)
        except OSError as error:
            self.note(f"{entry} cannot be removed, and takes room beyond the bound: {_words(error)}")


def open_kept(folder: Path, account: Account, stack: ExitStack, note: Callable[[str], None]) -> Kept | None:
    """Return the builds in `folder`, held until `stack` ends; None, with a note, while another run holds them.

    Raises UsageError where the code under test could write there, MachineError.
    """
    if account.ids is None:
        raise UsageError(
            f"PERFCI_CACHE {escaped(folder)}: the code under test would run as this user, and could write what later "
            f"is base: name another user in {VARIABLE}, 10001:10001 say, and run perfci as root"
        )
    entries = folder / "entries"
    with disk_errors("made", folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(entries):
            if any(folder.iterdir()):
                raise UsageError(f"PERFCI_CACHE {escaped(folder)}: holds other things: name a new folder")
            entries.mkdir(mode=0o700)
        for path, others in ((folder, 0o22), (entries, 0o77)):
            info = path.lstat()
            if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & others:
                raise UsageError(
                    f"PERFCI_CACHE {escaped(path)}: others than this user may have written it: name a new one"
                )
        account.show(folder)
    if (above := account.may_replace(entries)) is not None:
        raise UsageError(
            f"PERFCI_CACHE {escaped(folder)}: the code under test may write to {escaped(above)}: name another"
        )
    with disk_errors("locked", folder):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another perfci uses the builds kept in {escaped(folder)}: base is built anew")
            return None
        kept = Kept(folder, account, note)
        remove_tree(kept.home)
        kept.home.mkdir(mode=0o711)
        account.show(kept.home)
        stack.callback(shutil.rmtree, kept.home, ignore_errors=True)  # the next run removes it, or says why it cannot
        stack.callback(account.sweep)  # nothing of this run may reach what the next one builds there
    return kept


def require_out_of_reach(side: SideWork, account: Account) -> None:
    """Raise UsageError where the code under test may change what the build's environment names."""
    for name, value in environment(side, side.policy.threads, 0, build=True).items():
        for path in map(Path, _PATHS.findall(value)):
            if path.is_relative_to(side.folder) or (changed := account.may_change(path)) is None:
                continue
            raise UsageError(
                f"PERFCI_KEEP: the code under test may change {escaped(changed)}, which builds see by {escaped(name)}: "
                "give it to another user, or take it out"
            )


def key_of(side: SideWork, parent: Parent, log: Path) -> str | None:
    """Return a digest of all that a build is known to depend on; None where tools do not report versions.

    Downloads, and headers and libraries of the system but for its release, are not known.
    """
    env = environment(side, side.policy.threads, 0, build=True)
    log.unlink(missing_ok=True)
    try:
        ended = parent.execute(["/bin/sh", "-c", _TELL, side.python], env=env, cwd=side.tree, log=log, timeout=TIMEOUT)
    except Died:
        return None
    if ended.code != 0:
        return None
    known = {
        "perfci": perfci.__version__,
        "tree": side.info.tree,
        "build": side.policy.build,
        "folder": str(side.folder),
        "python": [side.python, os.path.realpath(side.python)],
        "env": env,
        "tools": log.read_text(errors="replace"),
        "machine": [platform.machine(), *_lines("/proc/cpuinfo", "model name", "flags", "Features")],
        "system": [_lines("/etc/os-release"), _lines("/proc/driver/nvidia/version"), _gpus()],
    }
    return digest(known)


def _lines(path: str, *begins: str) -> list[str]:
    """Different lines of a system file, or those with such a begin; none without the file. Raises MachineError."""
    file = Path(path)
    if not file.exists():
        return []
    with disk_errors("read", file):
        lines = file.read_text(errors="replace").splitlines()
    return sorted({line for line in lines if line.startswith(begins or ("",))})


def _gpus() -> list[str]:
    found = Path("/proc/driver/nvidia/gpus").glob("*/information")
    return sorted(line for path in found for line in _lines(str(path), "Model"))


def _read(entry: Path, key: str) -> Entry:
    """Raises OSError; ValueError where it is not this user's, whole, and of `key`."""
    folders = [entry, *(entry / part for part in _PARTS)]
    for path, kind in (*((folder, stat.S_IFDIR) for folder in folders), (entry / "entry.json", stat.S_IFREG)):
        info = path.lstat()
        if stat.S_IFMT(info.st_mode) != kind or info.st_uid != os.geteuid():
            raise ValueError(f"{path.name} is not this user's")
    made = Entry.model_validate_json((entry / "entry.json").read_bytes())
    if made.key != key:
        raise ValueError("it is of another key")
    return made


def _copy(source: Path, target: Path) -> None:
    """Links stay links; only this user can reach the copy. Raises OSError, of pipes too."""
    target.mkdir(mode=0o700, exist_ok=True)
    for part in _PARTS:
        shutil.copytree(source / part, target / part, symlinks=True, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    shutil.copy2(source, target)
    Path(target).chmod(stat.S_IMODE(Path(target).stat().st_mode) & 0o777)  # never another user's rights by this one


def _digests(folder: Path) -> dict[str, str]:
    found = {f"{part}/{path}": digest for part in _PARTS for path, digest in file_digests(folder / part).items()}
    for part in _PARTS:
        for path in (folder / part).rglob("*"):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                found[f"{os.fsencode(path.relative_to(folder)).decode(errors='backslashreplace')}/"] = ""
            elif not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise ValueError("it holds what is neither file, folder nor link")
    return found


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "its document cannot be read"
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list) and error.args[0]:
        return escaped(str(error.args[0][0][-1]))[:300]
    return escaped(str(error))[:300]
