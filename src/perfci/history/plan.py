"""The plan of a night: which commits main is compared with."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from perfci.history.document import Commit, Night, Reference, Text
from perfci.model.base import Document, Items, UsageError
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE
from perfci.model.text import escaped, short
from perfci.sources.git import Repository

_RELEASE = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){1,4})")
"""A release: `v1` moves, `v1.2-rc1` is none yet."""


class NightPlan(Document):
    """Comparisons of `head` in one night."""

    kind: Literal["perfci-night-plan"] = "perfci-night-plan"
    version: Literal[1] = 1
    head: Commit
    last: Commit | None = None
    """The commit that was recorded last."""
    reference: Reference | None = None
    seam: Reference | None = None
    """The reference before a new one: the two are compared as well."""
    notes: Items[Text] = Field(default_factory=list)
    """Why a comparison is not made."""


def plan_night(repo: Repository, policy: Policy, nights: Iterable[Night]) -> NightPlan:
    """Return the plan for the commit that is checked out.

    `nights`: the last one first. Raises UsageError where a commit is not here.
    """
    made = NightPlan(head=described(repo, "HEAD"), reference=_reference(repo, policy))
    if made.reference is None:
        made.notes.append(
            f"no reference: no tag of a version is on main, such as v1.2, and {FILE} names none under history: "
            "creep is not judged"
        )
    last, old = _recorded(nights)
    if last is None:
        made.notes.append("nothing is recorded yet: main is compared with the reference alone")
    elif (text := _lost(repo, last)) is None:
        made.last = last
    else:
        made.notes.append(f"the commit that was recorded last, {text}: main is compared with the reference alone")
    if old is not None and made.reference is not None and old.commit.sha != made.reference.commit.sha:
        if (text := _lost(repo, old.commit)) is None:
            made.seam = old
        else:
            made.notes.append(f"the reference before, {escaped(old.name, 200)}, {text}: how the two stand is not known")
    return made


def _recorded(nights: Iterable[Night]) -> tuple[Commit | None, Reference | None]:
    last: Commit | None = None
    for night in nights:
        if night.error and not any(point.last is not None and point.last.ratio is not None for point in night.points):
            continue
        last = last or night.commit
        if night.reference is not None:
            return last, night.reference
    return last, None


def described(repo: Repository, rev: str) -> Commit:
    """Return a commit with date, title and author. Raises UsageError where it is not here."""
    found = repo.commit(rev)
    told = repo.git("log", "-1", "--no-show-signature", "--encoding=UTF-8", "--format=%ct%n%aN", found.sha).stdout
    seconds, _, author = told.decode(errors="replace").partition("\n")
    try:
        date = datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{short(found.sha)}: has no date that a calendar knows: name another commit") from None
    return Commit(
        sha=found.sha, date=f"{date:%Y-%m-%dT%H:%M:%SZ}", title=found.subject, author=escaped(author.strip(), 100)
    )


def _reference(repo: Repository, policy: Policy) -> Reference | None:
    named = policy.history.reference
    if named is not None:
        try:
            return Reference(name=named, commit=described(repo, named))
        except UsageError as error:
            raise UsageError(f"{FILE}: history.reference: {error}") from None
    if repo.is_shallow():
        raise UsageError(
            f"the last release cannot be known in a shallow clone: {repo.whole()}, or name one under history"
        )
    tags = repo.git("for-each-ref", "--merged=HEAD", "--format=%(refname:lstrip=2)", "refs/tags").stdout
    names = [name for name in tags.decode(errors="replace").splitlines() if _RELEASE.fullmatch(name)]
    if not names:
        return None
    name = max(names, key=lambda one: (_numbers(one), one))
    return Reference(name=name, commit=described(repo, f"refs/tags/{name}"))


def _numbers(tag: str) -> tuple[int, ...]:
    found = _RELEASE.fullmatch(tag)
    return tuple(map(int, found[1].split("."))) if found else ()


def _lost(repo: Repository, commit: Commit) -> str | None:
    if repo.git("cat-file", "-e", f"{commit.sha}^{{commit}}", allow=(0, 1, 128)).returncode == 0:
        return None
    if repo.is_shallow():
        raise UsageError(f"{short(commit.sha)}: was recorded, and is not in this shallow clone: {repo.whole()}")
    return f"{short(commit.sha)} of {commit.date[:10]}, is no longer in the repository"
