"""Publishing against a GitHub on loopback: one true comment, the right check and exit code, whatever goes wrong."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from perfci.github import sticky
from perfci.github.api import ApiError
from perfci.github.publish import publish
from perfci.github.settings import Publishing
from perfci.model.publication import ACCEPT_LABEL
from perfci.model.results import UNMEASURED
from tests.github.loopback.scene import (
    BASE,
    HEAD,
    POLICY,
    SLOWER,
    api_of,
    beside,
    measured,
    packed,
    published,
    refused,
    scene,
)
from tests.github.loopback.server import BOT, REPOSITORY, ROOT, START, Answer, GitHub, Run, archive


def only(hub: GitHub) -> str:
    comments = hub.own_comments()
    assert len(comments) == 1
    return comments[0]


def earlier(hub: GitHub, run: int = 90, head: str = HEAD) -> dict[str, Any]:
    """A comment of ours."""
    return hub.comment(7, BOT, f"It was slower.\n{sticky.Marker('perfci', run, 1, head)}")


def ignoring(hub: GitHub, *changed: str) -> None:
    """Base's policy ignores docs, and these were changed."""
    hub.files[BASE, "perfci.yaml"] = f"{POLICY}ignore: ['docs/*']\n".encode()
    hub.changed = [*changed]


def pushed(hub: GitHub, before: str = "") -> Run:
    """The run of a push of HEAD to main."""
    hub.pushes[f"{REPOSITORY}:refs/heads/main"] = (HEAD, START)
    hub.before |= {HEAD: before} if before else {}
    return hub.run(100, HEAD, branch="main", event="push")


def test_a_regression_is_said_everywhere(hub: GitHub, slower: Run) -> None:
    outcome = published(hub, slower)
    assert (outcome.publication.exit_code, outcome.notes) == (1, [])
    assert "matmul/n=1" in only(hub)
    assert only(hub).endswith(f"<!-- perfci suite=perfci run=100 attempt=1 head={HEAD} -->")
    assert "@everyone" not in only(hub)  # nothing that an artifact words is posted
    (check,) = hub.checks
    assert (check["conclusion"], check["head_sha"], check["name"]) == ("failure", HEAD, "perfci")
    (note,) = check["given"]
    assert (note["path"], note["start_line"], note["annotation_level"]) == ("kernels/suite.py", 7, "failure")
    assert not outcome.publication.shards[0].report.exploratory
    assert outcome.publication.origin.base_ref == "main"


def test_unchanged_begins_no_comment_and_keeps_one_true(hub: GitHub) -> None:
    _, run = scene(hub, 1.0)
    assert published(hub, run).publication.exit_code == 0
    assert hub.own_comments() == []
    assert hub.checks[0]["conclusion"] == "success"
    earlier(hub)
    published(hub, run)
    assert "slower" not in only(hub)
    assert "run=100" in only(hub)


WHEN = [
    ("always", 1.0, 1),
    ("never", 1.2, 0),
    ("on-regression", 0.8, 0),
    ("on-change", 0.8, 1),
    ("on-regression", 1.2, 1),
]


@pytest.mark.parametrize(("when", "ratio", "there"), WHEN)
def test_when_a_comment_begins(hub: GitHub, when: str, ratio: float, there: int) -> None:
    _, run = scene(hub, ratio)
    published(hub, run, comment=when)
    assert len(hub.own_comments()) == there


def test_publishing_again_changes_nothing(hub: GitHub, slower: Run) -> None:
    published(hub, slower)
    said, checks = only(hub), len(hub.checks)
    hub.requests.clear()
    published(hub, slower)
    assert only(hub) == said
    assert (len(hub.checks), len(hub.checks[0]["given"])) == (checks, 1)
    assert not [one for one in hub.requests if one[0] in ("POST", "PATCH") and "comments" in one[1]]


def test_an_older_run_that_comes_late_overwrites_nothing(hub: GitHub) -> None:
    _, old = scene(hub, *SLOWER)
    new = hub.run(200, HEAD)
    hub.upload(new, packed(measured(1.0, 1.30)))
    published(hub, new)
    said = only(hub)
    outcome = published(hub, old)
    assert only(hub) == said
    assert outcome.comment is not None and outcome.comment.state == "superseded"
    assert outcome.publication.exit_code == 1
    hub.upload(hub.run(300, HEAD), packed(measured(1.0)))
    published(hub, hub.runs[300])
    published(hub, old)
    told = {int(check["external_id"].split("/")[4]): check for check in hub.checks}
    assert {check["conclusion"] for check in hub.checks} == {"success"}
    assert not told[300]["output"]["title"].startswith("Superseded")
    assert told[100]["output"]["title"].startswith("Superseded by run 300, attempt 1: ")
    assert "run=300 " in only(hub)


