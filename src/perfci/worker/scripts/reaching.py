"""Runs of a benchmark script to one of its calls."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Callable, Optional

from ..bench import Bench
from ..declare import Params
from .calls import Counter, Words, same
from .held import LEAVING, Gone, Held, Left, Stuck, leave_all
from .modes import take_modes
from .runs import RISING, SEEDS, Run, put_back
from .script import Line, Script
from .tests import Tests
from .timers import here


class Session(Run):
    """A run that finds a file's tests once, and stays in pytest's loop: other runs, one at a time, are of these."""

    def __init__(self, script: Script, tree: str, line: Line) -> None:
        """Raises what keeps the tests from being found."""
        super().__init__(script, tree, line)
        self.busy = False
        self._process = os.getpid()
        self._ends: list[tuple[str, BaseException]] = []
        self._error: Optional[BaseException] = None
        self._tests: Optional[Tests] = None
        self._found, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        with put_back():
            self._thread.start()
            self._found.wait()
        if self._tests is None:
            raise self._error or RuntimeError("pytest ends before the tests")

    def _main(self) -> None:
        try:
            self.go()
        except SystemExit as error:
            self._error = Gone(f"pytest ends without this call: {error}")
        except BaseException as error:
            self._error = error
        finally:
            self._found.set()

    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""
        return RISING[0]

    def ended(self, where: str, error: BaseException) -> None:
        """See `tests.Tested`."""
        self._ends.append((where, error))

    def loop(self, tests: Tests) -> None:
        """See `tests.Tested`."""
        take_modes(self.path)
        self._path = sys.path[:]
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # tests run on another stream
        self._tests = tests
        self._found.set()
        self._over.wait()
        here.running, here.within = self, True  # while pytest ends

    def reach(self, run: Run) -> None:
        """Run the tests that `run` asks for, on its thread. Where not all were found, or pytest is left by an error,
        this session is not used again."""
        assert self._tests is not None
        sys.path[:] = self._path
        take_modes(self.path)
        for where, error in self._ends:
            run.ended(where, type(error)(*error.args))
        self._tests(run)
        self.busy = not all(isinstance(error, SystemExit) for _, error in self._ends)

    def beside(self, path: str, line: Line) -> bool:
        """Tell whether a file's tests have the configuration of these."""
        own, other = os.path.dirname(self.path), os.path.dirname(path)
        return (self._process, own, [*self.line.args]) == (os.getpid(), other, [*line.args])

    def end(self) -> None:
        """End pytest. Raises Stuck."""
        if self._process != os.getpid():
            return  # its thread is the parent's
        self._over.set()
        self._thread.join(LEAVING)
        if self._thread.is_alive():
            raise Stuck("pytest does not end")


_sessions: list[Session] = []


def session_of(script: Script, tree: str, line: Line) -> Session:
    """Return an idle session of a file's tests, now busy.

    Sessions beside it are of files that pytest would run together. Raises Stuck, and what a new one raises.
    """
    path = os.path.join(tree, script.file)
    if not all(session.beside(path, line) for session in _sessions):
        end_sessions()
    session = next((session for session in _sessions if session.path == path and not session.busy), None)
    if session is None:
        session = Session(script, tree, line)
        _sessions.append(session)
        gc.collect()
        gc.freeze()  # what pytest made stays: collecting after each case need not walk it
    session.busy = True
    return session


def end_sessions() -> None:
    """End all sessions, and the cases within: what pytest and its plugins set up for these tests no longer stands.
    Raises Stuck."""
    if not _sessions:
        return
    leave_all()
    with put_back():
        while _sessions:
            _sessions.pop().end()
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Reaching(Run):
    """A run to the call with the parameters `wanted`, which `held` keeps open."""

    def __init__(
        self, script: Script, tree: str, line: Line, names: Sequence[str], wanted: Params, bench: Bench, held: Held,
        session: Optional[Session],
    ) -> None:  # fmt: skip
        """`names`: those that tell the script's calls apart."""
        super().__init__(script, tree, line)
        self.session = session
        self.names, self.wanted, self.held = names, wanted, held
        self.seed = bench.seed_everything
        self.shift = bench._integer("seeds")
        self.seeds: dict[str, Callable[[], Any]] = {}
        self.counter = Counter(names)
        self.count = 0
        self.found: Words = {}
        self.error: Optional[BaseException] = None

    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""
        if not self.cases:
            return RISING[0]
        if self.held.left:
            raise Left
        words = self.words(frame)
        if same(self.counter.name(words), self.wanted):
            self.found = words
            here.running = None  # what it executes has its own timers
            try:
                self.held.hold(fn)
            finally:
                here.running = self
        self.count += 1
        self._seed_again()
        return RISING[0] + RISING[1] * self.count

    def seeded(self, name: str, seed: int, function: Callable[[int], Any]) -> Any:
        """See `Run`."""
        self.seeds.pop(name, None)
        self.seeds[name] = functools.partial(function, (seed + self.shift) % SEEDS)
        return self.seeds[name]()

    def _seed_again(self) -> None:
        # Calls of one shape have the same inputs, wherever they stand.
        running, here.running = here.running, None  # these seeds are none of the script's
        try:
            self.seed()
            for seed in self.seeds.values():
                seed()
        finally:
            here.running = running

    def driven(self, words: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """See `Run`."""
        self._seed_again()
        return super().driven(words, call)

    def tested(self, words: Words, call: Callable[[], Any]) -> None:
        """See `Run`."""
        self._seed_again()
        super().tested(words, call)

    def asked_for(self, words: Words) -> bool:
        """See `Run`."""
        named = {name: value for name, value in words.items() if name in self.names}
        return all(name in self.wanted and same({name: self.wanted[name]}, {name: named[name]}) for name in named)

    def ended(self, where: str, error: BaseException) -> None:
        """See `tests.Tested`."""
        self.error = self.error or error

    def run_tests(self) -> None:
        """See `Run`."""
        assert self.session is not None
        self.session.reach(self)

    def go(self) -> None:
        """See `Run`."""
        super().go()
        if self.error is not None and not self.held.left:
            raise self.error
