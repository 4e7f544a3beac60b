"""A timeline for the browser (ui.perfetto.dev, chrome://tracing), from an nsys export, in Chrome's "Trace Event
Format".

An allow-list: names, times and configurations of NVTX ranges, CUDA calls, kernels, copies and sets; numbers of
processes, threads, devices and streams.
"""

import gzip
import heapq
import itertools
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfci.model.profile import Fault
from perfci.profilers.nsys.export import BadExport, Export, fault, open_trace
from perfci.profilers.nsys.trace import LIMIT, copy_kinds, memories

LONGEST = 2**50
"""ns, 13 days: beyond, floating-point microseconds do not resolve nanoseconds."""
MOST_EVENTS = 500_000
"""As many as a browser shows fluently; about 10 MB compressed."""
LONGEST_NAME = 1000
MOST_LANES = 100
"""Of a thread or stream, for overlapping slices."""
GPU_PROCESS = 2**30
"""First number of a process that stands for a GPU; nsys keeps 24 bits of a process's number."""
REMEDY = "capture the case again"


@dataclass(frozen=True, slots=True)
class _Source:
    table: str
    category: str
    names: tuple[str, ...]
    """Columns of its name, the first that is none of NULL: text, or a number of StringIds."""
    columns: tuple[str, ...]
    where: str = ""


_SOURCES = (
    _Source("NVTX_EVENTS", "nvtx", ("text", "textId"), ("globalTid",), 'e."end" IS NOT NULL'),
    _Source("CUPTI_ACTIVITY_KIND_RUNTIME", "cuda", ("nameId",), ("globalTid", "correlationId", "returnValue")),
    _Source(
        "CUPTI_ACTIVITY_KIND_KERNEL", "kernel", ("demangledName",),
        ("globalPid", "deviceId", "streamId", "correlationId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
         "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread"),
    ),
    _Source(
        "CUPTI_ACTIVITY_KIND_MEMCPY", "copy", (),
        ("globalPid", "deviceId", "streamId", "correlationId", "bytes", "copyKind", "srcKind", "dstKind"),
    ),
    _Source(
        "CUPTI_ACTIVITY_KIND_MEMSET", "set", (), ("globalPid", "deviceId", "streamId", "correlationId", "bytes")
    ),
)  # fmt: skip

_Row = tuple[int, int, _Source, str | None, dict[str, Any]]
"""Start, minus end (of two that begin together the longer is first), source, name, columns."""


def _rows(trace: Export, source: _Source, most: int) -> Iterator[_Row]:
    there = trace.columns(source.table)
    columns = [name for name in source.columns if name in there]
    picked = "".join(f', e."{name}"' for name in columns)
    names = [name for name in source.names if name in there]
    name = f"coalesce({', '.join([*(f'e.{name}' for name in names), 'NULL', 'NULL'])})"
    if names not in ([], ["text"]):
        if not {"id", "value"} <= trace.columns("StringIds"):
            raise BadExport("no export of nsys: its table StringIds is missing")
        name = trace.text(name)
    kind_of, memory_of = copy_kinds(trace), memories(trace)
    # What is sorted is held, so it is cut here; as bytes, since SQLite's own texts end at a NUL.
    name = f"CASE typeof({name}) WHEN 'text' THEN substr(CAST({name} AS BLOB), 1, {4 * LONGEST_NAME}) END"
    where = f"WHERE {source.where}" if source.where else ""
    query = f'SELECT e.start, e."end", {name}{picked} FROM t.{source.table} e {where} ORDER BY 1, 2 DESC LIMIT ?'
    for start, end, title, *rest in trace.rows(query, most):
        if isinstance(start, int) and isinstance(end, int) and end >= start:
            told = title.decode(errors="replace")[:LONGEST_NAME] if isinstance(title, bytes) else None
            values = dict(zip(columns, rest, strict=True))
            if source.category == "copy":
                ends = [memory_of(values.pop(end, None)) for end in ("srcKind", "dstKind")]
                told = f"copy {kind_of(values.pop('copyKind', None))} ({ends[0]} to {ends[1]})"
            yield start, -end, source, told, values


