"""Ways to a green check that were tried, and what they meet: numbers are honest, and what is slow is withheld."""

from datetime import timedelta
from pathlib import Path

import pytest

from perfci.github import check
from perfci.github.result import MergeQuestion, Open, Result, decide
from perfci.model.publication import ACCEPT_LABEL
from perfci.model.results import Reason, Results
from perfci.render.fit import LIMIT
from tests.e2e.warm import Warm
from tests.github.loopback.scene import (
    BASE,
    HEAD,
    LOOSE,
    POLICY,
    SIDE,
    SLOWER,
    measured,
    packed,
    proposed,
    protect_side,
    published,
    replanned,
    scene,
)
from tests.github.loopback.server import REPOSITORY, ROOT, START, Answer, GitHub
from tests.github.publishing.test_publish_command import start
from tests.github.test_twins import moved, of_twin, twin
from tests.judge.build import case, side

PASSING = {"success", "neutral"}
FORK = "fork/kernels"
NOW = "e" * 40
LIMITED = Answer(
    403, {"message": "API rate limit exceeded"}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9999999999"}, 99
)


@pytest.fixture
def hub(hub: GitHub) -> GitHub:
    """`side` is protected as `main` is, and lenient."""
    protect_side(hub)
    hub.files = {(BASE, "perfci.yaml"): POLICY.encode(), (SIDE, "perfci.yaml"): LOOSE.encode()}
    return hub


def required(hub: GitHub) -> set[str]:
    """The conclusions that a rule sees which requires `perfci`."""
    return {one["conclusion"] for one in hub.checks if one["name"] == "perfci"}


def on_cpu(results: Results) -> Results:
    cases = [one.model_copy(update={"device": "cpu"}) for one in results.cases]
    asked = [one.model_copy(update={"device": "cpu"}) for one in results.plan.criteria]
    return replanned(results.model_copy(update={"cases": cases}), criteria=asked)


@pytest.mark.parametrize("slow", ["skipped", "on the CPU"])
def test_a_cheap_case_on_the_gpu_excuses_no_other(hub: GitHub, slow: str) -> None:
    """The change's workflow measures twice: everything on a CPU, and one case on the GPU that is demanded."""
    hub.pull(7, HEAD)
    run = hub.run(100, HEAD)
    hub.files[BASE, "perfci.yaml"] = f"{POLICY}devices: [cuda]\n".encode()
    ids = ["cheap", "slow"]
    everything = on_cpu(measured(1.0, 1.0, names=ids, declared=ids))
    if slow == "skipped":
        needs = {"status": "skipped", "kind": "device", "text": "needs cuda"}
        skipped = case("slow", None, base=side(**needs), head=side(**needs), stopped="skipped")
        everything = on_cpu(measured(1.0, names=["cheap"], declared=ids))
        everything.cases.append(skipped)
    hub.upload(run, packed(measured(1.0, names=["cheap"], declared=ids)), name="perfci--measure--0-gpu--1")
    hub.upload(run, packed(everything), name="perfci--measure--1-cpu--1")
    outcome = published(hub, run, device=["cuda"], jobs="measure*")
    assert outcome.publication.missing == [
        "`slow` was not measured on cuda: where fewer cases are intended, give the publishing action the same `cases`"
    ]
    assert required(hub) == {"action_required"}


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("GET", "/pulls$", LIMITED),
        ("PATCH", "/check-runs/", Answer(403, {"message": "You have exceeded a secondary rate limit"}, {"retry-after": "3600"}, 99)),
        ("GET", "/git/matching-refs/", Answer(502, {"message": "Bad gateway"}, times=99)),
    ],
)  # fmt: skip
def test_a_hold_that_fails_is_loud(hub: GitHub, method: str, path: str, answer: Answer) -> None:
    twin(hub)
    of_twin(hub)
    hub.fail(method, path, answer)
    outcome = moved(hub, hub.pull(7, HEAD, head_ref="copy", head_repository=FORK), "opened")
    assert outcome.exit_code == 3 and outcome.notes


def test_the_log_of_a_hold_that_failed_tells_it(hub: GitHub, tmp_path: Path, warm: Warm) -> None:
    twin(hub)
    of_twin(hub)
    payload = proposed(hub.pull(7, HEAD, head_ref="copy", head_repository=FORK), action="opened")
    hub.fail("GET", "/pulls$", LIMITED)
    done, _, summary = start(hub, tmp_path, warm, payload, GITHUB_EVENT_NAME="pull_request_target")
    assert done.returncode == 3
    assert "rate limit" in done.stdout and "rate limit" in summary
    assert "the checks of the commit may say what does not hold any more: run this job again" in done.stdout


