"""Whole runs: real git repositories, the real command line in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from perfci.profilers.nsys.command import InstalledNsys, find, probe
from perfci.system.users import NEEDED, held

from .warm import Warm

PLAIN_PYTHON = sys._base_executable
"""The interpreter below this virtual environment: it starts fast, having no torch to import."""


@dataclass
class Run:
    """What one call of perfci printed, wrote and returned."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def report(self) -> dict:
        return json.loads((self.folder / "perfci-out" / "report.json").read_text())

    @property
    def results(self) -> dict:
        return json.loads((self.folder / "perfci-out" / "results.json").read_text())

    def classes(self) -> dict[str, str]:
        """Case → class of its worst row."""
        return self._worst("class")

    def reasons(self) -> dict[str, str]:
        return self._worst("reason")

    def _worst(self, field: str) -> dict[str, str]:
        return {row["case"]: row[field] for row in reversed(self.report["rows"])}


class Repo:
    """A git repository to be measured."""

    def __init__(self, root: Path, env: dict[str, str], warm: Warm | None = None) -> None:
        self.root = root
        self.env = env
        self.warm = warm
        root.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *args: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *args],
            cwd=self.root, check=True, capture_output=True, text=True, env=self.env,
        )  # fmt: skip
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def policy(self, text: str = "", python: str | None = PLAIN_PYTHON) -> None:
        """A policy for the plain interpreter or another, with `text` appended."""
        lines = f"version: 1\nsuite: [kernels/*.py]\npython: {python}\ndevices: [cpu]\n"
        self.write("perfci.yaml", lines + dedent(text))

    def adds(self, policy: str = "", message: str = "change") -> str:
        """Commit the kernel `adding` and a policy for it. Return the commit."""
        self.policy(policy)
        self.write("kernels/adding.py", adding())
        return self.commit(message)

    def start(self, *args: str, **kwargs) -> subprocess.Popen:
        """`NAME=VALUE` before the verb sets a variable, as in a shell."""
        args, env = self._assigned(args)
        return subprocess.Popen(
            [sys.executable, "-m", "perfci", *args],
            cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs,
        )  # fmt: skip

    def _assigned(self, args: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
        words = list(args)
        env = dict(self.env)
        while words and words[0].startswith("PERFCI_"):
            name, _, env[name] = words.pop(0).partition("=")
        return tuple(words), env

    def perfci(self, *args: str, timeout: float = 200, fresh: bool = False) -> Run:
        """A run in a process of its own, which imports perfci itself if it is to be `fresh`."""
        code: int | None
        words, env = self._assigned(args)
        if not fresh and self.warm and self.warm.takes(env):
            code, out, err = self.warm.run(words, self.root, env, timeout)
        else:
            process = self.start(*args)
            try:
                out, err = process.communicate(timeout=timeout)
                code = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                code = None
        if code is None:
            pytest.fail(f"perfci {' '.join(args)} did not end:\n{out}\n{err}")
        return Run(code, out, err, self.root)


def pairs(journal: Path) -> list[bytes]:
    """The whole lines of a journal that hold pairs."""
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    return [line for line in lines if line.endswith(b"\n") and b'"kind":"pair"' in line]


def until(process: subprocess.Popen, ready: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is so while `process` runs, and fail if it ends before, or that long has passed."""
    deadline = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"it never came so far: {process.communicate()}")
        time.sleep(0.02)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The caller's environment with a temporary folder of the test's own, so that leftovers can be counted."""
    short = tmp_path / "t"
    short.mkdir()
    return {**os.environ, "TMPDIR": str(short), "COLUMNS": "160", "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    started = Warm({**os.environ, "COLUMNS": "160", "NO_COLOR": "1"})
    yield started
    started.close()


@pytest.fixture
def repo(tmp_path: Path, env: dict[str, str], warm: Warm) -> Repo:
    return Repo(tmp_path / "repo with space", env, warm)


UID = GID = 23450 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Of the code under test, where that is another's than perfci's: one of each process that runs tests beside others."""
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")
CANARY = "canary-7f3a91c2"
"""A secret of perfci's caller, in a repository that two users share."""
ROOT = os.geteuid() == 0 and len(held(list(NEEDED))) == len(NEEDED) and shutil.which("setpriv")
# Only root may run code as another user, and that one needs an interpreter that all may use; the image has both.
as_root = pytest.mark.skipif(
    not (ROOT and SYSTEM_PYTHON), reason="needs root with its capabilities, setpriv, and a python3 of the system"
)


@pytest.fixture
def two_users() -> Iterator[Repo]:
    """A repository that other users reach, and the environment in which perfci runs its code as another."""
    folder = Path(tempfile.mkdtemp(prefix="two-"))
    folder.chmod(0o755)
    for name in ("t", "home"):
        (folder / name).mkdir()
    (folder / "t").chmod(0o1777)
    os.chown(folder / "home", UID, GID)
    env = {
        **os.environ, "TMPDIR": str(folder / "t"), "HOME": str(folder / "home"), "COLUMNS": "160", "NO_COLOR": "1",
        "PERFCI_WORKER": f"{UID}:{GID}", "A_CANARY": CANARY,
    }  # fmt: skip
    yield Repo(folder / "repo", env)
    shutil.rmtree(folder)


@pytest.fixture
def nsys(env: dict[str, str]) -> str:
    """The version of the nsys that perfci then finds."""
    path = os.environ.get("PERFCI_TEST_NSYS")
    found = probe(Path(path), os.environ) if path else find()
    if not isinstance(found, InstalledNsys):
        pytest.skip(f"needs nsys on PATH or in PERFCI_TEST_NSYS: {found.text}")  # no package index has it
    env["PATH"] = f"{found.path.parent}:{env['PATH']}"
    return found.version


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips, visibly, what needs a GPU: no stand-in behaves like one, and those who have one run these tests."""
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("needs a GPU that torch can use")  # what runs without one stands in the other tests


WORK = """
    import perfci

    def work(n):
        total = 0.0
        for i in range(n):
            total += i * 0.5
        return total

    @perfci.kernel(devices=["cpu"])
    def adding(bench):
        bench.reference(lambda: 0.25 * {n} * ({n} - 1), rtol=1e-9, atol=0)
        return lambda: work({n})
"""


def adding(n: int = 2_000, spin: int = 0, name: str = "adding") -> str:
    """A pure-Python kernel of about 0.1 ms; `spin` adds work of the same kind without changing the result."""
    text = dedent(WORK.format(n=n)).replace("def adding", f"def {name}")
    return text.replace(
        "    return total\n", f"    for i in range({spin}):\n        total += i * 0.0\n    return total\n"
    )
