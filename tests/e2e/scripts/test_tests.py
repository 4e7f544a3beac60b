"""Benchmarks that pytest runs, and scripts with a list of arguments, on the CPU by real processes."""

import sys
from textwrap import dedent

import pytest

from tests.e2e.conftest import Repo
from tests.e2e.scripts.test_scripts import OPS, TIMERS

CONFTEST = """
    import random
    import pytest
    from bench.timers import Bench

    def pytest_collection_modifyitems(items):
        random.SystemRandom().shuffle(items)

    @pytest.fixture(scope="session")
    def baseline():
        return Bench("baseline").latency(lambda: "not a case")

    def pytest_addoption(parser):
        parser.addoption("--level", choices=["core", "all"], default="all")

    @pytest.fixture
    def sizes(request):
        return [10] if request.config.getoption("--level") == "core" else [10, 20, 30]
"""
TESTS = """
    import pytest
    import ops
    from bench.timers import Bench
    from ops import total

    def by_sum(values):
        return sum(values)

    class Sums(Bench):
        def run(self, sizes, operation=None):
            for size in sizes:
                values = list(range(size))
                try:
                    with ops.use("registered"):
                        seconds = self.latency(lambda: (operation or ops.registered)(values))
                except Exception as error:
                    pytest.fail(str(error))
                assert seconds > 0

    @pytest.mark.parametrize("kind, operation", [("plain", by_sum), ("ours", None)])
    def test_sums(kind, operation, sizes):
        Sums(kind).run(sizes, operation)

    class TestFixture:
        @pytest.mark.parametrize("size", [5, 6])
        def test_fixture(self, benchmark, size):
            assert benchmark(total, [1] * size) == size
            assert benchmark.stats["mean"] > 0

        def test_rounds(self, benchmark):
            benchmark.pedantic(total, setup=lambda: (([1, 2],), {"spin": 5_000}), rounds=5)

    @pytest.mark.parametrize("config", [{"m": 3}, {"m": 4}])
    @pytest.mark.parametrize("nth", [7])
    def test_shared(config, nth, baseline):
        Bench("shared").latency(lambda: total([nth] * config["m"]))

    @pytest.mark.parametrize("file", [__file__])
    def test_shared_again(file, baseline):
        Bench("shared").latency(lambda: total([1] * 9))

    def test_newer_hardware():
        pytest.skip("requires SM100")  # a project's own, which perfci tells as its words
"""
SWEEP = """
    import argparse
    from bench.timers import measure
    from ops import total

    parser = argparse.ArgumentParser()
    parser.add_argument("--routine", required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--fast", action="store_true")
    args = parser.parse_args()
    if args.routine == "next":
        raise SystemExit("requires SM100")
    measure(lambda: total(range(args.n), 2_000 if args.fast else 4_000))
"""
INI = """
[pytest]
addopts = -n 2 --dist loadfile --lf
timeout = 1
"""
LIST = """\
## two sums
--routine sum --n 10
--routine sum --n 20 --fast   # quicker, "so to say
--routine sum --fast --n 20

--routine next --n 10
"""
POLICY = """
version: 1
python: PYTHON
suite:
  - pytest: benchmarks/test_*.py
    args: [--level, core]
    device: cpu
    timers: {bench.timers.Bench.latency: call}
  - script: benchmarks/test_*.py  # which do nothing as programs
    device: cpu
  - script: benchmarks/sweep.py
    each: benchmarks/list.txt
    device: cpu
    timers: {bench.timers.measure: fn}
limits: [{cases: "*", metric: time, regression: 50%}]
"""
LIMITS = "limits: [{cases: '*', metric: time, regression: 50%}]\n"
CASES = {
    "test_norms/test=test_sums/kind=plain/size=10", "test_norms/test=test_sums/kind=ours/size=10",
    "test_norms/test=TestFixture.test_fixture/size=5", "test_norms/test=TestFixture.test_fixture/size=6",
    "test_norms/test=TestFixture.test_rounds", "sweep/n=10", "sweep/n=20",
    "test_norms/test=test_shared/config=__m___3_", "test_norms/test=test_shared/config=__m___4_",
    "test_norms/test=test_shared_again",
}  # fmt: skip


@pytest.fixture
def project(repo: Repo) -> Repo:
    repo.write("perfci.yaml", POLICY.replace("PYTHON", sys.executable))
    repo.write("bench/__init__.py", "")
    repo.write("bench/timers.py", TIMERS)
    repo.write("ops.py", OPS)
    for name, text in (("conftest", CONFTEST), ("test_norms", TESTS), ("sweep", SWEEP)):
        repo.write(f"benchmarks/{name}.py", dedent(text))
    repo.write("benchmarks/list.txt", LIST)
    repo.write("pytest.ini", INI)
    repo.commit()
    return repo


def test_tests_and_lines_of_arguments_name_the_calls(project: Repo) -> None:
    listed = project.perfci("list")
    assert {line.split("\t")[0] for line in listed.out.splitlines()} == CASES, listed.out + listed.err
    assert "benchmarks/list.txt:6: skipped: requires SM100" in listed.err
    assert "test_newer_hardware: skipped: requires SM100" in listed.err
    assert "test_fixture[5], test_fixture[6]: fails, so that only calls before that are cases: TypeError" in listed.err
    assert listed.code == 0


