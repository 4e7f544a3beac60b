"""A timeline for the browser (ui.perfetto.dev, chrome://tracing), from an nsys export.

An allow-list: names, times and configurations of NVTX ranges, CUDA calls, kernels, copies and sets; numbers of
processes, threads, devices and streams. The machine, its environment and command lines are not read. The format is
Chrome's "Trace Event Format": complete events (`ph` X), in microseconds from the first event on.
"""

import gzip
import heapq
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perfci.model.profile import Fault
from perfci.profilers.faults import fault
from perfci.profilers.nsys.export import harden, real_tables

LONGEST = 2**50
"""ns, 13 days: beyond, floating-point microseconds do not resolve nanoseconds."""
MOST_EVENTS = 500_000
"""As many as a browser shows fluently; about 10 MB compressed."""
LONGEST_NAME = 1000
LONGEST_VALUE = 2**20
"""Bytes of a name in the export."""
MOST_LANES = 100
"""Of a thread or stream, for overlapping slices; what needs more is left out."""
GPU_PROCESS = 2**30
"""First number of a process that stands for a GPU; nsys keeps 24 bits of a process's number."""
REMEDY = "capture the case again"

# nsys numbers memory other than CUPTI does; its ENUM_ tables say so in exports that have them.
COPY_KINDS = {
    1: "host to device", 2: "device to host", 3: "host to array", 4: "array to host", 5: "array to array",
    6: "array to device", 7: "device to array", 8: "device to device", 9: "host to host", 10: "peer to peer",
    11: "unified, host to device", 12: "unified, device to host", 13: "unified, device to device",
}  # fmt: skip
MEMORY = {0: "pageable", 1: "pinned", 2: "device", 3: "array", 4: "managed", 5: "device static", 6: "managed static"}


@dataclass(frozen=True, slots=True)
class _Source:
    table: str
    category: str
    name: str
    columns: tuple[str, ...]
    """Beside start, end and name; NULL where the schema lacks it."""
    where: str = ""


