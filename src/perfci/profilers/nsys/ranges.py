"""The user's NVTX ranges within executions, projected onto the device."""

import hashlib
from collections import defaultdict

from perfci.model.metrics import ALL_RANGES
from perfci.model.profile import RangeUse
from perfci.profilers.nsys.events import DOMAIN, DOMAIN_CREATE, PROCESS, RANGES, Events
from perfci.profilers.nsys.export import FAR
from perfci.profilers.nsys.missing import ALIKE

MOST = 1000
"""Kernels (with their launch configuration), and ranges, of a case; what is left out is a fault."""
_PATHS = 20_000  # distinct names of nested ranges that are held while reading
_DEPTH = 1000  # ranges that are open on one thread at a time


def nested(events: Events) -> dict[int, dict[str, list[int]]]:
    """Return by name: path of the user's ranges → [count, host ns, device ns].

    One sweep over ranges and launching calls, by thread: memory is that of the nesting and paths.
    """
    found: dict[int, dict[str, list[int]]] = defaultdict(dict)
    if events.nvtx is None:
        return found
    said = f"coalesce({events.text('x.textId')}, {events.text('x.text')})"
    own = "y.tid = e.tid AND y.start = e.start AND y.end = e.end"
    inside = "" if events.whole else f"WHERE y.end <= e.end AND NOT ({own})"
    events.db.execute("CREATE TABLE domains (pid INT, id INT, said, PRIMARY KEY (pid, id)) WITHOUT ROWID")
    events.db.execute(
        f"INSERT OR IGNORE INTO domains SELECT x.globalTid & {PROCESS}, x.domainId, {said} FROM {events.nvtx.rows} x "
        f"WHERE x.eventType = {DOMAIN_CREATE} AND x.globalTid IS NOT NULL AND x.domainId IS NOT NULL ORDER BY x.start"
    )
    domain = f"(SELECT d.said FROM domains d WHERE d.pid = (x.globalTid & {PROCESS}) AND d.id = x.domainId)"
    ranges = (
        f"SELECT x.globalTid & {PROCESS} AS pid, x.globalTid AS tid, x.start AS start, x.end AS end, "
        f"{domain} AS domain, {said} AS said FROM {events.nvtx.rows} x "
        f"WHERE x.eventType IN {RANGES} AND x.endGlobalTid IS NULL AND {events.nvtx.good}"
    )
    events.db.execute(
        "CREATE TABLE marks AS SELECT DISTINCT y.tid AS tid, y.start AS start, y.end AS end, y.domain AS domain, "
        f"y.said AS said, e.name AS name FROM ({ranges}) y "
        f"CROSS JOIN execs e ON e.id = {events.execution_of('y')} {inside}"
    )
    if not events.one("SELECT EXISTS (SELECT 1 FROM marks)"):
        return found
    missed: set[int] = set()
    thread: int | None = None
    open_: list[_Mark] = []

    def close(before: int | None) -> None:
        for mark in [mark for mark in open_ if before is None or mark.end < before]:
            open_.remove(mark)
            paths = found[mark.name]
            if mark.path not in paths and len(paths) >= _PATHS:
                missed.add(mark.name)
                continue
            total = paths.setdefault(mark.path, [0, 0, 0])
            total[0] += 1
            total[1] += mark.end - mark.start
            total[2] += max(0, mark.last - mark.first)  # nothing was launched: last is before first

    for tid, start, end, index, domain_, said, first, last, _ in events.rows(
        "SELECT * FROM (SELECT tid, start, end, name, domain, said, NULL, NULL, 0 AS called FROM marks UNION ALL "
        "SELECT c.tid, c.start, c.end, NULL, NULL, NULL, l.start, l.end, 1 "
        "FROM launched l JOIN calls c ON c.id = l.call) ORDER BY tid, start, called, end DESC"
    ):
        if tid != thread:
            close(None)
            thread = tid
        close(start)
        if len(open_) >= _DEPTH:
            missed.update(mark.name for mark in open_)
            continue
        if index is None:
            for mark in open_:
                if end <= mark.end:
                    mark.first = min(mark.first, first)
                    mark.last = max(mark.last, last)
            continue
        own = str(said) if said else "(no name)"
        own = own if not domain_ or domain_ == DOMAIN else f"{domain_}:{own}"
        around = next((m for m in reversed(open_) if end <= m.end and m.name == index), None)
        path = f"{around.path}/{own}" if around is not None else own
        open_.append(_Mark(index, short(path, 500), start, end))
    close(None)
    for index in missed:
        text = f"more than {_PATHS} nested ranges of different names, or {_DEPTH} open at a time: some are left out"
        events.note(events.names[index], "incomplete", text, "give ranges names without numbers", [ALL_RANGES])
    return found


def told_ranges(events: Events, name: str, found: dict[str, list[int]], number: int) -> list[RangeUse]:
    """Return a name's ranges in one of its `number` executions, longest on the host first; note what is left out or
    differs."""
    if len(found) > MOST:
        text = f"{len(found) - MOST} nested ranges with the least host time are left out"
        events.note(name, "incomplete", text, "give ranges names without numbers", [ALL_RANGES])
    longest = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))[:MOST]
    for path, (count, *_) in longest:
        if count % number:
            text = f"its executions differ: {count} ranges {path} in {number} of them"
            events.note(name, "incomplete", text, ALIKE, [f"range:{path}"])
    scale = 1e-9 / number
    return [
        RangeUse(name=path, count=count / number, host=host * scale, device=device * scale)
        for path, (count, host, device) in longest
    ]


class _Mark:
    """An open range: first start and last end, in ns, of device work launched within."""

    __slots__ = ("end", "first", "last", "name", "path", "start")

    def __init__(self, name: int, path: str, start: int, end: int) -> None:
        self.name, self.path, self.start, self.end = name, path, start, end
        self.first, self.last = FAR, -FAR


def short(name: str, most: int) -> str:
    """Return a name of at most `most` characters; different names stay different."""
    if len(name) <= most:
        return name
    return f"{name[: most - 10]}…#{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
