"""What a run asks to be imported once, and what it says of it: real runs on the CPU."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.agreement import Quiet
from perfci.measure.options import Options
from perfci.measure.run import Measurement
from perfci.model.results import Results

SUITE = """
import dear
import perfci


@perfci.kernel(params={"n": [2000]}, devices=["cpu"])
def total(bench, n):
    numbers = [bench.random.random() for _ in range(n)]
    bench.reference(lambda: sum(numbers))
    return lambda: sum(numbers)
"""
POLICY = "version: 1\nsuite: [kernels/*.py]\ndevices: [cpu]\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite that imports `dear`, which writes down each time that it is imported."""
    packages, repo = tmp_path / "packages", tmp_path / "repo"
    (repo / "kernels").mkdir(parents=True)
    packages.mkdir()
    (packages / "dear.py").write_text(f"import time\nwith open({str(tmp_path / 'times')!r}, 'a') as f: f.write('x')\n")
    (repo / "kernels/total.py").write_text(SUITE)
    (repo / "perfci.yaml").write_text(POLICY)
    git(repo, "init", "-q")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "suite")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH", "")])))
    return repo


def git(where: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@localhost", *words], cwd=where, check=True)


def measured(repo: Path, pairs: int = 2) -> tuple[Results, str]:
    """A comparison with HEAD, and its `preload.log`."""
    out = repo.parent / "out"
    options = Options("compare", repo, out, base="HEAD", exact_pairs=pairs)
    return Measurement(options, Quiet()).measure(), (out / "logs/preload.log").read_text()


def test_a_dear_import_is_paid_once_a_run(repository):
    results, told = measured(repository)
    assert [len(case.pairs) for case in results.cases] == [2]
    assert (repository.parent / "times").read_text() == "x"
    assert "imported once for all workers" in told


@pytest.mark.slow
def test_what_is_left_to_the_workers_is_named_with_the_reason(repository):
    bad = repository.parent / "packages/bad.py"
    bad.write_text("import random\nrandom.seed(1)\n")
    suite = repository / "kernels/total.py"
    suite.write_text("import bad\n" + suite.read_text())
    git(repository, "commit", "-qam", "more")
    told = measured(repository)[1]
    assert "each worker imports bad: it seeds Python's random numbers" in told
    assert (repository.parent / "times").read_text() == "xx", "once to find what spoils, once without it"


@pytest.mark.slow
def test_an_environment_that_differs_is_imported_by_each(repository):
    (repository / "perfci.yaml").write_text(POLICY + "env: {FLAG: '1'}\n")
    results, told = measured(repository, 1)
    assert [len(case.pairs) for case in results.cases] == [1]
    assert "base and head differ in the environment: FLAG" in told
    assert len((repository.parent / "times").read_text()) >= 4


@pytest.mark.slow
def test_where_a_suite_decides_how_it_imports_the_log_says_what_to_do(repository):
    suite = repository / "kernels/total.py"
    suite.write_text("import os\nos.environ['FLAG'] = '1'\n" + suite.read_text())
    git(repository, "commit", "-qam", "more")
    told = measured(repository, 1)[1]
    assert "kernels/total.py:2: from here on the suite decides how it imports" in told
    assert "env: in perfci.yaml" in told


@pytest.mark.slow
def test_what_is_imported_once_is_no_longer_told_as_dear_in_each_worker(repository):
    dear = repository.parent / "packages/dear.py"
    dear.write_text(dear.read_text() + "time.sleep(0.3)\n")
    results, _ = measured(repository, 1)
    assert results.imports == {}
