"""Builds, and that each side measures its own code."""

import shutil
import sys
from pathlib import Path

import pytest

from .conftest import PLAIN_PYTHON, Repo, adding

EXTENSION = Path(__file__).parents[2] / "examples" / "extension"
LIBRARY = """
    import perfci
    from library import work

    @perfci.kernel(devices=["cpu"])
    def uses_library(bench):
        return work
"""
ADDRESSES = """
    import os
    from array import array

    import perfci

    @perfci.kernel(devices=["cpu"])
    def adds(bench):
        values = [array("d", bytes(size)) for size in (100_000, 60_000, 5_000, 2_000)]
        addresses = [one.buffer_info()[0] for one in values]
        with open({file!r}, "a") as told:
            print(os.path.basename(os.path.dirname(os.getcwd())), os.getpid(), *addresses, file=told)
        return lambda: sum(values[0])
"""


def test_base_that_cannot_build_is_an_error(repo: Repo) -> None:
    repo.adds("build: echo the compiler is unhappy; exit 7\n", "base")
    repo.policy()
    repo.commit("head builds")
    run = repo.perfci("compare", "--base", "HEAD~1")
    assert run.code == 3
    last = run.err.strip().splitlines()[-1]
    assert "base does not build" in last
    assert "the compiler is unhappy" in last


def test_head_that_cannot_build_fails_its_cases(repo: Repo) -> None:
    repo.adds(message="base")
    repo.policy("build: [echo first, 'echo no rule >&2; exit 2']\n")
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    assert run.classes() == {"adding": "failed"}
    assert "head does not build" in run.reasons()["adding"]
    assert "no rule" in run.reasons()["adding"]


@pytest.mark.slow
def test_both_sides_lay_out_memory_alike_and_anew_with_each_placement(repo: Repo, tmp_path: Path) -> None:
    """What the same code allocates lies at the same addresses on both sides, or one is faster for good."""
    repo.policy()
    repo.write("kernels/a.py", ADDRESSES.format(file=str(tmp_path / "addresses")))
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--measure-all")
    assert run.code == 0, run.out + run.err
    pairs = len(run.results["cases"][0]["pairs"])
    workers: dict[str, dict[str, list[list[int]]]] = {"base": {}, "head": {}}
    for line in (tmp_path / "addresses").read_text().splitlines():
        side, worker, *addresses = line.split()
        workers[side].setdefault(worker, []).append([int(address) for address in addresses])
    base, head = (list(workers[side].values())[-pairs:] for side in ("base", "head"))
    # Later placements follow upon answers with times in them, and hold a digit more or less.
    assert [worker[0] for worker in base] == [worker[0] for worker in head]
    assert pairs >= 8
    assert len({worker[0][0] % 4096 for worker in base}) > 4


def test_both_sides_importing_one_module_is_refused(repo: Repo, tmp_path: Path, env: dict[str, str]) -> None:
    """A library on PYTHONPATH, as an editable install would have it, while the repository holds it under lib/."""
    repo.policy("path: [kernels]\n")
    repo.write("kernels/a.py", LIBRARY)
    repo.write("library.py", "def work():\n    return sum(range(20_000))\n")
    repo.commit()
    repo.env["PYTHONPATH"] = str(repo.root)
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 3, run.out + run.err
    last = run.err.strip().splitlines()[-1]
    assert "imports 'library' from" in last
    assert "PERFCI_SITE" in last


@pytest.mark.slow
def test_a_compiled_extension_is_built_in_both_sides(repo: Repo) -> None:
    """examples/extension with its blocking taken out: the C++ of each side is what is measured in it."""
    shutil.copytree(EXTENSION, repo.root, dirs_exist_ok=True)
    repo.commit("base")
    source = repo.root / "src/blocked/_transpose.cpp"
    source.write_text(
        source.read_text().replace(
            "for (Py_ssize_t row = 0;", "for (int pass = 0; pass < 30; ++pass) for (Py_ssize_t row = 0;"
        )
    )
    run = repo.perfci("compare", "--base", "HEAD", "-k", "transpose/rows=512/columns=512")
    assert run.code == 1, run.out + run.err
    assert run.classes()["transpose/rows=512/columns=512"] == "regression"
    built = {name: side["modules"]["blocked._transpose"] for name, side in run.results["sides"].items()}
    assert set(built) == {"base", "head"}
    assert all(path.startswith("site/blocked/") for path in built.values())


