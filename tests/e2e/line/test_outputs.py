"""Whoever reads stdout or stderr goes, or never was; somebody presses Ctrl-C: the exit code is never a verdict's."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..conftest import Repo, adding, until
from ..warm import Warm

PERFCI = [sys.executable, "-m", "perfci"]


@pytest.fixture
def unread() -> int:
    """The end of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    yield writes
    os.close(writes)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Repo:
    """A repository whose last run holds what `perfci report` judges: more than a pipe's reader takes at once."""
    folder = tmp_path_factory.mktemp("judged")
    repo = Repo(folder / "repo", {**os.environ, "TMPDIR": str(folder), "COLUMNS": "160", "NO_COLOR": "1"}, warm)
    repo.policy("limits: [{cases: '*', metric: time, max: 1ns}]\n")
    repo.write("kernels/adding.py", adding())
    run = repo.perfci("run", "--quick")
    assert run.code == 1, run.out + run.err
    return repo


def slowly(*rows: Sequence) -> list:
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


@pytest.mark.parametrize("args", [["--version"], ["report"], *slowly([["compare", "--help"]], [["report", "--json"]])])
@pytest.mark.slow
def test_an_output_that_nobody_reads_is_no_verdict(judged: Repo, unread: int, args: list[str]) -> None:
    done = subprocess.run(
        [*PERFCI, *args], cwd=judged.root, env=judged.env, stdout=unread, stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, b"Exception" in done.stderr) == (141, False), done.stderr


@pytest.mark.parametrize(
    "command", ["perfci report | head -1", *slowly(["perfci --help | true"], ["perfci report --json | head -c 9"])]
)
def test_head_takes_the_first_line_of_a_report(judged: Repo, command: str) -> None:
    line = command.replace("perfci", f"{sys.executable} -m perfci")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line}; echo ${{PIPESTATUS[0]}} >&2"],
        cwd=judged.root, env=judged.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    whole = {"0"} if "help" in command else {"1"}  # read before its reader went: the code is the verdict's
    assert done.stderr.strip() in {"141"} | whole, done.stderr


@pytest.mark.parametrize("stderr", ["unread", "/dev/full", None])
@pytest.mark.parametrize(("args", "code"), [(["report"], 1), *slowly((["frob"], 2), (["run", "--repo", "nowhere"], 2))])
def test_messages_that_nobody_reads_change_no_exit_code(
    judged: Repo, unread: int, stderr: str | None, args: list[str], code: int
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PERFCI, *args], cwd=judged.root, env=judged.env, stdout=subprocess.PIPE,
            stderr={"unread": unread, "/dev/full": full, None: None}[stderr],
            preexec_fn=None if stderr is not None else lambda: os.close(2), check=False,
        )  # fmt: skip
    assert done.returncode == code


@pytest.mark.parametrize(("args", "code"), [(["run", "--quick"], 1), *slowly((["--help"], 0))])
@pytest.mark.slow
def test_a_run_without_stdout_has_its_verdict(judged: Repo, args: list[str], code: int) -> None:
    """`>&-`: nobody is to read, and no file of the run may take the place of what is closed."""
    done = subprocess.run(
        [*PERFCI, *args], cwd=judged.root, env=judged.env, stderr=subprocess.PIPE, text=True, check=False,
        preexec_fn=lambda: os.close(1),
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


WAITS = """
    import pathlib, time
    pathlib.Path({marker!r}).touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("verb", [["run"], *slowly([["list"]], [["calibrate"]])])
def test_an_interrupt_says_so_and_ends_with_3(repo: Repo, tmp_path: Path, verb: list[str]) -> None:
    marker = tmp_path / "imports"
    repo.policy()
    repo.write("kernels/waits.py", WAITS.format(marker=str(marker)))
    repo.commit()
    process = repo.start(*verb)
    until(process, marker.exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, out + err
    assert err.splitlines()[-1] == "perfci: interrupted"
