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
    "no such option": (["compare", "--bugdet", "1m"], "No such option: --bugdet (Possible options: --budget"),
    "like a hidden option": (["compare", "--bases", "HEAD"], "No such option: --bases (see `perfci compare --help`)"),
    "option without value": (
        ["compare", "--base"],
        "perfci compare: Option '--base' requires an argument (see `perfci compare --help`)",
    ),
    "verb without its cases": (["explain"], "perfci explain: Missing option '-k' (see `perfci explain --help`)"),
    "cases without -k": (["run", "add*"], "(add*): cases go behind -k (see `perfci run --help`)"),
    "cases as base": (["compare", "add*"], "add*: is no commit: cases go behind -k: perfci compare -k 'add*'"),
    "a case as base": (
        ["compare", "adding"],
        "'adding': no such branch, tag or commit here: see `git branch --all`; cases go",
    ),
    "a case as head": (["compare", "main", "addin"], "here: see `git branch --all`; cases go behind -k"),
    "a range": (["compare", "main..HEAD"], "main..HEAD: is a range: write its ends apart: perfci compare BASE HEAD"),
    "another default branch": (
        ["compare", "master"],
        "'master': no such branch, tag or commit here: did you mean 'main'?",
    ),
    "two bases": (["compare", "main", "--base", "HEAD"], "main, --base HEAD: name one base"),
    "another head on GPUs": (
        ["compare", "main", "main", "--gpus", "all"],
        "main: --gpus and --shard measure this tree",
    ),
    "head mistyped": (["compare", "main", "mian"], "'mian': no such branch, tag or commit here: did you mean 'main'?"),
    "limit beside a policy": (["compare", "--limit", "2%"], "change them there, or leave out --limit"),
    "limit without a percentage": (["compare", "--limit", "2"], "--limit 2: write a percentage such as 2%"),
    "device": (["run", "--device", "gpu"], "--device gpu: write cuda or cpu"),
    "budget": (["run", "--budget", "long"], "--budget 'long' does not begin with a number"),
    "budget's unit": (["run", "--budget", "3"], "--budget '3' has no known unit"),
    "no budget": (["run", "--budget", "0s"], "--budget must be more than nothing"),
    "wait": (["PERFCI_WAIT=x", "run"], "PERFCI_WAIT 'x' does not begin with a number"),
    "seed": (["PERFCI_SEED=x", "run"], "PERFCI_SEED x: write a number"),
    "no such case": (["run", "-k", "ading"], "ading: matches no case: did you mean 'adding'?"),
    "no such cases": (
        ["list", "-k", "ading", "-k", "zzz"],
        "ading: matches no case: did you mean 'adding'?; zzz: matches no case: there are adding",
    ),
    "one of two cases": (["run", "-k", "adding", "-k", "ading"], "ading: matches no case: did you mean 'adding'?"),
    "case of a profile": (["profile", "-k", "ading/*"], "ading/*: matches no case: did you mean 'adding'?"),
    "case of a calibration": (["calibrate", "-k", "ading/*"], "ading/*: matches no case: did you mean 'adding'?"),
    "base mistyped": (
        ["compare", "--base", "mian"],
        "'mian': no such branch, tag or commit here: did you mean 'main'?",
    ),
    "base of no remote": (
        ["compare", "--base", "zzz"],
        "'zzz': no such branch, tag or commit here: see `git branch --all`",
    ),
    "no folder to examine": (["doctor", "--repo", "nowhere"], "--repo nowhere: is no folder"),
    "pairs of a calibration": (["calibrate", "--pairs", "3"], "--pairs 3"),
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
    "variable without a value": (["compare", "--env", "PACE"], "write NAME=VALUE"),
    "name of no variable": (["compare", "--env", "A-B=1"], "write NAME=VALUE"),
    "secret by its name": (["compare", "--env", "base:GITHUB_TOKEN=x"], "looks like a secret"),
    "secret in a value": (["compare", "--env", "INDEX=https://me:pass@example.com/"], "looks like a secret"),
    "perfci's variable": (["compare", "--env", "base:PERFCI_SITE=/tmp"], "perfci sets it itself"),
    "variable of caches": (["compare", "--env", "TRITON_CACHE_DIR=/tmp"], "perfci sets it itself"),
    "variable of threads": (["compare", "--env", "OMP_NUM_THREADS=4"], "perfci sets it itself"),
    "variable of memory": (["compare", "--env", "MALLOC_MMAP_MAX_=1"], "perfci sets it itself"),
    "variable of Python": (["compare", "--env", "PYTHONHASHSEED=1"], "perfci sets it itself"),
    "long value": (["compare", "--env", "A=" + "x" * 9000], "at most 8000 characters"),
    "two values": (["compare", "--env", "PACE=a", "--env", "PACE=b"], "is given twice"),
    "kept of no base": (["PERFCI_KEEP=base", "run"], "PERFCI_KEEP base: write head, or of a comparison base"),
    "kept of both": (["PERFCI_KEEP=both", "compare"], "PERFCI_KEEP both: write head, or of a comparison base"),
    "kept nowhere": (["PERFCI_KEEP=head", "run"], "PERFCI_KEEP: name the folder with PERFCI_CACHE"),
    "kept of a pull request": (
        ["PERFCI_KEEP=base", "PERFCI_CACHE=c", "compare", "--pull-request"],
        "PERFCI_KEEP: a pull request's run keeps nothing",
    ),
    "kept of a shard": (
        ["PERFCI_KEEP=base", "PERFCI_CACHE=c", "compare", "--shard", "p:1/2"],
        "PERFCI_KEEP: a shard keeps no build",
    ),
    "kept of several GPUs": (
        ["PERFCI_CACHE=c", "PERFCI_KEEP=base", "compare", "--gpus", "all"],
        "PERFCI_KEEP: a run on several GPUs keeps no build",
    ),
    "cache of one user": (
        ["PERFCI_CACHE=c", "run"],
        "could write what later is base: name another user in PERFCI_WORKER",
    ),
    "some GPUs": (["compare", "--gpus", "some"], "write all, or numbers"),
    "a GPU twice": (["compare", "--gpus", "0,0"], "a GPU is named twice"),
    "GPUs of a CPU": (["compare", "--gpus", "all", "--device", "cpu"], "measures on GPUs alone"),
    "GPUs of a shard": (["compare", "--gpus", "all", "--shard", "p:1/2"], "a shard is measured on one GPU"),
    "creep since nothing": (["compare", "--creep"], "name the reference"),
    "creep on GPUs": (["compare", "--creep", "--base", "HEAD", "--gpus", "all"], "in one job"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Repo:
    folder = tmp_path_factory.mktemp("line")  # as TMPDIR it holds a lease of its own, for which nobody waits
    repo = Repo(folder / "repo", {**os.environ, "TMPDIR": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}, warm)
    repo.adds()
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
    assert run.out == "" and "pass@" not in run.err


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
    told = repo.perfci("run", "--debug")
    assert told.code == 2 and "Traceback" in told.err, "it keeps the exit code"
    assert "there is no policy" in told.err.splitlines()[-1]


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
    repo.write("kernels/own.py", adding(name="own").replace("@perfci.kernel(", own))
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
