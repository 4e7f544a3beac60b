"""From payloads, as GitHub sends them, to what is measured against what."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.github.event import Context, context, load, of_default_branch, require_own, why_stranger
from perfci.model.base import UsageError

EVENTS = Path(__file__).parents[1] / "data" / "github" / "events"
MERGE = "9" * 40
BEFORE = "b" * 40
RUNNER = {
    "GITHUB_REPOSITORY": "Codertocat/Hello-World",
    "GITHUB_SHA": MERGE,
    "GITHUB_REF": "refs/pull/2/merge",
    "GITHUB_RUN_ID": "1658821493",
    "GITHUB_RUN_ATTEMPT": "1",
    "GITHUB_SERVER_URL": "https://github.com",
}
HEAD = "ec26c3e57ca3a959ca5aad62de7213c562f8c821"
TIP = "f95f852bd8fca8fcc58a9a2d6c842781e32a215e"


def payload(name: str) -> dict:
    return json.loads((EVENTS / f"{name}.json").read_text())


def changed(name: str, **paths) -> dict:
    """The payload `name` with `a__b=value` set at `a.b`."""
    made = deepcopy(payload(name))
    for path, value in paths.items():
        *folders, last = path.split("__")
        here = made
        for folder in folders:
            here = here[folder]
        here[last] = value
    return made


FORK = {"full_name": "stranger/Hello-World", "default_branch": "master"}


def of(name: str, sent: dict, env: dict[str, str] | None = None, /, **wanted: object) -> tuple:
    """An event, what the runner says beside it, and fields of its context or of the context's origin."""
    return name, sent, RUNNER | (env or {}), wanted


