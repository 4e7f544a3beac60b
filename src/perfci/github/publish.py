"""From measurements that a run left behind to comment, check run and verdict. Runs no code of the change, ever."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from github.ContentFile import ContentFile
from github.File import File

from perfci.github import check, sticky
from perfci.github.accept import acceptance
from perfci.github.api import Api, ApiError, Forbidden, NotFound
from perfci.github.event import Context
from perfci.github.handed import gather
from perfci.github.measured import Heard, left_out, named
from perfci.github.result import FAILED, FAULTY
from perfci.github.source import Source, Wanted, When, brings_nothing, changed_files, jobs, links, locate, retargeted
from perfci.github.standing import standings
from perfci.judge.judge import judge
from perfci.judge.replan import judge_by
from perfci.model.base import UsageError
from perfci.model.limits import mistake
from perfci.model.plan import Declared
from perfci.model.policy import Policy
from perfci.model.policy_text import parse_policy
from perfci.model.publication import ACCEPT_LABEL, Acceptance, Origin, Publication, Shard
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.model.text import count
from perfci.render import comment
from perfci.render.escape import prose

MOST_LIMITS = 1000
"""Of a policy that head brings, where it is read."""
_FAILED = frozenset({"failure", "cancelled", "timed_out", "startup_failure", "stale"})
_BEGUN = frozenset({"requested", "in_progress"})
"""Actions of a `workflow_run` event on a run that has not measured yet."""
_MOVED = frozenset({"opened", "reopened", "synchronize", "edited", "closed"})
"""Actions of a `pull_request_target` event on a pull request that is another change than before."""
_QUIET = frozenset({"unchanged", "skipped"})
_UNJUDGED = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Exceptions of judging and rendering on values that no measurement gives."""

T = TypeVar("T")


@dataclass
class Published:
    """The result of publishing."""

    publication: Publication
    comment: sticky.Posted | None = None
    check: str = ""
    """Address of the check run; empty where it could not be written."""
    notes: list[str] = field(default_factory=list)
    """Things that could not be done, one line each. The verdict stands."""
    waiting: str = ""
    """Why nothing was published: another run is to measure, or measures now. Empty where something was."""
    stale: bool = False
    """Nothing was published, and the checks that are there may say what does not hold any more."""
    unread: str = ""
    """Why the history does not tell where main stood: for the job's log alone."""
    problem: UsageError | None = None
    """The error in base's policy: nothing is judged then, unless somebody accepted the change that fixes it."""

    @property
    def exit_code(self) -> int:
        """The job's exit code."""
        if self.waiting:
            return 3 if self.stale else 0
        return self.publication.exit_code if self.problem is None else self.problem.exit_code


@dataclass(frozen=True)
class _Faulty:
    """Base's policy, or a limit that base declares, when nothing can be judged by it."""

    problem: UsageError
    declared: Declared = field(default_factory=lambda: Declared(whole=False))
    """The declarations of base and head, as far as the measurements tell."""


def publish(context: Context, action: str, wanted: Wanted, api: Api) -> Published:
    """Judge what the run of `context` measured, and say so on GitHub.

    `action`: of the event, such as `labeled`. Raises ApiError where not even the run or base's policy can be found
    out; whatever fails after that is named in the outcome, and its exit code stands.
    """
    if waiting := _waiting(context.origin, action):
        outcome = Published(Publication(suite=wanted.suite, origin=context.origin), waiting=waiting)
        for head in filter(None, (context.left, context.origin.head_sha)):  # what it leaves it holds up no longer
            _conclude(outcome, head, api)
        return outcome
    try:
        source = locate(context, action, wanted, api)
        outcome = Published(Publication(suite=wanted.suite, origin=source.origin), waiting=source.closed)
        if source.closed:
            _conclude(outcome, source.origin.head_sha, api)
            return outcome
        publication = outcome.publication
        faulty: _Faulty | None = None
        if source.doubt:
            publication.missing.append(source.doubt)
        else:
            faulty = _judge(source, publication, wanted, api)
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
    _accept(outcome, source, faulty, wanted, api)
    # A check run of an earlier attempt holds its verdict.
    earlier = _tried(outcome, "checks: write", lambda: check.earlier(wanted.suite, source.origin, api))
    publication.attempts = earlier or []
    if wanted.history is not None:
        publication.standings, outcome.unread = standings(publication, wanted.history)
    text = comment.render_check(publication)
    _told(outcome, _tried(outcome, "checks: write", lambda: check.write(publication, text, api)))
    pull = source.pull
    if pull is not None and wanted.comment != "never":
        marker = sticky.Marker.of(wanted.suite, source.origin)
        create = worth_telling(publication, wanted.comment)
        notes = list(outcome.notes)
        outcome.comment = _tried(
            outcome,
            "pull-requests: write",
            lambda: sticky.post(pull, marker, lambda limit: _with_notes(publication, notes, limit), create, api),
        )
    return outcome