_SOURCES = (
    _Source("NVTX_EVENTS", "nvtx", "coalesce(e.text, s.value)", ("globalTid", "textId"), 'e."end" IS NOT NULL'),
    _Source("CUPTI_ACTIVITY_KIND_RUNTIME", "cuda", "s.value", ("globalTid", "nameId", "correlationId", "returnValue")),
    _Source(
        "CUPTI_ACTIVITY_KIND_KERNEL", "kernel", "s.value",
        ("globalPid", "deviceId", "streamId", "correlationId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
         "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "demangledName"),
    ),
    _Source(
        "CUPTI_ACTIVITY_KIND_MEMCPY", "copy", "NULL",
        ("globalPid", "deviceId", "streamId", "correlationId", "bytes", "copyKind", "srcKind", "dstKind"),
    ),
    _Source(
        "CUPTI_ACTIVITY_KIND_MEMSET", "set", "NULL", ("globalPid", "deviceId", "streamId", "correlationId", "bytes")
    ),
    _Source(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph", "NULL",
        ("globalPid", "deviceId", "streamId", "correlationId", "graphId"),
    ),
)  # fmt: skip
_STRING_IDS = "StringIds"
_STRINGS = {
    "NVTX_EVENTS": "textId", "CUPTI_ACTIVITY_KIND_RUNTIME": "nameId", "CUPTI_ACTIVITY_KIND_KERNEL": "demangledName",
}  # fmt: skip

_Row = tuple[int, int, _Source, str | None, dict[str, Any]]
"""Start, minus end (of two that begin together the longer is around the other), source, name, columns."""


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    names = real_tables(database)
    return {
        table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        for table in (*(source.table for source in _SOURCES), _STRING_IDS)
        if table in names
    }


def _rows(database: sqlite3.Connection, source: _Source, there: set[str], most: int) -> Iterator[_Row]:
    columns = [name for name in source.columns if name in there]
    picked = "".join(f', e."{name}"' for name in columns)
    name, join = source.name, ""
    if source.table in _STRINGS:
        join = f"LEFT JOIN {_STRING_IDS} s ON s.id = e.{_STRINGS[source.table]}"
        if _STRINGS[source.table] not in there:
            name, join = ("e.text" if source.table == "NVTX_EVENTS" else "NULL"), ""
    # What is sorted is held, so it is cut here; as bytes, since SQLite's own texts end at a NUL.
    name = f"CASE typeof({name}) WHEN 'text' THEN substr(CAST({name} AS BLOB), 1, {4 * LONGEST_NAME}) END"
    where = f"WHERE {source.where}" if source.where else ""
    query = f'SELECT e.start, e."end", {name}{picked} FROM {source.table} e {join} {where} ORDER BY 1, 2 DESC LIMIT ?'
    for start, end, title, *rest in database.execute(query, (most,)):
        if isinstance(start, int) and isinstance(end, int) and end >= start:
            told = title.decode(errors="replace")[:LONGEST_NAME] if isinstance(title, bytes) else None
            yield start, -end, source, told, dict(zip(columns, rest, strict=True))


@dataclass(slots=True)
class _Tracks:
    """Numbers the timeline's processes and threads, and opens a further lane where slices would not nest."""

    lanes: dict[tuple[int, str], list[tuple[int, list[int]]]] = field(default_factory=dict)
    """By process and title: the lanes' numbers, each with the ends of open slices."""
    processes: set[int] = field(default_factory=set)
    started: int = 0

    def place(
        self, process: int, label: str, title: str, start: int, end: int
    ) -> tuple[int | None, list[dict[str, Any]]]:
        """Return the lane for a slice, None where all MOST_LANES are taken, and its metadata events."""
        told: list[dict[str, Any]] = []
        if process not in self.processes:
            self.processes.add(process)
            told.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": label}})
        lanes = self.lanes.setdefault((process, title), [])
        for number, ends in lanes:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return number, told
        if len(lanes) == MOST_LANES:
            return None, told
        self.started += 1
        lanes.append((self.started, [end]))
        name = title if len(lanes) == 1 else f"{title} ({len(lanes)})"
        told.append(
            {"ph": "M", "name": "thread_name", "pid": process, "tid": self.started, "args": {"name": name}}
        )  # fmt: skip
        return self.started, told


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _slice(row: _Row, ranges: Mapping[str, str]) -> tuple[int, str, str, str, dict[str, Any]]:
    """Return process, its label, track, name and details."""
    _, _, source, title, columns = row
    name = source.category if title is None else title
    details: dict[str, Any] = {key: value for key, value in columns.items() if isinstance(value, int)}
    for key in ("globalTid", "globalPid", "textId", "nameId", "demangledName", "deviceId", "streamId"):
        details.pop(key, None)
    if source.category in ("nvtx", "cuda"):
        # A globalTid is | hardware 8 | virtual machine 8 | process 24 | thread 24 | (nsys, "Global identifiers").
        both = _number(columns.get("globalTid"))
        process, thread = both >> 24 & 0xFFFFFF, both & 0xFFFFFF
        if source.category == "nvtx":
            name = ranges.get(name, name)[:LONGEST_NAME]
        if details.get("returnValue") == 0:
            del details["returnValue"]
        return process, f"process {process}", f"thread {thread}", name, details
    process, device = _number(columns.get("globalPid")) >> 24 & 0xFFFFFF, _number(columns.get("deviceId"))
    if source.category == "copy":
        kind = COPY_KINDS.get(details.pop("copyKind", -1), "other")
        memory = [MEMORY.get(details.pop(key, -1), "unknown") for key in ("srcKind", "dstKind")]
        name = f"copy {kind} ({memory[0]} to {memory[1]})"
    for size in ("grid", "block"):
        parts = [details.pop(f"{size}{axis}", None) for axis in "XYZ"]
        if None not in parts:
            details[size] = parts
    stream = f"stream {_number(columns.get('streamId'))}"
    return GPU_PROCESS + process * 64 + device % 64, f"GPU {device} (process {process})", stream, name, details


def _events(rows: Iterator[_Row], ranges: Mapping[str, str], base: int) -> Iterator[dict[str, Any]]:
    tracks = _Tracks()
    for row in rows:
        start, end = row[0], -row[1]
        if end - base > LONGEST:
            continue
        process, label, title, name, details = _slice(row, ranges)
        lane, told = tracks.place(process, label, title, start, end)
        yield from told
        if lane is None:
            continue
        yield {
            "ph": "X", "cat": row[2].category, "name": name, "pid": process, "tid": lane,
            "ts": (start - base) / 1000, "dur": (end - start) / 1000, "args": details,
        }  # fmt: skip


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda text: text.decode(errors="replace")
    harden(database, LONGEST_VALUE)
    return database


def write(export: Path, out: Path, ranges: Mapping[str, str] | None = None, most: int = MOST_EVENTS) -> Fault | None:
    """Write the timeline of the nsys export (sqlite) to `out`, gzip.

    `ranges`: NVTX range → name to show, such as a case's identifier. The first `most` events by begin are written;
    `otherData` says how many of how many, as does an event at the end.

    A fault, and no `out`, where `export` is none of nsys or has no event. Raises OSError where `out` cannot be written.
    """
    partial = out.with_name(out.name + ".partial")
    try:
        database = _connect(export)
        try:
            tables = _tables(database)
            counts, first = {}, []
            for source in _SOURCES:
                if source.table in tables:
                    where = f"WHERE {source.where}" if source.where else ""
                    total, least = database.execute(
                        f"SELECT count(*), min(e.start) FROM {source.table} e {where}"
                    ).fetchone()
                    counts[source.table] = int(total)
                    if isinstance(least, int):
                        first.append(least)
            total = sum(counts.values())
            if not first:
                text = "no event of CUDA or NVTX" if tables else "no export of nsys: it has none of its tables"
                return fault("nsys", "trace", "empty" if tables else "unreadable", f"{export.name}: {text}", REMEDY)
            if not {"id", "value"} <= tables.get(_STRING_IDS, set()) and any(
                column in tables.get(table, ()) for table, column in _STRINGS.items()
            ):
                text = f"{export.name}: no export of nsys: its table {_STRING_IDS} is missing"
                return fault("nsys", "trace", "unreadable", text, REMEDY)
            streams = [_rows(database, one, tables[one.table], most) for one in _SOURCES if one.table in tables]
            merged = heapq.merge(*streams, key=lambda row: (row[0], row[1]))
            with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as target:
                target.write('{"displayTimeUnit": "ns", "traceEvents": [')
                comma, last, shown = "\n", 0.0, 0
                for event in _events(itertools.islice(merged, most), ranges or {}, min(first)):
                    if event["ph"] == "X":
                        last, shown = event["ts"], shown + 1
                    target.write(comma + json.dumps(event, allow_nan=False))
                    comma = ",\n"
                if shown < total:
                    said = f"{shown} of {total} events are shown: the first {most}, where their times make sense"
                    target.write(
                        comma + json.dumps({"ph": "i", "s": "g", "name": said, "pid": 0, "tid": 0, "ts": last})
                    )
                about = {"source": "nsys", "events": total, "shown": shown, "most": most, "origin_ns": min(first)}
                target.write(f'\n], "otherData": {json.dumps(about)}}}\n')
        finally:
            database.close()
        partial.replace(out)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        text = f"{export.name}: cannot be read as an export of nsys ({error})"
        return fault("nsys", "trace", "unreadable", text, REMEDY)
    finally:
        partial.unlink(missing_ok=True)
    return None
