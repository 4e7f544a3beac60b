"""Snapshots: the files of a side in a folder of its own, complete with submodules and LFS.

Files have two modes (0644, 0755) and one fixed time: a clock tick between two files would make `make` rebuild in one
side only.
"""

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from perfci.model.base import MachineError, UsageError
from perfci.model.text import escaped
from perfci.sources.git import LFS_OFF, Repository, run_git

TIMEOUT = 1800.0
"""Seconds to write the files of a commit."""
MTIME = 946_684_800
"""2000-01-01: older than every build, and young enough for zip files (1980)."""
FOLDER_BYTES = 2 * 2**30
FOLDER_FILES = 200_000
SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__", "perfci-out"})

_GITLINK = "160000"
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: begins with its version, and is under 1024 bytes.
_LFS_HEADER = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_SIZE = 1024


@dataclass(frozen=True)
class _Store:
    git_dir: Path
    common_dir: Path
    worktree: Path | None

    def has(self, sha: str) -> bool:
        return self.git("cat-file", "-e", f"{sha}^{{commit}}", allow=(0, 1, 128)).returncode == 0

    def git(self, *args: str, allow: Sequence[int] = (0,)) -> subprocess.CompletedProcess[bytes]:
        # Both are named, or git would read `core.worktree`, which may point to a folder that is not here.
        env = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.git_dir)}
        return run_git(args, cwd=self.git_dir, env=env, allow=allow)


class _Index:
    def __init__(self, store: _Store, dest: Path, file: Path) -> None:
        self.dest = dest
        self._env = {"GIT_DIR": str(store.git_dir), "GIT_WORK_TREE": str(dest), "GIT_INDEX_FILE": str(file)}

    def git(self, *args: str, stdin: bytes = b"", allow: Sequence[int] = (0,)) -> bytes:
        # The working tree is `dest`, never the user's: attributes are then those of the snapshot itself.
        done = run_git(args, cwd=self.dest, env=self._env, config=LFS_OFF, stdin=stdin, timeout=TIMEOUT, allow=allow)
        return done.stdout


@contextmanager
def _index(store: _Store, dest: Path) -> Iterator[_Index]:
    folder = dest / ".git"  # the one name that no commit can hold
    folder.mkdir(parents=True)
    try:
        yield _Index(store, dest, folder / "index")
    finally:
        shutil.rmtree(folder)


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = escaped(os.fsdecode(error.filename) if error.filename else target)
        raise MachineError(
            f"{where}: cannot be copied: {error.strerror}: "
            "fix that file, or set TMPDIR to a larger disk where space is short"
        ) from None


class Suite(NamedTuple):
    """Files of another commit that replace a commit's own."""

    commit: str
    globs: Sequence[str]
    """Of files, below the root."""


def snapshot_commit(repo: Repository, sha: str, target: Path, suite: Suite | None = None) -> str:
    """Write commit `sha` into the empty or new folder `target`, with `suite`'s files in place of its own. Return their
    digest: equal for a commit and its clean working tree.

    Submodules come from the clone's object stores. One in none of them stays empty where `git submodule update` would
    leave it so. Raises UsageError where a commit or LFS object is missing, or a link stands in place of the suite's
    folder, MachineError where the disk refuses.
    """
    store = _Store(repo.git_dir, repo.common_dir, repo.root)
    if not store.has(sha):
        name = escaped(sha, 300)
        remedy = f"run `git fetch origin {name}`" if repo.has_origin() else "fetch it from where it was made"
        raise UsageError(f"commit {name[:12]}: is not in this clone: {remedy}")
    with _disk_errors(target):
        _require_empty(target)
        _write_commit(store, sha, target, "")
        if suite is not None:
            _replace_suite(store, suite, target)
        return _seal(target)