def _waiting(origin: Origin, action: str) -> str:
    """Tell why an event brings nothing to publish; empty where it may."""
    if action in _BEGUN:
        return "the run has only begun"
    if origin.event == "pull_request_target" and action in _MOVED:
        return f"pull request #{origin.pull_request} {'is closed' if action == 'closed' else 'is yet to be measured'}"
    return ""


def _conclude(outcome: Published, head: str, api: Api) -> None:
    """Nothing is published, and yet the checks of a commit may have to say something else than before."""
    suite, base = outcome.publication.suite, outcome.publication.origin.base_ref
    concluded = _tried(outcome, "checks: write", lambda: check.conclude(suite, head, base, api))
    outcome.stale = outcome.stale or concluded is None
    _told(outcome, concluded)


def _told(outcome: Published, concluded: check.Concluded | None) -> None:
    if concluded is not None:
        outcome.check = concluded.url
        for note in concluded.notes:
            _note(outcome, note)


def _judge(source: Source, publication: Publication, wanted: Wanted, api: Api) -> _Faulty | None:
    """Read and judge what was measured. Returns what is wrong with base's policy. Raises ApiError."""
    try:
        policy = _policy(source, wanted.policy, api)
    except UsageError as error:  # a required check that never comes would not say why
        publication.missing.append(str(error))
        return _Faulty(error)
    if policy[0] is None and (source.base or source.default):
        if source.base in ("", source.default):
            publication.adopting = f"{policy[1]} does not exist yet, so that no limit binds this change"
        else:
            publication.missing.append(
                f"{policy[1]} does not exist: a change is judged by the limits of the branch that it goes into: "
                "bring the policy there first"
            )
    if old := retargeted(source, api):
        publication.missing.append(old)
        return None
    return _read(source, policy, publication, wanted, api)


def _accept(outcome: Published, source: Source, faulty: _Faulty | None, wanted: Wanted, api: Api) -> None:
    """Take over what somebody with the right to do so took upon themselves."""
    publication, pull = outcome.publication, source.pull or source.queued
    failed = any(shard.report.exit_code == 1 for shard in publication.shards)
    # Of a merge queue's group the head is another: what counts is what was accepted of the pull request as it is.
    if pull is None or not (failed or faulty) or (source.pull and pull.head.sha != source.origin.head_sha):
        return
    owns = FAILED if faulty is None else FAULTY
    told = _tried(outcome, "pull-requests: read", lambda: acceptance(pull, wanted.suite, owns, api))
    accepted, why = told or (None, "")
    outcome.notes += [why] if why else []
    if faulty is None:
        publication.acceptance = accepted
    else:
        _fixing(outcome, accepted, source, wanted.policy, faulty, api)


