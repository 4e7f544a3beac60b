"""A cache of a store's nights as tables, one file sorted by case, from which a series comes within a second.

It lies below the user's cache folder and can be deleted: what is missing, damaged or of another version is made anew
from the store. Only nights that were read from documents go in, so that a table holds nothing that no document could.
"""

import fcntl
import gc
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from perfci.history.document import Compared, Night
from perfci.history.stores.base import Listed, Store, cache_folder, made
from perfci.model.base import MachineError, UsageError, matches
from perfci.model.text import escaped
from perfci.system.files import disk_errors, remove_tree, write_atomic

_MANIFEST = "tables.json"
_BATCH = 250
_BATCH_BYTES = 32 * 2**20
"""Nights and bytes of documents that are taken in at once: their points are in memory."""
_MOST_FILES = 16
"""Files of points that are kept before they become one."""
_MEMORY = "1GB"
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OSError)
"""Errors beside DuckDB's that tables raise which something else has written to."""
T = TypeVar("T")
_NIGHT = {
    "id": "int64", "name": "str", "mark": "str", "started": "str", "run": "str", "attempt": "int64", "url": "str",
    "sha": "str", "date": "str", "title": "str", "epoch": "str", "reference": "str", "reference_sha": "str",
}  # fmt: skip
_ANSWER = {
    "class": "str", "ratio": "float64", "low": "float64", "high": "float64", "level": "float64", "pairs": "int64",
    "limit": "float64",
}  # fmt: skip
# `at` is the night's start in seconds since 1970: numbers are put in order ten times as fast as text.
_POINT = {
    "night": "int64", "at": "int64", "case": "str", "device": "str", "device_name": "str", "metric": "str",
    "unit": "str", "timing": "str", "value": "float64", "scatter": "float64",
    **{f"{of}_{name}": kind for of in ("last", "reference") for name, kind in _ANSWER.items()},
}  # fmt: skip
"""Columns and their types. DuckDB makes a missing number of a NaN, which no document can hold; an empty class stands
for no answer."""
_LAYOUT = [list(_NIGHT.items()), list(_POINT.items())]
"""Tables of another one are made anew."""
_UNSHOWN = frozenset({"id", "name", "mark", "night", "at"})


@dataclass(frozen=True)
class Answer:
    """A metric of a case against another commit, as in `Compared`."""

    class_: str
    ratio: float | None
    low: float | None
    high: float | None
    level: float | None
    pairs: int
    limit: float | None


@dataclass(frozen=True)
class Entry:
    """A metric of a case on one night."""

    started: str
    run: str
    attempt: int
    url: str
    sha: str
    date: str
    title: str
    epoch: str
    reference_name: str
    """Empty where there is none."""
    reference_sha: str
    value: float | None
    scatter: float | None
    last: Answer | None
    reference: Answer | None


@dataclass(frozen=True)
class Series:
    """A metric of a case on one model of device, night by night."""

    case: str
    device: str
    device_name: str
    metric: str
    unit: str
    """Of the last night."""
    timing: str
    entries: list[Entry]
    """Oldest first."""


