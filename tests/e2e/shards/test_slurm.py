"""`perfci init --slurm`: what it writes, by hand without Slurm and on a real one, whose nodes are this machine."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Repo, adding

CONF = Path("/var/lib/perfci-slurm/slurm.conf")
"""Of the cluster that .ci/slurm starts."""
SCRIPT = "perf.slurm.sh"


def written(repo: Repo, cases: int = 1, **head: str) -> Repo:
    """A repository with so many cases, what `perfci init --slurm` writes, and `head` at its head; committed."""
    repo.policy("limits: [{cases: '*', metric: time, regression: 40%}]\n")
    for i in range(1, cases + 1):
        repo.write(f"kernels/k{i}.py", adding(name=f"adding{i}"))
    run = repo.perfci("init", "--slurm")
    assert run.code == 0, run.err
    path = repo.root / SCRIPT
    text = path.read_text()
    for name, value in head.items():
        text, count = re.subn(rf'(?m)^{name}=(".*"|\S*)', f"{name}={value}", text)
        assert count == 1, name
    path.write_text(text)
    repo.commit()
    repo.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{repo.env['PATH']}"
    return repo


def typed(repo: Repo, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [f"./{SCRIPT}", *args], cwd=repo.root, env=repo.env, capture_output=True, text=True, timeout=60, check=False
    )


def test_init_writes_it_beside_a_policy_alone(repo: Repo) -> None:
    first = repo.perfci("init", "--slurm")
    assert first.code == 2 and first.err.endswith("perfci.yaml: is missing: `perfci init` writes one\n")
    written(repo)
    assert os.access(repo.root / SCRIPT, os.X_OK)
    assert not (repo.root / ".github").exists()
    again = repo.perfci("init", "--slurm", "--kubernetes")
    assert again.code == 2 and f"{SCRIPT}: is there already" in again.err
    assert not (repo.root / "perf-job.yaml").exists()


def test_a_merge_without_a_plan_or_without_shards_is_no_pass(repo: Repo, tmp_path: Path) -> None:
    """As its job runs it, in a folder with a space."""
    written(repo)
    folder = tmp_path / "a run"
    folder.mkdir()
    for ended, code in (("0", 3), ("2", 2), ("127", 3)):
        (folder / "plan.exit").write_text(f"{ended}\n")
        (folder / "plan.log").write_text("perfci: said why")
        done = typed(repo, "merge", str(folder))
        assert done.returncode == code and (folder / "merge.exit").read_text() == f"{code}\n"
        assert "there is no plan" in done.stderr and "said why" in done.stdout
    (folder / "plan.json").write_text("{}")
    (folder / "shard-1").mkdir()
    done = typed(repo, "merge", str(folder))
    assert done.returncode == 3 and "none of 4 shards gave results" in done.stderr
    assert typed(repo, "again").returncode == 2


def test_what_cannot_be_submitted_is_told(repo: Repo, tmp_path: Path) -> None:
    """By a Slurm that refuses: programs in its place that note what they are told."""
    written(repo)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sbatch").write_text('#!/bin/sh\necho "sbatch: error: Invalid qos" >&2\nexit 1\n')
    (programs / "scancel").write_text(f"#!/bin/sh\necho \"$*\" > '{tmp_path}/cancelled'\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    repo.env["PATH"] = f"{programs}{os.pathsep}{repo.env['PATH']}"
    done = typed(repo)
    assert done.returncode == 2 and "the plan cannot be submitted" in done.stderr
    assert (tmp_path / "cancelled").read_text().startswith("--name=perf-")


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(CONF))
    if not CONF.exists() or not shutil.which("sbatch") or "UP" not in ask("scontrol", "ping"):
        pytest.skip("needs the Slurm that .ci/slurm starts")  # shards without it: tests/e2e/shards/test_shards.py


class Submitted:
    """The script, called and waiting."""

    def __init__(self, repo: Repo) -> None:
        self.process = subprocess.Popen(
            [f"./{SCRIPT}"], cwd=repo.root, env=repo.env | {"SLURM_CONF": str(CONF)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.plan, self.array, self.folder = self._read(line)

    def _read(self, line: str) -> tuple[str, str, Path]:
        found = re.search(r"jobs (\d+) \(plan\), (\d+) \(shards\), .*; results in (.*)$", line)
        assert found, line
        return found[1], found[2], Path(found[3])

    def until(self, what: Callable[[], bool]) -> None:
        while not what():
            assert self.process.poll() is None, self.logs()
            time.sleep(0.2)

    def pairs(self, shard: int) -> list[dict]:
        """Pairs in a shard's journal."""
        path = self.folder / f"shard-{shard}" / "journal.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one["pair"] for one in records if one["kind"] == "pair"]

    def ended(self) -> tuple[int, str]:
        """Exit code and output; the code is that of the job that merges."""
        out, err = self.process.communicate(timeout=600)
        merged = (self.folder / "merge.job").read_text().strip()
        code = re.search(r"\bExitCode=(\d+):0", ask("scontrol", "show", "job", merged))
        assert code and int(code[1]) == self.process.returncode, out + err + self.logs()
        return self.process.returncode, out + err

    def results(self, shard: int) -> dict:
        return json.loads((self.folder / f"shard-{shard}" / "results.json").read_text())

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def submit(slurm: None) -> Iterator[Callable[[Repo], Submitted]]:
    begun: list[Submitted] = []

    def start(repo: Repo) -> Submitted:
        begun.append(Submitted(repo))
        return begun[-1]

    yield start
    for one in begun:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.communicate(timeout=60)