def test_a_newer_attempt_replaces_and_shows_the_earlier(hub: GitHub, slower: Run) -> None:
    published(hub, slower)
    slower.attempt = 2
    hub.upload(slower, packed(measured(1.0, 1.0)), name="perfci--measure--0--2")
    outcome = published(hub, slower)
    assert "attempt=2" in only(hub)
    assert outcome.publication.exit_code == 0
    assert [(one.run_id, one.attempt) for one in outcome.publication.attempts] == [(100, 1)]
    assert "Superseded" not in outcome.publication.attempts[0].sentence
    assert [check["conclusion"] for check in hub.checks] == ["success", "success"]


def test_a_head_that_has_moved_on_gets_no_comment(hub: GitHub) -> None:
    pull, run = scene(hub, *SLOWER)
    pull.head = "d" * 40
    outcome = published(hub, run)
    assert hub.own_comments() == []
    assert outcome.comment is not None and outcome.comment.state == "stale"
    assert [(c["head_sha"], c["conclusion"]) for c in hub.checks] == [(HEAD, "failure")]


def test_a_head_that_came_back_is_told_of_again(hub: GitHub, slower: Run) -> None:
    """A newer run is of a head that was pushed away meanwhile: of this head nothing newer is known."""
    earlier(hub, 900, "d" * 40)
    published(hub, slower)
    assert "run=100 " in only(hub)


def test_the_jobs_of_a_matrix_share_one_comment(hub: GitHub, run: Run) -> None:
    for index, (name, ratio) in enumerate((("h100", 1.0), ("h200", 1.15))):
        hub.upload(run, packed(measured(ratio)), name=f"perfci--measure--{index}-{name}--1")
    outcome = published(hub, run)
    assert [shard.name for shard in outcome.publication.shards] == ["measure 0-h100", "measure 1-h200"]
    assert outcome.publication.exit_code == 1
    assert "h200" in only(hub)


def test_a_job_that_failed_is_missing(hub: GitHub) -> None:
    _, run = scene(hub, 1.0)
    run.jobs = {"measure (h100)": "success", "measure (h200)": "cancelled", "lint": "failure"}
    assert refused(hub, run, jobs="measure*") == "job `measure (h200)` ended with cancelled: see its log"
    assert "measure (h200)" in only(hub)
    hub.fail("GET", "/jobs$", Answer(403, {"message": "Resource not accessible by integration"}))
    assert "jobs of the run" in refused(hub, run), "what cannot be listed may be missing"


def test_250_comments_lie_over_pages(hub: GitHub, slower: Run) -> None:
    for index in range(180):
        hub.comment(7, "someone", f"comment {index}")
    earlier(hub)
    for index in range(69):
        hub.comment(7, "someone", f"comment {index}")
    published(hub, slower)
    assert "run=100" in only(hub)
    assert len(hub.comments) == 250


def test_somebody_elses_marker_is_not_ours(hub: GitHub, slower: Run) -> None:
    planted = hub.comment(7, "stranger", f"All is well.\n{sticky.Marker('perfci', 10**9, 1, HEAD)}")
    quoted = hub.comment(7, BOT, f"> {sticky.Marker('perfci', 10**9, 1, HEAD)}\n\nsays another bot of this account")
    published(hub, slower)
    assert planted["body"].startswith("All is well.")
    assert quoted["body"].endswith("account")
    assert sum("run=100 " in body for body in hub.own_comments()) == 1


def test_suites_keep_to_themselves(hub: GitHub, slower: Run) -> None:
    hub.upload(slower, packed(measured(1.2)), name="nightly--measure--0--1")
    published(hub, slower)
    published(hub, slower, suite="nightly")
    assert len(hub.own_comments()) == len(hub.own_comments("nightly")) == 1
    assert [check["name"] for check in hub.checks] == ["perfci", "perfci (nightly)"]


