"""A store on a branch of a git repository: one commit a night, pushed and never forced.

git works in a bare clone below the user's cache folder; checkout, index and configuration stay untouched.
"""

import fcntl
import hashlib
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from perfci.history.stores.base import LARGEST, MOST_LISTED, TOP, BadNight, Listed, Store, cache_folder, made
from perfci.model.base import MachineError, UsageError
from perfci.model.text import escaped
from perfci.sources.git import Repository, git_environment, run_git
from perfci.system.bounded import run
from perfci.system.files import disk_errors

TRIES = 30
"""Pushes: each lost is one that another writer has won."""
_STUCK = 4
"""Refused pushes though nobody else has pushed, before that is an error."""
_PATIENCE = 600.0
"""Seconds for one call of git that reaches a remote."""
_BACKOFF = 2.0
"""Seconds between pushes, at most."""
_TIP = "refs/perfci/tip"
_CLONE = "clone.git"
_LISTING = 64 * 2**20
"""Bytes of a listing of one level."""
_MOST_YEARS = 100
_README = re.compile(rb"(README|LICENSE|\.gitattributes|\.gitignore)[^/]*")
"""May stand beside the nights."""
_SECRET = re.compile(r"(?<=://)[^/@\s]+@")
_TRANSPORT = r"^(http|credential|url|ssh)\.|^core\.(sshcommand|askpass)$"
"""Say how a remote is reached."""
_PROTOCOLS = "file:git:http:https:ssh"
"""Others start programs that the address names."""


def open_branch(text: str, where: Path, settings: Sequence[tuple[str, str]] = ()) -> "BranchStore":
    """Return the store `BRANCH` around `where`, at its origin if any, or `URL#BRANCH`.

    `settings`: of git, for such a URL; they may hold a secret. Raises UsageError.
    """
    url, mark, branch = text.rpartition("#")
    shown = escaped(_SECRET.sub("", text), 200)
    fits = run_git(["check-ref-format", f"refs/heads/{branch}"], cwd=Path.cwd(), allow=(0, 1)).returncode == 0
    if not fits or branch.startswith("-"):
        raise UsageError(f"git:{shown}: names no branch: write git:BRANCH, or git:URL#BRANCH")
    if mark:
        if not url or url.startswith("-"):
            raise UsageError(f"git:{shown}: names no repository: write git:URL#BRANCH")
        return BranchStore(f"git:{shown}", _absolute(url, where), branch, settings)
    repo = Repository.find(where)
    if repo is None:
        raise UsageError(f"git:{shown}: {escaped(where)} is in no git repository: write git:URL#BRANCH")
    if not repo.has_origin():
        return BranchStore(f"git:{shown}", str(repo.common_dir), branch, [])
    url = os.fsdecode(repo.git("remote", "get-url", "--push", "origin").stdout).removesuffix("\n")
    told = repo.git("config", "--local", "--includes", "-z", "--get-regexp", _TRANSPORT, allow=(0, 1)).stdout
    pairs = [os.fsdecode(one).partition("\n") for one in told.split(b"\0") if one]
    return BranchStore(f"git:{shown}", _absolute(url, repo.root), branch, [(key, value) for key, _, value in pairs])


def _absolute(url: str, where: Path) -> str:
    remote = "://" in url or "::" in url or re.match(r"[^/]+:", url)
    return url if remote else str((where / url).resolve())


