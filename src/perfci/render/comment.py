"""A pull request's texts: comment, summary of the job, check run."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from perfci.judge.status import order
from perfci.model.publication import ACCEPT_LABEL, ACCEPT_LINE, Artifact, Attempt, MainStanding, Publication
from perfci.model.report import Row
from perfci.model.text import chosen, shell, shorten
from perfci.render import parts
from perfci.render.escape import Safe, code, fence, link, markdown, prose, visible
from perfci.render.fit import LIMIT, SHARED, Fold, Most, fit
from perfci.render.verdict import PublicationVerdict, named
from perfci.render.view import View
from perfci.render.words import bare_advice

SUMMARY_LIMIT = 250_000
"""GitHub takes 1 MiB, and a character has four bytes at most."""
TITLE_LIMIT = 255
"""Characters of a check run's title."""
_FOLDED = (
    "undecided",
    "warnings",
    "improvements",
    "profile",
    "without a baseline",
    "environment",
    "method",
)
"""The first to be kept; a summary has all of `report.md`."""
_MOST_CASES = 5
_MOST_COLUMNS = 8
_LONGEST_CASE = 160
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class CheckText:
    """The texts of a check run."""

    title: str
    """At most 255 characters."""
    summary: str
    """Markdown."""


def render(publication: Publication, limit: int = LIMIT) -> str:
    """Return the comment without its marker; `limit` as of `fit`."""
    return fit(_Page(PublicationVerdict(publication), _FOLDED), limit)


def render_summary(publication: Publication) -> str:
    """Return the same for the job's summary, with every measured value."""
    return fit(_Page(PublicationVerdict(publication)), SUMMARY_LIMIT)


def render_check(publication: Publication) -> CheckText:
    """Return the same for a check run."""
    verdict = PublicationVerdict(publication)
    title = shorten(visible(verdict.sentence.replace("`", "")), TITLE_LIMIT)
    return CheckText(title, fit(_Page(verdict, _FOLDED, titled=False), LIMIT))


@dataclass(frozen=True)
class _Page:
    verdict: PublicationVerdict
    only: Sequence[str] | None = None
    titled: bool = True

    def folds(self, most: Most) -> list[Fold]:
        return [fold for fold in self._folds if fold.job < most.jobs]

    @cached_property
    def _folds(self) -> list[Fold]:
        found: dict[object, Fold] = {}
        views = self.verdict.views[: Most.jobs]
        several = len(views) > 1
        for job, view in enumerate(views):
            for fold in parts.folds(view):
                if (self.only is not None and fold.name not in self.only) or (several and fold.name == "environment"):
                    continue
                # How it was measured is mostly the same in all jobs: once, then.
                key = fold.text if fold.name == "method" else (job, fold.name)
                found.setdefault(key, replace(fold, job=job))
        if several:
            methods = [key for key, fold in found.items() if fold.name == "method"]
            found |= {key: replace(found[key], job=SHARED) for key in methods if len(methods) == 1}
            names = [shard.name for shard, _ in self.verdict.shards[: Most.jobs]]
            found["environment"] = parts.environments(views, names)
        ranks = {name: rank for rank, name in enumerate(self.only or dict.fromkeys(f.name for f in found.values()))}
        return sorted(found.values(), key=lambda fold: (ranks[fold.name], fold.job))

    def text(self, most: Most, kept: Sequence[Fold], dropped: Sequence[Fold]) -> str:
        verdict, publication = self.verdict, self.verdict.publication
        rows = _shares(verdict.views, most.rows)
        jobs = [
            {
                "heading": _heading(shard.name, view) if verdict.jobs > 1 else "",
                "advice": bare_advice(view.report) if verdict.jobs > 1 and view.report.verdict == "error" else "",
                "body": parts.body(view, view.leading[: rows[job]], view.remarks[: most.remarks]),
                "folds": [fold.text for fold in kept if fold.job == job],
            }
            for job, (shard, view) in enumerate(verdict.shards[: most.jobs])
        ]
        artifacts = [artifact for shard, _ in verdict.shards for artifact in shard.artifacts]
        near = publication.origin.run_url
        return parts.page(
            "comment.md.j2",
            verdict=verdict,
            origin=publication.origin,
            titled=self.titled,
            accepted=_accepted(publication) if verdict.accepted else "",
            missing=verdict.missing[: most.missing] if verdict.jobs > 1 else [],
            attempts=[_attempt(one, near) for one in publication.attempts[::-1][: most.attempts]],
            jobs=jobs,
            matrix=_matrix(self.verdict, most.rows) if len(verdict.views) > 1 else "",
            standings=Safe("; ".join(map(_standing, publication.standings))),
            shared=[fold.text for fold in kept if fold.job == SHARED],
            dropped=parts.dropped(dropped),
            files=Safe(", ".join(_file(artifact, near) for artifact in artifacts[: most.files])),
            run=_run(publication),
            commands=fence(*commands(verdict)) if verdict.views else "",
            label=ACCEPT_LABEL,
            line=ACCEPT_LINE,
            more={
                "missing": len(publication.missing) - most.missing,
                "attempts": len(publication.attempts) - most.attempts,
                "jobs": len(verdict.shards) - most.jobs,
                "files": len(artifacts) - most.files,
            },
        )


