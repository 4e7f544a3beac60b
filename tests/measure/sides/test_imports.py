"""What is imported once a run, and what is said of it: real runs on the CPU."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agreement import Quiet
from perfci.measure.discovery import discover
from perfci.measure.request import Request
from perfci.measure.run import Measurement
from perfci.measure.sides.imports import _alike
from perfci.model.results import Results
from tests.e2e.conftest import PLAIN_PYTHON, Repo
from tests.measure.opened import opened

SUITE = """
import dear
import perfci


@perfci.kernel(params={"n": [2000]}, devices=["cpu"])
def total(bench, n):
    numbers = [bench.random.random() for _ in range(n)]
    bench.reference(lambda: sum(numbers))
    return lambda: sum(numbers)
"""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A suite that imports `dear`, which writes down each time that it is imported."""
    packages, made = tmp_path / "packages", Repo(tmp_path / "repo", dict(os.environ))
    packages.mkdir()
    note = f"import time\ntime.sleep(0.3)\nwith open({str(tmp_path / 'times')!r}, 'a') as f: f.write('x')\n"
    (packages / "dear.py").write_text(note)
    made.write("kernels/total.py", SUITE)
    made.policy()
    made.commit()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # no run beside this one holds its lease
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH", "")])))
    return made


def compared(repo: Repo, base: str = "HEAD", **more: Any) -> Request:
    return Request.of("compare", repo.root, repo.root.parent / "out", base=base, **{"exact_pairs": 1} | more)


def logged(repo: Repo) -> str:
    return (repo.root.parent / "out/logs/imports.log").read_text()


def measured(repo: Repo, **more: Any) -> tuple[Results, str]:
    """A comparison with HEAD, all of whose pairs were taken, and its `imports.log`."""
    results = Measurement(compared(repo, **more), Quiet()).measure()
    assert [len(case.pairs) for case in results.cases] == [more.get("exact_pairs", 1)]
    return results, logged(repo)


def discovered(repo: Repo) -> str:
    """The `imports.log` of a run that ends once both suites are known."""
    with opened(compared(repo)) as place:
        discover(place, [], print)
    return logged(repo)


def imports_of_dear(repo: Repo) -> int:
    return len((repo.root.parent / "times").read_text())


def test_a_dear_import_is_paid_once_a_run_and_no_longer_told_as_dear(repo):
    results, told = measured(repo, exact_pairs=2, python=sys.executable)
    assert imports_of_dear(repo) == 2, "by the scout of base, and for all others"
    assert "imported once for all workers" in told
    assert results.imports == {}


@pytest.mark.slow
def test_what_head_alone_provides_is_left_to_the_workers(repo):
    repo.write("kernels/total.py", "import json\n" + SUITE)
    repo.commit()
    repo.write("README", "One file more.")
    repo.write("own.py", "")
    repo.write("kernels/total.py", SUITE.replace("import dear", "import dear, own"))
    assert "1 module imported once for all workers" in measured(repo)[1]


@pytest.mark.slow
def test_a_side_has_what_its_own_suite_imports_and_nothing_else(repo):
    (repo.root.parent / "packages/more.py").write_text("import sys\nsys.has_more = True\n")
    head = SUITE.replace("lambda: sum(numbers)\n", "lambda: has() or sum(numbers)\n").replace(
        "@perfci", "import sys\ndef has(): assert not hasattr(sys, 'has_more')\n\n@perfci"
    )
    base = head.replace("assert not", "assert").replace("import dear\n", "import dear\nimport more\n")
    repo.write("kernels/total.py", base)
    repo.commit()
    repo.write("kernels/total.py", head)
    assert "1 module imported once for all workers" in measured(repo)[1], "the one that both ask for"


ENGINE = """
import flags, os, pkgutil
found = [one.name for one in pkgutil.iter_modules(["parts"])]
SIZE = int(open("size.cfg").read()) if os.path.exists("size.cfg") else 50_000 if "fast" in found else flags.size
def work(): return sum(range(SIZE))
"""
FLAGS = """
size = 5_000
def read(path): return open(path).read()
def sized(number):
    global size
    size = number
    return lambda function: function
"""
USES = """
import perfci
{before}
{top}
@perfci.kernel(devices=["cpu"])
def works(bench):
    {inside}
    import engine
    return engine.work
"""


Files = dict[str, str]
SMALL, LARGE = "import flags\nflags.size = 5_000\n", "import flags\nflags.size = 50_000\n"
NAMING = f"version: 1\nsuite: [kernels/*.py, setup/size.py]\npython: {PLAIN_PYTHON}\ndevices: [cpu]\npath: [lib]\n"
SIZES = {"lib/size.py": "SIZE = 5_000\n"}, {"lib/size.py": "SIZE = 50_000\n"}


