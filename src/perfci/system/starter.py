"""A process that starts others, and its workers."""

import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from perfci.model.base import Document, MachineError
from perfci.model.results import Reason
from perfci.system.builds import NONE, Builds, below, memory_of
from perfci.system.child import Arena, Died, Exit, Under
from perfci.system.files import disk_errors
from perfci.worker.channel import Channel, Garbage

BOOT = Path(__file__).parent.parent / "worker" / "boot.py"
START_TIMEOUT = 120.0
"""Seconds; importing torch from a cold disk takes tens."""
POLL = 0.25
"""Seconds."""
D = TypeVar("D", bound=Document)


def _peer(sock: socket.socket) -> int | None:
    """The process at the other end (unix(7), SO_PEERCRED)."""
    if not sys.platform.startswith("linux"):
        return None
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return None if pid in (0, os.getpid()) else int(pid)  # gVisor names the process that asks


def _opened(log: Path) -> int:
    """Processes of another user cannot reach its path."""
    with disk_errors("opened", log):
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)


def greeted(sock: socket.socket, name: int | str, pid: int | None) -> Channel | None:
    """Return the connection if process `pid` says that it is `name`."""
    if pid is not None and _peer(sock) not in (pid, None):
        return None  # code under test, in the place of a worker
    channel = Channel(sock)
    try:
        hello = channel.receive(timeout=10)
    except (TimeoutError, Garbage, OSError):
        return None
    return channel if hello is not None and hello.get("hello") == name else None


class _Failed(Document):
    error: Reason
    poisoned: bool = False
    """Its CUDA context no longer works."""


class Heard(Document):
    """A worker's message before its answer."""

    asked: tuple[str, str] | None = None
    """A module, and a digest of the settings then."""
    runs: str = Field("", max_length=400)
    """A benchmark script that it begins."""