def _replace_suite(store: _Store, suite: Suite, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        other = Path(folder)
        _write_commit(store, suite.commit, other, "")
        for root, taken in ((target, False), (other, True)):
            for path in {
                path for glob in suite.globs for path in root.glob(glob) if path.is_symlink() or path.is_file()
            }:
                name = str(path.relative_to(root))
                if _behind_link(target, name):
                    raise UsageError(f"{escaped(name)}: lies behind a link, where the suite's file cannot be put")
                if taken:
                    _copy(path, target / name)
                else:
                    path.unlink()


def snapshot_worktree(repo: Repository, target: Path, exclude: Sequence[Path] = ()) -> str:
    """Copy the working tree into the empty or new folder `target`, with untracked files, submodules and clones inside.
    Return and raise as `snapshot_commit`.

    Without ignored and deleted files, `exclude`, and other worktrees. What a sparse checkout lacks comes from HEAD.
    Links stay links, wherever they point.
    """
    skip = [path.resolve() for path in (target, *exclude)]
    with _disk_errors(target):
        _require_empty(target)
        _copy_worktree(repo, target, skip, "")
        return _seal(target)


def snapshot_folder(folder: Path, target: Path, exclude: Sequence[Path] = ()) -> str:
    """Copy a folder outside git into `target`, without `SKIPPED` and `exclude`.

    Raises UsageError, before copying, for more than FOLDER_BYTES or FOLDER_FILES, MachineError where the disk refuses.
    """
    skip = {path.resolve() for path in (target, *exclude)}
    root = folder.resolve()
    found: list[str] = []
    size = 0
    with _disk_errors(target):
        _require_empty(target)
        for path, info in _walk(root, skip):
            found.append(path)
            size += info.st_size
            if len(found) > FOLDER_FILES or size > FOLDER_BYTES:
                raise UsageError(
                    f"{escaped(root)}: holds more than {FOLDER_BYTES / 2**30:g} GiB or {FOLDER_FILES} files: "
                    "run perfci in a smaller folder, or make it a git repository that ignores the rest"
                )
        for path in found:
            _copy(root / path, target / path)
        return _seal(target)


def _require_empty(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise MachineError(f"{escaped(target)}: is not empty: a snapshot needs a folder of its own")


def _write_commit(store: _Store, sha: str, dest: Path, label: str) -> None:
    with _index(store, dest) as index:
        index.git("read-tree", sha)
        index.git("checkout-index", "--all", "--force", "--quiet")
        links, files = [], []
        for entry in _split(index.git("ls-files", "--stage", "-z")):
            facts, _, path = entry.partition("\t")
            mode, link, _ = facts.split()
            if mode == _GITLINK:
                links.append((path, link))
            else:
                files.append(path)
        _fill_lfs(store, index, files, label, f"git lfs fetch origin {sha[:12]}")
    modules = _submodules(dest)
    for path, link in links:
        _fill_submodule(store, modules.get(path), path, link, dest=dest / path, label=f"{label}{path}")


def _split(output: bytes) -> list[str]:
    return [os.fsdecode(entry) for entry in output.split(b"\0") if entry]


def _submodules(dest: Path) -> dict[str, dict[str, str]]:
    file = dest / ".gitmodules"
    if file.is_symlink() or not file.is_file():
        return {}
    args = ["config", "-z", "--file", str(file), "--get-regexp", r"^submodule\..*\.(path|update)$"]
    declared: dict[str, dict[str, str]] = {}
    for entry in _split(run_git(args, cwd=dest, allow=(0, 1)).stdout):
        key, _, value = entry.partition("\n")
        name, _, setting = key.removeprefix("submodule.").rpartition(".")
        declared.setdefault(name, {"name": name})[setting] = value
    return {module["path"].rstrip("/"): module for module in declared.values() if "path" in module}


def _fill_submodule(
    parent: _Store, declared: Mapping[str, str] | None, path: str, sha: str, *, dest: Path, label: str
) -> None:
    stores = _submodule_stores(parent, declared, path)
    for store in stores:
        if store.has(sha):
            _write_commit(store, sha, dest, f"{label}/")
            return
    if declared is None or _update_setting(parent, declared) == "none":
        dest.mkdir(parents=True, exist_ok=True)
        return
    where = f"submodule {escaped(label, 300)}: its commit {sha[:12]} is not here"
    if stores and stores[0].worktree is not None:
        folder = escaped(stores[0].worktree)
        raise UsageError(
            f"{where}: run `git -C '{folder}' fetch origin {sha}`, "
            "or `git submodule update --init --recursive` if you have not updated it"
        )
    raise UsageError(
        f"{where}: run `git submodule update --init --recursive`, or check out with `submodules: recursive`"
    )


def _update_setting(parent: _Store, declared: Mapping[str, str]) -> str:
    done = parent.git("config", "--get", f"submodule.{declared['name']}.update", allow=(0, 1))
    return done.stdout.decode(errors="replace").strip() or declared.get("update", "")


def _submodule_stores(parent: _Store, declared: Mapping[str, str] | None, path: str) -> list[_Store]:
    checkout = parent.worktree / path if parent.worktree else None
    stores = []
    if checkout and (own := _repository_at(checkout)):
        stores.append(_Store(own.git_dir, own.common_dir, own.root))
    if declared and declared["name"] and ".." not in declared["name"].split("/"):
        for git_dir in dict.fromkeys((parent.git_dir, parent.common_dir)):
            kept = git_dir / "modules" / declared["name"]
            if (kept / "HEAD").is_file():
                stores.append(_Store(kept, kept, checkout if checkout and checkout.is_dir() else None))
    return stores


def _repository_at(folder: Path) -> Repository | None:
    if folder.is_symlink() or not (folder / ".git").exists():
        return None
    repo = Repository.find(folder)
    return repo if repo and repo.root == folder.resolve() else None


def _copy_worktree(repo: Repository, dest: Path, skip: Sequence[Path], label: str) -> None:
    store = _Store(repo.git_dir, repo.common_dir, repo.root)
    keeps_modes = repo.git("config", "--type=bool", "--get", "core.fileMode", allow=(0, 1)).stdout != b"false\n"
    copied: list[str] = []
    sparse: list[str] = []
    links: list[tuple[str, str]] = []
    for path, (tag, mode, sha) in _tracked(repo).items():
        if _below(repo.root / path, skip) or _behind_link(repo.root, path):
            continue
        if mode == _GITLINK:
            links.append((path, sha))
        elif _copy(repo.root / path, dest / path, None if keeps_modes else mode == "100755"):
            copied.append(path)
        elif tag == "S":
            sparse.append(path)
    for path in _split(repo.git("ls-files", "--others", "--exclude-standard", "-z").stdout):
        if _below(repo.root / path, skip):
            continue
        if path.endswith("/"):  # a repository inside the tree that is no submodule
            inner = _repository_at(repo.root / path)
            if inner and inner.common_dir != repo.common_dir:
                _copy_worktree(inner, dest / path, skip, f"{label}{path}")
        elif _copy(repo.root / path, dest / path):
            copied.append(path)
    with _index(store, dest) as index:
        if sparse:
            index.git("read-tree", "HEAD")
            held = set(_split(index.git("ls-files", "-z")))
            missing = [os.fsencode(path) for path in sparse if path in held]
            index.git("checkout-index", "--force", "--quiet", "-z", "--stdin", stdin=b"\0".join(missing))
        _fill_lfs(store, index, [*copied, *sparse], label, "git lfs pull")
    modules = _submodules(dest)
    for path, sha in links:
        folder = repo.root / path
        if checkout := _repository_at(folder):
            _copy_worktree(checkout, dest / path, skip, f"{label}{path}/")
        elif folder.is_dir() and not folder.is_symlink():
            _fill_submodule(store, modules.get(path), path, sha, dest=dest / path, label=f"{label}{path}")


def _tracked(repo: Repository) -> dict[str, tuple[str, str, str]]:
    """Path → (tag, mode, object); tag `S`: not in a sparse checkout."""
    entries = {}
    for entry in _split(repo.git("ls-files", "--cached", "--stage", "-t", "-z").stdout):
        facts, _, path = entry.partition("\t")
        tag, mode, sha, _ = facts.split()
        entries[path] = (tag, mode, sha)
    return entries


def _below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path == folder or path.is_relative_to(folder) for folder in folders)


def _behind_link(root: Path, path: str) -> bool:
    """Git then takes the file for deleted."""
    return any((root / parent).is_symlink() for parent in Path(path).parents if parent != Path())


def _copy(source: Path, dest: Path, executable: bool | None = None) -> bool:
    try:
        mode = source.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(mode):
        dest.parent.mkdir(parents=True, exist_ok=True)
        dest.symlink_to(source.readlink())
        return True
    if not stat.S_ISREG(mode):
        return False
    dest.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, dest)
    if executable is None:
        executable = bool(mode & stat.S_IXUSR)
    dest.chmod(0o755 if executable else 0o644)
    return True


