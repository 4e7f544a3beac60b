"""An nsys export as a database, of every schema from 2.9 (nsys 2022) on: a table exists only where there were events of
its kind, and columns are picked by what it has."""

import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from perfci.model.text import escaped
from perfci.profilers.faults import fault as any_fault
from perfci.system.bounded import Unread, regular

FAR = 2**56
"""ns, 2.3 years: no time of a trace is beyond."""
LARGEST = 8 * 2**30
"""Bytes: eight times the largest exported report."""
LONGEST = 2**26
"""Bytes of a value, such as the traced program's output."""
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_LFS = b"version https://git-lfs"
_MAGIC = b"SQLite format 3\0"
NEWER = "use an nsys of 2022 or later"
AGAIN = "capture and export again"

fault = partial(any_fault, "nsys", "trace")


class BadExport(Exception):
    """Why an export cannot be read, in one line."""

    def __init__(self, text: str, remedy: str = AGAIN) -> None:
        super().__init__(text)
        self.text, self.remedy = text, remedy


def damage(error: sqlite3.Error, limit: float) -> str:
    """Return SQLite's error of the file; raise one of the SQL."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return f"not read within {limit:g} s"
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return f"no room for temporary files in {tempfile.gettempdir()} ({error})"
    if code == sqlite3.SQLITE_ERROR and "overflow" not in str(error):
        raise error
    return f"damaged ({error})"


def check(path: Path) -> None:
    """Raise BadExport unless this is an ordinary file that begins as a whole SQLite file."""
    try:
        size = regular(path, LARGEST)
    except Unread as why:
        raise BadExport(str(why)) from None
    with path.open("rb") as handle:
        head = handle.read(100)
    if not head:
        raise BadExport("empty")
    if head.startswith(_LFS):
        raise BadExport("a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`")
    if not head.startswith(_MAGIC):
        raise BadExport("no SQLite file", "name the .sqlite that `nsys export --type sqlite` wrote")
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    # https://www.sqlite.org/fileformat.html, 1.3.7: the size in the header holds where both counters agree.
    if head[24:28] == head[92:96] and size < page * int.from_bytes(head[28:32], "big"):
        raise BadExport(f"truncated: {size} of {page * int.from_bytes(head[28:32], 'big')} bytes")


def harden(db: sqlite3.Connection) -> None:
    """Have nothing in a file run functions, or make a value of more than LONGEST bytes."""
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 2**20)  # an attached schema's as well
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        db.execute(f"PRAGMA {pragma}").fetchall()


def real_tables(db: sqlite3.Connection, schema: str = "main") -> set[str]:
    """Return tables with rows: a view or virtual table in its place is a stranger's program."""
    found = db.execute(
        f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE%'"
    )
    names = {str(name) for (name,) in found}
    # sqlite_master is data of the file, and can lie; this is what was parsed.
    if sqlite3.sqlite_version_info >= (3, 37):
        names &= {str(row[1]) for row in db.execute(f"PRAGMA {schema}.table_list") if row[2] == "table"}
    return names


