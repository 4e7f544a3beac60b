"""Benchmarks that pytest runs."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any, Callable, Optional, Protocol

from .calls import Words, word
from .held import Left

OPTIONS = (
    "--capture=no", "--assert=plain", "--tb=no", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler",
    "-p", "no:threadexception", "-p", "no:unraisableexception", "-p", "no:warnings", "-p", "no:xdist",
)  # fmt: skip
"""Of pytest: what patches the process, or belongs to its main thread, is left out, for a test stands while its case is
measured."""


class Tested(Protocol):
    """A run whose tests pytest runs."""

    failures: list[tuple[str, BaseException]]
    """Test → what ended it; SystemExit with pytest's words where it was skipped."""

    def asked_for(self, words: Words) -> bool:
        """Tell whether a test may make the call."""

    def tested(self, words: Words, call: Callable[[], Any]) -> None:
        """Call a test, which `words` tell from others."""


def run_tests(run: Tested, path: str, args: Sequence[str], heard: Optional[io.StringIO] = None) -> None:
    """Run a file's tests within this process. `heard`: takes what it prints as an error. Raises RuntimeError where
    pytest runs none."""
    try:
        pytest = importlib.import_module("pytest")
    except ImportError:
        raise RuntimeError("pytest is not installed beside what it runs") from None
    try:
        with contextlib.redirect_stderr(heard) if heard is not None else contextlib.nullcontext():
            code = pytest.main([*OPTIONS, *args, path], plugins=[_Plugin(pytest, run)])
    finally:
        # pytest keeps the last failure for debuggers, and with it all that stood in its frames.
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            sys.__dict__.pop(name, None)
        gc.collect()
    if not run.failures and code not in (0, 1):
        words = " ".join(heard.getvalue().split()) if heard is not None else ""
        raise RuntimeError(f"pytest has no test of it to run: {words or f'it ends with {int(code)}'}")


class _Plugin:
    """Has the run drive the tests, and hears what ends them."""

    def __init__(self, pytest: Any, run: Tested) -> None:
        self.pytest, self.run = pytest, run
        pytest.hookimpl(tryfirst=True)(_Plugin.pytest_runtestloop)

    def pytest_runtestloop(self, session: Any) -> bool:
        """See pytest's hook."""
        items = [(item, words_of_test(item)) for item in session.items]
        items = [(item, words) for item, words in items if self.run.asked_for(words)]
        following = [item for item, _ in items[1:]]
        for (item, words), after in zip(items, [*following, None]):
            protocol = item.config.hook.pytest_runtest_protocol
            self.run.tested(words, functools.partial(protocol, item=item, nextitem=after))
        return True

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        """See pytest's hook."""
        if call.excinfo is not None and not isinstance(call.excinfo.value, Left):
            error = call.excinfo.value
            skips = isinstance(error, (self.pytest.skip.Exception, self.pytest.xfail.Exception))
            self.run.failures.append((item.name, SystemExit(str(error)) if skips else error))

    def pytest_collectreport(self, report: Any) -> None:
        """See pytest's hook."""
        if report.failed:
            words = [line for line in report.longreprtext.splitlines() if line.strip()]
            self.run.failures.append(("", RuntimeError(words[-1].removeprefix("E ").strip() if words else "fails")))
        elif report.skipped:
            self.run.failures.append(("", SystemExit(str(report.longrepr[2]).removeprefix("Skipped: "))))


def words_of_test(item: Any) -> Words:
    """Return what tells a test of pytest's from others: its name, and the parameters that are words; the id of them all
    where some are not."""
    owner = getattr(item, "cls", None)
    name = getattr(item, "originalname", None) or item.name
    words: Words = {"test": name if owner is None else f"{owner.__name__}.{name}"}
    asked = getattr(item, "callspec", None)
    if asked is not None:
        told = {name: word(value) for name, value in asked.params.items()}
        words.update((name, value) for name, value in told.items() if value is not None)
        if None in told.values():
            words["id"] = asked.id
    return words
