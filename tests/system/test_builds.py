"""Which processes count as compilers, and what of their time counts."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perfci.measure.budget import Budget
from perfci.system.builds import COMPILERS, Builds


@pytest.fixture
def ninja(tmp_path: Path) -> Iterator[psutil.Process]:
    path = tmp_path / "ninja"
    path.write_text("#!/bin/sh\nread -r line\n")
    path.chmod(0o755)
    with subprocess.Popen([str(path)], stdin=subprocess.PIPE) as process:
        own = psutil.Process(process.pid)
        while own.name() != "ninja":
            time.sleep(0.01)
        yield own


@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("ninja", True), ("nvcc", True), ("cicc", True), ("ptxas", True), ("cc1plus", True), ("g++", True),
        ("x86_64-linux-gnu-gcc-12", True), ("clang-18", True), ("ld.lld", True),
        ("python3", False), ("sleep", False), ("makeup", False), ("bash", False), ("", False),
    ],
)  # fmt: skip
def test_compilers_are_known_by_their_names(name: str, compiles: bool) -> None:
    assert (COMPILERS.fullmatch(name) is not None) == compiles


def test_seconds_of_two_workers_that_build_at_once_count_once_and_up_to_the_limit(ninja: psutil.Process) -> None:
    told: list[str] = []
    builds = Builds(20.0, told.append)
    assert [builds.heed([ninja], 0.0, 4.0), builds.heed([ninja], 1.0, 5.0)] == [4.0, 4.0]
    assert (builds.seconds, builds.left, len(told)) == (5.0, 15.0, 1)
    assert builds.heed([], 5.0, 9.0) == 0.0
    assert builds.heed([ninja], 9.0, 24.0) == 15.0
    assert builds.heed([ninja], 24.0, 25.0) == 0.0  # from there on it counts
    assert (builds.seconds, len(told)) == (20.0, 1)


def test_the_budget_does_not_count_what_is_built_before_the_first_pair(ninja: psutil.Process) -> None:
    builds = Builds(100.0, lambda _: None)
    budget = Budget(10.0, time.monotonic(), builds)
    builds.heed([ninja], 0.0, 50.0)
    assert 55.0 < budget.left <= 60.0
    assert budget.spent < 5.0
    budget.count_builds()
    builds.heed([ninja], 50.0, 90.0)
    assert 55.0 < budget.left <= 60.0