def _fixing(
    outcome: Published, accepted: Acceptance | None, source: Source, path: str, faulty: _Faulty, api: Api
) -> None:
    """Let somebody accept that head fixes base's policy, by which nothing can be judged until then."""
    unsound = _tried(outcome, "contents: read", lambda: _unsound(source, path, faulty, api))
    publication = outcome.publication
    if unsound:
        _note(outcome, f"head does not fix base's policy: {unsound}")
    elif unsound is not None and accepted is not None:
        publication.acceptance, publication.unmeasured = accepted, f"base's policy is fixed here: {faulty.problem}"
        publication.shards, publication.missing, outcome.problem = [], [], None
    elif unsound is not None:
        _note(outcome, f"this change fixes base's policy: the label {ACCEPT_LABEL} accepts it")


def _tried(outcome: Published, permission: str, step: Callable[[], T]) -> T | None:
    """Return what `step` returns, or None with a note of what went wrong."""
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


def _note(outcome: Published, text: str) -> None:
    if text not in outcome.notes:
        outcome.notes.append(text)


def _with_notes(publication: Publication, notes: Sequence[str], limit: int) -> str:
    said = "".join(f"\n> ⚠️ {prose(note, 500)}\n" for note in notes[:5])
    return comment.render(publication, limit - len(said)) + said


def worth_telling(publication: Publication, when: When) -> bool:
    """Tell whether there is reason to begin a comment; one that is there is kept true in any case."""
    if when == "always" or publication.exit_code or publication.undecided or publication.acceptance:
        return True
    classes = {row.class_ for shard in publication.shards for row in shard.report.rows}
    return when == "on-change" and not classes <= _QUIET


def _policy(source: Source, path: str, api: Api) -> tuple[Policy | None, str]:
    """Return the policy that counts and where it stands; None where base has none yet. Raises ApiError, UsageError.

    Without a pull request that of the default branch: nobody has reviewed another, and a rule may take the check.
    """
    sha, branch = source.origin.head_sha, source.base or source.default
    if branch:
        # By commit: a tag may have the branch's name. Without the right to read this is what fails, not the file.
        sha = api.call(f"branch {branch}", lambda: api.repository.get_branch(branch).commit.sha)
    where = f"{branch or sha[:10]}:{path}"
    return _parsed(path, sha, where, api), where


def _parsed(path: str, sha: str, where: str, api: Api) -> Policy | None:
    """Return the policy of a commit; None where it has none. Raises ApiError, UsageError."""
    try:
        return parse_policy(api.call(where, lambda: _content(path, sha, api)).decode(), where)
    except NotFound:
        return None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8 text: save it as UTF-8") from None


def _content(path: str, sha: str, api: Api) -> bytes:
    found = api.repository.get_contents(path, ref=sha)
    if not isinstance(found, ContentFile) or found.type != "file" or found.encoding != "base64":
        raise UsageError(f"{path}: is no plain file of at most 1 MB in {sha[:10]}")
    return found.decoded_content


def _unsound(source: Source, path: str, faulty: _Faulty, api: Api) -> str:
    """Return the error in head's policy too; empty where it fixes base's. Raises ApiError."""
    sha = source.origin.head_sha
    where = f"{sha[:10]}:{path}"
    try:
        policy = _parsed(path, sha, where, api)
    except UsageError as error:
        return str(error)
    if policy is None:
        return f"{where} does not exist"
    if len(policy.limits) > MOST_LIMITS:
        return f"{where}: more than {MOST_LIMITS} limits: name cases by globs"
    return mistake(policy, faulty.declared, {}, where)