@pytest.mark.slow
def test_slower_wrong_and_gone_are_found_in_tests_and_lines(project: Repo) -> None:
    slow = OPS.replace('"registered": 4_000', '"registered": 40_000')
    project.write("ops.py", slow.replace("return sum(values)", "return sum(values) + (spin == 5_000)"))
    project.write("benchmarks/list.txt", LIST.replace("--routine sum --n 10\n", ""))
    run = project.perfci("compare", "--base", "HEAD")
    failing = {row["case"]: row["class"] for row in run.report["rows"] if row["effect"] == "fail"}
    assert failing == {"test_norms/test=test_sums/kind=ours/size=10": "regression", "sweep/n=10": "missing"}, (
        run.out + run.err
    )
    changed = {row["case"]: row["reason"] for row in run.report["rows"] if row["class"] == "changed"}
    assert "a projection of it is 3 in base, 4 in head" in changed.pop("test_norms/test=TestFixture.test_rounds")
    assert not changed


def test_options_that_pytest_lacks_here_are_named(project: Repo) -> None:
    project.write("perfci.yaml", POLICY.replace("PYTHON", sys.executable).split("  - script:")[0] + LIMITS)
    project.write("pytest.ini", "[pytest]\naddopts = --cov-report=xml --nonsense\n")
    listed = project.perfci("list")
    assert listed.code == 2
    assert listed.err.splitlines()[-1].endswith(
        "test_norms.py: skipped: it has no case here: fails before its first call of a timer: RuntimeError: pytest "
        "cannot run its tests: unrecognized arguments: --cov-report=xml --nonsense (head)"
    )


HELD = """
    import ops
    from torch import library

    library.Library("perfci_held", "DEF")  # once in a process

    def right(values, total):
        assert ops.total(values, 10) == total
"""
HELD_TEST = """
    from held import right
    from ops import total

    def test_held(benchmark):
        benchmark(total, [1, 2], 4_000)
        right([1, 2], 3)
"""


@pytest.mark.slow
def test_what_a_test_asserts_behind_its_call_must_hold_in_head_as_in_base(project: Repo) -> None:
    project.write("perfci.yaml", POLICY.replace("PYTHON", sys.executable).split("  - script:")[0] + "limits: []\n")
    for name, text in (("held", HELD), ("test_held", HELD_TEST), ("test_held_again", HELD_TEST)):
        project.write(f"benchmarks/{name}.py", dedent(text))
    project.commit()
    project.write("ops.py", OPS.replace("return sum(values)", "return sum(values) + (spin == 10)"))
    run = project.perfci("compare", "-k", "test_held*/*", "--base", "HEAD")
    assert run.classes() == dict.fromkeys(["test_held/test=test_held", "test_held_again/test=test_held"], "failed"), (
        run.out + run.err
    )
    assert "its test fails, and does not in base: AssertionError" in run.reasons()["test_held/test=test_held"]


LEVELS = """
    import os
    import pytest

    def pytest_addoption(parser):
        parser.addoption("--level", default="all")

    def pytest_configure(config):
        level = config.getoption("--level")
        assert os.environ.get("LEVEL", level) == level, "another file's level stands"
        os.environ["LEVEL"] = level
        with open("FOUND", "a") as file:
            file.write(f"{os.getpid()} {level}\\n")

    def pytest_unconfigure(config):
        os.environ.pop("LEVEL", None)

    @pytest.fixture(scope="session")
    def values():
        return []
"""
LEVEL_TEST = """
    import os
    import torch
    from ops import total

    torch.set_default_device("meta")

    class TestLevel:
        def test_level(self, benchmark, values, request, tmp_path):
            assert [path.name for path in tmp_path.parent.glob('test_*[0-9]')] == [tmp_path.name]
            from values_of_levels import right
            assert torch.empty(1).device.type == "meta", torch.get_default_device()
            os.chdir(tmp_path)
            assert os.environ["LEVEL"] == request.config.getoption("--level")
            assert not values and not hasattr(self, "values"), "what a test made before still stands"
            self.values = values
            values.append(1)
            assert benchmark(total, values) == right, "the total is wrong"
"""
LEVEL_KERNEL = """
    import os
    from pathlib import Path
    import perfci

    @perfci.kernel(devices=["cpu"])
    def plain(bench):
        assert Path("perfci.yaml").exists(), "a folder of tests stands"
        assert "LEVEL" not in os.environ, "a level of tests stands"
        return lambda: sum(range(10_000))
"""
LEVEL_POLICY = """
version: 1
python: PYTHON
suite:
  - kernels/*.py
  - {pytest: levels/test_core.py, args: [--level, core, --doctest-modules, levels/test_documented.py], device: cpu}
  - {pytest: levels/test_other.py, args: [--level, other], device: cpu}
limits: [{cases: "*", metric: time, regression: 50%}]
"""


@pytest.mark.slow
def test_a_process_finds_a_file_s_tests_once_and_each_case_stands_on_its_own(repo: Repo) -> None:
    found = repo.root.parent / "found.txt"
    repo.write("perfci.yaml", LEVEL_POLICY.replace("PYTHON", sys.executable))
    repo.write("ops.py", OPS)
    repo.write("kernels/plain.py", LEVEL_KERNEL)
    repo.write("pytest.ini", "[pytest]\npythonpath = .\n")
    repo.write("levels/values_of_levels.py", "right = 1\n")
    repo.write("levels/test_documented.py", "def test_none():\n    'Nothing is timed.\\n\\n    >>> 1\\n    1'\n")
    repo.write("levels/conftest.py", dedent(LEVELS).replace("FOUND", str(found)))
    for name in ("core", "other"):
        repo.write(f"levels/test_{name}.py", dedent(LEVEL_TEST))
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--measure-all")
    assert set(run.classes().values()) == {"unchanged"} and len(run.classes()) == 3, run.out + run.err
    lines = found.read_text().splitlines()
    opened = sum(3 * len(case["pairs"]) for case in run.results["cases"])  # by each side, in three placements
    assert max(lines.count(line) for line in set(lines)) < opened / 2
