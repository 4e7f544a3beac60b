"""git's bisect, in a repository of its own, which leaves the checkout alone."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfci.bisect.document import Answer, CommitFacts
from perfci.model.base import UsageError
from perfci.model.text import escaped, short
from perfci.sources.git import Repository, run_git

_MARKS: Mapping[Answer, str] = {"yes": "bad", "no": "good", "unknown": "skip"}
"""Bad is that the change is there, which may be for the better."""
_NAMED = re.compile(r"^# (possible )?first bad commit: \[([0-9a-f]{40,64})\]", re.MULTILINE)


class Walk:
    """A bisect between two commits of a repository."""

    def __init__(self, repo: Repository, folder: Path, good: str, bad: str, *, first_parent: bool = False) -> None:
        """`folder`: does not exist yet. `good`: full hash of an ancestor of `bad`. Raises MachineError."""
        self.folder = folder
        kind = repo.git("rev-parse", "--show-object-format").stdout.decode().strip()
        run_git(["init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(folder)], cwd=repo.root)
        (folder / "objects" / "info").mkdir(exist_ok=True)
        (folder / "objects" / "info" / "alternates").write_text(f"{repo.common_dir / 'objects'}\n")
        if (shallow := repo.common_dir / "shallow").exists():
            (folder / "shallow").write_bytes(shallow.read_bytes())
        self._git("update-ref", "--no-deref", "HEAD", bad)
        self._git("bisect", "start", *(["--first-parent"] if first_parent else []), bad, good)

    def candidate(self) -> str | None:
        """Return the commit to compare next; None at the end."""
        if _NAMED.search(self.log()):
            return None
        return self._git("rev-parse", "BISECT_HEAD").strip()

    def mark(self, commit: str, answer: Answer) -> None:
        """Say whether the change is there."""
        self._git("bisect", _MARKS[answer], commit, allow=(0, 2))  # 2: only what was skipped is left

    def named(self) -> list[str]:
        """Return the first commit with the change; several where skipped ones hide it."""
        return [commit for _, commit in _NAMED.findall(self.log())]

    def log(self) -> str:
        """Return what `git bisect replay` understands."""
        return self._git("bisect", "log")

    def _git(self, *args: str, allow: tuple[int, ...] = (0,)) -> str:
        done = run_git(args, cwd=self.folder, env={"LC_ALL": "C", "GIT_DIR": str(self.folder)}, allow=allow)
        return done.stdout.decode(errors="replace")


def ends(repo: Repository, good: str, bad: str) -> tuple[str, str, list[str]]:
    """Return full hashes of the ends, the good one an ancestor of the bad, and notes.

    Where `good` is on another line, the commit where they part takes its place. Raises UsageError where there is none,
    or nothing between.
    """
    old, new = repo.commit(good), repo.commit(bad)
    done = repo.git("merge-base", old.sha, new.sha, allow=(0, 1))
    if done.returncode:
        deeper = f"this clone is shallow: {repo.whole()}" if repo.is_shallow() else "name two that have one"
        raise UsageError(f"{escaped(good, 100)} and {escaped(bad, 100)} have no common commit here: {deeper}")
    base = done.stdout.decode().split()[0]
    if old.sha == new.sha:
        raise UsageError(f"{escaped(good, 100)} and {escaped(bad, 100)} are the same commit: name two")
    if base == new.sha:
        raise UsageError(
            f"{escaped(bad, 100)} is an ancestor of {escaped(good, 100)}: name the older one first, whichever is faster"
        )
    if base == old.sha:
        return base, new.sha, []
    return base, new.sha, [f"{escaped(good, 100)} is on another line: {short(base)}, where it parted, is taken for it"]


def tree(repo: Repository, commit: str) -> str:
    """Return the hash of a commit's files."""
    return os.fsdecode(repo.git("rev-parse", f"{commit}^{{tree}}").stdout).strip()


@dataclass
class GitHistory:
    """The commits of a repository, each described once."""

    repo: Repository
    scratch: Path
    """Walks lie here."""
    first_parent: bool = False
    known: dict[str, CommitFacts] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)

    def count(self, good: str, bad: str) -> int:
        """Return the number of candidates in a range."""
        line = ["--first-parent"] if self.first_parent else []
        return int(self.repo.git("rev-list", "--count", *line, f"{good}..{bad}").stdout)

    def parents(self, commit: str) -> list[str]:
        """Return the full hashes of a commit's parents, of which `first_parent` leaves one."""
        return self.repo.parents(commit)[: 1 if self.first_parent else None]

    def facts(self, commit: str) -> CommitFacts:
        """Return what people are told of a commit."""
        if commit not in self.known:
            args = ("log", "-1", "--no-show-signature", "--no-notes", "--encoding=UTF-8", "--date=short")
            told = self.repo.git(*args, "--format=%an%n%ad%n%s", commit).stdout.decode(errors="replace")
            author, date, subject = [*told.rstrip("\n").split("\n", 2), "", ""][:3]
            told_of = {"subject": escaped(subject, 200), "author": escaped(author, 100), "date": escaped(date, 20)}
            self.known[commit] = CommitFacts(commit=commit, **told_of)
        return self.known[commit]

    @contextmanager
    def walk(self, good: str, bad: str) -> Iterator[Walk]:
        """Begin a walk; its log is kept."""
        steps = Walk(self.repo, self.scratch / f"{len(self.logs)}.git", good, bad, first_parent=self.first_parent)
        self.logs.append("")
        try:
            yield steps
        finally:
            self.logs[-1] = steps.log()