def _fill_lfs(store: _Store, index: _Index, paths: Iterable[str], label: str, remedy: str) -> None:
    pointers = {path: pointer for path in paths if (pointer := _lfs_pointer(index.dest / path))}
    if not pointers:
        return
    names = b"".join(os.fsencode(path) + b"\0" for path in pointers)
    facts = _split(index.git("check-attr", "-z", "--stdin", "filter", stdin=names))
    filtered = [path for path, _, value in zip(facts[::3], facts[1::3], facts[2::3], strict=True) if value == "lfs"]
    if not filtered:
        return
    kept = os.fsdecode(index.git("config", "--get", "lfs.storage", allow=(0, 1)).removesuffix(b"\n"))
    folder = store.common_dir / (kept or "lfs") / "objects"
    for path in filtered:
        oid, size = pointers[path]
        content = folder / oid[:2] / oid[2:4] / oid
        if not content.is_file() or content.stat().st_size != size:
            raise UsageError(
                f"{escaped(label + path)}: only its LFS pointer is here: run `{remedy}`, or check out with `lfs: true`"
            )
        shutil.copyfile(content, index.dest / path)


def _lfs_pointer(file: Path) -> tuple[str, int] | None:
    """SHA-256 and bytes; None where `file` is no pointer."""
    info = file.lstat()
    if not stat.S_ISREG(info.st_mode) or not len(_LFS_HEADER) < info.st_size < _LFS_SIZE:
        return None
    with file.open("rb") as handle:
        if handle.read(len(_LFS_HEADER)) != _LFS_HEADER:
            return None
        lines = handle.read().decode("ascii", errors="replace").splitlines()
    facts = dict(line.split(" ", 1) for line in lines if " " in line)
    oid, size = facts.get("oid", "").removeprefix("sha256:"), facts.get("size", "")
    if len(oid) != 64 or set(oid) - set("0123456789abcdef") or not size.isdecimal():
        return None
    return oid, int(size)


