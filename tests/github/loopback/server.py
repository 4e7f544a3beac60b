"""A GitHub on loopback, as far as perfci needs one: real HTTP, state, and pages.

Every request and response is held against GitHub's own OpenAPI description (`openapi.json`, cut by `trim_openapi.py`)
and GraphQL schema; what does not fit ends up in `misfits`, which the fixture asserts to be empty.
"""

import base64
import copy
import functools
import itertools
import json
import re
import threading
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

from graphql import build_schema, graphql_sync
from openapi_schema_validator import OAS30ReadValidator, OAS30WriteValidator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    """A nullable enumeration allows null, which the description forgets to list (OpenAPI 3.0.3, proposal 2019-10-31)."""
    if node.get("nullable") is True and None not in node.get("enum", [None]):
        node["enum"].append(None)
    return node


SPEC = json.loads((Path(__file__).parent / "openapi.json").read_text(), object_hook=_nullable)
REGISTRY = Registry().with_resource("github", Resource.from_contents(SPEC, default_specification=DRAFT202012))
SDL = """
type Query { viewer: User! }
type User { login: String! }
type Mutation { minimizeComment(input: MinimizeCommentInput!): MinimizeCommentPayload }
enum ReportedContentClassifiers { ABUSE DUPLICATE OFF_TOPIC OUTDATED RESOLVED SPAM }
input MinimizeCommentInput { classifier: ReportedContentClassifiers! clientMutationId: String subjectId: ID! }
type MinimizeCommentPayload { clientMutationId: String minimizedComment: Minimizable }
type Minimizable { isMinimized: Boolean! minimizedReason: String }
"""
"""Of @octokit/graphql-schema 15.26.1, what is used; `Minimizable` is an interface there."""
SCHEMA = build_schema(SDL)
REPOSITORY = "octo/kernels"
LONGEST_COMMENT = 65_536
FIRST_ISSUE = 500
"""Lower numbers are pull requests."""
BOT = "github-actions[bot]"
PERMISSIONS = [
    (rf"/repos/{REPOSITORY}/issues(/5\d\d(/comments)?)?$", "issues"),
    (rf"/repos/{REPOSITORY}/actions/", "actions"),
    (rf"/repos/{REPOSITORY}/(commits/[^/]+/)?check-runs", "checks"),
    (rf"/repos/{REPOSITORY}/(issues|pulls)", "pull-requests"),
    (rf"/repos/{REPOSITORY}/(contents|git|branches|compare|commits|activity)\b", "contents"),
]
"""Beginning of a path → what of `permissions:` it needs; others need none."""
MAIN, ROOT = "b" * 40, "1" * 40
"""Where `main` stands, and the commit before it, the first of all."""
START = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


def example(name: str) -> Any:
    return copy.deepcopy(SPEC["components"]["examples"][name]["value"])


def iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def user(login: str) -> dict[str, Any]:
    kind = "Bot" if login.endswith("]") else "User"
    return example("issue-comment")["user"] | {"login": login, "id": sum(login.encode()), "type": kind}


def repository(full_name: str) -> dict[str, Any]:
    owner, name = full_name.split("/")
    made = example("pull-request")["base"]["repo"]
    return made | {"full_name": full_name, "name": name, "owner": user(owner)}


@dataclass
class Pull:
    number: int
    head: str
    head_ref: str = "faster"
    base_ref: str = "main"
    head_repository: str = REPOSITORY
    body: str = ""
    labels: list[str] = field(default_factory=list)
    state: str = "open"
    events: list[dict[str, Any]] = field(default_factory=list)
    created: datetime = START


@dataclass
class Run:
    id: int
    head: str
    branch: str = "faster"
    event: str = "pull_request"
    attempt: int = 1
    conclusion: str | None = "success"
    head_repository: str | None = REPOSITORY
    created: datetime = START + timedelta(minutes=1)
    jobs: dict[str, str | None] = field(default_factory=lambda: {"measure": "success"})


@dataclass
class Stored:
    id: int
    name: str
    run: int
    head: str
    content: bytes
    expired: bool = False