def commands(verdict: PublicationVerdict) -> list[str]:
    """Return shell lines that compare the failing cases again in a clone.

    Commits are fetched by hash: that works for forks, merges and moved branches.
    """
    view = (verdict.failing or verdict.shards)[0][1]
    base, head = (_commit(view, side) for side in ("base", "head"))
    names = dict.fromkeys(
        glob.escape(row.case) for row in view.leading if row.case != row.file and row.case.isprintable()
    )
    cases = [name for name in names if len(name) <= _LONGEST_CASE][:_MOST_CASES]
    what = ["perfci", "compare", base] if view.comparing and base else ["perfci", "run"]
    return [
        f"git fetch origin {head or verdict.publication.origin.head_sha} && git switch --detach FETCH_HEAD",
        shell([*what, *chosen(cases)]),
    ]


def _commit(view: View, side: str) -> str:
    found = next((one.commit for name, one in view.report.sides.items() if name == side), None) or ""
    return found if _COMMIT.fullmatch(found) else ""


def _shares(views: Sequence[View], most: int) -> list[int]:
    rows = sorted((order(row), job) for job, view in enumerate(views) for row in view.leading)
    shown = [job for _, job in rows[:most]]
    return [shown.count(job) for job in range(len(views))]


def _matrix(verdict: PublicationVerdict, most: int) -> Safe:
    jobs = verdict.shards[:_MOST_COLUMNS]
    found: dict[tuple[str, str, str], dict[int, Row]] = {}
    for job, (_, view) in enumerate(jobs):
        for row in view.report.rows:
            found.setdefault((row.case, row.device, row.metric), {}).setdefault(job, row)
    moved = [one for one in found.values() if any(_moved(row) for row in one.values())]
    if not moved or not most:
        return Safe("")
    moved.sort(key=lambda one: min(map(order, one.values())))
    return parts.matrix(
        [shard.name for shard, _ in jobs],
        [[(view, one.get(job)) for job, (_, view) in enumerate(jobs)] for one in moved[:most]],
        {"rows": len(moved) - most, "jobs": len(verdict.shards) - _MOST_COLUMNS},
    )


def _moved(row: Row) -> bool:
    return row.effect != "pass" or row.class_ == "improvement"


def _heading(name: str, view: View) -> Safe:
    told = named(name, view.sentence) if view.report.verdict == "error" or not name else name
    return Safe(f"#### {view.icon} {prose(told)}")


def _accepted(publication: Publication) -> Safe:
    accepted = publication.acceptance
    assert accepted is not None
    whose = f"{code(accepted.author, 40)}'s description" if accepted.author else "the description"
    reason = f". The reason, in {whose}: {markdown(accepted.reason)}" if accepted.reason else ", without a reason"
    return Safe(f"Accepted by {code(accepted.by, 40)} on {markdown(_minute(accepted.at), 30)}{reason}")


def _standing(one: MainStanding) -> Safe:
    points, width = (one.ratio - 1) * 100, (one.high - one.low) / 2 * 100
    digits = 1 if width >= 0.1 or width == 0 else 2
    size = f"{abs(points):.{digits}f}"
    how = f"{size} % (±{width:.{digits}f}) {'over' if points > 0 else 'under'}"
    if not float(size):
        how = f"level (±{width:.{digits}f} %) with"
    what = code(one.case) if one.metric == "time" else f"{code(one.metric, 80)} of {code(one.case)}"
    day = f"{one.day.day} {one.day:%B %Y}"
    return Safe(f"{what}: main was {how} {code(one.reference, 80)} on {day} ({code(one.commit[:7])})")


def _attempt(one: Attempt, near: str) -> Safe:
    return Safe(f"{link(f'run {one.run_id}, attempt {one.attempt}', one.url, near)}: {prose(one.sentence)}")


def _run(publication: Publication) -> Safe:
    origin = publication.origin
    return link(f"run {origin.run_id}, attempt {origin.attempt}", origin.run_url, origin.run_url)


def _file(artifact: Artifact, near: str) -> Safe:
    expires = _moment(artifact.expires)
    until = f" until {expires:%Y-%m-%d}" if expires else ""
    return Safe(link(artifact.name, artifact.url, near) + until)


def _minute(text: str) -> str:
    moment = _moment(text)
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment else text


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
