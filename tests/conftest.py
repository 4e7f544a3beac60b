"""Which tests may run beside others, and which may not skip."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Tests run beside each other: how long an example takes says nothing of the code. pytest-timeout ends what hangs.
settings.register_profile("perfci", deadline=None)
settings.load_profile("perfci")

HERE = Path(__file__).parent
BESIDE_OTHERS = (
    "arms/", "container/", "evidence/", "judge/", "measure/", "model/", "render/", "sensitivity/", "stats/",
    "system/", "worker/", "e2e/test_command_line.py", "e2e/test_doctor.py", "test_docs.py",
    "e2e/test_green_base.py", "e2e/test_green_checks.py", "e2e/test_green_commands.py", "e2e/test_green_config.py",
    "e2e/test_green_extras.py", "e2e/test_green_profiles.py", "e2e/test_newcomer.py",
    "github/test_action.py", "github/test_artifact.py", "github/test_checkout.py", "github/test_event.py",
    "github/test_harness.py", "github/test_publish.py", "github/test_publish_command.py", "github/test_settings.py",
    "github/test_workflow.py", "github/test_workflows.py",
)  # fmt: skip
"""Folders and files whose tests time nothing, or judge by limits that a busy machine keeps. All others get the marker `alone`, as do those with ONE_AT_A_TIME."""
ONE_AT_A_TIME = ("gpu", "nsys")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-run",
        action="append",
        default=[],
        metavar="MARKER",
        help="a test with this marker that skips has failed",
    )


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        beside = item.path.relative_to(HERE).as_posix().startswith(BESIDE_OTHERS)
        if not beside or any(item.get_closest_marker(name) for name in ONE_AT_A_TIME):
            item.add_marker("alone")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and any(item.get_closest_marker(name) for name in item.config.getoption("must_run")):
        report.outcome, report.longrepr = "failed", f"must run, and skipped: {report.longrepr[2]}"
    return report
