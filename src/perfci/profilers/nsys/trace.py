"""Reads the SQLite export of Nsight Systems; own SQL, because `nsys stats` exits 0 where it finds nothing."""

import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from perfci.model.policy import Traced
from perfci.model.profile import Call, Copy, CopyKind, KernelUse, Memory, OsCall, Trace, concerns
from perfci.profilers.base import Read
from perfci.profilers.cuda import call_kind, copy_kind, memory
from perfci.profilers.faults import NAMED
from perfci.profilers.nsys.events import COPY, KERNEL, SET, SHAPE, Events, slices
from perfci.profilers.nsys.export import AGAIN, FAR, BadExport, Export, check, damage, fault, open_trace
from perfci.profilers.nsys.memory import memory_use
from perfci.profilers.nsys.missing import note_missing
from perfci.profilers.nsys.origin import driver_cuda, gpus_of, version_of
from perfci.profilers.nsys.osrt import os_calls
from perfci.profilers.nsys.ranges import MOST, nested, short, told_ranges
from perfci.profilers.nsys.times import measure

LIMIT = 600.0
"""Seconds."""

_COPY_NUMBERS = (
    "UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP", "UVM_HTOD", "UVM_DTOH",
    "UVM_DTOD",
)  # fmt: skip
"""CUpti_ActivityMemcpyKind."""
_MEMORY_NUMBERS = ("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED", "DEVICE_STATIC", "MANAGED_STATIC", "UNKNOWN")
"""ENUM_CUDA_MEM_KIND of nsys, which is not CUPTI's."""


@dataclass
class Reading(Read[Trace]):
    """Each range's trace, faults or both, and the capture."""

    driver: str = ""
    """The driver's CUDA version, such as `13.0`, or empty."""
    length: float = 0.0
    """Seconds of the capture."""


class Loop(NamedTuple):
    """The told executions of a command."""

    name: str
    """Of their NVTX range."""
    skip: int = 0
    """First executions of each process, left out."""


def read(
    path: Path,
    ranges: Sequence[str] | Literal["outermost"] | Loop | None,
    *,
    limit: float = LIMIT,
    executions: int | None = None,
    asked: Sequence[Traced] = (),
) -> Reading:
    """Return the traces in an export: one per name in `ranges`, or of the whole process tree under the key "".

    An execution is an NVTX push/pop range of that name, in the default domain or in `perfci`; times (s), sizes (bytes)
    and counts are means over them. `outermost`: of every range that lies in no other of its process. None: the whole
    capture is one execution. Loop: its executions are those of one trace under the key "". `wall` runs from the first
    execution's begin to the last one's end or the end of its last device work, divided by their number; with
    `outermost` and a Loop as `measure` tells it. `span` is the mean of what `nvtx_gpu_proj_sum` calls projected time;
    `busy` the union of device work's intervals, divided likewise. The user's ranges are projected over the calls of the
    same thread.

    `executions`: of each name, where known; other numbers are a fault. `asked`: further traces of nsys, a fault where
    missing.

    What is absent, truncated, foreign, damaged or takes over `limit` seconds to read is a fault.
    """
    loop, names = None, [""]
    if isinstance(ranges, Loop):
        loop, names = ranges, [ranges.name]
    elif ranges is not None:
        names = [] if ranges == "outermost" else list(dict.fromkeys(ranges))
    try:
        check(path)
        with (
            tempfile.TemporaryDirectory(prefix="perfci-nsys-") as scratch,
            open_trace(path, Path(scratch), limit) as db,
        ):
            events = Events(
                db, names, whole=ranges is None, executions=executions,
                outermost=ranges == "outermost", skip=loop.skip if loop else None,
            )  # fmt: skip
            events.collect()
            note_missing(events)
            return _told(events, loop, asked)
    except BadExport as error:
        found = fault("unreadable", f"{path.name}: {error.text}", error.remedy)
    except sqlite3.Error as error:
        found = fault("unreadable", f"{path.name}: {damage(error, limit)}", AGAIN)
    except UnicodeDecodeError:  # in the message of an error: the damaged text stands in it
        found = fault("unreadable", f"{path.name}: damaged (it has text that is no UTF-8)", AGAIN)
    except OSError as error:
        found = fault("unreadable", f"{path.name}: cannot be read: {error.strerror}", AGAIN)
    return Reading(general=[found])


