"""Runs of a benchmark script: one that lists its calls, and those to one of them."""

from __future__ import annotations

import abc
import ast
import builtins
import contextlib
import functools
import io
import logging
import os
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Callable, Optional

from .calls import FUNCTION, Words, free, line_of, scalar, words_of
from .modes import take_modes
from .script import Line, Script
from .tests import Tests, run_tests
from .timers import OWN, here, mark_own, replaced

RISING, FALLING = (1e-3, 1e-6), (2.7e-3, -1e-7)
"""Seconds that a timer returns first, and by which later times are longer; the second of the runs that list a script's
calls has falling ones: what picks the fastest picks another one."""
MOST = 10_000
"""Calls of a script."""
SEEDS = 2**32
"""Seeds below, as numpy takes them."""


def _take_path(folder: str, first: bool) -> None:
    if first and sys.path[0] != folder:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    for name, module in list(sys.modules.items()):
        own = os.path.dirname(getattr(module, "__file__", None) or "")
        if own in _folders and own != folder and os.path.exists(os.path.join(folder, f"{name}.py")):
            del sys.modules[name]
    _folders.add(folder)


_folders: set[str] = set()


def _execute(path: str, timers: Mapping[str, str]) -> None:
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    try:
        with tokenize.open(path) as file:
            program = ast.parse(file.read(), path)
        main.__dict__[OWN] = {
            name: functools.partial(replaced, timers[name], name) for name in mark_own(program, timers)
        }
        # Anew: what compiles functions keeps the names that they found by their code.
        exec(compile(program, path, "exec", dont_inherit=True), main.__dict__)
    finally:
        main.__dict__.clear()  # its inputs, of which functions and this keep each other


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Put back what a script changes of the process that others read."""
    folder, before = os.getcwd(), (sys.modules["__main__"], sys.argv, sys.path[:], logging.root.handlers[:])
    try:
        yield
    finally:
        os.chdir(folder)
        sys.modules["__main__"], sys.argv, sys.path[:], logging.root.handlers[:] = before


class Run(abc.ABC):
    """One run of a script on this thread. See `timers.Running`."""

    def __init__(self, script: Script, tree: str, line: Line) -> None:
        self.script, self.tree, self.line = script, tree, line
        self.driver: Optional[Words] = None
        self.test: Words = {}
        self.cases = not script.tests
        """Calls of timers are cases now."""
        self.heard: Optional[io.StringIO] = None

    def go(self) -> None:
        """Execute the script, as `python FILE ARGS` does, or its tests. Raises what it raises."""
        with put_back():
            os.chdir(self.tree)  # where another run stands, it may be elsewhere
            sys.argv = [self.path, *self.line.args]
            here.running, here.within = self, True
            try:
                _take_path(os.path.dirname(self.path), not self.script.tests)
                if self.script.tests:
                    self.run_tests()
                else:
                    _execute(self.path, self.script.timers)
            finally:
                here.running, here.within = None, False

    @property
    def path(self) -> str:
        """The script's file."""
        return os.path.join(self.tree, self.script.file)

    def run_tests(self) -> None:
        """Run the script's tests."""
        run_tests(self, self.path, self.line.args, self.heard)

    def loop(self, tests: Tests) -> None:
        """See `tests.Tested`."""
        take_modes(self.path)
        tests(self)

    def words(self, frame: FrameType) -> Words:
        """Return a call's words: its arguments' and its test's first; with a driver no variables."""
        own = words_of(frame, os.path.join(self.tree, ""))
        told: Words = {**self.line.words, **self.test}
        if self.driver is not None:
            return {**told, **self.driver, FUNCTION: own[FUNCTION]}
        return {**told, **{name: value for name, value in own.items() if name not in told}}

    @abc.abstractmethod
    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""

    def seeded(self, name: str, seed: int, function: Callable[[int], Any]) -> Any:
        """See `timers.Running`."""
        return function(seed)

    def driven(self, words: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """See `timers.Running`."""
        told = {free(name): scalar(value) for name, value in words.items()}
        self.driver = {name: value for name, value in told.items() if value is not None}
        try:
            return call() if self.asked_for(self.driver) else None
        finally:
            self.driver = None

    def tested(self, words: Words, call: Callable[[], Any]) -> None:
        """See `tests.Tested`."""
        self.test = words
        try:
            call()
        finally:
            self.test = {}

    @contextlib.contextmanager
    def calling(self, cases: bool) -> Iterator[None]:
        """See `tests.Tested`."""
        before, self.cases = self.cases, cases
        try:
            yield
        finally:
            self.cases = before

    @abc.abstractmethod
    def ended(self, where: str, error: BaseException) -> None:
        """See `tests.Tested`."""

    def asked_for(self, words: Words) -> bool:
        """Tell whether what a driver or a test is called with may make the call."""
        return True


class Listing(Run):
    """A run that notes all calls, and makes none."""

    def __init__(self, script: Script, tree: str, line: Line, times: tuple[float, float], calls: list[Words]) -> None:
        """`calls`: of the lines before, which it adds to."""
        super().__init__(script, tree, line)
        self.times, self.calls = times, calls
        self.places: list[int] = []
        """The line of each of its calls."""
        self.heard = io.StringIO()
        self.ends: list[End] = []
        self.failed: dict[int, str] = {}
        """Call → what its test fails by, before or behind it."""
        self._test_begins = 0

    def called(self, fn: Callable[[], Any], frame: FrameType) -> float:
        """See `timers.Running`."""
        if not self.cases:
            return self.times[0]
        if not callable(fn):
            raise TypeError(f"it passes a {type(fn).__name__} to its timer, where that takes a function")
        if len(self.calls) == MOST:
            raise RuntimeError(f"it makes more than {MOST} calls of its timer")
        self.calls.append(self.words(frame))
        self.places.append(line_of(frame, os.path.join(self.tree, self.script.file)))
        return self.times[0] + self.times[1] * len(self.calls)

    def ended(self, where: str, error: BaseException) -> None:
        """See `tests.Tested`."""
        skipped = isinstance(error, SystemExit) and isinstance(error.code, str)
        # No exception is kept, nor what stood in its frames.
        text = explained(error).replace(os.path.join(self.tree, ""), "")
        self.ends.append(End(where, text, skipped))
        if self.test and not skipped:
            self.failed.update(dict.fromkeys(range(self._test_begins, len(self.calls)), text))

    def tested(self, words: Words, call: Callable[[], Any]) -> None:
        """See `tests.Tested`."""
        self._test_begins = len(self.calls)
        super().tested(words, call)


@dataclass(frozen=True)
class End:
    """What ended a script or a test."""

    where: str
    text: str
    skipped: bool
    """It was not to run here, in its own words."""


def explained(error: BaseException) -> str:
    """Return an exception in one short line, as a script tells it."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, SystemExit):
        return f"it ends with {text}" if text.isdecimal() else text
    return f"{type(error).__name__}: {text}".rstrip(": ")