@dataclass(slots=True)
class _Tracks:
    """Numbers processes and threads, and opens a further lane where slices would not nest."""

    lanes: dict[tuple[int, str], list[tuple[int, list[int]]]] = field(default_factory=dict)
    """By process and title: numbers, each with the ends of open slices."""
    processes: set[int] = field(default_factory=set)
    started: int = 0

    def place(
        self, process: int, label: str, title: str, start: int, end: int
    ) -> tuple[int | None, list[dict[str, Any]]]:
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


def _slice(row: _Row) -> tuple[int, str, str, str, dict[str, Any]]:
    _, _, source, title, columns = row
    name = source.category if title is None else title
    details: dict[str, Any] = {key: value for key, value in columns.items() if isinstance(value, int)}
    for key in ("globalTid", "globalPid", "deviceId", "streamId"):
        details.pop(key, None)
    if source.category in ("nvtx", "cuda"):
        # A globalTid is | hardware 8 | virtual machine 8 | process 24 | thread 24 | (nsys, "Global identifiers").
        both = _number(columns.get("globalTid"))
        process, thread = both >> 24 & 0xFFFFFF, both & 0xFFFFFF
        if details.get("returnValue") == 0:
            del details["returnValue"]
        return process, f"process {process}", f"thread {thread}", name, details
    process, device = _number(columns.get("globalPid")) >> 24 & 0xFFFFFF, _number(columns.get("deviceId"))
    for size in ("grid", "block"):
        parts = [details.pop(f"{size}{axis}", None) for axis in "XYZ"]
        if None not in parts:
            details[size] = parts
    stream = f"stream {_number(columns.get('streamId'))}"
    return GPU_PROCESS + process * 64 + device % 64, f"GPU {device} (process {process})", stream, name, details


def _events(rows: Iterator[_Row], base: int) -> Iterator[dict[str, Any]]:
    tracks = _Tracks()
    for row in rows:
        start, end = row[0], -row[1]
        if end - base > LONGEST:
            continue
        process, label, title, name, details = _slice(row)
        lane, told = tracks.place(process, label, title, start, end)
        yield from told
        if lane is None:
            continue
        yield {
            "ph": "X", "cat": row[2].category, "name": name, "pid": process, "tid": lane,
            "ts": (start - base) / 1000, "dur": (end - start) / 1000, "args": details,
        }  # fmt: skip


def write(export: Path, out: Path, most: int = MOST_EVENTS) -> Fault | None:
    """Write the timeline of the nsys export (sqlite) to `out`, gzip.

    Of its first `most` events by begin; a last one says of how many.

    A fault, and no `out`, where `export` is none of nsys or has no event. Raises OSError where `out` cannot be written.
    """
    partial = out.with_name(out.name + ".partial")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="perfci-nsys-") as scratch,
            open_trace(export, Path(scratch), LIMIT) as db,
        ):
            trace = Export(db)
            sources = [source for source in _SOURCES if source.table in trace.tables]
            if not sources:
                raise BadExport("no export of nsys: it has none of its tables")
            total, first = 0, []
            for source in sources:
                where = f"WHERE {source.where}" if source.where else ""
                number, least = trace.rows(f"SELECT count(*), min(e.start) FROM t.{source.table} e {where}").fetchone()
                total += number
                if isinstance(least, int):
                    first.append(least)
            if not first:
                return fault("empty", f"{export.name}: no event of CUDA or NVTX", REMEDY)
            streams = [_rows(trace, source, most) for source in sources]
            merged = heapq.merge(*streams, key=lambda row: (row[0], row[1]))
            with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as target:
                target.write('{"displayTimeUnit": "ns", "traceEvents": [')
                comma, last, shown = "\n", 0.0, 0
                for event in _events(itertools.islice(merged, most), min(first)):
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
        partial.replace(out)
    except BadExport as error:
        return fault("unreadable", f"{export.name}: {error.text}", error.remedy)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        return fault("unreadable", f"{export.name}: cannot be read as an export of nsys ({error})", REMEDY)
    finally:
        partial.unlink(missing_ok=True)
    return None
