"""Real git repositories for tests."""

import hashlib
import os
import subprocess
from pathlib import Path

from perfci.sources.git import Repository

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2024-01-01T02:00:00+02:00",
    "GIT_COMMITTER_DATE": "2024-01-01T02:00:00+02:00",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    "GIT_CONFIG_KEY_1": "init.defaultBranch",
    "GIT_CONFIG_VALUE_1": "main",
}


def git(cwd: Path, *args: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["git", *args], cwd=cwd, env=ENV, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, f"git {args}: {done.stderr.decode()}"
    return done.stdout.decode(errors="surrogateescape").strip()


def init(folder: Path, files: dict[str, str | bytes] | None = None) -> Path:
    """A new repository with one commit that holds `files` (none: no commit)."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    if files:
        commit(folder, files)
    return folder


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def commit(folder: Path, files: dict[str, str | bytes] | None = None, message: str = "a change") -> str:
    write(folder, files or {})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def find(folder: Path) -> Repository:
    repo = Repository.find(folder)
    assert repo is not None
    return repo


def tree(folder: Path) -> dict[str, str]:
    """Path → what is there: `x:` before executable files, `-> target` for links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            mark = "x:" if path.stat().st_mode & 0o100 else ""
            found[name] = mark + path.read_bytes().decode(errors="replace")
    return found


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    """Path → time and content of everything below `folder`: to show that nothing was written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (path.lstat().st_mtime_ns, content)
    return found


def lfs_pointer(content: bytes) -> str:
    oid = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"


def lfs_store(git_dir: Path, content: bytes) -> Path:
    oid = hashlib.sha256(content).hexdigest()
    path = git_dir / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
