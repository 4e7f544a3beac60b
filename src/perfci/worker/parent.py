"""The common parent: imports torch once, leaves CUDA untouched, forks the workers of base and head and runs commands.

It owns every process that perfci starts. When the run goes away, however it goes, the parent kills them all and
ends; on Linux it is a subreaper, so that daemons which user code leaves behind are its children too and go as well.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

from . import serve
from .channel import Channel, connect
from .leash import PR_SET_CHILD_SUBREAPER, children, descendants, end_all, leash, prctl, send
from .preload.paths import Place, relocate
from .preload.steps import Preload


class Parent:
    """The loop of the parent process: serves the run, and reports exits of children as they happen."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.running: dict[int, tuple[int, float]] = {}  # pid → (id of the request, start)
        self.wakeup = -1
        self.environment: dict[str, Any] = {"set": {}, "removed": []}  # what imports here did to it
        self.places: list[Place] = []  # where they keep paths of a side
        self.nowhere = ""

    def run(self) -> None:
        """Serve until the run hangs up."""
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self.wakeup = write
        self.watch_children()
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

    def watch_children(self) -> None:
        """Let each exit of a child wake the loop, and be the one to whom orphans are handed."""
        signal.set_wakeup_fd(self.wakeup, warn_on_full_buffer=False)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def serve(self, message: dict[str, Any]) -> None:
        """Answer one request."""
        op = message["op"]
        if op == "preload":
            self.channel.send(preload())
        elif op == "preload_suite":
            self.preload_suite(message)
        elif op == "fork":
            self.fork(message)
        elif op == "spawn":
            self.spawn(message)
        elif op == "kill":
            self.kill_tree(message["id"])
            self.channel.send({"killed": message["id"]})

    def preload_suite(self, message: dict[str, Any]) -> None:
        """Import what the suites of all sides do, as far as forks can inherit it. No worker may be running.

        It is another process that answers, where there was something to import.
        """
        report = Preload(message).run()
        if report is None:
            gc.freeze()
        else:
            self.channel.adopt()
            self.watch_children()  # forks adopt nobody, and asyncio's handler of forks takes the descriptor away
            self.environment = report.pop("environment")
            self.places = report.pop("places")
            self.nowhere = message["nowhere"]
        self.channel.send({"imported": report})

    def fork(self, message: dict[str, Any]) -> None:
        """Start a worker as a fork of this process."""
        log = self.channel.file()
        message["env"].update(self.environment["set"])
        for name in self.environment["removed"]:
            message["env"].pop(name, None)
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.channel.close()
            if self.places:
                folder = os.path.dirname(message["env"]["PERFCI_SITE"])
                relocate(self.places, self.nowhere, folder)
                if message["cache"]:
                    relocate(self.places, os.path.join(folder, "cache"), message["cache"])
            serve.enter(message, log)
        os.close(log)
        self.running[pid] = (message["id"], start)
        self.channel.send({"started": message["id"], "pid": pid})

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
        """Collect every child that ended and tell the run of those that it asked for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            end = time.monotonic()
            if pid == 0:
                return
            if pid in self.running:
                ident, start = self.running.pop(pid)
                if not self.running:
                    end_all(all_below)  # not before: orphans of one worker may serve another of its children
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
        for pid, (owner, _) in list(self.running.items()):
            if owner == ident:
                end_all(partial(tree, pid))
                send(pid, signal.SIGKILL)  # where there is no /proc

    def leave(self) -> None:
        """Kill everything below us, then end."""
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
    """Import torch where there is one: the seconds are then paid once, not by every worker."""
    failure = None
    try:
        serve.import_torch()
    except Exception as error:
        failure = serve.described(error)
    # What is imported now lives as long as the workers: collections there need not walk it, nor copy its pages.
    gc.collect()
    gc.freeze()
    return {"preloaded": "torch" in sys.modules, "error": failure}


def main(address: str) -> None:
    """Connect to the run at `address` and serve it."""
    os.setsid()
    channel = connect(address, takes_files=True)
    channel.send({"hello": "parent", "pid": os.getpid()})
    Parent(channel).run()
