"""What is compared with what: never a commit with itself, unless that is what was asked for."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Repo, adding, pairs, until
from tests.e2e.test_surviving import gone

LIMIT = "limits: [{cases: '*', metric: time, regression: 50%}]\n"


@pytest.fixture
def behind(repo: Repo) -> Repo:
    """The first commit is checked out; `main` and the tag `next` are one commit ahead."""
    repo.policy(LIMIT)
    repo.write("kernels/adding.py", adding())
    repo.write(".gitignore", "*.log\n")
    repo.commit("first")
    repo.write("readme", "more")
    repo.commit("second")
    repo.git("tag", "next")
    repo.git("checkout", "-q", "-b", "topic", "HEAD~1")
    return repo


def refused(repo: Repo, *args: str) -> str:
    """The one line that is said; nothing was measured."""
    run = repo.perfci("compare", *args)
    assert run.code == 2, run.out + run.err
    assert run.out == ""
    assert not (repo.root / "perfci-out").exists()
    [line] = run.err.splitlines()
    return line


def built(repo: Repo, folder: Path, *args: str) -> list[str]:
    """Commits of base and head of a comparison that is not refused, as far as building both."""
    run = repo.perfci("compare", *args, "--prepare", str(folder))
    assert run.code == 0, run.out + run.err
    return [line for line in run.err.splitlines() if "prepared base and head" in line]


@pytest.mark.parametrize("ref", ["main", "a hash"])
def test_a_head_that_is_an_ancestor_of_its_base_is_refused(behind: Repo, ref: str) -> None:
    ref = behind.git("rev-parse", "main") if ref == "a hash" else ref
    line = refused(behind, "--base", ref)
    assert line == (
        f"perfci: HEAD is an ancestor of {ref}: nothing to compare: switch to what is to be measured, "
        "or compare it with itself: perfci compare HEAD"
    )


@pytest.mark.parametrize("args", [["--base", "main"], ["--base", "next"], []])
def test_a_base_that_is_head_under_another_name_is_refused(behind: Repo, args: list[str]) -> None:
    behind.git("checkout", "-q", "main")
    behind.write("out.log", "ignored by git, and no change")
    line = refused(behind, *args)
    name = "next" if "next" in args else "main"
    assert line == (
        f"perfci: HEAD is {name}: nothing to compare: change something first, "
        "or compare it with itself: perfci compare HEAD"
    )


def test_what_committed_leaves_out_is_named(behind: Repo) -> None:
    behind.write("kernels/adding.py", adding(spin=1))
    line = refused(behind, "--base", "main", "--committed")
    assert line.startswith("perfci: HEAD is an ancestor of main: nothing to compare: commit what is changed, or leave")


def test_the_same_is_refused_before_a_container_is_asked_for(behind: Repo) -> None:
    run = behind.perfci("docker", "compare", "--base", "main")
    assert run.code == 2, run.err
    assert "HEAD is an ancestor of main: nothing to compare" in run.err


@pytest.mark.parametrize("base", ["HEAD", "its short hash"])
def test_head_is_compared_with_itself_where_that_is_asked_for(behind: Repo, tmp_path: Path, base: str) -> None:
    """The hash is what the command that repeats such a run holds."""
    head = behind.git("rev-parse", "HEAD")
    assert built(behind, tmp_path / "sides", "--base", head[:9].upper() if base == "its short hash" else base)


@pytest.mark.parametrize("edit", [pytest.param("tracked", marks=pytest.mark.slow), "new"])
def test_a_working_tree_with_edits_is_compared(behind: Repo, tmp_path: Path, edit: str) -> None:
    behind.write("kernels/adding.py" if edit == "tracked" else "kernels/new.py", adding(spin=1))
    assert built(behind, tmp_path / "sides", "--base", "main")


def test_a_commit_of_its_own_is_compared(behind: Repo, tmp_path: Path) -> None:
    behind.commit("an empty one is one")
    assert built(behind, tmp_path / "sides", "--base", "main")


@pytest.mark.slow
def test_the_command_that_an_error_tells_can_be_copied(behind: Repo, tmp_path: Path) -> None:
    """From the terminal's text and from report.md: with nothing in it that was not typed, and a shell takes it."""
    behind.write("kernels/adding.py", adding(200_000))
    behind.policy("limits: [{cases: '*', metric: time, regression: 0.01%}]\n")
    behind.commit("slow")
    asked = ["compare", "--base", "main", "--budget", "5m", "-k", "adding", "-k", "[a@org/team|`#1`  www.e.example]*"]
    process = behind.start(*asked)
    journal = behind.root / "perfci-out" / "journal.jsonl"
    until(process, lambda: pairs(journal))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, out + err
    assert gone(tmp_path) == []
    lines = out.splitlines()
    assert lines[0] == "ERROR: The measurement failed: interrupted: continue with --resume"
    assert lines[1] == "Go on with it:"
    words = ["perfci", *asked[:2], behind.git("merge-base", "HEAD", "main"), *asked[3:], "--resume"]
    assert lines[2] == f"  {shlex.join(words)}"
    report = (behind.root / "perfci-out" / "report.md").read_text()
    assert f"Go on with it:\n\n```sh\n{shlex.join(words)}\n```\n" in report
    assert err.splitlines()[-1] == "perfci: interrupted: go on with --resume"
    env = behind.env | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    typed = f"{lines[2]} --prepare {shlex.quote(str(tmp_path / 'sides'))}"
    again = subprocess.run(["sh", "-c", typed], cwd=behind.root, env=env, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
