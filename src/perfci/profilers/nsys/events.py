"""Events of an nsys export, joined: the calls and device work of each execution.

Joins and sorts live on disk: memory does not grow with the trace.

To an execution belong API calls of its process that begin while its range is open, on any thread (autograd launches
from its own), on the range's thread only those that also end in it; and the device work they launched, whenever it ran.
They are joined by process and correlation, which is unique within a process only.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfci.model.metrics import ALL_RANGES
from perfci.model.profile import MOST_SLICES, CopyKind, Fault, FaultKind, KernelUse, Slice
from perfci.model.text import escaped
from perfci.profilers.cuda import CAPTURES, call_kind, plain_call, work
from perfci.profilers.faults import COPIES, KERNELS, SETS
from perfci.profilers.nsys.export import AGAIN, FAR, NEWER, BadExport, Export, Table, fault, quoted

DOMAIN = "perfci"
"""The NVTX domain of execution ranges outside the default one."""
PUSH_POP, DOMAIN_CREATE = 59, 75
RANGES = "(59, 60, 70, 71)"
"""Range events of ENUM_NSYS_EVENT_TYPE: push/pop and start/end, also of imported text files."""
PROCESS = "-16777216"
"""~0xFFFFFF: a global thread id & this is its process's."""
CALLING = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
MIGRATIONS = "(11, 12, 13)"
"""Kinds of copies by unified memory: no call, and so no correlation."""
_LOST_RANGES = (
    "push ranges through torch.cuda.nvtx, or with the package nvtx 0.2.11: nsys 2023.4 loses those of nvtx 0.2.12 to "
    "0.2.17"
)

DEVICE = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernels"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "copies"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memory sets"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUDA graphs"),
)
"""Tables of device work and what they hold, by their number in `ops`."""
KERNEL, COPY, SET, GRAPH = range(4)
MOST_NAMES = 1000
"""Of outermost ranges, of a foreign capture."""
SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
CHANGED = (KERNELS, COPIES, SETS, (*KERNELS, *COPIES))


def migrated(kind: int) -> str:
    """SQL: a row of device work is a copy by unified memory."""
    return f"x.copyKind IN {MIGRATIONS}" if kind == COPY else "0"


