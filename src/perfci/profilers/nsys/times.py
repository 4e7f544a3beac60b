"""Times of executions, and of the device meanwhile."""

from typing import NamedTuple

from perfci.profilers.cuda import sweep
from perfci.profilers.nsys.events import Events, migrated
from perfci.profilers.nsys.export import FAR


class Times(NamedTuple):
    """Of all executions of a name, in ns."""

    number: int
    wall: int
    busy: int
    launching: int
    """In which a call of theirs launches, and the device is idle."""


def measure(events: Events, length: int) -> dict[int, Times]:
    """Return the times by name's index. `length`: of the capture, ns.

    Where anything may lie between executions each runs from its begin, or the end of all work launched before it, to
    the end of its own, and the device works for the process, whoever launched there. Else they are one stretch of their
    process, and its work is theirs.
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
            f"SELECT x.globalPid AS key, x.start AS start, x.end AS end FROM {table.rows} x "
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