def _read(
    source: Source, policy: tuple[Policy | None, str], into: Publication, wanted: Wanted, api: Api
) -> _Faulty | None:
    """Read and judge every job's measurements, or tell why they are missing. Return what is wrong with base's
    policy."""
    faulty: _Faulty | None = None
    heard: list[Heard] = []
    broken = False
    gathered = gather(source, wanted.scope, api)
    into.missing += gathered.missing
    for said, name, results, found in gathered.handed:
        try:
            heard.append(Heard.of(results))
            broken = broken or results.error is not None
            declared = results.plan.declared or Declared(whole=False)
            if results.error is not None and results.error.kind == "policy" and policy[0] is not None:
                # The measuring side says so, who may be the change itself: it counts where it is so, in our words.
                text = mistake(policy[0], declared, {}, policy[1])
                faulty = _Faulty(UsageError(text), declared) if text else faulty
            shard = Shard(
                name=name,
                report=_judged(results, *policy, wanted.strict),
                artifacts=[link for one in found for link in links(one, source.origin)],
            )
            _render_all(into.model_copy(update={"shards": [shard]}))
            into.shards.append(shard)
        except UsageError as error:
            faulty = faulty or _Faulty(error, declared)
            remedy = "fix it there, or, where it has moved on, bring this branch up to date"
            into.missing.append(f"{error} (base's limits judge: {remedy})")
        except _UNJUDGED as error:
            into.missing.append(f"{said} cannot be judged ({type(error).__name__})")
    if gathered.unconfirmed and any(shard.report.strict for shard in into.shards):
        into.missing.append(gathered.unconfirmed)
    else:
        into.unconfirmed = gathered.unconfirmed
    if heard and not into.missing and not broken:
        into.missing += left_out(heard, policy[0], wanted.scope)
    try:
        _hear(source, into, gathered.joined, wanted, api)
        if gathered.idle == len(source.artifacts) and not into.missing:
            into.unmeasured = _ignored(source, policy[0], api)
            into.nothing = "" if into.unmeasured else _nothing(source, api)
    except ApiError as error:
        into.missing.append(str(error))
    if gathered.idle and not (into.unmeasured or into.nothing):
        into.missing.append("a job measured nothing, and this change has to be measured")
    if not source.artifacts and not (into.unmeasured or into.nothing):
        into.missing.append(f"run {source.run.id} has no artifact of the suite {named(wanted.suite)}")
    # A run that could be judged, and failed, is not to be accepted as a policy that is fixed.
    return None if any(shard.report.exit_code == 1 for shard in into.shards) else faulty


def _hear(source: Source, into: Publication, joined: int, wanted: Wanted, api: Api) -> None:
    """Check that every job that was to measure did, and count them; `joined` of them give no answer of their own.
    Raises ApiError."""
    listed = jobs(source.run, wanted, api)
    failed = [job for job in listed if job.conclusion in _FAILED]
    into.missing += [f"job {named(job.name)} ended with {job.conclusion}: see its log" for job in failed]
    left = len(source.artifacts)
    into.jobs = max(left, len(failed)) - joined
    if wanted.jobs == "*":  # jobs that do not measure are among them
        return
    done = [job for job in listed if job.conclusion == "success"]
    into.jobs = max(left, len(done) + len(failed)) - joined
    if left < len(done):
        into.missing.append(
            f"of {count(len(done), 'job')} that measured, {left or 'none'} handed over what was measured"
        )


def _render_all(publication: Publication) -> None:
    """Raise here, of one job alone, what its values would raise where everything is said."""
    for render in (comment.render, comment.render_check, comment.render_summary):
        render(publication)


def _ignored(source: Source, policy: Policy | None, api: Api) -> str:
    """Tell why a change needs no measurement, by the policy that counts and by GitHub's list of files; empty: it
    does."""
    if policy is None or not policy.ignore:
        return ""
    files = changed_files(source, api)
    if files is None or not policy.ignores([path for one in files for path in _paths(one)]):
        return ""
    whose = "base" if source.base else "the default branch"
    return f"{whose}'s `ignore` names every changed file ({count(len(files), 'file')})"


def _nothing(source: Source, api: Api) -> str:
    """Tell why there was nothing to compare, by GitHub's own history: base has every commit of head's. Empty: it has
    not."""
    base = brings_nothing(source, api)
    return (
        f"{named(source.origin.head_sha[:10])} has no commit of its own, {named(base)} holds them all" if base else ""
    )


def _paths(file: File) -> list[str]:
    """Of a renamed file the new and the old one."""
    return [path for path in (file.filename, file.previous_filename) if path]


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
