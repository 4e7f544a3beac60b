"""From a run's measurements to comment, check run and verdict. Never runs code of the change."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from github.ContentFile import ContentFile
from github.PullRequest import PullRequest

from perfci.github import sticky
from perfci.github.accept import acceptance
from perfci.github.api import Api, ApiError, Forbidden, NotFound
from perfci.github.check import Checks
from perfci.github.event import Context
from perfci.github.handed import Handed, gather
from perfci.github.measured import left_out, named
from perfci.github.result import FAILED, FAULTY
from perfci.github.settings import Publishing, When
from perfci.github.source import Source, brings_nothing, changed_files, jobs, links, locate, retargeted
from perfci.github.standing import standings
from perfci.history.store import Store
from perfci.judge.judge import judge
from perfci.judge.replan import judge_by
from perfci.model.base import UsageError
from perfci.model.claims import CLAIM_LINE, described
from perfci.model.limits import mistake
from perfci.model.plan import Declared
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE, parse_policy
from perfci.model.publication import ACCEPT_LABEL, Origin, Publication, Shard
from perfci.model.report import Report
from perfci.model.results import Results
from perfci.model.text import count, short
from perfci.render import comment
from perfci.render.escape import prose

MOST_LIMITS = 1000
_FAILED = frozenset({"failure", "cancelled", "timed_out", "startup_failure", "stale"})
_BEGUN = frozenset({"requested", "in_progress"})
"""Before the run has measured."""
_MOVED = frozenset({"opened", "reopened", "synchronize", "edited", "closed"})
"""Actions that change what is proposed."""
_QUIET = frozenset({"unchanged", "skipped"})
_UNJUDGED = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Raised for values that no measurement gives."""

T = TypeVar("T")


@dataclass
class Published:
    """The outcome of publishing."""

    publication: Publication
    comment: sticky.Posted | None = None
    check: str = ""
    """The check run's address; empty where it could not be written."""
    notes: list[str] = field(default_factory=list)
    """What could not be done. The verdict stands."""
    waiting: str = ""
    """Why nothing was published: another run measures."""
    stale: bool = False
    """Nothing was published, and existing checks may not hold any more."""
    unread: str = ""
    """Why the history does not tell where main stood."""
    problem: UsageError | None = None
    """Of base's policy: nothing is judged, unless somebody accepted its fix."""

    @property
    def exit_code(self) -> int:
        """The job's exit code."""
        if self.waiting:
            return 3 if self.stale else 0
        return self.publication.exit_code if self.problem is None else self.problem.exit_code

    def note(self, *texts: str) -> None:
        """Add new notes."""
        self.notes += [text for text in dict.fromkeys(texts) if text and text not in self.notes]

    def tried(self, permission: str, step: Callable[[], T]) -> T | None:
        """Return the result of `step`, or None with a note of the error."""
        try:
            return step()
        except Forbidden as error:
            remedy = f"give the publishing job `permissions: {permission}`"
            if self.publication.origin.fork:
                remedy = f"a fork's own run may only read: publish from `workflow_run`, or {remedy}"
            self.note(f"{error}: {remedy}")
        except ApiError as error:
            self.note(str(error))
        return None


@dataclass(frozen=True)
class _Faulty:
    problem: UsageError
    declared: Declared = field(default_factory=lambda: Declared(whole=False))


