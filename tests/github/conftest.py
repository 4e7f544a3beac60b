"""A GitHub on loopback, and the process that runs of `perfci ci` and `perfci publish` are forked of."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import two_users, warm  # noqa: F401  # fixtures
from tests.github.loopback.server import GitHub, serve


@pytest.fixture
def hub() -> Iterator[GitHub]:
    with serve() as made:
        yield made