@pytest.mark.parametrize(("readonly", "left", "hidden"), [(set(), 3, 2), ({"minimize"}, 1, 0)])
def test_duplicates_are_hidden_and_else_deleted(hub: GitHub, readonly: set[str], left: int, hidden: int) -> None:
    _, run = scene(hub, *SLOWER)
    hub.readonly = readonly
    for number in (80, 90, 85):
        earlier(hub, number)
    published(hub, run)
    assert "run=100" in only(hub)
    assert (len(hub.comments), [*hub.minimized.values()]) == (left, ["OUTDATED"] * hidden)


@pytest.mark.parametrize("same_run", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_concurrent_publishers_converge(hub: GitHub, same_run: bool) -> None:
    """All have read before any writes: the worst order there is."""
    scene(hub)
    runs = [hub.runs[100] if same_run else hub.run(100 + i, HEAD) for i in range(4)]
    for index, run in enumerate(runs):
        if index == 0 or not same_run:
            hub.upload(run, packed(measured(1.0, 1.1 + index / 10)))
    barrier, waited = threading.Barrier(4), threading.local()

    def hook(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/comments") and not getattr(waited, "done", False):
            waited.done = True
            barrier.wait(10)

    def one(run: Run) -> None:
        api = api_of(hub)
        api._sleep = lambda seconds: time.sleep(min(0.3, seconds / 5))
        published(hub, run, api)

    hub.hook = hook
    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(one, runs)]) == 4
    assert f"run={runs[-1].id} " in only(hub)
    assert {check["conclusion"] for check in hub.checks} == {"failure"}


def test_a_late_overwrite_is_fixed(hub: GitHub, slower: Run) -> None:
    """An older publisher, which decided before ours wrote, writes after it."""
    earlier(hub, 80)
    api, late = api_of(hub), list[float]()

    def meanwhile(seconds: float) -> None:
        if not late:
            hub.comments[0]["body"] = f"Late.\n{sticky.Marker('perfci', 90, 1, HEAD)}"
        late.append(seconds)

    api._sleep = meanwhile
    published(hub, slower, api)
    assert "run=100" in only(hub)
    assert late == [sticky.SETTLE] * 2, "once after each write"


def test_a_read_only_token_leaves_verdict_and_exit_code(hub: GitHub, slower: Run) -> None:
    hub.readonly = {"comments", "checks"}
    outcome = published(hub, slower)
    assert outcome.publication.exit_code == 1
    assert (hub.comments, hub.checks) == ([], [])
    lacking = [note.rpartition("permissions: ")[2] for note in outcome.notes]
    assert lacking == ["checks: write`", "pull-requests: write`"]
    assert len(hub.requests) < 40  # it is no passing trouble: nothing is tried again
    hub.readonly = {"checks"}
    assert published(hub, slower).publication.exit_code == 1
    assert "checks: write" in only(hub)


LIMITS = [
    Answer(429, {"message": "Too many requests"}, {"Retry-After": "7"}, times=2),
    Answer(403, {"message": "You have exceeded a secondary rate limit."}, times=1),
    Answer(403, {"message": "API rate limit exceeded"}, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 5)}),
    Answer(502, {"message": "Bad gateway"}, times=3),
    Answer(502, {"message": "Bad gateway"}, times=2, late=True),
]  # fmt: skip