def publish(
    context: Context, action: str, inputs: Publishing, api: Api, history: Callable[[], Store] | None = None
) -> Published:
    """Judge what the run of `context` measured, and say so on GitHub.

    `action`: the event's, such as `labeled`; `history`: opens the one there is. Raises ApiError where the run or base's
    policy cannot be read; later errors are in the outcome.
    """
    outcome = Published(
        Publication(suite=inputs.suite, origin=context.origin), waiting=_waiting(context.origin, action)
    )
    publication = outcome.publication
    if outcome.waiting:
        _conclude(outcome, context.previous_head, api)  # what it leaves it holds up no longer
        _conclude(outcome, context.origin.head_sha, api)
        return outcome
    try:
        source = locate(context, action, inputs, api)
        publication.origin, outcome.waiting = source.origin, source.closed
        if source.closed:
            _conclude(outcome, source.origin.head_sha, api)
            return outcome
        faulty = _judge(source, publication, inputs, api)
    except Forbidden as error:
        remedy = "give the publishing job `permissions: {actions: read, contents: read, pull-requests: write}`"
        raise ApiError(f"{error}: {remedy}", error.status) from None
    if source.idle and not (publication.unmeasured or publication.nothing or faulty):
        # An answer now would outrank that of the run that measures, which may have begun before this one.
        outcome.waiting = (
            f"no run of {short(source.origin.head_sha)} has left measurements yet: the one that does, is published"
        )
        return outcome
    _accept(outcome, source, faulty, inputs, api)
    _tell(outcome, source.pull, inputs, api, history)
    return outcome


def _waiting(origin: Origin, action: str) -> str:
    if action in _BEGUN:
        return "the run has only begun"
    if origin.event == "pull_request_target" and action in _MOVED:
        return f"pull request #{origin.pull_request} {'is closed' if action == 'closed' else 'is yet to be measured'}"
    return ""


def _conclude(outcome: Published, head: str, api: Api) -> None:
    """Nothing is published, yet a commit's checks may have to change."""
    if head:
        suite, base = outcome.publication.suite, outcome.publication.origin.base_ref
        notes = outcome.tried("checks: write", lambda: Checks(suite, head, base, api).conclude())
        outcome.stale = outcome.stale or notes is None
        outcome.note(*(notes or []))


def _tell(
    outcome: Published, pull: PullRequest | None, inputs: Publishing, api: Api, history: Callable[[], Store] | None
) -> None:
    publication, origin = outcome.publication, outcome.publication.origin

    def checks() -> Checks:
        return Checks(inputs.suite, origin.head_sha, origin.base_ref, api)

    # A check run of an earlier attempt holds its verdict.
    publication.attempts = outcome.tried("checks: write", lambda: checks().earlier(origin)) or []
    if history is not None:
        publication.standings, outcome.unread = standings(publication, history)
    text = comment.render_check(publication)
    outcome.check, notes = outcome.tried("checks: write", lambda: checks().write(publication, text)) or ("", [])
    outcome.note(*notes)
    if pull is not None and inputs.comment != "never":
        said = "".join(f"\n> ⚠️ {prose(note, 500)}\n" for note in outcome.notes[:5])
        outcome.comment = outcome.tried(
            "pull-requests: write",
            lambda: sticky.post(
                pull,
                sticky.Marker.of(inputs.suite, origin),
                lambda limit: comment.render(publication, limit - len(said)) + said,
                worth_telling(publication, inputs.comment),
                api,
            ),
        )


def _judge(source: Source, publication: Publication, inputs: Publishing, api: Api) -> _Faulty | None:
    if source.doubt:
        publication.missing.append(source.doubt)
        return None
    try:
        policy, where = _policy(source, api)
    except UsageError as error:  # a required check that never comes would not say why
        publication.missing.append(str(error))
        return _Faulty(error)
    if policy is None and (source.base or source.default):
        if source.base in ("", source.default):
            publication.adopting = f"{where} does not exist yet, so that no limit binds this change"
        else:
            publication.missing.append(
                f"{where} does not exist: a change is judged by the limits of the branch that it goes into: "
                "bring the policy there first"
            )
    if old := retargeted(source, api):
        publication.missing.append(old)
        return None
    return _read(source, policy, where, publication, inputs, api)


