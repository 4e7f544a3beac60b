"""Everything that perfci starts: one parent, workers forked from it, commands spawned by it.

The run talks to the parent (`perfci/worker/parent.py`) and to each worker over Unix sockets. Whatever happens to
the run, the parent kills all that still runs.
"""

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import ValidationError

from perfci.model.base import Document, MachineError
from perfci.model.results import Reason
from perfci.system.child import Arena, Died, Exit, Under
from perfci.system.files import disk_errors, end_of
from perfci.system.users import SAME, Account
from perfci.worker.channel import Channel, Garbage, reachable

BOOT = Path(__file__).parent.parent / "worker" / "boot.py"
START_TIMEOUT = 120.0
"""Seconds for an interpreter to start and connect; importing torch from a cold disk takes tens of seconds."""
POLL = 0.25
"""Seconds between two checks of a worker's memory."""
D = TypeVar("D", bound=Document)


def memory_of(pid: int) -> int:
    """Return the resident memory in bytes of a process and everything below it; 0 once it is gone."""
    try:
        top = psutil.Process(pid)
        return sum(_rss(process) for process in [top, *top.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def _peer(sock: socket.socket) -> int | None:
    """Return the process at the other end of a Unix socket; None where the system does not tell (unix(7),
    SO_PEERCRED)."""
    if not sys.platform.startswith("linux"):
        return None
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return None if pid in (0, os.getpid()) else int(pid)  # gVisor names the process that asks


def _opened(log: Path) -> int:
    """Return a log open for appending. Processes of another user get it so, and need not reach where it lies."""
    with disk_errors("opened", log):
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)


def _greeted(sock: socket.socket, name: int | str, pid: int | None) -> Channel | None:
    """Return a new connection, where process `pid` says at its other end that it is `name`."""
    if pid is not None and _peer(sock) not in (pid, None):
        return None  # code under test, in the place of a worker
    channel = Channel(sock)
    try:
        hello = channel.receive(timeout=10)
    except (TimeoutError, Garbage, OSError):
        return None
    return channel if hello is not None and hello.get("hello") == name else None


class Parent:
    """The run's side of the common parent.

    It runs as `worker`, and what it starts with it, with these `capabilities` and no others where that is another user.
    """

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
        self.memory_limit = memory_limit
        self._exits: dict[int, Exit] = {}
        self._next = 0
        self.imported = 0.0
        """Seconds that imports have taken which all forks inherit; a process of its own pays about as many."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = str(scratch / "s")
        try:
            with reachable(address) as name:
                self._listener.bind(name)
        except OSError as error:
            raise MachineError(
                f"{address}: cannot open a socket there ({error.strerror}): set TMPDIR to a short path"
            ) from None
        account.give(Path(address))
        account.show(scratch)
        self._listener.listen(16)
        self.address = address
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
        self.control = self._accept("parent", None, START_TIMEOUT, log)

    def _accept(self, name: int | str, pid: int | None, timeout: float, log: Path) -> Channel:
        """Return the connection of a process that says it is `name`. Where `pid` is known, no other is believed
        that."""
        deadline = time.monotonic() + timeout
        while True:
            if isinstance(name, int) and name in self._exits:
                raise Died(Reason(kind="crash", text=f"the worker {self._exits[name].words()} before it began"))
            if name == "parent" and self._process.poll() is not None:
                tail = end_of(log, 4000).decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
                who = f", which user {self.account.ids[0]} may run" if self.account.ids else ""
                raise MachineError(
                    f"{self.python}: cannot run perfci's worker ({tail[0]}): it must be Python 3.9 or newer{who}"
                )
            if time.monotonic() > deadline:
                raise MachineError(f"{self.python}: did not start within {timeout:g} s: is the machine overloaded?")
            watched: list[Any] = [self._listener, *([self.control] if name != "parent" else [])]
            pending = name != "parent" and self.control.pending()  # read already, with the message before it
            ready = select.select(watched, [], [], 0 if pending else 0.1)[0]
            if self._listener in ready:
                sock = self._listener.accept()[0]
                if (channel := _greeted(sock, name, pid)) is not None:
                    return channel
                sock.close()
            if pending or (name != "parent" and self.control in ready):
                self._pump()

    def _pump(self) -> dict[str, Any]:
        """Read one message of the parent; note it when it tells of an exit. Raises MachineError if it is gone."""
        try:
            message = self.control.receive(timeout=30)
        except (TimeoutError, Garbage, OSError):
            message = None
        if message is None:
            raise MachineError(
                "the parent of the workers was killed: run again; if memory is short, set memory: in perfci.yaml"
            )
        if "exited" in message:
            self._exits[message["exited"]] = Exit(message["code"], message["signal"], message["wall"])
        return message

    def _ask(
        self, request: dict[str, Any], answer: str, timeout: float = START_TIMEOUT, log: Path | None = None
    ) -> dict[str, Any]:
        """Send a request, with its log as an open file, and wait for the message that has a field `answer`."""
        file = None if log is None else _opened(log)
        try:
            self.control.send(request, file)
        except OSError:
            raise MachineError("the parent of the workers was killed: run again") from None
        finally:
            if file is not None:
                os.close(file)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.control.pending() or select.select([self.control], [], [], 0.5)[0]:
                message = self._pump()
                if answer in message:
                    return message
        raise MachineError(f"the parent of the workers did not answer within {timeout:g} s")

    def preload(self) -> None:
        """Import torch in the parent, where the interpreter has one. Raises MachineError if it is broken there."""
        start = time.monotonic()
        reply = self._ask({"op": "preload"}, "preloaded")
        self.imported += time.monotonic() - start
        if reply["error"]:
            raise MachineError(f"{self.python}: `import torch` fails ({reply['error']}): fix that installation")

    def preload_suite(
        self, sides: Sequence[Mapping[str, Any]], nowhere: Path, forbidden: Sequence[str]
    ) -> dict[str, Any] | None:
        """Import in the parent what the suites of all `sides` (`tree`, `path`, `suite`) import, while no worker runs.

        `nowhere`: the folder that stands in the parent's environment for a side's; `forbidden`: folders whose code must
        not run there. None where nothing could be kept.
        """
        imported: dict[str, Any] | None = self._ask(
            {"op": "preload_suite", "sides": list(sides), "nowhere": str(nowhere), "forbidden": list(forbidden)},
            "imported",
        )["imported"]
        return imported

    def _ident(self) -> int:
        self._next += 1
        return self._next

    def worker(self, arena: Arena, log: Path, under: "Under | None" = None) -> "Worker":
        """Start a worker: forked from the parent, or spawned where the sides' environments differ. Raises Died.

        Never one side so and the other so: that would be a difference between the sides. A worker under a profiler is
        spawned, for the profiler to start it.
        """
        ident = self._ident()
        env = dict(arena.env) if under is None else under.environment(arena.env)
        setup = {
            "id": ident,
            "address": self.address,
            "env": env,
            "tree": str(arena.tree),
            "site": str(arena.site),
            "path": list(arena.path),
            "threads": arena.threads,
            "cores": list(arena.cores),
            "profiled": under is not None,
            "cache": None if arena.cache is None else str(arena.cache),
        }
        if self.forks and under is None:
            started = self._ask({"op": "fork", **setup}, "started", log=log)
            pid = started["pid"]
        else:
            argv = [arena.python, str(BOOT), "worker", json.dumps(setup)]
            argv = argv if under is None else under.command(argv)
            started = self._spawn(ident, argv, env, arena.tree, log, arena.cores)
            pid = None  # the profiler starts the worker, or a script in the place of an interpreter
        try:
            return Worker(self, ident, started["pid"], self._accept(ident, pid, START_TIMEOUT, log), log)
        except MachineError as error:
            if under is None:
                raise
            self.kill(ident)  # not the machine's fault, but the profiler's
            raise Died(Reason(kind="timeout", text=str(error)[:1000])) from None

    def _spawn(
        self,
        ident: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        cores: Sequence[int] = (),
    ) -> dict[str, Any]:
        request = {
            "op": "spawn", "id": ident, "argv": list(argv), "env": dict(env), "cwd": str(cwd),
            "cores": list(cores) or None,
        }  # fmt: skip
        started = self._ask(request, "started", log=log)
        if started["pid"] is None:
            raise Died(Reason(kind="exit", text=f"cannot be started: {started['error']}"[:500]))
        return started

    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        timeout: float,
        cores: Sequence[int] = (),
        watch: Callable[[], Reason | None] | None = None,
    ) -> Exit:
        """Run a program to its end. Raises Died when it outlasts `timeout` seconds or the memory limit, or where
        `watch`, which is asked meanwhile, has a reason to end it."""
        ident = self._ident()
        pid = self._spawn(ident, argv, env, cwd, log, cores)["pid"]
        self._wait(ident, pid, timeout, None, watch)
        return self._exits.pop(ident)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> int:
        """Start a program beside the workers. Returns the number by which `wait_exit` and `kill` know it. Raises
        Died."""
        ident = self._ident()
        self._spawn(ident, argv, env, cwd, log)
        return ident

    def _wait(
        self,
        ident: int,
        pid: int,
        timeout: float,
        channel: Channel | None,
        watch: Callable[[], Reason | None] | None = None,
    ) -> None:
        """Wait until the process ended or `channel` can be read. Kills it, and raises Died, past time or memory, or
        where
        `watch` says why."""
        deadline = time.monotonic() + timeout
        look = time.monotonic() + POLL
        watched: list[Any] = [self.control, *([channel] if channel else [])]
        while ident not in self._exits:
            if channel is not None and channel.pending():
                return
            now = time.monotonic()
            if now >= deadline:
                self.kill(ident)
                raise Died(Reason(kind="timeout", text=f"no answer within {timeout:g} s"))
            if now >= look:
                look = now + POLL
                if self.memory_limit and (used := memory_of(pid)) > self.memory_limit:
                    self.kill(ident)
                    allowed = f"{self.memory_limit / 2**30:.1f} GiB allowed"
                    text = f"used {used / 2**30:.1f} GiB of memory, more than the {allowed}"
                    raise Died(Reason(kind="memory", text=text))
                if watch is not None and (reason := watch()) is not None:
                    self.kill(ident)
                    raise Died(reason)
            ready = select.select(watched, [], [], min(deadline, look) - now)[0]
            if channel is not None and channel in ready:
                return
            if self.control in ready or self.control.pending():
                self._pump()

    def wait_exit(self, ident: int, timeout: float) -> Exit | None:
        """Return the exit of a process that is ending; None if it has not ended after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while ident not in self._exits:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if self.control.pending() or select.select([self.control], [], [], left)[0]:
                self._pump()
        return self._exits.pop(ident)

    def kill(self, ident: int) -> None:
        """Kill a process with everything below it."""
        self._ask({"op": "kill", "id": ident}, "killed")
        self.wait_exit(ident, 10)

    def close(self) -> None:
        """End the parent and everything below it."""
        self.control.close()
        self._listener.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Worker:
    """The run's side of one worker."""

    def __init__(self, parent: Parent, ident: int, pid: int, channel: Channel, log: Path) -> None:
        self.parent = parent
        self.ident = ident
        self.pid = pid
        self.channel = channel
        self.log = log
        self.alive = True
        self.leaving = False
        """True where it was dismissed and its exit is still to be collected."""

    def ask(self, op: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """Ask and wait for the answer. Raises Died, with the reason, where none comes or it reports an error."""
        self.begin(op, **fields)
        return self.answer(timeout)

    def begin(self, op: str, **fields: Any) -> None:
        """Ask, and let others be asked before `answer` waits. Raises Died where the worker has ended."""
        if not self.alive:
            raise Died(Reason(kind="crash", text="the worker has ended already"))
        with contextlib.suppress(OSError):  # it is gone, as `answer` finds out
            self.channel.send({"op": op, **fields})

    def answer(self, timeout: float) -> dict[str, Any]:
        """Wait for the answer to what was begun. Raises Died as `ask` does."""
        try:
            self.parent._wait(self.ident, self.pid, timeout, self.channel)
            reply = self.channel.receive(timeout=timeout)
        except Died:
            self.alive = False
            raise
        except Garbage as error:
            self.kill()
            raise Died(Reason(kind="protocol", text=f"wrote garbage on perfci's channel: {error}"[:400])) from None
        except TimeoutError:
            self.kill()
            raise Died(Reason(kind="timeout", text=f"no answer within {timeout:g} s")) from None
        except OSError:
            reply = None
        if reply is None:
            raise self._gone()
        if "error" in reply:
            if reply.get("poisoned"):
                self.kill()
            raise Died(Reason(kind=reply["error"]["kind"], text=reply["error"]["text"]))
        return reply

    def tell(self, form: type[D], op: str, timeout: float, **fields: Any) -> D:
        """Ask for an answer of this form. Raises Died as ask() does, and where the answer does not fit."""
        return self.fit(form, op, self.ask(op, timeout, **fields))

    def fit(self, form: type[D], op: str, reply: Mapping[str, Any]) -> D:
        """Return the answer to `op` in its form. Raises Died, and ends the worker, where it does not fit."""
        try:
            return form.model_validate(reply)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            field = ".".join(map(str, wrong["loc"]))
            self.kill()
            text = f"answered {op!r} with what does not fit: {field}: {wrong['msg']}"
            raise Died(Reason(kind="protocol", text=text[:400])) from None

    def _gone(self) -> Died:
        self.alive = False
        ended = self.parent.wait_exit(self.ident, 5)
        if ended is None:
            self.kill()
            return Died(Reason(kind="protocol", text="closed perfci's channel"))
        kind = "crash" if ended.signal is not None else "exit"
        return Died(Reason(kind=kind, text=f"{ended.words()} before it answered"))

    def kill(self) -> None:
        """Kill the worker and everything below it."""
        self.alive = False
        self.parent.kill(self.ident)

    def dismiss(self) -> None:
        """Tell the worker to end by itself, without waiting for it."""
        if self.alive:
            self.alive = False
            self.leaving = True
            with contextlib.suppress(OSError):  # it is gone; its exit is collected by close()
                self.channel.send({"op": "bye"})
            self.channel.close()

    def finish(self, timeout: float) -> Exit | None:
        """Let the worker end by itself, and with it the profiler around it. None, and killed, if that takes longer."""
        self.dismiss()
        self.leaving = False
        ended = self.parent.wait_exit(self.ident, timeout)
        if ended is None:
            self.parent.kill(self.ident)
        return ended

    def close(self) -> None:
        """Let the worker end by itself; kill it if it does not."""
        self.dismiss()
        if self.leaving:
            self.finish(5)
