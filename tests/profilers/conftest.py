"""Exports of nsys: two that were recorded on an H200, and those in the making."""

import shutil
from pathlib import Path

import pytest

from .test_nsys import Export, unpack


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("nsys")
    return {side: unpack(folder, side) for side in ("base", "head")}


@pytest.fixture
def whole(recorded) -> Path:
    return recorded["base"]


@pytest.fixture
def trace(whole, tmp_path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "trace.sqlite"))


@pytest.fixture
def export(tmp_path) -> Export:
    return Export(tmp_path / "trace.sqlite")


@pytest.fixture
def one(export) -> Export:
    """One execution of `a` that launches one kernel."""
    export.push("a", 100, 200)
    export.launch("k", 110, 1)
    return export
