"""From a workflow's event to what is measured against what. The payload is untrusted text."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from perfci.model.base import UsageError
from perfci.model.claims import described
from perfci.model.publication import Origin

_COPIED = re.compile(r"refs/heads/pull-request/([1-9][0-9]{0,9})")
"""Branches of copy-pr-bot: a pull request's head, its author unknown."""
QUEUE_BRANCH = re.compile(r"gh-readonly-queue/(?P<base>.+)/pr-(?P<pull>[1-9][0-9]{0,9})-(?P<sha>[0-9a-f]{40,64})")
"""A merge queue's branch: the target, the last pull request, the commit that it is put on."""


def _named(text: str) -> str:
    # Forbidden by `git check-ref-format`, as far as it could do harm; shells and Markdown are met by escaping.
    if ".." in text or "@{" in text or re.search(r"[\x00-\x20\x7f~^:?*\[\\]", text):
        raise ValueError("is no name of a branch or tag")
    return text


def _ref(text: str) -> str:
    if text.startswith("-"):
        raise ValueError("would be taken for an option of git's")
    return _named(text)


Sha = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
Ref = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_ref)]
Name = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_named)]
"""Of a head; a stranger's may begin with a hyphen."""
Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$", max_length=200)]
Number = Annotated[int, Field(ge=1, le=2**53)]


class _Untrusted(BaseModel):
    """Only needed fields, with strict types."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Repository(_Untrusted):
    full_name: Slug
    default_branch: Ref


class _HeadRepository(_Untrusted):
    full_name: Slug


class _Head(_Untrusted):
    ref: Name
    sha: Sha
    repo: _HeadRepository | None = None
    """None for a deleted fork."""


class _Base(_Untrusted):
    ref: Ref
    sha: Sha


class _PullRequest(_Untrusted):
    number: Number
    head: _Head
    base: _Base
    body: str | None = None


class _PullRequestEvent(_Untrusted):
    pull_request: _PullRequest
    repository: _Repository
    before: Sha | None = None
    """The head until this push."""


class _PushEvent(_Untrusted):
    ref: Ref
    before: Sha
    after: Sha
    repository: _Repository


class _Group(_Untrusted):
    head_sha: Sha
    head_ref: Ref
    base_sha: Sha
    base_ref: Ref


class _MergeGroupEvent(_Untrusted):
    merge_group: _Group
    repository: _Repository


class _Run(_Untrusted):
    id: Number
    run_attempt: Number
    event: Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")]
    head_sha: Sha
    head_branch: Name | None = None
    head_repository: _HeadRepository | None = None


class _WorkflowRunEvent(_Untrusted):
    workflow_run: _Run
    repository: _Repository


class _OtherEvent(_Untrusted):
    repository: _Repository | None = None
    """A schedule may have none."""


class Surroundings(BaseModel):
    """The runner's environment."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True)

    GITHUB_REPOSITORY: Slug
    GITHUB_SHA: Sha
    GITHUB_REF: Ref
    GITHUB_RUN_ID: Number
    GITHUB_RUN_ATTEMPT: Number = 1
    GITHUB_SERVER_URL: Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:-]+$")] = "https://github.com"


def surroundings(env: Mapping[str, str]) -> Surroundings | None:
    """Return the runner's environment; None outside GitHub Actions."""
    if env.get("GITHUB_ACTIONS") != "true":
        return None
    return _read(Surroundings, env, "environment")


@dataclass(frozen=True)
class Context:
    """The change to measure."""

    origin: Origin
    base: str
    """A commit, or a branch as `refs/heads/main`. Empty: absolute limits only."""
    merge_sha: str | None
    """GitHub's merge commit of the pull request's head and base, which actions/checkout takes."""
    trusted: bool
    """The code's authors may write to the repository; False where unknown."""
    privileged: bool
    """The event carries the base repository's rights: a pull request's code must not run."""
    default: str = ""
    """The default branch; empty where unknown."""
    previous_head: str = ""
    """The pull request's head until this push; empty for any other event."""
    claim: str = ""
    """What the pull request's description claims, as `described`."""