@pytest.mark.parametrize("answer", LIMITS, ids=["429", "secondary", "primary", "502", "502-after-writing"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/comments$"), ("GET", "/zip$"), pytest.param("POST", "/check-runs$", marks=pytest.mark.slow)],
)
def test_passing_trouble_passes(hub: GitHub, slower: Run, answer: Answer, method: str, path: str) -> None:
    hub.fail(method, path, Answer(**vars(answer)))
    api = api_of(hub)
    outcome = published(hub, slower, api)
    assert (outcome.publication.exit_code, outcome.notes) == (1, [])
    assert f"run={slower.id} " in only(hub)
    waits = [seconds for seconds in api.slept if seconds != sticky.SETTLE]
    assert waits
    if answer.headers.get("Retry-After"):
        assert waits == [7.0, 7.0]
    if "secondary" in str(answer.body):
        assert waits == [60.0]


def test_patience_ends(hub: GitHub, slower: Run) -> None:
    hub.fail("POST", "/comments$", Answer(429, {"message": "later"}, {"Retry-After": "3600"}, times=99))
    api = api_of(hub)
    outcome = published(hub, slower, api)
    assert outcome.publication.exit_code == 1
    assert "not within 300 s" in outcome.notes[0]
    assert sum(api.slept) < 300
    assert hub.checks[0]["conclusion"] == "failure"
    hub.fail("GET", "/actions/runs/", Answer(503, {"message": "down"}, times=99))
    with pytest.raises(ApiError, match="6 times: run the job again later"):
        published(hub, slower)


def test_a_comment_that_github_finds_too_long_is_shortened(hub: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = scene(hub, *([1.1] * 60), names=[f"matmul/{'x' * 300}={i}" for i in range(60)])
    monkeypatch.setattr(sticky, "SHORTER", 10_000)
    hub.longest = 10_200
    assert published(hub, run).notes == []
    assert len(only(hub)) <= 10_200


def test_an_artifact_that_is_gone_is_an_infrastructure_fault(hub: GitHub, slower: Run) -> None:
    hub.artifacts[0].expired = True
    assert refused(hub, slower) == "artifact `perfci--measure--0--1` has expired: run the measuring job again"
    hub.artifacts.clear()
    assert refused(hub, slower) == "run 100 has no artifact of the suite `perfci`"
    assert "no artifact" in only(hub)


def test_the_token_stays_with_the_api(hub: GitHub, slower: Run, capfd: pytest.CaptureFixture[str]) -> None:
    hub.fail("BLOB", "", Answer(500, times=99))
    outcome = published(hub, slower)
    assert outcome.publication.exit_code == 3
    assert hub.blob_headers
    assert all("Authorization" not in headers for headers in hub.blob_headers)
    assert "SECRET-SIGNATURE" not in str(outcome) + only(hub) + "".join(capfd.readouterr())


def test_a_fork_is_found_by_owner_branch_and_commit(hub: GitHub) -> None:
    hub.files[BASE, "perfci.yaml"] = POLICY.encode()
    hub.pull(5, "e" * 40, head_ref="faster")  # the same branch in the repository itself
    hub.pull(6, HEAD, head_ref="faster", head_repository="fork/kernels")
    hub.pull(8, "f" * 40, head_ref="faster", head_repository="other/kernels")
    hub.pull(9, HEAD, head_ref="faster", head_repository="fork/kernels-2")  # the same owner's other fork
    run = hub.run(100, HEAD, head_repository="fork/kernels")
    hub.upload(run, packed(measured(*SLOWER)))
    outcome = published(hub, run)
    origin = outcome.publication.origin
    assert (origin.pull_request, origin.fork) == (6, True)
    assert [one["issue_url"].rpartition("/")[2] for one in hub.comments] == ["6"]


def test_a_push_has_a_check_and_no_comment(hub: GitHub) -> None:
    hub.files[HEAD, "perfci.yaml"] = POLICY.encode()
    run = pushed(hub, before=BASE)
    hub.upload(run, packed(measured(*SLOWER)))
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.comment, hub.comments) == (1, None, [])
    assert hub.checks[0]["conclusion"] == "failure"


def test_a_job_of_the_same_run_publishes_while_it_goes_on(hub: GitHub) -> None:
    pull, run = scene(hub, *SLOWER)
    run.conclusion = None
    run.jobs = {"measure": "success", "publish": None}
    outcome = publish(beside(pull, run.id), "synchronize", Publishing(), api_of(hub))
    assert outcome.publication.exit_code == 1
    assert outcome.publication.origin.run_id == 100
    assert "run=100" in only(hub)


# Limits are base's


def test_a_limit_loosened_in_the_change_does_not_count(hub: GitHub) -> None:
    """The artifact says it was planned with 50 %; base says 2 %."""
    loose = POLICY.replace("2%", "50%")
    _, run = scene(hub, *SLOWER, policy=loose)
    hub.files[HEAD, "perfci.yaml"] = loose.encode()
    made = published(hub, run).publication
    report = made.shards[0].report
    assert made.exit_code == 1 and report.exploratory
    assert any("main:perfci.yaml" in note for note in report.notes)
    assert [row.limit for row in report.rows] == [0.02, 0.02]


def test_whether_limits_only_warn_is_bases_to_say(hub: GitHub) -> None:
    _, run = scene(hub, *SLOWER, fail_on=[])
    assert published(hub, run).publication.exit_code == 1
    hub.files[BASE, "perfci.yaml"] = f"{POLICY}fail_on: []\n".encode()
    assert published(hub, run).publication.exit_code == 0
    assert only(hub).startswith("### ⚠️ Passed, but ")
    assert hub.checks[-1]["conclusion"] == "success"


def test_a_first_adoption_is_judged_by_its_own_limits_and_passes_nothing(hub: GitHub) -> None:
    _, run = scene(hub, 1.0)
    hub.files.clear()
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, hub.checks[0]["conclusion"]) == (0, "neutral")
    assert hub.checks[0]["output"]["title"].startswith("Adopting perfci: main:perfci.yaml does not exist yet")
    assert "✅" not in only(hub) and "Adopting perfci" in only(hub)
    hub.upload(run, packed(measured(*SLOWER)))
    outcome = published(hub, run)
    assert outcome.publication.exit_code == 1
    assert any("main:perfci.yaml does not exist yet" in note for note in outcome.publication.shards[0].report.notes)