def slower(repo: Repo, case: int) -> None:
    repo.write(f"kernels/k{case}.py", adding(spin=20_000, name=f"adding{case}"))
    repo.commit("slower")


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("planted", [False, True], ids=["pass", "regression"])
def test_four_shards_of_which_one_is_killed_and_requeued(
    repo: Repo, submit: Callable[[Repo], Submitted], planted: bool
) -> None:
    written(repo, 4, base="HEAD~1", measuring="", merging="")
    if planted:
        slower(repo, 3)
    else:
        repo.commit("nothing")
    run = submit(repo)
    run.until(lambda: any(run.pairs(shard) for shard in range(1, 5)))
    killed = next(shard for shard in range(1, 5) if run.pairs(shard))
    task = f"{run.array}_{killed}"
    if planted:  # without a word, as for want of memory; else as by preemption, SIGTERM first
        measuring = run.folder / f"shard-{killed}"
        [process] = [one for one in psutil.process_iter(["cmdline"]) if str(measuring) in (one.info["cmdline"] or [])]
        process.kill()
        run.until(lambda: "JobState=FAILED" in ask("scontrol", "show", "job", task))
    ask("scontrol", "requeue", task)
    before = run.pairs(killed)
    code, out = run.ended()
    report = json.loads((run.folder / "report" / "report.json").read_text())
    if planted:
        assert (code, report["verdict"]) == (1, "fail"), out + run.logs()
        assert [row["case"] for row in report["rows"] if row["class"] == "regression"] == ["adding3"]
    else:
        assert code == 0 and report["verdict"] in ("pass", "undecided"), out + run.logs()
    assert len({row["case"] for row in report["rows"]}) == 4
    assert "Restarts=1 " in ask("scontrol", "show", "job", task)
    results = run.results(killed)
    assert results["error"] is None
    [case] = results["cases"]
    assert all(pair in case["pairs"] for pair in before)  # nothing that was finished is lost, or measured again
    assert [pair["index"] for pair in case["pairs"]] == list(range(len(case["pairs"])))


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_shard_that_stays_away_is_told_by_name(repo: Repo, submit: Callable[[Repo], Submitted]) -> None:
    written(repo, 2, base="HEAD~1", shards="2", measuring="", merging="")
    repo.commit("nothing")
    run = submit(repo)
    ask("scancel", f"{run.array}_2")
    code, out = run.ended()
    assert code == 3
    assert re.search(r"perfci: merge: shard 2 of 2 of plan \w+ is missing", out), out + run.logs()


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plan_that_is_refused_ends_all_with_its_reason(repo: Repo, submit: Callable[[Repo], Submitted]) -> None:
    written(repo, 1, base="gone", measuring="", merging="")
    code, out = submit(repo).ended()
    assert code == 2 and "gone" in out


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cancelled_call_cancels_its_jobs(repo: Repo, submit: Callable[[Repo], Submitted]) -> None:
    written(repo, 1, base="HEAD", shards="2", measuring="", merging="")
    run = submit(repo)
    run.process.terminate()
    _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 3 and "cancelling the jobs perf-" in err
    while ask("squeue", "--noheader", "--jobs", f"{run.plan},{run.array}"):
        time.sleep(0.2)
