"""A GitHub on loopback, and the process that runs of `perfci ci` and `perfci publish` are forked of."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import two_users, warm  # noqa: F401  # fixtures
from tests.github.loopback.scene import SLOWER, scene
from tests.github.loopback.server import GitHub, Run, serve


@pytest.fixture
def hub() -> Iterator[GitHub]:
    with serve() as made:
        yield made


@pytest.fixture
def run(hub: GitHub) -> Run:
    """Run 100 of pull request 7, which has left nothing yet."""
    return scene(hub)[1]


@pytest.fixture
def slower(hub: GitHub) -> Run:
    """Run 100 of pull request 7, which measured a regression."""
    return scene(hub, *SLOWER)[1]