class Starter:
    """The common parent, or a stem."""

    control: Channel
    builds: Builds = NONE
    """Of cases, which do not count for time-outs of workers."""

    def __init__(self, address: str, listener: socket.socket, numbers: Iterator[int], memory_limit: int | None) -> None:
        """`address`: of `listener`; `memory_limit`: bytes for each process."""
        self.address, self.listener, self.numbers, self.memory_limit = address, listener, numbers, memory_limit
        self._exits: dict[int, Exit] = {}

    def _accept(self, name: int, pid: int | None, timeout: float) -> Channel:
        """Raises Died where it has ended, MachineError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            if name in self._exits:
                raise Died(Reason(kind="crash", text=f"the worker {self._exits[name].words()} before it began"))
            if time.monotonic() > deadline:
                raise MachineError(f"a worker did not start within {timeout:g} s: is the machine overloaded?")
            pending = self.control.pending()  # read already, with the message before it
            watched: list[Any] = [self.listener, self.control]
            ready = select.select(watched, [], [], 0 if pending else 0.1)[0]
            if self.listener in ready:
                sock = self.listener.accept()[0]
                if (channel := greeted(sock, name, pid)) is not None:
                    return channel
                sock.close()
            if pending or self.control in ready:
                self.hear()

    def hear(self) -> dict[str, Any]:
        """Read a message of the parent. Raises MachineError."""
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
        file = None if log is None else _opened(log)
        try:
            self.control.send(request, file)
        except OSError:
            raise MachineError("the parent of the workers was killed: run again") from None
        finally:
            if file is not None:
                os.close(file)
        return self._await(answer, timeout)

    def _await(self, answer: str, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.control.pending() or select.select([self.control], [], [], 0.5)[0]:
                message = self.hear()
                if answer in message:
                    return message
        raise MachineError(f"the parent of the workers did not answer within {timeout:g} s")

    def forked(self, op: str, arena: Arena, log: Path, **fields: Any) -> tuple[int, int, Channel]:
        """Return number, process and channel of a new fork. Raises Died."""
        ident = next(self.numbers)
        pid = self._ask({"op": op, **self._setup(ident, arena), **fields}, "started", log=log)["pid"]
        if pid is None:
            raise Died(Reason(kind="crash", text="the worker ended before it began"))
        return ident, pid, self._accept(ident, pid, START_TIMEOUT)

    def _setup(self, ident: int, arena: Arena) -> dict[str, Any]:
        return {
            "id": ident,
            "address": self.address,
            "env": dict(arena.env),
            "tree": str(arena.tree),
            "site": str(arena.site),
            "path": list(arena.path),
            "threads": arena.threads,
            "cores": list(arena.cores),
            "cache": None if arena.cache is None else str(arena.cache),
        }

    def spawned(self, arena: Arena, log: Path, under: Under | None) -> "Worker":
        """Return a worker in a process of its own. Raises Died."""
        ident = next(self.numbers)
        env = dict(arena.env) if under is None else under.environment(arena.env)
        setup = self._setup(ident, arena) | {"env": env, "profiled": under is not None}
        argv = [arena.python, str(BOOT), "worker", json.dumps(setup)]
        argv = argv if under is None else under.command(argv)
        started = self._spawn(ident, argv, env, arena.tree, log, arena.cores)
        try:
            # Its process is not known: the profiler starts it, or a script in the place of an interpreter.
            return Worker(self, ident, started["pid"], self._accept(ident, None, START_TIMEOUT), log)
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
        """Run a program to its end. Raises Died past `timeout` seconds or the memory limit, or for a reason from
        `watch`."""
        ident = next(self.numbers)
        pid = self._spawn(ident, argv, env, cwd, log, cores)["pid"]
        wait_first([Wait(self, ident, pid, timeout, None, watch)]).require()
        return self._exits.pop(ident)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> int:
        """Start a program, and return its number for `wait_exit` and `kill`. Raises Died."""
        ident = next(self.numbers)
        self._spawn(ident, argv, env, cwd, log)
        return ident

    def has_ended(self, ident: int) -> bool:
        """Tell whether a process's end was reported."""
        return ident in self._exits

    def wait_exit(self, ident: int, timeout: float) -> Exit | None:
        """Return the exit of a process; None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while ident not in self._exits:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if self.control.pending() or select.select([self.control], [], [], left)[0]:
                self.hear()
        return self._exits.pop(ident)

    def kill(self, ident: int) -> None:
        """Kill a process and all below it."""
        self._ask({"op": "kill", "id": ident}, "killed")
        self.wait_exit(ident, 10)


class Wait:
    """A wait for a process, from now on."""

    def __init__(
        self,
        starter: "Starter",
        ident: int,
        pid: int,
        timeout: float,
        channel: Channel | None,
        watch: Callable[[], Reason | None] | None = None,
    ) -> None:
        """`watch`: returns a reason to end it."""
        self.starter, self.ident, self.pid, self.channel, self.watch = starter, ident, pid, channel, watch
        self.timeout, self.deadline = timeout, time.monotonic() + timeout
        self.polled = time.monotonic()
        self.died: Died | None = None

    @property
    def next_poll(self) -> float:
        """When its processes are looked at next."""
        return self.polled + POLL

    def is_over(self) -> bool:
        """Tell whether it ended, was killed, or its answer is already read from the socket."""
        answered = self.channel is not None and self.channel.pending()
        return answered or self.died is not None or self.starter.has_ended(self.ident)

    def limit(self, now: float) -> None:
        """Kill it past time or memory, or for a reason of `watch`."""
        if now < min(self.next_poll, self.deadline):
            return None
        limit, builds = self.starter.memory_limit, self.starter.builds
        processes = below(self.pid) if limit or builds.left > 0 else []
        if self.channel is not None:
            self.deadline += builds.heed(processes, self.polled, now)
        self.polled = now
        if now >= self.deadline:
            return self._kill(Reason(kind="timeout", text=f"no answer within {self.timeout:g} s"))
        if limit and (used := memory_of(processes)) > limit:
            text = f"used {used / 2**30:.1f} GiB of memory, more than the {limit / 2**30:.1f} GiB allowed"
            return self._kill(Reason(kind="memory", text=text))
        if self.watch is not None and (reason := self.watch()) is not None:
            self._kill(reason)
        return None

    def _kill(self, reason: Reason) -> None:
        self.starter.kill(self.ident)
        self.died = Died(reason)

    def require(self) -> None:
        """Raise Died where it was killed."""
        if self.died is not None:
            raise self.died


def wait_first(waits: Sequence[Wait]) -> Wait:
    """Return the first that ended, answered or was killed. Raises MachineError."""
    controls = {wait.starter.control: wait.starter for wait in waits}
    channels = {wait.channel: wait for wait in waits if wait.channel is not None}
    while True:
        for wait in waits:
            if wait.is_over():
                return wait
        left = min(min(wait.deadline, wait.next_poll) for wait in waits) - time.monotonic()
        pending = [control for control in controls if control.pending()]
        ready = select.select([*controls, *channels], [], [], 0.0 if pending else max(0.0, left))[0]
        for channel in ready:
            if channel in channels:
                return channels[channel]
        heard = [control for control in controls if control in ready or control in pending]
        for control in heard:
            controls[control].hear()
        for wait in waits if not heard else ():
            wait.limit(time.monotonic())
            if wait.died is not None:
                return wait


class Worker:
    """The run's side of one worker."""

    def __init__(self, parent: Starter, ident: int, pid: int, channel: Channel, log: Path) -> None:
        self.parent = parent
        self.ident = ident
        self.pid = pid
        self.channel = channel
        self.log = log
        self.alive = True
        self.leaving = False
        """Its exit is still to be collected."""

    def ask(self, op: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """Return the answer. Raises Died where none comes or it is an error."""
        self.begin(op, **fields)
        return self.answer(timeout)

    def begin(self, op: str, **fields: Any) -> None:
        """Ask without waiting. Raises Died where the worker has ended."""
        if not self.alive:
            raise Died(Reason(kind="crash", text="the worker has ended already"))
        with contextlib.suppress(OSError):  # it is gone, as `answer` finds out
            self.channel.send({"op": op, **fields})

    def wait(self, timeout: float) -> Wait:
        """Return the wait for the answer to `begin`, for `wait_first`."""
        return Wait(self.parent, self.ident, self.pid, timeout, self.channel)

    def answer(
        self, timeout: float, heard: Callable[[Heard], None] | None = None, *, waited: Wait | None = None
    ) -> dict[str, Any]:
        """Return the answer to `begin`. Raises Died. `heard` gets the messages before it. `waited`: a wait that is
        over."""
        waited = waited or self.wait(timeout)
        try:
            while True:
                wait_first([waited]).require()
                reply = self.channel.receive(timeout=timeout)
                if heard is None or reply is None or Heard.model_fields.keys().isdisjoint(reply):
                    break
                heard(Heard.model_validate(reply))
                if time.monotonic() > waited.deadline:
                    raise TimeoutError
        except Died:
            self.alive = False
            raise
        except KeyboardInterrupt:
            self.kill()  # `close` would wait for an answer that nobody reads
            raise
        except (Garbage, ValidationError) as error:
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
            failed = self.fit(_Failed, "failure", reply)
            if failed.poisoned:
                self.kill()
            raise Died(Reason(kind=failed.error.kind, text=failed.error.text))
        return reply

    def tell(self, form: type[D], op: str, timeout: float, **fields: Any) -> D:
        """Return an answer of this form. Raises Died."""
        return self.fit(form, op, self.ask(op, timeout, **fields))

    def fit(self, form: type[D], op: str, reply: Mapping[str, Any]) -> D:
        """Return the answer in its form, else kill the worker and raise Died."""
        try:
            return form.model_validate(reply)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            field = ".".join(map(str, wrong["loc"]))
            self.kill()
            text = f"answered {op!r} with what does not fit: {field}: {wrong['msg']}"
            raise Died(Reason(kind="protocol", text=text[:400])) from None

    def _gone(self) -> Died:
        alive, self.alive = self.alive, False
        ended = self.parent.wait_exit(self.ident, 5)
        if ended is None:
            if alive:
                self.parent.kill(self.ident)
            return Died(Reason(kind="protocol", text="closed perfci's channel"))
        kind = "crash" if ended.signal is not None else "exit"
        return Died(Reason(kind=kind, text=f"{ended.words()} before it answered"))

    def kill(self) -> None:
        """Kill the worker, if it lives, and all below it."""
        if self.alive:
            self.alive = False
            self.parent.kill(self.ident)

    def dismiss(self) -> None:
        """Tell the worker to end by itself, without a wait."""
        if self.alive:
            self.alive = False
            self.leaving = True
            with contextlib.suppress(OSError):  # it is gone; its exit is collected by close()
                self.channel.send({"op": "bye"})
            self.channel.close()

    def finish(self, timeout: float) -> Exit | None:
        """Let the worker, and the profiler around it, end; kill it, and return None, if that takes longer."""
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


def close_all(workers: Iterable[Worker]) -> None:
    """Let workers end by themselves, all at a time."""
    ending = [*workers]
    for worker in ending:
        worker.dismiss()
    for worker in ending:
        worker.close()