@contextmanager
def open_trace(path: Path, scratch: Path, limit: float) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a database in `scratch`, with the trace attached read-only as `t`."""
    db = sqlite3.connect(f"file:{quote(str(scratch / 'join.db'))}", uri=True, isolation_level=None)
    try:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        harden(db)
        for pragma in (
            "temp_store = FILE", "journal_mode = OFF", "synchronous = OFF", "cache_size = -65536",
            "automatic_index = OFF",
        ):  # fmt: skip
            db.execute(f"PRAGMA {pragma}").fetchall()
        try:
            db.execute(f"ATTACH 'file:{quote(str(path.resolve()))}?mode=ro&immutable=1' AS t")
        except (sqlite3.Error, UnicodeDecodeError):
            # Whatever it says is about the file, and it names the whole path.
            raise BadExport("damaged (its schema cannot be read)") from None
        deadline = time.monotonic() + limit
        db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
        # SQLite itself does not notice a page that stands for another, and would tell fewer events.
        (found,) = db.execute("PRAGMA t.quick_check(1)").fetchone()
        if found != "ok":
            raise BadExport(f"damaged ({found.splitlines()[-1][:200]})")
        yield db
    finally:
        db.close()


class Table(NamedTuple):
    """An event table, whose usable rows satisfy `good`."""

    name: str
    columns: frozenset[str]
    good: str
    rows: str
    """SQL, each with a `rowid`."""


class Export:
    """The tables of a trace attached as `t`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.tables = real_tables(db, "t")

    def columns(self, table: str) -> frozenset[str]:
        """Return a table's columns; none without the table."""
        if table not in self.tables:
            return frozenset()
        found = frozenset(row[1] for row in self.db.execute(f"PRAGMA t.table_info({quoted(table)})"))
        if any("\ufffd" in name for name in found):  # by which it could not be asked for
            raise BadExport(f"damaged (a column of {escaped(table)} has a name that is no UTF-8)")
        return found

    def table(
        self, name: str, needs: Sequence[str], more: str = "1", *, has: Sequence[str] = (), moment: bool = False
    ) -> Table | None:
        """Return the event table, or None. Raises BadExport where it lacks a column.

        `needs`: columns with integers in usable rows; `has`: further ones. `more`: SQL for usable rows. `moment`: its
        events have no end.
        """
        if name not in self.tables:
            return None
        columns = self.columns(name)
        needed = ("start", *needs) if moment else ("start", "end", *needs)
        if "rowid" in {column.lower() for column in columns}:
            raise BadExport(f"table {name} has a column rowid, as nsys writes none")
        if missing := [column for column in (*needed, *has) if column not in columns]:
            raise BadExport(f"table {name} has no column {missing[0]}", NEWER)
        integers = " AND ".join(f"typeof(x.{column}) = 'integer'" for column in needed)
        times = f"x.start BETWEEN {-FAR} AND {FAR}" + ("" if moment else f" AND x.end BETWEEN x.start AND {FAR}")
        try:
            self.db.execute(f"SELECT rowid FROM t.{name} LIMIT 0")
        except sqlite3.OperationalError:
            raise BadExport(f"table {name} numbers no rows, as nsys writes none") from None
        return Table(name, columns, f"(({integers} AND {times} AND {more}) IS TRUE)", f"t.{name}")

    def enumeration(self, table: str) -> dict[Any, str]:
        """Return number → name by a table of the export. Raises BadExport."""
        if table not in self.tables:
            raise BadExport(f"table {table} is missing, which says what its numbers are", NEWER)
        if missing := {"id", "name"} - self.columns(table):
            raise BadExport(f"table {table} has no column {min(missing)}", NEWER)
        rows = self.rows(f"SELECT id, name FROM t.{table} LIMIT 1000")
        return {number: name for number, name in rows if isinstance(name, str)}

    def facts(self, table: str, like: str) -> list[tuple[str, str]]:
        """Return names and values of a table of facts whose names match `like`."""
        if not {"name", "value"} <= self.columns(table):
            return []
        rows = self.rows(f"SELECT name, substr(value, 1, 100) FROM t.{table} WHERE name LIKE ? LIMIT 100", like)
        return [(str(name), str(value)) for name, value in rows if isinstance(value, str | int)]

    def text(self, reference: str) -> str:
        """SQL: a string in a column or, by number, in StringIds."""
        found = f"(SELECT s.value FROM t.StringIds s WHERE s.id = {reference})"
        return f"CASE typeof({reference}) WHEN 'text' THEN {reference} ELSE {found} END"

    def rows(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Run a query."""
        return self.db.execute(sql, parameters)

    def one(self, sql: str, *parameters: Any) -> Any:
        """Return a query's one value."""
        return self.db.execute(sql, parameters).fetchone()[0]


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
