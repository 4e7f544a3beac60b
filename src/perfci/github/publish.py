"""From measurements that a run left behind to comment, check run and verdict. Runs no code of the change, ever."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal, TypeVar

from github import UnknownObjectException
from github.Artifact import Artifact as RemoteArtifact
from github.ContentFile import ContentFile
from github.File import File
from github.PullRequest import PullRequest
from github.WorkflowJob import WorkflowJob
from github.WorkflowRun import WorkflowRun

from perfci.github import artifact, check, sticky
from perfci.github.accept import acceptance
from perfci.github.api import Api, ApiError, Forbidden
from perfci.github.event import Context
from perfci.judge.judge import judge
from perfci.judge.replan import judge_by
from perfci.model.base import UsageError
from perfci.model.coverage import mistake
from perfci.model.plan import Declared
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE, parse_policy
from perfci.model.publication import ACCEPT_LABEL, Acceptance, Origin, Publication, Shard
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.render import comment
from perfci.render.escape import prose, shorten, visible
from perfci.render.words import count

When = Literal["on-change", "always", "on-regression", "never"]
COMPARED_FILES = 300
"""As many as GitHub names in a comparison (GitHub's documentation, "Compare two commits")."""
MOST_FILES = 3000
"""As many as it names of a pull request (GitHub's documentation, "List pull requests files")."""
MOST_RUNS = 50
"""Runs of one head that are searched for stored measurements."""
_QUEUE = re.compile(r"gh-readonly-queue/(.+)/pr-[0-9]+-[0-9a-f]{40,64}")
_MEASURED = frozenset({"pull_request", "push", "merge_group", "workflow_dispatch", "schedule"})
"""Events whose runs measure."""
_FAILED = frozenset({"failure", "cancelled", "timed_out", "startup_failure", "stale"})
_RELABELLED = frozenset({"labeled", "unlabeled", "edited"})
"""Actions on a pull request that leave its head where it is."""
_QUIET = frozenset({"unchanged", "skipped"})
_UNJUDGED = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""What judging and rendering may raise of values that no measurement gives."""

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """What the workflow's author asks of the publishing action."""

    suite: str = "perfci"
    artifacts: str = ""
    """Glob of the artifacts to read; empty for those that the measuring action names."""
    jobs: str = "*"
    """Glob of the jobs that measure: one that failed was not heard."""
    comment: When = "on-change"
    policy: str = FILE
    """Path in the repository."""
    strict: bool = False


@dataclass
class Outcome:
    """What was published."""

    publication: Publication
    comment: sticky.Posted | None = None
    check: str = ""
    """Address of the check run; empty where it could not be written."""
    notes: list[str] = field(default_factory=list)
    """What could not be done, one line each. The verdict stands."""
    waiting: str = ""
    """Why nothing was published: another run is to measure, or measures now. Empty where something was."""
    problem: UsageError | None = None
    """What is wrong with base's policy: nothing is judged then, unless somebody accepted the change that mends it."""

    @property
    def exit_code(self) -> int:
        """What the job ends with."""
        if self.waiting:
            return 0
        return self.publication.exit_code if self.problem is None else self.problem.exit_code


@dataclass(frozen=True)
class _Faulty:
    """Base's policy, or a limit that base declares, when nothing can be judged by it."""

    problem: UsageError
    declared: Declared = field(default_factory=lambda: Declared(whole=False))
    """What base and head declare, as far as the measurements tell."""


@dataclass(frozen=True)
class _Source:
    """Whose measurements these are, by what the API says."""

    origin: Origin
    run: WorkflowRun
    pull: PullRequest | None
    base: str
    """The branch whose policy counts; empty: the measured commit's own."""
    default: str
    """The default branch; empty where the event does not tell."""
    artifacts: Sequence[tuple[str, RemoteArtifact]]
    idle: bool = False
    """The run was to measure nothing, as after a label, and no other has left measurements of its head yet."""


def publish(context: Context, action: str, wanted: Wanted, api: Api) -> Outcome:
    """Judge what the run of `context` measured, and say so on GitHub.

    `action`: of the event, such as `labeled`. Raises ApiError where not even the run or base's policy can be found
    out; whatever fails after that is named in the outcome, and its exit code stands.
    """
    try:
        source = _locate(context, action, wanted, api)
        outcome = Outcome(Publication(suite=wanted.suite, origin=source.origin))
        publication = outcome.publication
        faulty: _Faulty | None
        try:
            policy = _policy(source, wanted.policy, api)
        except UsageError as error:  # a required check that never comes would not say why
            faulty = _Faulty(error)
            publication.missing.append(str(error))
        else:
            faulty = _read(source, policy, publication, wanted, api)
    except Forbidden as error:
        remedy = "give the publishing job `permissions: {actions: read, contents: read, pull-requests: write}`"
        raise ApiError(f"{error}: {remedy}", error.status) from None
    outcome.problem = faulty.problem if faulty is not None else None
    if source.idle and not (publication.unmeasured or publication.nothing) and outcome.problem is None:
        # An answer now would outrank that of the run that measures, which may have begun before this one.
        outcome.waiting = (
            f"no run of {source.origin.head_sha[:10]} has left measurements yet: the one that does, is published"
        )
        return outcome
    failed = any(shard.report.exit_code == 1 for shard in publication.shards)
    pull = source.pull
    if pull is not None and (failed or faulty) and pull.head.sha == source.origin.head_sha:
        told = _tried(outcome, "pull-requests: read", lambda: acceptance(pull, api))
        accepted, why = told or (None, "")
        outcome.notes += [why] if why else []
        if faulty is None:
            publication.acceptance = accepted
        else:
            _mending(outcome, accepted, source, wanted.policy, faulty, api)
    # A check run of an earlier attempt holds its verdict.
    earlier = _tried(outcome, "checks: write", lambda: check.earlier(wanted.suite, source.origin, api))
    publication.attempts = earlier or []
    text = comment.render_check(publication)
    outcome.check = _tried(outcome, "checks: write", lambda: check.write(publication, text, api)) or ""
    if pull is not None and wanted.comment != "never":
        marker = sticky.Marker.of(wanted.suite, source.origin)
        create = _worth_telling(publication, wanted.comment)
        notes = list(outcome.notes)
        outcome.comment = _tried(
            outcome,
            "pull-requests: write",
            lambda: sticky.post(pull, marker, lambda limit: _with_notes(publication, notes, limit), create, api),
        )
    return outcome


def _mending(
    outcome: Outcome, accepted: Acceptance | None, source: _Source, path: str, faulty: _Faulty, api: Api
) -> None:
    """Where head mends base's policy, by which nothing can be judged until then, somebody may accept just that."""
    unsound = _tried(outcome, "contents: read", lambda: _unsound(source, path, faulty, api))
    publication = outcome.publication
    if unsound:
        _note(outcome, f"head does not mend base's policy: {unsound}")
    elif unsound is not None and accepted is not None:
        publication.acceptance, publication.unmeasured = accepted, f"base's policy is mended here: {faulty.problem}"
        publication.shards, publication.missing, outcome.problem = [], [], None
    elif unsound is not None:
        _note(outcome, f"this change mends base's policy: the label {ACCEPT_LABEL} accepts it")


def _tried(outcome: Outcome, permission: str, step: Callable[[], T]) -> T | None:
    """What `step` returns, or None with a note of what went wrong."""
    try:
        return step()
    except Forbidden as error:
        remedy = f"give the publishing job `permissions: {permission}`"
        if outcome.publication.origin.fork:
            remedy = f"a fork's own run may only read: publish from `workflow_run`, or {remedy}"
        _note(outcome, f"{error}: {remedy}")
    except ApiError as error:
        _note(outcome, str(error))
    return None


def _note(outcome: Outcome, text: str) -> None:
    if text not in outcome.notes:
        outcome.notes.append(text)


def _with_notes(publication: Publication, notes: Sequence[str], limit: int) -> str:
    said = "".join(f"\n> ⚠️ {prose(note, 500)}\n" for note in notes[:5])
    return comment.render(publication, limit - len(said)) + said


def _worth_telling(publication: Publication, when: When) -> bool:
    """Whether there is reason to begin a comment; one that is there is kept true in any case."""
    if when == "always" or publication.exit_code or publication.undecided or publication.acceptance:
        return True
    classes = {row.class_ for shard in publication.shards for row in shard.report.rows}
    return when == "on-change" and not classes <= _QUIET


def _locate(context: Context, action: str, wanted: Wanted, api: Api) -> _Source:
    asked = context.origin
    run = _run(asked.run_id, api)
    pull: PullRequest | None = None
    head, attempt = asked.head_sha, asked.attempt
    direct = asked.pull_request is not None and asked.event != "merge_group"
    if direct:
        pull = _pull(int(asked.pull_request or 0), api)
    if action in _RELABELLED and pull is not None:
        head = pull.head.sha
    elif run.head_sha != head:
        raise ApiError(f"run {run.id}: is of commit {run.head_sha[:10]}, the event of {head[:10]}: run it again")
    found = _artifacts(run, wanted, attempt, api) if run.head_sha == head else []
    idle = not found and (action in _RELABELLED or _skipped(run, wanted, api))
    if idle:
        run, found = _stored(run, head, pull, wanted, api)
        attempt, idle = run.run_attempt, not found
    if pull is None and run.event != "merge_group":
        pull = _pull_of(run, head, api)
    queue = _QUEUE.fullmatch(run.head_branch or "") if run.event == "merge_group" else None
    base = pull.base.ref if pull is not None else queue[1] if queue else ""
    origin = Origin(
        repository=api.name,
        pull_request=pull.number if pull is not None else asked.pull_request,
        event=run.event,
        head_sha=head,
        head_ref=run.head_branch or "",
        base_ref=base,
        fork=(_head_of(pull) if pull is not None else _full_name(run)) != api.name,
        run_id=run.id,
        attempt=attempt,
        run_url=f"{run.html_url}/attempts/{attempt}",
    )
    return _Source(origin, run, pull, base, context.default, found, idle)


def _run(number: int, api: Api) -> WorkflowRun:
    return api.call(f"run {number}", lambda: api.repository.get_workflow_run(number).complete())


def _pull(number: int, api: Api) -> PullRequest:
    return api.call(f"pull request #{number}", lambda: api.repository.get_pull(number).complete())


def _full_name(run: WorkflowRun) -> str:
    """`owner/name` of the repository that holds the head; empty where the fork is gone."""
    return run.head_repository.full_name if run.raw_data.get("head_repository") else ""


def _head_of(pull: PullRequest) -> str:
    """The same of a pull request."""
    return pull.head.repo.full_name if pull.head.repo else ""


def _artifacts(run: WorkflowRun, wanted: Wanted, attempt: int, api: Api) -> list[tuple[str, RemoteArtifact]]:
    return artifact.find(run, wanted.suite, wanted.artifacts, attempt, api)


def _skipped(run: WorkflowRun, wanted: Wanted, api: Api) -> bool:
    """Whether no job of a run was to measure, as after a label."""
    return run.conclusion == "skipped" or {job.conclusion for job in _jobs(run, wanted, api)} == {"skipped"}


def _jobs(run: WorkflowRun, wanted: Wanted, api: Api) -> list[WorkflowJob]:
    """The jobs that measure, of the newest attempt."""
    listed = api.call("jobs of the run", lambda: list(run.jobs(_filter="latest")))
    return [job for job in listed if fnmatchcase(job.name, wanted.jobs)]


def _stored(
    run: WorkflowRun, head: str, pull: PullRequest | None, wanted: Wanted, api: Api
) -> tuple[WorkflowRun, list[tuple[str, RemoteArtifact]]]:
    """The newest run of this head that left measurements; `run` itself where none did."""
    of = _head_of(pull) if pull is not None else _full_name(run)
    listed = api.call("runs of the head", lambda: _first(api.repository.get_workflow_runs(head_sha=head)))
    for other in sorted(listed, key=lambda one: one.id, reverse=True):
        copied = pull is not None and (_full_name(other), other.head_branch) == (
            api.name,
            f"pull-request/{pull.number}",
        )
        if other.head_sha == head and other.event in _MEASURED and (_full_name(other) == of or copied):
            found = _artifacts(other, wanted, other.run_attempt, api)
            if found:
                return other, found
    return run, []


def _first(runs: Iterable[WorkflowRun]) -> list[WorkflowRun]:
    return list(islice(runs, MOST_RUNS))


def _pull_of(run: WorkflowRun, head: str, api: Api) -> PullRequest | None:
    """The open pull request whose head is the run's: by owner, branch, repository and commit.

    One that has moved on since is returned where no other is there: base's policy still counts, and whoever posts
    sees that the head is another. Raises ApiError where several have this head.
    """
    name, branch = _full_name(run), run.head_branch
    if not name or not branch:
        return None
    of = f"{name.partition('/')[0]}:{branch}"
    listed = api.call("pull requests of the head", lambda: list(api.repository.get_pulls(state="open", head=of)))
    there = [one for one in listed if one.head.repo and one.head.repo.full_name == name and one.head.ref == branch]
    exact = [one for one in there if one.head.sha == head]
    if len(exact) > 1:
        named = {one.number for one in run.pull_requests or []}
        exact = [one for one in exact if one.number in named] or exact
    if len(exact) > 1:
        numbers = ", ".join(f"#{one.number}" for one in exact)
        raise ApiError(f"pull requests {numbers} have the same head: close all but one, and run the job again")
    found = (exact or there)[:1]
    return _pull(found[0].number, api) if found else None


def _policy(source: _Source, path: str, api: Api) -> tuple[Policy | None, str]:
    """The policy that counts and where it stands; None where base has none yet. Raises ApiError, UsageError."""
    sha = source.origin.head_sha
    if source.base:
        # By commit: a tag may have the branch's name. Without the right to read this is what fails, not the file.
        sha = api.call(f"branch {source.base}", lambda: api.repository.get_branch(source.base).commit.sha)
    where = f"{source.base or sha[:10]}:{path}"
    try:
        found = api.call(where, lambda: _content(path, sha, api))
        return parse_policy(found.decode(), where), where
    except ApiError as error:
        if error.status != 404:
            raise
        return None, where
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8 text: save it as UTF-8") from None


def _content(path: str, sha: str, api: Api) -> bytes:
    found = api.repository.get_contents(path, ref=sha)
    if not isinstance(found, ContentFile) or found.type != "file" or found.encoding != "base64":
        raise UsageError(f"{path}: is no plain file of at most 1 MB in {sha[:10]}")
    return found.decoded_content


def _unsound(source: _Source, path: str, faulty: _Faulty, api: Api) -> str:
    """What is wrong with head's policy too; empty where it mends base's. Raises ApiError."""
    sha = source.origin.head_sha
    where = f"{sha[:10]}:{path}"
    try:
        policy = parse_policy(api.call(where, lambda: _content(path, sha, api)).decode(), where)
    except UsageError as error:
        return str(error)
    except UnicodeDecodeError:
        return f"{where}: is not UTF-8 text"
    except ApiError as error:
        if error.status != 404:
            raise
        return f"{where} does not exist"
    text = mistake(policy, faulty.declared, {})
    return f"{where}: {text}" if text else ""


def _read(
    source: _Source, policy: tuple[Policy | None, str], into: Publication, wanted: Wanted, api: Api
) -> _Faulty | None:
    """Every job's measurements, judged, or why they are missing. Returns what is wrong with base's policy."""
    faulty: _Faulty | None = None
    for name, remote in source.artifacts:
        shown = name if len(source.artifacts) > 1 else ""
        try:
            results = artifact.fetch(remote, source.origin, api)
            declared = results.plan.declared or Declared(whole=False)
            if results.error is not None and results.error.kind == "policy":
                faulty = _Faulty(UsageError(results.error.text), declared)
            shard = Shard(
                name=shown,
                report=_judged(results, *policy, wanted.strict),
                artifacts=[artifact.describe(remote, source.origin)],
            )
            _render_all(into.model_copy(update={"shards": [shard]}))
            into.shards.append(shard)
        except UsageError as error:
            faulty = faulty or _Faulty(error, declared)
            remedy = "mend it there, or, where it has moved on, bring this branch up to date"
            into.missing.append(f"{error} (base's limits judge: {remedy})")
        except (artifact.Unfit, ApiError) as error:
            into.missing.append(f"artifact {_named(remote.name)} {error}")
        except _UNJUDGED as error:
            into.missing.append(f"artifact {_named(remote.name)} cannot be judged ({type(error).__name__})")
    try:
        into.missing += [
            f"job {_named(job.name)} ended with {job.conclusion}: see its log"
            for job in _jobs(source.run, wanted, api)
            if job.conclusion in _FAILED
        ]
        if not source.artifacts and not into.missing:
            into.unmeasured = _ignored(source, policy[0], api)
            into.nothing = "" if into.unmeasured else _nothing(source, api)
    except ApiError as error:
        into.missing.append(str(error))
    if not source.artifacts and not (into.unmeasured or into.nothing):
        into.missing.append(f"run {source.run.id} has no artifact of the suite {_named(wanted.suite)}")
    return faulty


def _render_all(publication: Publication) -> None:
    """Raise here, of one job alone, what its values would raise where everything is said."""
    for render in (comment.render, comment.render_check, comment.render_summary):
        render(publication)


def _ignored(source: _Source, policy: Policy | None, api: Api) -> str:
    """Why a change needs no measurement, by the policy that counts and by GitHub's list of files; empty: it does."""
    if policy is None or not policy.ignore:
        return ""
    files = api.call("changed files", lambda: _changed(source, api))
    if files is None or not policy.ignores([path for one in files for path in _paths(one)]):
        return ""
    whose = "base" if source.base else "the commit"
    return f"{whose}'s `ignore` names every changed file ({count(len(files), 'file')})"


def _nothing(source: _Source, api: Api) -> str:
    """Why there was nothing to compare, by GitHub's own history: base has every commit of head's. Empty: it has not."""
    base, name = api.call("base", lambda: _upstream(source, api))
    head = source.origin.head_sha
    if not base or api.call("comparison", lambda: api.repository.compare(base, head).ahead_by):
        return ""
    return f"{_named(head[:10])} has no commit of its own, {_named(name)} holds them all"


def _upstream(source: _Source, api: Api) -> tuple[str, str]:
    """The commit whose history head has to leave, and what people call it; empty where head is compared with none."""
    run, branch = source.run, source.base
    if not branch:
        if _full_name(run) != api.name or not source.default or not run.head_branch:
            return "", ""
        if run.head_branch == source.default:
            before = _before(source, api)
            return before, before[:10]
        if _tip(run.head_branch, api) is None:  # a tag, which is measured alone
            return "", ""
        branch = source.default
    return _tip(branch, api) or "", branch


def _tip(branch: str, api: Api) -> str | None:
    """The commit at which a branch stands; None where there is no such branch."""
    try:
        return api.repository.get_branch(branch).commit.sha
    except UnknownObjectException:
        return None


def _changed(source: _Source, api: Api) -> list[File] | None:
    """The files that the head changes since it left base; None where GitHub does not name them all."""
    pull, head, base = source.pull, source.origin.head_sha, source.base or _before(source, api)
    if not base:
        return None
    files = list(api.repository.compare(base, head).files)
    if len(files) < COMPARED_FILES:
        return files
    if pull is None:
        return None
    files = list(pull.get_files())
    # They are those of the pull request as it is now: its head may have moved, unlike the commits that are compared.
    return files if len(files) < MOST_FILES and api.get(pull.url)["head"]["sha"] == head else None


def _before(source: _Source, api: Api) -> str:
    """Where the branch stood before the push that the run is of; empty where that is not known, and of a new branch."""
    if source.run.event != "push":
        return ""
    asked = {"ref": f"refs/heads/{source.run.head_branch}", "per_page": 100}
    moves = api.get(f"/repos/{api.name}/activity", asked)
    before = next((str(one["before"]) for one in moves if one["after"] == source.origin.head_sha), "")
    return before if before.strip("0") else ""


def _paths(file: File) -> list[str]:
    """Of a renamed file the new and the old one."""
    return [path for path in (file.filename, file.previous_filename) if path]


def _named(text: str) -> str:
    """A name from elsewhere in a line that reads backticks as code."""
    shown = shorten(visible(text), 100, middle=True).replace("`", "'")
    return f"`{shown}`"


def _judged(results: Results, policy: Policy | None, where: str, strict: bool) -> Report:
    if policy is None:
        report = judge(results, strict=strict)
        report.notes.append(f"{where} does not exist yet: judged by the limits that the measured commit brings")
        return report
    report = judge_by(policy, results, strict=strict, where=where)
    report.policy_from = "base"
    if report.exploratory:
        report.notes.append(f"The limits are those of {where} as it is now.")
    return report
