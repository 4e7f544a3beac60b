"""What is imported once a run, and what is said of it: real runs on the CPU."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.agreement import Quiet
from perfci.measure.request import Request
from perfci.measure.run import Measurement
from perfci.measure.sides.imports import _alike
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


@pytest.mark.slow
def test_what_head_alone_provides_is_left_to_the_workers(repository):
    (repository / "kernels/total.py").write_text("import json\n" + SUITE)
    git(repository, "commit", "-qam", "json")
    (repository / "README").write_text("One file more.")
    (repository / "own.py").write_text("")
    (repository / "kernels/total.py").write_text(SUITE.replace("import dear", "import dear, own"))
    results, told = measured(repository, 1)
    assert [len(case.pairs) for case in results.cases] == [1]
    assert "1 module imported once for all workers" in told


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
    suite.write_text(head.replace("assert not", "assert").replace("import dear\n", "import dear\nimport more\n"))
    git(repository, "commit", "-qam", "more")
    suite.write_text(head)
    results, told = measured(repository, 1)
    assert [len(case.pairs) for case in results.cases] == [1]
    assert "1 module imported once for all workers" in told, "the one that both ask for"


ENGINE = """
import flags, os, pkgutil
found = [one.name for one in pkgutil.iter_modules(["parts"])]
SIZE = int(open("size.cfg").read()) if os.path.exists("size.cfg") else 50_000 if "fast" in found else flags.size
def work(): return sum(range(SIZE))
"""
FLAGS = """
size = 1000
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
SMALL, LARGE = "import flags\nflags.size = 1000\n", "import flags\nflags.size = 50_000\n"
SIZES = {"lib/size.py": "SIZE = 1000\n"}, {"lib/size.py": "SIZE = 50_000\n"}


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
        suite("import flags", "@flags.sized(1000)\ndef f(): pass\nimport engine"),
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
        {"conf/size": "1000"}
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
        suite("import flags", "", "flags.size = 1000"),
        suite("import flags", "", "flags.size = 50_000"),
    ),
    "the same by a file that code reads": (
        {"size": "1000", **suite("import flags; flags.size = int(open('size').read())")},
        {"size": "50_000"},
    ),
    "a package reads a file of the repository": ({"size.cfg": "1000", **suite("")}, {"size.cfg": "50_000"}),
    "a package lists a folder of the repository": ({"parts/plain.py": "", **suite("")}, {"parts/fast.py": ""}),
    "code reads a file through a link": linked(
        "size",
        "1000",
        "50_000",
        {"sizes": "-> small", "conf": "-> sizes"},
        "import flags; flags.size = int(open('conf/size').read())",
    ),
    "code imports a module that is a link": linked(
        "boot.py", SMALL, LARGE, {"lib/boot.py": "-> ../small/boot.py"}, "import boot"
    ),
    "code enters a folder through a link": linked(
        "deep/size",
        "1000",
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
def test_what_differs_is_seen_by_packages_that_are_imported_after_it(repository, name):
    """An import that both sides share would have it as one of them, or neither, has it."""
    packages = repository.parent / "packages"
    packages.joinpath("flags.py").write_text(FLAGS)
    packages.joinpath("engine.py").write_text(ENGINE)
    (repository / "kernels/total.py").unlink()
    (repository / "perfci.yaml").write_text(POLICY + "path: [lib]\n")
    for files in SLOWER[name]:
        for path, text in files.items():
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).unlink(missing_ok=True)
            if text.startswith("-> "):
                (repository / path).symlink_to(text[3:])
            else:
                (repository / path).write_text(text)
        git(repository, "add", ".")
        git(repository, "commit", "-qm", "work")
    request = Request.of("compare", repository, repository.parent / "out", base="HEAD~1", exact_pairs=2)
    (case,) = Measurement(request, Quiet()).measure().cases
    assert [pair.values["head"]["time"] > 5 * pair.values["base"]["time"] for pair in case.pairs] == [True, True]


@pytest.mark.slow
def test_what_a_package_does_not_read_leaves_it_shared(repository):
    """A link, a file and a folder that head adds, beside a package that asks for what is installed."""
    with (repository.parent / "packages/dear.py").open("a") as file:
        file.write("\nimport importlib.metadata\nimportlib.metadata.entry_points()\n")
    (repository / "other").symlink_to(".")
    (repository / "notes.txt").write_text("")
    (repository / "more").mkdir()
    (repository / "more/notes.txt").write_text("")
    assert "1 module imported once" in measured(repository, 1)[1]
    info = repository / "more-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: more\n")

    told = measured(repository, 1)[1]
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
