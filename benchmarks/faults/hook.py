"""Stands in the environment of a copy: a plugin of pytest, and of coverage in each of its processes."""

import json
import os
import re
from pathlib import Path
from types import FrameType
from typing import Any

import coverage

HERE = Path(__file__).parent
OUTCOMES, CHOSEN, NOW, RC = (HERE / f"faults.{name}" for name in ("outcomes", "chosen", "now", "coveragerc"))
SOURCE = str(HERE.parents[3] / "src" / "perfci") + os.sep


def plain(test: str) -> str:
    """Return the name of a test without the group that xdist adds."""
    return re.sub(r"@\w+$", "", test)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep what was chosen, in its order: all, where nothing was."""
    order = {test: place for place, test in enumerate(CHOSEN.read_text().splitlines())}
    if order:
        chosen = [item for item in items if plain(item.nodeid) in order]
        items[:] = sorted(chosen, key=lambda item: order[plain(item.nodeid)])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say for processes that are told nothing whose they are."""
    (NOW / str(os.getpid())).write_text(plain(nodeid))


def pytest_runtest_logreport(report: Any) -> None:
    """Note how a test, or a file that cannot be imported, ended."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with OUTCOMES.open("a") as out:
            print(json.dumps([plain(report.nodeid), report.outcome, getattr(report, "duration", 0.0)]), file=out)


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        pytest_runtest_logreport(report)


def pytest_sessionfinish() -> None:
    """Save what this process has run: xdist may kill it."""
    if measuring := coverage.Coverage.current():
        measuring.save()


def inherited() -> str | None:
    """Return the test that the nearest process above runs."""
    pid = os.getppid()
    while pid > 1:
        if (NOW / str(pid)).exists():
            return (NOW / str(pid)).read_text()
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


class Whose(coverage.CoveragePlugin):
    """What coverage asks for the context of a frame, while there is none."""

    def __init__(self) -> None:
        self.inherited = inherited()

    def dynamic_context(self, frame: FrameType) -> str | None:
        """Return the test for which a function of perfci runs, or its file: others may be given what it sets up."""
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
        return (test.partition("::")[0] if phase == "(setup)" else plain(test)) or self.inherited


def coverage_init(registry: Any, _: Any) -> None:
    """Have coverage ask: by this name it finds a plugin."""
    registry.add_dynamic_context(Whose())


def start() -> None:
    """Measure this process: called as Python starts."""
    os.environ["COVERAGE_PROCESS_START"] = str(RC)
    coverage.process_startup()
    del os.environ["COVERAGE_PROCESS_START"]