def test_branches_whose_names_have_the_same_twelve_digits_are_two_questions() -> None:
    """Of SHA-256: found in 100 s on one core."""
    assert MergeQuestion.of_pull(7, "b3032703") != MergeQuestion.of_pull(7, "b7110513")


def test_the_queue_of_one_branch_does_not_speak_for_another(hub: GitHub) -> None:
    group = "6" * 40
    hub.commits[group] = [SIDE, HEAD]
    name = f"gh-readonly-queue/side/pr-8-{SIDE}"
    hub.branches[name] = group
    hub.pull(8, HEAD, base_ref="side")
    run = hub.run(300, group, branch=name, event="merge_group")
    hub.upload(run, packed(measured(*SLOWER, policy=LOOSE, head=group, base=SIDE)))
    assert published(hub, run).exit_code == 0
    assert required(hub) == {"success"}
    into_main = hub.pull(9, group, head_ref="copy", head_repository=FORK)
    moved(hub, into_main, "opened")
    assert required(hub) == {"action_required"}
    del hub.branches[name]  # merged into side, of which nobody is told
    published(hub, run)
    assert required(hub) == {"action_required"}


def test_a_pull_request_opened_meanwhile_is_waited_for(hub: GitHub) -> None:
    """Another publisher has read which there are, and writes after the hold."""
    twin(hub)
    done: list[str] = []

    def hook(method: str, path: str) -> None:
        if "matching-refs" in path and not done:
            done.append(path)
            moved(hub, hub.pull(7, HEAD, head_ref="other", head_repository=FORK), "opened")

    hub.hook = hook
    of_twin(hub)
    assert done and required(hub) == {"action_required"}


def test_pull_requests_that_come_and_go_without_end_are_told(hub: GitHub) -> None:
    """The newest write may be old already."""
    twin(hub)

    def hook(method: str, path: str) -> None:
        if method == "PATCH" and "/check-runs/" in path:
            hub.pull(max(hub.pulls) + 1, HEAD, head_ref=f"x{len(hub.pulls)}", head_repository=FORK)

    hub.hook = hook
    outcome = of_twin(hub)
    assert any("changed 3 times meanwhile: run the job again" in note for note in outcome.notes)
    assert required(hub) == {"action_required"}