def _accept(outcome: Published, source: Source, faulty: _Faulty | None, inputs: Publishing, api: Api) -> None:
    publication, pull = outcome.publication, source.pull or source.queued
    outcome.problem = faulty.problem if faulty is not None else None
    failed = any(shard.report.exit_code == 1 for shard in publication.shards)
    # Of a merge queue's group the head is another: what counts is what was accepted of the pull request as it is.
    if pull is None or not (failed or faulty) or (source.pull and pull.head.sha != source.origin.head_sha):
        return
    owns = FAILED if faulty is None else FAULTY
    accepted, why = outcome.tried(
        "pull-requests: read", lambda: acceptance(pull, inputs.suite, owns, api)
    ) or (None, "")  # fmt: skip
    outcome.note(why)
    if faulty is None:
        publication.acceptance = accepted
        return
    unsound = outcome.tried("contents: read", lambda: _unsound(source, faulty, api))
    if unsound:
        outcome.note(f"head does not fix base's policy: {unsound}")
    elif unsound is not None and accepted is None:
        outcome.note(f"this change fixes base's policy: the label {ACCEPT_LABEL} accepts it")
    elif unsound is not None:
        publication.acceptance, publication.unmeasured = accepted, f"base's policy is fixed here: {faulty.problem}"
        publication.shards, publication.missing, outcome.problem = [], [], None


def worth_telling(publication: Publication, when: When) -> bool:
    """Tell whether to begin a comment."""
    if when == "always" or publication.exit_code or publication.undecided or publication.acceptance:
        return True
    if any(shard.report.claims for shard in publication.shards):
        return True
    classes = {row.class_ for shard in publication.shards for row in shard.report.rows}
    return when == "on-change" and not classes <= _QUIET


def _policy(source: Source, api: Api) -> tuple[Policy | None, str]:
    """None where base has none yet.

    Without a pull request the default branch's: nobody has reviewed another.
    """
    sha, branch = source.origin.head_sha, source.base or source.default
    if branch:
        # By commit: a tag may have the branch's name. Without the right to read this is what fails, not the file.
        sha = api.call(f"branch {branch}", lambda: api.repository.get_branch(branch).commit.sha)
    where = f"{branch or short(sha)}:{FILE}"
    return _parsed(sha, where, api), where


def _parsed(sha: str, where: str, api: Api) -> Policy | None:
    try:
        return parse_policy(api.call(where, lambda: _content(sha, api)).decode(), where)
    except NotFound:
        return None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8 text: save it as UTF-8") from None


def _content(sha: str, api: Api) -> bytes:
    file = api.repository.get_contents(FILE, ref=sha)
    if not isinstance(file, ContentFile) or file.type != "file" or file.encoding != "base64":
        raise UsageError(f"{FILE}: is no plain file of at most 1 MB in {short(sha)}")
    return file.decoded_content


def _unsound(source: Source, faulty: _Faulty, api: Api) -> str:
    sha = source.origin.head_sha
    where = f"{short(sha)}:{FILE}"
    try:
        policy = _parsed(sha, where, api)
    except UsageError as error:
        return str(error)
    if policy is None:
        return f"{where} does not exist"
    if len(policy.limits) > MOST_LIMITS:
        return f"{where}: more than {MOST_LIMITS} limits: name cases by globs"
    return mistake(policy, faulty.declared, {}, where)


def _read(
    source: Source, policy: Policy | None, where: str, into: Publication, inputs: Publishing, api: Api
) -> _Faulty | None:
    gathered = gather(source, inputs, api)
    into.missing += gathered.missing
    faults = [_judged(handed, policy, where, source, into) for handed in gathered.handed]
    if gathered.unconfirmed and any(shard.report.strict for shard in into.shards):
        into.missing.append(gathered.unconfirmed)
    else:
        into.unconfirmed = gathered.unconfirmed
    measured = [handed.results for handed in gathered.handed]
    if measured and not into.missing and not any(results.error for results in measured):
        into.missing += left_out(measured, policy, inputs)
    try:
        _hear(source, into, gathered.joined, inputs, api)
        if gathered.idle == len(source.artifacts) and not into.missing:
            into.unmeasured = _ignored(source, policy, api)
            into.nothing = "" if into.unmeasured else _without_own_commits(source, api)
    except ApiError as error:
        into.missing.append(str(error))
    if gathered.idle and not (into.unmeasured or into.nothing):
        into.missing.append("a job measured nothing, and this change has to be measured")
    if not source.artifacts and not (into.unmeasured or into.nothing):
        into.missing.append(f"run {source.run.id} has no artifact of the suite {named(inputs.suite)}")
    # A run that could be judged, and failed, is not to be accepted as a policy that is fixed.
    failed = any(shard.report.exit_code == 1 for shard in into.shards)
    return None if failed else next(filter(None, faults), None)


