"""Executions between which anything may lie: how long they take, and what their process's device does meanwhile."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from perfci.profilers.cuda import call_kind
from perfci.profilers.nsys.events import Events, migrated

Span = tuple[int, int]
"""A begin and an end, ns."""


class Apart(NamedTuple):
    """All executions of one name."""

    number: int
    wall: int
    """ns from the begin of each, or from the end of all work that was launched before it, to the end of its own: work
    that is queued behind other work does not take the time of that."""
    busy: int
    """ns of these in which the device works for the process."""
    launching: int
    """ns in which a call of theirs launches, and the device does not work for the process."""


def measure(events: Events) -> dict[int, Apart]:
    """Return what the executions take, by their name's index. None of one process overlap."""
    launches = [(fn,) for fn, name in events.functions.items() if call_kind(name) == "launch"]
    events.db.execute("CREATE TABLE launches (fn)")
    events.db.executemany("INSERT INTO launches VALUES (?)", launches)
    found: dict[int, Apart] = {}
    rows = events.rows(
        "SELECT e.pid, e.start, e.end, e.name, p.ended FROM execs e LEFT JOIN (SELECT exec, max(end) AS ended FROM ops "
        "GROUP BY exec) p ON p.exec = e.id ORDER BY e.pid, e.start"
    )
    for pid, own in groupby(list(rows), key=lambda row: row[0]):
        extents: list[tuple[int, int, int]] = []
        done: int | None = None
        for _, start, end, name, ended in own:
            begin = start if done is None else max(start, done)
            stop = max(end, begin, end if ended is None else ended)
            extents.append((begin, stop, name))
            if ended is not None:
                done = ended if done is None else max(done, ended)
        busy: dict[int, int] = {}
        for name, (start, end) in _within(_working(events, pid), extents):
            busy[name] = busy.get(name, 0) + end - start
        calling = events.rows(
            "SELECT c.start, c.end, e.name FROM calls c JOIN execs e ON e.id = c.exec WHERE e.pid = ? "
            "AND c.fn IN (SELECT fn FROM launches) ORDER BY c.start",
            pid,
        )
        idle = _outside(calling, _working(events, pid))
        walls: dict[int, list[int]] = {}
        for begin, stop, name in extents:
            walls.setdefault(name, []).append(stop - begin)
        for name, own_walls in walls.items():
            before = found.get(name, Apart(0, 0, 0, 0))
            found[name] = Apart(
                before.number + len(own_walls),
                before.wall + sum(own_walls),
                before.busy + busy.get(name, 0),
                before.launching + idle.get(name, 0),
            )
    return found


def merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the union of spans that are ordered by their begin."""
    begin = end = None
    for start, stop in spans:
        if end is None or begin is None:
            begin, end = start, stop
        elif start <= end:
            end = max(end, stop)
        else:
            yield begin, end
            begin, end = start, stop
    if begin is not None and end is not None:
        yield begin, end


def _working(events: Events, pid: int) -> Iterator[Span]:
    """Yield when the device works for a process, whoever launched it there."""
    parts = [
        f"SELECT x.start AS start, x.end AS end FROM {table.rows} x WHERE {events.process_of(table)} = {pid:d} "
        f"AND {table.good} AND NOT ({migrated(kind)})"
        for kind, table in events.device.items()
    ]
    if parts:
        yield from merged(events.rows(" UNION ALL ".join(parts) + " ORDER BY start"))


def _within(spans: Iterator[Span], extents: list[tuple[int, int, int]]) -> Iterator[tuple[int, Span]]:
    """Yield the parts of disjoint spans that lie in extents (begin, end, name), both in order, with the name."""
    at = 0
    for start, end in spans:
        while at < len(extents) and extents[at][1] <= start:
            at += 1
        for begin, stop, name in extents[at:]:
            if begin >= end:
                break
            if min(end, stop) > max(start, begin):
                yield name, (max(start, begin), min(end, stop))


def _outside(spans: Iterable[tuple[int, int, int]], others: Iterator[Span]) -> dict[int, int]:
    """Return by name the ns of spans (begin, end, name), ordered by their begin and each moment once, that none of the
    others cover, which are disjoint and in order."""
    found: dict[int, int] = {}
    other, reached = next(others, None), None
    for start, end, name in spans:
        at = start if reached is None else max(start, reached)
        reached = max(at, end)
        while at < end:
            while other is not None and other[1] <= at:
                other = next(others, None)
            stop = end if other is None else min(end, max(at, other[0]))
            found[name] = found.get(name, 0) + stop - at
            at = end if other is None or other[0] >= end else other[1]
    return found
