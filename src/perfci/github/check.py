"""The check run on the head: what a branch rule can require."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from github.CheckRun import CheckRun

from perfci.github.api import Api, ApiError, NotFound
from perfci.github.event import QUEUE_BRANCH
from perfci.github.result import FAILED, FAULTY, QUEUE, Conclusion, Decided, Open, Question, Result, decide, newest
from perfci.model.publication import Attempt, Origin, Publication
from perfci.model.report import Report, Row
from perfci.model.text import shorten
from perfci.render.comment import TITLE_LIMIT, CheckText
from perfci.render.escape import prose, visible

MOST_ANNOTATIONS = 50
"""In one request (GitHub's documentation, "Create a check run")."""
ALL_ANNOTATIONS = 200
MOST_LINES = 1_000_000
"""Of a file that an annotation may stand in."""
_LONGEST_BRANCH = 80
_LONGEST_WHY = 500
"""Before it is escaped: with the longest summary of its own it stays below GitHub's 65 535 characters."""
_ASKING = frozenset({"required_status_checks", "merge_queue"})
"""Types of a ruleset's rules with which a branch may ask for a check."""
_ROUNDS = 3
"""Of reading which pull requests there are, and writing what follows: they may be opened and closed meanwhile."""
_LED = re.compile(r"(?:Held by|Waits for|Superseded by) [^:]{1,400}: ")
_OTHERS = re.compile(r"\A<!-- perfci: of others -->.*?<!-- perfci: its own -->\n", re.DOTALL)


@dataclass
class Concluded:
    """The state that the checks of a commit tell now."""

    conclusion: Conclusion | None
    """None where there is no check of ours."""
    url: str = ""
    """Address of the check that was written; empty where none was."""
    notes: list[str] = field(default_factory=list)
    """Notes for people, one line each."""


def name_of(suite: str, into: str = "") -> str:
    """Return the name for a branch rule; `into`: of the checks that no rule asks for, the branch that they are for."""
    name = "perfci" if suite == "perfci" else f"perfci ({suite})"
    return f"{name} into {shorten(visible(into), _LONGEST_BRANCH, middle=True)}" if into else name


@lru_cache(maxsize=64)
def unasked(base: str, api: Api) -> str:
    """Return the branch `base` where no rule asks for its checks, else empty. Raises ApiError.

    A rule asks for the check of a commit, whatever that was proposed for. So what holds for a branch that anybody may
    loosen must not be named as what another's rule asks for: no event might come that would take it back in time.
    """
    if not base:
        return ""
    try:
        return "" if api.call(f"rules of {base}", lambda: _asks(base, api)) else base
    except NotFound:
        return ""


def _asks(base: str, api: Api) -> bool:
    if base == api.repository.default_branch or api.repository.get_branch(base).protected:
        return True
    rules = api.get(f"/repos/{api.name}/rules/branches/{quote(base, safe='')}")
    return any(rule["type"] in _ASKING for rule in rules)


def earlier(suite: str, origin: Origin, api: Api) -> list[Attempt]:
    """Return earlier answers to the question of a run, at the same head, as their checks tell of them. Raises
    ApiError."""
    name = name_of(suite, unasked(origin.base_ref, api))
    found = api.call("check runs", lambda: _ours(_check_runs(name, origin.head_sha, api), suite, api))
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


def failed_since(
    suite: str, head: str, question: Question, name: str, owns: frozenset[str], api: Api
) -> datetime | None:
    """Return the time when a check `name` first came to one of `owns` at this head; None where none did. Raises
    ApiError."""
    found = api.call("check runs", lambda: _ours(_check_runs(name, head, api), suite, api))
    times = [
        check.started_at
        for one, check in found
        if one.question == question and one.own in owns and check.started_at is not None
    ]
    return min(times, default=None)


def write(publication: Publication, text: CheckText, api: Api) -> Concluded:
    """Write the check of this run and attempt, then conclude all of the commit. Raises Forbidden, ApiError.

    Its own result comes first, and is complete only after all have been read: of two publishers at least one sees both
    results, and a check that is not complete lets nothing pass.
    """
    base = unasked(publication.origin.base_ref, api)
    check = api.call("the check run", lambda: _write(publication, text, name_of(publication.suite, base), api))
    done = conclude(publication.suite, publication.origin.head_sha, publication.origin.base_ref, api)
    done.url = str(check.html_url)
    return done


def conclude(suite: str, head: str, base: str, api: Api) -> Concluded:
    """Give every check of ours on a commit the conclusion that they come to. Raises Forbidden, ApiError.

    Those that a rule may ask for, and those for the branch `base` where none does.
    """
    done = Concluded(None)
    for into in dict.fromkeys(("", unasked(base, api))):
        made = _stable(suite, head, into, api)
        done.conclusion = made.conclusion or done.conclusion
        done.notes += made.notes
    return done


def _stable(suite: str, head: str, into: str, api: Api) -> Concluded:
    """Conclude what was read, and again where it has changed meanwhile. Raises ApiError where it does not cease to."""
    done, before = Concluded(None), None
    for _ in range(_ROUNDS):
        seen = _asked(head, into, api)
        if seen == before:
            break
        before = seen
        done = api.call("the check runs", partial(_conclude, suite, head, into, *seen, api))
        if done.conclusion is None:
            break
    else:
        raise ApiError(f"pull requests of {head[:10]}: changed {_ROUNDS} times meanwhile: run the job again")
    return done


def _asked(head: str, into: str, api: Api) -> tuple[list[Open], list[str]]:
    """Return the open pull requests of a head into `into`, or into all branches whose rules ask; and the queues it is
    in."""
    found = api.call("open pull requests", lambda: _open(head, api))
    if into:
        return [one for one in found if one.base == into], []
    asking = {base for base in {one.base for one in found} if not unasked(base, api)}
    queued = api.call("branches that end there", lambda: _queued(head, api))
    return [one for one in found if one.base in asking], queued


def _write(publication: Publication, text: CheckText, name: str, api: Api) -> CheckRun:
    origin, mine = publication.origin, Result.made(publication)
    there = _ours(_check_runs(name, origin.head_sha, api), mine.suite, api)
    said, check = next(((o, c) for o, c in there if (o.question, o.age) == (mine.question, mine.age)), (None, None))
    notes = annotations(publication)
    sent = check.output.annotations_count if check is not None else 0
    output: dict[str, Any] = {"title": text.title, "summary": text.summary}
    first = {**output, "annotations": notes[sent : sent + MOST_ANNOTATIONS]}
    if check is None:
        check = api.repository.create_check_run(
            name=name,
            head_sha=origin.head_sha,
            details_url=origin.run_url,
            external_id=str(mine),
            status="in_progress",
            output=first,
        )
    elif said is not None and said.own not in FAILED | FAULTY and mine.own in FAILED | FAULTY:
        # From now on there is something to accept.
        check.edit(external_id=str(mine), output=first, started_at=datetime.now(UTC))
    else:
        check.edit(external_id=str(mine), output=first)
    for begin in range(sent + MOST_ANNOTATIONS, len(notes), MOST_ANNOTATIONS):
        check.edit(output={**output, "annotations": notes[begin : begin + MOST_ANNOTATIONS]})
    return check


def _conclude(suite: str, head: str, into: str, pulls: Sequence[Open], queued: Sequence[str], api: Api) -> Concluded:
    name = name_of(suite, into)
    listed = _check_runs(name, head, api)
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
    for app in sorted({str(check.app.slug or check.app.name) for check in foreign if check.app is not None}):
        done.notes.append(
            f"{app} wrote a check named {name} on this commit, too, which is not perfci's: let the branch's "
            "rule take the check from the app that publishes alone (docs/security.md)"
        )
    return done


def _is_ours(check: CheckRun, api: Api) -> bool:
    """Tell whether the app that this publisher speaks for wrote it: others' checks prove nothing."""
    return check.app is not None and check.app.slug == api.app


def _led(result: Result, speaks: Result, decided: Decided, bases: dict[Question, str], title: str) -> tuple[str, str]:
    """Return the beginning of a check's title, and why, where it does not say what its own run came to."""
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
        told = prose(f"{why[0].upper()}{why[1:]}.", _LONGEST_WHY)
        summary = f"<!-- perfci: of others -->\n> ⚠️ {told}\n\n<!-- perfci: its own -->\n{summary}"
    said = (check.status, check.conclusion, check.output.title, check.output.summary)
    if said != ("completed", concluded, title, summary):
        check.edit(status="completed", conclusion=concluded, output={"title": title, "summary": summary})


def _check_runs(name: str, head: str, api: Api) -> list[CheckRun]:
    return list(api.repository.get_commit(head).get_check_runs(check_name=name, filter="all"))


def _ours(listed: Sequence[CheckRun], suite: str, api: Api) -> list[tuple[Result, CheckRun]]:
    """Return the suite's checks that we wrote, with what each run came to: two publishers may have written two of one
    run."""
    found = [(Result.read(check.external_id or ""), check) for check in listed if _is_ours(check, api)]
    return [(one, check) for one, check in found if one is not None and one.suite == suite]


def _open(head: str, api: Api) -> list[Open]:
    """Return the open pull requests with this head. GitHub's list of a commit's own misses those from forks."""
    return [Open(one.number, one.base.ref) for one in api.repository.get_pulls(state="open") if one.head.sha == head]


def _queued(head: str, api: Api) -> list[str]:
    """Return the branches into which a merge queue has made a branch that ends with this commit."""
    # Unlike the branches that end at a commit, of which anybody may make many, these come all at once.
    found = api.get(f"/repos/{api.name}/git/matching-refs/{quote('heads/gh-readonly-queue/', safe='')}")
    ended = [str(one["ref"]) for one in found if one["object"]["sha"] == head]
    groups = [QUEUE_BRANCH.fullmatch(ref.removeprefix("refs/heads/")) for ref in ended]
    return sorted({group["base"] for group in groups if group is not None})


def annotations(publication: Publication) -> list[dict[str, str | int]]:
    """Return the rows that fail or warn, where their kernels are declared: worst first."""
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
    """Tell whether a row names a place in the repository; what it names is reported by the code itself."""
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