class Events(Export):
    """A trace's events by execution, in tables of its own.

    `execs` (`name` is an index into `names`; whole captures have one execution), `calls` (within executions), `working`
    (functions' work by `cuda`), `ops` (device work: kind, row, launching call), `launched` (first start and last end of
    a call's work), in ns. Names in `lost` have no sum worth telling.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        names: list[str],
        whole: bool,
        executions: int | None = None,
        *,
        outermost: bool = False,
        skip: int | None = None,
    ) -> None:
        """`executions`: of each name, where known. `outermost`: the names are to be found. `skip`: first executions of
        each process, left out."""
        super().__init__(db)
        self.outermost, self.skip = outermost, skip
        self.apart = outermost or skip is not None
        """Anything may lie between two executions."""
        self.names, self.whole, self.made = names, whole, executions
        self.faults: dict[str, list[Fault]] = {name: [] for name in names}
        self.general: list[Fault] = []
        self.lost: set[str] = set()
        self.functions: dict[Any, str] = {}
        self.device: dict[int, Table] = {}

    def note(self, name: str, kind: FaultKind, text: str, remedy: str = AGAIN, metrics: Iterable[str] = ()) -> None:
        """Add a fault of a name. `metrics`: empty for all."""
        self.faults[name].append(fault(kind, text, remedy, metrics))

    def everywhere(self, text: str, remedy: str = AGAIN, metrics: Iterable[str] = ()) -> None:
        """Add a fault of all names."""
        self.general.append(fault("incomplete", text, remedy, metrics))

    def collect(self) -> None:
        """Fill the tables. Raises BadExport."""
        known = {"NVTX_EVENTS", "PROCESSES", "META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS"}
        if "StringIds" not in self.tables or not (known & self.tables):
            remedy = "name the .sqlite that `nsys export --type sqlite` wrote"
            raise BadExport("no export of nsys: its tables are missing", remedy)
        if missing := {"id", "value"} - self.columns("StringIds"):
            raise BadExport(f"table StringIds has no column {min(missing)}", NEWER)
        # Which name an execution, a call and an operation belong to is its number in `names`.
        self.db.executescript("""
            CREATE TABLE execs (id INTEGER PRIMARY KEY, name INT, pid INT, tid INT, start INT, end INT);
            CREATE TABLE calls (id INTEGER PRIMARY KEY, exec INT, pid INT, tid INT, start INT, end INT, fn, corr INT,
                                failed INT);
            CREATE TABLE link (pid INT, corr INT, call INT, exec INT, PRIMARY KEY (pid, corr)) WITHOUT ROWID;
            CREATE TABLE ops (exec INT, call INT, kind INT, source INT, start INT, end INT);
        """)
        has = ("text", "textId", "domainId", "endGlobalTid")
        self.nvtx = self.table("NVTX_EVENTS", ("eventType", "globalTid"), has=has)
        if self.whole:
            self.db.execute(f"INSERT INTO execs VALUES (1, 0, 0, 0, {-FAR}, {FAR})")
        else:
            self.executions()
        self.unnamed()
        self.calls()
        self.operations()

    def executions(self) -> None:
        """Fill `execs` with whole ranges of the names."""
        if self.nvtx is None:
            for name in self.names:
                self.note(name, "empty", "no NVTX range is in the trace", _LOST_RANGES)
            return
        self.push_pop(self.nvtx)
        if self.outermost:
            self.find_outermost()
        self.db.execute("CREATE TABLE wanted (name INT, said PRIMARY KEY) WITHOUT ROWID")
        self.db.executemany("INSERT INTO wanted VALUES (?, ?)", enumerate(self.names))
        named = "SELECT w.name AS name, p.* FROM pushed p JOIN wanted w ON w.said = p.said"
        self.db.execute(
            f"CREATE VIEW executed AS {named}{' JOIN outermost o ON o.id = p.id' if self.outermost else ''}"
        )
        for index, cut, bad in self.rows(
            "SELECT name, total(end IS NULL), total(end IS NOT NULL) FROM executed WHERE NOT good GROUP BY name"
        ):
            if cut:
                said = f"of its executions {cut:.0f} did not end before the capture did: left out"
                self.note(self.names[index], "incomplete", said, "let the capture last longer")
            if bad:
                self.note(self.names[index], "incomplete", f"{bad:.0f} of its executions have no usable times")
        self.db.execute(  # nsys may tell an event twice
            "INSERT INTO execs (name, pid, tid, start, end) SELECT DISTINCT name, pid, tid, start, end FROM executed "
            "WHERE good ORDER BY pid, start, end DESC"
        )
        self.db.execute("CREATE INDEX execs_at ON execs (pid, start)")
        self.overlaps()
        self.leave_out()
        self.count_executions()

    def push_pop(self, nvtx: Table) -> None:
        """Fill `pushed` with push/pop ranges of the default domain and perfci's."""
        said = f"coalesce({self.text('x.text')}, {self.text('x.textId')})"
        foreign = (
            f"EXISTS (SELECT 1 FROM foreign_domains f WHERE f.pid = (x.globalTid & {PROCESS}) AND f.id = x.domainId)"
        )
        self.db.execute("CREATE TABLE foreign_domains (pid INT, id INT, PRIMARY KEY (pid, id)) WITHOUT ROWID")
        self.db.execute(
            f"INSERT OR IGNORE INTO foreign_domains SELECT x.globalTid & {PROCESS}, x.domainId FROM {nvtx.rows} x "
            f"WHERE x.eventType = {DOMAIN_CREATE} AND {said} <> '{DOMAIN}' AND x.globalTid IS NOT NULL "
            "AND x.domainId IS NOT NULL"
        )
        self.db.execute(
            f"CREATE TABLE pushed AS SELECT x.rowid AS id, x.globalTid & {PROCESS} AS pid, x.globalTid AS tid, "
            f"x.start AS start, x.end AS end, {said} AS said, ({nvtx.good} AND x.end > x.start) IS TRUE AS good "
            f"FROM {nvtx.rows} x WHERE x.eventType = {PUSH_POP} AND NOT {foreign}"
        )

    def find_outermost(self) -> None:
        """Take the ranges open in no other of their process, and their names. Raises BadExport for too many."""
        # Of ranges that overlap none lies in the other: `overlaps` leaves them out, and says so.
        self.db.execute(
            "CREATE TABLE outermost AS SELECT id, said, start FROM (SELECT *, max(end) OVER (PARTITION BY pid ORDER BY "
            "start, end DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM pushed WHERE good) "
            "WHERE before IS NULL OR before < end"
        )
        cut = f"SELECT said, count(*) FROM pushed WHERE end IS NULL GROUP BY 1 LIMIT {MOST_NAMES}"
        for name, count in self.rows(cut):
            text = f"{count} ranges {escaped(str(name))[:80]} did not end before the capture did: left out"
            self.general.append(fault("incomplete", text, "let the capture last longer", aside=True))
        sql = "SELECT said FROM outermost WHERE said <> '' GROUP BY said ORDER BY min(start) LIMIT ?"
        self.names += [str(name) for (name,) in self.rows(sql, MOST_NAMES + 1)]
        if len(self.names) > MOST_NAMES:
            raise BadExport(f"more than {MOST_NAMES} NVTX ranges of different names", "give them names without numbers")
        self.faults = {name: [] for name in self.names}

    def count_executions(self) -> None:
        """Note names without an execution, or with an unexpected number."""
        seen = dict(self.rows("SELECT name, count(*) FROM execs GROUP BY name"))
        pushed, nameless = self.rows("SELECT count(*), total(said IS NULL) FROM pushed").fetchone()
        for index, name in enumerate(() if self.outermost else self.names):
            if self.made is not None and seen.get(index, self.made) != self.made:
                said = f"{seen[index]} of its executions are in the trace, and {self.made} were made"
                self.note(name, "incomplete", said)
            if index not in seen and not self.faults[name]:
                if pushed:
                    remedy = "see in the log whether the case was executed"
                    self.note(name, "empty", f"no range of this name among {pushed} in the trace", remedy)
                else:
                    self.note(name, "empty", "no NVTX push/pop range is in the trace", _LOST_RANGES)
        if nameless:
            known = self.made is not None and all(number == self.made for number in seen.values())
            text = f"{nameless:.0f} NVTX ranges have no name"
            self.everywhere(text, metrics=[ALL_RANGES] if known else ())

    def unnamed(self) -> None:
        """Note ranges and domains whose name StringIds lacks."""
        if self.nvtx is None:
            return
        kinds = f"x.eventType IN {RANGES} OR x.eventType = {DOMAIN_CREATE}"
        lost = self.one(
            f"SELECT count(*) FROM {self.nvtx.rows} x WHERE ({kinds}) AND x.textId IS NOT NULL "
            "AND typeof(x.textId) <> 'text' AND NOT EXISTS (SELECT 1 FROM t.StringIds s WHERE s.id = x.textId)"
        )
        if lost:
            self.everywhere(f"the names of {lost} NVTX ranges or domains are missing", metrics=[ALL_RANGES])

    def overlaps(self) -> None:
        """Leave out executions that overlap in their process: their calls could not be told apart."""
        overlapping = """
            SELECT id FROM (SELECT id, start, end,
                max(end) OVER (PARTITION BY pid ORDER BY start, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS
                    before,
                min(start) OVER (PARTITION BY pid ORDER BY start, id ROWS BETWEEN 1 FOLLOWING AND 1 FOLLOWING) AS after
                FROM execs)
            WHERE before > start OR after < end"""
        for index, count in self.rows(f"SELECT name, count(*) FROM execs WHERE id IN ({overlapping}) GROUP BY 1"):
            text = f"{count} of its executions overlap others and are left out"
            self.note(self.names[index], "incomplete", text, "push ranges one after the other, on one thread")
        self.db.execute(f"DELETE FROM execs WHERE id IN ({overlapping})")

    def leave_out(self) -> None:
        """Rename the skipped executions: work that they launched may run on, and belongs to no other."""
        if not self.skip or not self.one("SELECT count(*) FROM execs"):
            return
        name = self.names[0]
        self.names.append(f"{name} (skipped)")
        self.faults[self.names[1]] = []
        self.db.execute(
            "UPDATE execs SET name = 1 WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY pid "
            "ORDER BY start) AS number FROM execs) WHERE number <= ?)",
            (self.skip,),
        )
        processes = self.one("SELECT count(DISTINCT pid) FROM execs")
        without = processes - self.one("SELECT count(DISTINCT pid) FROM execs WHERE name = 0")
        if without:
            who = "its process does" if processes == 1 else f"{without} of {processes} processes do"
            text = f"{who} not execute it more often than the {self.skip} times that are skipped"
            kind: FaultKind = "empty" if without == processes else "incomplete"
            self.note(name, kind, text, "execute it more often, or lower skip")

    def execution_of(self, row: str) -> str:
        """SQL: the execution of `row`'s process that began last before `row` did."""
        if self.whole:
            return "1"
        return (
            f"(SELECT e.id FROM execs e WHERE e.pid = {row}.pid AND e.start <= {row}.start "
            "ORDER BY e.start DESC LIMIT 1)"
        )

    def calls(self) -> None:
        """Fill `calls`, and `link`, by which their work is found."""
        for name in CALLING:
            table = self.table(name, ("globalTid",), has=("correlationId", "nameId", "returnValue"))
            if table is None:
                continue
            inside = "" if self.whole else "WHERE y.start <= e.end AND (y.tid <> e.tid OR y.end <= e.end)"
            good = (
                f"SELECT x.globalTid & {PROCESS} AS pid, x.globalTid AS tid, x.start AS start, x.end AS end, "
                f"x.nameId AS fn, x.correlationId AS corr, x.returnValue <> 0 AS failed FROM {table.rows} x "
                f"WHERE {table.good}"
            )
            self.db.execute(
                "INSERT INTO calls (exec, pid, tid, start, end, fn, corr, failed) SELECT e.id, y.pid, y.tid, y.start, "
                f"y.end, y.fn, y.corr, y.failed FROM ({good}) y "
                f"CROSS JOIN execs e ON e.id = {self.execution_of('y')} {inside}"
            )
            if bad := self.one(f"SELECT count(*) FROM {table.rows} x WHERE NOT {table.good}"):
                self.everywhere(f"{bad} API calls have no usable times")
        for fn, name in self.rows(f"SELECT c.fn, {self.text('c.fn')} FROM (SELECT DISTINCT fn FROM calls) c"):
            if not isinstance(name, str) or not name:
                for index in self.touched("c.fn IS ?", fn):
                    self.note(self.names[index], "incomplete", "some of its API calls have no name")
            else:
                self.functions[fn] = plain_call(name)
        self.db.execute("CREATE TABLE working (fn PRIMARY KEY, work, begins INT, kind) WITHOUT ROWID")
        told = [(fn, work(name), CAPTURES.get(name), call_kind(name)) for fn, name in self.functions.items()]
        self.db.executemany("INSERT OR IGNORE INTO working VALUES (?, ?, ?, ?)", told)
        known = "FROM calls WHERE typeof(corr) = 'integer'"
        self.db.execute(f"INSERT OR IGNORE INTO link SELECT pid, corr, id, exec {known} ORDER BY pid, corr, id")
        if self.one("SELECT count(*) FROM link") < self.one(f"SELECT count(*) {known}"):
            # A thread makes no two calls at one time: what is alike in all of this is one call, told twice.
            self.db.execute(
                "DELETE FROM calls WHERE id IN (SELECT c.id FROM calls c JOIN link l ON l.pid = c.pid AND l.corr = "
                "c.corr JOIN calls f ON f.id = l.call WHERE c.id <> f.id AND c.tid = f.tid AND c.start = f.start "
                "AND c.end = f.end AND c.fn IS f.fn AND c.failed IS f.failed)"
            )
            ambiguous = f"SELECT pid, corr {known} GROUP BY pid, corr HAVING count(DISTINCT exec) > 1"
            for index in self.touched(f"(c.pid, c.corr) IN ({ambiguous})"):
                self.note(self.names[index], "incomplete", "several of its API calls share a correlation")
        calling = [
            name for name in CALLING if name in self.tables and self.one(f"SELECT EXISTS (SELECT 1 FROM t.{name})")
        ]
        if not calling and self.cuda_was_traced():
            remedy = "see whether nsys found CUDA; without a GPU trace nvtx only"
            self.general.append(fault("empty", "no CUDA API call is in the trace", remedy))

    def cuda_was_traced(self) -> bool:
        """Tell whether nsys traced CUDA; true where the export does not say."""
        told = self.facts("META_DATA_CAPTURE", "%COLLECT_CUDA_TRACE")
        return not told or any(value != "false" for _, value in told)

    def touched(self, condition: str, *parameters: Any) -> list[int]:
        """Return the names (indices) with a call `c` of this condition."""
        sql = f"SELECT DISTINCT e.name FROM calls c JOIN execs e ON e.id = c.exec WHERE {condition}"
        return [index for (index,) in self.rows(sql, *parameters)]

    def operations(self) -> None:
        """Fill `ops`."""
        needs: dict[int, tuple[tuple[str, ...], str]] = {
            KERNEL: (SHAPE, " AND ".join(f"x.{side} BETWEEN 1 AND 4294967295" for side in SHAPE)),
            COPY: (("bytes", "copyKind"), f"x.bytes BETWEEN 0 AND {2**53}"),
        }
        for kind, (name, word) in enumerate(DEVICE):
            columns, condition = needs.get(kind, ((), "1"))
            named = ("demangledName", "shortName") if kind == KERNEL else ()
            table = self.table(name, columns, condition, has=("correlationId", "globalPid", *named))
            if table is None:
                continue
            self.device[kind] = table
            linked = self.linked(table)
            for index, count in self.rows(
                f"SELECT e.name, count(*) {linked} LEFT JOIN execs e ON e.id = l.exec WHERE NOT {table.good} GROUP BY 1"
            ):
                text = f"{count} {word} have no usable values"
                if self.whole or index is not None:
                    self.note(self.names[index or 0], "incomplete", text)
                    self.lost.add(self.names[index or 0])
                else:
                    self.everywhere(text, metrics=CHANGED[kind])
            if self.whole:
                self.db.execute(
                    f"INSERT INTO ops SELECT 1, l.call, {kind}, x.rowid, x.start, x.end {linked} WHERE {table.good}"
                )
                continue
            self.db.execute(
                f"INSERT INTO ops SELECT l.exec, l.call, {kind}, x.rowid, x.start, x.end "
                f"{linked.replace('LEFT JOIN', 'CROSS JOIN')} WHERE {table.good}"
            )
            if kind == COPY:
                self.db.execute("CREATE TABLE ended (exec INTEGER PRIMARY KEY, end INT)")
                self.db.execute("INSERT INTO ended SELECT exec, max(end) FROM ops GROUP BY exec")
                self.db.execute(
                    f"INSERT INTO ops SELECT e.id, NULL, {kind}, y.id, y.start, y.end FROM (SELECT x.rowid AS id, "
                    f"x.globalPid AS pid, x.start AS start, x.end AS end {linked} WHERE l.call IS NULL "
                    f"AND x.copyKind IN {MIGRATIONS} AND {table.good}) y "
                    f"CROSS JOIN execs e ON e.id = {self.execution_of('y')} "
                    "LEFT JOIN ended d ON d.exec = e.id WHERE y.start <= max(e.end, coalesce(d.end, e.end))"
                )
        self.db.execute("CREATE INDEX ops_of ON ops (exec, start)")
        self.twins()
        self.db.execute("CREATE TABLE launched (call INTEGER PRIMARY KEY, start INT, end INT)")
        self.db.execute(
            "INSERT INTO launched SELECT call, min(start), max(end) FROM ops WHERE call IS NOT NULL GROUP BY call"
        )

    def twins(self) -> None:
        """Count device work that stands twice, equal in every column, once: a stream runs one thing after the other."""
        self.db.execute(
            "CREATE TABLE twins AS SELECT o.rowid AS id, o.kind AS kind, o.source AS source FROM (SELECT exec, start "
            "FROM ops GROUP BY exec, start HAVING count(*) > 1) c CROSS JOIN ops o ON o.exec = c.exec AND "
            "o.start = c.start"
        )
        for kind, table in self.device.items():
            alike = ", ".join(f"x.{quoted(column)}" for column in sorted(table.columns))
            self.db.execute(
                "DELETE FROM ops WHERE rowid IN (SELECT id FROM (SELECT w.id AS id, row_number() OVER (PARTITION BY "
                f"{alike} ORDER BY w.id) AS place FROM twins w CROSS JOIN {table.rows} x ON x.rowid = w.source "
                f"WHERE w.kind = {kind}) WHERE place > 1)"
            )

    def linked(self, table: Table) -> str:
        """SQL: the rows `x` of device work, with the launching call `l`."""
        return f"FROM {table.rows} x LEFT JOIN link l ON l.pid = x.globalPid AND l.corr = x.correlationId"

    def unlinked(self, kind: int, table: Table) -> str:
        """SQL: process, correlation and start of work that no call launched, without migrations."""
        return (
            f"SELECT x.globalPid AS pid, x.correlationId AS corr, x.start AS start {self.linked(table)} "
            f"WHERE l.call IS NULL AND NOT ({migrated(kind)}) AND {table.good}"
        )


