"""Benchmark scripts as they are, on the CPU by real processes: what they pass to a timer is a case."""

import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.e2e.conftest import Repo

TIMERS = """
import time
from contextlib import contextmanager


def measure(fn, warmup=2, rep=5):
    for _ in range(warmup):
        fn()
    start = time.perf_counter()
    for _ in range(rep):
        fn()
    return (time.perf_counter() - start) / rep


class Bench:
    def __init__(self, op):
        self.op = op

    def latency(self, call):
        return measure(call)
"""
OPS = """
import contextlib

SPIN = 4_000


def total(values, spin=None):
    for _ in range(SPIN if spin is None else spin):
        pass
    return sum(values)


SPINS = {"listed": 4_000, "registered": 4_000, "caught": 4_000, "classed": 4_000, "closed": 4_000}
current = None


@contextlib.contextmanager
def use(name):
    global current
    before, current = current, name
    try:
        yield
    finally:
        current = before


def registered(values):
    if current is None:
        raise RuntimeError("nothing is registered: it is called outside of its `with` block")
    return total(values, SPINS[current])
"""
SCRIPTS = {
    "listed": """
        import random, sys
        from bench.timers import measure
        from ops import SPINS, total

        results = []
        for size in map(int, sys.argv[1:]):
            for provider in ("ours", "plain"):
                random.seed(1)
                values = [random.random() for _ in range(size)]
                ours = lambda: total(values, SPINS["listed"])
                seconds = measure(ours if provider == "ours" else lambda: sum(values))
                results.append((size, provider, seconds))
        with open("results.csv", "w") as out:
            out.writelines(f"{row}\\n" for row in results)
        assert open("results.csv").read().count("ours") == len(sys.argv) - 1
        """,
    "registered": """
        from bench import timers
        import ops

        def run(size):
            values = list(range(size))
            with ops.use("registered"):
                return timers.measure(lambda: ops.registered(values))

        if __name__ == "__main__":
            for size in (10, 20):
                print(size, run(size))
        """,
    "caught": """
        from bench.timers import measure
        from ops import SPINS, total

        for name in ("broken", "works"):
            try:
                if name == "broken":
                    raise ValueError("not here")
                seconds = measure(lambda: total((1, 2), SPINS["caught"]))
            except BaseException as error:
                seconds = None
            print(name, seconds)
        """,
    "classed": """
        from bench.timers import Bench
        from ops import SPINS, total

        class Sums(Bench):
            def run(self, dtype):
                values = [1.0] * 10 if dtype == "float" else [1] * 10
                return self.latency(lambda: total(values, SPINS["classed"]))

        for dtype in ("float", "int"):
            assert Sums("sums").run(dtype) >= 0
        """,
}
POLICY = """
version: 1
python: PYTHON
suite:
  - script: benchmarks/listed.py
    args: [100, 200]
    device: cpu
    select: {provider: ours}
    reference: {call: {provider: plain}, rtol: 1.0e-9}
    timers: {bench.timers.measure: fn}
  - script: [benchmarks/registered.py, benchmarks/c*.py]
    device: cpu
    timers: {bench.timers.measure: fn, bench.timers.Bench.latency: call}
limits: [{cases: "*", metric: time, regression: 50%}]
"""


@pytest.fixture
def project(repo: Repo) -> Repo:
    repo.policy()
    python = (repo.root / "perfci.yaml").read_text().split("python: ")[1].split("\n")[0]
    repo.write("perfci.yaml", POLICY.replace("PYTHON", python))
    repo.write("bench/__init__.py", "")
    repo.write("bench/timers.py", TIMERS)
    repo.write("ops.py", OPS)
    for name, text in SCRIPTS.items():
        repo.write(f"benchmarks/{name}.py", dedent(text))
    repo.commit()
    return repo


CASES = {
    "listed/size=100/provider=ours", "listed/size=200/provider=ours", "registered/size=10", "registered/size=20",
    "caught", "classed/dtype=float", "classed/dtype=int",
}  # fmt: skip


