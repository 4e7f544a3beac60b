"""How long the cache of a store takes to build, and to answer: `python -m benchmarks.history_cache [NIGHTS] [CASES]`.

Writes nights of made-up cases into a folder, builds the cache of it, adds one night, and asks for series as
`perfci history show` does. 10 000 nights of 200 cases are to be built in under a minute and answered within a second.
"""

import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perfci.history.cache import open_cache
from perfci.history.document import Commit, Compared, Night, Point, Ratio, Reference
from perfci.history.store import open_store
from perfci.history.stores.base import content_of, name_of

CARDS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L4")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
QUESTIONS = (
    ("one case", "attention_17/*", 20),
    ("one case", "attention_17/*", None),
    ("111 cases", "attention_1*", 20),
)
"""Name, glob on cases, nights of each: the last ones, or all."""


def compared(draw: random.Random, centre: float) -> Compared:
    """Return an answer about `centre`."""
    ratio = math.exp(draw.gauss(math.log(centre), 0.003))
    found = Ratio(ratio=ratio, low=ratio * 0.997, high=ratio * 1.003, level=0.99, pairs=24)
    return Compared(
        **{"class": "unchanged"}, reason="a change for the worse of 2 % is excluded", ratio=found, limit=0.02
    )


def nights(count: int, cases: int, first: int = 0) -> Iterator[Night]:
    """Yield nights of three cards in turns, an epoch every 600 nights."""
    for number in range(first, first + count):
        draw = random.Random(number)
        at = f"{BEGIN + timedelta(hours=8 * number):%Y-%m-%dT%H:%M:%SZ}"
        sha = f"{draw.getrandbits(160):040x}"
        commit = Commit(sha=sha, date=at, title=f"Change {number}")
        release = Commit(sha=f"{number // 600:040x}", date=at, title="Release")
        points = [
            Point(
                case=f"attention_{case}/batch=8,heads=32,n={64 * case}", device="cuda", metric="time", unit="s",
                timing="rotating", value=draw.uniform(1e-4, 1.1e-4), scatter=draw.uniform(0.002, 0.004),
                last=compared(draw, 1.0), reference=compared(draw, 1.01),
            )
            for case in range(cases)
        ]  # fmt: skip
        yield Night(
            run=f"{9_000_000 + number}", started=at, commit=commit, last=commit,
            reference=Reference(name=f"v1.{number // 600}", commit=release), devices={"cuda": CARDS[number % 3]},
            environment={"driver": "580.1"}, epoch=f"{number // 600:016x}", points=points,
        )  # fmt: skip


@contextmanager
def told(what: str) -> Iterator[None]:
    """Print how long it takes."""
    begin = time.perf_counter()
    yield
    print(f"{what:<40} {time.perf_counter() - begin:8.2f} s", flush=True)


def main(count: int = 10_000, cases: int = 200) -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        root = Path(scratch, "store")
        for night in nights(count, cases):  # without what makes a write safe, which is not what is timed
            path = root / name_of(night)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content_of(night))
        store = open_store(str(root))
        with told(f"built: {count} nights of {cases} cases"), open_cache(store):
            pass
        size = sum(path.stat().st_size for path in Path(scratch, "cache").rglob("*.parquet"))
        print(f"{'takes':<40} {size / 2**20:8.0f} MiB")
        store.add(next(nights(1, cases, count)))
        with told("one more night"), open_cache(store):
            pass
        for name, pattern, limit in QUESTIONS:
            taken = []
            for _ in range(5):
                begin = time.perf_counter()
                with open_cache(store) as cache:
                    found = cache.series(pattern, metric="time", limit=limit)
                taken.append(time.perf_counter() - begin)
            rows = sum(len(one.entries) for one in found)
            print(f"{f'answered: {name}, {rows} rows':<40} {statistics.median(taken):8.2f} s", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
