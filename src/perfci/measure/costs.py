"""A run's account: each second belongs to one phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from perfci.model.results import Phase


class Costs:
    """Wall seconds by phase. A second belongs to the innermost open phase."""

    def __init__(self) -> None:
        self.started = self._since = time.monotonic()
        self._seconds: dict[Phase, float] = {}
        self._open: list[Phase] = ["other"]
        self._whole = False

    @contextmanager
    def phase(self, name: Phase, *, whole: bool = False) -> Iterator[None]:
        """Count meanwhile as `name`; `whole`: with inner phases."""
        if self._whole:
            yield
            return
        self._settle()
        self._open.append(name)
        self._whole = whole
        try:
            yield
        finally:
            self._settle()
            self._open.pop()
            self._whole = False

    def move(self, name: Phase, seconds: float) -> None:
        """Move `seconds` of the open phase to `name`."""
        if self._whole:
            return
        self._settle()
        here = self._open[-1]
        seconds = min(max(seconds, 0.0), self._seconds[here])
        self._seconds[here] -= seconds
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def so_far(self) -> dict[Phase, float]:
        """Return seconds of all phases."""
        self._settle()
        return dict(self._seconds)

    def _settle(self) -> None:
        now, here = time.monotonic(), self._open[-1]
        self._seconds[here] = self._seconds.get(here, 0.0) + now - self._since
        self._since = now