@dataclass
class Answer:
    """An answer that a test gives in place of the server's, `times` often."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    delay: float = 0.0
    late: bool = False
    """Do what was asked for first, and answer so only then."""


class GitHub:
    """The state, and what was asked of it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pulls: dict[int, Pull] = {}
        self.runs: dict[int, Run] = {}
        self.artifacts: list[Stored] = []
        self.comments: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.files: dict[tuple[str, str], bytes] = {}
        self.branches: dict[str, str] = {"main": MAIN}
        self.protected: set[str] = set()
        """Branches with a protection of their own."""
        self.rules: dict[str, list[str]] = {}
        """Branch → types of the rules that rulesets have for it."""
        self.commits: dict[str, list[str]] = {}
        """Commit → its parents; of all others it is MAIN."""
        self.committers: dict[str, tuple[str, bool]] = {}
        """Commit → its committer's address, and whether it is signed so that GitHub calls it verified."""
        self.trees: dict[str, str] = {}
        """Commit → its tree; every other commit has one of its own."""
        self.permissions: dict[str, str] = {"maintainer": "write", "stranger": "read", "author": "read"}
        self.pushes: dict[str, tuple[str, datetime]] = {}
        self.before: dict[str, str] = {}
        """Pushed commit → where its branch stood before; all others are new branches."""
        self.minimized: dict[str, str] = {}
        self.longest = LONGEST_COMMENT
        self.changed: list[str] = ["kernels/suite.py"]
        self.renamed: list[tuple[str, str]] = []
        self.readonly: set[str] = set()
        """Of `comments`, `checks`, `issues`, `minimize`: what the token may not."""
        self.granted: dict[str, str] | None = None
        """`permissions:` of the job whose token it is, each `read` or `write`; None: all."""
        self.faults: list[tuple[str, str, Answer]] = []
        """Method, pattern of the path, answer."""
        self.misfits: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.blob_headers: list[dict[str, str]] = []
        self.inbox: Path | None = None
        """A folder in which runs leave artifacts, as `RUN--NAME.zip`."""
        self.hook: Callable[[str, str], None] | None = None
        """Called before a request is answered."""
        self.now = START + timedelta(minutes=5)
        """When checks begin."""
        self.ids = itertools.count(1000)
        self.api = self.blobs = ""

    # Set up by tests

    def pull(self, number: int = 7, head: str = "a" * 40, **fields: Any) -> Pull:
        self.pulls[number] = made = Pull(number, head, **fields)
        self.pushes[f"{made.head_repository}:refs/heads/{made.head_ref}"] = (head, START)
        return made

    def run(self, ident: int = 100, head: str = "a" * 40, **fields: Any) -> Run:
        self.runs[ident] = made = Run(ident, head, **fields)
        return made

    def upload(self, run: Run, content: bytes, name: str = "perfci--measure--0--1", **fields: Any) -> Stored:
        made = Stored(next(self.ids), name, run.id, run.head, content, **fields)
        self.artifacts.append(made)
        return made

    def receive(self) -> None:
        """Take what runs have left."""
        for path in sorted(self.inbox.glob("*.zip")) if self.inbox else ():
            run, _, name = path.stem.partition("--")
            if not any((one.run, one.name) == (int(run), name) for one in self.artifacts):
                self.upload(self.runs[int(run)], path.read_bytes(), name)

    def comment(self, number: int, login: str, body: str) -> dict[str, Any]:
        with self.lock:
            ident = next(self.ids)
            made = example("issue-comment") | {
                "id": ident, "node_id": f"IC_{ident}", "body": body, "user": user(login),
                "url": f"{self.api}/repos/{REPOSITORY}/issues/comments/{ident}",
                "issue_url": f"{self.api}/repos/{REPOSITORY}/issues/{number}",
                "html_url": f"https://github.com/{REPOSITORY}/pull/{number}#issuecomment-{ident}",
            }  # fmt: skip
            self.comments.append(made)
            return made

    def issue(self, login: str, title: str, body: str, state: str = "open") -> dict[str, Any]:
        with self.lock:
            number = FIRST_ISSUE + len(self.issues)
            url = f"{self.api}/repos/{REPOSITORY}/issues/{number}"
            made = {k: v for k, v in example("issue").items() if k not in ("pull_request", "closed_by")}
            made |= {
                "id": next(self.ids), "node_id": f"I_{number}", "number": number, "title": title, "body": body,
                "user": user(login), "state": state, "state_reason": None, "closed_at": None, "comments": 0,
                "url": url, "comments_url": f"{url}/comments", "events_url": f"{url}/events",
                "html_url": f"https://github.com/{REPOSITORY}/issues/{number}",
            }  # fmt: skip
            self.issues.append(made)
            return made

    def label(self, pull: Pull, name: str, by: str, at: datetime) -> None:
        pull.labels.append(name)
        self._event(pull, "labeled", by, at, label={"name": name, "color": "ededed"})

    def history(self, sha: str) -> set[str]:
        """A commit and all before it."""
        found, waiting = set(), [sha]
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self.parents(one)
        return found

    def parents(self, sha: str) -> list[str]:
        return self.commits.get(sha, {ROOT: [], MAIN: [ROOT]}.get(sha, [MAIN]))

    def merge(self, pull: Pull) -> str | None:
        """GitHub's own merge of a pull request with where its base stands; None where none was made."""
        asked = [self.branches[pull.base_ref], pull.head]
        return next((sha for sha, parents in self.commits.items() if parents == asked), None)

    def fork(self, one: str, other: str) -> str:
        """Where two histories part: the commit of both that has most before it."""
        return max(self.history(one) & self.history(other), key=lambda sha: len(self.history(sha)))

    def retarget(self, pull: Pull, base: str, at: datetime) -> None:
        pull.base_ref = base
        self._event(pull, "base_ref_changed", "author", at)

    def _event(self, pull: Pull, kind: str, by: str, at: datetime, **fields: Any) -> None:
        made = {"id": next(self.ids), "event": kind, "actor": user(by), "created_at": iso(at), **fields}
        pull.events.append(example("issue-event-for-issue-items")[0] | made)

    def check(self, name: str, head: str, app: str, conclusion: str = "success") -> dict[str, Any]:
        """A check that somebody else wrote."""
        made = example("check-run")
        made |= {
            "id": next(self.ids), "given": [], "name": name, "head_sha": head, "conclusion": conclusion,
            "app": made["app"] | {"id": 77, "slug": app, "name": app},
        }  # fmt: skip
        self.checks.append(made)
        return made

    def fail(self, method: str, path: str, answer: Answer) -> None:
        self.faults.append((method, path, answer))

    def fault(self, method: str, path: str) -> Answer | None:
        with self.lock:
            for known, pattern, answer in self.faults:
                if answer.times and known == method and re.search(pattern, path):
                    answer.times -= 1
                    return answer
        return None

    def own_comments(self, suite: str = "perfci") -> list[str]:
        """Bodies of the bot's comments that tell of a suite."""
        mark = f"<!-- perfci suite={suite} "
        return [one["body"] for one in self.comments if one["user"]["login"] == BOT and mark in one["body"]]

    def allows(self, method: str, path: str) -> bool:
        """Tell whether the token may, by GitHub's "Permissions required for GitHub Apps"; of a private repository."""
        if self.granted is None:
            return True
        needed = next((name for pattern, name in PERMISSIONS if re.match(pattern, path)), None)
        return needed is None or self.granted.get(needed) in ({"read", "write"} if method == "GET" else {"write"})

    # Answers

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any, dict[str, str]]:
        for pattern, known, handler in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and known == method:
                words = {name: urllib.parse.unquote(word) for name, word in found.groupdict().items()}
                with self.lock:
                    answer = handler(self, words, query, body)
                return answer.page(f"{self.api}{path}", query) if isinstance(answer, Rows) else answer
        self.misfits.append(f"{method} {path}: nobody answers that")
        return 404, {"message": "Not Found"}, {}

    def graphql(self, body: Any) -> tuple[int, Any, dict[str, str]]:
        def minimize(_: Any, input: dict[str, Any]) -> dict[str, Any]:
            if "minimize" in self.readonly or not self.allows("POST", f"/repos/{REPOSITORY}/pulls"):
                raise PermissionError("Resource not accessible by integration")
            self.minimized[input["subjectId"]] = input["classifier"]
            return {"clientMutationId": input.get("clientMutationId"), "minimizedComment": {"isMinimized": True}}

        root = {"viewer": {"login": BOT}, "minimizeComment": minimize}
        done = graphql_sync(SCHEMA, body["query"], root, variable_values=body.get("variables"))
        for error in done.errors or []:
            if not isinstance(error.original_error, PermissionError):
                self.misfits.append(f"GraphQL: {error.message}: {body}")
        return 200, done.formatted, {}