def _told(events: Events, loop: Loop | None, asked: Sequence[Traced]) -> Reading:
    traces = _traces(events, asked)
    for name in () if events.outermost else events.names:
        if name not in traces and not events.faults[name]:
            events.note(name, "empty", "nothing of it is in the trace")
    traced = events.cuda_was_traced()
    for name, trace in traces.items():
        if traced and not trace.busy and not any(concerns(one, "kernel_launches") for one in events.faults[name]):
            events.note(name, "empty", "nothing ran on the device in its executions")
    faults = {
        name: sorted(found, key=lambda one: one.kind != "empty") for name, found in events.faults.items() if found
    }
    if loop is not None:
        told = traces.get(loop.name)
        traces = {"": told.model_copy(update={"within": loop.name})} if told else {}
        faults = {"": faults[loop.name]} if loop.name in faults else {}
    length = _capture_length(events) * 1e-9
    device, capability = gpus_of(events)
    return Reading(traces, faults, events.general, device, capability, driver=driver_cuda(events), length=length)


def _traces(events: Events, asked: Sequence[Traced]) -> dict[str, Trace]:
    version = version_of(events)
    kernels, copies = _kernels(events), _copies(events)
    number_of_sets = f"SELECT e.name, count(*) FROM ops o JOIN execs e ON e.id = o.exec WHERE o.kind = {SET} GROUP BY 1"
    sets: dict[int, int] = dict(events.rows(number_of_sets))
    calls, within = _call_times(events), nested(events)
    waits, used = os_calls(events, asked="osrt" in asked), memory_use(events, asked="memory" in asked)
    span = dict(
        events.rows(
            """SELECT e.name, sum(p.length) FROM (
                 SELECT exec, max(end) - min(start) AS length FROM ops GROUP BY exec) p
               JOIN execs e ON e.id = p.exec GROUP BY e.name"""
        )
    )
    length = _capture_length(events)
    if events.whole and not length:
        events.note("", "empty", "the trace has no event", "trace with --trace=cuda,nvtx, and see what nsys prints")
        events.lost.add("")
    times = measure(events, length)
    told = {index: _told_kernels(kernels.get(index, []), own.number) for index, own in times.items()}
    drawn = slices(events, told, copy_kinds(events))
    traces = {}
    for index, (number, wall, busy, launching) in times.items():
        name = events.names[index]
        if name in events.lost:
            continue
        scale = 1e-9 / number
        traces[name] = Trace(
            source="nsys",
            version=version,
            executions=number,
            wall=wall * scale,
            busy=busy * scale,
            span=span.get(index, 0) * scale,
            launching=launching * scale,
            kernels=told[index],
            copies=[
                Copy(kind=kind, source=a, target=b, count=count / number, bytes=size / number, seconds=ns * scale)
                for (kind, a, b), (count, size, ns) in copies.get(index, {}).items()
            ],
            sets=sets.get(index, 0) / number,
            calls=[
                Call(name=fn, kind=call_kind(fn), count=count / number, seconds=ns * scale)
                for fn, (count, ns) in sorted(calls.get(index, {}).items(), key=lambda item: (-item[1][1], item[0]))
            ],
            os_calls=[
                OsCall(name=fn, count=one.number / number, seconds=one.ns * scale, launching=one.launching * scale)
                for fn, one in waits.get(index, {}).items()
            ],
            memory=used.get(index),
            ranges=told_ranges(events, name, within.get(index, {}), number),
            slices=drawn.get(index, []),
        )
    return traces


def _capture_length(events: Events) -> int:
    """Ns from the first to the last event, or nsys's own length where longer."""
    spans = list(events.rows("SELECT min(start), max(end) FROM calls UNION ALL SELECT min(start), max(end) FROM ops"))
    if events.nvtx is not None:
        spans += events.rows(f"SELECT min(x.start), max(x.end) FROM {events.nvtx.rows} x WHERE {events.nvtx.good}")
    known = [(first, last) for first, last in spans if first is not None]
    length = max(last for _, last in known) - min(first for first, _ in known) if known else 0
    if "ANALYSIS_DETAILS" in events.tables and "duration" in events.columns("ANALYSIS_DETAILS"):
        said = events.one(
            "SELECT max(duration) FROM t.ANALYSIS_DETAILS "
            f"WHERE typeof(duration) = 'integer' AND duration BETWEEN 0 AND {FAR}"
        )
        length = max(length, said or 0)
    return length