@pytest.mark.slow
def test_sides_with_interpreters_of_their_own(repo: Repo) -> None:
    """A pull request that moves to another Python: workers are started in base and in head, each with its own."""
    kernel = """
        import sys
        import perfci

        @perfci.kernel(devices=["cpu"])
        def prefix(bench):
            bench.reference(lambda: PREFIX, rtol=0, atol=0)
            return lambda: (sum(range(20_000)), sys.prefix)[1]
    """
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/a.py", kernel.replace("PREFIX", repr(sys.base_prefix)))
    repo.commit("base")
    repo.write("perfci.yaml", (repo.root / "perfci.yaml").read_text().replace(PLAIN_PYTHON, sys.executable))
    repo.write("kernels/a.py", kernel.replace("PREFIX", repr(sys.prefix)))
    run = repo.perfci("compare", "--base", "HEAD", "--quick", "--budget", "5m")
    assert run.code == 0, run.out + run.err
    assert [case["sides"][side]["status"] for case in run.results["cases"] for side in ("base", "head")] == ["ok", "ok"]


@pytest.mark.slow
def test_a_long_temporary_path_works(repo: Repo, tmp_path: Path) -> None:
    """The path of a Unix socket ends at 107 bytes; TMPDIR may be longer."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    repo.env["TMPDIR"] = str(long)
    repo.policy()
    repo.write("kernels/adding.py", adding())
    run = repo.perfci("run", "--budget", "20s")
    assert run.code == 0, run.out + run.err


@pytest.mark.slow
def test_another_command_line_is_another_question(repo: Repo) -> None:
    """A head that lets its benchmark do less is not faster: the case has changed."""
    policy = """
        version: 1
        devices: [cpu]
        commands: [{name: app, run: "sleep 0.RUN"}]
        limits: [{cases: "*", metric: time, regression: 30%}]
    """
    repo.write("perfci.yaml", policy.replace("RUN", "06"))
    repo.commit("base")
    repo.write("perfci.yaml", policy.replace("RUN", "02"))
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "20s")
    assert run.code == 0, run.out + run.err
    assert run.classes() == {"app": "changed"}
    assert "sleep 0.06" in run.reasons()["app"]


@pytest.mark.slow
def test_command_cases(repo: Repo) -> None:
    """A process timed from outside, and one that reports its own metrics as JSON lines."""
    repo.write(
        "perfci.yaml",
        f"""
        version: 1
        devices: [cpu]
        python: {sys._base_executable}
        commands:
          - {{name: wall, run: "python3 -c 'sum(range(3000000))'"}}
          - {{name: app, run: python3 app.py, reads: perfci}}
        metrics: {{quality: {{unit: points, better: higher}}}}
        limits:
          - {{cases: "*", metric: time, regression: 80%}}
          - {{cases: "app/*", metric: quality, regression: 5%}}
        """,
    )
    repo.write(
        "app.py",
        """
        import json, os
        with open(os.environ["PERFCI_METRICS"], "a") as file:
            for value in (0.010, 0.011, 0.012):
                file.write(json.dumps({"case": "part/n=1", "metric": "time", "value": value, "unit": "s"}) + "\\n")
            file.write(json.dumps({"case": "part/n=1", "metric": "quality", "value": QUALITY}) + "\\n")
        """.replace("QUALITY", "100"),
    )
    repo.commit("base")
    repo.write("app.py", (repo.root / "app.py").read_text().replace('"value": 100', '"value": 80'))
    run = repo.perfci("compare", "--base", "HEAD")
    assert run.code == 1, run.out + run.err
    rows = {(row["case"], row["metric"]): row["class"] for row in run.report["rows"]}
    assert rows["wall", "time"] == "unchanged"
    assert rows["app/part/n=1", "quality"] == "regression"
    assert rows["app/part/n=1", "time"] == "unchanged"


BESIDE = """
    import os, time
    import perfci

    NOTES = {notes!r}
    SIDE = "head" if "/head/" in os.getcwd() else "base"

    def note(name):
        open(os.path.join(NOTES, name), "a").write("x")

    def seen(name):
        return os.path.exists(os.path.join(NOTES, name))

    @perfci.kernel(devices=["cpu"])
    def first(bench):
        def run():
            note(("first of " if seen("tried first of " + SIDE) else "tried first of ") + SIDE)
            return sum(range(20_000))
        return run

    @perfci.kernel(devices=["cpu"])
    def second(bench):
        def run():
            if not seen("tried second of " + SIDE):  # by its scout
                note("tried second of " + SIDE)
            elif SIDE == "base" and not seen("failed once"):
                end = time.monotonic() + 30
                while not seen("first of head") and time.monotonic() < end:
                    time.sleep(0.01)
                note("failed once" if seen("first of head") else "alone")
                raise RuntimeError("CUDA out of memory")
            return sum(range(20_000))
        return run

    @perfci.kernel(devices=["cpu"])
    def third(bench):
        def run():
            raise RuntimeError("CUDA out of memory: there is none")
        return run
