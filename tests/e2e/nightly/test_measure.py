"""`perfci history measure` on real repositories: which comparisons a night makes, what each asks, the exit code."""

import json
import re
from pathlib import Path

import pytest

from perfci.history.document import Commit, Night, Reference
from perfci.history.store import open_store
from perfci.measure.request import MEASURE_ALL
from tests.e2e.conftest import Repo, adding
from tests.history import nights

POLICY = """
    budget: 60s
    limits: [{cases: "*", regression: 200%, creep: 150%}]
"""


def released(repo: Repo) -> str:
    repo.adds(POLICY, "release")
    repo.git("tag", "v1.0")
    return repo.git("rev-parse", "HEAD")


def report(repo: Repo, name: str) -> dict:
    return json.loads((repo.root / "perfci-night" / name / "report.json").read_text())


def results(repo: Repo, name: str) -> dict:
    return json.loads((repo.root / "perfci-night" / name / "results.json").read_text())


@pytest.mark.slow
def test_the_first_night_compares_with_the_release_alone(repo: Repo) -> None:
    """The release itself is measured: what is the same needs no pair."""
    released(repo)
    repo.env[MEASURE_ALL] = "0"
    run = repo.perfci("history", "measure", "--store", "store")
    assert run.code == 0, run.out + run.err
    assert "nothing is recorded yet" in run.err
    assert "against the reference v1.0: pass" in run.out
    assert results(repo, "reference")["plan"]["comparisons"] == 1
    night = json.loads((repo.root / "perfci-night" / "night.json").read_text())
    assert night["reference"]["name"] == "v1.0" and night["last"] is None
    assert not (repo.root / "store").exists(), "a store is read, and made by who records"
    assert repo.git("status", "--porcelain") == ""


def test_an_attempt_again_compares_with_the_night_before_it(repo: Repo) -> None:
    """What the attempt before has recorded is of this very commit: against itself nothing would be found."""
    released(repo)
    sha = repo.commit("night")
    runner = {
        "GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "7391", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_SHA": sha,
        "GITHUB_REPOSITORY": "octo/kernels", "GITHUB_REF": "refs/heads/main",
    }  # fmt: skip
    kept = Commit(sha=sha, date="2026-11-18T01:00:00Z")
    open_store(str(repo.root / "store")).add(nights.night(0, run="7391.epyc", commit=kept))
    plain = dict(repo.env)
    for env, last in ((plain | runner, None), (plain, sha)):
        repo.env.clear()
        repo.env.update(env)
        run = repo.perfci("history", "plan", "--store", "store", fresh=True)
        plan = json.loads(run.out)
        assert (plan["last"] and plan["last"]["sha"]) == last, run.err


def test_a_plan_of_another_commit_or_none_is_refused(repo: Repo, tmp_path: Path) -> None:
    released(repo)
    said = repo.perfci("history", "plan", "--store", "store")
    (tmp_path / "plan.json").write_text(said.out)
    assert said.out.count("\n") == 1
    repo.commit("next")
    for words, text in (
        (("--plan", str(tmp_path / "plan.json")), "and .* is checked out: make it anew"),
        (("--plan", str(tmp_path)), "cannot be read"),
        (("--plan", "perfci.yaml"), "is no plan of a night"),
        ((), "give one"),
        (("--plan", "a", "--store", "b"), "give one"),
    ):
        run = repo.perfci("history", "measure", *words)
        assert run.code == 2
        assert re.search(text, run.err), run.err


def test_a_folder_of_somebody_elses_is_left_alone(repo: Repo) -> None:
    released(repo)
    repo.write("reference/kept.txt", "mine")
    run = repo.perfci("history", "measure", "--store", "store", "--out", ".")
    assert (run.code, "holds reference, which is of no night" in run.err) == (2, True), run.err
    assert (repo.root / "reference/kept.txt").read_text() == "mine"
    assert not (repo.root / ".gitignore").exists()


