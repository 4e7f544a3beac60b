"""Imports in the parent, once, what the suites of both sides import in each worker.

Each step is tried in a fork: where that process is then as a worker needs it, it goes on in the parent's place, and the
one before waits behind it; where it is not, it ends, and nothing of the step remains. So nothing is imported twice that
can be kept. After a step that fails its modules are imported one by one, in the order in which they were complete: what
spoils a process is left to the workers, with all that needs it.

A module is kept where no side has one of that name or is asked for one, and where it leaves no thread, child,
descriptor, shared memory, signal handler, other folder, seeded generator or touched GPU. In the parent's environment a
folder `nowhere` stands where a side's own stands in a worker's: a module that keeps a path below it is kept if each
place that leads to the path is a name that can be given the side's own path after the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

from .. import discover, tuners
from ..leash import PR_SET_PDEATHSIG, prctl
from .imports import COMPILING, Scan, Statement
from .inherited import shared_memory, spoils_forks
from .paths import Place, holders, places
from .watch import Watch, normal

STEP = 60.0
"""Seconds for one step at most."""
ENOUGH = 40.0
"""Seconds after which nothing more is tried."""
WHOLE = 100.0
"""Seconds for all of them at most; then the parent stays as it was."""
DIGESTS = (("triton.runtime.cache", "triton_key"), ("triton.compiler.compiler", "triton_key"))
"""Functions that read a whole library once a process, and keep what they make of it."""
_Report = dict[str, Any]


class Preload:
    """The steps. It is carried from process to process as they succeed."""

    def __init__(self, message: _Report) -> None:
        """`message`: the request, with the sides' `tree`, `path` and `suite`, `nowhere`, and `forbidden` as `Watch`
        takes it."""
        self.nowhere: str = message["nowhere"]
        self.forbidden: list[str] = message["forbidden"]
        self.sides: list[_Report] = message["sides"]
        self.claimed: set[str] = set()
        self.distributions: set[str] = set()
        self.refused: dict[str, str] = {}
        self.spaces: list[set[str]] = []
        self.held: list[Place] = []
        self.stopped = ""
        self.environment = dict(os.environ)
        self.modules = len(sys.modules)
        self.paid = 0.0
        """Seconds of the imports that were kept."""
        for side in self.sides:
            self.spaces.append(set())
            for folder in side["path"]:
                self._claim(folder, searched=True)
            for folder in (side["tree"], os.path.join(side["tree"], "src")):  # as the check of modules' origin sees it
                self._claim(folder, searched=folder in side["path"])
        everywhere = set.intersection(*self.spaces)
        self.claimed |= set.union(*self.spaces) - everywhere
        self.empty = everywhere - self.claimed
        """The folders that are namespace packages in all sides."""
        gc.unfreeze()
        self.known = holders(self.nowhere)
        """The texts that hold the path already: the environment's, and this request's."""

    def _claim(self, folder: str, *, searched: bool) -> None:
        """Note the top-level names that a folder provides. `searched`: it is on the side's path."""
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            whole, top = os.path.join(folder, name), name.partition(".")[0]
            if name.endswith((".dist-info", ".egg-info")):
                self.distributions.add(normal(name.rsplit(".", 1)[0].partition("-")[0]))
            elif top in sys.modules:
                continue  # the parent has it already, and the check of modules' origin speaks of it
            elif name.endswith((".py", ".so")) or os.path.isfile(os.path.join(whole, "__init__.py")):
                self.claimed.add(top)
            elif searched and os.path.isdir(whole) and name.isidentifier() and importlib.util.find_spec(name) is None:
                self.spaces[-1].add(name)  # a namespace package, as nothing else is called so

    def wanted(self) -> list[Statement]:
        """Return the statements that the suites of all sides hold, in the order of the first side; behind them what
        those import later that call `torch.compile`."""
        scans, compiles = [], True
        for side in self.sides:
            scan = Scan(side["tree"], side["path"])
            scan.read(side["suite"])
            self.stopped = self.stopped or scan.stopped
            scans.append(scan.found)
            compiles = compiles and scan.compiles
        same = [one for one in scans[0] if all(one in other for other in scans)]
        if compiles and not self.stopped:
            same += [Statement(name) for name in COMPILING]
        return [one for one in same if one.module not in sys.modules]

    def run(self) -> Optional[_Report]:
        """Return what was imported, in the process that has it; None in the parent, where all is as it was.

        The parent does not come back where it worked: it waits behind its successor.
        """
        report, accepted = self._try(self._all, WHOLE)
        return {name: report[name] for name in report if name != "ok"} if report and accepted else None

    def _places(self) -> Optional[list[Place]]:
        """Return the places that hold the path since the start; None where one of them cannot be told."""
        environment: Any = os.environ
        own = {id(one) for pair in environment._data.items() for one in pair}
        new = {ident: one for ident, one in holders(self.nowhere).items() if ident not in self.known.keys() | own}
        found = places(new, self.held)
        self.held = found or self.held
        return found

    def _all(self) -> _Report:
        start = time.monotonic()
        self._steps(self.wanted())
        tuners.learn()
        discover.learn()
        gc.collect()
        gc.unfreeze()
        found = self._places()
        new = {name: value for name, value in os.environ.items() if self.environment.get(name) != value}
        gone = [name for name in self.environment if name not in os.environ]
        gc.freeze()
        return {
            "ok": found is not None,
            "places": found,
            "modules": len(sys.modules) - self.modules,
            "seconds": time.monotonic() - start,
            "paid": self.paid,
            "refused": self.refused,
            "stopped": self.stopped,
            "environment": {"set": new, "removed": gone},
        }

    def _steps(self, units: Sequence[Statement]) -> None:
        """Import all units that can be kept. Returns in the process that has them.

        The first try imports everything, and finds out which modules spoil a process: where none does it is kept.
        """
        todo, needs, single = [list(units)], dict[str, list[str]](), set[str]()
        end = time.monotonic() + ENOUGH
        while todo:
            batch = [unit for unit in todo.pop(0) if unit.module not in self.refused]
            if time.monotonic() >= end:
                self.refused.update((unit.module, "came too late to be tried") for unit in batch)
                continue
            report, accepted = self._try(lambda batch=batch: self._step(batch), STEP) if batch else (None, True)
            if accepted:
                continue
            faults = report["faults"] if report is not None else {}
            needs.update(report["needs"] if report is not None else {})
            order = report["order"] if report is not None else []
            if not faults and len(batch) > 1:
                half = len(batch) // 2
                todo[:0] = [batch[:half], batch[half:]]
                continue
            if not faults and (batch[0].module in single or set(order) <= {batch[0].module}):
                faults = {batch[0].module: report["fault"] if report is not None else "ends the process"}
            for name, fault in faults.items():
                self.refused.setdefault(name, fault)
            for name in faults:
                for above in _above(name, needs):
                    self.refused.setdefault(above, f"needs {name}")
            todo[:0] = [[Statement(name) for name in order]]
            single.update(order)

    def _try(self, work: Any, seconds: float) -> tuple[Optional[_Report], bool]:
        """Run `work` in a fork. Returns its report: there, and True, where it is ok; here, and False, where not.

        None and False where it ended without a report, or took longer than `seconds`.
        """
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                report = work()
                told = {name: one for name, one in report.items() if name != "places"}
                with os.fdopen(write, "wb") as pipe:
                    pipe.write(json.dumps(told).encode() + b"\n")
            except BaseException as error:  # whatever it is, this fork must not return into the code of its maker
                os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
                os._exit(1)
            if not report["ok"]:
                os._exit(0)
            return report, True
        os.close(write)
        report = _answer(read, seconds)
        os.close(read)
        if report is not None and report["ok"]:
            _wait_behind(pid)
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)  # with it go the forks that were made of it
        os.waitpid(pid, 0)
        return report, False

    def _step(self, units: Sequence[Statement]) -> _Report:
        """Import some units in this process, and tell whether it can go on so."""
        gc.freeze()
        start = time.monotonic()
        random.random()  # makes all words, of which the next draws take one after the other
        watch = Watch(self.claimed, self.empty, self.distributions, self.forbidden, self.refused)
        shared, failed = shared_memory(), dict[str, str]()
        with watch.on():
            for unit in units:
                watch.unit = unit.module
                failure = perform(unit)
                watch.loaded(unit.module)
                if failure:
                    failed[unit.module] = failure
            watch.unit = "triton"
            digest()
        self.paid += time.monotonic() - start
        watch.settle()
        faults = {**failed, **watch.faults}
        needs = {name: sorted(asked) for name, asked in watch.needs.items()}
        fault = watch.fault
        if not faults and not fault:
            told = [value for name, value in os.environ.items() if self.environment.get(name) != value]
            if shared_memory() != shared:
                fault = "shares memory"
            elif spoils_forks():
                fault = "keeps CUDA from working in a fork"
            elif self._places() is None or any(self.nowhere in value for value in told):
                fault = "keeps a path of a side"
        return {"ok": not faults and not fault, "fault": fault, "faults": faults, "order": watch.order, "needs": needs}


