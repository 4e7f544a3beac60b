"""The common parent: imports torch once, leaves CUDA untouched, forks the workers and runs commands.

When the run goes away, it kills all below it, daemons of user code as well (on Linux it is a subreaper), and ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import traceback
from functools import partial
from typing import Any, Callable, Optional

from . import serve
from .channel import Channel, Garbage, connect
from .leash import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, children, descendants, end_all, leash, prctl, send

STARTING = 20.0
"""Seconds for a fork to take its request."""


class Template:
    """A fork of the parent in which nothing happens but forks, so that all of them find memory alike.

    Forks of the parent would lay out the same allocations up to 22 KiB apart, where 2 KiB were 8 to 12 % of the time of
    examples/extension. The child of a fork that ends at once becomes the parent's, a subreaper (prctl(2)).
    """

    def __init__(self, close: Callable[[], None], begin: Callable[[dict[str, Any], int], None]) -> None:
        """`close`: releases the parent's resources."""
        ours, theirs = socket.socketpair()
        read, self._wake = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                close()
                ours.close()
                os.close(self._wake)
                begin(*_forks(read, theirs))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # EX_SOFTWARE
        theirs.close()
        os.close(read)
        self._channel = Channel(ours)

    def fork(self, message: dict[str, Any], log: int) -> Optional[int]:
        """Return a new fork's process; None where it ended before it took its request."""
        try:
            os.write(self._wake, b"f")
            self._channel.send(message, log)
            reply = self._channel.receive(timeout=STARTING)
        except (OSError, Garbage):
            return None
        return None if reply is None else reply["pid"]

    def close(self) -> None:
        """Let it end."""
        os.close(self._wake)
        self._channel.close()


def _forks(wake: int, sock: socket.socket) -> tuple[dict[str, Any], int]:
    """Fork with each byte; return request and log, in a fork. Nothing here may allocate what stays."""
    while os.read(wake, 1):
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            continue
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(0.0001)
        os.close(wake)
        channel = Channel(sock, takes_files=True)
        message = channel.receive()
        if message is None:
            break
        channel.send({"pid": os.getpid()})
        channel.close()
        return message, channel.file()
    os._exit(0)


class Parent:
    """The loop of the parent process."""

    def __init__(self, channel: Channel, enter_stem: Callable[[dict[str, Any], int], None]) -> None:
        self.channel, self.enter_stem = channel, enter_stem
        self.running: dict[int, tuple[int, float]] = {}  # pid → (id of the request, start)
        self.stems: dict[int, tuple[int, float]] = {}  # likewise, of those that stay
        self.pipe: tuple[int, int] = (-1, -1)  # by which exits of children wake the loop
        self.template: Optional[Template] = None
        """Made by the first fork: later imports are not in it."""

    def run(self) -> None:
        """Serve until the run hangs up."""
        read, write = self.pipe = os.pipe()  # which no program inherits
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            if not self.channel.pending():
                watched: list[Any] = [self.channel, read]
                ready = select.select(watched, [], [])[0]
                if read in ready:
                    os.read(read, 4096)
                    self.reap()
                if self.channel not in ready:
                    continue
            message = self.channel.receive()
            if message is None:
                self.leave()
            else:
                self.serve(message)

    def serve(self, message: dict[str, Any]) -> None:
        """Answer one request."""
        op = message["op"]
        if op == "preload":
            self.channel.send(preload())
        elif op in ("fork", "stem"):
            self.fork(message)
        elif op == "spawn":
            self.spawn(message)
        elif op == "kill":
            self.kill_tree(message["id"])
            self.channel.send({"killed": message["id"]})

    def prepare(self, message: dict[str, Any]) -> None:
        """Make a fork ready for its purpose."""

    def fork(self, message: dict[str, Any]) -> None:
        """Start a fork, or report that there is none."""
        log = self.channel.file()
        start = time.monotonic()
        if self.template is None:
            self.template = Template(self.release, self.begin)
        pid = self.template.fork(message, log)
        os.close(log)
        if pid is None:
            self.template.close()
            self.template = None
        else:
            (self.stems if message["op"] == "stem" else self.running)[pid] = (message["id"], start)
        self.channel.send({"started": message["id"], "pid": pid})

    def release(self) -> None:
        """In the template: release the parent's own resources."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.channel.close()
        for end in self.pipe:
            os.close(end)

    def begin(self, message: dict[str, Any], log: int) -> None:
        """In a fork: become what was requested."""
        self.prepare(message)
        (self.enter_stem if message["op"] == "stem" else serve.enter)(message, log)

    def spawn(self, message: dict[str, Any]) -> None:
        """Start a program; its output goes to the log."""
        try:
            with open(self.channel.file(), "ab") as log:
                start = time.monotonic()
                process = subprocess.Popen(
                    message["argv"],
                    env=message["env"],
                    cwd=message["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: leash(message["cores"]),  # noqa: PLW1509  # this process has one thread
                )
        except (OSError, subprocess.SubprocessError) as error:
            self.channel.send({"started": message["id"], "pid": None, "error": str(error)})
            return
        self.running[process.pid] = (message["id"], start)
        process.returncode = 0  # reaped by reap(), not by subprocess
        self.channel.send({"started": message["id"], "pid": process.pid})

    def reap(self) -> None:
        """Collect every child that ended and report those that the run asked for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            end = time.monotonic()
            if pid == 0:
                return
            if pid in self.running or pid in self.stems:
                ident, start = (self.stems if pid in self.stems else self.running).pop(pid)
                if not self.running:
                    end_all(self.strays)  # not before: orphans of one worker may serve another of its children
                self.channel.send(
                    {
                        "exited": ident,
                        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                        "wall": end - start,
                    }
                )

    def kill_tree(self, ident: int) -> None:
        """Kill a process of ours with everything below it."""
        for pid, (owner, _) in [*self.running.items(), *self.stems.items()]:
            if owner == ident:
                end_all(partial(tree, pid))
                send(pid, signal.SIGKILL)  # where there is no /proc

    def strays(self) -> list[int]:
        """Return all processes below this one but template, stems and theirs."""
        table = children()
        stay = [*self.stems, *([self.template.pid] if self.template is not None else [])]
        kept = {one for stem in stay for one in [stem, *descendants(stem, table)]}
        return [pid for pid in descendants(os.getpid(), table) if pid not in kept]

    def leave(self) -> None:
        """Kill everything below, then end."""
        end_all(all_below)
        os._exit(0)


def all_below() -> list[int]:
    """Return all processes below this one."""
    return descendants(os.getpid(), children())


def tree(child: int) -> list[int]:
    """Return a child of this process and all below it, while it lives."""
    table = children()
    return [child, *descendants(child, table)] if child in table.get(os.getpid(), ()) else []


def preload() -> dict[str, Any]:
    """Import torch where there is one: once, not in every worker."""
    failure = None
    try:
        serve.import_torch()
    except Exception as error:
        failure = serve.described(error)
    sysconfig.get_config_vars()  # kept for good, with a path below HOME, which is nobody's here
    # What is imported now lives as long as the workers: collections there need not walk it, nor copy its pages.
    gc.collect()
    gc.freeze()
    return {"preloaded": "torch" in sys.modules, "error": failure}


def main(address: str, enter_stem: Callable[[dict[str, Any], int], None]) -> None:
    """Connect to the run at `address` and serve it."""
    os.setsid()
    channel = connect(address, takes_files=True)
    channel.send({"hello": "parent", "pid": os.getpid()})
    Parent(channel, enter_stem).run()
