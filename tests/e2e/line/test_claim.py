"""`compare --claim`, from outside: exit codes and words."""

import json

import pytest

from tests.e2e.conftest import Repo

SUITE = """
import perfci
import work

@perfci.kernel(devices=["cpu"])
def falls(bench):
    return lambda: sum(range(work.FALLS))

@perfci.kernel(devices=["cpu"])
def stays(bench):
    return lambda: sum(range(work.STAYS))
"""


@pytest.fixture
def faster(repo: Repo) -> Repo:
    """Head takes a twelfth of the time in one of two cases."""
    repo.policy("limits: [{cases: '*', metric: time, regression: 100%}]\n")
    repo.write("kernels/claims.py", SUITE)
    repo.write("work.py", "FALLS = 24_000\nSTAYS = 8_000\n")
    repo.commit("base")
    repo.write("work.py", "FALLS = 2_000\nSTAYS = 8_000\n")
    repo.commit("faster")
    return repo


def test_a_claim_is_shown_or_excluded_and_says_so(faster: Repo) -> None:
    run = faster.perfci("compare", "--base", "main~1", "--claim", "falls: 50%", "--claim", "stays: 50%", "--json")
    report = json.loads(run.out)
    assert (run.code, run.err) == (1, "")
    assert {row["case"]: row["answer"] for row in report["claims"]} == {"falls": "shown", "stays": "not shown"}
    assert report["sentence"].startswith("`stays`: 50 % faster was claimed and is excluded: ")
    assert {row["effect"] for row in report["rows"]} == {"pass"}
    resumed = faster.perfci("compare", "--resume")
    assert resumed.code == 1
    assert "claim not shown: stays 50 % faster: " in resumed.out
    assert "claim shown: falls 50 % faster: " in resumed.out
    assert [len(one["claimed"]["pairs"]) for one in resumed.results["cases"]] == [
        row["pairs"] for row in sorted(report["claims"], key=lambda row: row["case"])
    ], "nothing is measured a second time"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--claim", "fals*: 10%"], "--claim fals*: matches no case that is measured: did you mean 'falls'?"),
        (["--claim", "falls: much"], "--claim 'falls: much': write cases and by how much"),
        (["--claim", "falls"], "--claim 'falls': write cases and by how much their time falls: 'softmax*: 10%'"),
        (["--attempt", "2"], "--attempt: counts claims: give one, such as --claim 'softmax*: 10%'"),
        (["--claim", "falls: 10%", "--gpus", "all"], "--claim: is decided on one GPU in one job"),
    ],
)
def test_a_claim_that_asks_nothing_is_refused_before_anything_is_measured(faster: Repo, words, said) -> None:
    run = faster.perfci("compare", "--base", "main~1", *words)
    assert run.code == 2
    assert said in run.err, run.err
    assert "measuring" not in run.err
