"""Marks for the tests that may not run beside others, and for those that may not skip."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from inspect import isfunction
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine

# Tests run beside each other: how long an example takes says nothing of the code. pytest-timeout ends what hangs. Where
# CI is set, hypothesis draws the same examples each time, as with `--hypothesis-profile=ci`.
settings.register_profile("perfci", deadline=None)
settings.load_profile("perfci")
engine.MAX_SHRINKING_SECONDS = 60  # not 300: pytest-timeout would end the test before it tells what it has found

# What is compared with itself here is to be measured, but where a test is about proofs.
os.environ["PERFCI_MEASURE_ALL"] = "1"

# Reports name it, and golden files are to be the same in every checkout.
os.environ["PERFCI_DOCS"] = "https://github.com/org/perfci/blob/main/docs"

# Compiling the tests and perfci anew takes each process that tests half a minute, where the caller forbids bytecode.
sys.dont_write_bytecode = False

# What a shell starts in the background ignores Ctrl-C, and so would each perfci that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ONE_AT_A_TIME = ("nsys", "docker", "slurm")
"""Groups of tests that one process runs one after the other: they share nsys's daemons, an engine, or a cluster."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-run",
        action="append",
        default=[],
        metavar="MARKER",
        help="a test with this marker that skips has failed",
    )


def pytest_configure() -> None:
    """Give each of the processes that run tests beside each other a core, which all that it starts inherits.

    A run of perfci pins what it measures to the last of the cores that it may use: here to one that it shares with no
    other run.
    """
    gc.disable()  # until all is imported, which takes a third longer with it
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):  # not on macOS
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_collection_finish(session: pytest.Session) -> None:
    """Set aside what was imported and collected, which stays: no collection of garbage walks through it again."""
    grouped = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group")]
    if "PYTEST_XDIST_WORKER" in os.environ and not all("@" in name for name in grouped):
        raise pytest.UsageError("pytest-xdist groups no tests with this pytest: install what constraints.txt names")
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import for `-m alone` no module without such a test: importing them all takes longer than what they hold."""
    if config.option.markexpr.split(" and ")[-1] != "alone" or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    return None if "mark.alone" in text or "mark.gpu" in text else True


QUICK = 10
"""The share of examples that are drawn where slow tests are left out: CI draws them all."""


def _draw_fewer(item: pytest.Item) -> None:
    function = getattr(item, "obj", None)
    asked = getattr(function, "_hypothesis_internal_use_settings", None)  # hypothesis has no public way to them
    if asked is not None and isfunction(function) and not hasattr(function, "draws_fewer"):  # once for all parameters
        function.draws_fewer = True
        fewer = settings(asked, max_examples=max(asked.max_examples // QUICK, 5))
        function._hypothesis_internal_use_settings = fewer


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick = "not slow" in config.option.markexpr
    for item in items:
        if quick:
            _draw_fewer(item)
        if item.get_closest_marker("gpu"):
            item.add_marker("alone")
        elif item.get_closest_marker("alone"):
            item.add_marker("slow")  # `make test` takes the time for what needs the whole machine on a GPU alone
        for name in ONE_AT_A_TIME:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and any(item.get_closest_marker(name) for name in item.config.getoption("must_run")):
        report.outcome, report.longrepr = "failed", f"must run, and skipped: {report.longrepr[2]}"
    return report