def suite(before: str, top: str = "import engine", inside: str = "pass") -> Files:
    return {"kernels/u.py": USES.format(before=before, top=top, inside=inside)}


def through(boot: str) -> tuple[Files, Files]:
    """A number of `lib/size.py` that `lib/boot.py` sets in a package."""
    return SIZES[0] | {"lib/boot.py": f"import flags\n{boot}\n"} | suite("import size\nimport boot"), SIZES[1]


def linked(path: str, small: str, large: str, links: Files, before: str) -> tuple[Files, Files]:
    """A file in two folders; head has the first of the links lead into the large one."""
    link = next(iter(links))
    files = {f"small/{path}": small, f"large/{path}": large, **links}
    return files | suite(before), {link: links[link].replace("small", "large")}


SLOWER = {
    "by a name": through("import importlib\nflags.size = importlib.import_module('size').SIZE"),
    "in a function": through("def get():\n    from size import SIZE\n    return SIZE\nflags.size = get()"),
    "in a block": through(
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from size import SIZE\nflags.size = SIZE"
    ),
    "by its text": through(
        "import size\nwords = {}\nexec(open(size.__file__).read(), words)\nflags.size = words['SIZE']"
    ),
    "by a decorator": (
        suite("import flags", "@flags.sized(5_000)\ndef f(): pass\nimport engine"),
        suite("import flags", "@flags.sized(50_000)\ndef f(): pass\nimport engine"),
    ),
    "by a module that fails": (
        {
            "lib/fails.py": SMALL + "raise ImportError\n",
            **suite("try:\n    import fails\nexcept ImportError:\n    pass"),
        },
        {"lib/fails.py": LARGE + "raise ImportError\n"},
    ),
    "by a thread": (
        {"conf/size": "5_000"}
        | suite(
            "import flags, glob, concurrent.futures as c\n"
            "flags.size = int(next(c.ThreadPoolExecutor().map(flags.read, glob.glob('conf/*'))))"
        ),
        {"conf/size": "50_000"},
    ),
    "code sets what a package reads as it is imported": (suite(SMALL), suite(LARGE)),
    "the same by a module that others read": (
        SIZES[0]
        | {"lib/uses.py": "import flags\nfrom size import SIZE\nflags.size = SIZE\nimport engine\n"}
        | suite("import uses"),
        SIZES[1],
    ),
    "the same as a case is executed": (
        suite("import flags", "", "flags.size = 5_000"),
        suite("import flags", "", "flags.size = 50_000"),
    ),
    "the same by a suite file without cases": (
        suite("import flags", "") | {"kernels/v.py": "import flags\n"},
        {"kernels/v.py": LARGE},
    ),
    "the same by a suite file that head alone names": (
        suite("import flags", "") | {"setup/size.py": LARGE},
        {"perfci.yaml": NAMING},
    ),
    "the same by a file that code reads": (
        {"size": "5_000", **suite("import flags; flags.size = int(open('size').read())")},
        {"size": "50_000"},
    ),
    "a package reads a file of the repository": ({"size.cfg": "5_000", **suite("")}, {"size.cfg": "50_000"}),
    "a package lists a folder of the repository": ({"parts/plain.py": "", **suite("")}, {"parts/fast.py": ""}),
    "code reads a file through a link": linked(
        "size",
        "5_000",
        "50_000",
        {"sizes": "-> small", "conf": "-> sizes"},
        "import flags; flags.size = int(open('conf/size').read())",
    ),
    "code imports a module that is a link": linked(
        "boot.py", SMALL, LARGE, {"lib/boot.py": "-> ../small/boot.py"}, "import boot"
    ),
    "code enters a folder through a link": linked(
        "deep/size",
        "5_000",
        "50_000",
        {"conf": "-> small"},
        "import flags, os\nhere = os.getcwd()\nos.chdir('conf/deep')\n"
        "flags.size = int(open('size').read())\nos.chdir(here)",
    ),
    "code imports a module through a link": linked(
        "boot.py", SMALL, LARGE, {"lib/sizes": "-> ../small"}, "import sizes.boot"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWER)
def test_what_differs_is_seen_by_packages_that_are_imported_after_it(repo, name):
    """An import that both sides share would have it as one of them, or neither, has it."""
    packages = repo.root.parent / "packages"
    packages.joinpath("flags.py").write_text(FLAGS)
    packages.joinpath("engine.py").write_text(ENGINE)
    (repo.root / "kernels/total.py").unlink()
    repo.policy("path: [lib]\n")
    for files in SLOWER[name]:
        for path, text in files.items():
            (repo.root / path).unlink(missing_ok=True)
            repo.write(path, text)
            if text.startswith("-> "):
                (repo.root / path).unlink()
                (repo.root / path).symlink_to(text[3:])
        repo.commit()
    (case,) = Measurement(compared(repo, "HEAD~1"), Quiet()).measure().cases
    assert [pair.values["head"]["time"] > 2 * pair.values["base"]["time"] for pair in case.pairs] == [True]


@pytest.mark.slow
def test_what_a_package_does_not_read_leaves_it_shared(repo):
    """A link, a file and a folder that head adds, beside a package that asks for what is installed."""
    with (repo.root.parent / "packages/dear.py").open("a") as file:
        file.write("\nimport importlib.metadata\nimportlib.metadata.entry_points()\n")
    (repo.root / "other").symlink_to(".")
    repo.write("notes.txt", "")
    repo.write("more/notes.txt", "")
    assert "1 module imported once" in discovered(repo)
    repo.write("more-1.dist-info/METADATA", "Name: more\n")
    told = discovered(repo)
    assert "0 modules imported once" in told
    assert "head imports dear, and what follows: more-1.dist-info is read, and differs" in told


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        ("a json b c d", "a c b json d", "a json d"),
        ("a b", "x a b", ""),
        ("x a b", "y a b", ""),
        ("a json b", "a b", "a b"),
        ("a b c", "b a", ""),
    ],
)
def test_what_both_ask_for_after_the_same_others_is_shared(ours, theirs, shared):
    asked = [dict.fromkeys(names.split(), "settings") for names in (ours, theirs)]
    assert list(_alike(*asked)) == shared.split()
    asked[0]["last"], asked[1]["last"] = "these", "others"
    assert "last" not in _alike(*asked), "with other settings"