def _above(name: str, needs: dict[str, list[str]]) -> set[str]:
    """Return the modules that need a module, directly or not."""
    found, todo = set[str](), {name}
    while todo:
        todo = {one for one, asked in needs.items() if one not in found and not todo.isdisjoint(asked)}
        found |= todo
    return found


def perform(unit: Statement) -> str:
    """Carry out a statement. Returns why it cannot be; a package that is not installed is no reason."""
    try:
        if importlib.util.find_spec(unit.module.partition(".")[0]) is None:
            return ""
        module = importlib.import_module(unit.module)
        for name in unit.names:
            if name != "*" and not hasattr(module, name):
                with contextlib.suppress(ModuleNotFoundError):  # the worker's own import says so
                    importlib.import_module(unit.module + "." + name)
    except (Exception, SystemExit) as error:
        return f"cannot be imported here ({type(error).__name__})"
    return ""


def digest() -> None:
    """Let libraries find out what each worker would find out anew."""
    for name, function in DIGESTS:
        make = getattr(sys.modules.get(name), function, None)
        if make is not None and hasattr(make, "cache_info"):
            with contextlib.suppress(Exception):  # a worker's own call fails in the same way, and says so
                make()


def _answer(descriptor: int, seconds: float) -> Optional[_Report]:
    """Return the line that comes from a pipe; None where none comes."""
    deadline, data = time.monotonic() + seconds, b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        try:
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
        except InterruptedError:
            continue
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return None
        data += chunk
    made: _Report = json.loads(data)
    return made


def _wait_behind(pid: int) -> None:
    """Hold the place of a successor: end when it does. Never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the successor dies with this process
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # above all the run's channel
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
