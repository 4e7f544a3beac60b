"""The machine as checks see it: files, programs, and facts asked for once."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from perfci.model.doctor import Finding, Status
from perfci.model.text import escaped, one_line
from perfci.system import bounded
from perfci.system.bounded import Said

Fact = TypeVar("Fact")
PATIENCE = 5.0
"""Seconds for a program to tell its version or state."""


def asked(function: Callable[[], Fact]) -> "Future[Fact]":
    """Start `function` in a daemon thread: a driver may hang."""
    answer: Future[Fact] = Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except Exception as error:  # noqa: BLE001  # it is raised where the answer is wanted
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


@dataclass
class Machine:
    """In tests `root` stands in for `/`, `env` for the environment with its PATH."""

    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    where: Path = field(default_factory=Path.cwd)
    """A folder of the repository, or where one is missing."""
    out: Path = field(default_factory=lambda: Path.cwd() / "perfci-out")
    python: str = sys.executable
    """The interpreter of the code under test."""
    python_env: Mapping[str, str] | None = None
    """Its environment; None takes `env`."""
    nvml: Any = None
    """Stands in for pynvml."""
    euid: int = field(default_factory=os.geteuid)
    _facts: "dict[Any, Future[Any]]" = field(default_factory=dict, repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def tested(self) -> Mapping[str, str]:
        """The environment of the code under test."""
        return self.env if self.python_env is None else self.python_env

    def known(self, ask: Callable[["Machine"], Fact]) -> Fact:
        """Return `ask(self)`, asked once, from whatever thread. Raises what it raises."""
        with self._guard:
            if ask not in self._facts:
                self._facts[ask] = asked(partial(ask, self))
        return cast("Fact", self._facts[ask].result())

    def read(self, path: str, most: int = 1 << 16) -> str | None:
        """Return the beginning of an absolute `path`, if readable."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as handle:
                return handle.read(most).decode(errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether the absolute `path` exists, be it as a dangling link."""
        return os.path.lexists(self.root / path.lstrip("/"))

    def which(self, name: str) -> str | None:
        """Return `name` on the PATH."""
        return shutil.which(name, path=self.env.get("PATH", os.defpath))

    def run(
        self,
        argv: Sequence[str],
        limit: float = PATIENCE,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Said:
        """Run a program in its own process group, killed with what it leaves behind after `limit` seconds.

        Never raises OSError. Its stdin is empty, its locale C.
        """
        return bounded.run(argv, limit, env={**(self.env if env is None else env), "LC_ALL": "C"}, cwd=cwd)

    def temporary(self) -> Path:
        """Return the folder for temporary files of programs. Raises FileNotFoundError."""
        named = next((self.env[name] for name in ("TMPDIR", "TEMP", "TMP") if self.env.get(name)), "")
        for folder in filter(None, (named, "/tmp", "/var/tmp", "/usr/tmp")):
            if writable(Path(folder)):
                return Path(folder)
        raise FileNotFoundError("no folder for temporary files can be written")


def writable(folder: Path) -> bool:
    """Try to write a file in `folder`."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".perfci-") as handle:
            handle.write(b"perfci")
            handle.flush()
    except OSError:
        return False
    return True


def clipped(text: object, limit: int = 300) -> str:
    """Return `text` on one line, without control characters."""
    return one_line(escaped(text), limit)


def _finding(status: Status, name: str, text: str, remedy: str = "", /, **values: Any) -> Finding:
    return Finding(name=name, status=status, found=clipped(text, 1000), remedy=clipped(remedy, 1000), values=values)


ok = partial(_finding, "ok")
"""A fact that everybody needs: name, text, values."""
warn = partial(_finding, "warn")
"""Something is out of reach, or may disturb: name, text, remedy, values."""
fail = partial(_finding, "fail")
"""Nothing can be measured, or wrongly, or a secret lies open: as `warn`."""
