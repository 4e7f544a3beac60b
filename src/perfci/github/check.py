"""The check run on the head, which a branch rule can require. `result.py` decides its conclusion; where no rule asks
for it, it is called `perfci into BRANCH`."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

from github.CheckRun import CheckRun

from perfci.github.api import Api, ApiError, NotFound
from perfci.github.event import QUEUE_BRANCH
from perfci.github.result import PASSING, Conclusion, MergeQuestion, Open, Result, decide
from perfci.model.publication import Attempt, Origin, Publication
from perfci.model.report import Report, Row
from perfci.model.text import short, shorten
from perfci.render.comment import TITLE_LIMIT, CheckText
from perfci.render.escape import prose, visible

MOST_ANNOTATIONS = 50
"""In a request (GitHub's documentation, "Create a check run")."""
ALL_ANNOTATIONS = 200
MOST_LINES = 1_000_000
"""Of a file."""
_LONGEST_BRANCH = 80
_LONGEST_WHY = 500
"""Before escaping: with the longest summary it stays below GitHub's 65 535 characters."""
_ASKING = frozenset({"required_status_checks", "merge_queue"})
"""By which a branch may ask for a check."""
_ROUNDS = 3
"""Of reading pull requests and writing what follows: they may be opened and closed meanwhile."""
_LED = re.compile(r"(?:Held by|Waits for|Superseded by) [^:]{1,400}: ")
_OTHERS = re.compile(r"\A<!-- perfci: of others -->.*?<!-- perfci: its own -->\n", re.DOTALL)


def name_of(suite: str, into: str = "") -> str:
    """Return the name for a branch rule; `into`: the branch where none asks."""
    name = "perfci" if suite == "perfci" else f"perfci ({suite})"
    return f"{name} into {shorten(visible(into), _LONGEST_BRANCH, middle=True)}" if into else name


@lru_cache(maxsize=64)
def unasked(base: str, api: Api) -> str:
    """Return `base` where no rule asks for its checks, else empty. Raises ApiError.

    A rule asks for a commit's check, whatever that was proposed for: a verdict for a branch that anybody may loosen
    must not bear the name that another's rule asks for.
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


class Checks:
    """The checks of a suite on a commit for the branch `base`. Methods raise ApiError."""

    def __init__(self, suite: str, head: str, base: str, api: Api) -> None:
        self._suite, self._head, self._api = suite, head, api
        self._into = unasked(base, api)
        """The branch, where no rule asks for its checks."""

    def earlier(self, origin: Origin) -> list[Attempt]:
        """Return earlier answers, oldest first."""
        asked, mine = MergeQuestion.of_run(origin), (origin.run_id, origin.attempt)
        known = sorted(self._known(), key=lambda item: item[0].age)
        return [
            Attempt(run_id=result.run, attempt=result.attempt, sentence=_own_title(check), url=check.details_url or "")
            for result, check in known
            if result.question == asked and result.age < mine
        ]

    def failed_since(self, question: MergeQuestion, owns: frozenset[str]) -> datetime | None:
        """Return when a check first came to one of `owns`; None for never."""
        times = [
            check.started_at
            for result, check in self._known()
            if result.question == question and result.own in owns and check.started_at is not None
        ]
        return min(times, default=None)

    def write(self, publication: Publication, text: CheckText) -> tuple[str, list[str]]:
        """Write the check of a run and attempt, then conclude all of the commit. Return its address, and `conclude`'s
        notes.

        Its own result comes first, and is complete only after all have been read: of two publishers at least one sees
        both results, and an incomplete check lets nothing pass.
        """
        check = self._api.call("the check run", lambda: self._write(publication, text))
        return str(check.html_url), self.conclude()

    def conclude(self) -> list[str]:
        """Conclude all checks. Return notes for people."""
        return [note for into in dict.fromkeys(("", self._into)) for note in self._conclude(into)]

    def _conclude(self, into: str) -> list[str]:
        before, notes = None, list[str]()
        for _ in range(_ROUNDS):
            asking = self._asking(into)
            if asking == before:
                return notes
            before = asking
            notes = self._api.call("the check runs", partial(self._apply, into, *asking))
        raise ApiError(f"pull requests of {short(self._head)}: changed {_ROUNDS} times meanwhile: run the job again")

    def _apply(self, into: str, pulls: Sequence[Open], queued: Sequence[str]) -> list[str]:
        name = name_of(self._suite, into)
        listed = self._listed(name)
        ours = self._ours(listed)
        decided = decide([result for result, _ in ours], pulls, queued)
        if decided is None:
            return []
        notes = dict[str, None]()
        for result, check in ours:
            lead, why = decided.lead(result)
            edit(check, lead, why, decided.conclusion)
            notes |= {why: None} if why else {}
        own = [check for check in listed if self._is_ours(check) and (check.external_id or "").startswith("perfci/")]
        strange = {str(check.app.slug or check.app.name) for check in listed if check not in own and check.app}
        return [
            *notes,
            *(
                f"{app} wrote a check named {name} on this commit, too, which is not perfci's: let the branch's rule "
                "take the check from the app that publishes alone (docs/security.md)"
                for app in sorted(strange)
            ),
        ]

    def _write(self, publication: Publication, text: CheckText) -> CheckRun:
        mine, notes = Result.made(publication), annotations(publication)
        known = ((result, check) for result, check in self._known() if result.question == mine.question)
        before, check = next(((result, check) for result, check in known if result.age == mine.age), (None, None))
        sent = check.output.annotations_count if check is not None else 0
        output: dict[str, Any] = {"title": text.title, "summary": text.summary}
        first = {**output, "annotations": notes[sent : sent + MOST_ANNOTATIONS]}
        fields: dict[str, Any] = {"external_id": str(mine), "output": first}
        if before is None or check is None:
            check = self._api.repository.create_check_run(
                name=name_of(self._suite, self._into),
                head_sha=self._head,
                details_url=publication.origin.run_url,
                status="in_progress",
                **fields,
            )
        else:
            if before.own in PASSING and mine.own not in PASSING:  # from now on there is something to accept
                fields["started_at"] = datetime.now(UTC)
            check.edit(**fields)
        for begin in range(sent + MOST_ANNOTATIONS, len(notes), MOST_ANNOTATIONS):
            check.edit(output={**output, "annotations": notes[begin : begin + MOST_ANNOTATIONS]})
        return check

    def _known(self) -> list[tuple[Result, CheckRun]]:
        return self._api.call("check runs", lambda: self._ours(self._listed(name_of(self._suite, self._into))))

    def _listed(self, name: str) -> list[CheckRun]:
        return list(self._api.repository.get_commit(self._head).get_check_runs(check_name=name, filter="all"))

    def _ours(self, listed: Sequence[CheckRun]) -> list[tuple[Result, CheckRun]]:
        """Two publishers may have written two of a run."""
        read = [(Result.read(check.external_id or ""), check) for check in listed if self._is_ours(check)]
        return [(result, check) for result, check in read if result is not None and result.suite == self._suite]

    def _is_ours(self, check: CheckRun) -> bool:
        return check.app is not None and check.app.slug == self._api.app

    def _asking(self, into: str) -> tuple[list[Open], list[str]]:
        """Into `into`, or into all branches whose rules ask; and of these the branches of its merge queues."""
        # GitHub's list of a commit's own pull requests misses those from forks.
        listed = self._api.call("open pull requests", lambda: list(self._api.repository.get_pulls(state="open")))
        pulls = [Open(pull.number, pull.base.ref) for pull in listed if pull.head.sha == self._head]
        if into:
            return [pull for pull in pulls if pull.base == into], []
        asking = {base for base in {pull.base for pull in pulls} if not unasked(base, self._api)}
        queued = self._api.call("branches that end there", self._queued)
        return [pull for pull in pulls if pull.base in asking], queued

    def _queued(self) -> list[str]:
        # Unlike the branches that end at a commit, of which anybody may make many, these come all at once.
        refs = self._api.get(f"/repos/{self._api.name}/git/matching-refs/{quote('heads/gh-readonly-queue/', safe='')}")
        ended = [str(ref["ref"]).removeprefix("refs/heads/") for ref in refs if ref["object"]["sha"] == self._head]
        groups = [QUEUE_BRANCH.fullmatch(branch) for branch in ended]
        return sorted({group["base"] for group in groups if group is not None})


def _own_title(check: CheckRun) -> str:
    return _LED.sub("", check.output.title or "", count=1)


def edit(check: CheckRun, lead: str, why: str, concluded: Conclusion) -> None:
    """Complete a check, unless it says this already."""
    own = _own_title(check)
    title = shorten(f"{lead}: {own}" if lead else own, TITLE_LIMIT)
    summary = _OTHERS.sub("", check.output.summary or "")
    if why:
        note = prose(f"{why[0].upper()}{why[1:]}.", _LONGEST_WHY)
        summary = f"<!-- perfci: of others -->\n> ⚠️ {note}\n\n<!-- perfci: its own -->\n{summary}"
    said = (check.status, check.conclusion, check.output.title, check.output.summary)
    if said != ("completed", concluded, title, summary):
        check.edit(status="completed", conclusion=concluded, output={"title": title, "summary": summary})


def annotations(publication: Publication) -> list[dict[str, str | int]]:
    """Return rows that fail or warn, worst first."""
    rows = [
        (row.effect != "fail", _annotation(shard.report, row, f"{shard.name}: " if shard.name else ""))
        for shard in publication.shards
        for row in shard.report.rows
        if row.effect != "pass" and _declared(row)
    ]
    return [note for _, note in sorted(rows, key=lambda row: row[0])][:ALL_ANNOTATIONS]


def _declared(row: Row) -> bool:
    """A place in the repository, as code itself reports it."""
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