def load(env: Mapping[str, str]) -> Context:
    """Return the context of the event whose payload the runner left in a file. Raises UsageError."""
    name, path = env.get("GITHUB_EVENT_NAME"), env.get("GITHUB_EVENT_PATH")
    if not name or not path:
        missing = "GITHUB_EVENT_PATH" if name else "GITHUB_EVENT_NAME"
        raise UsageError(f"{missing}: is not set: this runs in GitHub Actions; elsewhere use perfci compare")
    try:
        payload = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"GITHUB_EVENT_PATH: {path}: cannot be read ({error})") from None
    if not isinstance(payload, dict):
        raise UsageError(f"GITHUB_EVENT_PATH: {path}: is no event: it must hold a JSON object")
    return context(name, payload, env)


def context(name: str, payload: Mapping[str, Any], env: Mapping[str, str]) -> Context:
    """Return the context of the event `name`; `env` is the runner's. Pure.

    Raises UsageError for an unsupported event, and for what GitHub does not document so.
    """
    reader = _READERS.get(name)
    if reader is None:
        raise UsageError(f"event {name[:60]!r}: is not supported: start the workflow on {', '.join(MEASURING)}")
    return reader(name, payload, _read(Surroundings, env, "environment"))


def why_stranger(context: Context) -> str:
    """Tell why the code's author may have no write access; empty where all have it.

    Stricter than `trusted`: a merge queue's commit may hold a fork's pull request.
    """
    origin = context.origin
    if origin.event == "merge_group":
        return "a merge queue's commit may hold a fork's code"
    if origin.fork:
        return f"pull request #{origin.pull_request} is of a fork"
    return "" if context.trusted else f"nobody can tell whose code {origin.head_ref} is"


def require_own(context: Context) -> None:
    """Raise UsageError unless the code's authors may write to the repository."""
    if why := why_stranger(context):
        raise UsageError(
            f"publish: here: {why}, and a stranger's code must not run beside a token that may write: measure it with "
            'publish: "true" in a workflow of its own, and publish from workflow_run: docs/github.md, "One job"'
        )


def of_default_branch(context: Context, env: Mapping[str, str]) -> bool:
    """Tell whether this is the default branch, with no unmerged change."""
    kinds = ("push", "schedule", "workflow_dispatch")
    ref = f"refs/heads/{context.default}"
    return context.origin.event in kinds and bool(context.default) and env.get("GITHUB_REF") == ref and context.trusted


Model = TypeVar("Model", bound=BaseModel)


def _read(model: type[Model], data: Mapping[str, Any], where: str) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        missing = f"{where}: {field} is missing"
        text = missing if first["type"] == "missing" else f"{where}: {field} does not fit: {first['msg']}"
        raise UsageError(f"{text}: perfci ci and perfci publish run in GitHub Actions") from None


def _pull_request(name: str, payload: Mapping[str, Any], env: Surroundings) -> Context:
    event = _read(_PullRequestEvent, payload, name)
    pull, repository = event.pull_request, event.repository.full_name
    head = pull.head.repo.full_name if pull.head.repo else ""
    more = {"pull_request": pull.number, "base_ref": pull.base.ref, "fork": head != repository}
    origin = _origin(env, name, repository, pull.head.sha, pull.head.ref, **more)
    privileged = name == "pull_request_target"
    merge = None if privileged or pull.head.sha == env.GITHUB_SHA else env.GITHUB_SHA
    default = event.repository.default_branch
    before, claim = event.before or "", described(pull.body or "")
    return Context(origin, pull.base.sha, merge, head == repository, privileged, default, before, claim)


def _push(name: str, payload: Mapping[str, Any], env: Surroundings) -> Context:
    event = _read(_PushEvent, payload, name)
    repository, default = event.repository.full_name, f"refs/heads/{event.repository.default_branch}"
    if _is_null_hash(event.after):
        raise UsageError(f"push: {event.ref} was deleted: there is nothing to measure")
    if event.ref == default:
        base = "" if _is_null_hash(event.before) else event.before
    else:
        base = default if event.ref.startswith("refs/heads/") else ""
    return _of_branch(_origin(env, name, repository, event.after, event.ref), event.ref, base, default)


