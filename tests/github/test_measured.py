"""GitHub's own history tells what was compared: the workflow that measured may be the change's own."""

from datetime import timedelta
from typing import Any

import pytest

from perfci.model.criteria import LimitSource
from perfci.model.plan import Looks
from perfci.model.results import Proof, Results
from tests.github.loopback.scene import BASE, HEAD, POLICY, measured, packed, published, refused, replanned, scene
from tests.github.loopback.server import ROOT, START, Answer, GitHub, Run
from tests.judge.build import limit

MERGE = "c" * 40
OTHER = "e" * 40


@pytest.fixture
def hub(hub: GitHub) -> GitHub:
    hub.commits[MERGE] = [BASE, HEAD]
    return hub


def of(head: str = HEAD, base: str | None = BASE, ratio: float = 1.0) -> Results:
    return measured(ratio, 1.0, head=head, base=base)


def first(results: Results, **fields: Any) -> Results:
    """Results with another first case."""
    cases = [results.cases[0].model_copy(update=fields), *results.cases[1:]]
    return results.model_copy(update={"cases": cases})


def refusal(hub: GitHub, results: Results, **wanted: Any) -> str:
    """Tell why it is no answer; empty where it is one."""
    _, run = scene(hub)
    hub.upload(run, packed(results))
    if published(hub, run, **wanted).exit_code:
        return refused(hub, run, **wanted)
    assert hub.checks[-1]["conclusion"] in ("success", "neutral")
    return ""


@pytest.mark.parametrize("head", [HEAD, MERGE])
def test_this_change_against_its_base_is_an_answer(hub: GitHub, head: str) -> None:
    assert refusal(hub, of(head)) == ""


def test_a_base_that_has_moved_on_is_still_the_one_that_was_merged(hub: GitHub) -> None:
    """GitHub has another merge by now, and signed this one."""
    hub.committers[MERGE] = ("noreply@github.com", True)
    hub.branches["main"] = OTHER
    hub.files[OTHER, "perfci.yaml"] = POLICY.encode()
    assert refusal(hub, of(MERGE)) == ""


@pytest.mark.parametrize(
    ("head", "parents", "base", "why"),
    [
        (MERGE, [BASE, HEAD, OTHER], BASE, "not GitHub's merge"),
        (MERGE, [HEAD, BASE], BASE, "not GitHub's merge"),
        (MERGE, [HEAD], HEAD, "not GitHub's merge"),  # a commit upon head that undoes the slow-down
        (MERGE, [BASE, OTHER], BASE, "another commit than the run's"),
        (MERGE, [OTHER, HEAD], OTHER, "another commit than `main` had"),  # a base of the change's own making
        (MERGE, [BASE, HEAD], ROOT, "another commit than `main` had"),  # an older one, which was slower
        (MERGE, [ROOT, HEAD], ROOT, "another commit than `main` had"),  # a merge with where another branch stands
        (HEAD, [BASE], ROOT, "another commit than where it leaves `main`"),
        (HEAD, [BASE], HEAD, "another commit than where it leaves `main`"),
        (HEAD, [BASE], "0" * 40, "another commit than where it leaves `main`"),
    ],
)
def test_another_comparison_is_none(hub: GitHub, head: str, parents: list[str], base: str, why: str) -> None:
    hub.commits[head] = parents
    hub.commits[OTHER] = [BASE]
    assert why in refusal(hub, of(head, base))


def test_only_a_commit_that_github_lacks_is_called_another(hub: GitHub) -> None:
    assert refusal(hub, of("0" * 40)).endswith("measured another commit than the run's")
    hub.fail("GET", f"/git/commits/{MERGE}", Answer(503, {"message": "down"}, times=99))
    assert "the measured commit: HTTP 503: down" in refusal(hub, of(MERGE))


def test_equal_files_are_believed_of_commits_whose_trees_are_equal(hub: GitHub) -> None:
    results = of(MERGE)
    same = Proof(by="files", reason="base and head are the same files")
    for side in results.sides.values():
        side.tree = "f" * 64
    results = replanned(first(results, proof=same, pairs=[]), m=1, looks=Looks.fitted(1))
    assert "calls a case proved by equal files, and the commits differ" in refusal(hub, results)
    hub.trees = {BASE: "5" * 40, MERGE: "5" * 40}  # what the change brings is in base already
    assert refusal(hub, results) == ""


def test_what_was_compared_with_nothing_is_an_answer_where_the_publisher_asks_for_that(hub: GitHub) -> None:
    results = of(base=None)
    results = results.model_copy(update={"mode": "run", "sides": {"head": results.sides["head"]}})
    assert "was compared with nothing, and this change leaves `main`" in refusal(hub, results)
    assert refusal(hub, results, base="none") == ""


