"""The stem: a fork of the parent that imports once, for the workers that it forks, what lies outside of their sides.

A fork must be able to do without what a module leaves: no thread, child, descriptor, shared memory, signal handler,
other folder, seeded generator or touched GPU. Otherwise this process is dropped, and the run begins anew without that
module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Optional

from .. import discover, tuners
from ..channel import Channel, connect
from ..leash import PR_SET_PDEATHSIG, prctl
from ..parent import Parent
from ..scripts.timers import exchange
from . import Finder
from .asked import Groups, Settings, Traces
from .inherited import Place, changed, holders, places, relocate, shared_memory, state

TRIAL = 30.0
DIGESTS = (("triton.runtime.cache", "triton_key"), ("triton.compiler.compiler", "triton_key"))
"""Functions that read a whole library and cache the digest."""


class Stem(Parent):
    """A stem's loop."""

    def __init__(self, channel: Channel, message: dict[str, Any]) -> None:
        """`message`: the request, with `path`, a side's entries of `sys.path`, `others` and `environments`, of the
        other sides, and `refused`, modules not to import."""
        super().__init__(channel, enter)
        self.folder: str = os.path.dirname(message["site"])
        self.refused = set(message["refused"])
        self.guard = Guard([message["path"], *message["others"]])
        self.groups: Groups = {}
        self.places: list[Place] = []
        self.environment: dict[str, str] = message["env"]
        """The side's, without imports' changes."""
        self.environments: list[dict[str, str]] = message["environments"]
        self.settings = Settings(self.folder, message["path"])
        self.stopped = ""
        """The module from which the suite decides how it imports."""
        self.fault: Optional[dict[str, Any]] = None
        """The module that spoiled this process, and why."""
        if message["kinds"]:
            exchange({})  # before anything keeps a timer
        if "pytest" in message["kinds"] and "pytest" not in self.refused:
            with self.guard.on(), contextlib.suppress(ImportError):
                importlib.import_module("pytest")  # which modules look for
            if self.guard.fault:
                self.fault = {"name": "pytest", "why": self.guard.fault, "seconds": 0.0}
        self.modules, self.paid = len(sys.modules), 0.0
        random.random()  # makes all words, of which the next draws take one after the other
        self.shared = shared_memory()
        gc.unfreeze()
        self.known = holders(self.folder)[0]
        """Texts that already hold the path."""
        gc.freeze()

    def serve(self, message: dict[str, Any]) -> None:
        """Answer one request; imports are answered together, by what settles them."""
        op = message["op"]
        if op == "import":
            self.fault = self.fault or self.take(message["name"], message["state"])
            if self.fault is not None:  # it keeps neither memory nor a device meanwhile
                self.channel.send({"settled": self.settle()})
                self.leave()
        elif op == "settle":
            self.channel.send({"settled": self.settle()})
        else:
            super().serve(message)

    def know(self) -> None:
        """Set all values of all sides' environments once: the C library keeps each, and forks for two sides would lay
        out memory 2 KiB apart."""
        own = dict(os.environ)
        for environment in self.environments:
            os.environ.update(environment)
        os.environ.clear()
        os.environ.update(own)

    def take(self, name: str, settings: str) -> Optional[dict[str, Any]]:
        """Import a module. Return it, and why this process is spoiled, if it is.

        `settings`: the scout's; where they differ here, the suite decides from there on.
        """
        parts = name.split(".")
        refused = any(".".join(parts[: number + 1]) in self.refused for number in range(len(parts)))
        if name in sys.modules or refused or self.guard.owns(name) or self.stopped:
            return None
        if settings != self.settings.digest():
            self.stopped = name
            return None
        start, traces, before, failure = time.monotonic(), Traces(), state(), ""
        with self.guard.on():
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                failure = "" if error.name == name else f"cannot be imported here ({type(error).__name__})"
            except BaseException as error:  # pytest's own for a skip
                failure = f"cannot be imported here ({type(error).__name__})"
        self.guard.forget()
        self.groups[name] = traces.since()
        self.paid += time.monotonic() - start
        why = self.guard.fault or failure or next(iter(changed(before, state())), "")
        if not why and self.groups[name].modules:
            why = "shares memory" if shared_memory() != self.shared else spoiled()
        gc.collect()  # what is garbage keeps nothing
        if not why and (kept := self.holding()[1]):
            why = f"keeps {kept.replace(self.folder + os.sep, '')} of its side, where that cannot be put right"
        if not why and not self.channel.pending() and not select.select([self.channel], [], [], 0)[0]:
            self.learn()  # while the scout is at work
            self.groups[name] = traces.since()
        gc.freeze()  # what the next one keeps is looked for among what is new then
        return {"name": name, "why": why, "seconds": time.monotonic() - start} if why else None

    def holding(self) -> tuple[list[Place], str]:
        """Return the names that hold a path of the side, and a path held otherwise. Frozen objects do not count."""
        environment: Any = os.environ
        own = {id(one) for pair in environment._data.items() for one in pair}
        own |= {id(value) for group in self.groups.values() for value in group.variables.values()}
        texts, plain = holders(self.folder)
        for ident in self.known.keys() | own:
            texts.pop(ident, None)
        if not texts:
            return [], ""
        gc.unfreeze()  # modules that were there before may hold one: tempfile
        return places(texts, plain)

    def learn(self) -> None:
        """Find out once for all forks what the modules present make each ask for."""
        for module, function in DIGESTS:
            make = getattr(sys.modules.get(module), function, None)
            if make is not None and hasattr(make, "cache_info"):
                with contextlib.suppress(Exception):  # a worker's own call fails in the same way, and says so
                    make()
        tuners.learn()
        discover.learn()

    def settle(self) -> dict[str, Any]:
        """Make ready for forks, and return what was imported."""
        if self.fault is None and self.groups:
            self.learn()
        self.know()
        gc.collect()
        gc.unfreeze()
        self.places, kept = self.holding()
        # What is imported now lives as long as the workers: collections there need not walk it, nor copy its pages.
        gc.freeze()
        return {
            "modules": len(sys.modules) - self.modules,
            "seconds": self.paid,
            "fault": self.fault,
            "kept": kept,
            "stopped": self.stopped,
        }

    def prepare(self, message: dict[str, Any]) -> None:
        """In a fork: move imports to its folders, in the environment that they left."""
        message["plain"] = dict(message["env"])
        folder = os.path.dirname(message["site"])
        cache = os.path.join(folder, "cache")
        for name in self.environment.keys() | os.environ.keys():
            if name not in os.environ:
                message["env"].pop(name, None)
            elif self.environment.get(name) != os.environ[name]:
                value = os.environ[name].replace(self.folder, folder)
                message["env"][name] = value.replace(cache, message["cache"] or cache)
        relocate(self.places, self.folder, folder)  # of the side whose path it is, too: all forks do the same
        if message["cache"]:
            relocate(self.places, cache, message["cache"])
        message["groups"], message["first"] = self.groups, self.folder


