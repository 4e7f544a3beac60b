"""One commit, several questions: the check stands for the worst of them, whoever asks the others, and whenever."""

import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.github.publish import Published, publish
from perfci.github.result import MergeQuestion, Open, Result, decide
from perfci.github.settings import Publishing
from perfci.model.publication import ACCEPT_LABEL
from tests.github.loopback.scene import (
    BASE,
    HEAD,
    LOOSE,
    POLICY,
    SIDE,
    SLOWER,
    api_of,
    beside,
    measured,
    packed,
    protect_side,
    published,
    scene,
)  # fmt: skip
from tests.github.loopback.server import REPOSITORY, ROOT, START, GitHub, Pull, Run


@pytest.fixture
def hub(hub: GitHub) -> GitHub:
    protect_side(hub)
    return hub


def twin(hub: GitHub, number: int = 8, **fields: str) -> Pull:
    """A stranger's pull request of the same commit, into a branch of his choice."""
    return hub.pull(
        number, HEAD, **{"base_ref": "side", "head_ref": "copy", "head_repository": "fork/kernels", **fields}
    )


def of_twin(hub: GitHub) -> Published:
    """The output of its run: slower, and self-reported as fine."""
    made = hub.run(200, HEAD, branch="copy", head_repository="fork/kernels")
    hub.upload(made, packed(measured(*SLOWER, policy=LOOSE, base=ROOT)))
    return published(hub, made)


def concluded(hub: GitHub) -> set[str]:
    return {check["conclusion"] for check in hub.checks}


def titles(hub: GitHub) -> dict[str, str]:
    return {check["external_id"].split("/")[2]: check["output"]["title"] for check in hub.checks}


def test_a_twin_into_a_branch_without_a_policy_passes_nothing(hub: GitHub, slower: Run) -> None:
    """Head brings limits of its own, which nobody reviewed."""
    twin(hub)
    hub.files[HEAD, "perfci.yaml"] = LOOSE.encode()
    assert of_twin(hub).exit_code == 3
    assert concluded(hub) == {"action_required"}
    assert published(hub, slower).exit_code == 1
    assert concluded(hub) == {"action_required"}
    hub.pulls[8].state = "closed"
    publish(beside(hub.pulls[8], 200), "closed", Publishing(), api_of(hub))
    assert concluded(hub) == {"failure"}


@pytest.mark.parametrize("first", [7, 8])
@pytest.mark.parametrize("policy", [LOOSE, POLICY + "fail_on: []\n"])
def test_a_twin_into_a_lenient_branch_passes_nothing(hub: GitHub, slower: Run, first: int, policy: str) -> None:
    twin(hub)
    hub.files[SIDE, "perfci.yaml"] = policy.encode()
    steps = {7: lambda: published(hub, slower), 8: lambda: of_twin(hub)}
    outcome = steps[first]()
    waits = "action_required" if first == 8 else "failure"
    assert concluded(hub) == {waits}, "the other has no result yet"
    if first == 8:
        assert titles(hub)["8"].startswith("Waits for #7 (into main): ")
        assert any("waits for #7 (into main)" in note for note in outcome.notes)
    steps[15 - first]()
    assert concluded(hub) == {"failure"}
    assert titles(hub)["8"].startswith("Held by #7 (into main): ")
    assert not titles(hub)["7"].startswith("Held")
    (held,) = [check for check in hub.checks if check["external_id"].split("/")[2] == "8"]
    assert "The check says what" in held["output"]["summary"] and "into main" in held["output"]["summary"]


def test_a_closed_pull_request_is_not_judged_by_its_own_policy(hub: GitHub) -> None:
    """Its run ends after it was closed; then it is opened again."""
    pull, run = scene(hub, *SLOWER)
    hub.files[HEAD, "perfci.yaml"] = LOOSE.encode()
    pull.state = "closed"
    assert published(hub, run).waiting == "run 100 is of a pull request that is not open any more"
    assert hub.checks == []


def test_closing_the_one_that_fails_passes_no_other(hub: GitHub) -> None:
    """None is open: what is known stays, for whoever opens one next."""
    pull, run = scene(hub, *SLOWER)
    published(hub, run)
    pull.state = "closed"
    hub.run(150, HEAD, conclusion="skipped", jobs={"measure": "skipped"})
    published(hub, hub.runs[150])
    assert concluded(hub) == {"failure"}


def test_a_branch_that_goes_into_two_is_held_until_one_is_closed(hub: GitHub, slower: Run) -> None:
    """The same branch and commit: a run does not tell which it was for."""
    hub.pull(9, HEAD, base_ref="side")
    hub.files[SIDE, "perfci.yaml"] = LOOSE.encode()
    outcome = published(hub, slower)
    assert outcome.exit_code == 3 and "#7, #9 have the same head" in outcome.publication.missing[0]
    assert concluded(hub) == {"action_required"}
    direct = publish(beside(hub.pulls[9], slower.id), "opened", Publishing(), api_of(hub))
    assert direct.exit_code == 3, "measured against main, and this one goes into another branch"
    assert concluded(hub) == {"action_required"}


