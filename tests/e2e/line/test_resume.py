"""Ctrl-C, and then what the interrupted run advises: it goes on with the base and the options that it was begun with."""

import json
import signal

import pytest

from ..conftest import Repo, Run, adding, pairs, until


def interrupted(repo: Repo, *args: str, folder: str = "perfci-out") -> tuple[Run, list[bytes]]:
    """Press Ctrl-C once there is a pair. Return the run and its pairs."""
    journal = repo.root / folder / "journal.jsonl"
    process = repo.start(*args)
    until(process, lambda: pairs(journal))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    run = Run(process.returncode, out, err, repo.root)
    assert run.code == 3, out + err
    return run, pairs(journal)


@pytest.fixture
def two(repo: Repo) -> Repo:
    """`main` is checked out, and has two commits with two cases."""
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/adding.py", adding())
    repo.write("kernels/other.py", adding(name="other"))
    repo.commit("base")
    repo.write("kernels/adding.py", adding(spin=100))
    repo.commit("head")
    return repo


ASKED = ["--base", "HEAD~1", "--budget", "5m", "--strict", "--measure-all", "-k", "add*"]


@pytest.mark.slow
def test_what_an_interrupted_comparison_advises_goes_on_with_it(two: Repo) -> None:
    run, before = interrupted(two, "PERFCI_SEED=7", "compare", *ASKED)
    assert run.err.splitlines()[-1] == "perfci: interrupted: go on with --resume"
    base = two.git("rev-parse", "HEAD~1")
    advised = run.report["advised"]
    assert advised == ["perfci", "compare", "--base", base, *ASKED[2:], "--resume"]
    for words in (["compare", "--resume"], advised[1:]):
        again = two.perfci(*words)
        assert again.code in (0, 1), again.out + again.err  # a busy machine may leave it undecided, which fails
        assert "note: what has no answer fails the run too (--strict" in again.out
        assert again.results["sides"]["base"]["commit"] == base
        assert again.results["plan"]["seed"] == 7
        assert [case["id"] for case in again.results["cases"]] == ["adding"]
        assert again.report["command"] == ["perfci", "compare", "--base", base, *ASKED[2:]]
        kept = pairs(two.root / "perfci-out" / "journal.jsonl")
        assert kept[: len(before)] == before
        before = kept
    contradicted(two)


def contradicted(two: Repo) -> None:
    """What is said again and is another is refused in one line, at once; what is the same is not."""
    for words, named in (
        (["HEAD"], "BASE"),
        (["PERFCI_SEED=8"], "PERFCI_SEED"),
        (["-k", "oth*"], "-k"),
        (["--env", "A=b"], "--env"),
    ):
        variables = [word for word in words if word.startswith("PERFCI_")]
        run = two.perfci(*variables, "compare", "--resume", *(word for word in words if word not in variables))
        assert run.code == 2
        journal = two.root / "perfci-out" / "journal.jsonl"
        assert run.err == (
            f"perfci: {journal}: cannot resume: was begun with another {named}: leave it out, or --resume to begin anew\n"
        )
    run = two.perfci("run", "--resume")
    assert (run.code, run.err.count("\n")) == (2, 1)
    assert "cannot resume: is of `perfci compare`" in run.err
    two.write("kernels/other.py", adding(name="other") + "\n# head has changed\n")
    run = two.perfci("compare", "--resume", "--base", "HEAD~1")
    assert run.code == 2
    assert "cannot resume: the code of head has changed since" in run.err.splitlines()[-1]


@pytest.mark.slow
def test_an_interrupted_calibration_goes_on_with_its_pairs(two: Repo) -> None:
    folder = "perfci-out/calibration"
    run, before = interrupted(two, "PERFCI_SEED=7", "calibrate", "--pairs", "8", "-k", "add*", folder=folder)
    assert run.err.splitlines()[-1] == "perfci: interrupted: go on with --resume"
    again = two.perfci("calibrate", "--resume")
    assert again.code in (0, 1), again.out + again.err
    results = json.loads((two.root / folder / "results.json").read_text())
    assert [(case["id"], len(case["pairs"])) for case in results["cases"]] == [("adding", 8)]
    assert pairs(two.root / folder / "journal.jsonl")[: len(before)] == before


def test_there_is_nothing_to_go_on_with(two: Repo) -> None:
    run = two.perfci("compare", "--resume")
    assert (run.code, run.err.count("\n")) == (2, 1)
    assert "nothing to resume: leave out --resume" in run.err