def test_a_branch_without_a_policy_lets_nothing_in(hub: GitHub) -> None:
    """Head would be judged by what it brings itself."""
    pull, run = scene(hub, 1.0)
    pull.base_ref, hub.branches["release"] = "release", BASE
    hub.files = {(HEAD, "perfci.yaml"): POLICY.encode()}
    assert refused(hub, run).startswith("release:perfci.yaml does not exist: ")


def test_without_the_right_to_read_base_nothing_is_judged(hub: GitHub, slower: Run) -> None:
    hub.fail("GET", "/branches/main", Answer(404, {"message": "Not Found"}, times=9))
    with pytest.raises(ApiError, match="branch main"):
        published(hub, slower)
    assert hub.checks == []


def test_a_change_that_base_ignores_passes_without_measuring(hub: GitHub, run: Run) -> None:
    """What the measuring action leaves says nothing, and the publisher finds the reason itself."""
    hub.upload(run, archive({UNMEASURED: '{"version": 1, "verdict": "pass"}'}))
    ignoring(hub, "docs/a.md", "docs/b.md")
    earlier(hub)
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.missing) == (0, [])
    assert hub.checks[0]["conclusion"] == "success"
    assert "Passed without measuring" in only(hub)
    hub.renamed = [("src/fast.py", "docs/fast.md")]
    assert published(hub, run).publication.exit_code == 3
    hub.renamed, run.jobs = [], {"measure": "failure"}
    assert published(hub, run).publication.exit_code == 3


def test_a_head_without_a_commit_of_its_own_is_neutral(hub: GitHub, run: Run) -> None:
    """The measuring action left no artifact. By GitHub's own history, and only where every job was heard."""
    held = {HEAD: [ROOT], BASE: [HEAD]}
    hub.commits |= held
    outcome = published(hub, run, comment="always")
    assert (outcome.exit_code, outcome.publication.missing) == (0, [])
    assert ("GET", f"/repos/{REPOSITORY}/compare/{BASE}...{HEAD}") in hub.requests
    [check] = hub.checks
    assert (check["conclusion"], check["output"]["title"]) == (
        "neutral", f"Nothing to compare: {HEAD[:10]} has no commit of its own, main holds them all",
    )  # fmt: skip
    said = only(hub)
    assert "🟡 Nothing to compare" in said and "✅" not in said and "Pass" not in said
    run.jobs = {"measure": "failure"}
    assert published(hub, run).publication.exit_code == 3
    run.jobs, hub.commits = {"measure": "success"}, {}
    assert published(hub, run).publication.exit_code == 3


def test_what_was_measured_is_judged_whatever_history_says(hub: GitHub, slower: Run) -> None:
    merge = "c" * 40
    hub.commits |= {HEAD: [ROOT], BASE: [HEAD], merge: [BASE, HEAD]}
    hub.artifacts.clear()
    hub.upload(slower, packed(measured(*SLOWER, head=merge)))
    assert published(hub, slower).publication.exit_code == 1