class BranchStore(Store):
    """Nights of a branch, which need not be there: the first begins it, without a parent."""

    def __init__(self, text: str, url: str, branch: str, settings: Sequence[tuple[str, str]]) -> None:
        super().__init__(text)
        self.url, self.branch, self._settings = url, branch, settings
        self._tip: str | None = None
        self._listed: dict[str, str] = {}

    # ---------------------------------------------------------------- reading

    def _list(self) -> list[Listed]:
        with self._clone() as clone:
            self._tip = self._update(clone)
            self._listed = {}
            return list(self._tree(clone, self._tip)) if self._tip is not None else []

    def _tree(self, clone: Path, tip: str) -> Iterator[Listed]:
        """Level by level: a tree can hold itself many times over."""
        years = [one for one in self._level(clone, tip, [TOP]) if one[0] == b"tree" and re.fullmatch(rb"\d{4}", one[3])]
        months = self._level(clone, tip, sorted(f"{TOP}/{name.decode()}" for _, _, _, name in years)[-_MOST_YEARS:])
        folders = sorted(path for kind, _, path, name in months if kind == b"tree" and re.fullmatch(rb"\d{2}", name))
        number = 0
        for kind, facts, path, _ in self._level(clone, tip, [os.fsdecode(folder) for folder in folders]):
            number += 1
            if number > MOST_LISTED:
                self.fault(TOP, f"holds more than {MOST_LISTED} names: the others were not read")
                return
            name = os.fsdecode(path)
            if kind != b"blob" or facts[0] not in (b"100644", b"100755"):
                self.fault(name, "is no ordinary file")
                continue
            self._listed[name] = facts[2].decode()
            yield Listed(name, int(facts[3]))

    def _level(
        self, clone: Path, tip: str, folders: Sequence[str]
    ) -> list[tuple[bytes, tuple[bytes, ...], bytes, bytes]]:
        """Kind, facts (mode, kind, hash, size), path and name."""
        if not folders:
            return []
        args = ["ls-tree", "-z", "-l", "--full-tree", tip, "--", *(f"{folder}/" for folder in folders)]
        found = []
        for line in _bounded(args, clone, _LISTING).split(b"\0"):
            facts, _, path = line.partition(b"\t")
            if path:
                mode, kind, *rest = facts.split()
                found.append((kind, (mode, kind, *rest), path, path.rpartition(b"/")[2]))
        return found

    def _fetch(self, names: Sequence[str]) -> Iterator[bytes | BadNight]:
        request = "".join(f"{self._listed[name]}\n" for name in names).encode()
        answer = _bounded(["cat-file", "--batch"], self._folder() / _CLONE, len(names) * (LARGEST + 200), request)
        at = 0
        for _ in names:
            end = answer.index(b"\n", at)
            facts = answer[at:end].split()
            at = end + 1
            if len(facts) != 3 or facts[1] != b"blob":
                yield BadNight("is not in the repository")
                continue
            size = int(facts[2])
            yield answer[at : at + size]
            at += size + 1

    def _content(self, name: str) -> bytes:
        if name not in self._listed:
            raise BadNight("is no ordinary file")
        (content,) = self._fetch([name])
        if isinstance(content, BadNight):
            raise content
        return content

    # ---------------------------------------------------------------- writing

    def _create(self, name: str, content: bytes) -> bool:
        stuck, refused = 0, ""
        for tried in range(TRIES):
            with self._clone() as clone:
                tip = self._update(clone)
                stuck = stuck + 1 if tried and tip == self._tip else 0
                self._tip, self._listed = tip, {}
                if tip is not None:
                    self._require_store(clone, tip)
                    if self._holds(clone, tip, name):
                        return bool(tried) and self._content(name) == content
                if stuck == _STUCK:
                    break
                refused = self._push(clone, tip, name, content)
                if not refused:
                    return True
            time.sleep(random.uniform(0, _BACKOFF * min(1.0, (tried + 1) / 4)))
        raise MachineError(f"{self.text}: cannot be pushed to: {refused}: see that the token may write this branch")

    def _holds(self, clone: Path, tip: str, name: str) -> bool:
        level = self._level(clone, tip, [name.rpartition("/")[0]])
        self._listed = {path.decode(): facts[2].decode() for _, facts, path, _ in level if os.fsdecode(path) == name}
        return bool(self._listed)

    def _require_store(self, clone: Path, tip: str) -> None:
        entries = [
            line for line in _bounded(["ls-tree", "-z", "--name-only", tip], clone, _LISTING).split(b"\0") if line
        ]
        others = [entry for entry in entries if entry != TOP.encode() and not _README.fullmatch(entry)]
        if others and TOP.encode() not in entries:
            raise UsageError(
                f"{self.text}: that branch holds other things ({escaped(os.fsdecode(others[0]), 60)}): "
                "name a branch for the history alone; one that is not there yet is begun"
            )

    def _push(self, clone: Path, tip: str | None, name: str, content: bytes) -> str:
        index = clone / "index"
        env = {"GIT_INDEX_FILE": str(index)}
        for who in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{who}_NAME": "perfci", f"GIT_{who}_EMAIL": "perfci@localhost"}

        def git(*args: str, stdin: bytes = b"") -> str:
            return run_git(args, cwd=clone, env=env, stdin=stdin).stdout.decode().strip()

        blob = git("hash-object", "-w", "--stdin", stdin=content)
        git("read-tree", *([tip] if tip else ["--empty"]))
        git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
        tree = git("write-tree")
        message = f"Record {name.rpartition('/')[2].removesuffix('.json')}"
        commit = git("commit-tree", "--no-gpg-sign", *(["-p", tip] if tip else []), tree, stdin=message.encode())
        args = ["push", "--no-verify", "--porcelain", "--", self.url, f"{commit}:refs/heads/{self.branch}"]
        try:
            done = self._remote(clone, args, allow=(0, 1, 128))
        except MachineError as error:  # whether it came through is seen at the next try
            return _SECRET.sub("", str(error))
        if done.returncode == 0:
            run_git(["update-ref", _TIP, commit], cwd=clone, allow=(0, 1, 128))  # else it is fetched the next time
            self._tip = commit
            return ""
        lines = (done.stdout + b"\n" + done.stderr).decode(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.startswith(("!", "fatal:", "error:", "remote: error"))]
        return _SECRET.sub("", escaped((told or ["git says nothing"])[0], 200))

    # ---------------------------------------------------------------- the clone

    def _folder(self) -> Path:
        address = f"git:{self.url}#{self.branch}"
        return made(cache_folder() / "git" / hashlib.sha256(address.encode()).hexdigest()[:24], private=True)

    @contextmanager
    def _clone(self) -> Iterator[Path]:
        """For this thread alone; reading objects needs no such turn."""
        folder = self._folder()
        with disk_errors("locked", folder), (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            clone = folder / _CLONE
            for path in (clone / "index", *clone.glob("*.lock"), *(clone / "refs").rglob("*.lock")):
                path.unlink(missing_ok=True)  # of a writer that was killed: none lives that holds this turn
            if not (clone / "HEAD").exists():
                _begin(clone)
            yield clone

    def _update(self, clone: Path) -> str | None:
        ref = f"refs/heads/{self.branch}"
        told = self._remote(clone, ["ls-remote", "--", self.url, ref]).stdout.decode(errors="replace").splitlines()
        # It lists what ends so, too, such as a branch `other/refs/heads/history`.
        tip = next((line.partition("\t")[0] for line in told if line.partition("\t")[2] == ref), None)
        if tip is None:
            return None
        try:
            whole = run_git(["rev-parse", "--verify", "--quiet", f"{_TIP}^{{tree}}"], cwd=clone, allow=(0, 1, 128))
            if whole.returncode == 0 and run_git(["rev-parse", _TIP], cwd=clone).stdout.decode().strip() == tip:
                return tip
            self._get(clone, ref)
        except MachineError:  # a clone that a kill or a full disk has damaged is made anew
            shutil.rmtree(clone, ignore_errors=True)
            _begin(clone)
            self._get(clone, ref)
        return run_git(["rev-parse", _TIP], cwd=clone).stdout.decode().strip()

    def _get(self, clone: Path, ref: str) -> None:
        self._remote(clone, ["fetch", "--quiet", "--no-tags", "--depth=1", "--", self.url, f"+{ref}:{_TIP}"])

    def _remote(
        self, clone: Path, args: Sequence[str], allow: Sequence[int] = (0,)
    ) -> "subprocess.CompletedProcess[bytes]":
        env = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS}
        try:
            return run_git(args, cwd=clone, env=env, allow=allow, timeout=_PATIENCE, hidden=self._settings)
        except MachineError as error:
            raise MachineError(_SECRET.sub("", str(error))) from None


def _begin(clone: Path) -> None:
    made(clone.parent)
    run_git(["init", "--quiet", "--bare", "--template=", str(clone)], cwd=clone.parent)
    run_git(["config", "gc.autoDetach", "false"], cwd=clone)


def _bounded(args: Sequence[str], cwd: Path, most: int, stdin: bytes = b"") -> bytes:
    """Of a git that only reads this clone. Raises MachineError for more than `most` bytes."""
    said = run(["git", *args], _PATIENCE, env=git_environment(os.environ), cwd=cwd, stdin=stdin, largest=most)
    if said.problem:
        raise MachineError(f"git {args[0]} of a history: {said.problem}: see who wrote it")
    if not said.fine:
        raise MachineError(f"git {args[0]}: fails in {escaped(cwd)}: delete that folder, which is fetched anew")
    return said.raw
