"""Git, the repository, and secrets that lie in its configuration."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.doctor.machine import Machine, Said, fail, ok, warn
from perfci.model.doctor import Finding
from perfci.sources.git import fetching

MOST_CONFIGS = 200
"""Configurations of submodules that are read."""
DUBIOUS = "dubious ownership"
"""The words of git before 2.38 about a repository of another user."""
_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@]*:[^\s/@]+@", re.IGNORECASE)
# A user's name alone is no secret, but tokens are written there too: GitHub's and GitLab's by their prefixes.
_TOKEN = re.compile(r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}")
_HEADER = re.compile(r"http\.(.*\.)?extraheader")
_INCLUDE = re.compile(r"include(if\..*)?\.path", re.DOTALL)
_HELPER = re.compile(r"credential\.(.*\.)?helper", re.DOTALL)
_AUTHORISING = re.compile(r"\s*(authorization|private-token|cookie)\s*:", re.IGNORECASE)


@dataclass(frozen=True)
class Repo:
    """The repository around `machine.where`."""

    root: Path
    common: Path
    """Where configuration and submodules lie."""
    shallow: bool


def repository(machine: Machine) -> tuple[Repo | None, Said]:
    """Return the repository, or None with what git said."""
    said = _git(machine, "rev-parse", "--show-toplevel", "--git-common-dir", "--is-shallow-repository")
    lines = said.out.splitlines()
    if not said.fine or len(lines) != 3:
        return None, said
    common = Path(lines[1]) if Path(lines[1]).is_absolute() else machine.where / lines[1]
    return Repo(Path(lines[0]), common.resolve(), lines[2] == "true"), said


def _git(machine: Machine, *args: str) -> Said:
    env = {
        name: value for name, value in machine.env.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    # As perfci does when it measures, another user's repository is read; git before 2.38 refuses it all the same.
    return machine.run(
        ["git", "-c", "safe.directory=*", *args],
        env={**env, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        cwd=machine.where,
    )


def _trust(machine: Machine) -> str:
    return f"git config --global --add safe.directory '{machine.where}'"


def check_git(machine: Machine) -> Iterator[Finding]:
    """Check git itself and the repository."""
    if machine.which("git") is None:
        yield fail("git", "not on PATH: perfci compare needs it", "install git")
        return
    version = _git(machine, "--version")
    if not version.fine:
        yield fail("git", f"does not work: {version.why()}", "install git anew")
        return
    name = version.out.strip().replace("git version ", "git ")
    repo, said = machine.known(repository)
    if repo is None:
        if DUBIOUS in said.err:
            yield warn("git", f"{name}; {machine.where} belongs to another user", _trust(machine))
        elif "not a git repository" in said.err:
            yield warn("git", f"{name}; {machine.where} is in no repository", "git init, and commit; or use perfci run")
        else:
            yield warn("git", f"{name}; {machine.where}: {said.why()}", "fix the repository: git fsck")
    elif repo.shallow:
        text = f"{name}; {repo.root} is a shallow clone: the base may not be in it"
        yield warn(
            "git", text, f"{fetching('HEAD', '--unshallow')}, or fetch-depth: 0 in actions/checkout", shallow=True
        )
    else:
        yield ok("git", f"{name}; repository {repo.root}, with its whole history", shallow=False)


def check_token(machine: Machine) -> Iterator[Finding]:
    """Check for secrets in the repository's configuration and those of its submodules: named, never shown."""
    if machine.which("git") is None:
        return
    repo, said = machine.known(repository)
    if repo is None:
        if DUBIOUS in said.err:
            yield warn("token", f"not searched: git refuses {machine.where}", _trust(machine))
        return
    files = configurations(repo)
    found, unread = [], []
    for file in files:  # grows by what is included: git itself follows a condition only where it holds just now
        said = _git(machine, "config", "--file", str(file), "--list", "-z")
        if not said.fine:
            unread.append(str(file))
        entries = said.out.split("\0")
        found += [f"{word} in {_short(file, repo)}" for word in secrets(entries)]
        files += [path for path in included(entries, file) if path.is_file() and path not in files][:MOST_CONFIGS]
    if found:
        yield fail(
            "token",
            f"the code under test can read a secret: {'; '.join(dict.fromkeys(found))}",
            "persist-credentials: false in actions/checkout; here git config --unset-all KEY, and git remote set-url"
            " without user and password; then revoke the secret",
            keys=found,
        )
    elif unread:
        yield warn("token", f"git cannot read {', '.join(unread)}", "fix that file, and run again")
    else:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield ok(
            "token", f"no secret in {_short(files[0], repo)}{more}" if files else "no configuration in the repository"
        )


def configurations(repo: Repo) -> list[Path]:
    """Return the repository's own configuration, its worktrees', and those of its submodules."""
    named = [repo.common / "config", repo.common / "config.worktree"]
    named += sorted(repo.common.glob("worktrees/*/config.worktree"))
    found = [file for file in named if file.is_file()]
    for folder, folders, names in os.walk(repo.common / "modules"):
        folders[:] = sorted(set(folders) - {"objects", "refs", "logs", "hooks", "info"})
        if "config" in names and "HEAD" in names:
            found.append(Path(folder, "config"))
        if len(found) >= MOST_CONFIGS:
            break
    return found


def included(entries: Sequence[str], file: Path) -> list[Path]:
    """Return the files that entries of `file` include, on a condition or without."""
    found = []
    for entry in entries:
        key, _, value = entry.partition("\n")
        if _INCLUDE.fullmatch(key):
            found.append(file.parent / Path(value).expanduser())
    return found


def is_credential(text: str) -> bool:
    """Return whether `text` holds a password of a URL or a token, as far as their form tells."""
    return bool(_PASSWORD.search(text) or _TOKEN.search(text))


def secrets(entries: Sequence[str]) -> list[str]:
    """Return the secrets among `KEY\\nVALUE` entries, in words that do not show them."""
    found = []
    for entry in entries:
        key, _, value = entry.partition("\n")
        if is_credential(key):  # url.https://user:password@….insteadOf
            found.append(f"a credential in the name of {key.split('.')[0]}.….{key.rsplit('.', 1)[-1]}")
        elif _HEADER.fullmatch(key) and _AUTHORISING.match(value):
            found.append(key)
        elif _HELPER.fullmatch(key) and value.split()[:1] == ["store"]:
            found.append(f"{key}, which keeps credentials in a file")
        elif is_credential(value):
            found.append(f"a credential in the value of {key}")
    return found


def _short(file: Path, repo: Repo) -> str:
    """Return the name of a file for people: `.git/config`, or the whole path of an included one."""
    try:
        return f".git/{file.relative_to(repo.common)}"
    except ValueError:
        return str(file)