@pytest.mark.parametrize(
    ("event", "branch", "before", "code"),
    [
        ("push", "new", "", 0),
        ("workflow_dispatch", "new", "", 0),
        ("push", "main", "c" * 40, 0),  # put back to an older commit
        ("push", "main", "", 3),
        ("schedule", "main", "", 3),  # every commit of main is one that main holds
        ("push", "v1", "", 3),  # a tag
    ],
)
def test_a_branch_without_commits_is_one_that_the_default_branch_holds(
    hub: GitHub, event: str, branch: str, before: str, code: int
) -> None:
    run = hub.run(100, HEAD, event=event, branch=branch)
    hub.branches |= {"new": HEAD}
    hub.pushes[f"{REPOSITORY}:refs/heads/{branch}"] = (HEAD, START)
    if before:
        hub.before[HEAD] = before
        hub.commits[before] = [HEAD]
    hub.commits |= {HEAD: [ROOT], BASE: [HEAD]}
    outcome = published(hub, run)
    assert outcome.publication.exit_code == code
    assert [check["conclusion"] for check in hub.checks] == ["action_required" if code else "neutral"]
    said = "" if code else f"`{before[:10] or 'main'}` holds them all"
    assert said in outcome.publication.nothing and bool(said) == bool(outcome.publication.nothing)


def test_a_strangers_run_without_a_pull_request_is_not_excused(hub: GitHub) -> None:
    """The branch of a fork may have any name."""
    hub.files[HEAD, "perfci.yaml"] = POLICY.encode()
    run = hub.run(100, HEAD, branch="new", head_repository="stranger/kernels")
    hub.branches |= {"new": HEAD}
    hub.commits |= {HEAD: [ROOT], BASE: [HEAD]}
    assert published(hub, run).publication.exit_code == 3


@pytest.mark.parametrize("queued", [False, True])
def test_of_300_files_not_all_are_known(hub: GitHub, run: Run, queued: bool) -> None:
    """A comparison names no more: one that is not named is not ignored."""
    if queued:
        hub.pull(7, "d" * 40)
        run = hub.run(100, HEAD, event="merge_group", branch=f"gh-readonly-queue/main/pr-7-{BASE}")
    for many, last, code in ((299, "docs/z", 0), (300, "docs/z", 3), (301, "src/z", 3)):
        ignoring(hub, *(f"docs/{i}.md" for i in range(many - 1)), last)
        assert published(hub, run).publication.exit_code == code


def test_a_push_of_ignored_files_is_compared_with_what_was_there(hub: GitHub) -> None:
    ignoring(hub, "docs/a.md")
    run = pushed(hub)
    assert published(hub, run).publication.exit_code == 3  # a new branch
    hub.before[HEAD] = BASE
    assert published(hub, run).publication.exit_code == 0
    assert ("GET", f"/repos/{REPOSITORY}/compare/{BASE}...{HEAD}") in hub.requests
    hub.changed.append("src/fast.py")
    assert published(hub, run).publication.exit_code == 3


# Accepting


def labelled(hub: GitHub, by: str = "maintainer", minutes: float = 10) -> None:
    hub.label(hub.pulls[7], ACCEPT_LABEL, by, START + timedelta(minutes=minutes))


def test_a_label_after_the_last_push_accepts(hub: GitHub) -> None:
    pull, run = scene(hub, *SLOWER)
    published(hub, run)
    labelled(hub)
    pull.body = "Text.\r\nPerf-Accepted: the new path is *exact*\r\n"
    own = hub.run(150, HEAD, conclusion=None, jobs={"measure": "skipped"})
    outcome = publish(beside(pull, own.id), "labeled", Publishing(), api_of(hub))
    accepted = outcome.publication.acceptance
    assert accepted is not None
    assert (accepted.by, accepted.author, accepted.reason) == ("maintainer", "octocat", "the new path is *exact*")
    assert outcome.publication.origin.run_id == 100  # from the stored artifact
    assert outcome.publication.exit_code == 0
    assert [c["conclusion"] for c in hub.checks] == ["success"]
    assert "maintainer" in only(hub)


def test_a_label_before_anything_is_measured_leaves_the_answer_to_who_measures(hub: GitHub) -> None:
    pull, measuring = scene(hub)
    hub.runs[100].jobs = {"measure": None}
    relabelled = hub.run(150, HEAD, jobs={"measure": "skipped"})
    for outcome in (published(hub, relabelled), publish(beside(pull, 150), "labeled", Publishing(), api_of(hub))):
        assert (outcome.exit_code, outcome.waiting[:6], hub.checks, hub.comments) == (0, "no run", [], [])
    hub.upload(measuring, packed(measured(1.0)))
    hub.runs[100].jobs = {"measure": "success"}
    assert published(hub, measuring).exit_code == 0
    assert [check["conclusion"] for check in hub.checks] == ["success"]


