"""Calls of the OS runtime in an nsys export.

Times are summed over threads and levels of nesting, as `nsys stats --report osrt_sum` does. A call counts in each
execution that it overlaps, with the overlap's time.
"""

from typing import NamedTuple

from perfci.profilers.faults import fault as any_fault
from perfci.profilers.nsys.events import PROCESS, Events
from perfci.profilers.nsys.export import BadExport, Table
from perfci.profilers.nsys.ranges import MOST, short

TABLE = "OSRT_API"
_CLASS = 27
"""Of calls, as `nsys stats` of 2022 to 2025 has it; the table also holds when tracing began and ended."""


class Spent(NamedTuple):
    """A function, in all executions of a name."""

    number: int
    ns: int
    launching: int
    """ns on threads that launch GPU work."""


def os_calls(events: Events, *, asked: bool) -> dict[int, dict[str, Spent]]:
    """Return by name: function → calls and times, longest first. What cannot be told is a fault that changes no value.

    `asked`: their absence is a fault.
    """
    if TABLE not in events.tables:
        if asked and not events.facts("META_DATA_CAPTURE", "OS_RUNTIME_OPTIONS:%"):
            _aside(events, "calls of the OS runtime were not traced", "trace them with an nsys that knows --trace=osrt")
        return {}
    try:
        table = events.table(TABLE, ("globalTid", "nameId", "eventClass"))
    except BadExport as why:
        _aside(events, f"calls of the OS runtime are not told: {why.text}", why.remedy)
        return {}
    return _read(events, table) if table is not None else {}


def _read(events: Events, table: Table) -> dict[int, dict[str, Spent]]:
    if bad := events.one(f"SELECT count(*) FROM {table.rows} x WHERE x.eventClass IS {_CLASS} AND NOT {table.good}"):
        _aside(events, f"{bad} calls of the OS runtime have no usable times: left out", "capture again")
    events.db.execute(
        "CREATE TABLE launching_threads AS SELECT DISTINCT c.tid FROM calls c JOIN working w ON w.fn = c.fn "
        "WHERE w.work IS NOT NULL"
    )
    calls = (
        f"SELECT x.globalTid & {PROCESS} AS pid, x.globalTid AS tid, x.start AS start, x.end AS end, x.nameId AS fn "
        f"FROM {table.rows} x WHERE {table.good} AND x.eventClass = {_CLASS}"
    )
    if events.whole:
        parts = f"SELECT 0 AS name, y.tid AS tid, y.fn AS fn, y.end - y.start AS ns FROM ({calls}) y"
    else:
        # Executions of one process follow one another: those that a call overlaps begin with the last before it.
        parts = (
            "SELECT e.name AS name, y.tid AS tid, y.fn AS fn, min(y.end, e.end) - max(y.start, e.start) AS ns "
            f"FROM ({calls}) y CROSS JOIN execs e ON e.pid = y.pid AND e.start <= y.end AND e.start >= coalesce("
            "(SELECT f.start FROM execs f WHERE f.pid = y.pid AND f.start <= y.start ORDER BY f.start DESC LIMIT 1), "
            "y.start) WHERE (e.start < y.end AND e.end > y.start) OR "
            "(y.start = y.end AND y.start BETWEEN e.start AND e.end)"
        )
    found: dict[int, dict[str, Spent]] = {}
    left_out = 0
    for name, said, count, ns, launching in events.rows(
        f"SELECT name, {events.text('z.fn')}, number, ns, launching FROM (SELECT p.name AS name, p.fn AS fn, "
        "count(*) AS number, sum(p.ns) AS ns, sum(p.ns * (p.tid IN (SELECT tid FROM launching_threads))) AS launching "
        f"FROM ({parts}) p GROUP BY p.name, p.fn) z ORDER BY name, ns DESC, 2"
    ):
        own = found.setdefault(name, {})
        if not isinstance(said, str) or not said or len(own) >= MOST:
            left_out += count
            continue
        known = short(said, 500)
        before = own.get(known, Spent(0, 0, 0))
        own[known] = Spent(before.number + count, before.ns + ns, before.launching + launching)
    if left_out:
        text = f"{left_out} calls of the OS runtime have no name, or are of too many functions: left out"
        _aside(events, text, "capture again")
    return found


def _aside(events: Events, text: str, remedy: str) -> None:
    events.general.append(any_fault("nsys", "trace", "incomplete", text, remedy, aside=True))