def _walk(root: Path, skip: set[Path]) -> Iterator[tuple[str, os.stat_result]]:
    for folder, names, files in os.walk(root, onerror=_raise_unless_gone):
        here = Path(folder)
        links = [name for name in names if (here / name).is_symlink()]
        names[:] = sorted(n for n in names if n not in SKIPPED and n not in links and here / n not in skip)
        for name in sorted([*files, *links]):
            path = here / name
            info = path.lstat()
            if name not in SKIPPED and path not in skip and (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                yield str(path.relative_to(root)), info


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _seal(target: Path) -> str:
    """SHA-256 over sorted (path, mode, content)."""
    for path, info in _files(target):
        if not stat.S_ISLNK(info.st_mode):
            path.chmod(0o755 if info.st_mode & stat.S_IXUSR else 0o644)
        os.utime(path, (MTIME, MTIME), follow_symlinks=False)
    digest = hashlib.sha256()
    for name, mode, content in sorted(_contents(target)):
        kind = b"120000" if stat.S_ISLNK(mode) else b"100755" if mode & stat.S_IXUSR else b"100644"  # as git has it
        digest.update(name + b"\0" + kind + b"\0" + content)
    return digest.hexdigest()


def file_digests(folder: Path, wanted: Callable[[str, int], bool] = lambda _path, _mode: True) -> dict[str, str]:
    """Return path → digest of mode and content, where `wanted(path, mode)`. Raises MachineError."""
    with _disk_errors(folder):
        return {
            _text(name): hashlib.sha256(b"%o" % mode + content).hexdigest()
            for name, mode, content in _contents(folder, wanted)
        }


def path_text(path: Path) -> str:
    """Return a path as `file_digests` does: text, whatever its bytes."""
    return _text(os.fsencode(path))


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def file_stamps(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return path → facts that change with each write, even an undone one. Raises MachineError."""
    with _disk_errors(folder):
        return {
            _text(os.fsencode(path.relative_to(folder))): (info.st_ino, info.st_mode, info.st_size, info.st_ctime_ns)
            for path, info in _files(folder)
        }


def _contents(
    folder: Path, wanted: Callable[[str, int], bool] = lambda _path, _mode: True
) -> Iterator[tuple[bytes, int, bytes]]:
    for path, info in _files(folder):
        mode, content = info.st_mode, b""  # of a pipe or a socket nothing is read
        if not wanted(_text(os.fsencode(path.relative_to(folder))), mode):
            continue
        with suppress(FileNotFoundError):  # its owner has just removed it
            if stat.S_ISLNK(mode):
                content = hashlib.sha256(os.fsencode(path.readlink())).digest()
            elif stat.S_ISREG(mode):
                with path.open("rb") as handle:
                    content = hashlib.file_digest(handle, "sha256").digest()
            yield os.fsencode(path.relative_to(folder)), mode, content


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for place, names, files in os.walk(folder, onerror=_raise_unless_gone):
        for path in (Path(place, name) for name in (*names, *files)):
            with suppress(FileNotFoundError):  # likewise
                info = path.lstat()
                if not stat.S_ISDIR(info.st_mode):
                    yield path, info