def test_a_copied_branch_belongs_to_its_pull_request_also_where_a_label_is_set(hub: GitHub) -> None:
    """copy-pr-bot pushes the head of a fork's pull request to a branch of the repository."""
    hub.files[BASE, "perfci.yaml"] = POLICY.encode()
    pull = hub.pull(7, HEAD, head_repository="stranger/perfci")
    hub.upload(hub.run(100, HEAD, event="push", branch="pull-request/7"), packed(measured(*SLOWER)))
    origin = published(hub, hub.runs[100]).publication.origin
    assert (origin.pull_request, origin.fork, origin.base_ref) == (7, True, "main")
    assert "run=100 " in only(hub)
    labelled(hub)
    own = hub.run(150, HEAD, head_repository="stranger/perfci", jobs={"measure": "skipped"})
    outcome = publish(beside(pull, own.id), "labeled", Publishing(), api_of(hub))
    assert (outcome.exit_code, outcome.publication.origin.run_id) == (0, 100)
    assert outcome.publication.acceptance is not None


def test_a_label_s_own_publisher_does_not_hide_that_nothing_was_measured(hub: GitHub) -> None:
    """A fork's run on a label: its measuring job is skipped, its publisher may not write; the end of it publishes."""
    published(hub, scene(hub, *SLOWER)[1])
    labelled(hub)
    skipped = published(hub, hub.run(140, HEAD, conclusion="skipped", jobs={"measure": "skipped"}))
    assert (skipped.publication.exit_code, skipped.publication.origin.run_id) == (0, 100)
    after_label = hub.run(150, HEAD, jobs={"measure": "skipped", "publish": "failure"}, conclusion="failure")
    outcome = published(hub, after_label, jobs="measure")
    assert (outcome.publication.exit_code, outcome.publication.origin.run_id) == (0, 100)
    hub.runs[150].jobs["measure"] = "success"  # it ran, and left nothing
    assert published(hub, after_label, jobs="measure").publication.exit_code == 3


def test_a_run_that_failed_does_not_fall_back_on_an_older_one(hub: GitHub) -> None:
    scene(hub, 1.0)
    made = published(hub, hub.run(150, HEAD, conclusion="failure", jobs={"measure": "failure"})).publication
    assert (made.exit_code, made.origin.run_id) == (3, 150)


@pytest.mark.parametrize(
    ("by", "minutes", "why"),
    [
        ("stranger", 10, "stranger may not write"),
        ("maintainer", -10, "pushed to after"),
        ("maintainer", 0, "pushed to after"),
        ("nobody-here", 10, "cannot be seen"),
    ],
)
def test_labels_that_do_not_count(hub: GitHub, slower: Run, by: str, minutes: float, why: str) -> None:
    published(hub, slower)
    labelled(hub, by, minutes)
    outcome = published(hub, slower)
    assert outcome.publication.acceptance is None
    assert outcome.publication.exit_code == 1
    assert any(why in note for note in outcome.notes)
    assert why.rsplit(maxsplit=1)[-1] in only(hub)


def test_nobody_accepts_what_was_not_measured_yet(hub: GitHub, slower: Run) -> None:
    """The label was set after the push, and before there was a verdict; set anew, it counts."""
    labelled(hub, minutes=2)
    outcome = published(hub, slower)
    assert (outcome.publication.acceptance, outcome.publication.exit_code) == (None, 1)
    assert any("no verdict on aaaaaaaaaa was there to accept" in note for note in outcome.notes)
    assert published(hub, slower).publication.acceptance is None
    labelled(hub, minutes=10)
    assert published(hub, slower).publication.acceptance is not None
    hub.now = START + timedelta(minutes=30)
    assert published(hub, slower).publication.acceptance is not None, "publishing once more changes nothing"


def test_a_head_that_left_and_came_back_needs_the_label_anew(hub: GitHub, slower: Run) -> None:
    """The commit is old and its run, too; only the branch's activity tells that it was pushed after the label."""
    published(hub, slower)
    labelled(hub, minutes=10)
    hub.pushes["octo/kernels:refs/heads/faster"] = (HEAD, START + timedelta(minutes=20))
    assert published(hub, slower).publication.acceptance is None


def test_an_acceptance_fixes_no_missing_job(hub: GitHub, slower: Run) -> None:
    labelled(hub)
    slower.jobs["measure (h200)"] = "timed_out"
    assert published(hub, slower).publication.exit_code == 3
