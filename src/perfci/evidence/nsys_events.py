"""Events of an nsys export, joined: which calls and which device work belong to which execution.

Every schema from 2.9 (nsys 2022) on: a table exists only where there were events of its kind, and columns are picked by
what the table has. All joins and sorts live in a temporary database on disk, so that memory does not grow with the
trace.

What belongs to an execution: API calls of its process that begin while its range is open, on any thread (autograd
launches the backward pass from threads of its own), on the thread of the range only those that also end in it; and
the device work they launched, whenever it ran. Work and calls are joined by process and correlation, which is unique
within a process only.
"""

import re
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from perfci.model.evidence import CallKind, Fault, FaultKind
from perfci.system.files import one_line

DOMAIN = "perfci"
"""The NVTX domain of execution ranges where they are not in the default one."""
PUSH_POP, DOMAIN_CREATE = 59, 75
RANGES = "(59, 60, 70, 71)"
"""Event types (ENUM_NSYS_EVENT_TYPE): of ranges all, push/pop and start/end, also those of imported text files."""
PROCESS = "-16777216"
"""~0xFFFFFF: a global thread id & this is its process's."""
FAR = 2**56
"""ns, 2.3 years: no time of a trace is beyond."""
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_LFS = b"version https://git-lfs"
_MAGIC = b"SQLite format 3\0"
# What nsys says (in DIAGNOSTIC_EVENT, before 2024 in StringIds) when events are missing from the trace. Its "Not all
# CUDA events might have been collected." is no such message: whole traces have it as well.
LOSSES = (
    "CUPTI dropped %", "Number of incomplete CUPTI events dropped%", "%CUPTI events might be missing%",
    "Could not parse % CUPTI activity records%", "CUPTI buffer allocation limit %", "%events were lost%",
    "%events were dropped%", "%could not be stored due to tool buffer overflow%",
)  # fmt: skip
_MIGRATIONS = "(11, 12, 13)"  # the UVM ones: nobody called for them, so they have no correlation
_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_KINDS: tuple[tuple[CallKind, re.Pattern[str]], ...] = (
    ("synchronisation", re.compile(r"(cuda|cu)\w*Synchronize")),
    ("launch", re.compile(r"cudaLaunch(?!HostFunc)\w*|cuLaunch(?!HostFunc)\w*|cudaGraphLaunch|cuGraphLaunch")),
    (
        "allocation",
        re.compile(
            r"cuda(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemPool)\w*"
            r"|cuMem(Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Release|Map|Unmap|Address|Pool)\w*"
            r"|cu(Array|MipmappedArray)(3D)?(Create|Destroy)\w*"
        ),
    ),
    ("copy", re.compile(r"cuda(Memcpy|MemPrefetch)\w*|cuMem(cpy|Prefetch)\w*")),
)
_CAPTURES = {
    "cudaStreamBeginCapture": 1, "cuStreamBeginCapture": 1, "cudaStreamBeginCaptureToGraph": 1,
    "cuStreamBeginCaptureToGraph": 1, "cudaStreamEndCapture": 0, "cuStreamEndCapture": 0,
}  # fmt: skip
_LOST_RANGES = (
    "push ranges through torch.cuda.nvtx, or with the package nvtx 0.2.11: nsys 2023.4 loses those of nvtx 0.2.12 to "
    "0.2.17"
)
AGAIN = "capture and export again"


# Device work, by its number in `ops`.
_DEVICE = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernels"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "copies"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memory sets"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUDA graphs"),
)
KERNEL, COPY, SET, GRAPH = range(4)


class Unreadable(Exception):
    """This is no trace that can be read: `text` is one line for people."""

    def __init__(self, text: str, remedy: str = AGAIN) -> None:
        super().__init__(text)
        self.text, self.remedy = text, remedy


def plain_call(name: str) -> str:
    """The name of a CUDA API function without suffixes such as `_v3020`, `_v2`, `_ptsz`."""
    return _SUFFIX.sub("", name)


def call_kind(name: str) -> CallKind:
    """What a function of the CUDA runtime or driver API, named without suffix, does. Memory sets are `other`."""
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), "other")


