"""What is imported once a run, and what is said of it: real runs on the CPU."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.agreement import Quiet
from perfci.measure.request import Request
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
    """A comparison with HEAD, and its `imports.log`."""
    out = repo.parent / "out"
    request = Request.of("compare", repo, out, base="HEAD", exact_pairs=pairs)
    return Measurement(request, Quiet()).measure(), (out / "logs/imports.log").read_text()


def test_a_dear_import_is_paid_once_a_run(repository):
    results, told = measured(repository)
    assert [len(case.pairs) for case in results.cases] == [2]
    assert (repository.parent / "times").read_text() == "xx", "by the scout of base, and for all others"
    assert "imported once for all workers" in told


def test_what_head_alone_provides_is_left_to_the_workers(repository):
    (repository / "kernels/total.py").write_text("import json\n" + SUITE)
    git(repository, "commit", "-qam", "json")
    (repository / "README").write_text("One file more.")
    (repository / "own.py").write_text("")
    (repository / "kernels/total.py").write_text(SUITE.replace("import dear", "import dear, own"))
    results, told = measured(repository, 1)
    assert [len(case.pairs) for case in results.cases] == [1]
    assert "1 modules were imported once for all workers" in told


@pytest.mark.slow
def test_a_side_has_what_its_own_suite_imports_and_nothing_else(repository):
    (repository.parent / "packages/more.py").write_text("import sys\nsys.has_more = True\n")
    suite = repository / "kernels/total.py"
    suite.write_text(
        suite.read_text()
        .replace("lambda: sum(numbers)\n", "lambda: has() or sum(numbers)\n")
        .replace("@perfci", "import sys\ndef has(): assert not hasattr(sys, 'has_more')\n\n@perfci")
    )
    head = suite.read_text()
    suite.write_text("import more\n" + head.replace("assert not", "assert"))
    git(repository, "commit", "-qam", "more")
    suite.write_text(head)
    results, told = measured(repository, 1)
    assert [len(case.pairs) for case in results.cases] == [1]
    assert "1 modules were imported once for all workers" in told, "the one that both ask for"


@pytest.mark.slow
def test_what_a_case_imports_as_it_is_executed_is_imported_once(repository):
    suite = repository / "kernels/total.py"
    text = suite.read_text().replace("import dear\n", "")
    suite.write_text(
        text.replace(
            "    return lambda: sum(numbers)",
            "    def total():\n        import dear\n        return sum(numbers)\n    return total",
        )
    )
    git(repository, "commit", "-qam", "lazy")
    results, _ = measured(repository)
    assert [len(case.pairs) for case in results.cases] == [2]
    assert (repository.parent / "times").read_text() == "xx"


@pytest.mark.slow
def test_what_is_left_to_the_workers_is_named_with_the_reason(repository):
    bad = repository.parent / "packages/bad.py"
    bad.write_text("import random\nrandom.seed(1)\n")
    suite = repository / "kernels/total.py"
    suite.write_text("import bad\n" + suite.read_text())
    git(repository, "commit", "-qam", "more")
    told = measured(repository)[1]
    assert "each worker imports bad: it seeds Python's random numbers" in told
    assert (repository.parent / "times").read_text() == "xx", "what spoils was tried before"


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
    assert "each worker imports dear, and what follows, since the suite decides how" in told
    assert "env: in perfci.yaml" in told


@pytest.mark.slow
def test_what_is_imported_once_is_no_longer_told_as_dear_in_each_worker(repository):
    dear = repository.parent / "packages/dear.py"
    dear.write_text(dear.read_text() + "time.sleep(0.3)\n")
    results, _ = measured(repository, 1)
    assert results.imports == {}
