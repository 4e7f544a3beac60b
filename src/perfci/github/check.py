"""The check run on the head: what a branch rule can require."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from github.CheckRun import CheckRun

from perfci.github.api import Api
from perfci.github.event import QUEUE_BRANCH
from perfci.github.result import FAILED, QUEUE, Conclusion, Decided, Open, Question, Result, decide, newest
from perfci.model.publication import Attempt, Origin, Publication
from perfci.model.report import Report, Row
from perfci.render.comment import TITLE_LIMIT, CheckText
from perfci.render.escape import prose, shorten, visible

MOST_ANNOTATIONS = 50
"""In one request (GitHub's documentation, "Create a check run")."""
ALL_ANNOTATIONS = 200
MOST_LINES = 1_000_000
"""Of a file that an annotation may stand in."""
_LED = re.compile(r"(?:Held by|Waits for|Superseded by) [^:]{1,400}: ")
_OTHERS = re.compile(r"\A<!-- perfci: of others -->.*?<!-- perfci: its own -->\n", re.DOTALL)


@dataclass
class Concluded:
    """What the checks of a commit say now."""

    conclusion: Conclusion | None
    """None where there is no check of ours."""
    url: str = ""
    """Address of the check that was written; empty where none was."""
    notes: list[str] = field(default_factory=list)
    """What people have to know of it, one line each."""


def name_of(suite: str) -> str:
    """What a branch rule names."""
    return "perfci" if suite == "perfci" else f"perfci ({suite})"


def earlier(suite: str, origin: Origin, api: Api) -> list[Attempt]:
    """Earlier answers to the question of a run, at the same head, as their checks tell of them. Raises ApiError."""
    found = api.call("check runs", lambda: _ours(_listed(suite, origin.head_sha, api), suite, api))
    asked, mine = Question.of_run(origin), (origin.run_id, origin.attempt)
    return [
        Attempt(
            run_id=one.run,
            attempt=one.attempt,
            sentence=_LED.sub("", check.output.title or "", count=1),
            url=check.details_url or "",
        )
        for one, check in sorted(found, key=lambda item: item[0].age)
        if one.question == asked and one.age < mine
    ]


def failed_since(suite: str, head: str, question: Question, api: Api) -> datetime | None:
    """When a check first said at this head that it does not pass; None where none did. Raises ApiError."""
    found = api.call("check runs", lambda: _ours(_listed(suite, head, api), suite, api))
    times = [
        check.started_at
        for one, check in found
        if one.question == question and one.own in FAILED and check.started_at is not None
    ]
    return min(times, default=None)


def write(publication: Publication, text: CheckText, api: Api) -> Concluded:
    """Write the check of this run and attempt, then conclude all of the commit. Raises Forbidden, ApiError.

    Its own result comes first, and is complete only after all have been read: of two publishers at least one sees both
    results, and a check that is not complete lets nothing pass.
    """
    check = api.call("the check run", lambda: _write(publication, text, api))
    done = conclude(publication.suite, publication.origin.head_sha, api)
    done.url = str(check.html_url)
    return done


def conclude(suite: str, head: str, api: Api) -> Concluded:
    """Give every check of ours on a commit the conclusion that they come to. Raises Forbidden, ApiError."""
    pulls = api.call("open pull requests", lambda: _open(head, api))
    queued = api.call("branches that end there", lambda: _queued(head, api))
    return api.call("the check runs", lambda: _conclude(suite, head, pulls, queued, api))


def _write(publication: Publication, text: CheckText, api: Api) -> CheckRun:
    origin, mine = publication.origin, Result.made(publication)
    there = _ours(_listed(mine.suite, origin.head_sha, api), mine.suite, api)
    check = next((c for one, c in there if (one.question, one.age) == (mine.question, mine.age)), None)
    notes = annotations(publication)
    sent = check.output.annotations_count if check is not None else 0
    output: dict[str, Any] = {"title": text.title, "summary": text.summary}
    first = {**output, "annotations": notes[sent : sent + MOST_ANNOTATIONS]}
    if check is None:
        check = api.repository.create_check_run(
            name=name_of(mine.suite),
            head_sha=origin.head_sha,
            details_url=origin.run_url,
            external_id=str(mine),
            status="in_progress",
            output=first,
        )
    else:
        check.edit(external_id=str(mine), output=first)
    for begin in range(sent + MOST_ANNOTATIONS, len(notes), MOST_ANNOTATIONS):
        check.edit(output={**output, "annotations": notes[begin : begin + MOST_ANNOTATIONS]})
    return check


def _conclude(suite: str, head: str, pulls: Sequence[Open], queued: bool, api: Api) -> Concluded:
    listed = _listed(suite, head, api)
    ours = _ours(listed, suite, api)
    decided = decide([one for one, _ in ours], pulls, queued)
    if decided is None:
        return Concluded(None)
    bases = {one.question: one.base for one in pulls}
    title = next((_LED.sub("", check.output.title or "", count=1) for one, check in ours if one == decided.by), "")
    speaking = newest(one for one, _ in ours)
    done = Concluded(decided.conclusion)
    for result, check in ours:
        lead, why = _led(result, speaking[result.question], decided, bases, title)
        _edit(check, lead, why, decided.conclusion)
        done.notes += [why] if why and why not in done.notes else []
    foreign = [
        check for check in listed if not _is_ours(check, api) or not (check.external_id or "").startswith("perfci/")
    ]
    for name in sorted({str(check.app.slug or check.app.name) for check in foreign if check.app is not None}):
        done.notes.append(
            f"{name} wrote a check named {name_of(suite)} on this commit, too, which is not perfci's: let the branch's "
            "rule take the check from the app that publishes alone (docs/security.md)"
        )
    return done


def _is_ours(check: CheckRun, api: Api) -> bool:
    """Whether the app that this publisher speaks for wrote it: what stands in another's is another's word."""
    return check.app is not None and check.app.slug == api.app


def _led(result: Result, speaks: Result, decided: Decided, bases: dict[Question, str], title: str) -> tuple[str, str]:
    """What the title of a check begins with, and why, where it does not say what its own run came to."""
    if result.age < speaks.age:
        return f"Superseded by run {speaks.run}, attempt {speaks.attempt}", ""
    if decided.by is None:
        return f"Waits for {decided.waits}", (
            f"the check waits for {decided.waits}: this commit is its head, too, and a branch rule cannot tell the two "
            "apart: close it, or have it measured"
        )
    if decided.by.question == result.question or decided.conclusion == result.concluded:
        return "", ""
    other = decided.by.question
    if other.of == QUEUE:
        return "Held by the merge queue", "the check says what the merge queue's own run came to"
    who = f"#{other.of} (into {bases[other]})" if other in bases else f"run {decided.by.run}"
    return f"Held by {who}", (
        f"the check says what {who} came to: {title}. This commit is its head, too, and a branch rule cannot tell the "
        "two apart"
    )


def _edit(check: CheckRun, lead: str, why: str, concluded: Conclusion) -> None:
    """Complete a check, unless it says just that already."""
    own = _LED.sub("", check.output.title or "", count=1)
    title = shorten(f"{lead}: {own}" if lead else own, TITLE_LIMIT)
    summary = _OTHERS.sub("", check.output.summary or "")
    if why:
        told = prose(f"{why[0].upper()}{why[1:]}.", 1000)
        summary = f"<!-- perfci: of others -->\n> ⚠️ {told}\n\n<!-- perfci: its own -->\n{summary}"
    said = (check.status, check.conclusion, check.output.title, check.output.summary)
    if said != ("completed", concluded, title, summary):
        check.edit(status="completed", conclusion=concluded, output={"title": title, "summary": summary})


def _listed(suite: str, head: str, api: Api) -> list[CheckRun]:
    return list(api.repository.get_commit(head).get_check_runs(check_name=name_of(suite), filter="all"))


def _ours(listed: Sequence[CheckRun], suite: str, api: Api) -> list[tuple[Result, CheckRun]]:
    """Those of the suite that we wrote, with what each run came to: of one run two publishers may have written two."""
    found = [(Result.read(check.external_id or ""), check) for check in listed if _is_ours(check, api)]
    return [(one, check) for one, check in found if one is not None and one.suite == suite]


def _open(head: str, api: Api) -> list[Open]:
    """The open pull requests with this head. GitHub's list of a commit's own misses those from forks."""
    return [Open(one.number, one.base.ref) for one in api.repository.get_pulls(state="open") if one.head.sha == head]


def _queued(head: str, api: Api) -> bool:
    """Whether a branch that a merge queue made ends with this commit."""
    found = api.get(f"/repos/{api.name}/commits/{head}/branches-where-head")
    return any(QUEUE_BRANCH.fullmatch(str(one["name"])) for one in found)


def annotations(publication: Publication) -> list[dict[str, str | int]]:
    """Rows that fail or warn, where their kernels are declared: worst first."""
    found = []
    for shard in publication.shards:
        of = f"{shard.name}: " if shard.name else ""
        found += [
            (row.effect != "fail", _annotation(shard.report, row, of))
            for row in shard.report.rows
            if row.effect != "pass" and _declared(row)
        ]
    return [note for _, note in sorted(found, key=lambda one: one[0])][:ALL_ANNOTATIONS]


def _declared(row: Row) -> bool:
    """Whether a row names a place in the repository; what it names is the code's own word."""
    file = row.file
    return (
        0 < row.line < MOST_LINES
        and 0 < len(file) <= 1000
        and file.isprintable()
        and not file.startswith(("/", "~"))
        and ".." not in file.split("/")
    )


def _annotation(report: Report, row: Row, of: str) -> dict[str, str | int]:
    failing = row.effect == "fail" and report.exit_code == 1
    parts = [row.reason or row.class_, row.cause]
    return {
        "path": row.file,
        "start_line": row.line,
        "end_line": row.line,
        "annotation_level": "failure" if failing else "warning",
        "title": shorten(visible(f"{of}{row.case} · {row.metric}".removesuffix(" · ")), 255, middle=True),
        "message": shorten(visible(". ".join(part for part in parts if part)), 2000),
    }
