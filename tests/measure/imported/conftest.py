"""What is read of files, not how: readers are no processes here."""

import pytest

from perfci.system import bounded
from tests.readers import ask_here


@pytest.fixture(autouse=True)
def _readers_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_ask", ask_here)
