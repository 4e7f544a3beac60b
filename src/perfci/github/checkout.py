"""Is the checkout fit to be measured, with its base? All this runs before code under test does."""

import os
from dataclasses import dataclass
from pathlib import Path

from perfci.doctor.machine import Machine
from perfci.doctor.repository import check_token
from perfci.github.event import Context
from perfci.model.base import MachineError, UsageError
from perfci.model.text import escaped, short
from perfci.sources.git import NamedCommit, Repository, means_itself, run_git

FETCH_TIMEOUT = 600.0
"""Seconds for a fetch."""
DEEPEN = (50, 500, 5000)
"""Commits by which a shallow clone is deepened; then all."""
# No hook (sources/git.py), no command as a remote, no clean-up in the background that would outlive the fetch.
_CONFIG = ("protocol.ext.allow=never", "gc.auto=0", "maintenance.auto=false")


@dataclass(frozen=True)
class BaseOfHead:
    """The base of HEAD, in words of sources/git.py."""

    ref: str | None
    merge: bool
    """HEAD is the pull request's merge commit: base is its first parent."""
    base: NamedCommit

    @property
    def name(self) -> str:
        """A branch, a tag, the beginning of a hash."""
        name = self.ref or self.base.sha
        return short(name) if _is_hash(name) else name


def require_no_secret(where: Path) -> None:
    """Raise UsageError where the repository's configuration has a secret, or cannot be read."""
    for finding in check_token(Machine(where=where)):
        if finding.status != "ok":
            raise UsageError(f"checkout: {finding.found}: {finding.remedy}")


def require_head(repo: Repository, context: Context) -> bool:
    """Tell whether HEAD is the pull request's merge commit. Raises UsageError where it is not the event's, unless by
    hand or on a schedule."""
    head = repo.head_commit()
    if head is None:
        raise UsageError(f"checkout: {escaped(repo.root)} has no commit: run actions/checkout first")
    wanted = context.origin.head_sha
    if head.sha == wanted or context.origin.event in ("workflow_dispatch", "schedule"):
        return False
    merges = context.merge_sha is not None and head.sha == context.merge_sha
    if merges and repo.parents(head.sha)[1:] == [wanted]:
        return True
    raise UsageError(
        f"checkout: HEAD is {short(head.sha)}, neither the commit {short(wanted)} of this {context.origin.event} nor "
        "its merge with the base: let actions/checkout take its default `ref`, or run the workflow anew"
    )


def find_base(repo: Repository, context: Context, asked: str = "") -> BaseOfHead | None:
    """Return the base of HEAD, fetched where missing; None: nothing.

    `asked`: a branch, tag or commit in place of the event's, `none` for nothing. Raises UsageError where there is none
    such, MachineError where it cannot be fetched.
    """
    merge = require_head(repo, context)
    if asked == "none" or not (asked or context.base):
        return None
    if merge and not asked:
        [base, _] = repo.parents(_commit(repo, "HEAD"))
        if not _has(repo, base):
            _fetch(repo, base, base)
        return BaseOfHead(None, True, repo.resolve_base(None, pull_request=True))
    ref = _obtain(repo, asked or context.base)
    for depth in DEEPEN:
        if _merge_base(repo, ref) or not repo.is_shallow():
            break
        _fetch(repo, ref, f"--deepen={depth}")
    if not _merge_base(repo, ref) and repo.is_shallow():
        _fetch(repo, ref, "--unshallow")
    return BaseOfHead(ref, False, repo.resolve_base(ref, pull_request=False))


def bringing_nothing(repo: Repository, context: Context, compared: BaseOfHead, asked: str = "") -> str | None:
    """Return the commit that would be compared with itself, as base holds all of its commits; else None.

    Of a merge it is the pull request's head. The workflow's author may ask for HEAD itself, by its hash.
    """
    head = _commit(repo, "HEAD")
    if compared.merge:
        own = context.origin.head_sha
        done = repo.git("merge-base", "--is-ancestor", own, compared.base.sha, allow=(0, 1, 128))
        return own if done.returncode == 0 else None
    intended = bool(asked) and means_itself(compared.ref or "", head)
    return head if compared.base.sha == head and not intended else None


def changed_files(repo: Repository, base: str) -> list[str]:
    """Return the paths that differ between `base` and HEAD; of a renamed file both."""
    args = ("diff", "--name-only", "--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none", "-z")
    done = repo.git(*args, base, "HEAD", "--")
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]


def _obtain(repo: Repository, name: str) -> str:
    """As git here knows it, fetched: a runner's branch may be old."""
    if _is_hash(name):
        if not _has(repo, name):
            _fetch(repo, name, name)
        return name
    short = name.removeprefix("refs/heads/")
    known = f"refs/remotes/origin/{short}"
    try:
        _fetch(repo, short, f"+refs/heads/{short}:{known}")
    except MachineError:
        # No such branch; or no right to fetch, where actions/checkout has fetched everything and kept no token.
        for here in (known, f"refs/tags/{short}", short):
            if _has(repo, here):
                return here.removeprefix("refs/remotes/").removeprefix("refs/tags/")
        raise
    return f"origin/{short}"


def _is_hash(name: str) -> bool:
    return len(name) in (40, 64) and set(name) <= set("0123456789abcdef")


def _has(repo: Repository, name: str) -> bool:
    done = repo.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", allow=(0, 1, 128))
    return done.returncode == 0


def _commit(repo: Repository, name: str) -> str:
    return repo.git("rev-parse", "--verify", f"{name}^{{commit}}").stdout.decode().strip()


def _merge_base(repo: Repository, ref: str) -> bool:
    return repo.git("merge-base", "HEAD", ref, allow=(0, 1)).returncode == 0


def _fetch(repo: Repository, name: str, what: str) -> None:
    """`what`: commit, refspec, or an option that deepens HEAD and `name`."""
    depth = ["--depth=1"] if repo.is_shallow() else []  # in a whole clone it would cut the history off
    both = [_commit(repo, "HEAD"), _commit(repo, name)] if what.startswith("--") else []
    wanted = [what, "origin", *both] if both else [*depth, "origin", what]
    args = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", *wanted]
    try:
        run_git(args, cwd=repo.root, config=_CONFIG, timeout=FETCH_TIMEOUT)
    except MachineError as error:
        raise MachineError(
            f"base {escaped(name, 300)}: is not in this checkout and cannot be fetched ({error}): check out with "
            "`fetch-depth: 2` for pull requests, `fetch-depth: 0` for other events"
        ) from None
