"""Pages of bounded length: what gives way, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from perfci.render.escape import Safe

LIMIT = 60_000
"""GitHub refuses more than 65 536."""
LEAST = 10_000
SHARED = -1


@dataclass(frozen=True)
class Most:
    """Items that a page names, in the order in which they give way."""

    remarks: int = 12
    """Of each job."""
    attempts: int = 5
    rows: int = 20
    """Over all jobs."""
    files: int = 20
    missing: int = 10
    jobs: int = 32

    def less(self) -> "Most | None":
        """Return this with half of what gives way next, if anything."""
        for field in fields(self):
            number: int = getattr(self, field.name)
            if number:
                return replace(self, **{field.name: number // 2})
        return None


@dataclass(frozen=True)
class Fold:
    """A folded section: its name, its job, its Markdown."""

    name: str
    text: Safe
    """With the blank line that follows."""
    job: int = 0
    """`SHARED` for one that all jobs have in common."""


class Page(Protocol):
    """A text whose parts can be left out."""

    def folds(self, most: Most) -> list[Fold]:
        """Return the folded sections, those to keep first in front."""

    def text(self, most: Most, kept: Sequence[Fold], dropped: Sequence[Fold]) -> str:
        """Return the page with `kept`, naming the `dropped`.

        A kept fold adds its text as it stands; to name fewer as dropped never adds.
        """


def fit(page: Page, limit: int) -> str:
    """Return the page in at most `limit` characters; what was left out is named.

    Folds go first, from the last on (those that fit after all stay), then what `Most` counts. Raises ValueError for a
    limit under 10 000, and where verdict, counts and commands are longer still: a report's never are, a comment's not
    at 20 000.
    """
    if limit < LEAST:
        raise ValueError(f"limit={limit}: a page needs at least {LEAST} characters")
    most = Most()
    folds = page.folds(most)
    bare = page.text(most, [], folds)
    while len(bare) > limit:
        less = most.less()
        if less is None:
            raise ValueError(f"limit={limit}: the shortest page has {len(bare)} characters")
        most, folds = less, page.folds(less)
        bare = page.text(most, [], folds)
    kept = _fitting(folds, limit - len(bare))
    return page.text(most, kept, [fold for fold in folds if fold not in kept])


def _fitting(folds: Sequence[Fold], room: int) -> list[Fold]:
    kept = list(folds)
    while sum(len(fold.text) for fold in kept) > room:
        kept.pop()
    for fold in folds[len(kept) :]:
        if sum(len(one.text) for one in (*kept, fold)) <= room:
            kept.append(fold)
    return kept