CASES = {
    "pull request": of("pull_request", payload("pull_request.opened"), pull_request=2, head_sha=HEAD,
        head_ref="changes", base_ref="master", fork=False, attempt=1, base=TIP, merge_sha=MERGE, trusted=True,
        privileged=False),
    "run anew": of("pull_request", payload("pull_request.opened"), {"GITHUB_RUN_ATTEMPT": "3"}, attempt=3,
        run_url="https://github.com/Codertocat/Hello-World/actions/runs/1658821493/attempts/3"),
    "fork": of("pull_request", changed("pull_request.opened", pull_request__head__repo=FORK), fork=True,
        pull_request=2, trusted=False, privileged=False),
    "fork that is gone": of("pull_request", changed("pull_request.opened", pull_request__head__repo=None), fork=True,
        trusted=False),
    "pull request with rights": of("pull_request_target", payload("pull_request.opened"), {"GITHUB_SHA": TIP},
        pull_request=2, privileged=True, merge_sha=None),
    "head checked out, not a merge": of("pull_request", payload("pull_request.opened"), {"GITHUB_SHA": HEAD},
        merge_sha=None, base=TIP),
    "push to the default branch": of("push", changed("push.branch.created", before=BEFORE), pull_request=None,
        head_ref="master", base_ref="master", event="push", base=BEFORE, trusted=True),
    "first push": of("push", payload("push.branch.created"), base_ref="", base="", trusted=True),
    "push to another branch": of("push", changed("push.branch.created", ref="refs/heads/feature/x", before=BEFORE),
        head_ref="feature/x", base_ref="master", base="refs/heads/master", trusted=True),
    "copy of a pull request": of("push", changed("push.branch.created", ref="refs/heads/pull-request/1234"),
        pull_request=1234, head_ref="pull-request/1234", base_ref="master", base="refs/heads/master", trusted=False),
    "nearly such a copy": of("push", changed("push.branch.created", ref="refs/heads/pull-request/12/x"),
        pull_request=None, trusted=True),
    "tag": of("push", payload("push.tag"), head_ref="simple-tag", base_ref="", base=""),
    "hostile branch": of("push", changed("push.branch.created", ref="refs/heads/$(id)`id`;'|<b>&&"),
        head_ref="$(id)`id`;'|<b>&&"),
    "merge queue": of("merge_group", payload("merge_group"), pull_request=104, base_ref="main",
        head_sha="2ffea6db159f6b6c47a24e778fb9ef40cf6b1c7d", base="380387fbc80638b734a49e1be1c4dfec1c01b33c",
        trusted=True),
    "by hand on the default branch": of("workflow_dispatch", payload("workflow_dispatch"),
        {"GITHUB_REF": "refs/heads/main"}, head_sha=MERGE, head_ref="main", base="", trusted=True),
    "by hand on another branch": of("workflow_dispatch", payload("workflow_dispatch"),
        {"GITHUB_REF": "refs/heads/x"}, head_ref="x", base="refs/heads/main"),
    "schedule": of("schedule", payload("schedule"), {"GITHUB_REF": "refs/heads/master"},
        repository="Codertocat/Hello-World", base="", trusted=True),
    "another workflow's run": of("workflow_run", payload("workflow_run.completed"), event="workflow_dispatch",
        run_id=1589141559, attempt=1, pull_request=None, head_sha="5779607b49aab1200488439f02372c57b4f75444",
        privileged=True),
    "a fork's run": of("workflow_run",
        changed("workflow_run.completed", workflow_run__head_repository=FORK, workflow_run__event="pull_request",
            workflow_run__run_attempt=2), pull_request=None, fork=True, attempt=2, trusted=False),
    "the run of a copy": of("workflow_run",
        changed("workflow_run.completed", workflow_run__event="push", workflow_run__head_branch="pull-request/7",
            repository__full_name="octo-org/octo-repo"), pull_request=7, trusted=False),
    "a fork's branch of that name": of("workflow_run",
        changed("workflow_run.completed", workflow_run__event="pull_request",
            workflow_run__head_branch="pull-request/7", workflow_run__head_repository=FORK), pull_request=None, trusted=False),
    "a branch like an option": of("pull_request",
        changed("pull_request.synchronize", pull_request__head__ref="--upload-pack=id"), head_ref="--upload-pack=id"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_context(case: str) -> None:
    *told, wanted = CASES[case]
    found = context(*told)
    assert {field: getattr(found if hasattr(found, field) else found.origin, field) for field in wanted} == wanted


REFUSED = {"fork", "fork that is gone", "copy of a pull request", "merge queue"}


def test_one_job_takes_no_code_that_may_be_a_strangers() -> None:
    """`publish: here`: a fork's, one that is gone, a copy of a pull request, and what a merge queue holds."""
    refused = {}
    for case, (*told, _) in CASES.items():
        found = context(*told)
        if found.privileged:  # never measured
            continue
        try:
            require_own(found)
        except UsageError as error:
            refused[case] = str(error)
        assert bool(why_stranger(found)) is (case in refused)
    assert refused.keys() == REFUSED
    assert all(text.startswith("publish: here: ") and "publish from workflow_run" in text for text in refused.values())


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("issue_comment", {}, "event 'issue_comment': is not supported"),
        ("push", payload("push.tag.deleted"), "was deleted: there is nothing to measure"),
        ("push", changed("push.branch.created", ref="refs/heads/a\nb"), "push: ref does not fit"),
        ("push", changed("push.branch.created", ref="--upload-pack=id"), "push: ref does not fit"),
        ("pull_request", changed("pull_request.opened", pull_request__base__ref="-a"), "base.ref does not fit"),
        ("push", changed("push.branch.created", after="HEAD"), "push: after does not fit"),
        ("push", changed("push.branch.created", after=HEAD + "\n"), "push: after does not fit"),
        ("pull_request", changed("pull_request.opened", pull_request__number="2"), "pull_request.number does not fit"),
        ("pull_request", changed("pull_request.opened", pull_request__head__sha=None), "pull_request.head.sha does"),
        ("pull_request", changed("pull_request.opened", repository__full_name="a/b/c"), "full_name does not fit"),
        ("pull_request", {}, "pull_request: pull_request is missing"),
    ],
)
def test_a_payload_that_does_not_fit_is_one_line(name: str, data: dict, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        context(name, data, RUNNER)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_variable_that_does_not_fit_is_named() -> None:
    with pytest.raises(UsageError, match="GITHUB_RUN_ID"):
        context("schedule", {}, RUNNER | {"GITHUB_RUN_ID": "1; id"})


def test_load(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(payload("pull_request.opened")))
    env = RUNNER | {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(file)}
    assert load(env).origin.pull_request == 2
    for text in ("[]", "{", "[" * 200_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="GITHUB_EVENT_PATH"):
            load(env)
    with pytest.raises(UsageError, match="elsewhere use perfci compare"):
        load({})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([HEAD, "0" * 40, "refs/heads/x"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(data=st.data())
def test_any_payload_gives_a_context_or_one_line(data) -> None:
    name = data.draw(
        st.sampled_from(["pull_request.opened", "push.branch.created", "merge_group", "workflow_run.completed"])
    )
    made = payload(name)
    here = made
    while True:
        key = data.draw(st.sampled_from(sorted(here)))
        if isinstance(here[key], dict) and here[key] and data.draw(st.booleans()):
            here = here[key]
            continue
        here[key] = data.draw(anything)
        break
    try:
        assert isinstance(context(name.split(".")[0], made, RUNNER), Context)
    except UsageError as error:
        assert "\n" not in str(error)


KEEPS = {
    "push": ("push", payload("push.branch.created") | {"ref": "refs/heads/master"}, "refs/heads/master", True),
    "push to another branch": ("push", payload("push.branch.created"), "refs/heads/changes", False),
    "tag of the default branch's name": ("push", payload("push.tag") | {"ref": "refs/tags/master"}, "refs/tags/master", False),
    "schedule": ("schedule", payload("schedule"), "refs/heads/master", True),
    "by hand": ("workflow_dispatch", payload("workflow_dispatch"), "refs/heads/main", True),
    "by hand on another branch": ("workflow_dispatch", payload("workflow_dispatch"), "refs/heads/x", False),
    "pull request": ("pull_request", payload("pull_request.opened"), "refs/pull/2/merge", False),
    "pull request that says so": ("pull_request", payload("pull_request.opened"), "refs/heads/master", False),
    "pull request from a branch of that name": (
        "pull_request", changed("pull_request.opened", pull_request__head__ref="master"), "refs/heads/master", False,
    ),
    "merge queue": ("merge_group", payload("merge_group"), "refs/heads/main", False),
    "a copy": ("push", payload("push.branch.created") | {"ref": "refs/heads/pull-request/7"}, "refs/heads/pull-request/7", False),
}  # fmt: skip


@pytest.mark.parametrize("case", KEEPS)
def test_builds_are_kept_of_the_default_branch_alone(case: str) -> None:
    event, sent, ref, kept = KEEPS[case]
    env = RUNNER | {"GITHUB_REF": ref}
    assert of_default_branch(context(event, sent, env), env) == kept