def test_a_run_that_has_only_begun_is_held_against_what_was_said_before(hub: GitHub) -> None:
    _, run = scene(hub, 1.0)
    published(hub, run)
    assert concluded(hub) == {"success"}
    twin(hub)
    begun = hub.run(200, HEAD, branch="copy", head_repository="fork/kernels", conclusion=None, jobs={"measure": None})
    assert published(hub, begun, action="requested").waiting == "the run has only begun"
    assert concluded(hub) == {"action_required"}


def moved(hub: GitHub, pull: Pull, action: str, **fields: str) -> Published:
    """The base repository's own workflow on a pull request, whatever that brings or runs."""
    made = hub.run(400 + len(hub.runs), BASE, event="pull_request_target", jobs={"publish": None}, conclusion=None)
    context = beside(pull, made.id, "pull_request_target", **fields)
    return publish(context, action, Publishing(), api_of(hub))


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize", "edited"])
def test_a_check_that_was_earned_elsewhere_falls_when_the_commit_is_proposed(hub: GitHub, action: str) -> None:
    """Measured into a lenient branch, then proposed for main, by a change whose own workflow does not run for that."""
    hub.files[BASE, "perfci.yaml"] = POLICY.encode()
    twin(hub)
    hub.files[SIDE, "perfci.yaml"] = LOOSE.encode()
    of_twin(hub)
    assert concluded(hub) == {"success"}
    into_main = hub.pull(7, HEAD, head_ref="copy", head_repository="fork/kernels")
    outcome = moved(hub, into_main, action)
    assert (outcome.exit_code, outcome.waiting) == (0, "pull request #7 is yet to be measured")
    assert concluded(hub) == {"action_required"}
    assert titles(hub)["8"].startswith("Waits for #7 (into main): ")


def test_what_moves_on_or_closes_lets_go_of_the_commit(hub: GitHub) -> None:
    """A stranger can hold a commit up, and only as long as his pull request is open."""
    _, run = scene(hub, 1.0)
    stranger = twin(hub)
    published(hub, run)
    assert concluded(hub) == {"action_required"}
    stranger.head = "d" * 40
    hub.commits["d" * 40] = [HEAD]
    moved(hub, stranger, "synchronize", before=HEAD)
    assert concluded(hub) == {"success"}
    stranger.head = HEAD
    moved(hub, stranger, "synchronize", before="d" * 40)
    assert concluded(hub) == {"action_required"}
    stranger.state = "closed"
    done = moved(hub, stranger, "closed")
    assert (done.exit_code, done.waiting) == (0, "pull request #8 is closed")
    assert concluded(hub) == {"success"}
    assert titles(hub)["7"].startswith("No regression")
    assert "of others" not in hub.checks[0]["output"]["summary"]


def test_a_label_counts_without_a_workflow_of_the_change(hub: GitHub) -> None:
    pull, run = scene(hub, *SLOWER)
    published(hub, run)
    assert moved(hub, pull, "labeled").exit_code == 1, "nobody has set it"
    hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    assert moved(hub, pull, "labeled").exit_code == 0
    assert concluded(hub) == {"success"}
    pull.labels.clear()
    assert moved(hub, pull, "unlabeled").exit_code == 1
    assert concluded(hub) == {"failure"}


def test_a_foreign_check_of_our_name_is_told(hub: GitHub, slower: Run) -> None:
    hub.check("perfci", HEAD, "helpful-bot")
    outcome = published(hub, slower)
    assert any("helpful-bot wrote a check named perfci on this commit" in note for note in outcome.notes)
    assert [check["conclusion"] for check in hub.checks] == ["success", "failure"], "it is not ours to change"


# The merge queue


def queue(hub: GitHub, *ratios: float, number: int = 300) -> str:
    """A group of pull request 7 on main, measured, which brings a policy of its own; its commit."""
    group = "6" * 40
    hub.files[group, "perfci.yaml"] = LOOSE.encode()
    hub.commits[group] = [BASE, HEAD]
    hub.branches[f"gh-readonly-queue/main/pr-7-{BASE}"] = group
    run = hub.run(number, group, branch=f"gh-readonly-queue/main/pr-7-{BASE}", event="merge_group")
    hub.upload(run, packed(measured(*ratios, head=group)))
    return group


