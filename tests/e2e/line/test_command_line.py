"""Bad command lines: one line, exit code 2, and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import Repo, adding
from ..warm import Warm

BAD = {
    "no such verb": (["comapre"], "No such command 'comapre'"),
    "no such option": (["compare", "--bse", "HEAD"], "No such option: --bse"),
    "option without value": (["compare", "--base"], "--base"),
    "no such base": (["compare", "--base", "no-such-ref"], "no-such-ref"),
    "device": (["run", "--device", "gpu"], "--device gpu: write cuda or cpu"),
    "budget": (["run", "--budget", "long"], "--budget 'long' does not begin with a number"),
    "budget's unit": (["run", "--budget", "3"], "--budget '3' has no known unit"),
    "no budget": (["run", "--budget", "0s"], "--budget must be more than nothing"),
    "wait": (["PERFCI_WAIT=x", "run"], "PERFCI_WAIT 'x' does not begin with a number"),
    "seed": (["PERFCI_SEED=x", "run"], "PERFCI_SEED x: write a number"),
    "negative seed": (["PERFCI_SEED=-1", "run"], "PERFCI_SEED -1: write a number"),
    "no such case": (["run", "ading"], "ading: matches no case: did you mean 'adding'?"),
    "no such cases": (
        ["list", "ading", "zzz"],
        "ading: matches no case: did you mean 'adding'?; zzz: matches no case: there are adding",
    ),
    "one of two cases": (["run", "adding", "ading"], "ading: matches no case: did you mean 'adding'?"),
    "case of a profile": (["profile", "ading/*"], "ading/*: matches no case: did you mean 'adding'?"),
    "case of a calibration": (["calibrate", "ading/*"], "ading/*: matches no case: did you mean 'adding'?"),
    "one of two globs": (["list", "add*", "sub*"], "sub*: matches no case: there are adding"),
    "base mistyped": (
        ["compare", "--base", "mian"],
        "'mian': no such branch, tag or commit here: did you mean 'main'?",
    ),
    "base of no remote": (
        ["compare", "--base", "zzz"],
        "'zzz': no such branch, tag or commit here: see `git branch --all`",
    ),
    "list nowhere": (["list", "--repo", "nowhere"], "--repo nowhere: is no folder"),
    "no such folder": (["run", "--repo", "nowhere"], "--repo nowhere: is no folder"),
    "out is a file": (["run", "--out", "perfci.yaml"], "--out perfci.yaml: is no folder"),
    "python": (["run", "--python", "no-such-python"], "'no-such-python' is no interpreter"),
    "nothing to resume": (["run", "--resume"], "nothing to resume: leave out --resume"),
    "no results": (["report", "nowhere"], "nowhere: cannot be read"),
    "foreign results": (["report", "perfci.yaml"], "perfci.yaml: is no results document"),
    "foreign policy": (
        ["report", "results.json", "--policy", "nowhere.yaml"],
        "--policy nowhere.yaml: cannot be read",
    ),
    "two results": (["report", "results.json", "more.json"], "more.json"),
    "files of base alone": (["import", "--base", "base.json"], "--head"),
    "nothing to import": (["import", "--head", "*.nothing"], "*.nothing: names no file"),
    "import nowhere": (["import", "--head", "nowhere.json"], "nowhere.json: names no file"),
    "interpreter of no base": (["run", "--python", "base:python3"], "--python base:python3: there is no base"),
    "three interpreters": (["compare", "--python", "a", "--python", "b"], "--python b: give one interpreter"),
    "import results": (
        ["import", "--head", "results.json"],
        "results.json: is no result of a tool that perfci reads",
    ),
    "pattern without quotes": (["import", "--head", "a-1.json", "a-2.json", "--base", "b.json"], "a-2.json"),
    "init twice": (["init"], "perfci.yaml: is there already"),
    "init nowhere": (["init", "nowhere"], "nowhere: is no folder"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Repo:
    folder = tmp_path_factory.mktemp("line")  # as TMPDIR it holds a lease of its own, for which nobody waits
    repo = Repo(folder / "repo", {**os.environ, "TMPDIR": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}, warm)
    repo.policy()
    repo.write("kernels/adding.py", adding())
    repo.commit()
    repo.write(
        "results.json",
        '{"version": 1, "run": "x", "mode": "run", "started": "2026-01-01T00:00:00+00:00", "command": [], '
        '"fingerprint": {}, "sides": {"head": {}}, "plan": {"seed": 0, "sides": ["head"]}}',
    )
    return repo


@pytest.mark.parametrize("name", BAD)
def test_each_mistake_is_one_line(repository: Repo, name: str) -> None:
    args, expected = BAD[name]
    run = repository.perfci(*args)
    lines = [
        line
        for line in run.err.strip().splitlines()
        if not line.startswith(
            ("perfci: taking", "perfci: starting", "perfci: importing", "perfci: discovering", "perfci: building")
        )
    ]
    assert run.code == 2, run.err
    assert len(lines) == 1, run.err
    assert expected in lines[0]
    assert lines[0].startswith("perfci")
    assert run.out == ""


def test_a_runner_without_the_gpu_that_was_asked_for_has_failed(repository: Repo) -> None:
    """Not skipped, not passed: exit code 3."""
    run = repository.perfci("run", "--device", "cuda")
    assert run.code == 3
    assert "--device cuda: there is no GPU that torch can use here" in run.err.strip().splitlines()[-1]


def test_an_output_folder_that_cannot_be_made_is_one_line(repository: Repo) -> None:
    run = repository.perfci("run", "--out", "/proc/nowhere")
    assert run.code == 3
    assert run.err.startswith("perfci: /proc/nowhere: cannot be made")
    assert run.err.count("\n") == 1


def test_outside_a_repository(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "perfci", "compare", "--base", "main"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "not a git repository" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_policy(repo: Repo) -> None:
    repo.write("a.txt", "a")
    repo.commit()
    run = repo.perfci("run")
    assert run.code == 2
    assert "there is no policy: write one with `perfci init`" in run.err
    assert run.err.count("\n") == 1


def test_bad_policy_of_base_names_the_commit(repo: Repo) -> None:
    repo.write("perfci.yaml", "version: 1\nsuit: []\n")
    sha = repo.commit()
    repo.policy()
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 2
    assert f"{sha[:10]}:perfci.yaml:2: suit: unknown field: did you mean 'suite'?" in run.err


def test_list_shows_cases_and_limits(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 5%}]\n")
    repo.write("kernels/adding.py", adding())
    run = repo.perfci("list")
    assert run.code == 0, run.err
    assert run.out.split("\t") == ["adding", "cpu", "time within 5 %", "kernels/adding.py:11\n"]


def test_list_says_which_limits_nobody_wrote(repo: Repo) -> None:
    own = """@perfci.kernel(limits=[{"metric": "time", "regression": "7%"}], """
    repo.policy()
    repo.write("kernels/adding.py", adding())
    repo.write("kernels/own.py", adding().replace("def adding", "def own").replace("@perfci.kernel(", own))
    listed = repo.perfci("list").out.splitlines()
    assert [line.split("\t")[2] for line in listed] == ["time within 10 % (default)", "time within 7 %"]


def test_version_and_help_need_no_repository(tmp_path: Path, env: dict[str, str]) -> None:
    for option in ("--version", "--help"):
        done = subprocess.run(
            [sys.executable, "-m", "perfci", option],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "perfci" in done.stdout