@pytest.mark.slow
def test_pages_that_shift_hide_no_pull_request(hub: GitHub) -> None:
    """#7 goes from the second page to the first while the first is read: another was closed meanwhile."""
    for number in range(1000, 1100):
        hub.pull(number, NOW, base_ref="side", head_ref=f"x{number}", head_repository=FORK)
    twin(hub, number=1100)
    hub.pulls.pop(1099)
    hub.pull(7, HEAD, head_ref="other", head_repository=FORK)
    seen: list[str] = []

    def hook(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/pulls"):
            seen.append(path)
            if len(seen) == 3:
                hub.pulls[1000].state = "closed"

    hub.hook = hook
    of_twin(hub)
    assert len(seen) > 3 and required(hub) == {"action_required"}


@pytest.mark.parametrize("branch", ["mine", "v9"])
def test_a_push_is_judged_by_the_default_branchs_policy(hub: GitHub, branch: str) -> None:
    """A rule may ask for the check and for no pull request: `git push origin X:main`."""
    hub.files[HEAD, "perfci.yaml"] = LOOSE.encode()
    if branch == "mine":  # else a tag
        hub.branches["mine"] = HEAD
    run = hub.run(100, HEAD, branch=branch, event="push")
    hub.upload(run, packed(measured(*SLOWER, policy=LOOSE)))
    published(hub, run)
    assert not required(hub) & PASSING


def test_what_had_no_numbers_is_not_accepted_in_advance(hub: GitHub) -> None:
    pull, run = scene(hub)
    hub.upload(run, b"<html>")
    assert published(hub, run).exit_code == 3
    hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    anew = hub.run(200, HEAD, created=START + timedelta(minutes=11))
    hub.upload(anew, packed(measured(*SLOWER)))
    hub.now = START + timedelta(minutes=12)
    published(hub, anew)
    assert not required(hub) & PASSING


def test_a_verdict_that_was_seen_is_the_one_that_is_accepted(hub: GitHub) -> None:
    """The label was set while all was well; then base's limits are tightened, and the same run is published anew."""
    pull, run = scene(hub)
    hub.files[BASE, "perfci.yaml"] = LOOSE.encode()
    hub.upload(run, packed(measured(*SLOWER, policy=LOOSE)))
    assert published(hub, run).exit_code == 0
    hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    hub.files[BASE, "perfci.yaml"] = POLICY.encode()
    published(hub, run)
    published(hub, run)
    assert required(hub) == {"failure"}


def test_only_what_perfci_says_of_a_policy_is_repeated(hub: GitHub) -> None:
    """An artifact declares fewer cases than base's policy names, and says of that whatever it likes."""
    pull, run = scene(hub)
    hub.files[BASE, "perfci.yaml"] = POLICY.replace("'*'", "'matmul/*'").encode()
    hub.files[HEAD, "perfci.yaml"] = POLICY.replace("'*'", "'cheap'").encode()
    lie = "measured by NVIDIA: 0.0 % slower, safe to merge"
    hub.upload(run, packed(measured(1.0, names=["cheap"], error=Reason(kind="policy", text=lie))))
    published(hub, run)
    hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    published(hub, run)
    assert "safe to merge" not in hub.own_comments()[0]


def test_what_failed_is_not_accepted_as_a_policy_that_is_fixed(hub: GitHub) -> None:
    pull, run = scene(hub)
    hub.files[HEAD, "perfci.yaml"] = POLICY.encode()
    hub.files[BASE, "perfci.yaml"] = POLICY.replace("'*'", "'matmul/*'").encode()
    odd = measured(1.0, names=["cheap"], error=Reason(kind="policy", text="x"))
    hub.upload(run, packed(odd), name="perfci--measure--0--1")
    hub.upload(run, packed(measured(*SLOWER)), name="perfci--measure--1--1")
    published(hub, run)
    hub.label(pull, ACCEPT_LABEL, "maintainer", START + timedelta(minutes=10))
    outcome = published(hub, run)
    assert outcome.exit_code and any(shard.report.exit_code == 1 for shard in outcome.publication.shards)
    assert not required(hub) & PASSING


def test_what_is_said_of_others_fits_into_a_summary(hub: GitHub) -> None:
    """GitHub refuses more than 65 535 characters, and then the check keeps what it said."""
    sent: dict[str, dict[str, str]] = {}

    class Check:
        class output:
            title, summary = "fine", "x" * LIMIT

        status, conclusion = "completed", "success"

        def edit(self, **fields: dict[str, str]) -> None:
            sent.update(fields)

    mine = Result("perfci", MergeQuestion.of_pull(8, "side"), 1, 1, "success")
    pulls = [Open(n, f"{n}" + "@" * 244) for n in (4, 5, 6)] + [Open(7, "main"), Open(8, "side")]
    decided = decide([mine], pulls)
    assert decided is not None
    lead, why = decided.lead(mine)
    check.edit(Check(), lead, why, decided.conclusion)  # type: ignore[arg-type]
    assert LIMIT < len(sent["output"]["summary"]) <= 65_535


@pytest.mark.parametrize("base", ["lenient", "@" * 200])
def test_what_holds_for_a_branch_that_no_rule_protects_has_a_name_of_its_own(hub: GitHub, base: str) -> None:
    """Of a pull request that GITHUB_TOKEN opens or retargets, nobody is told: nothing may be green before."""
    hub.branches[base] = SIDE
    twin(hub, base_ref=base)
    of_twin(hub)
    [made] = hub.checks
    assert made["conclusion"] == "success" and made["name"].startswith("perfci into ") and len(made["name"]) < 100
    hub.pull(7, HEAD, head_ref="copy", head_repository=FORK)
    assert required(hub) == set()
    run = hub.run(300, HEAD, branch="copy", head_repository=FORK)
    hub.pulls[8].state = "closed"
    hub.upload(run, packed(measured(*SLOWER)))
    published(hub, run)
    assert required(hub) == {"failure"}


@pytest.mark.parametrize(("rule", "name"), [("required_status_checks", "perfci"), ("deletion", "perfci into lenient")])
def test_a_ruleset_that_asks_for_checks_protects(hub: GitHub, rule: str, name: str) -> None:
    hub.branches["lenient"] = SIDE
    hub.rules["lenient"] = [rule]
    twin(hub, base_ref="lenient")
    of_twin(hub)
    assert [made["name"] for made in hub.checks] == [name]


def test_a_stranger_holds_nothing_up_from_a_branch_that_no_rule_protects(hub: GitHub) -> None:
    _, run = scene(hub, 1.0)
    hub.branches["lenient"] = SIDE
    twin(hub, base_ref="lenient")
    published(hub, run)
    assert required(hub) == {"success"}


def test_a_stranger_leaves_nothing_on_a_commit_of_main(hub: GitHub) -> None:
    """He opens main's tip into another branch, lets his run fail, and closes it."""
    hub.commits[BASE] = [ROOT]
    hub.before[BASE] = ROOT
    hub.pushes[f"{REPOSITORY}:refs/heads/main"] = (BASE, START)
    run = hub.run(100, BASE, branch="main", event="push")
    hub.upload(run, packed(measured(1.0, head=BASE, base=ROOT)))
    published(hub, run)
    stranger = hub.pull(8, BASE, base_ref="side", head_ref="copy", head_repository=FORK)
    bad = hub.run(200, BASE, branch="copy", head_repository=FORK)
    hub.upload(bad, b"<html>")
    published(hub, bad)
    stranger.state = "closed"
    moved(hub, stranger, "closed")
    assert required(hub) == {"success"}


def test_a_run_that_is_older_than_the_pull_request_is_not_its_own(hub: GitHub) -> None:
    """#8 into a branch that stands where main did long ago is closed while its run measures; #7 is opened into main."""
    hub.commits |= {NOW: [BASE], HEAD: [ROOT], "c" * 40: [BASE, HEAD]}
    hub.branches |= {"main": NOW, "release": BASE}
    hub.files[NOW, "perfci.yaml"] = POLICY.encode()
    hub.pull(8, HEAD, base_ref="release", head_ref="copy", head_repository=FORK, state="closed")
    run = hub.run(100, HEAD, branch="copy", head_repository=FORK, created=START + timedelta(minutes=1))
    hub.upload(run, packed(measured(1.0, head="c" * 40)))
    hub.pull(7, HEAD, head_ref="copy", head_repository=FORK, created=START + timedelta(minutes=5))
    assert "run 100 is older than #7" in published(hub, run).publication.missing[0]
    assert required(hub) == {"action_required"}


@pytest.mark.parametrize(
    ("committer", "verified", "moved", "strict"),
    [
        ("author@example.com", False, False, False),
        ("author@example.com", True, True, False),
        ("noreply@github.com", False, True, True),
        ("noreply@github.com", True, False, False),  # by an app, say
    ],
)
def test_a_merge_of_ones_own_making_is_no_pass(
    hub: GitHub, committer: str, verified: bool, moved: bool, strict: bool
) -> None:
    """Its parents are right, and its files leave out what is slow."""
    made, own = "c" * 40, "d" * 40
    hub.commits |= {made: [BASE, HEAD], own: [BASE, HEAD]}
    hub.committers[own] = committer, verified
    policy = POLICY + "fail_on: [broken, missing, undecided]\n" * strict
    _, run = scene(hub)
    if moved:
        hub.branches["main"] = NOW
        hub.commits |= {"4" * 40: [NOW, HEAD]}
    hub.files[hub.branches["main"], "perfci.yaml"] = policy.encode()
    hub.upload(run, packed(measured(1.0, policy=policy, head=own)))
    outcome = published(hub, run)
    assert required(hub) == {"action_required" if strict else "neutral"} and outcome.exit_code == 3 * strict
    why = "dddddddddd, which was measured, is not known to be GitHub's merge of this change"
    assert f"{'No verdict' if strict else 'Not confirmed'}: {why}" in hub.checks[-1]["output"]["title"]
    hub.upload(run, packed(measured(*SLOWER, policy=policy, head=own)))
    published(hub, run)
    assert required(hub) == {"action_required" if strict else "failure"}, "what fails by it fails"


def test_a_merge_with_the_files_of_githubs_is_believed(hub: GitHub) -> None:
    """GitHub makes another one now and then, at another time."""
    made, earlier = "c" * 40, "d" * 40
    hub.commits |= {made: [BASE, HEAD], earlier: [BASE, HEAD]}
    hub.trees = dict.fromkeys((made, earlier), "5" * 40)
    _, run = scene(hub, 1.0, head=earlier)
    assert published(hub, run).exit_code == 0
    assert required(hub) == {"success"}
