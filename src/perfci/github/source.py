"""The published run and its change, by what the API says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

from github.Artifact import Artifact as RemoteArtifact
from github.File import File
from github.PullRequest import PullRequest
from github.WorkflowJob import WorkflowJob
from github.WorkflowRun import WorkflowRun

from perfci.github.api import Api, ApiError, NotFound
from perfci.github.artifact import Unfit, Unmeasured, parse, read_member
from perfci.github.event import MEASURING, QUEUE_BRANCH, Context
from perfci.github.measured import Change, tip
from perfci.github.settings import RAW_SUFFIX, ArtifactName, Publishing
from perfci.model.publication import Artifact, Origin
from perfci.model.results import Results
from perfci.model.text import short

MOST_RUNS = 50
_OF_BRANCHES = frozenset(MEASURING) - {"pull_request"}
"""Their authors may write to the repository."""
_RELABELLED = frozenset({"labeled", "unlabeled", "edited"})
"""They keep the head."""
_RETARGETED = frozenset({"base_ref_changed", "automatic_base_change_succeeded"})
"""A pull request then goes into another branch."""

ARCHIVE_BYTES = 64 << 20
MOST_ARTIFACTS = 256
"""Jobs of a matrix (GitHub's documentation, "Usage limits")."""


class Left(NamedTuple):
    """A job's artifacts."""

    name: str
    measured: RemoteArtifact
    raw: RemoteArtifact | None
    """The profilers' own reports, which are never read here."""
    earlier: Sequence[RemoteArtifact] = ()
    """Of earlier attempts, oldest first."""


def find(run: WorkflowRun, suite: str, pattern: str, attempt: int, api: Api) -> list[Left]:
    """Return the newest artifacts of each job of the suite up to `attempt`.

    `pattern`: a glob; empty for the measuring action's names.
    """
    remote = sorted(api.call("artifacts", lambda: list(run.get_artifacts())), key=lambda artifact: artifact.id)
    raw = {artifact.name: artifact for artifact in remote if artifact.name.endswith(RAW_SUFFIX)}
    of_jobs: dict[str, list[tuple[int, RemoteArtifact]]] = {}
    for artifact in remote:
        name, its_attempt = (None, 0) if artifact.name in raw else _shard(artifact.name, suite, pattern)
        if name is not None and its_attempt <= attempt:
            of_jobs.setdefault(name, []).append((its_attempt, artifact))
    if len(of_jobs) > MOST_ARTIFACTS:
        raise Unfit(f"has {len(of_jobs)} artifacts of this suite; at most {MOST_ARTIFACTS} are read")
    left = []
    for name in sorted(of_jobs):
        *earlier, newest = [artifact for _, artifact in sorted(of_jobs[name], key=lambda each: each[0])]
        left.append(Left(name, newest, raw.get(f"{newest.name}{RAW_SUFFIX}"), earlier))
    return left


def _shard(name: str, suite: str, pattern: str) -> tuple[str | None, int]:
    if pattern:
        return (name if fnmatchcase(name, pattern) else None), 0
    parsed = ArtifactName.parse(name)
    if parsed is None or parsed.suite != suite:
        return None, 0
    return f"{parsed.job} {parsed.shard}".removesuffix(" 0"), parsed.attempt


def fetch(remote: RemoteArtifact, origin: Origin, api: Api) -> Results | Unmeasured:
    """Return the measurements in an artifact, or why there are none. Raises Unfit, ApiError."""
    if not _of_run(remote, origin):
        raise Unfit("belongs to another run")
    if remote.expired:
        raise Unfit("has expired: run the measuring job again")
    if remote.size_in_bytes > ARCHIVE_BYTES:
        raise Unfit(f"has {remote.size_in_bytes >> 20} MiB, more than the {ARCHIVE_BYTES >> 20} MiB that are read")
    try:
        content = api.download(remote.id, ARCHIVE_BYTES)
    except NotFound:
        raise Unfit("is gone: run the measuring job again") from None
    member = read_member(content)
    return parse(member) if isinstance(member, bytes) else member


def links(left: Left, origin: Origin) -> list[Artifact]:
    """Return links to what a job left; profilers' reports only of this run and no fork.

    A fork's workflow can upload what it likes under that name.
    """
    raw = left.raw
    if raw is None or origin.fork or raw.expired or not _of_run(raw, origin):
        return [describe(left.measured, origin)]
    return [describe(left.measured, origin), describe(raw, origin)]


def _of_run(remote: RemoteArtifact, origin: Origin) -> bool:
    run = remote.workflow_run
    return run.id == origin.run_id and run.head_sha == origin.head_sha


def describe(remote: RemoteArtifact, origin: Origin) -> Artifact:
    """Return where people find an artifact."""
    expires = remote.expires_at
    return Artifact(
        name=remote.name,
        url=f"{origin.run_url.partition('/attempts/')[0]}/artifacts/{remote.id}",
        expires=expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if expires else "",
    )


@dataclass(frozen=True)
class Source:
    """A run, and the change that it measured."""

    origin: Origin
    run: WorkflowRun
    pull: PullRequest | None
    base: str
    """The branch whose policy counts; empty: the measured commit's own."""
    default: str
    artifacts: Sequence[Left] = ()
    queued: PullRequest | None = None
    """The pull request at the end of a merge queue's group."""
    before: str = ""
    """The branch's commit before the run's push; empty where unknown."""
    idle: bool = False
    """The run was to measure nothing, and none has measured its head yet."""
    closed: str = ""
    """Why nothing can be said of a closed pull request."""
    doubt: str = ""


def locate(context: Context, action: str, inputs: Publishing, api: Api) -> Source:
    """Return the run of `context`, or another of its head whose measurements it publishes. Raises ApiError.

    `action`: the event's.
    """
    asked = context.origin
    run = api.call(f"run {asked.run_id}", lambda: api.repository.get_workflow_run(asked.run_id).complete())
    pull: PullRequest | None = None
    head, attempt = asked.head_sha, asked.attempt
    if asked.pull_request is not None and asked.event != "merge_group":
        pull = _pull(asked.pull_request, api)
    if action in _RELABELLED and pull is not None:
        head = pull.head.sha
    elif run.head_sha != head:
        raise ApiError(f"run {run.id}: is of commit {short(run.head_sha)}, the event of {short(head)}: run it again")
    doubt = ""
    try:
        artifacts = find(run, inputs.suite, inputs.artifacts, attempt, api) if run.head_sha == head else []
    except Unfit as error:
        artifacts, doubt = [], f"run {run.id} {error}"
    idle = not doubt and not artifacts and (action in _RELABELLED or _skipped(run, inputs, api))
    if idle:
        run, artifacts = _stored(run, head, pull, inputs, api)
        attempt, idle = run.run_attempt, not artifacts
    if pull is None and run.event != "merge_group":
        pull, unknown = _pull_of(run, head, api)
        doubt = doubt or unknown
    queue = QUEUE_BRANCH.fullmatch(run.head_branch or "") if run.event == "merge_group" else None
    queued = _pull(int(queue["pull"]), api) if queue else None
    closed = ""
    if pull is not None and pull.state != "open":
        closed = f"pull request #{pull.number} is closed"
    elif pull is None and not doubt and (run.event not in _OF_BRANCHES or _full_name(run) != api.name):
        closed = f"run {run.id} is of a pull request that is not open any more"
    base = pull.base.ref if pull is not None else queue["base"] if queue else ""
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
    before = context.base if (asked.run_id, asked.event) == (run.id, "push") and run.event == "push" else ""
    return Source(origin, run, pull, base, context.default, artifacts, queued, before, idle, closed, doubt)


def jobs(run: WorkflowRun, inputs: Publishing, api: Api) -> list[WorkflowJob]:
    """Return the measuring jobs of the newest attempt. Raises ApiError."""
    listed = api.call("jobs of the run", lambda: list(run.jobs(_filter="latest")))
    return [job for job in listed if fnmatchcase(job.name, inputs.jobs)]


def change(source: Source, api: Api) -> Change:
    """Return the change that the run should have measured."""
    upstream, name = _upstream(source, api)
    pull = source.pull
    merge = (pull.merge_commit_sha or "") if pull is not None else ""
    return Change(source.origin.head_sha, upstream, name, merged=pull is not None, merge=merge)


def retargeted(source: Source, api: Api) -> str:
    """Tell why a measurement is of another base than the pull request's, or empty. Raises ApiError.

    By its events, and its age: a run that it started is no older. A run started again has its first attempt's base.
    """
    pull = source.pull
    if pull is None:
        return ""
    if source.run.event == "pull_request" and source.run.created_at < pull.created_at:
        return (
            f"run {source.run.id} is older than #{pull.number}, and so of another pull request: push, or close and "
            "reopen it, so that it is measured"
        )
    events = api.call("events of the pull request", lambda: list(pull.get_issue_events()))
    moved = max((event.created_at for event in events if event.event in _RETARGETED), default=None)
    if moved is None or source.run.created_at >= moved:
        return ""
    return (
        f"run {source.run.id} began before #{pull.number} was retargeted to {pull.base.ref}: push, or close and reopen "
        "it, so that it is measured against that"
    )


def changed_files(source: Source, api: Api) -> list[File] | None:
    """Return the files that head changes since it left base; None: not known. Raises ApiError."""
    base = tip(source.base, api) if source.base else _before(source, api)  # by commit: a tag may have the branch's name
    if not base:
        return None
    return api.call("changed files", lambda: list(api.repository.compare(base, source.origin.head_sha).files))


def brings_nothing(source: Source, api: Api) -> str:
    """Return the base that has every commit of head's, or empty."""
    of = change(source, api)
    if not of.upstream or api.call("comparison", lambda: api.repository.compare(of.upstream, of.head).ahead_by):
        return ""
    return of.name


def _pull(number: int, api: Api) -> PullRequest:
    return api.call(f"pull request #{number}", lambda: api.repository.get_pull(number).complete())


def _full_name(run: WorkflowRun) -> str:
    return run.head_repository.full_name if run.raw_data.get("head_repository") else ""


def _head_of(pull: PullRequest) -> str:
    return pull.head.repo.full_name if pull.head.repo else ""


def _skipped(run: WorkflowRun, inputs: Publishing, api: Api) -> bool:
    return run.conclusion == "skipped" or {job.conclusion for job in jobs(run, inputs, api)} == {"skipped"}


def _stored(
    run: WorkflowRun, head: str, pull: PullRequest | None, inputs: Publishing, api: Api
) -> tuple[WorkflowRun, list[Left]]:
    of = _head_of(pull) if pull is not None else _full_name(run)
    listed = api.call(
        "runs of the head", lambda: list(islice(api.repository.get_workflow_runs(head_sha=head), MOST_RUNS))
    )
    for other in sorted(listed, key=lambda run: run.id, reverse=True):
        branch = f"{_full_name(other)}:{other.head_branch}"
        copied = pull is not None and branch == f"{api.name}:pull-request/{pull.number}"
        own = _full_name(other) == of and (pull is None or other.head_branch == pull.head.ref)
        if other.head_sha == head and other.event in MEASURING and (own or copied):
            artifacts = find(other, inputs.suite, inputs.artifacts, other.run_attempt, api)
            if artifacts:
                return other, artifacts
    return run, []


def _pull_of(run: WorkflowRun, head: str, api: Api) -> tuple[PullRequest | None, str]:
    """By owner, branch, repository and commit; or why it is unknown.

    One that has moved on is returned where there is no other: whoever posts sees that the head is another.
    """
    name, branch = _full_name(run), run.head_branch
    if not name or not branch:
        return None, ""
    of = f"{name.partition('/')[0]}:{branch}"
    listed = api.call("pull requests of the head", lambda: list(api.repository.get_pulls(state="open", head=of)))
    there = [pull for pull in listed if pull.head.repo and pull.head.repo.full_name == name and pull.head.ref == branch]
    exact = [pull for pull in there if pull.head.sha == head]
    if len(exact) > 1:
        named = {pull.number for pull in run.pull_requests or []}
        exact = [pull for pull in exact if pull.number in named] or exact
    if len(exact) > 1:
        numbers = ", ".join(f"#{pull.number}" for pull in exact)
        return None, f"pull requests {numbers} have the same head: close all but one, and run the job again"
    nearest = (exact or there)[:1]
    return (_pull(nearest[0].number, api), "") if nearest else (None, "")


def _upstream(source: Source, api: Api) -> tuple[str, str]:
    run, branch = source.run, source.base
    if run.event == "merge_group":
        queue = QUEUE_BRANCH.fullmatch(run.head_branch or "")
        return (queue["sha"], branch) if queue else ("", "")
    if not branch:
        if _full_name(run) != api.name or not source.default or not run.head_branch:
            return "", ""
        if run.head_branch == source.default:
            before = _before(source, api)
            return before, short(before)
        if tip(run.head_branch, api) is None:  # a tag, which is measured alone
            return "", ""
        branch = source.default
    return tip(branch, api) or "", branch


def _before(source: Source, api: Api) -> str:
    if source.run.event != "push":
        return ""
    if re.fullmatch(r"[0-9a-f]{40,64}", source.before):
        return source.before
    asked = {"ref": f"refs/heads/{source.run.head_branch}", "per_page": 100}
    moves = api.call("activity of the branch", lambda: api.get(f"/repos/{api.name}/activity", asked))
    before = next((str(move["before"]) for move in moves if move["after"] == source.origin.head_sha), "")
    return before if before.strip("0") else ""