def _merge_group(name: str, payload: Mapping[str, Any], env: Surroundings) -> Context:
    event = _read(_MergeGroupEvent, payload, name)
    group, repository = event.merge_group, event.repository.full_name
    queued = QUEUE_BRANCH.fullmatch(_short(group.head_ref))
    more = {"pull_request": int(queued["pull"]) if queued else None, "base_ref": _short(group.base_ref)}
    origin = _origin(env, name, repository, group.head_sha, group.head_ref, **more)
    default = event.repository.default_branch
    return Context(origin, group.base_sha, None, trusted=True, privileged=False, default=default)


def _workflow_run(name: str, payload: Mapping[str, Any], env: Surroundings) -> Context:
    event = _read(_WorkflowRunEvent, payload, name)
    run, repository = event.workflow_run, event.repository.full_name
    head = run.head_repository.full_name if run.head_repository else ""
    branch = run.head_branch or ""
    copied = _COPIED.fullmatch(f"refs/heads/{branch}") if run.event == "push" and head == repository else None
    # `workflow_run.pull_requests` is empty for forks, and may name several: the API finds the right one.
    ran = env.model_copy(update={"GITHUB_RUN_ID": run.id, "GITHUB_RUN_ATTEMPT": run.run_attempt})
    more = {"pull_request": int(copied[1]) if copied else None, "fork": head != repository}
    origin = _origin(ran, run.event, repository, run.head_sha, branch, **more)
    trusted, default = head == repository and not copied, event.repository.default_branch
    return Context(origin, "", None, trusted=trusted, privileged=True, default=default)


def _other(name: str, payload: Mapping[str, Any], env: Surroundings) -> Context:
    event = _read(_OtherEvent, payload, name)
    repository = event.repository.full_name if event.repository else env.GITHUB_REPOSITORY
    default = f"refs/heads/{event.repository.default_branch}" if event.repository else env.GITHUB_REF
    base = default if env.GITHUB_REF.startswith("refs/heads/") and default != env.GITHUB_REF else ""
    return _of_branch(_origin(env, name, repository, env.GITHUB_SHA, env.GITHUB_REF), env.GITHUB_REF, base, default)


MEASURING = ("pull_request", "push", "merge_group", "workflow_dispatch", "schedule")
"""The publishing action takes `workflow_run`, too, after one of these."""
_READERS: dict[str, Callable[[str, Mapping[str, Any], Surroundings], Context]] = {
    "pull_request": _pull_request,
    "push": _push,
    "merge_group": _merge_group,
    "workflow_dispatch": _other,
    "schedule": _other,
    "workflow_run": _workflow_run,
    "pull_request_target": _pull_request,
}


def _of_branch(origin: Origin, ref: str, base: str, default: str) -> Context:
    copied = _COPIED.fullmatch(ref)
    update = {"pull_request": int(copied[1]) if copied else None, "base_ref": _short(default) if base else ""}
    origin = origin.model_copy(update=update)
    return Context(origin, base, None, trusted=not copied, privileged=False, default=_short(default))


def _origin(env: Surroundings, event: str, repository: str, sha: str, ref: str, **more: Any) -> Origin:
    return Origin(
        repository=repository,
        event=event,
        head_sha=sha,
        head_ref=_short(ref),
        run_id=env.GITHUB_RUN_ID,
        attempt=env.GITHUB_RUN_ATTEMPT,
        run_url=f"{env.GITHUB_SERVER_URL}/{repository}/actions/runs/{env.GITHUB_RUN_ID}"
        f"/attempts/{env.GITHUB_RUN_ATTEMPT}",
        **more,
    )


def _short(ref: str) -> str:
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


def _is_null_hash(sha: str) -> bool:
    return set(sha) == {"0"}