@pytest.mark.slow
def test_slower_wrong_and_gone_are_found_in_scripts_of_any_shape(project: Repo) -> None:
    slow = OPS.replace('"registered": 4_000', '"registered": 40_000').replace('"caught": 4_000', '"caught": 40_000')
    wrong = slow.replace("return sum(values)", "return sum(values) + (spin == 4_001) + (spin == 4_002)")
    wrong = wrong.replace('"classed": 4_000', '"classed": 4_002')
    project.write("ops.py", wrong.replace('"listed": 4_000', '"listed": 4_001'))
    classed = SCRIPTS["classed"].replace('in ("float", "int")', 'in ("float",)')
    project.write("benchmarks/classed.py", dedent(classed))
    run = project.perfci("compare", "--base", "HEAD")
    failing = {row["case"]: row["reason"] for row in run.report["rows"] if row["effect"] == "fail"}
    assert failing.keys() == CASES - {"classed/dtype=float"}, run.out + run.err
    assert {name for name, kind in run.classes().items() if kind == "failed"} == {
        "listed/size=100/provider=ours", "listed/size=200/provider=ours",
    }  # fmt: skip
    assert run.classes()["classed/dtype=int"] == "missing"
    [told] = [
        row["reason"] for row in run.report["rows"] if (row["case"], row["class"]) == ("classed/dtype=float", "changed")
    ]
    assert "a projection of it is 10 in base, 11 in head" in told
    assert "results.csv" not in project.git("status", "--short")


def test_calls_are_named_by_what_tells_them_apart(project: Repo) -> None:
    listed = project.perfci("list")
    assert {line.split("\t")[0] for line in listed.out.splitlines()} == CASES, listed.out + listed.err


def test_scripts_that_are_not_asked_for_are_not_run(project: Repo, tmp_path: Path) -> None:
    marker = tmp_path / "it was run"
    project.write("benchmarks/classed.py", f"import os\nos.mknod({str(marker)!r})\n" + dedent(SCRIPTS["classed"]))
    policy = (project.root / "perfci.yaml").read_text()
    limit = 'limits: [{cases: "classed/*", metric: time, regression: 40%}, '
    project.write("perfci.yaml", policy.replace("limits: [", limit))
    listed = project.perfci("list", "-k", "listed/size=100/*", "-k", "caught")
    assert [line.split("\t")[0] for line in listed.out.splitlines()] == ["caught", "listed/size=100/provider=ours"]
    assert listed.code == 0, listed.err
    lost = project.perfci("list", "-k", "clased/*", "-k", "caught")
    assert "clased/*: matches no case: did you mean 'classed/*'?" in lost.err
    assert lost.code == 2
    typed = (project.root / "perfci.yaml").read_text()
    project.write("perfci.yaml", typed.replace("benchmarks/registered.py", "benchmarks/registred.py"))
    absent = project.perfci("list")
    assert "benchmarks/registred.py: matches no file: did you mean 'benchmarks/registered.py'?" in absent.err
    assert absent.code == 2
    project.write("perfci.yaml", typed)
    project.write("benchmarks/calls.py", "import sys\nsys.exit('requires SM100')\n")
    skipped = project.perfci("list", "-k", "calls", "-k", "caught")
    assert "calls: matches no case: benchmarks/calls.py is skipped: requires SM100" in skipped.err
    assert not marker.exists()
    project.perfci("list", "-k", "c*")
    assert marker.exists()


def test_scripts_of_one_name_are_told_apart_by_their_folders(project: Repo) -> None:
    policy = (project.root / "perfci.yaml").read_text().replace("benchmarks/c*.py", "benchmarks/**/c*.py")
    project.write("perfci.yaml", policy.replace("    device: cpu\n", ""))
    for folder in ("left", "right"):
        project.write(f"benchmarks/{folder}/caught.py", dedent(SCRIPTS["caught"]))
    listed = project.perfci("list")
    cases = {line.split("\t")[0]: line.split("\t")[1] for line in listed.out.splitlines()}
    assert cases.keys() == CASES - {"caught"} | {"benchmarks_caught", "left_caught", "right_caught"}, listed.err
    device = "cuda" if shutil.which("nvidia-smi") else "cpu"
    assert set(cases.values()) == {device}, "where none is named, what there is"


