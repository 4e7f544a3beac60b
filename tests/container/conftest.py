"""A repository that perfci measures."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """main with one commit."""
    made = Repo(tmp_path / "a repository", dict(os.environ))
    made.write("perfci.yaml", "version: 1\nsuite: [kernels/*.py]\n")
    made.commit()
    return made