class Cache:
    """The tables of a store, brought up to date. For use within `open_cache`."""

    def __init__(self, folder: Path, store: Store, listed: Sequence[Listed]) -> None:
        self._folder, self._store, self._listed = folder, store, listed
        self._connection = _connect(made(folder, private=True))

    def close(self) -> None:
        """Close the tables."""
        self._connection.close()

    # ---------------------------------------------------------------- asking

    def names(self) -> list[tuple[str, str, str, str]]:
        """Return case, kind of device, name of device and metric of all series, sorted."""
        return self._sure(self._names)

    def _names(self) -> list[tuple[str, str, str, str]]:
        if not self._files("points"):
            return []
        query = 'SELECT DISTINCT "case", device, device_name, metric FROM read_parquet($files) ORDER BY ALL'
        return [(str(a), str(b), str(c), str(d)) for a, b, c, d in self._ask(query, files=self._files("points"))]

    def series(
        self, pattern: str = "*", *, metric: str | None = None, device: str | None = None, limit: int | None = None
    ) -> list[Series]:
        """Return the series whose case matches the glob `pattern`, sorted by case, device and metric.

        `device`: a kind, or a glob on names of devices. `limit`: nights of each, the last ones.
        """
        return self._sure(lambda: self._series(pattern, metric, device, limit))

    def _series(self, pattern: str, metric: str | None, device: str | None, limit: int | None) -> list[Series]:
        chosen = [
            one
            for one in self._names()
            if matches(pattern, one[0])
            and (metric is None or one[3] == metric)
            and (device is None or device == one[1] or matches(device, one[2]))
        ]
        cases = sorted({one[0] for one in chosen})
        if not cases:
            return []
        columns = ", ".join(f'points."{name}"' for name in _POINT if name not in _UNSHOWN)
        facts = ", ".join(f'nights."{name}"' for name in _NIGHT if name not in _UNSHOWN)
        rows = self._ask(
            f"""
            WITH chosen AS (
                SELECT "case", device, device_name, metric, night FROM read_parquet($points)
                WHERE "case" IN (SELECT unnest($cases::VARCHAR[])) AND metric IN (SELECT unnest($metrics::VARCHAR[]))
                QUALIFY row_number() OVER (
                    PARTITION BY "case", device, device_name, metric ORDER BY "at" DESC, night DESC
                ) <= $limit
            )
            SELECT {facts}, {columns} FROM read_parquet($points) points
            JOIN chosen USING ("case", device, device_name, metric, night)
            JOIN read_parquet($nights) nights ON points.night = nights.id
            WHERE points."case" IN (SELECT unnest($cases::VARCHAR[]))
            ORDER BY points."case", device, device_name, metric, points."at", points.night
            """,
            points=self._files("points"), nights=self._files("nights"), cases=cases,
            metrics=sorted({one[3] for one in chosen}), limit=limit or 2**31,
        )  # fmt: skip
        wanted = set(chosen)
        names = [name for name in _NIGHT if name not in _UNSHOWN]
        names += [f"point_{name}" for name in _POINT if name not in _UNSHOWN]
        found = [dict(zip(names, row, strict=True)) for row in rows]
        series = []
        for key, group in groupby(found, key=_key):
            if key in wanted:
                members = list(group)
                last = members[-1]
                series.append(Series(*key, last["point_unit"], last["point_timing"], [_entry(row) for row in members]))
        return series

    def _ask(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(query, values).fetchall()
        return rows

    def _sure(self, step: Callable[[], T]) -> T:
        """Do a step that only asks; where the tables turn out to be damaged, make them anew and do it once more."""
        import duckdb

        try:
            return step()
        except (duckdb.Error, *_DAMAGE):
            self.fill(anew=True)
            return step()

    # ---------------------------------------------------------------- filling

    def fill(self, *, anew: bool = False) -> None:
        """Take in what the tables lack of the documents; make them anew where they hold others or are damaged.

        Raises MachineError where the store cannot be reached or the disk refuses.
        """
        import duckdb

        try:
            if anew:
                raise ValueError("damaged")
            self._take_missing()
        except (duckdb.Error, *_DAMAGE):
            with disk_errors("removed", self._folder):
                remove_tree(self._folder)
            made(self._folder, private=True)
            self._listed = self._store.best_attempts()
            try:
                self._take_missing()
            except (duckdb.Error, *_DAMAGE) as error:
                told = escaped(error, 200)
                raise MachineError(f"{escaped(self._folder)}: cannot hold the cache: {told}") from None

    def _take_missing(self) -> None:
        known, wanted = self.known(), {one.name: one.mark for one in self._listed}
        if any(wanted.get(name) != mark for name, mark in known.items()):
            raise ValueError("holds documents that are no more")
        with _uncollected():
            self.take(self._store.read(one for one in self._listed if one.name not in known))

    def _files(self, table: str) -> list[str]:
        return [str(self._folder / name) for name in self._manifest().get(table, [])]

    def _manifest(self) -> dict[str, Any]:
        path = self._folder / _MANIFEST
        if not path.exists():
            return {"layout": _LAYOUT, "next": 0, "nights": [], "points": [], "sizes": {}}
        found: dict[str, Any] = json.loads(path.read_bytes())
        if found["layout"] != json.loads(json.dumps(_LAYOUT)):
            raise ValueError("of another layout")
        for name, size in found["sizes"].items():
            status = (self._folder / name).stat()
            if [status.st_size, status.st_mtime_ns] != size:
                raise ValueError(f"{name} was changed")
        return found

    def known(self) -> dict[str, str]:
        """Return name → mark of the documents that are in the tables."""
        if not (files := self._files("nights")):
            return {}
        return dict(self._ask("SELECT name, mark FROM read_parquet($files)", files=files))

    def take(self, nights: Iterator[tuple[Listed, Night]]) -> None:
        """Take further nights in; a kill leaves the tables as they were, or with whole batches more."""
        for batch in _batches(nights):
            manifest = self._manifest()
            first = manifest["next"]
            rows = [_night_row(first + number, *one) for number, one in enumerate(batch)]
            points = [row for number, (_, night) in enumerate(batch) for row in _point_rows(first + number, night)]
            manifest["next"] = first + len(batch)
            self._add(manifest, "nights", _NIGHT, rows)
            self._add(manifest, "points", _POINT, points)
            self._write(manifest)
        if len(self._files("points")) > _MOST_FILES or len(self._files("nights")) > _MOST_FILES:
            self._join()

    def _add(
        self, manifest: dict[str, Any], table: str, columns: Mapping[str, str], rows: list[tuple[Any, ...]]
    ) -> None:
        if not rows:
            return
        kinds = {"str": object, "int64": np.int64, "float64": np.float64}
        data = zip(columns.items(), zip(*rows, strict=True), strict=True)
        arrays = {name: np.array(values, dtype=kinds[kind]) for (name, kind), values in data}
        self._connection.register("taken", arrays)
        order = 'ORDER BY "case", device_name, metric, "at"' if table == "points" else "ORDER BY started"
        manifest[table].append(self._copy(f"SELECT * FROM taken {order}", table, manifest))
        self._connection.unregister("taken")

    def _copy(self, query: str, table: str, manifest: dict[str, Any], **values: Any) -> str:
        name = f"{table}-{secrets.token_hex(8)}.parquet"
        path = self._folder / name
        quoted = str(path).replace("'", "''")
        self._connection.execute(
            f"COPY ({query}) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 50000)", values
        )
        status = path.stat()
        manifest["sizes"][name] = [status.st_size, status.st_mtime_ns]
        return name

    def _join(self) -> None:
        """Make one file of each table, sorted by case: a series then lies in one place."""
        manifest = self._manifest()
        old = [*manifest["nights"], *manifest["points"]]
        for table, order in (("nights", "started"), ("points", '"case", device_name, metric, "at"')):
            if files := self._files(table):
                query = f"SELECT * FROM read_parquet($files) ORDER BY {order}"
                manifest[table] = [self._copy(query, table, manifest, files=files)]
        for name in old:
            del manifest["sizes"][name]
        self._write(manifest)
        for name in old:
            (self._folder / name).unlink(missing_ok=True)

    def _write(self, manifest: dict[str, Any]) -> None:
        write_atomic(self._folder / _MANIFEST, json.dumps(manifest))


def _connect(folder: Path) -> Any:
    """Return a DuckDB in memory that reads and writes this folder alone, and loads nothing."""
    try:
        import duckdb
    except ImportError:
        raise UsageError('DuckDB is not installed here: pip install "perfci[history]"') from None
    connection = duckdb.connect(
        ":memory:",
        config={
            "allow_unsigned_extensions": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": _MEMORY,
            "temp_directory": str(folder / "spill"),
            "threads": str(min(4, os.cpu_count() or 1)),
        },
    )
    connection.execute("SET allowed_directories = $folders", {"folders": [f"{folder}/"]})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


@contextmanager
def open_cache(store: Store) -> Iterator[Cache]:
    """Yield the cache of a store, brought up to date, for this process alone; `store.faults` names what is left out.

    Raises MachineError where the store cannot be reached or the disk refuses, UsageError where DuckDB is not installed.
    """
    folder = made(cache_folder() / "tables" / hashlib.sha256(store.key.encode()).hexdigest()[:24], private=True)
    with disk_errors("locked", folder), (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache = Cache(folder / "tables", store, store.best_attempts())
        try:
            cache.fill()
            yield cache
        finally:
            cache.close()


def _batches(nights: Iterator[tuple[Listed, Night]]) -> Iterator[list[tuple[Listed, Night]]]:
    batch: list[tuple[Listed, Night]] = []
    size = 0
    for one in nights:
        batch.append(one)
        size += one[0].size
        if len(batch) == _BATCH or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: documents have no cycles, and looking takes as long as reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# ---------------------------------------------------------------- rows


def _night_row(number: int, listed: Listed, night: Night) -> tuple[Any, ...]:
    reference = night.reference
    return (
        number, listed.name, listed.mark, night.started, night.run, night.attempt, night.url, night.commit.sha,
        night.commit.date, night.commit.title, night.epoch, reference.name if reference else "",
        reference.commit.sha if reference else "",
    )  # fmt: skip


def _point_rows(number: int, night: Night) -> Iterator[tuple[Any, ...]]:
    at = int(datetime.fromisoformat(night.started).timestamp())
    for point in night.points:
        yield (
            number, at, point.case, point.device, night.devices.get(point.device, ""), point.metric,
            point.unit, point.timing, _number(point.value), _number(point.scatter), *_answer_row(point.last),
            *_answer_row(point.reference),
        )  # fmt: skip


def _answer_row(found: Compared | None) -> tuple[Any, ...]:
    if found is None:
        return ("", math.nan, math.nan, math.nan, math.nan, 0, math.nan)
    ratio = found.ratio
    if ratio is None:
        return (found.class_, math.nan, math.nan, math.nan, math.nan, 0, _number(found.limit))
    return (found.class_, ratio.ratio, ratio.low, ratio.high, ratio.level, ratio.pairs, _number(found.limit))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _key(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["point_case"], row["point_device"], row["point_device_name"], row["point_metric"]


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(
        started=row["started"], run=row["run"], attempt=row["attempt"], url=row["url"], sha=row["sha"],
        date=row["date"], title=row["title"], epoch=row["epoch"], reference_name=row["reference"],
        reference_sha=row["reference_sha"],
        value=row["point_value"], scatter=row["point_scatter"], last=_answer(row, "point_last_"),
        reference=_answer(row, "point_reference_"),
    )  # fmt: skip


def _answer(row: Mapping[str, Any], prefix: str) -> Answer | None:
    if not row[f"{prefix}class"]:
        return None
    return Answer(*(row[prefix + name] for name in _ANSWER))