def _kernels(events: Events) -> dict[int, list[tuple[Any, ...]]]:
    """By name: (function, count, ns, grid, block, registers, static, dynamic, local), longest first."""
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    if (table := events.device.get(KERNEL)) is None:
        return found
    resources = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread")
    taken = [
        f"CASE WHEN typeof(x.{column}) = 'integer' AND x.{column} BETWEEN 0 AND {2**40} THEN x.{column} END"
        if column in table.columns
        else "NULL"
        for column in resources
    ]
    shape = [f"x.{side}" for side in SHAPE]
    keys = ", ".join(["coalesce(x.demangledName, x.shortName) AS fn", *shape])
    events.db.execute(
        "CREATE TABLE kernels AS SELECT e.name AS name, count(*) AS number, sum(o.end - o.start) AS ns, "
        f"{keys}, {', '.join(f'{sql} AS r{i}' for i, sql in enumerate(taken))} "
        f"FROM ops o CROSS JOIN {table.rows} x ON x.rowid = o.source JOIN execs e ON e.id = o.exec "
        f"WHERE o.kind = {KERNEL} GROUP BY 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14"
    )
    for name, index, count in events.rows(
        f"SELECT {events.text('k.fn')}, k.name, sum(k.number) FROM kernels k GROUP BY k.fn, k.name"
    ):
        if not isinstance(name, str) or not name:
            events.note(events.names[index], "incomplete", f"{count} kernels have no name", metrics=NAMED)
    place = "row_number() OVER (PARTITION BY name ORDER BY ns DESC, fn, gridX, gridY, gridZ, blockX, blockY, blockZ)"
    ranked = f"(SELECT *, {place} AS place FROM kernels)"
    for row in events.rows(
        f"SELECT k.name, {events.text('k.fn')}, number, ns, gridX, gridY, gridZ, blockX, blockY, blockZ, "
        f"r0, r1, r2, r3 FROM {ranked} k WHERE place <= {MOST} ORDER BY k.name, place"
    ):
        found[row[0]].append(row[1:])
    for index, left, ns, whole in events.rows(
        f"SELECT name, total(place > {MOST}), total(ns * (place > {MOST})), total(ns) FROM {ranked} GROUP BY name"
    ):
        if left:
            share = ns / whole if whole else 0.0
            text = f"{left:.0f} further launch configurations, {share:.1%} of the kernels' time, are left out"
            events.note(events.names[index], "incomplete", text, "profile fewer shapes in one case", NAMED)
    return found


def _told_kernels(rows: list[tuple[Any, ...]], number: int) -> list[KernelUse]:
    told = []
    for fn, count, ns, gx, gy, gz, bx, by, bz, registers, static, dynamic, local in rows:
        if isinstance(fn, str) and fn:
            told.append(
                KernelUse(
                    name=short(fn, 2000), count=count / number, seconds=ns * 1e-9 / number, grid=(gx, gy, gz),
                    block=(bx, by, bz), registers=registers, static_shared=static, dynamic_shared=dynamic, local=local,
                )
            )  # fmt: skip
    return told


def _copies(events: Events) -> dict[int, dict[tuple[CopyKind, Memory, Memory], tuple[int, int, int]]]:
    found: dict[int, dict[Any, tuple[int, int, int]]] = defaultdict(dict)
    if (table := events.device.get(COPY)) is None:
        return found
    kind_of, memory_of = copy_kinds(events), memories(events)
    ends = ", ".join(f"x.{end}" if end in table.columns else "NULL" for end in ("srcKind", "dstKind"))
    for index, kind, source, target, *numbers in events.rows(
        f"SELECT e.name, x.copyKind, {ends}, count(*), sum(x.bytes), sum(o.end - o.start) "
        f"FROM ops o CROSS JOIN {table.rows} x ON x.rowid = o.source JOIN execs e ON e.id = o.exec "
        f"WHERE o.kind = {COPY} GROUP BY 1, 2, 3, 4 ORDER BY 7 DESC, 2, 3, 4"
    ):
        key = kind_of(kind), memory_of(source), memory_of(target)
        before = found[index].get(key, (0, 0, 0))
        found[index][key] = before[0] + numbers[0], before[1] + numbers[1], before[2] + numbers[2]
    return found


def copy_kinds(export: Export) -> Callable[[object], CopyKind]:
    """Return nsys's numbers of copies as kinds, by the export, else as nsys has them."""
    kinds = _enumeration(export, "ENUM_CUDA_MEMCPY_OPER", "CUDA_MEMCPY_KIND_", _COPY_NUMBERS)
    return lambda number: copy_kind(kinds.get(number, ""))


def memories(export: Export) -> Callable[[object], Memory]:
    """Return nsys's numbers of memory likewise."""
    kinds = _enumeration(export, "ENUM_CUDA_MEM_KIND", "CUDA_MEMOPR_MEMORY_KIND_", _MEMORY_NUMBERS)
    return lambda number: memory(kinds.get(number, ""))


def _enumeration(export: Export, table: str, prefix: str, default: Sequence[str]) -> dict[Any, str]:
    told = export.enumeration(table) if table in export.tables else {}
    return {**dict(enumerate(default)), **{number: name.removeprefix(prefix) for number, name in told.items()}}


def _call_times(events: Events) -> dict[int, dict[str, tuple[int, int]]]:
    found: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for index, fn, count, ns in events.rows(
        "SELECT e.name, c.fn, count(*), sum(c.end - c.start) FROM calls c JOIN execs e ON e.id = c.exec GROUP BY 1, 2"
    ):
        if (name := events.functions.get(fn)) is not None:
            before = found[index].get(name, (0, 0))
            found[index][short(name, 500)] = before[0] + count, before[1] + ns
    return found