def test_an_accepted_regression_is_accepted_in_the_queue(hub: GitHub, slower: Run) -> None:
    published(hub, slower)
    hub.label(hub.pulls[7], ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    queue(hub, *SLOWER)
    outcome = published(hub, hub.runs[300])
    assert (outcome.exit_code, outcome.comment) == (0, None) and outcome.publication.acceptance is not None
    assert [check["conclusion"] for check in hub.checks if check["head_sha"] == "6" * 40] == ["success"]
    hub.pulls[7].head = "d" * 40
    hub.pushes[f"{REPOSITORY}:refs/heads/faster"] = ("d" * 40, START + timedelta(minutes=20))
    assert published(hub, hub.runs[300]).exit_code == 1, "another head was accepted"


def test_nobody_else_speaks_for_a_group(hub: GitHub) -> None:
    """A pull request whose head is the queue's own commit, into a lenient branch."""
    scene(hub)
    group = queue(hub, *SLOWER)
    hub.files[SIDE, "perfci.yaml"] = LOOSE.encode()
    hub.pull(8, group, base_ref="side", head_ref="copy", head_repository="fork/kernels")
    run = hub.run(200, group, branch="copy", head_repository="fork/kernels")
    hub.upload(run, packed(measured(1.0, head=group, base=ROOT)))
    assert published(hub, run).exit_code == 0
    assert concluded(hub) == {"action_required"}, "the queue's own run has not spoken"
    assert published(hub, hub.runs[300]).exit_code == 1
    assert concluded(hub) == {"failure"}
    published(hub, run)
    assert concluded(hub) == {"failure"}


def test_what_was_in_a_queue_is_any_other_commit_afterwards(hub: GitHub) -> None:
    """The branch that it was queued for stands at it, and goes on into main."""
    scene(hub)
    group = queue(hub, 1.0)
    published(hub, hub.runs[300])
    assert concluded(hub) == {"success"}
    del hub.branches[f"gh-readonly-queue/main/pr-7-{BASE}"]
    hub.branches["side"] = group
    hub.pull(9, group, head_ref="side")
    run = hub.run(400, group, branch="side")
    hub.upload(run, packed(measured(*SLOWER, head=group)))
    published(hub, run)
    assert concluded(hub) == {"failure"}


def test_a_check_of_another_app_speaks_for_nobody(hub: GitHub, slower: Run) -> None:
    """Whoever may write checks can write ours, down to its hidden mark."""
    published(hub, slower)
    forged = hub.check("perfci", HEAD, "other-app")
    forged["external_id"] = str(Result("perfci", MergeQuestion.of_pull(7, "main"), 10**17, 1, "success"))
    published(hub, hub.run(150, HEAD, conclusion=None, jobs={"measure": None}), action="requested")
    published(hub, slower)
    assert [check["conclusion"] for check in hub.checks] == ["failure", "success"]


def test_a_run_of_a_stranger_without_an_open_pull_request_says_nothing(hub: GitHub) -> None:
    """Whatever started it: head's own policy would judge it."""
    hub.files[HEAD, "perfci.yaml"] = LOOSE.encode()
    for number, event in enumerate(("pull_request_review", "push", "issue_comment"), 100):
        run = hub.run(number, HEAD, event=event, branch="copy", head_repository="fork/kernels")
        hub.upload(run, packed(measured(1.0)))
        assert published(hub, run).waiting, event
    assert hub.checks == []


# The rule itself

OWNS = ("success", "failure", "neutral", "action_required", "accepted")
RESULTS = st.builds(
    Result,
    suite=st.just("perfci"),
    question=st.sampled_from([MergeQuestion.of_pull(n, b) for n in (0, 7, 8) for b in ("main", "side")] + [MergeQuestion.of_queue(b) for b in ("main", "side")]),
    run=st.integers(1, 3),
    attempt=st.integers(1, 2),
    own=st.sampled_from(OWNS),
)  # fmt: skip
PULLS = st.lists(
    st.builds(Open, st.sampled_from([7, 8]), st.sampled_from(["main", "side"])), unique_by=lambda one: one.number
)


@given(
    st.lists(RESULTS, unique_by=lambda one: (one.question, one.age), max_size=6),
    PULLS,
    st.lists(st.sampled_from(["main", "side"]), unique=True),
)
def test_a_commit_passes_only_where_everything_that_is_asked_does(
    results: list[Result], pulls: list[Open], queued: list[str]
) -> None:
    decided = decide(results, pulls, queued)
    for order in itertools.islice(itertools.permutations(results), 4):
        assert decide(order, pulls, queued) == decided, "whoever comes first"
    if decided is None:
        assert not results
        return
    asked = [MergeQuestion.of_queue(base) for base in queued]
    asked += [pull.question for pull in pulls if pull.base not in queued]
    if decided.conclusion in ("success", "neutral"):
        for question in asked:
            of = [one for one in results if one.question == question]
            assert of and max(of, key=lambda one: one.age).own in ("success", "neutral", "accepted")
    elif asked:
        assert decided.by is None or decided.by.question in asked, "nobody else holds it up"
    assert (decided.by is None) == bool(decided.waits)


@given(RESULTS)
def test_a_result_is_read_as_it_was_written(result: Result) -> None:
    assert Result.read(str(result)) == result
    assert Result.read(str(result) + "/x") is None and Result.read("") is None


def test_nothing_known_is_nothing_decided() -> None:
    assert decide([], []) is None
    assert decide([], [Open(7, "main")]) is None, "nothing of ours is there to hold up"