"""


@pytest.mark.slow
def test_memory_that_is_short_for_two_checks_may_do_for_one(repo: Repo, tmp_path: Path) -> None:
    """Head checks its first case while base checks its second, which then has no memory, and is checked alone."""
    notes = tmp_path / "notes"
    notes.mkdir()
    repo.policy()
    repo.write("kernels/a.py", BESIDE.format(notes=str(notes)))
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "20s")
    assert (notes / "failed once").exists() and not (notes / "alone").exists(), run.err
    cases = {case["kernel"]: case["sides"]["base"] for case in run.results["cases"]}
    assert cases["first"]["status"] == cases["second"]["status"] == "ok"
    assert cases["third"]["status"] == "failed"
    assert cases["third"]["reason"]["text"] == "RuntimeError: CUDA out of memory: there is none"


@pytest.mark.slow
def test_what_a_check_compiles_in_the_tree_is_the_sides_own(repo: Repo) -> None:
    """While both sides run nobody can tell whose it is: it is removed, and they are checked one after the other."""
    repo.policy()
    repo.write(
        "kernels/a.py",
        """
        import importlib, os, sys
        import perfci

        TREE, CALLS = os.getcwd(), []

        def work():
            CALLS.append(None)
            if len(CALLS) == 1:  # a scout's only one
                return sum(range(20_000))
            if not os.path.exists("kernels/made.py"):
                open("kernels/made.py", "w").write("def made(): return sum(range(20_000))")
            sys.path.append(os.path.join(TREE, "kernels"))
            importlib.invalidate_caches()
            made = importlib.import_module("made").made
            sys.path.pop()
            return made()

        @perfci.kernel(devices=["cpu"])
        def a(bench):
            return work
        """,
    )
    repo.commit()
    run = repo.perfci("compare", "--base", "HEAD", "--budget", "20s")
    assert "checking again, one side after the other, since there is a new file (base: made.py)" in run.err
    assert run.results["error"] is None and len(run.results["cases"][0]["pairs"]) >= 2, run.out + run.err

    journal = repo.root / "perfci-out" / "journal.jsonl"  # as if it had been killed there
    until, voided, _ = journal.read_text().partition('{"kind":"voided"}\n')
    assert until.count('"kind":"checked"') == 2 and voided
    journal.write_text(until + voided)
    run = repo.perfci("compare", "--resume")
    assert journal.read_text().rpartition(voided)[2].count('"kind":"checked"') == 2, run.out + run.err


def test_what_a_try_compiled_and_left_to_be_compiled_anew_is_no_change_of_a_side_s_files(repo: Repo) -> None:
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write(
        "kernels/built.py",
        """
        import os
        import perfci

        @perfci.kernel(devices=["cpu"])
        def built(bench):
            folder = os.environ["TRITON_CACHE_DIR"]
            made = os.path.join(folder, "built.cubin")
            if not os.path.exists(made):
                os.makedirs(folder, exist_ok=True)
                with open(made, "wb") as out:
                    out.write(os.urandom(8))
            return lambda: sum(range(2_000))
        """,
    )
    repo.commit()
    other = (repo.root / "kernels/built.py").read_text().replace("def built", "def other")
    repo.write("kernels/other.py", other)
    run = repo.perfci("compare", "--base", "HEAD", "--measure-all")
    assert run.code == 0, run.out + run.err
    assert run.classes()["built"] == "unchanged"
