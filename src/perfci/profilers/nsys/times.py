"""How long executions take, and how long the device works meanwhile."""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from perfci.profilers.nsys.events import Events, migrated
from perfci.profilers.nsys.export import FAR

Edge = tuple[Any, int, int | None, int, int, int]
"""A key, a time, a name, and by how many the extents, the works and the launches that are open change there."""


class Times(NamedTuple):
    """Of all executions of one name, in ns."""

    number: int
    """Of executions."""
    wall: int
    busy: int
    """In which the device works."""
    launching: int
    """In which a call of theirs launches, and the device does not work."""


def measure(events: Events, length: int) -> dict[int, Times]:
    """Return what the executions take, by their name's index. `length`: of the capture, ns.

    Where anything may lie between two executions each takes from its begin, or from the end of all work that was
    launched before it, to the end of its own: work that is queued behind other work does not take the time of that. The
    device then works for the process, whoever launched it there. Else they are one stretch of their process, and its
    work is theirs.
    """
    ended = "LEFT JOIN (SELECT exec, max(end) AS ended FROM ops GROUP BY exec) p ON p.exec = e.id"
    if events.apart:
        before = (
            "max(p.ended) OVER (PARTITION BY e.pid ORDER BY e.start ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        extents = (
            "SELECT key, name, start, max(start, end, coalesce(ended, end)) AS end FROM (SELECT e.pid AS key, "
            f"e.name AS name, max(e.start, coalesce({before}, e.start)) AS start, e.end AS end, p.ended AS ended "
            f"FROM execs e {ended})"
        )
        walls = "SELECT name, count(*), sum(end - start) FROM extents GROUP BY name"
        works = [
            f"SELECT {events.process_of(table)} AS key, x.start AS start, x.end AS end FROM {table.rows} x "
            f"WHERE {table.good} AND NOT ({migrated(kind)})"
            for kind, table in events.device.items()
        ]
    else:
        extents = f"SELECT DISTINCT name AS key, name, {-FAR} AS start, {FAR} AS end FROM execs"
        walls = (
            "SELECT name, sum(number), sum(max(last, coalesce(ended, last)) - first) FROM (SELECT e.name AS name, "
            "min(e.start) AS first, max(e.end) AS last, count(*) AS number, max(p.ended) AS ended "
            f"FROM execs e {ended} GROUP BY e.name, e.pid) GROUP BY name"
        )
        works = ["SELECT e.name AS key, o.start AS start, o.end AS end FROM ops o JOIN execs e ON e.id = o.exec"]
    events.db.execute(f"CREATE TABLE extents AS {extents}")
    calls = (
        f"SELECT {'e.pid' if events.apart else 'e.name'} AS key, e.name AS name, c.start AS start, c.end AS end "
        "FROM calls c JOIN working w ON w.fn = c.fn JOIN execs e ON e.id = c.exec WHERE w.kind = 'launch'"
    )
    edges = " UNION ALL ".join(
        f"SELECT key, {side}, {name}, {extent * sign}, {work * sign}, {launch * sign} FROM ({rows}) "
        "WHERE key IN (SELECT key FROM extents) AND end > start"
        for rows, name, extent, work, launch in (
            ("SELECT * FROM extents", "name", 1, 0, 0),
            *((one, "NULL", 0, 1, 0) for one in works),
            (calls, "name", 0, 0, 1),
        )
        for side, sign in (("start", 1), ("end", -1))
    )
    busy, launching = sweep(events.rows(f"SELECT * FROM ({edges}) ORDER BY 1, 2, 4"))
    numbers = [(0, 1, length)] if events.whole else events.rows(walls)
    return {name: Times(number, wall, busy[name], launching[name]) for name, number, wall in numbers}


def sweep(edges: Iterable[Edge]) -> tuple[Counter[int], Counter[int]]:
    """Return by name the time of its extents in which something works; and the time in which a call of its launches,
    and nothing of the same key works.

    `edges`: in the order of key and time; extents of one key do not overlap.
    """
    busy: Counter[int] = Counter()
    launching: Counter[int] = Counter()
    for _, own in groupby(edges, key=itemgetter(0)):
        inside: int | None = None
        calling: Counter[int] = Counter()
        works = last = 0
        for _, time, name, extent, work, launch in own:
            if works and inside is not None:
                busy[inside] += time - last
            elif not works and calling:
                launching[next(iter(calling))] += time - last
            works, last = works + work, time
            if extent:
                inside = name if extent > 0 else None
            if launch and name is not None:
                calling[name] += launch
                if not calling[name]:
                    del calling[name]
    return busy, launching
