"""What benchmark scripts import once a run: real runs on the CPU."""

import sys
from textwrap import dedent

import pytest

from benchmarks.agreement import Quiet
from perfci.measure.discovery import discover
from perfci.measure.run import Measurement
from tests.e2e.conftest import PLAIN_PYTHON, Repo
from tests.measure.opened import opened
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
    assert imports_of_dear(repo) == 2, f"by the scout of base, and for all others: {told}"
    assert "imported once for all workers" in told


KEEPS = """
import functools
import torch
from torch.utils.benchmark import Timer

seed = torch.manual_seed
again = functools.partial(Timer.timeit, number=3)
KINDS = {"plain": Timer.timeit}
def by_default(timer, how=Timer.blocked_autorange): return how(timer)
"""
KEPT = """
import helper

for name in "again", "KINDS", "by_default":
    kept = getattr(helper, name)
    (kept["plain"] if name == "KINDS" else kept)(helper.Timer("sum(range(2000))"))
"""


def test_a_timer_that_a_shared_package_keeps_is_replaced_in_all_processes(repo):
    repo.root.parent.joinpath("packages/helper.py").write_text(KEEPS)
    scripted(repo, {"benchmarks/b.py": KEPT}, python=sys.executable)
    results = Measurement(compared(repo, exact_pairs=1), Quiet()).measure()
    assert [(case.id, len(case.pairs)) for case in results.cases] == [
        (f"b/name={name}", 1) for name in ("KINDS", "again", "by_default")
    ]


def test_a_module_that_is_looked_for_alone_is_not_imported(repo):
    script = "import importlib.util\nassert importlib.util.find_spec('dear')\n" + SCRIPT.replace("import dear", "")
    scripted(repo, {"benchmarks/b.py": script})
    measured(repo)
    assert not (repo.root.parent / "times").exists()


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
    "a hook does": (
        {"benchmarks/b.py": "def test():\n    import engine, clock\n    clock.measure(engine.work)\n",
         "conftest.py": "import size\ndef pytest_configure(config):\n    import flags\n    flags.size = size.SIZE\n"}
        | SIZE[0],
        SIZE[1],
    ),
    "a test of another file does": (
        {"benchmarks/a.py": "import size, flags, clock\ndef test():\n    flags.size = size.SIZE\n    clock.measure(int)\n",
         "benchmarks/b.py": "def test():\n    import engine, clock\n    clock.measure(engine.work)\n"} | SIZE[0],
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
        scripted(repo, files, f"{entry}: 'benchmarks/[ab].py'", python)
    case = Measurement(compared(repo, "HEAD~1", exact_pairs=1), Quiet()).measure().cases[-1]
    assert [pair.values["head"]["time"] > 2 * pair.values["base"]["time"] for pair in case.pairs] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
def test_other_arguments_of_the_same_script_share_nothing_behind_it(repo, each):
    packages = repo.root.parent / "packages"
    packages.joinpath("flags.py").write_text(FLAGS)
    packages.joinpath("engine.py").write_text(ENGINE)
    script = "import sys, flags\nflags.size = int(sys.argv[1])\nimport engine, clock\nclock.measure(engine.work)\n"
    for size in ("5000", "50000"):
        files = {"benchmarks/b.py": script, "sizes": f"{size}\n"}
        scripted(repo, files, "script: benchmarks/b.py\n    " + ("each: sizes" if each else f"args: ['{size}']"))
    with opened(compared(repo, "HEAD~1")) as place:
        discover(place, [], print)
    told = (repo.root.parent / "out/logs/imports.log").read_text()
    assert "each worker of head imports engine, and what follows: benchmarks/b.py" in told


@pytest.mark.slow
def test_what_scripts_ask_for_before_anything_that_differs_stays_shared(repo):
    run = "import dear\nimport ops, clock\nclock.measure(ops.work)\n"
    scripted(repo, {"benchmarks/b.py": run, "lib/ops.py": "def work(): return sum(range(2000))\n"})
    repo.write("lib/ops.py", "def work(): return sum(range(1000))\n")
    assert "0 modules" not in discovered(repo)