_WORDS = {KERNEL: "kernel", SET: "memory set", GRAPH: "CUDA graph"}


def slices(
    events: Events, kernels: Mapping[int, Sequence[KernelUse]], kind_of: Callable[[object], CopyKind]
) -> dict[int, list[Slice]]:
    """Return by name the first MOST_SLICES operations of its last execution, by begin.

    `kernels`: those told of each name. `kind_of`: a copy's number → kind.
    """
    events.db.execute(
        "CREATE TABLE last AS SELECT name, max(e.id) AS exec, NULL AS began FROM execs e "
        "WHERE EXISTS (SELECT 1 FROM ops o WHERE o.exec = e.id) GROUP BY name"
    )
    events.db.execute("UPDATE last SET began = (SELECT min(o.start) FROM ops o WHERE o.exec = last.exec)")
    events.db.execute(
        "CREATE TABLE picked AS SELECT * FROM (SELECT l.name AS name, l.began AS began, o.kind AS kind, o.source AS "
        "source, o.start AS start, o.end AS end, row_number() OVER (PARTITION BY l.name ORDER BY o.start, o.kind, "
        f"o.source) AS place FROM last l CROSS JOIN ops o ON o.exec = l.exec) WHERE place <= {MOST_SLICES}"
    )
    places: dict[int, dict[tuple[object, object], int]] = defaultdict(dict)
    for index, told in kernels.items():
        for number, kernel in enumerate(told):
            shape = ",".join(map(str, (*kernel.grid, *kernel.block)))
            places[index].setdefault((kernel.name, shape), number)
    found: dict[int, list[tuple[int, Slice]]] = defaultdict(list)
    for kind, table in events.device.items():
        what, shape = "NULL", "NULL"
        if kind == COPY:
            what = "x.copyKind"
        elif kind == KERNEL:
            what, shape = "coalesce(x.demangledName, x.shortName)", " || ',' || ".join(f"x.{side}" for side in SHAPE)
        rows = events.rows(
            f"SELECT name, place, start, length, stream, {events.text('what') if kind == KERNEL else 'what'}, shape "
            "FROM (SELECT p.name AS name, p.place AS place, p.start - p.began AS start, p.end - p.start AS length, "
            f"{'x.streamId' if 'streamId' in table.columns else '0'} AS stream, {what} AS what, {shape} AS shape "
            f"FROM picked p CROSS JOIN {table.rows} x ON x.rowid = p.source WHERE p.kind = {kind})"
        )
        for index, place, start, length, stream, said, launched in rows:
            at = places[index].get((said, launched)) if kind == KERNEL else None
            one = Slice(
                name=f"copy {kind_of(said)}" if kind == COPY else "" if at is not None else _WORDS[kind],
                kernel=at,
                stream=stream if isinstance(stream, int) else 0,
                start=start * 1e-9,
                seconds=length * 1e-9,
            )
            found[index].append((place, one))
    return {index: [one for _, one in sorted(told, key=lambda item: item[0])] for index, told in found.items()}