@dataclass
class Rows:
    """What comes in pages, of an object under `key`."""

    rows: list[Any]
    key: str = ""

    def page(self, url: str, query: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        size, page = int(query.get("per_page", "30")), int(query.get("page", "1"))
        shown = self.rows[(page - 1) * size : page * size]
        headers = {}
        if page * size < len(self.rows):
            more = urllib.parse.urlencode(query | {"page": str(page + 1)})
            headers["Link"] = f'<{url}?{more}>; rel="next"'
        return 200, ({"total_count": len(self.rows), self.key: shown} if self.key else shown), headers


def _run_json(hub: GitHub, run: Run) -> dict[str, Any]:
    url = f"{hub.api}/repos/{REPOSITORY}/actions/runs/{run.id}"
    made = example("workflow-run")
    minimal = made["head_repository"]
    head = None
    if run.head_repository:
        owner, name = run.head_repository.split("/")
        head = minimal | {"full_name": run.head_repository, "name": name, "owner": user(owner)}
    return made | {
        "id": run.id, "head_sha": run.head, "head_branch": run.branch, "event": run.event, "run_attempt": run.attempt,
        "status": "completed" if run.conclusion else "in_progress", "conclusion": run.conclusion, "url": url,
        "html_url": f"https://github.com/{REPOSITORY}/actions/runs/{run.id}", "artifacts_url": f"{url}/artifacts",
        "created_at": iso(run.created), "jobs_url": f"{url}/jobs", "head_repository": head, "pull_requests": [],
    }  # fmt: skip


def _pull_json(hub: GitHub, pull: Pull, kind: str) -> dict[str, Any]:
    made = example("pull-request-simple-items")[0] if kind == "simple" else example("pull-request")
    owner = pull.head_repository.split("/")[0]
    url = f"{hub.api}/repos/{REPOSITORY}/pulls/{pull.number}"
    label = made["labels"][0]
    return made | {
        "number": pull.number, "state": pull.state, "body": pull.body, "url": url, "created_at": iso(pull.created),
        "issue_url": f"{hub.api}/repos/{REPOSITORY}/issues/{pull.number}",
        "labels": [label | {"name": name} for name in pull.labels], "requested_teams": [], "merge_commit_sha": hub.merge(pull),
        "head": made["head"] | {"sha": pull.head, "ref": pull.head_ref, "label": f"{owner}:{pull.head_ref}", "repo": repository(pull.head_repository)},
        "base": made["base"] | {"sha": hub.branches[pull.base_ref], "ref": pull.base_ref, "repo": repository(REPOSITORY)},
    }  # fmt: skip


def _artifact_json(hub: GitHub, one: Stored) -> dict[str, Any]:
    made = example("artifact-paginated")["artifacts"][0]
    url = f"{hub.api}/repos/{REPOSITORY}/actions/artifacts/{one.id}"
    return made | {
        "id": one.id, "name": one.name, "size_in_bytes": len(one.content), "expired": one.expired, "url": url,
        "archive_download_url": f"{url}/zip", "expires_at": iso(START + timedelta(days=90)),
        "workflow_run": made["workflow_run"] | {"id": one.run, "head_sha": one.head},
    }  # fmt: skip


Handler = Callable[[GitHub, dict[str, str], dict[str, str], Any], tuple[int, Any, dict[str, str]] | Rows]
ROUTES: list[tuple[str, str, Handler]] = []


def _error(status: int, message: str) -> tuple[int, Any, dict[str, str]]:
    return status, {"message": message, "documentation_url": "https://docs.github.com/rest", "status": f"{status}"}, {}


MISSING = _error(404, "Not Found")
DENIED = _error(403, "Resource not accessible by integration")


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    def word(found: re.Match[str]) -> str:
        return rf"(?P<{found[1]}>{'.+' if found[1] == 'path' else '[^/]+'})"

    pattern = re.sub(r"\{(\w+)\}", word, f"/repos/{{owner}}/{{repo}}{path}")

    def add(handler: Handler) -> Handler:
        ROUTES.append((pattern, method, handler))
        return handler

    return add


@route("GET", "/actions/runs")
def _(hub, path, query, body):
    rows = [_run_json(hub, run) for run in hub.runs.values() if query.get("head_sha") in (None, run.head)]
    return Rows(rows[::-1], "workflow_runs")


@route("GET", "/actions/runs/{id}")
def _(hub, path, query, body):
    run = hub.runs.get(int(path["id"]))
    return (200, _run_json(hub, run), {}) if run else MISSING


@route("GET", "/actions/runs/{id}/artifacts")
def _(hub, path, query, body):
    hub.receive()
    return Rows([_artifact_json(hub, one) for one in hub.artifacts if one.run == int(path["id"])], "artifacts")


@route("GET", "/actions/runs/{id}/jobs")
def _(hub, path, query, body):
    run = hub.runs[int(path["id"])]
    made = example("job-paginated")["jobs"][0]
    rows = [
        made | {"id": i, "name": name, "run_id": run.id, "created_at": iso(START), "conclusion": end, "status": "completed" if end else "in_progress"}
        for i, (name, end) in enumerate(run.jobs.items())
    ]  # fmt: skip
    return Rows(rows, "jobs")


@route("GET", "/actions/artifacts/{id}/{format}")
def _(hub, path, query, body):
    one = next((one for one in hub.artifacts if one.id == int(path["id"])), None)
    if one is None:
        return MISSING
    if one.expired:
        return _error(410, "Artifact has expired")
    return 302, None, {"Location": f"{hub.blobs}/{one.id}?sig=SECRET-SIGNATURE"}


@route("GET", "/activity")
def _(hub, path, query, body):
    found = hub.pushes.get(f"{path['owner']}/{path['repo']}:{query['ref']}")
    if found is None:
        return 200, [], {}
    made = {"id": 1, "node_id": "x", "before": hub.before.get(found[0], "0" * 40), "after": found[0], "ref": query["ref"], "timestamp": iso(found[1]), "activity_type": "push", "actor": user("author")}  # fmt: skip
    return 200, [made], {}


@route("GET", "/branches/{branch}")
def _(hub, path, query, body):
    if path["branch"] not in hub.branches:
        return MISSING
    made, name = example("branch-get"), path["branch"]
    commit = made["commit"] | {"sha": hub.branches[name]}
    return 200, made | {"name": name, "protected": name in hub.protected, "commit": commit}, {}


@route("GET", "/rules/branches/{branch}")
def _(hub, path, query, body):
    made = example("repository-rule-items")[0]
    asked = {"strict_required_status_checks_policy": False, "required_status_checks": [{"context": "perfci"}]}
    fields = {"required_status_checks": {"parameters": asked}, "deletion": {}}
    base = {key: value for key, value in made.items() if key != "parameters"}
    return 200, [base | {"type": one} | fields[one] for one in hub.rules.get(path["branch"], [])], {}


@route("GET", "")
def _(hub, path, query, body):
    made = {k: v for k, v in example("full-repository-default-response").items() if k not in ("source", "parent")}
    owner, name = REPOSITORY.split("/")
    found = {"full_name": REPOSITORY, "name": name, "owner": user(owner), "default_branch": "main", "language": None}
    return 200, made | found | {"url": f"{hub.api}/repos/{REPOSITORY}"}, {}


@route("GET", "/compare/{range}")
def _(hub, path, query, body):
    made = example("commit-comparison")
    url = f"{hub.api}/repos/{REPOSITORY}/compare/{path['range']}"
    base, _, head = path["range"].partition("...")
    if "0" * 40 in (base, head):
        return MISSING
    ahead, behind = len(hub.history(head) - hub.history(base)), len(hub.history(base) - hub.history(head))
    status = "diverged" if ahead and behind else "ahead" if ahead else "behind" if behind else "identical"
    fork = made["merge_base_commit"] | {"sha": hub.fork(base, head)}
    found = {"url": url, "status": status, "ahead_by": ahead, "behind_by": behind, "merge_base_commit": fork}
    if not ahead:
        return 200, made | found | {"files": [], "total_commits": 0, "commits": []}, {}
    return 200, made | found | {"files": _files(hub)[:300]}, {}


@route("GET", "/git/matching-refs/{path}")
def _(hub, path, query, body):
    made = example("git-ref-items")[0]
    found = [(f"refs/heads/{name}", sha) for name, sha in hub.branches.items()]
    rows = [
        made | {"ref": ref, "object": made["object"] | {"sha": sha}}
        for ref, sha in found
        if ref.startswith(f"refs/{path['path']}")
    ]
    return 200, rows, {}


def _files(hub: GitHub) -> list[dict[str, Any]]:
    made = example("diff-entry-items")[0]
    files = [made | {"filename": name, "status": "modified"} for name in hub.changed]
    return files + [made | {"filename": new, "previous_filename": old, "status": "renamed"} for old, new in hub.renamed]


@route("GET", "/contents/{path}")
def _(hub, path, query, body):
    content = hub.files.get((query["ref"], path["path"]))
    if content is None:
        return MISSING
    text = base64.encodebytes(content).decode()
    return 200, example("content-file-response-if-content-is-a-file") | {"content": text, "size": len(content), "path": path["path"], "encoding": "base64"}, {}  # fmt: skip


@route("GET", "/git/commits/{sha}")
def _(hub, path, query, body):
    sha = path["sha"]
    if sha not in {*hub.commits, *hub.branches.values(), *(pull.head for pull in hub.pulls.values())}:
        return MISSING
    made = example("git-commit-2")
    parents = [made["parents"][0] | {"sha": one} for one in hub.parents(sha)]
    found = {"sha": sha, "parents": parents, "tree": made["tree"] | {"sha": hub.trees.get(sha, sha)}}
    email, verified = hub.committers.get(sha, ("octocat@github.com", False))
    found["committer"] = made["committer"] | {"email": email}
    found["verification"] = made["verification"] | {"verified": verified, "reason": "valid" if verified else "unsigned"}
    return 200, made | found, {}


@route("GET", "/collaborators/{login}/permission")
def _(hub, path, query, body):
    if path["login"] not in hub.permissions:
        return MISSING
    made = example("repository-collaborator-permission-response-if-user-has-admin-permissions")
    role = hub.permissions[path["login"]]
    return 200, made | {"permission": role, "role_name": role, "user": made["user"] | {"role_name": role}}, {}


@route("GET", "/pulls")
def _(hub, path, query, body):
    rows = [
        _pull_json(hub, pull, "simple")
        for pull in hub.pulls.values()
        if pull.state == query.get("state", "open")
        and query.get("head") in (None, f"{pull.head_repository.split('/')[0]}:{pull.head_ref}")
    ]
    return Rows(rows)


@route("GET", "/pulls/{number}")
def _(hub, path, query, body):
    pull = hub.pulls.get(int(path["number"]))
    return (200, _pull_json(hub, pull, "whole"), {}) if pull else MISSING


@route("GET", "/issues")
def _(hub, path, query, body):
    rows = [
        one
        for one in hub.issues[::-1]
        if query.get("state", "open") in ("all", one["state"]) and query.get("creator") in (None, one["user"]["login"])
    ]
    return Rows(rows)


@route("POST", "/issues")
def _(hub, path, query, body):
    if "issues" in hub.readonly:
        return DENIED
    return _too_long(hub, body["body"]) or (201, hub.issue(BOT, body["title"], body["body"]), {})


@route("PATCH", "/issues/{number}")
def _(hub, path, query, body):
    return _edit(hub, "issues", hub.issues, "number", path["number"], body)


@route("GET", "/issues/{number}/comments")
def _(hub, path, query, body):
    return Rows([dict(one) for one in hub.comments if one["issue_url"].endswith(f"/issues/{path['number']}")])


@route("GET", "/issues/{number}/events")
def _(hub, path, query, body):
    return Rows(hub.pulls[int(path["number"])].events)


def _too_long(hub: GitHub, text: str) -> tuple[int, Any, dict[str, str]] | None:
    if len(text) <= hub.longest:
        return None
    said = {"message": "Validation Failed", "documentation_url": "https://docs.github.com/rest", "errors": [{"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": "Body is too long (maximum is 65536 characters)"}]}  # fmt: skip
    return 422, said, {}


def _edit(hub, what, rows, key, ident, body):
    found = next((one for one in rows if one[key] == int(ident)), None)
    if what in hub.readonly or found is None:
        return DENIED if what in hub.readonly else MISSING
    assert found["user"]["login"] == BOT, f"perfci edits what somebody else wrote among {what}"
    if (refused := _too_long(hub, body.get("body", ""))) is not None:
        return refused
    found |= {name: body[name] for name in ("title", "body", "state", "state_reason") if name in body}
    return 200, found, {}


@route("POST", "/issues/{number}/comments")
def _(hub, path, query, body):
    if "comments" in hub.readonly:
        return DENIED
    return _too_long(hub, body["body"]) or (201, hub.comment(int(path["number"]), BOT, body["body"]), {})


@route("PATCH", "/issues/comments/{id}")
def _(hub, path, query, body):
    return _edit(hub, "comments", hub.comments, "id", path["id"], body)


@route("DELETE", "/issues/comments/{id}")
def _(hub, path, query, body):
    hub.comments = [one for one in hub.comments if one["id"] != int(path["id"])]
    return 204, None, {}


@route("GET", "/commits/{sha}/check-runs")
def _(hub, path, query, body):
    rows = [one for one in hub.checks if one["head_sha"] == path["sha"] and one["name"] == query["check_name"]]
    return Rows(rows, "check_runs")


def _changed(hub: GitHub, check: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    output = body.get("output", {})
    notes = output.get("annotations", [])
    check["given"] += notes
    check |= {
        key: body[key]
        for key in ("name", "head_sha", "status", "conclusion", "external_id", "details_url", "started_at")
        if key in body
    }
    told = {key: output[key] for key in ("title", "summary") if key in output}
    check["output"] = check["output"] | told | {"annotations_count": len(check["given"])}
    return {key: value for key, value in check.items() if key != "given"}


@route("POST", "/check-runs")
def _(hub, path, query, body):
    if "checks" in hub.readonly:
        return DENIED
    ident = next(hub.ids)
    made = example("check-run") | {"id": ident, "given": [], "started_at": iso(hub.now), "conclusion": None, "app": example("check-run")["app"] | {"slug": "github-actions"}, "url": f"{hub.api}/repos/{REPOSITORY}/check-runs/{ident}", "html_url": f"https://github.com/{REPOSITORY}/runs/{ident}"}  # fmt: skip
    hub.checks.append(made)
    return 201, _changed(hub, made, body), {}


@route("PATCH", "/check-runs/{id}")
def _(hub, path, query, body):
    found = next(one for one in hub.checks if one["id"] == int(path["id"]))
    return 200, _changed(hub, found, body), {}


# What fits


def _operation(method: str, path: str) -> dict[str, Any] | None:
    for template, methods in SPEC["paths"].items():
        pattern = re.sub(r"\{(\w+)\}", lambda m: ".+" if m[1] == "path" else "[^/]+", template)
        if method.lower() in methods and re.fullmatch(pattern, path):
            return methods[method.lower()]
    return None


def _resolved(node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        _, _, kind, name = node["$ref"].split("/")
        node = SPEC["components"][kind][name]
    return node


def _absolute(node: Any) -> Any:
    """References into the description as they resolve from any schema in it; a discriminator's mapping has some, too."""
    if isinstance(node, list):
        return [_absolute(one) for one in node]
    if isinstance(node, dict):
        return {key: _absolute(value) for key, value in node.items()}
    return f"github{node}" if isinstance(node, str) and node.startswith("#/components/") else node


def request_misfits(method: str, path: str, query: dict[str, str], body: Any) -> Iterator[str]:
    operation = _operation(method, path)
    if operation is None:
        yield f"{method} {path}: is no operation of the description"
        return
    parameters = {p["name"]: p for p in map(_resolved, operation.get("parameters", [])) if p["in"] == "query"}
    for name, value in query.items():
        if name not in parameters:
            yield f"{method} {path}: has no parameter {name}"
            continue
        schema = parameters[name]["schema"]
        typed = int(value) if schema.get("type") == "integer" and value.isdigit() else value
        for error in OAS30WriteValidator(_absolute(schema), registry=REGISTRY).iter_errors(typed):
            yield f"{method} {path}: {name}={value}: {error.message}"
    wanted = operation.get("requestBody")
    if wanted is None:
        if body is not None:
            yield f"{method} {path}: takes no body"
    else:
        schema = _absolute(wanted["content"]["application/json"]["schema"])
        for error in OAS30WriteValidator(schema, registry=REGISTRY).iter_errors(body):
            yield f"{method} {path}: body: {error.json_path}: {error.message[:200]}"


@functools.cache  # the same answers come in many tests
def response_misfits(method: str, path: str, status: int, text: str) -> list[str]:
    operation = _operation(method, path)
    if operation is None or status in (401, 403, 429) or (status == 404 and "404" not in operation["responses"]):
        return []  # any operation may answer so
    wanted = operation["responses"].get(str(status))
    if wanted is None:
        return [f"{method} {path}: {status} is not described"]
    content = _resolved(wanted).get("content", {}).get("application/json")
    errors = (
        []
        if content is None
        else OAS30ReadValidator(_absolute(content["schema"]), registry=REGISTRY).iter_errors(json.loads(text))
    )
    return [f"answer to {method} {path}: {error.json_path}: {error.message[:200]}" for error in errors]


# HTTP


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True  # else an answer of two packets waits 40 ms for an acknowledgement
    hub: GitHub

    def log_message(self, *args: Any) -> None:
        pass

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json; charset=utf-8"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(raw) if raw else None


class _Api(_Handler):
    def _serve(self) -> None:
        hub, method = self.hub, self.command
        path, _, tail = self.path.partition("?")
        query, body = dict(urllib.parse.parse_qsl(tail)), self._body()
        with hub.lock:
            hub.requests.append((method, path))
            hook = hub.hook
        if hook is not None:
            hook(method, path)
        if self.headers.get("Authorization", "").split(" ")[-1] != "t0ken":
            hub.misfits.append(f"{method} {path}: no token")
        fault = hub.fault(method, path)
        if fault is not None and not fault.late:
            self._fault(fault)
            return
        if path == "/graphql":
            status, said, headers = hub.graphql(body)
        elif not hub.allows(method, path):
            status, said, headers = DENIED
        else:
            hub.misfits += request_misfits(method, path, query, body)
            status, said, headers = hub.answer(method, path, query, body)
            text = json.dumps(said).replace(hub.api, "http://api")  # its port is another in each test
            hub.misfits += response_misfits(method, path, status, text)
        if fault is not None:
            self._fault(fault)
            return
        self._send(status, b"" if said is None else json.dumps(said).encode(), headers)

    def _fault(self, fault: Answer) -> None:
        if fault.delay:
            threading.Event().wait(fault.delay)
        try:
            self._send(fault.status, json.dumps(fault.body).encode(), fault.headers)
        except BrokenPipeError:
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve


class _Blobs(_Handler):
    """The store of artifacts: another server, to which the token must not go."""

    def do_GET(self) -> None:
        self.hub.blob_headers.append(dict(self.headers.items()))
        ident = int(self.path.strip("/").split("?")[0])
        if (fault := self.hub.fault("BLOB", self.path)) is not None:
            self._send(fault.status, b"", fault.headers)
            return
        content = next(one.content for one in self.hub.artifacts if one.id == ident)
        self._send(200, content, {"Content-Type": "application/zip"})


@contextmanager
def serve() -> Iterator[GitHub]:
    """A GitHub that runs; asserts at the end that everything said to it and by it fits the description."""
    hub = GitHub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (kind,), {"hub": hub})) for kind in (_Api, _Blobs)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    hub.api, hub.blobs = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
    if hub.misfits:
        raise AssertionError("\n".join(dict.fromkeys(hub.misfits)))


def zipped(*entries: tuple[str | zipfile.ZipInfo, str | bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as made:
        for name, content in entries:
            made.writestr(name, content)
    return buffer.getvalue()


def archive(files: dict[str, bytes | str]) -> bytes:
    """A zip as GitHub makes them."""
    return zipped(*files.items())
