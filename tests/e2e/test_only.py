"""`compare --only`: head may change some files, and nothing else is measured; `--json` tells a program how it ended."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from perfci.model.policy_text import FILE

from .conftest import Repo, Run

SCHEMAS = Path(__file__).parents[2] / "schemas"
LOOP = Path(__file__).parents[2] / "examples" / "agent" / "loop.py"
SUITE = """
    import sys
    sys.path.insert(0, "src")
    import perfci
    from expected import right
    from lib.ops import total

    @perfci.kernel(devices=["cpu"], params={"n": [2_000]}, fuzz={"n": [1_999]})
    def totals(bench, n):
        bench.reference(lambda: right(n), rtol=0, atol=0)
        return lambda: total(n)
"""
OPS = "def total(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
FAST = "def total(n):\n    return sum(range(n))\n"


@pytest.fixture
def judged(repo: Repo) -> Repo:
    repo.policy("limits: [{cases: '*', metric: time, regression: 50%}]\n")
    repo.write("kernels/totals.py", SUITE)
    repo.write("kernels/test_totals.py", "def test_total():\n    assert True\n")
    repo.write("expected.py", "def right(n):\n    return sum(range(n))\n")
    repo.write("src/lib/__init__.py", "")
    repo.write("src/lib/ops.py", OPS)
    repo.commit()
    return repo


def judge(repo: Repo, *more: str) -> tuple[Run, dict]:
    """What is printed is one document of its schema, whatever happens."""
    run = repo.perfci("compare", "--base", "HEAD", "--only", "src/**", "--json", *more)
    assert run.err == "", run.err
    document = json.loads(run.out)
    name = "failure" if "error" in document else "report"
    jsonschema.validate(document, json.loads((SCHEMAS / f"{name}.json").read_text()))
    assert document["exit_code"] == run.code
    return run, document


def _link(repo: Repo) -> None:
    (repo.root / "expected.py").unlink()
    (repo.root / "expected.py").symlink_to("src/lib/ops.py")


CHANGES: dict[str, tuple[str, Callable[[Repo], object]]] = {
    "reference": ("expected.py", lambda repo: repo.write("expected.py", "from lib.ops import total as right\n")),
    "tolerance": ("kernels/totals.py", lambda repo: repo.write("kernels/totals.py", SUITE.replace("rtol=0", "rtol=1"))),
    "policy": (FILE, lambda repo: repo.policy("limits: [{cases: '*', metric: time, regression: 500%}]\n")),
    "test": ("kernels/test_totals.py", lambda repo: (repo.root / "kernels/test_totals.py").unlink()),
    "outside": ("sitecustomize.py", lambda repo: repo.write("sitecustomize.py", "print('here')\n")),
    "mode": ("expected.py", lambda repo: (repo.root / "expected.py").chmod(0o755)),
    "link": ("expected.py", _link),
    "shadow": ("src/expected.py", lambda repo: repo.write("src/expected.py", "def right(n):\n    return n\n")),
    "shadow in a folder": ("src/expected/deep.py", lambda repo: repo.write("src/expected/deep.py", "")),
    "shadow by a link": ("src/expected", lambda repo: (repo.root / "src/expected").symlink_to("lib")),
    "compiled shadow": ("src/math.abi3.so", lambda repo: repo.write("src/math.abi3.so", "")),
    "loop": ("kernels/loop.py", lambda repo: (repo.root / "kernels/loop.py").symlink_to("loop.py")),
    "suite": ("kernels/more.py", lambda repo: repo.write("kernels/more.py", SUITE.replace("totals", "more"))),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_any_other_change_ends_with_2_and_its_path(judged: Repo, what: str) -> None:
    path, change = CHANGES[what]
    judged.write("src/lib/ops.py", FAST)
    change(judged)
    run, document = judge(judged)
    assert run.code == 2
    assert document["error"].startswith(f"--only: {path} is not as in base, and "), document
    assert not (judged.root / "perfci-out/results.json").exists()


def test_no_glob_lets_head_change_what_judges_it(judged: Repo) -> None:
    script = "  - {script: bench/*.py, each: lines.txt}\n"
    judged.write(
        FILE, (judged.root / FILE).read_text().replace("suite: [kernels/*.py]\n", f"suite:\n  - kernels/*.py\n{script}")
    )
    for path in ("bench/sweep.py", "lines.txt"):
        judged.write(path, "")
    judged.commit()
    for path in ("kernels/totals.py", "bench/sweep.py", "lines.txt", FILE):
        judged.write(path, (judged.root / path).read_text() + "# more\n")
        run = judged.perfci("compare", "--base", "HEAD", "--only", "*")
        assert run.code == 2
        assert f"--only: {path} is not as in base, " in run.err, run.err
        judged.git("checkout", "-q", path)


@pytest.mark.slow
def test_a_faster_wrong_or_broken_library_is_told_as_one_document(judged: Repo) -> None:
    judged.write("src/lib/ops.py", FAST)
    judged.write("src/lib/table.py", "ROWS = {}\n")
    run, report = judge(judged)
    assert (run.code, report["verdict"]) == (0, "pass")
    [row] = [row for row in report["rows"] if row["metric"] == "time"]
    assert (row["class"], report["policy_from"]) == ("improvement", "base")
    judged.write("src/lib/ops.py", FAST.replace("return", "return 7 if n == 1_999 else"))
    run, report = judge(judged)
    assert run.code == 1
    [row] = report["rows"]
    assert (row["class"], row["failure"]) == ("failed", "wrong") and "n=1999" in row["reason"], row
    judged.write("src/lib/ops.py", "def total(n)\n")
    run, report = judge(judged)
    assert run.code == 1
    assert "SyntaxError" in report["files"][0]["reason"]["text"], report["files"]


def test_mistakes_of_the_call_are_a_document_too(judged: Repo) -> None:
    run, document = judge(judged, "--bugdet", "9s")
    assert run.code == 2 and "--bugdet" in document["error"]
    run, document = judge(judged, "--repo", "no\udcff")
    assert run.code == 2 and "no" in document["error"]
    run = judged.perfci("compare", "--only", "src/**", "--shard", "plan.json:1/2")
    assert run.code == 2 and "--only: a shard does what was planned" in run.err
    run = judged.perfci("compare", "--only", "src/**", "--env", "A=1")
    assert run.code == 2 and "--only: no base holds head to anything" in run.err
    run = judged.perfci("compare", "--bogus", "--", "--json")
    assert run.code == 2 and "--bogus" in run.err, "a case's name asks for nothing"


def test_what_a_link_leads_to_is_held_like_the_suite(judged: Repo) -> None:
    for path in ("kernels/totals.py", FILE):
        judged.write(f"src/lib/{Path(path).name}", (judged.root / path).read_text())
        (judged.root / path).unlink()
        (judged.root / path).symlink_to(f"{'../' * path.count('/')}src/lib/{Path(path).name}")
    judged.commit()
    for name in ("totals.py", FILE):
        path = judged.root / "src/lib" / name
        path.write_text(path.read_text() + "# more\n")
        run, document = judge(judged)
        assert run.code == 2 and f"{name} is not as in base" in document["error"], document
        judged.git("checkout", "-q", "src")


def test_prepared_sides_are_as_held_as_they_were_asked_for(judged: Repo) -> None:
    judged.write("src/lib/ops.py", OPS + "# more\n")
    assert judged.perfci("compare", "--base", "HEAD", "--only", "src/**", "--prepare", "sides").code == 0
    run = judged.perfci("compare", "--base", "HEAD", "--prepared", "sides", "--quick")
    assert run.code == 2 and "--only" in run.err, run.err


@pytest.mark.slow
def test_a_reference_that_head_s_code_rewrites_in_its_process_fails(judged: Repo) -> None:
    """At the measured parameters as at those that are only checked."""
    text = SUITE.replace("from expected import right", "import expected").replace("right(n)", "expected.right(n)")
    judged.write("kernels/totals.py", text)
    judged.commit()
    for forged in ("7", "7 if n == 1_999 else total"):  # in the time of the honest one
        forgery = OPS.replace("return total", f"return {forged}")
        judged.write("src/lib/ops.py", f"import expected\n\n{forgery}\nexpected.right = total\n")
        run, report = judge(judged, "--budget", "40s")
        assert run.code == 1, report["rows"]
        [row] = [row for row in report["rows"] if row["effect"] == "fail"]
        assert row["class"] == "changed" and "the reference's result is " in row["reason"], row


AGENT = """
import json, pathlib, sys
answer = json.load(sys.stdin)
tried = "wrong" in [row["failure"] for row in answer.get("rows", [])]
pathlib.Path("src/lib/ops.py").write_text(FAST if tried else FAST.replace("return", "return 1 +"))
pathlib.Path("expected.py").write_text("right = None\\n")
"""


@pytest.mark.slow
def test_the_example_s_loop_ends_with_what_is_shown_to_be_faster(judged: Repo, tmp_path: Path) -> None:
    """What the program writes elsewhere than below `src` does not come into the judge's clone."""
    copy = tmp_path / "copy"
    shutil.copytree(judged.root, copy)
    (tmp_path / "agent.py").write_text(f"FAST = {FAST!r}\n{AGENT}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, LOOP, judged.root, copy, sys.executable, tmp_path / "agent.py"],
        env={**judged.env, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()  # on a busy machine it may take another one
    assert first.startswith("attempt 1: exit 1: `totals/n=2000`: fails in head: at n=2000: result is ")
    assert "exit 0: No regression: 1 improvement (`totals/n=2000` is " in last, last
    assert last.endswith("; 1 claim shown"), last