def recorded(repo: Repo, sha: str, name: str, reference: str) -> None:
    """A night of the store, as it was before today's release."""
    night = Night(
        run="r1",
        started="2026-11-18T03:00:00Z",
        commit=Commit(sha=sha, date="2026-11-18T01:00:00Z"),
        reference=Reference(name=name, commit=Commit(sha=reference, date="2026-11-01T00:00:00Z")),
        devices={"cpu": "a CPU"},
        environment={},
        epoch="0" * 16,
        points=[],
    )
    open_store("store", repo.root).add(night)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_night_makes_each_comparison_by_its_own_limits_and_ends_with_the_worst(repo: Repo) -> None:
    """Main crept away from v1.0 in two steps, each within its limit, and v1.1 is tagged between them."""
    first = released(repo)
    repo.write("kernels/adding.py", adding(spin=8_000))
    second = repo.commit("a step")
    repo.git("tag", "v1.1")
    repo.write("kernels/adding.py", adding(spin=9_000))
    repo.write("kernels/other.py", adding(name="other"))
    repo.commit("another step")
    recorded(repo, second, "v1.0", first)
    repo.git("tag", "-d", "v1.1")

    run = repo.perfci("history", "measure", "--store", "store", "--device", "cpu", "-k", "*")
    assert run.code == 1, run.out + run.err
    ends = run.out.rstrip().splitlines()[-2:]
    assert ends[0].startswith(f"against {second[:10]}, recorded last: pass")
    # On a busy machine pairs drift, and what they show then fails without being a regression.
    assert re.fullmatch(
        "against the reference v1.0: fail: `adding` (is|seems) .* slower.* since the reference", ends[1]
    )
    crept, added = report(repo, "reference")["rows"]
    assert (crept["case"], crept["kind"]) == ("adding", "creep") and crept["class"] in ("regression", "inconclusive")
    assert (added["case"], added["kind"], added["class"]) == ("other", "presence", "added")
    assert {row["kind"] for row in report(repo, "last")["rows"]} == {"regression", "presence"}
    for name in ("last", "reference"):
        plan = results(repo, name)["plan"]
        assert (plan["purpose"], plan["comparisons"], plan["m"]) == (name, 2, 4)
    assert report(repo, "reference")["sides"]["base"]["ref"] == "v1.0"
    assert report(repo, "reference")["command"][-5:] == ["--creep", "--device", "cpu", "-k", "*"]
    assert not (repo.root / "perfci-night" / "seam").exists()

    repo.git("tag", "v1.1", second)
    run = repo.perfci("history", "measure", "--store", "store")
    assert run.code == 0, run.out + run.err
    assert [line.split(":")[0] for line in run.out.rstrip().splitlines()[-3:]] == [
        f"against {second[:10]}, recorded last", "against the reference v1.1", "v1.1 against v1.0, the one before",
    ]  # fmt: skip
    seam = results(repo, "seam")
    assert (seam["plan"]["criteria"], seam["plan"]["m"]) == ([], 1)
    (case,) = seam["cases"]
    assert len(case["pairs"]) == seam["plan"]["looks"]["pairs"][0]
    assert report(repo, "seam")["sentence"] == "Measured: 1 case, not judged"
    said = repo.perfci("history", "record", "perfci-night", "--store", "store")
    assert said.code == 0, said.err
    (one,) = [one for one in nights.nights_in(open_store("store", repo.root)) if one.seam is not None]
    assert one.seam is not None and one.seam.before.name == "v1.0" and one.reference is not None
    assert (one.reference.name, one.last and one.last.sha, one.reference.commit.sha) == ("v1.1", second, second)
    (point,) = one.seam.points
    assert point.last is not None and point.last.ratio is not None and point.last.limit is None
    assert point.last.ratio.ratio > 1.2 and point.last.ratio.pairs == len(case["pairs"])
    assert [seam["sides"][side]["ref"] for side in ("base", "head")] == ["v1.0", "v1.1"]


@pytest.mark.slow
def test_a_reference_that_does_not_build_leaves_the_other_answer(repo: Repo) -> None:
    repo.policy(POLICY + "    build: exit 3\n")
    repo.write("kernels/adding.py", adding())
    first = repo.commit("release")
    repo.git("tag", "v1.0")
    repo.policy(POLICY)
    second = repo.commit("builds")
    recorded(repo, second, "v1.0", first)
    run = repo.perfci("history", "measure", "--store", "store")
    assert run.code == 3
    assert "recorded last: pass" in run.out
    assert "against the reference v1.0: error: " in run.out


@pytest.mark.slow
def test_a_repository_without_a_release_is_measured_alone(repo: Repo) -> None:
    repo.adds("limits: [{cases: '*', metric: time, max: 1s}]\n", "first")
    run = repo.perfci("history", "measure", "--store", "store")
    assert run.code == 0, run.out + run.err
    assert "main alone: pass" in run.out
    assert "creep is not judged" in run.err
    assert results(repo, "alone")["mode"] == "run"
