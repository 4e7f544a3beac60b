"""Git, the repository, and secrets that lie in its configuration."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.doctor.machine import Machine, fail, warn
from perfci.model.doctor import Finding
from perfci.sources.environment import is_secret
from perfci.sources.git import fetching
from perfci.system.bounded import Said

MOST_CONFIGS = 200
"""Configurations read of submodules."""
DUBIOUS = "dubious ownership"
"""The words of git before 2.38 about a repository of another user."""
_HEADER = re.compile(r"http\.(.*\.)?extraheader")
_INCLUDE = re.compile(r"include(if\..*)?\.path", re.DOTALL)
_HELPER = re.compile(r"credential\.(.*\.)?helper", re.DOTALL)
_AUTHORISING = re.compile(r"\s*(authorization|private-token|cookie)\s*:", re.IGNORECASE)


@dataclass(frozen=True)
class Repo:
    """The repository around `machine.where`."""

    common: Path
    """Where configuration and submodules lie."""
    shallow: bool


def repository(machine: Machine) -> tuple[Repo | None, Said]:
    """Return the repository, or None with what git said."""
    said = _git(machine, "rev-parse", "--git-common-dir", "--is-shallow-repository")
    lines = said.out.splitlines()
    if not said.fine or len(lines) != 2:
        return None, said
    return Repo((machine.where / lines[0]).resolve(), lines[1] == "true"), said


def _git(machine: Machine, *args: str) -> Said:
    others = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    env = {name: value for name, value in machine.env.items() if name not in others}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    # As perfci does when it measures, another user's repository is read; git before 2.38 refuses it all the same.
    return machine.run(["git", "-c", "safe.directory=*", *args], env=env, cwd=machine.where)


def _trust(machine: Machine) -> str:
    return f"git config --global --add safe.directory '{machine.where}'"


def check_git(machine: Machine) -> Iterator[Finding]:
    """Check git itself and the repository."""
    if machine.which("git") is None:
        yield fail("git", "not on PATH: perfci compare needs it", "install git")
        return
    repo, said = machine.known(repository)
    if repo is not None and repo.shallow:
        text = f"{machine.where} is a shallow clone: the base may not be in it"
        yield warn("git", text, f"{fetching('HEAD', '--unshallow')}, or fetch-depth: 0 in actions/checkout")
    elif repo is None and DUBIOUS in said.err:
        yield warn("git", f"{machine.where} belongs to another user", _trust(machine))
    elif repo is None and "not a git repository" in said.err:
        yield warn("git", f"{machine.where} is in no repository", "git init, and commit; or use perfci run")
    elif repo is None:
        yield warn("git", f"{machine.where}: {said.why()}", "fix the repository (git fsck), or install git anew")


def check_token(machine: Machine) -> Iterator[Finding]:
    """Check for secrets in git's configurations: named, never shown."""
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
        text = f"the code under test can read a secret: {'; '.join(dict.fromkeys(found))}"
        remedy = (
            "persist-credentials: false in actions/checkout; here git config --unset-all KEY, and git remote set-url "
            "without user and password; then revoke the secret"
        )
        yield fail("token", text, remedy, keys=found)
    elif unread:
        yield warn("token", f"git cannot read {', '.join(unread)}", "fix that file, and run again")


def configurations(repo: Repo) -> list[Path]:
    """Return the configurations of the repository, its worktrees and submodules."""
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
    """Return the files that `file` includes."""
    named = (entry.partition("\n") for entry in entries)
    return [file.parent / Path(value).expanduser() for key, _, value in named if _INCLUDE.fullmatch(key)]


def secrets(entries: Sequence[str]) -> list[str]:
    """Return the secrets among `KEY\\nVALUE` entries, in words that do not show them."""
    found = []
    for entry in entries:
        key, _, value = entry.partition("\n")
        if key.startswith("branch.") and "://" not in entry:
            continue  # a name that somebody chose
        if is_secret(value=key):  # url.https://user:password@….insteadOf
            found.append(f"a credential in the name of {key.split('.')[0]}.….{key.rsplit('.', 1)[-1]}")
        elif _HEADER.fullmatch(key) and _AUTHORISING.match(value):
            found.append(key)
        elif _HELPER.fullmatch(key) and value.split()[:1] == ["store"]:
            found.append(f"{key}, which keeps credentials in a file")
        elif is_secret(value=value):
            found.append(f"a credential in the value of {key}")
    return found


def _short(file: Path, repo: Repo) -> str:
    try:
        return f".git/{file.relative_to(repo.common)}"
    except ValueError:
        return str(file)