OWN = """
import random, sys
from bench.timers import measure
import ops

for provider in ("ours", "plain"):
    weight = random.random()  # each provider's own
    measure((lambda: ops.total((1.0, weight), 100)) if provider == "ours" else (lambda: sum((2.0, weight))))
sys.exit("no room for more")
"""


@pytest.mark.slow
def test_nothing_is_compared_with_a_reference_that_base_misses(project: Repo) -> None:
    policy = POLICY.split("  - script: [benchmarks/registered.py", maxsplit=1)[0].replace("[100, 200]", "[100]")
    policy = policy.replace("PYTHON", sys.executable).replace("listed.py", "own.py")
    project.write("perfci.yaml", policy + "limits: [{cases: '*', metric: time, regression: 50%}]\n")
    project.write("benchmarks/own.py", OWN)
    project.commit()
    project.write("ops.py", OPS.replace("return sum(values)", "return sum(values) + 1"))
    run = project.perfci("compare", "--base", "HEAD", "--budget", "60s")
    assert [row["class"] for row in run.report["rows"]] == ["changed", "unchanged"], run.out + run.err
    assert "another result than base's" in run.report["rows"][0]["reason"]
    notes = " ".join(run.report["notes"])
    assert "scripts whose reference base itself misses" in notes
    assert "own/provider=ours (at provider=ours: result is" in notes
    assert (
        "benchmarks/own.py: fails behind call 2 of its timer, so that no more calls are cases: no room for more"
        in notes
    )


def test_a_script_that_is_not_for_this_machine_is_skipped_in_its_words(project: Repo) -> None:
    project.write("benchmarks/calls.py", "import sys\nsys.exit('requires SM100')\n")  # c*.py
    project.write("benchmarks/cuts.py", "import nothing_of_this_name\n")
    project.write("benchmarks/cut_too.py", "import nothing_of_this_name\n")
    listed = project.perfci("list")
    assert {line.split("\t")[0] for line in listed.out.splitlines()} == CASES
    assert "benchmarks/calls.py: skipped: it has no case here: requires SM100 (head)" in listed.err
    assert (
        "benchmarks/cut_too.py, benchmarks/cuts.py: skipped: it has no case here: fails before its first " in listed.err
    )
    assert listed.code == 0


@pytest.mark.parametrize("device", ["    device: cpu\n", ""])
def test_what_base_calls_and_head_does_not_reach_has_failed(project: Repo, device: str) -> None:
    policy = (project.root / "perfci.yaml").read_text()
    project.write("perfci.yaml", policy.replace("    device: cpu\n", device))
    project.commit()
    project.write("benchmarks/caught.py", "import nothing_of_this_name\n")
    run = project.perfci("compare", "-k", "caught", "--base", "HEAD")
    assert run.code == 1
    assert (
        "`benchmarks/caught.py` has no case in head: fails before its first call of a timer" in run.report["sentence"]
    )


@pytest.mark.slow
def test_head_keeps_base_s_name_where_another_file_is_called_alike(project: Repo) -> None:
    policy = (project.root / "perfci.yaml").read_text()
    project.write("perfci.yaml", policy.replace("benchmarks/c*.py", "benchmarks/**/c*.py"))
    project.commit()
    project.write("benchmarks/a/caught.py", dedent(SCRIPTS["caught"]))
    project.write("ops.py", OPS.replace('"caught": 4_000', '"caught": 40_000'))
    run = project.perfci("compare", "-k", "*caught", "--base", "HEAD", "--budget", "40s")
    assert run.classes() == {"caught": "regression", "a_caught": "added"}, run.out + run.err