def _judged(handed: Handed, policy: Policy | None, where: str, source: Source, into: Publication) -> _Faulty | None:
    results, origin, faulty = handed.results, source.origin, None
    declared = results.plan.declared or Declared(whole=False)
    try:
        if results.error is not None and results.error.kind == "policy" and policy is not None:
            # The measuring side says so, who may be the change itself: it counts where it is so, in our words.
            text = mistake(policy, declared, {}, where)
            faulty = _Faulty(UsageError(text), declared) if text else None
        links_ = [link for artifact in handed.artifacts for link in links(artifact, origin)]
        shard = Shard(name=handed.name, report=_report(results, policy, where), artifacts=links_)
        _answer_claims(shard.report, results, source)
        alone = into.model_copy(update={"shards": [shard]})
        for render in (comment.render, comment.render_check, comment.render_summary):
            render(alone)  # raises here, of one job alone, what its values would raise where everything is said
        into.shards.append(shard)
    except UsageError as error:
        remedy = "fix it there, or, where it has moved on, bring this branch up to date"
        into.missing.append(f"{error} (base's limits judge: {remedy})")
        return faulty or _Faulty(error, declared)
    except _UNJUDGED as error:
        into.missing.append(f"{handed.said} cannot be judged ({type(error).__name__})")
    return faulty


def _answer_claims(report: Report, results: Results, source: Source) -> None:
    """What a pull request's description claims now is answered, and a fork's by its own numbers."""
    claims, pull = results.plan.claims, source.pull
    body = (pull.body or "") if pull is not None else ""
    now = described(body)
    if claims is not None and now != claims.described:
        report.claims = []
    if now and (claims is None or now != claims.described):
        report.notes.insert(0, f"claimed, and not measured: {now}")
    if not now and CLAIM_LINE in body.lower():
        report.notes.insert(
            0, f"the description claims nothing that is read: give one line, `{CLAIM_LINE} softmax* 10%`"
        )
    if source.origin.fork:
        for row in report.claims:
            row.reason += ", by its own numbers"


def _hear(source: Source, into: Publication, joined: int, inputs: Publishing, api: Api) -> None:
    """`joined` of them have no answer of their own."""
    listed = jobs(source.run, inputs, api)
    failed = [job for job in listed if job.conclusion in _FAILED]
    into.missing += [f"job {named(job.name)} ended with {job.conclusion}: see its log" for job in failed]
    left = len(source.artifacts)
    # Of all jobs those that do not measure are among them.
    done = 0 if inputs.jobs == "*" else sum(job.conclusion == "success" for job in listed)
    into.jobs = max(left, done + len(failed)) - joined
    if left < done:
        into.missing.append(f"of {count(done, 'job')} that measured, {left or 'none'} handed over what was measured")


def _ignored(source: Source, policy: Policy | None, api: Api) -> str:
    if policy is None or not policy.ignore:
        return ""
    files = changed_files(source, api)
    # Of a renamed file the new and the old one.
    paths = [path for file in files or () for path in (file.filename, file.previous_filename) if path]
    if files is None or not policy.ignores(paths):
        return ""
    whose = "base" if source.base else "the default branch"
    return f"{whose}'s `ignore` names every changed file ({count(len(files), 'file')})"


def _without_own_commits(source: Source, api: Api) -> str:
    base = brings_nothing(source, api)
    return (
        f"{named(short(source.origin.head_sha))} has no commit of its own, {named(base)} holds them all" if base else ""
    )


def _report(results: Results, policy: Policy | None, where: str) -> Report:
    if policy is None:
        report = judge(results)
        report.notes.append(f"{where} does not exist yet: judged by the limits that the measured commit brings")
        return report
    report = judge_by(policy, results, where=where)
    report.policy_from = "base"
    if report.exploratory:
        report.notes.append(f"The limits are those of {where} as it is now.")
    return report
