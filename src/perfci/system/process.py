"""What perfci starts: one parent (`perfci/worker/parent.py`), workers forked from it, commands spawned by it.

They talk over Unix sockets. If the run dies, the parent kills all that still runs.
"""

import contextlib
import itertools
import select
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from perfci.model.base import Amount, Document, MachineError
from perfci.system.child import Arena, Under
from perfci.system.files import end_of
from perfci.system.starter import BOOT, START_TIMEOUT, Starter, Worker, greeted
from perfci.system.users import SAME, Account
from perfci.worker.channel import Channel, reachable

SLOWEST = 10.0
"""Seconds for a stem to take a message."""


class Spoiled(Document):
    """A module after whose import a process cannot be forked any more."""

    name: str
    why: str
    seconds: Amount


class Settled(Document):
    """A stem's report of its imports."""

    modules: int
    seconds: Amount
    """Of imports, which each process that inherits none would pay."""
    fault: Spoiled | None
    stopped: str
    """The module from which on the suite decides how it imports."""
    kept: str
    """A path of the side that cannot be replaced."""


class Stem(Starter):
    """A fork of the parent that imports once what lies outside of all sides."""

    def __init__(
        self,
        parent: "Parent",
        arena: Arena,
        log: Path,
        refused: Sequence[str] = (),
        others: Sequence[Arena] = (),
        kinds: Collection[str] = (),
    ) -> None:
        """`refused`: modules not to be imported; `others`: the other sides' arenas; `kinds`: `script` and `pytest`, as
        their suites name them. Raises Died."""
        super().__init__(parent.address, parent.listener, parent.numbers, parent.memory_limit)
        self.parent, self.builds = parent, parent.builds
        self.ident, self.pid, self.control = parent.forked(
            "stem",
            arena,
            log,
            refused=list(refused),
            kinds=list(kinds),
            others=[list(one.path) for one in others],
            environments=[dict(one.env) for one in others],
        )
        self.control.limit(SLOWEST)

    def take(self, name: str, state: str) -> None:
        """Have it import a module that a scout asked for in this state."""
        with contextlib.suppress(OSError):  # it is gone, as settle() finds out
            self.control.send({"op": "import", "name": name, "state": state})

    def settle(self, timeout: float) -> Settled:
        """Return the outcome of all imports. Raises MachineError, pydantic.ValidationError."""
        with contextlib.suppress(OSError):  # it has ended, and said before what spoiled it
            self.control.send({"op": "settle"})
        return Settled.model_validate(self._await("settled", timeout)["settled"])

    def close(self) -> None:
        """End it, and all below it."""
        self.control.close()
        self.parent.kill(self.ident)


class Parent(Starter):
    """The run's side of the common parent. Another `account` has these `capabilities` and no others."""

    def __init__(
        self,
        python: str,
        scratch: Path,
        env: Mapping[str, str],
        memory_limit: int | None = None,
        forks: bool = True,
        account: Account = SAME,
        capabilities: Sequence[int] = (),
    ) -> None:
        self.account = account
        self.python = python
        self.forks = forks and sys.platform.startswith("linux")
        self.scratch = scratch
        self.env = dict(env)
        self.imported = 0.0
        """Seconds of imports that forks inherit."""
        address, listener = str(scratch / "s"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Of one length, as all in requests is: forks then find memory alike.
        super().__init__(address, listener, itertools.count(100_000), memory_limit)
        try:
            with reachable(address) as name:
                listener.bind(name)
        except OSError as error:
            raise MachineError(
                f"{address}: cannot open a socket there ({error.strerror}): set TMPDIR to a short path"
            ) from None
        account.give(Path(address))
        account.show(scratch)
        listener.listen(16)
        self.stem: Stem | None = None
        log = scratch / "parent.log"
        try:
            with log.open("ab") as handle:
                self._process = subprocess.Popen(
                    [*account.prefix(capabilities), python, str(BOOT), "parent", address],
                    env=self.env,
                    cwd=scratch,
                    stdin=subprocess.DEVNULL,
                    stdout=handle,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            raise MachineError(
                f"{python}: cannot be started ({error.strerror}): name an interpreter with --python"
            ) from None
        self.control = self._began(log)

    def _began(self, log: Path) -> Channel:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                tail = end_of(log, 4000).decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
                who = f", which user {self.account.ids[0]} may run" if self.account.ids else ""
                raise MachineError(
                    f"{self.python}: cannot run perfci's worker ({tail[0]}): it must be Python 3.9 or newer{who}"
                )
            if select.select([self.listener], [], [], 0.1)[0]:
                sock = self.listener.accept()[0]
                if (channel := greeted(sock, "parent", None)) is not None:
                    return channel
                sock.close()
        raise MachineError(f"{self.python}: did not start within {START_TIMEOUT:g} s: is the machine overloaded?")

    def preload(self) -> None:
        """Import torch, if there is one. Raises MachineError if it is broken."""
        start = time.monotonic()
        reply = self._ask({"op": "preload"}, "preloaded")
        self.imported += time.monotonic() - start
        if reply["error"]:
            raise MachineError(f"{self.python}: `import torch` fails ({reply['error']}): fix that installation")

    def worker(self, arena: Arena, log: Path, under: Under | None = None) -> Worker:
        """Start a worker: forked from the stem or the parent, or spawned, under a profiler or where the sides'
        environments differ. All sides start the same way: a difference would be measured. Raises Died."""
        if not self.forks or under is not None:
            return self.spawned(arena, log, under)
        starter = self.stem or self
        return Worker(starter, *starter.forked("fork", arena, log), log)

    def close(self) -> None:
        """End the parent and everything below it."""
        if self.stem is not None:
            self.stem.control.close()
        self.control.close()
        self.listener.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