def fault(kind: FaultKind, text: str, remedy: str) -> Fault:
    """A fault of nsys, its text in one line."""
    return Fault(tool="nsys", kind=kind, text=one_line(text)[:1000], remedy=remedy)


def damage(error: sqlite3.Error, limit: float) -> str:
    """What SQLite's error says of the file. Raises it where it says something of the SQL."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return f"not read within {limit:g} s"
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return f"no room for temporary files in {tempfile.gettempdir()} ({error})"
    if code == sqlite3.SQLITE_ERROR and "overflow" not in str(error):
        raise error
    return f"damaged ({error})"


def look(path: Path) -> None:
    """Raise Unreadable where the first bytes say that this is no whole SQLite file."""
    if not path.is_file():
        raise Unreadable("there is no such file")
    size = path.stat().st_size
    with path.open("rb") as handle:
        head = handle.read(100)
    if not head:
        raise Unreadable("empty")
    if head.startswith(_LFS):
        raise Unreadable("a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`")
    if not head.startswith(_MAGIC):
        raise Unreadable("no SQLite file", "name the .sqlite that `nsys export --type sqlite` wrote")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    # https://www.sqlite.org/fileformat.html, 1.3.7: the size in the header holds where both counters agree.
    if head[24:28] == head[92:96] and size < page * int.from_bytes(head[28:32], "big"):
        raise Unreadable(f"truncated: {size} of {page * int.from_bytes(head[28:32], 'big')} bytes")


@contextmanager
def open_trace(path: Path, scratch: Path, limit: float) -> Iterator[sqlite3.Connection]:
    """A connection to a database in `scratch`, with the trace attached, for reading only, as `t`."""
    db = sqlite3.connect(f"file:{quote(str(scratch / 'join.db'))}", uri=True, isolation_level=None)
    try:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**26)
        for pragma in (
            "temp_store = FILE", "journal_mode = OFF", "synchronous = OFF", "cache_size = -65536",
            "cell_size_check = ON", "trusted_schema = OFF", "automatic_index = OFF",
        ):  # fmt: skip
            db.execute(f"PRAGMA {pragma}").fetchall()
        try:
            db.execute(f"ATTACH 'file:{quote(str(path.resolve()))}?mode=ro&immutable=1' AS t")
        except (
            sqlite3.Error,
            UnicodeDecodeError,
        ):  # whatever it says, it is about the file, and it names the whole path
            raise Unreadable("damaged (its schema cannot be read)") from None
        deadline = time.monotonic() + limit
        db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
        # SQLite itself does not notice a page that stands for another, and would tell fewer events.
        (found,) = db.execute("PRAGMA t.quick_check(1)").fetchone()
        if found != "ok":
            raise Unreadable(f"damaged ({found.splitlines()[-1][:200]})")
        yield db
    finally:
        db.close()


class Table(NamedTuple):
    """An event table, whose rows with usable values satisfy `good`."""

    name: str
    columns: frozenset[str]
    good: str


class Events:
    """What of a trace belongs to which execution: tables of its own, filled from those of the trace.

    `execs` (an execution; `name` is an index into `names`), `calls` (API calls within), `ops` (device work: its kind,
    the row it stands in, the call that launched it) and `launched` (first start and last end of a call's work), all
    in ns. In whole captures there is one execution. `faults` are by name, `general` ones concern all; of the names in
    `lost` no sum is worth telling.
    """

    def __init__(self, db: sqlite3.Connection, names: list[str], whole: bool) -> None:
        self.db, self.names, self.whole = db, names, whole
        tables = db.execute("SELECT name FROM t.sqlite_master WHERE type = 'table' AND rootpage > 0")
        self.tables = {str(name) for (name,) in tables}
        self.faults: dict[str, list[Fault]] = {name: [] for name in names}
        self.general: list[Fault] = []
        self.lost: set[str] = set()
        self.functions: dict[Any, str] = {}
        self.device: dict[int, Table] = {}

    # ------------------------------------------------------------ tables and their columns

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; none where there is no such table."""
        return frozenset(row[1] for row in self.db.execute(f"PRAGMA t.table_info({_quoted(table)})"))

    def table(self, name: str, needs: Sequence[str], more: str = "1") -> Table | None:
        """The event table of this name; None where there is none. Raises Unreadable where it lacks a column.

        `more` is a condition on its own columns for a row to be usable.
        """
        if name not in self.tables:
            return None
        columns = self.columns(name)
        if missing := [column for column in ("start", "end", *needs) if column not in columns]:
            raise Unreadable(f"table {name} has no column {missing[0]}", "use an nsys of 2022 or later")
        integers = " AND ".join(f"typeof(x.{column}) = 'integer'" for column in ("start", "end", *needs))
        times = f"x.start BETWEEN {-FAR} AND {FAR} AND x.end BETWEEN x.start AND {FAR}"
        return Table(name, columns, f"(({integers} AND {times} AND {more}) IS TRUE)")

    def text(self, reference: str) -> str:
        """SQL for a string that a column holds itself or as a number in StringIds."""
        looked = f"(SELECT s.value FROM t.StringIds s WHERE s.id = {reference})"
        return f"CASE typeof({reference}) WHEN 'text' THEN {reference} ELSE {looked} END"

    def note(self, name: str, kind: FaultKind, text: str, remedy: str = AGAIN) -> None:
        """Add a fault of this name."""
        self.faults[name].append(fault(kind, text, remedy))

    def rows(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """What a query answers, row by row."""
        return self.db.execute(sql, parameters)

    def one(self, sql: str, *parameters: Any) -> Any:
        """The one value a query answers."""
        return self.db.execute(sql, parameters).fetchone()[0]

    # ------------------------------------------------------------ the course of it

    def collect(self) -> None:
        """Fill the tables and name what is missing. Raises Unreadable where this is no trace that can be read."""
        known = {"NVTX_EVENTS", "PROCESSES", "META_DATA_EXPORT", "EXPORT_META_DATA", "ANALYSIS_DETAILS"}
        if "StringIds" not in self.tables or not (known & self.tables):
            remedy = "name the .sqlite that `nsys export --type sqlite` wrote"
            raise Unreadable("no export of nsys: its tables are missing", remedy)
        if missing := {"id", "value"} - self.columns("StringIds"):
            raise Unreadable(f"table StringIds has no column {min(missing)}", "use an nsys of 2022 or later")
        # Which name an execution, a call and an operation belong to is its number in `names`.
        self.db.executescript("""
            CREATE TABLE execs (id INTEGER PRIMARY KEY, name INT, event INT, pid INT, tid INT, start INT, end INT);
            CREATE TABLE calls (id INTEGER PRIMARY KEY, exec INT, pid INT, tid INT, start INT, end INT, fn, corr INT,
                                failed INT);
            CREATE TABLE link (pid INT, corr INT, call INT, exec INT, PRIMARY KEY (pid, corr)) WITHOUT ROWID;
            CREATE TABLE ops (exec INT, call INT, kind INT, source INT, start INT, end INT);
        """)
        self.nvtx = self.table("NVTX_EVENTS", ("eventType", "globalTid"))
        if self.whole:
            self.db.execute(f"INSERT INTO execs VALUES (1, 0, NULL, 0, 0, {-FAR}, {FAR})")
        else:
            self.executions()
        self.calls()
        self.operations()
        self.completeness()
        self.diagnostics()

    def executions(self) -> None:
        """Fill `execs` with the whole ranges of the names asked for; name what is wrong with the others."""
        if self.nvtx is None:
            for name in self.names:
                self.note(name, "empty", "no NVTX range is in the trace", _LOST_RANGES)
            return
        has = self.nvtx.columns
        if not has & {"text", "textId"}:
            raise Unreadable("table NVTX_EVENTS has no column text", "use an nsys of 2022 or later")
        self.db.execute("CREATE TABLE wanted (name INT, key, PRIMARY KEY (key)) WITHOUT ROWID")
        self.db.executemany("INSERT INTO wanted VALUES (?, ?)", enumerate(self.names))
        self.db.execute(
            "INSERT OR IGNORE INTO wanted SELECT w.name, s.id FROM t.StringIds s CROSS JOIN wanted w ON w.key = s.value"
        )
        text = "x.text" if "text" in has else "NULL"
        identity = "x.textId" if "textId" in has else "NULL"
        self.db.execute("CREATE TABLE foreign_domains (pid INT, id INT, PRIMARY KEY (pid, id)) WITHOUT ROWID")
        elsewhere = "0"
        if "domainId" in has:
            spoken = f"coalesce({self.text(text)}, {self.text(identity)})"
            self.db.execute(
                f"INSERT OR IGNORE INTO foreign_domains SELECT x.globalTid & {PROCESS}, x.domainId "
                f"FROM t.NVTX_EVENTS x WHERE x.eventType = {DOMAIN_CREATE} AND {spoken} <> ? "
                "AND x.globalTid IS NOT NULL AND x.domainId IS NOT NULL",
                (DOMAIN,),
            )
            elsewhere = (
                f"EXISTS (SELECT 1 FROM foreign_domains f WHERE f.pid = (x.globalTid & {PROCESS}) "
                "AND f.id = x.domainId)"
            )
        source = (
            f"FROM t.NVTX_EVENTS x JOIN wanted w ON w.key = coalesce({identity}, {text}) "
            f"WHERE x.eventType = {PUSH_POP} AND NOT {elsewhere}"
        )
        good = f"({self.nvtx.good} AND x.end > x.start)"
        for index, cut, bad in self.rows(
            f"SELECT w.name, total(x.end IS NULL), total(x.end IS NOT NULL) {source} AND NOT {good} GROUP BY 1"
        ):
            if cut:
                said = f"of its executions {cut:.0f} did not end before the capture did: left out"
                self.note(self.names[index], "incomplete", said, "let the capture last longer")
            if bad:
                self.note(self.names[index], "incomplete", f"{bad:.0f} of its executions have no usable times")
        self.db.execute(
            "INSERT INTO execs (name, event, pid, tid, start, end) SELECT w.name, x.rowid, "
            f"x.globalTid & {PROCESS}, x.globalTid, x.start, x.end {source} AND {good} ORDER BY 3, 5, 6 DESC"
        )
        self.db.execute("CREATE INDEX execs_at ON execs (pid, start)")
        self.overlaps()
        seen = {index for (index,) in self.rows("SELECT DISTINCT name FROM execs")}
        pushed = self.one(f"SELECT count(*) FROM t.NVTX_EVENTS WHERE eventType = {PUSH_POP}")
        for index, name in enumerate(self.names):
            if index not in seen and not self.faults[name]:
                if pushed:
                    remedy = "see in the log whether the case was executed"
                    self.note(name, "empty", f"no range of this name among {pushed} in the trace", remedy)
                else:
                    self.note(name, "empty", "no NVTX push/pop range is in the trace", _LOST_RANGES)
        nameless = self.one(
            f"SELECT count(*) FROM t.NVTX_EVENTS x WHERE x.eventType = {PUSH_POP} AND {text} IS NULL "
            f"AND NOT EXISTS (SELECT 1 FROM t.StringIds s WHERE s.id = {identity})"
        )
        if nameless:
            self.general.append(fault("incomplete", f"{nameless} NVTX ranges have no name", AGAIN))

    def overlaps(self) -> None:
        """Leave out executions that overlap others of their process: whose a call is could not be told."""
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

    def execution_of(self, row: str) -> str:
        """SQL for the execution of `row`'s process that began last before `row` did."""
        if self.whole:
            return "1"
        return (
            f"(SELECT e.id FROM execs e WHERE e.pid = {row}.pid AND e.start <= {row}.start "
            "ORDER BY e.start DESC LIMIT 1)"
        )

    def calls(self) -> None:
        """Fill `calls` with the API calls within executions, and `link` with what their work is found by."""
        for name in _CALLS:
            table = self.table(name, ("globalTid",))
            if table is None:
                continue
            if missing := {"correlationId", "nameId"} - table.columns:
                raise Unreadable(f"table {name} has no column {min(missing)}", "use an nsys of 2022 or later")
            failed = "x.returnValue <> 0" if "returnValue" in table.columns else "0"
            inside = "" if self.whole else "WHERE y.start <= e.end AND (y.tid <> e.tid OR y.end <= e.end)"
            good = (
                f"SELECT x.globalTid & {PROCESS} AS pid, x.globalTid AS tid, x.start AS start, x.end AS end, "
                f"x.nameId AS fn, x.correlationId AS corr, {failed} AS failed FROM t.{name} x WHERE {table.good}"
            )
            self.db.execute(
                "INSERT INTO calls (exec, pid, tid, start, end, fn, corr, failed) SELECT e.id, y.pid, y.tid, y.start, "
                f"y.end, y.fn, y.corr, y.failed FROM ({good}) y "
                f"CROSS JOIN execs e ON e.id = {self.execution_of('y')} {inside}"
            )
            if bad := self.one(f"SELECT count(*) FROM t.{name} x WHERE NOT {table.good}"):
                self.everywhere(f"{bad} API calls have no usable times")
        for fn, name in self.rows(f"SELECT c.fn, {self.text('c.fn')} FROM (SELECT DISTINCT fn FROM calls) c"):
            if not isinstance(name, str) or not name:
                for index in self.touched("c.fn IS ?", fn):
                    self.note(self.names[index], "incomplete", "some of its API calls have no name")
            else:
                self.functions[fn] = plain_call(name)
        known = "FROM calls WHERE typeof(corr) = 'integer'"
        self.db.execute(f"INSERT OR IGNORE INTO link SELECT pid, corr, id, exec {known} ORDER BY pid, corr, id")
        if self.one("SELECT count(*) FROM link") < self.one(f"SELECT count(*) {known}"):
            ambiguous = f"SELECT pid, corr {known} GROUP BY pid, corr HAVING count(DISTINCT exec) > 1"
            for index in self.touched(f"(c.pid, c.corr) IN ({ambiguous})"):
                self.note(self.names[index], "incomplete", "several of its API calls share a correlation")
        calling = [
            name for name in _CALLS if name in self.tables and self.one(f"SELECT EXISTS (SELECT 1 FROM t.{name})")
        ]
        if not calling and self.cuda_was_traced():
            remedy = "see in the log whether CUDA was found; without a GPU trace nvtx only"
            self.general.append(fault("empty", "no CUDA API call is in the trace", remedy))

    def cuda_was_traced(self) -> bool:
        """Whether nsys was told to trace CUDA; true where the export does not say."""
        if not {"name", "value"} <= self.columns("META_DATA_CAPTURE"):
            return True
        said = [v for (v,) in self.rows("SELECT value FROM t.META_DATA_CAPTURE WHERE name LIKE '%COLLECT_CUDA_TRACE'")]
        return not said or any(value != "false" for value in said)

    def touched(self, condition: str, *parameters: Any) -> list[int]:
        """The names (their indices) with a call `c` that this condition holds for."""
        sql = f"SELECT DISTINCT e.name FROM calls c JOIN execs e ON e.id = c.exec WHERE {condition}"
        return [index for (index,) in self.rows(sql, *parameters)]

    def everywhere(self, text: str, remedy: str = AGAIN) -> None:
        """Add a fault that concerns all names."""
        self.general.append(fault("incomplete", text, remedy))

    def operations(self) -> None:
        """Fill `ops` with the device work of executions."""
        shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        needs: dict[int, tuple[tuple[str, ...], str]] = {
            KERNEL: (shape, " AND ".join(f"x.{side} BETWEEN 1 AND 4294967295" for side in shape)),
            COPY: (("bytes", "copyKind"), f"x.bytes BETWEEN 0 AND {2**53}"),
        }
        for kind, (name, word) in enumerate(_DEVICE):
            columns, condition = needs.get(kind, ((), "1"))
            table = self.table(name, columns, condition)
            if table is None:
                continue
            if "correlationId" not in table.columns:
                raise Unreadable(f"table {name} has no column correlationId", "use an nsys of 2022 or later")
            self.device[kind] = table
            if kind == KERNEL and "demangledName" not in table.columns and "shortName" not in table.columns:
                raise Unreadable(f"table {name} has no column demangledName", "use an nsys of 2022 or later")
            pid = self.process_of(table)
            linked = f"FROM t.{name} x LEFT JOIN link l ON l.pid = {pid} AND l.corr = x.correlationId"
            for index, count in self.rows(
                f"SELECT e.name, count(*) {linked} LEFT JOIN execs e ON e.id = l.exec WHERE NOT {table.good} GROUP BY 1"
            ):
                text = f"{count} {word} have no usable values"
                if self.whole or index is not None:
                    self.note(self.names[index or 0], "incomplete", text)
                    self.lost.add(self.names[index or 0])
                else:
                    self.everywhere(text)
            if self.whole:
                self.db.execute(
                    f"INSERT INTO ops SELECT 1, l.call, {kind}, x.rowid, x.start, x.end {linked} WHERE {table.good}"
                )
                continue
            self.db.execute(
                f"INSERT INTO ops SELECT l.exec, l.call, {kind}, x.rowid, x.start, x.end "
                f"{linked.replace('LEFT JOIN', 'CROSS JOIN')} WHERE {table.good}"
            )
            migrated = "0"
            if kind == COPY:
                migrated = f"(x.copyKind IN {_MIGRATIONS})"
                self.db.execute("CREATE TABLE ended (exec INTEGER PRIMARY KEY, end INT)")
                self.db.execute("INSERT INTO ended SELECT exec, max(end) FROM ops GROUP BY exec")
                self.db.execute(
                    f"INSERT INTO ops SELECT e.id, NULL, {kind}, y.id, y.start, y.end FROM (SELECT x.rowid AS id, "
                    f"{pid} AS pid, x.start AS start, x.end AS end {linked} WHERE l.call IS NULL AND {migrated} AND "
                    f"{table.good}) y CROSS JOIN execs e ON e.id = {self.execution_of('y')} "
                    "LEFT JOIN ended d ON d.exec = e.id WHERE y.start <= max(e.end, coalesce(d.end, e.end))"
                )
            self.strays(table, linked, pid, migrated, word)
        self.db.execute("CREATE INDEX ops_of ON ops (exec, start)")
        if not self.whole:
            self.bystanders()

    def bystanders(self) -> None:
        """Name device work beside executions that launched none: another process's, or their times are wrong."""
        idle = "SELECT name FROM execs EXCEPT SELECT e.name FROM ops o JOIN execs e ON e.id = o.exec"
        if not self.device or not self.one(f"SELECT EXISTS ({idle})"):
            return
        self.db.execute("CREATE INDEX execs_by_time ON execs (start)")
        for kind, table in self.device.items():
            for index, count in self.rows(
                f"SELECT e.name, count(*) FROM t.{table.name} x CROSS JOIN execs e ON e.id = (SELECT id FROM execs "
                f"WHERE start <= x.start ORDER BY start DESC LIMIT 1) WHERE {table.good} AND x.start <= e.end "
                f"AND e.name IN ({idle}) GROUP BY 1"
            ):
                text = f"{count} {_DEVICE[kind][1]} ran during its executions and it launched none: they are left out"
                self.note(self.names[index], "incomplete", text, "launch device work in the case's own process")

    def strays(self, table: Table, linked: str, pid: str, migrated: str, word: str) -> None:
        """Name device work that ran during a case's executions and was launched outside of all.

        Cases are kept apart by a synchronisation: it comes from a thread that works on between executions, or calls
        are missing or have wrong times.
        """
        unlinked = (
            f"SELECT {pid} AS pid, x.start AS start {linked} WHERE l.call IS NULL AND NOT {migrated} AND {table.good}"
        )
        for index, count in self.rows(
            f"SELECT e.name, count(*) FROM ({unlinked}) y CROSS JOIN execs e ON e.id = {self.execution_of('y')} "
            "WHERE y.start <= e.end GROUP BY 1"
        ):
            text = f"{count} {word} ran during its executions and were launched outside of them: they are left out"
            self.note(self.names[index], "incomplete", text, "launch device work within the executions")

    def process_of(self, table: Table) -> str:
        """SQL for the process that a row of device work belongs to."""
        if "globalPid" in table.columns:
            return "x.globalPid"
        pids = [pid for (pid,) in self.rows("SELECT DISTINCT pid FROM calls LIMIT 2")]
        if len(pids) > 1:
            raise Unreadable(f"table {table.name} has no column globalPid", "profile one process")
        return str(pids[0]) if pids else "0"

    # ------------------------------------------------------------ what is missing

    def completeness(self) -> None:
        """Name launches and copies whose device work is not in the trace, and graphs whose kernels are not."""
        for index, count in self.rows(
            f"SELECT e.name, count(*) FROM ops o JOIN execs e ON e.id = o.exec WHERE o.kind = {GRAPH} GROUP BY 1"
        ):
            text = f"{count} launches of CUDA graphs were traced as wholes: their kernels are not in the trace"
            self.note(self.names[index], "incomplete", text, "capture with --cuda-graph-trace=node")
        self.db.execute("CREATE TABLE launched (call INTEGER PRIMARY KEY, start INT, end INT)")
        self.db.execute(
            "INSERT INTO launched SELECT call, min(start), max(end) FROM ops WHERE call IS NOT NULL GROUP BY call"
        )
        self.db.execute("CREATE TABLE working (fn PRIMARY KEY, works INT, begins INT) WITHOUT ROWID")
        told = [(fn, _works(name), _CAPTURES.get(name)) for fn, name in self.functions.items()]
        self.db.executemany("INSERT OR IGNORE INTO working VALUES (?, ?, ?)", told)
        # What is captured into a graph does not run then.
        self.db.execute("CREATE TABLE captures (tid INT, start INT, begins INT)")
        self.db.execute(
            "INSERT INTO captures SELECT c.tid, c.start, w.begins FROM calls c JOIN working w ON w.fn = c.fn "
            "WHERE w.begins IS NOT NULL"
        )
        self.db.execute("CREATE INDEX captures_at ON captures (tid, start)")
        for index, all_, without in self.rows(
            "SELECT e.name, count(*), total(l.call IS NULL) FROM calls c JOIN execs e ON e.id = c.exec "
            "LEFT JOIN launched l ON l.call = c.id WHERE c.fn IN (SELECT fn FROM working WHERE works) AND NOT c.failed "
            "AND coalesce((SELECT p.begins FROM captures p WHERE p.tid = c.tid AND p.start <= c.start "
            "ORDER BY p.start DESC LIMIT 1), 0) = 0 GROUP BY 1"
        ):
            name = self.names[index]
            if without == all_:
                text = f"{all_} launches, copies or sets, and no device work of them in the trace"
                remedy = (
                    "update nsys to fit the driver; in a sandbox such as gVisor or WSL set "
                    "NSYS_CONFIG_DIRECTIVES=CuptiUseRawGpuTimestamps=false"
                )
                self.note(name, "empty", text, remedy)
                self.lost.add(name)
            elif without:
                text = f"{without:.0f} of {all_} launches, copies or sets have no device work in the trace"
                self.note(name, "incomplete", text, "profile fewer executions")

    def diagnostics(self) -> None:
        """Name what nsys itself says was lost."""
        texts: list[str] = []
        like = " OR ".join(["x.text LIKE ?"] * len(LOSSES))
        if "DIAGNOSTIC_EVENT" in self.tables and {"text", "severity"} <= self.columns("DIAGNOSTIC_EVENT"):
            level = "x.severity"
            if {"id", "name"} <= self.columns("ENUM_DIAGNOSTIC_SEVERITY_LEVEL"):
                level = "(SELECT n.name FROM t.ENUM_DIAGNOSTIC_SEVERITY_LEVEL n WHERE n.id = x.severity)"
            sql = (
                "SELECT DISTINCT substr(x.text, 1, 500) FROM t.DIAGNOSTIC_EVENT x "
                f"WHERE lower({level}) IN ('error', 'fatal') OR {like} LIMIT 20"
            )
            texts += [str(text) for (text,) in self.rows(sql, *LOSSES)]
        strings = "(SELECT value AS text FROM t.StringIds)"
        sql = f"SELECT DISTINCT substr(x.text, 1, 500) FROM {strings} x WHERE {like} LIMIT 20"
        texts += [str(text) for (text,) in self.rows(sql, *LOSSES)]
        for text in dict.fromkeys(texts):
            self.everywhere(f"nsys says: {text}", "profile fewer executions, or update nsys")


def _works(function: str) -> bool:
    """Whether a call of this function puts work on the device, where it succeeds."""
    kind = call_kind(function)
    moves = kind in ("launch", "copy") and "Prefetch" not in function
    return moves or function.startswith(("cudaMemset", "cuMemset"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