class Guard(Finder):
    """A finder that denies what a side may provide: none of its code runs here."""

    def __init__(self, paths: Sequence[Sequence[str]]) -> None:
        """`paths`: each side's entries of `sys.path`, the stem's own first."""
        self.path = [os.path.realpath(entry) for entry in paths[0]]
        self.fault = ""
        self.owned: set[str] = set()
        """Top-level modules and packages of any side."""
        self.metadata: dict[str, dict[int, str]] = {}
        """Name of a distribution's folder → side → where it is."""
        self.sides = len(paths)
        spaces = [self._take(side, path) for side, path in enumerate(paths)]
        self.spaces = set.intersection(*spaces) - self.owned
        """Folders in all sides that can only be namespace packages."""
        self.owned |= set.union(*spaces) - self.spaces

    def _take(self, side: int, path: Sequence[str]) -> set[str]:
        spaces: set[str] = set()
        for folder in path:
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                whole = os.path.join(folder, name)
                if discover.is_metadata(name):
                    self.metadata.setdefault(name, {}).setdefault(side, whole)
                elif name.endswith((".py", ".so")) or os.path.isfile(os.path.join(whole, "__init__.py")):
                    self.owned.add(name.partition(".")[0])
                elif os.path.isdir(whole) and name.isidentifier():
                    spaces.add(name)
        return spaces

    def owns(self, name: str) -> bool:
        """Tell whether a module is a side's by its name."""
        return name.partition(".")[0] in self.owned | self.spaces

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Raises ModuleNotFoundError for what a side may have. Namespace packages are found, as by a worker:
        transformers asks for `kernels`."""
        if path is None and name in self.spaces:
            return PathFinder.find_spec(name, [*self.path, *sys.path])
        inside = path is not None and any(discover.inside(os.path.realpath(one), self.path) for one in path)
        if inside or (path is None and name in self.owned):
            self.fault = self.fault or f"looks for {name}, which the repository may provide"
            raise ModuleNotFoundError(f"{name} is not loaded here", name=name)
        return None

    def forget(self) -> None:
        """Remove imported namespace packages: they hold the side's path."""
        for name in self.spaces & sys.modules.keys():
            places = getattr(sys.modules[name], "__path__", ())  # which `time` has not, as a folder may be called
            if any(discover.inside(os.path.realpath(one), self.path) for one in places):
                del sys.modules[name]
        for entry in [one for one in sys.path_importer_cache if discover.inside(os.path.realpath(one), self.path)]:
            del sys.path_importer_cache[entry]

    def find_distributions(self, context: Any) -> Iterator[Distribution]:
        """Find what all sides have installed alike; note where a worker would answer otherwise."""
        wanted = getattr(context, "name", None)
        if list(getattr(context, "path", sys.path)) != sys.path:
            return
        for folder, where in self.metadata.items():
            name = discover.normalized(folder.rpartition(".")[0].partition("-")[0])
            if wanted is not None and discover.normalized(wanted) != name:
                continue
            if len(where) == self.sides:
                # By new texts: they are found where something keeps them.
                yield _Alike(self, [Path(place[:1] + place[1:]) for place in where.values()])
            else:
                self.fault = self.fault or f"asks which version of {wanted or 'all packages'} is installed"

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Be asked first meanwhile."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)


