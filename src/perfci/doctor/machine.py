"""The machine as checks see it: files below a root, programs on a PATH, and facts that are asked for once."""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from perfci.model.doctor import Finding, Status
from perfci.model.text import escaped, one_line

Fact = TypeVar("Fact")
MOST = 1 << 20
"""Bytes of output that are kept of a program; one that writes more is ended."""
PATIENCE = 5.0
"""Seconds for a program that only tells its version or state."""


@dataclass(frozen=True)
class Said:
    """The output of a program, and how it ended."""

    code: int | None
    """None: it could not be started, or was ended. Negative: killed by that signal."""
    out: str = ""
    err: str = ""
    problem: str = ""
    """Why it has no exit code: `no such program`, `no answer within 5 s`."""

    @property
    def fine(self) -> bool:
        """It ended by itself with 0."""
        return self.code == 0

    def why(self) -> str:
        """Return why it is not fine, in one line: the problem, or its last words."""
        if self.problem:
            return self.problem
        words = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        ended = f"killed by signal {-self.code}" if self.code is not None and self.code < 0 else f"exit {self.code}"
        return clipped(f"{ended}: {words[-1]}" if words else ended)


class Asked(Generic[Fact]):
    """A function that runs in a thread of its own, a daemon: one that hangs in a driver does not hold up the end."""

    def __init__(self, function: Callable[[], Fact]) -> None:
        self._function = function
        self._answers: list[Fact] = []
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._function())
        except Exception as error:  # noqa: BLE001  # it is raised where the answer is wanted
            self._errors.append(error)

    def answer(self, limit: float) -> Fact:
        """Return what it returned or raised. Raises TimeoutError where it has not ended within `limit` seconds."""
        self._thread.join(limit)
        if self._errors:
            raise self._errors[0]
        if not self._answers:
            raise TimeoutError(f"no answer within {limit:g} s")
        return self._answers[0]


@dataclass
class Machine:
    """The machine, as every check gets it. `root` stands in for `/`, `env` for the environment with its PATH, in
    tests."""

    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    where: Path = field(default_factory=Path.cwd)
    """A folder of the repository, or where one is missing."""
    out: Path = field(default_factory=lambda: Path.cwd() / "perfci-out")
    python: str = sys.executable
    """The interpreter of the code under test."""
    python_env: Mapping[str, str] | None = None
    """Its environment; None takes `env`."""
    own: str = sys.executable
    """perfci's own interpreter."""
    nvml: Any = None
    """Stands in for pynvml."""
    euid: int = field(default_factory=os.geteuid)
    _facts: dict[Any, Any] = field(default_factory=dict, repr=False)
    _locks: dict[Any, threading.Lock] = field(default_factory=dict, repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def known(self, ask: Callable[["Machine"], Fact]) -> Fact:
        """Return `ask(self)`, asked once however many checks want it, from whatever thread. Raises what `ask`
        raises."""
        with self._guard:
            lock = self._locks.setdefault(ask, threading.Lock())
        with lock:
            if ask not in self._facts:
                try:
                    self._facts[ask] = (ask(self), None)
                except Exception as broken:  # noqa: BLE001  # it is raised again, for each that asks
                    self._facts[ask] = (None, broken)
        fact, error = self._facts[ask]
        if error is not None:
            raise error
        return cast("Fact", fact)

    def read(self, path: str, most: int = 1 << 16) -> str | None:
        """Return the beginning of the file `path`, which is absolute; None where there is none that can be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as handle:
                return handle.read(most).decode(errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether the absolute `path` exists, a dangling link included."""
        return os.path.lexists(self.root / path.lstrip("/"))

    def which(self, name: str) -> str | None:
        """Return the program `name` on the PATH."""
        return shutil.which(name, path=self.env.get("PATH", os.defpath))

    def run(
        self,
        argv: Sequence[str],
        timeout: float = PATIENCE,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Said:
        """Run a program in a process group of its own, which is killed after `timeout` seconds. Never raises OSError.

        Its stdin is empty, its locale C. What it starts and leaves behind is killed with it.
        """
        whole = {**(self.env if env is None else env), "LC_ALL": "C"}
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=whole,
                cwd=cwd,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Said(None, problem="no such program")
        except OSError as error:
            return Said(None, problem=f"cannot be started: {error.strerror}")
        try:
            parts, problem = _listen(process, timeout)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        out, err = (part.decode(errors="replace") for part in parts)
        return Said(None if problem else process.returncode, out, err, problem)

    def temporary(self) -> Path:
        """Return the folder for temporary files that programs started from here take. Raises FileNotFoundError."""
        named = next((self.env[name] for name in ("TMPDIR", "TEMP", "TMP") if self.env.get(name)), "")
        for folder in filter(None, (named, "/tmp", "/var/tmp", "/usr/tmp")):
            if writable(Path(folder)):
                return Path(folder)
        raise FileNotFoundError("no folder for temporary files can be written")


def _listen(process: "subprocess.Popen[bytes]", timeout: float) -> tuple[tuple[bytes, bytes], str]:
    """Return output and errors of a process until it ends; and why it did not, if so."""
    assert process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + timeout
    parts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    problem = ""
    with selectors.DefaultSelector() as selector:
        for number in parts:
            os.set_blocking(number, False)
            selector.register(number, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            # A child left behind may hold the pipe open: once the program has ended, what is there is all.
            left = deadline - time.monotonic()
            ready = selector.select(0 if ended else max(0.0, min(0.05, left))) if selector.get_map() else []
            for key, _ in ready:
                block = os.read(key.fd, 1 << 16)
                parts[key.fd] += block
                if not block:
                    selector.unregister(key.fd)
            if sum(map(len, parts.values())) > MOST:
                problem = f"wrote more than {MOST >> 20} MiB"
                break
            if ended and not ready:
                break
            if left <= 0:
                problem = f"no answer within {timeout:g} s"
                break
            if not selector.get_map() and not ended:
                time.sleep(0.01)
    out, err = parts.values()
    return (bytes(out), bytes(err)), problem


def writable(folder: Path) -> bool:
    """Return whether a file can be made in `folder` and written: tried."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".perfci-") as handle:
            handle.write(b"perfci")
            handle.flush()
    except OSError:
        return False
    return True


def clipped(text: object, limit: int = 300) -> str:
    """Return `text` on one line of at most `limit` characters, without control characters."""
    return one_line(escaped(text), limit)


def _finding(name: str, status: Status, found: str, remedy: str, values: Mapping[str, Any]) -> Finding:
    return Finding(
        name=name, status=status, found=clipped(found, 1000), remedy=clipped(remedy, 1000), values={**values}
    )


def ok(name: str, found: str, /, **values: Any) -> Finding:
    """Return a finding with nothing to fix."""
    return _finding(name, "ok", found, "", values)


def warn(name: str, found: str, remedy: str, /, **values: Any) -> Finding:
    """Return a finding of something that is out of reach, or may disturb."""
    return _finding(name, "warn", found, remedy, values)


def fail(name: str, found: str, remedy: str, /, **values: Any) -> Finding:
    """Return a finding by which nothing can be measured, or wrongly, or a secret lies open."""
    return _finding(name, "fail", found, remedy, values)