@pytest.mark.slow
def test_what_a_case_imports_as_it_is_executed_is_imported_once(repo):
    inside = "    def total():\n        import dear\n        return sum(numbers)\n    return total"
    lazy = SUITE.replace("import dear\n", "").replace("    return lambda: sum(numbers)", inside)
    repo.write("kernels/total.py", lazy)
    repo.commit()
    measured(repo)
    assert imports_of_dear(repo) == 2


@pytest.mark.parametrize(
    ("differing", "scouts"),
    [
        ({"data.txt": "other"}, ["base", "head"]),
        ({"kernels/total.py": "# another\n"}, []),  # nothing is reported of a case that depends on what differs
    ],
)
def test_cases_are_executed_for_their_imports_until_none_is_reported(repo, differing, scouts):
    noted = f"    open({str(repo.root.parent / 'executed')!r}, 'a').write(os.getcwd() + '\\n')\n    return lambda: sum(numbers)"
    suite = "import os\n" + SUITE.replace("    return lambda: sum(numbers)", noted)
    repo.write("kernels/total.py", suite)
    repo.write("data.txt", "data")
    repo.commit()
    for name, text in differing.items():
        repo.write(name, text + (suite if name.endswith(".py") else ""))
    repo.commit()
    with opened(compared(repo, "HEAD~1")) as place:
        discover(place, [], print)
    executed = repo.root.parent / "executed"
    folders = executed.read_text().split() if executed.exists() else []
    assert [Path(folder).parent.name for folder in folders] == scouts
    assert imports_of_dear(repo) == 2, "by base's scout and by the stem"


@pytest.mark.slow
def test_what_is_left_to_the_workers_is_named_with_the_reason(repo):
    (repo.root.parent / "packages/bad.py").write_text("import random\nrandom.seed(1)\n")
    repo.write("kernels/total.py", "import bad\n" + SUITE)
    repo.commit()
    assert "each worker imports bad: it seeds Python's random numbers" in measured(repo)[1]
    assert imports_of_dear(repo) == 2, "what spoils was tried before"


@pytest.mark.slow
def test_an_environment_that_differs_is_imported_by_each(repo):
    repo.policy("env: {FLAG: '1'}\n")
    assert "base and head differ in the environment: FLAG" in measured(repo)[1]
    assert imports_of_dear(repo) >= 4


@pytest.mark.slow
def test_where_a_suite_decides_how_it_imports_the_log_says_what_to_do(repo):
    repo.write("kernels/total.py", "import os\nos.environ['FLAG'] = '1'\n" + SUITE)
    repo.commit()
    told = discovered(repo)
    assert "each worker imports dear, and what follows, since the suite decides how" in told
    assert "env: in perfci.yaml" in told
