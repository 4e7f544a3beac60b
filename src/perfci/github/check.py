"""The check run on the head: what a branch rule can require."""

import re
from typing import Any, Literal

from github.CheckRun import CheckRun

from perfci.github.api import Api
from perfci.model.publication import Attempt, Origin, Publication
from perfci.model.report import Report, Row
from perfci.render.comment import CheckText
from perfci.render.escape import shorten, visible

MOST_ANNOTATIONS = 50
"""In one request (GitHub's documentation, "Create a check run")."""
ALL_ANNOTATIONS = 200
_ID = re.compile(r"perfci/(?P<suite>[a-z0-9-]{1,60})/(?P<run>[0-9]{1,18})/(?P<attempt>[0-9]{1,9})")
Conclusion = Literal["success", "failure", "neutral", "action_required"]


def name_of(suite: str) -> str:
    """What a branch rule names."""
    return "perfci" if suite == "perfci" else f"perfci ({suite})"


def conclusion(publication: Publication) -> Conclusion:
    """What GitHub is told.

    Only `success`, `neutral` and `skipped` satisfy a rule that requires the check. So a fault is `action_required`: it
    holds the merge up, and looks like no regression. `neutral` is what is undecided, as where there was nothing
    to compare, or where the limits are only observed and do not hold.
    """
    code = publication.exit_code
    if code:
        return "failure" if code == 1 else "action_required"
    return "neutral" if publication.undecided else "success"


def earlier(suite: str, origin: Origin, api: Api) -> list[Attempt]:
    """Earlier measurements of the same head, as their check runs tell of them. Raises ApiError."""
    found = api.call("check runs", lambda: _own(suite, origin.head_sha, api))
    mine = (origin.run_id, origin.attempt)
    return [
        Attempt(run_id=key[0], attempt=key[1], sentence=check.output.title or "", url=check.details_url or "")
        for key, check in sorted(found.items())
        if key < mine
    ]


def write(publication: Publication, text: CheckText, api: Api) -> str:
    """Write the check run of this run and attempt, and return its address. Raises Forbidden, ApiError.

    Of several runs at one head the newest speaks: GitHub shows what was begun last, so an older one that comes late
    takes over the conclusion of the newer.
    """
    return api.call("the check run", lambda: _write(publication, text, api))


def _write(publication: Publication, text: CheckText, api: Api) -> str:
    origin, suite = publication.origin, publication.suite
    mine = (origin.run_id, origin.attempt)
    own = _own(suite, origin.head_sha, api)
    newest = max(own, default=mine)
    concluded: str = conclusion(publication)
    title, summary = text.title, text.summary
    if newest > mine:
        concluded = own[newest].conclusion or concluded
        title = f"Superseded by run {newest[0]}, attempt {newest[1]}"
    notes = annotations(publication)
    check = own.get(mine)
    sent = check.output.annotations_count if check is not None else 0
    output: dict[str, Any] = {"title": title, "summary": summary}
    first = {**output, "annotations": notes[sent : sent + MOST_ANNOTATIONS]}
    if check is None:
        check = api.repository.create_check_run(
            name=name_of(suite),
            head_sha=origin.head_sha,
            details_url=origin.run_url,
            external_id=f"perfci/{suite}/{origin.run_id}/{origin.attempt}",
            status="completed",
            conclusion=concluded,
            output=first,
        )
    else:
        check.edit(status="completed", conclusion=concluded, output=first)
    for begin in range(sent + MOST_ANNOTATIONS, len(notes), MOST_ANNOTATIONS):
        check.edit(output={**output, "annotations": notes[begin : begin + MOST_ANNOTATIONS]})
    return str(check.html_url)


def _own(suite: str, head: str, api: Api) -> dict[tuple[int, int], CheckRun]:
    """The check runs of the suite on a commit, by run and attempt."""
    runs = api.repository.get_commit(head).get_check_runs(check_name=name_of(suite), filter="all")
    found: dict[tuple[int, int], CheckRun] = {}
    for check in runs:
        key = _ID.fullmatch(check.external_id or "")
        if key is not None and key["suite"] == suite:
            found[int(key["run"]), int(key["attempt"])] = check
    return found


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
        row.line > 0
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