class _Alike(Distribution):
    """An installed package of all sides."""

    def __init__(self, guard: Guard, places: Sequence[Path]) -> None:
        self.guard, self.places = guard, places

    def read_text(self, filename: Any) -> Optional[str]:
        texts = [_text(place / filename) for place in self.places]
        if len(set(texts)) > 1:
            self.guard.fault = self.guard.fault or f"reads {filename} of {self.places[0].name}, which differs"
        return texts[0]

    def locate_file(self, path: Any) -> Any:
        self.guard.fault = self.guard.fault or f"asks where {self.places[0].name} is"
        return self.places[0].parent / path


def _text(file: Path) -> Optional[str]:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def spoiled() -> str:
    """Return why a fork of this process could not be a worker, by a trial."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            torch = sys.modules.get("torch")
            if len(os.listdir("/proc/self/task")) > 1:
                code = 3  # by a handler of forks
            elif torch is not None:
                torch.ones(64, 64) @ torch.ones(64, 64)
                code = int(bool(torch.cuda._is_in_bad_fork()))
            else:
                code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + TRIAL
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            words = {0: "", 1: "keeps CUDA from working in a fork", 3: "starts a thread in each fork"}
            return words.get(os.waitstatus_to_exitcode(status), "breaks a fork")
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs in a fork"
        select.select([], [], [], 0.002)


def enter(message: dict[str, Any], log: int) -> None:
    """Turn this process, just forked, into a stem. Never returns."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.clear()
        os.environ.update(message["env"])
        channel = connect(message["address"], takes_files=True)
        channel.send({"hello": message["id"], "pid": os.getpid()})
        Stem(channel, message).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)  # EX_SOFTWARE
