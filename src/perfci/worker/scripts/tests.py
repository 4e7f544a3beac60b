"""Benchmarks that pytest runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import glob
import importlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Callable, Optional, Protocol

from .calls import Words, free, label
from .held import Left

OPTIONS = (
    "--capture=no", "--assert=plain", "--tb=no", "-q", "-p", "no:faulthandler", "-p", "no:threadexception",
    "-p", "no:unraisableexception", "-p", "no:warnings", "-p", "no:randomly", "-p", "no:random_order",
)  # fmt: skip
"""Of pytest: what patches the process, belongs to its main thread, or draws an order is left out, for a test stands
while its case is measured."""
PLUGINS = {"xdist": ["-n0"], "pytest_cov": ["--no-cov"], "pytest_rerunfailures": ["--reruns=0"]}
"""Plugin, whose options a project may set → what has it do nothing."""
TEST = "test"
"""The word of a test's name."""
NO_TESTS = 5
"""Status of pytest where none is selected."""


Tests = Callable[["Tested"], None]
"""Runs the tests that a run asks for."""


class Tested(Protocol):
    """A run whose tests pytest runs."""

    def loop(self, tests: Tests) -> None:
        """Call `tests` with the run whose tests are to run, once they are found."""

    def asked_for(self, words: Words) -> bool:
        """Tell whether a test may make the call."""

    def tested(self, words: Words, call: Callable[[], Any]) -> None:
        """Call a test with its fixtures, which `words` tell from others."""

    def calling(self, cases: bool) -> Any:
        """Return a context manager: within it calls of timers are `cases`, or not, such as those of fixtures, which
        several tests share."""

    def ended(self, where: str, error: BaseException) -> None:
        """Hear what ended a test: SystemExit with pytest's words where it was skipped."""


def run_tests(run: Tested, path: str, args: Sequence[str], heard: Optional[io.StringIO] = None) -> None:
    """Run a file's tests within this process. `heard`: takes what it prints as an error. Raises RuntimeError where
    pytest cannot run them."""
    try:
        pytest = importlib.import_module("pytest")
    except ImportError:
        raise RuntimeError(f"{sys.executable} has no pytest: install it there") from None
    options = [*OPTIONS]
    options += [option for name, own in PLUGINS.items() if importlib.util.find_spec(name) for option in own]
    _forget(path, tuple(args))
    aside = contextlib.nullcontext() if heard is None else contextlib.redirect_stderr(heard)
    with tempfile.TemporaryDirectory() as cache, aside:
        options += ["-o", f"cache_dir={cache}"]
        code = pytest.main([*options, *args, path], plugins=[_plugin(pytest, run)])
    if code not in (0, 1, NO_TESTS):
        words = _error(heard.getvalue()) if heard is not None else ""
        raise RuntimeError(f"pytest cannot run its tests: {words or f'it ends with {int(code)}'}")


_last: list[tuple[str, tuple[str, ...]]] = []
_files: set[str] = set()


def _forget(path: str, args: tuple[str, ...]) -> None:
    """Forget another folder's tests, and with other arguments all modules beside, which keep what those were."""
    folder = os.path.dirname(path)
    if _last and _last[0] != (folder, args):
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            beside = os.path.dirname(file) in (folder, _last[0][0])
            if beside and (_last[0][1] != args or file in _files or name.endswith("conftest")):
                del sys.modules[name]
        _files.clear()
    _last[:] = [(folder, args)]
    _files.add(path)


def _error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    marked = marked or [line.partition("error: ")[2] for line in lines if "error: " in line]
    return " ".join(marked or lines).strip()


def _plugin(pytest: Any, run: Tested) -> Any:
    for hook in (_Plugin.pytest_runtest_call, _Plugin.pytest_fixture_setup):
        pytest.hookimpl(hookwrapper=True)(hook)
    pytest.hookimpl(tryfirst=True)(_Plugin.pytest_runtestloop)
    pytest.hookimpl(tryfirst=True, optionalhook=True)(_Plugin.pytest_timeout_set_timer)
    return _Plugin(pytest, run)


class _Plugin:
    """Has the run drive the tests, and hears what ends them."""

    def __init__(self, pytest: Any, run: Tested) -> None:
        self.pytest, self.run = pytest, run
        self.temporary: Any = None
        """Of pytest: makes folders for tests."""

    def pytest_sessionstart(self, session: Any) -> None:
        """Leave pytest's own report unwritten: it calls a test failed that perfci leaves."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = io.StringIO()

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests in the order of their text, whatever else sorts them."""
        items = [(item, words_of_test(item)) for item in sorted(session.items, key=_place)]
        self.run.loop(functools.partial(self._test, items))
        return True

    def _test(self, items: Sequence[tuple[Any, Words]], run: Tested) -> None:
        before, self.run, folder = self.run, run, os.getcwd()
        try:
            asked = [(item, words) for item, words in items if run.asked_for(words)]
            for (item, words), after in zip(asked, [*(item for item, _ in asked[1:]), None]):
                for name in ("_instance", "_obj", "_excinfo") if getattr(item, "cls", None) is not None else ():
                    vars(item).pop(name, None)  # of its run before
                protocol = item.config.hook.pytest_runtest_protocol
                run.tested(words, functools.partial(protocol, item=item, nextitem=after))
        finally:
            self.run = before
            # pytest keeps the last failure for debuggers, and with it all that stood in its frames.
            for name in ("last_exc", "last_type", "last_value", "last_traceback"):
                sys.__dict__.pop(name, None)
            os.chdir(folder)
            if self.temporary is not None:
                for made in glob.iglob(os.path.join(glob.escape(self.temporary.getbasetemp()), "*")):
                    shutil.rmtree(made, ignore_errors=True)  # beside pytest's own lock
            gc.collect()

    def pytest_runtest_call(self) -> Iterator[None]:
        """Take calls for cases."""
        with self.run.calling(True):
            yield

    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, None]:
        """Take none."""
        with self.run.calling(False):
            outcome = yield
        if fixturedef.argname == "tmp_path_factory":
            self.temporary = outcome.get_result()

    def pytest_timeout_set_timer(self) -> bool:
        """Set none, which would end the process: a test takes as long as its case is measured."""
        return True

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.excinfo is not None and not isinstance(call.excinfo.value, Left):
            error = call.excinfo.value
            own = (self.pytest.skip.Exception, self.pytest.xfail.Exception)  # a project's, told in its words: no case
            skips = isinstance(error, own)
            self.run.ended(item.name, SystemExit(str(error) or "no reason given") if skips else error)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.run.ended(report.nodeid, RuntimeError(_error(report.longreprtext)))
        elif report.skipped:
            self.run.ended(report.nodeid, SystemExit(str(report.longrepr[2]).removeprefix("Skipped: ")))


def _place(item: Any) -> tuple[Any, ...]:
    asked = getattr(item, "callspec", None)
    return (
        *(str(part) for part in item.location[:1]),
        item.location[1] or 0,
        *(asked.indices.values() if asked else ()),
    )


def words_of_test(item: Any) -> Words:
    """Return what tells a test of pytest's from others: its name and parameters; the id of them all where one has no
    word."""
    owner = getattr(item, "cls", None)
    name = getattr(item, "originalname", None) or item.name
    words: Words = {TEST: name if owner is None else f"{owner.__name__}.{name}"}
    asked = getattr(item, "callspec", None)
    if asked is not None:
        told = {free(name, *words): label(value) for name, value in asked.params.items()}
        words.update((name, value) for name, value in told.items() if value is not None)
        if None in told.values():
            words["id"] = asked.id[-80:]
    return words
