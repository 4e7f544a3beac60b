"""What benchmark scripts import once a run: real runs on the CPU."""

import sys
from textwrap import dedent

import pytest

from benchmarks.agreement import Quiet
from perfci.measure.run import Measurement
from tests.e2e.conftest import PLAIN_PYTHON, Repo
from tests.measure.sides.test_imports import ENGINE, FLAGS, Files, compared, discovered, imports_of_dear, measured, repo

__all__ = ["repo"]

CLOCK = """
def measure(fn):
    fn()
    return 1.0
"""
SCRIPT = """
import dear
import clock

clock.measure(lambda: sum(range(2000)))
"""
TESTS = """
import dear
import clock

def test_total():
    clock.measure(lambda: sum(range(2000)))
"""


def scripted(repo: Repo, files: Files, entry: str = "script: benchmarks/b.py", python: str = PLAIN_PYTHON) -> None:
    (repo.root / "kernels/total.py").unlink(missing_ok=True)
    repo.root.parent.joinpath("packages/clock.py").write_text(CLOCK)
    repo.write(
        "perfci.yaml",
        f"version: 1\npython: {python}\ndevices: [cpu]\npath: [lib]\n"
        f"suite:\n  - {entry}\n    device: cpu\n    timers: {{clock.measure: fn}}\n",
    )
    repo.write("lib/plain.py", "")
    for path, text in files.items():
        repo.write(path, dedent(text))
    repo.commit()


@pytest.mark.parametrize(
    ("entry", "text", "python"),
    [
        ("script: benchmarks/b.py", SCRIPT, PLAIN_PYTHON),
        pytest.param("pytest: benchmarks/b.py", TESTS, sys.executable, marks=pytest.mark.slow),
    ],
)
def test_a_scripts_dear_import_is_paid_once_a_run(repo, entry, text, python):
    scripted(repo, {"benchmarks/b.py": text, "benchmarks/conftest.py": "import dear\n"}, entry, python)
    repo.write("lib/other.py", "")
    _, told = measured(repo, exact_pairs=2)
    assert imports_of_dear(repo) == 2, "by the scout of base, and for all others"
    assert "imported once for all workers" in told


def test_a_timer_that_comes_with_a_shared_package_is_replaced_in_head_too(repo):
    script = "import helper\nhelper.benchmark.Timer('sum(range(2000))').timeit(1)\n"
    repo.root.parent.joinpath("packages/helper.py").write_text("import torch.utils.benchmark as benchmark\n")
    scripted(repo, {"benchmarks/b.py": script}, python=sys.executable)
    measured(repo)


def test_a_module_beside_the_script_is_not_one_that_is_installed(repo):
    """It has the name of an installed one, which workers must not find in its place."""
    repo.root.parent.joinpath("packages/utils.py").write_text("size = 1\n")
    script = "import clock\nimport utils\nassert utils.size == 2_000\nclock.measure(lambda: sum(range(utils.size)))\n"
    scripted(repo, {"benchmarks/b.py": script, "benchmarks/utils.py": "size = 2_000\n"})
    repo.write("lib/other.py", "")
    measured(repo)


SIZE = {"lib/size.py": "SIZE = 5_000\n"}, {"lib/size.py": "SIZE = 50_000\n"}
RUN = "import engine, clock\nclock.measure(engine.work)\n"
SET = "import flags\nflags.size = 5_000\n"
SLOWER: dict[str, tuple[Files, Files]] = {
    "the script sets what a package reads": (
        {"benchmarks/b.py": SET + RUN},
        {"benchmarks/b.py": SET.replace("5", "50") + RUN},
    ),
    "a module beside it does": (
        {"benchmarks/b.py": "import local\n" + RUN, "benchmarks/local.py": SET},
        {"benchmarks/local.py": SET.replace("5", "50")},
    ),
    "a function of it does": (
        {"benchmarks/b.py": "import size, flags\ndef run():\n    flags.size = size.SIZE\n    import engine, clock\n"
         "    clock.measure(engine.work)\nrun()\n"} | SIZE[0],
        SIZE[1],
    ),
    "a file that it reads does": (
        {"benchmarks/b.py": "import flags\nflags.size = int(open('size').read())\n" + RUN, "size": "5_000"},
        {"size": "50_000"},
    ),
}  # fmt: skip
TESTED: dict[str, tuple[Files, Files]] = {
    "conftest.py beside it does": (
        {"benchmarks/b.py": "import engine, clock\ndef test(): clock.measure(engine.work)\n", "benchmarks/conftest.py": SET},
        {"benchmarks/conftest.py": SET.replace("5", "50")},
    ),
    "conftest.py above it does, by a module": (
        {"benchmarks/b.py": "import engine, clock\ndef test(): clock.measure(engine.work)\n",
         "conftest.py": "import size, flags\nflags.size = size.SIZE\n"} | SIZE[0],
        SIZE[1],
    ),
    "a plugin does, by a module": (
        {"benchmarks/b.py": "import engine, clock\ndef test(): clock.measure(engine.work)\n",
         "conftest.py": "pytest_plugins = ['plugged']\n", "lib/plugged.py": "import size, flags\nflags.size = size.SIZE\n"}
        | SIZE[0],
        SIZE[1],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SLOWER, *TESTED])
def test_what_differs_is_seen_by_packages_that_scripts_import_after_it(repo, name):
    packages = repo.root.parent / "packages"
    packages.joinpath("flags.py").write_text(FLAGS)
    packages.joinpath("engine.py").write_text(ENGINE)
    entry, python = ("pytest", sys.executable) if name in TESTED else ("script", PLAIN_PYTHON)
    for files in {**SLOWER, **TESTED}[name]:
        scripted(repo, files, f"{entry}: benchmarks/b.py", python)
    (case,) = Measurement(compared(repo, "HEAD~1", exact_pairs=1), Quiet()).measure().cases
    assert [pair.values["head"]["time"] > 2 * pair.values["base"]["time"] for pair in case.pairs] == [True]


@pytest.mark.slow
def test_what_scripts_ask_for_before_anything_that_differs_stays_shared(repo):
    run = "import dear\nimport ops, clock\nclock.measure(ops.work)\n"
    scripted(repo, {"benchmarks/b.py": run, "lib/ops.py": "def work(): return sum(range(2000))\n"})
    repo.write("lib/ops.py", "def work(): return sum(range(1000))\n")
    assert "0 modules" not in discovered(repo)