def test_another_base_counts_where_the_publisher_names_it(hub: GitHub) -> None:
    hub.branches["release"] = ROOT
    assert "give the publishing action the same `base`" in refusal(hub, of(base=ROOT))
    assert refusal(hub, of(base=ROOT), base="release") == ""
    assert "where it leaves `release`" in refusal(hub, of(base=BASE), base="release")


def test_fewer_cases_pass_only_where_the_publisher_asks_for_them(hub: GitHub) -> None:
    results = measured(1.0, 1.0, declared=["matmul/n=0", "matmul/n=1", "attention/n=1"])
    assert refusal(hub, results).startswith("`attention/n=1` was not measured")
    assert refusal(hub, results, cases=["matmul/*"]) == ""
    assert "does not say which cases there are" in refusal(hub, replanned(results, declared=None))


def test_jobs_share_the_cases_among_them(hub: GitHub, run: Run) -> None:
    for name in (both := ["attention", "matmul"]):
        hub.upload(run, packed(measured(1.0, names=[name], declared=both)), name=f"perfci--measure--0-{name}--1")
    assert published(hub, run).exit_code == 0


def test_another_device_passes_only_where_none_is_demanded(hub: GitHub) -> None:
    results = replanned(of(), devices=["cuda"])
    assert refusal(hub, results) == ""
    said = "nothing was measured on cpu, which is demanded"
    assert refusal(hub, results, device=["cpu"]) == said
    hub.files[BASE, "perfci.yaml"] = f"{POLICY}devices: [cpu]\n".encode()
    assert refused(hub, hub.runs[100]) == said


def test_a_limit_of_the_kernels_own_may_tighten_and_never_loosen(hub: GitHub) -> None:
    results = of(ratio=1.10)
    asked = results.plan.criteria[0]
    where = results.cases[0].sides["head"]
    loose = asked.model_copy(
        update={"bound": 9.0, "source": LimitSource(origin="kernel", where=f"{where.file}:{where.line}")}
    )

    _, run = scene(hub)
    hub.upload(run, packed(replanned(results, criteria=[loose, *results.plan.criteria[1:]])))
    assert published(hub, run).exit_code == 1
    loose.source.where = "elsewhere.py:3"
    said = refusal(hub, replanned(results, criteria=[loose, *results.plan.criteria[1:]]))
    assert "stands neither in a policy nor beside a kernel" in said


def test_no_change_can_be_asked_of_what_is_exact_and_not_of_times(hub: GitHub) -> None:
    results = of()
    for metric, said in (("kernel_launches", ""), ("cycles", "nothing can answer")):
        criteria = [*results.plan.criteria, limit(results.cases[0].id, metric, bound=0.0)]
        why = refusal(hub, replanned(results, criteria=criteria))
        assert said in why and bool(said) == bool(why)


def test_other_looks_and_pairs_of_a_skipped_case_are_refused(hub: GitHub) -> None:
    results = of()
    looks = results.plan.looks.model_copy(update={"pairs": [*results.plan.looks.pairs[:-1], 65]})
    assert "looks or error rates" in refusal(hub, replanned(results, looks=looks))
    assert "calls a case skipped that was measured" in refusal(hub, first(results, stopped="skipped"))


@pytest.mark.parametrize(("origin", "why"), [("command", "takes a kernel for a command"), ("imported", "another tool")])
def test_a_case_of_another_kind_is_refused(hub: GitHub, origin: str, why: str) -> None:
    """Of which other limits would be asked, and no profiler."""
    assert why in refusal(hub, first(of(ratio=1.3), origin=origin))


def test_what_was_measured_before_it_was_retargeted_is_refused(hub: GitHub) -> None:
    pull, run = scene(hub, 1.0)
    hub.branches["release"] = BASE
    hub.retarget(pull, "release", START + timedelta(minutes=2))
    assert refused(hub, run).startswith("run 100 began before #7 was retargeted to release")
    run.attempt = 2
    hub.upload(run, packed(of()), name="perfci--measure--0--2")
    assert published(hub, run).exit_code == 3, "what is started again has the first attempt's base"
    anew = hub.run(200, HEAD, created=START + timedelta(minutes=3))
    hub.upload(anew, packed(of()))
    assert published(hub, anew).exit_code == 0


def test_a_job_that_succeeded_and_left_nothing_was_not_heard(hub: GitHub) -> None:
    _, run = scene(hub, 1.0)
    run.jobs = {"measure (h100)": "success", "measure (h200)": "success", "lint": "success"}
    assert refused(hub, run, jobs="measure*") == "of 2 jobs that measured, 1 handed over what was measured"
    assert hub.checks[0]["output"]["title"].startswith("1 of 2 jobs gave no verdict")


def test_one_job_that_failed_counts_as_one(hub: GitHub, run: Run) -> None:
    hub.upload(run, b"<html>")
    run.jobs = {"measure": "failure"}
    published(hub, run, jobs="measure")
    assert "2 of 2" not in hub.checks[0]["output"]["title"]
    assert hub.checks[0]["output"]["title"].startswith("Nothing was measured: ")
