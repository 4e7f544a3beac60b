"""Nights for tests, and the command line that reads them."""

import atexit
import hashlib
import os
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from perfci.history.document import Commit, Compared, Night, Point, Ratio, Reference
from perfci.history.stores.base import Store
from tests.e2e.warm import Warm

BEGIN = datetime(2026, 11, 1, 3, 15, tzinfo=UTC)


def at(day: float) -> str:
    """The instant so many days after the beginning."""
    return f"{BEGIN + timedelta(days=day):%Y-%m-%dT%H:%M:%SZ}"


def commit(day: float, title: str = "") -> Commit:
    sha = hashlib.sha1(f"{day}".encode()).hexdigest()
    return Commit(sha=sha, date=at(day - 0.25), title=title or f"Change {day:g}", author="Ada <b>")


def ratio(value: float, half: float = 0.002, pairs: int = 24) -> Ratio:
    return Ratio(ratio=value, low=value - half, high=value + half, level=0.99, pairs=pairs)


def compared(value: float, **also: Any) -> Compared:
    return Compared(class_="unchanged", ratio=ratio(value), **also)


def point(case: str = "sdpa/n=128", value: float = 1.01, **also: Any) -> Point:
    known = {"device": "cpu", "metric": "time", "unit": "s", "timing": "hot", "value": 1e-3 * value, "scatter": 0.003}
    return Point(case=case, **{**known, "last": compared(1.0), "reference": compared(value, limit=0.02), **also})


def night(day: float = 0.0, run: str = "", **also: Any) -> Night:
    known: dict[str, Any] = {
        "run": run or f"run{day:g}",
        "started": at(day),
        "commit": commit(day),
        "last": commit(day - 1) if day else None,
        "reference": Reference(name="v1.2", commit=commit(-30, "Release v1.2")),
        "devices": {"cpu": "AMD EPYC 9654"},
        "environment": {"python": "3.12.3"},
        "epoch": "0123456789abcdef",
        "points": [point()],
    }
    return Night(**{**known, **also})


def nights_in(store: Store) -> list[Night]:
    """All that can be read, in the order of their start."""
    return [one for _, one in store.read(store.names())]


PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")} | {"COLUMNS": "160"}


@cache
def _warm() -> Warm:
    started = Warm(PLAIN)
    atexit.register(started.close)
    return started


def perfci(where: Path, *args: object, **env: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a process that is in no job of GitHub's but that of `env`."""
    return _warm().run(tuple(map(str, args)), where, PLAIN | env, 200)
