"""`perfci compare --gpus` with real processes, on the CPU in the place of each GPU."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import typer

from perfci.cli import gpus as cli
from perfci.measure.request import Request
from perfci.system.gpus import HostGpu
from tests.e2e.conftest import SYSTEM_PYTHON, Repo, Run, as_root, pairs, until

from .test_shards import KERNELS, LIMITS, slower, suite

ROOT = Path(__file__).parents[3]


def start(repo: Repo, *more: str, gpus: int = 2) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.shards.on_cpu", str(gpus), str(repo.root), *more],
        cwd=ROOT, env=repo.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(repo: Repo, process: subprocess.Popen) -> Run:
    out, err = process.communicate(timeout=200)
    return Run(process.returncode, out, err, repo.root)


def shard(repo: Repo, number: int) -> Path:
    return repo.root / "perfci-out" / "shards" / f"shard-{number}"


def kill_when(process: subprocess.Popen, folder: Path, ready: Callable[[Path], bool]) -> None:
    """Kill the measuring process that writes the journal in `folder`, once that is `ready`."""
    journal = folder / "journal.jsonl"
    until(process, lambda: journal.exists() and ready(journal))
    for child in psutil.Process(process.pid).children():
        if any(Path(file.path) == journal for file in child.open_files()):
            child.kill()
            return
    pytest.fail(f"nobody writes {journal}: {process.communicate()}")


def is_of_all(run: Run) -> None:
    """One verdict over all cases. `bee` is far slower; a busy machine may leave that, or others, undecided."""
    assert run.code in (0, 1), run.out + run.err
    classes = run.classes()
    assert set(classes) == set(KERNELS)
    assert classes["bee"] in ("regression", "inconclusive")
    assert {classes[name] for name in KERNELS if name != "bee"} <= {"unchanged", "inconclusive"}
    # Undecided fails, too, where it seems to be over its limit.
    assert run.code == int(run.report["verdict"] == "fail")
    assert run.report["verdict"] == "fail" or classes["bee"] == "inconclusive"
    assert run.results["error"] is None


def no_process_is_left(repo: Repo) -> None:
    """Parents of workers have an address below the folder for temporary files in their command lines."""
    left = [
        one for one in psutil.process_iter(["cmdline"]) if repo.env["TMPDIR"] in " ".join(one.info["cmdline"] or [])
    ]
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not alive


@pytest.mark.slow
def test_two_processes_give_one_verdict(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    run = ended(repo, start(repo))
    is_of_all(run)
    assert run.results["plan"]["m"] == 4
    assert run.results["part"]["shards"] == [1, 2]
    assert "measured at once on CPU 0, CPU 1" in run.out
    parts = [json.loads((shard(repo, number) / "results.json").read_text()) for number in (1, 2)]
    assert [len(one["cases"]) for one in parts] == [2, 2]
    assert (repo.root / "perfci-out" / "samples.jsonl").read_text().count("\n") == sum(
        len(case["pairs"]) for case in run.results["cases"]
    )
    spans = [[pair["at"] for case in one["cases"] for pair in case["pairs"]] for one in parts]
    assert max(map(min, spans)) < min(map(max, spans)), "both measure at the same time"
    no_process_is_left(repo)


@pytest.mark.slow
def test_what_a_lost_gpu_was_to_measure_is_not_answered_and_gone_on_with(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    process = start(repo)
    kill_when(process, shard(repo, 1), lambda journal: len(pairs(journal)) >= 2)
    run = ended(repo, process)
    assert run.code == 3, run.out + run.err
    assert "CPU 0: its measuring process ended: killed by SIGKILL" in run.err and "go on with --resume" in run.err
    taken = len(pairs(shard(repo, 1) / "journal.jsonl"))
    again = ended(repo, start(repo, "--resume"))
    is_of_all(again)
    assert len(pairs(shard(repo, 1) / "journal.jsonl")) > taken, "it went on with what was there"
    no_process_is_left(repo)


@pytest.mark.slow
def test_an_interrupted_run_goes_on(repo: Repo) -> None:
    suite(repo, LIMITS.replace("50%", "10%"))  # more pairs than are taken before the signal
    slower(repo)
    process = start(repo, gpus=5)  # of which one has nothing to do
    until(process, lambda: len(pairs(shard(repo, 1) / "journal.jsonl")) >= 2)
    process.send_signal(signal.SIGINT)
    run = ended(repo, process)
    assert run.code == 3
    assert "interrupted: go on with the same --gpus and --resume" in run.err
    before = {number: pairs(shard(repo, number) / "journal.jsonl") for number in range(1, 5)}
    assert sum(map(len, before.values())) >= 2
    run = ended(repo, start(repo, "--resume", gpus=5))
    is_of_all(run)
    assert "CPU 4 stays idle: 4 cases to share out" in run.err
    assert run.results["part"]["shards"] == [1, 2, 3, 4]
    for number, kept in before.items():
        assert pairs(shard(repo, number) / "journal.jsonl")[: len(kept)] == kept, "none is measured twice"
    no_process_is_left(repo)


@pytest.mark.slow
def test_where_the_one_who_merges_is_killed_nobody_measures_on(repo: Repo) -> None:
    suite(repo)
    slower(repo)
    process = start(repo)
    journal = shard(repo, 2) / "journal.jsonl"
    until(process, journal.exists)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


@as_root
@pytest.mark.slow
def test_code_of_another_user(two_users: Repo) -> None:
    """Who may not change what the others measure, nor the results."""
    repo = two_users
    suite(repo)
    repo.policy(LIMITS, SYSTEM_PYTHON)
    repo.commit("base")
    slower(repo)
    run = ended(repo, start(repo))
    is_of_all(run)
    owner = repo.root.stat()
    for path in (repo.root / "perfci-out").rglob("*"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (owner.st_uid, owner.st_gid), path


def test_each_process_sees_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several are measured by processes of their own; one as by a plain comparison, which asks for that GPU too."""
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cli, "compare_on", lambda members, request, **_: called.append((members, request)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    asked: dict[str, Any] = {"where": tmp_path, "out": tmp_path / "out", "cases": [], "device": None}
    two = [HostGpu(0, "GPU-a", (0, 1)), HostGpu(2, "GPU-b", (2, 3))]
    monkeypatch.setattr(cli, "host_gpus", lambda text: two)
    cli.compare_on_gpus("all", **asked)
    members, request = called.pop()
    assert [(one.name, one.gpu, one.cores) for one in members] == [
        ("GPU 0", "GPU-a", (0, 1)),
        ("GPU 2", "GPU-b", (2, 3)),
    ]
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in members] == ["GPU-a", "GPU-b"]
    assert request.where.gpu is None
    monkeypatch.setattr(cli, "host_gpus", lambda text: two[1:])
    monkeypatch.setattr(cli, "compare_on", pytest.fail)

    def plain(request: Request, **_: Any) -> NoReturn:
        called.append((request, dict(os.environ)))
        raise typer.Exit(0)

    monkeypatch.setattr(cli, "tell_measured", plain)
    with pytest.raises(typer.Exit):
        cli.compare_on_gpus("2", **asked)
    request, env = called.pop()
    assert (request.where.gpu, env["CUDA_VISIBLE_DEVICES"]) == ("GPU-b", "GPU-b")
