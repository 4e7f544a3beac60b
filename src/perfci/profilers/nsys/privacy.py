"""nsys stores the environment of every process that it sees in four places of the export: META_DATA_CAPTURE and
TARGET_INFO_SYSTEM_ENV (its own and the program's), StringIds and with it ProcessStreams (as root, of every process on
the machine, and the program's output)."""

import functools
import re
import shutil
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.model.base import MachineError
from perfci.model.text import escaped
from perfci.profilers.base import trimmed
from perfci.profilers.nsys.export import harden, real_tables
from perfci.profilers.nsys.missing import LOSSES
from perfci.system.bounded import run
from perfci.system.files import disk_error

# ---------------------------------------------------------------- what nsys may see


def environment(base: Mapping[str, str], written: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return what a process under nsys gets of `base`, as `trimmed`."""
    # Else nsys takes only registered strings for the names of ranges that open a capture.
    return trimmed(base, written) | {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


@dataclass(frozen=True, slots=True)
class Isolation:
    """How nsys is kept from other processes' environments."""

    prefix: tuple[str, ...]
    """Words before its command line; empty where nothing can be done."""
    holds: bool
    """It sees no process but its own."""
    text: str


@functools.cache
def isolation(user: tuple[str, ...] = ()) -> Isolation:
    """Return the isolation that works here: a PID namespace, as root or in a user namespace, which dies with its first
    process, daemons included.

    `user`: words that start a command as nsys's user, where another.
    """
    unshare = shutil.which("unshare")
    ways = [
        ["--kill-child"],
        ["--kill-child", "--user", "--map-current-user"],
        ["--kill-child", "--user", "--map-root-user"],
    ]
    if unshare is not None:
        for way in ways:
            prefix = (unshare, *way, "--pid", "--fork", "--mount-proc")
            if _alone((*user, *prefix)):
                how = "in a user namespace" if "--user" in way else "as root"
                return Isolation(prefix, True, f"nsys runs in a PID namespace of its own, opened {how}")
    why = "unshare is not installed" if unshare is None else "this user may not open a PID namespace"
    whose = "of the code under test, whose user it runs as" if user else "of all processes that /proc shows this user"
    return Isolation((), False, f"{why}: nsys sees the environments {whose}")


def isolate(argv: Sequence[str], user: tuple[str, ...] = ()) -> list[str]:
    """Return `argv` in a PID namespace, where there can be one."""
    return [*isolation(user).prefix, *argv]


def _alone(prefix: Sequence[str]) -> bool:
    script = 'read -r name </proc/1/comm && [ "$$" = 1 ] && [ "$name" = sh ]'
    return run([*prefix, "/bin/sh", "-c", script], 20).fine


# ---------------------------------------------------------------- what may be kept


def scrub(sqlite: Path, copy: Path) -> None:
    """Write a copy of an export without environment, arguments, user, host and paths; the program's output; strings
    that no event refers to; names of untraced processes and threads.

    Raises MachineError, and leaves no copy, where that fails.
    """
    try:
        try:
            shutil.copyfile(sqlite, copy)
            _scrub(copy)
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise disk_error("scrubbed", sqlite, error) from None
    except (sqlite3.Error, UnicodeDecodeError) as error:
        text = f"{escaped(sqlite)}: cannot be scrubbed ({escaped(error)}): do not publish it; export it again"
        raise MachineError(text) from None


_CAPTURE = ("ENVIRONMENT", "ARGUMENT", "COMMAND", "USER_NAME", "WORKING_DIR", "DISPLAY_NAME")
_EXPORT = ("PATH", "HOST", "USER", "FILE")
_SYSTEM = ("Environment", "Hostname", "Path", "InstallDir")
_REFERENCE = re.compile(r'^\s*"?(\w+)"?\s[^\n]*--[^\n]*REFERENCES StringIds', re.MULTILINE)
_REFERENCES = {"nameId", "textId", "demangledName", "shortName", "mangledName", "jsonTextId"}


def _scrub(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        harden(db)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE", "foreign_keys = OFF"):
            db.execute(f"PRAGMA {pragma}").fetchall()
        real = real_tables(db)
        made: dict[str, str] = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type <> 'index'"))
        # Nsys makes none of them. A trigger would write while this deletes, and nobody knows what a view shows.
        if strange := sorted(made.keys() - real - {"sqlite_sequence"}):
            raise sqlite3.DatabaseError(f"it has {strange[0][:80]}, which is no table")
        tables = {name: made[name] for name in real}
        columns = {table: {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')} for table in tables}
        for table, words in (
            ("META_DATA_CAPTURE", _CAPTURE), ("META_DATA_EXPORT", _EXPORT), ("EXPORT_META_DATA", _EXPORT),
            ("TARGET_INFO_SYSTEM_ENV", _SYSTEM),
        ):  # fmt: skip
            for word in words if "name" in columns.get(table, ()) else ():
                db.execute(f"DELETE FROM {table} WHERE name LIKE ?", (f"%{word}%",))
        for table in tables:
            # Callchains name the folders of libraries and programs.
            if table == "ProcessStreams" or "ENVIRON" in table.upper() or table.upper().endswith("CALLCHAINS"):
                db.execute(f'DELETE FROM "{table}"')
        _scrub_processes(db, columns)
        if {"id", "value"} <= columns.get("StringIds", set()):
            _scrub_strings(db, tables, columns)
        db.execute("VACUUM")
    finally:
        db.close()


def _scrub_processes(db: sqlite3.Connection, columns: Mapping[str, set[str]]) -> None:
    db.execute("CREATE TEMP TABLE traced (pid INTEGER PRIMARY KEY)")
    for table, has in columns.items():
        if table.startswith(("CUPTI_", "NVTX_")):
            for column in {"globalPid", "globalTid"} & has:
                db.execute(
                    f'INSERT OR IGNORE INTO traced SELECT DISTINCT {column} & -16777216 FROM "{table}" '
                    f"WHERE typeof({column}) = 'integer'"
                )
    for table, column in (("PROCESSES", "globalPid"), ("ThreadNames", "globalTid")):
        if column in columns.get(table, ()):
            db.execute(
                f"DELETE FROM {table} WHERE {column} IS NULL OR ({column} & -16777216) NOT IN (SELECT pid FROM traced)"
            )


def _scrub_strings(db: sqlite3.Connection, tables: Mapping[str, str], columns: Mapping[str, set[str]]) -> None:
    """But for those that events refer to, and nsys's messages of lost events."""
    db.execute("CREATE TEMP TABLE kept (id INTEGER PRIMARY KEY)")
    for table, sql in tables.items():
        if table == "StringIds":
            continue
        for column in (set(_REFERENCE.findall(sql or "")) | _REFERENCES) & columns[table]:
            db.execute(
                f'INSERT OR IGNORE INTO kept SELECT DISTINCT "{column}" FROM "{table}" '
                f"WHERE typeof(\"{column}\") = 'integer'"
            )
    said = " OR ".join(["value LIKE ?"] * len(LOSSES))
    db.execute(f"DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM kept) AND NOT ({said})", LOSSES)
    # An environment is NAME=value, each ended by a NUL: no name of an event has one.
    db.execute("UPDATE StringIds SET value = '(removed)' WHERE instr(CAST(value AS BLOB), x'00') > 0")
