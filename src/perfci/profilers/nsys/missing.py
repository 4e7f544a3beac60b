"""Faults for events missing from an nsys export: nsys itself exits 0 where it lost some."""

import re
from collections.abc import Iterable, Sequence

from perfci.profilers.cuda import work
from perfci.profilers.faults import CALLS, COPIES, COUNTED, KERNELS, MOVED, SETS
from perfci.profilers.nsys.events import (
    CALLING,
    CHANGED,
    COPY,
    DEVICE,
    GRAPH,
    KERNEL,
    PROCESS,
    RANGES,
    SET,
    Events,
)
from perfci.profilers.nsys.export import AGAIN, MEMORY, fault

ALIKE = "execute the same work each time, or capture again"

# What nsys says (in DIAGNOSTIC_EVENT, before 2024 in StringIds) when events are missing from the trace. Its "Not all
# CUDA events might have been collected." is no such message: whole traces have it as well.
LOSSES = (
    "CUPTI dropped %", "Number of incomplete CUPTI events dropped%", "%CUPTI events might be missing%",
    "Could not parse % CUPTI activity records%", "CUPTI buffer allocation limit %", "%events were lost%",
    "%events were dropped%", "%could not be stored due to tool buffer overflow%",
)  # fmt: skip
_TRACED = re.compile(r"\b(CUDA|CUPTI|NVTX)", re.IGNORECASE)
_EVENTS = re.compile(r"\b(CUDA|CUPTI|NVTX) (event|record|activit|buffer|trac|injection)", re.IGNORECASE)
_INJECTION = re.compile(r"injection", re.IGNORECASE)
_ELSEWHERE = re.compile(
    r"\b(CPU|perf|OS runtime|osrt|GPU metrics?|GPU context|OpenGL|Vulkan|DirectX|NIC|network|ETW|ftrace|sampl\w*|"
    r"symbols?|context switch\w*|backtraces?|call ?stacks?|syscalls?|page faults?|memory usage)\b",
    re.IGNORECASE,
)
"""Other collections of nsys: perfci reads memory use and calls of the OS runtime alone."""
_MEMORY = re.compile(r"\bmemory usage\b", re.IGNORECASE)
_LOST = re.compile(
    r"\bloss?\b|\blost\b|drop|discard|missing|overflow|overwritten|truncat|incomplete|corrupt|fail|went away|"
    r"out of memory|buffer|(?:not|n't|unable to) (?:be )?(?:stor|collect|pars|read|writ|flush|record|start|initiali|"
    r"load|inject|process|enabl|trac)",
    re.IGNORECASE,
)
_MIGRATIONS = re.compile(r"Unified Memory cannot be traced", re.IGNORECASE)
"""Said without peer GPUs, as under WSL: called copies are traced all the same."""
_RECORDS = re.compile(r"Could not parse \d+ CUPTI activity records?", re.IGNORECASE)
"""Said of record kinds that this nsys does not know."""
_SEVERAL = re.compile(r"Graph|MultiDevice|Batch")
"""In names of functions that give the device several things to do."""
_HARMLESS = re.compile(
    r"might (?:not )?have (?:not )?been (?:collected|started)|No (?:CUDA|NVTX) events collected", re.IGNORECASE
)
"""Said of whole traces too, such as of a launcher that uses no GPU itself."""


def note_missing(events: Events) -> None:
    """Note in `events` what is missing."""
    _unlaunched(events)
    _graphs(events)
    _silent(events)
    if not events.whole:
        _uneven(events)
    _diagnostics(events)


def _unlaunched(events: Events) -> None:
    """Note device work during an execution that no call of it launched.

    A synchronisation keeps cases apart: such work is of a thread that works on between executions, of another process,
    or its call is missing or has wrong times.
    """
    unlinked = {kind: events.unlinked(kind, table) for kind, table in events.device.items()}
    if not any(events.one(f"SELECT EXISTS ({rows})") for rows in unlinked.values()):
        return
    _call_ids(events)
    events.db.execute(
        "CREATE TABLE idle AS SELECT id, start FROM execs WHERE name NOT IN (SELECT e.name FROM ops o JOIN execs e "
        "ON e.id = o.exec)"
    )
    events.db.execute("CREATE INDEX idle_at ON idle (start)")
    beside = "(SELECT i.id FROM idle i WHERE i.start <= y.start ORDER BY i.start DESC LIMIT 1)"
    where, what_of_it = ("", "") if events.whole else (" in its executions", ": they are left out")
    for kind, rows in unlinked.items():
        for index, count, lost in events.rows(
            f"SELECT e.name, count(*), total({_NOWHERE}) FROM ({rows}) y "
            f"CROSS JOIN execs e ON e.id = coalesce({events.execution_of('y')}, {beside}) "
            f"WHERE y.start <= e.end OR (e.pid = y.pid AND {_NOWHERE}) GROUP BY 1"
        ):
            text = f"{count} {DEVICE[kind][1]} have no call{where} that launched them{what_of_it}"
            remedy = AGAIN if lost else "launch device work within the executions, in the case's own process"
            metrics = () if events.whole else (*CHANGED[kind], *CALLS) if lost else CHANGED[kind]
            events.note(events.names[index], "incomplete", text, remedy, metrics)


_NOWHERE = "NOT EXISTS (SELECT 1 FROM called d WHERE d.pid = y.pid AND d.corr = y.corr)"
"""SQL: no call in the trace launched the work `y`."""


def _call_ids(events: Events) -> None:
    events.db.execute("CREATE TABLE IF NOT EXISTS called (pid INT, corr INT, PRIMARY KEY (pid, corr)) WITHOUT ROWID")
    for name in CALLING:
        if (calls := events.table(name, ("globalTid",))) is not None:
            events.db.execute(
                f"INSERT OR IGNORE INTO called SELECT x.globalTid & {PROCESS}, x.correlationId FROM {calls.rows} x "
                "WHERE typeof(x.correlationId) = 'integer' AND typeof(x.globalTid) = 'integer'"
            )


def _graphs(events: Events) -> None:
    for index, count in events.rows(
        f"SELECT e.name, count(*) FROM ops o JOIN execs e ON e.id = o.exec WHERE o.kind = {GRAPH} GROUP BY 1"
    ):
        text = f"{count} launches of CUDA graphs were traced as wholes: their kernels are not in the trace"
        remedy = "capture with --cuda-graph-trace=node"
        events.note(events.names[index], "incomplete", text, remedy, CHANGED[GRAPH])


def _silent(events: Events) -> None:
    """Note launches and copies without device work.

    A copy or memory set of zero bytes has no work, and no trace tells a call's bytes: what lacks its work in every
    execution counts as one, if there is other work of the kind.
    """
    # What is captured into a graph does not run then.
    events.db.execute("CREATE TABLE captures (tid INT, start INT, begins INT)")
    events.db.execute(
        "INSERT INTO captures SELECT c.tid, c.start, w.begins FROM calls c JOIN working w ON w.fn = c.fn "
        "WHERE w.begins IS NOT NULL"
    )
    events.db.execute("CREATE INDEX captures_at ON captures (tid, start)")
    events.db.execute(
        "CREATE TABLE asked AS SELECT c.exec AS exec, c.id AS call, c.tid AS tid, c.start AS start, c.end AS end, "
        "w.work AS work, l.call IS NULL AS silent FROM calls c JOIN working w ON w.fn = c.fn "
        "LEFT JOIN launched l ON l.call = c.id WHERE w.work IS NOT NULL AND NOT c.failed "
        "AND coalesce((SELECT p.begins FROM captures p WHERE p.tid = c.tid AND p.start <= c.start "
        "ORDER BY p.start DESC LIMIT 1), 0) = 0"
    )
    of_name = "FROM asked a JOIN execs e ON e.id = a.exec"
    for index, all_, without, launches in events.rows(
        f"SELECT e.name, count(*), total(a.silent), total(a.work = 'launch') {of_name} GROUP BY 1"
    ):
        if without == all_ and launches:
            text = f"{all_} launches, copies or sets, and no device work of them in the trace"
            remedy = (
                "update nsys to fit the driver; in a sandbox such as gVisor or WSL set "
                "NSYS_CONFIG_DIRECTIVES=CuptiUseRawGpuTimestamps=false"
            )
            events.note(events.names[index], "empty", text, remedy)
            events.lost.add(events.names[index])
    for index, what, all_, without, executions, least, most in events.rows(
        "SELECT name, work, sum(n), total(silent), count(*), min(silent), max(silent) FROM (SELECT e.name AS name, "
        f"a.work AS work, count(*) AS n, total(a.silent) AS silent {of_name} GROUP BY a.exec, a.work) GROUP BY 1, 2"
    ):
        name = events.names[index]
        if not without or name in events.lost:
            continue
        if what == "launch":
            text = f"{without:.0f} of {all_} launches have no device work in the trace"
            events.note(name, "incomplete", text, "profile fewer executions", (*KERNELS, *COPIES))
            continue
        kind, words, metrics = (COPY, "copies", COPIES) if what == "copy" else (SET, "memory sets", SETS)
        any_work = events.one(f"SELECT EXISTS (SELECT 1 FROM ops WHERE kind IN ({kind}, {GRAPH}))")
        made = events.one("SELECT count(*) FROM execs WHERE name = ?", index)
        if any_work and made > 1 and least == most and executions == made:
            continue
        if what == "set" and events.whole and not _in_a_range(events):
            continue  # nothing that is told of a whole process follows from it
        text = f"{without:.0f} of {all_} {words} have no device work in the trace: they are lost, or of zero bytes"
        events.note(name, "incomplete", text, "profile fewer executions", metrics)


def _in_a_range(events: Events) -> bool:
    if events.nvtx is None:
        return False
    return bool(
        events.one(
            f"SELECT EXISTS (SELECT 1 FROM asked a CROSS JOIN {events.nvtx.rows} x ON x.globalTid = a.tid "
            f"WHERE a.work = 'set' AND a.silent AND x.eventType IN {RANGES} AND x.start <= a.start "
            f"AND x.end >= a.end AND {events.nvtx.good})"
        )
    )


def _uneven(events: Events) -> None:
    """Note what differs between executions of one name: some of it may be lost.

    Those that nobody asked to be equal are compared only in whether they do anything, within a process.
    """
    events.db.execute("CREATE INDEX calls_of ON calls (exec, fn)")
    work = "SELECT count(*) FROM ops o WHERE o.exec = e.id AND o.call IS NOT NULL AND o.kind = "
    calls = "SELECT count(*) FROM calls c CROSS JOIN working w ON w.fn = c.fn WHERE c.exec = e.id AND w.kind = "
    differ = "its executions differ: {least} to {most} "
    compared: list[tuple[str, str, Iterable[str]]] = [
        (f"{work}{KERNEL}", f"{differ}kernels in one", COUNTED),
        (f"{work}{COPY}", f"{differ}copies in one", COPIES),
        (f"{work}{SET}", f"{differ}memory sets in one", SETS),
        (f"{calls}'synchronisation'", f"{differ}calls that wait in one", ["sync_count"]),
        (f"{calls}'allocation'", f"{differ}calls that allocate in one", ["alloc_count", "alloc_time"]),
    ]
    remedy, process = ALIKE, "0"
    if events.apart:
        anything = "SELECT e.id IN (SELECT exec FROM calls UNION ALL SELECT exec FROM ops)"
        text = "{few} of its {all} executions hold no call of the CUDA API and no work: events may be lost"
        compared = [(anything, text, ())]
        remedy = "capture again, with an nsys that is as new as the driver's CUDA; or name other executions otherwise"
        process = "e.pid"
    for sql, text, metrics in compared:
        for index, *numbers in events.rows(
            "SELECT name, min(least), max(most), sum(few), sum(number) FROM (SELECT name, min(n) AS least, max(n) AS "
            "most, sum(n = 0) AS few, count(*) AS number FROM (SELECT e.name AS name, "
            f"{process} AS pid, ({sql}) AS n FROM execs e) GROUP BY name, pid HAVING least <> most) GROUP BY name"
        ):
            said = text.format(**dict(zip(("least", "most", "few", "all"), numbers, strict=True)))
            events.note(events.names[index], "incomplete", said, remedy, metrics)


def _diagnostics(events: Events) -> None:
    told: dict[str, bool] = {}
    like = " OR ".join(["x.text LIKE ?"] * len(LOSSES))
    if "DIAGNOSTIC_EVENT" in events.tables and {"text", "severity"} <= events.columns("DIAGNOSTIC_EVENT"):
        level = "x.severity"
        if {"id", "name"} <= events.columns("ENUM_DIAGNOSTIC_SEVERITY_LEVEL"):
            level = "(SELECT n.name FROM t.ENUM_DIAGNOSTIC_SEVERITY_LEVEL n WHERE n.id = x.severity)"
        # Without names of its own the export numbers them: 1 info, 2 warning, 3 error.
        sql = (
            f"SELECT DISTINCT substr(x.text, 1, 500), {like} "
            f"FROM t.DIAGNOSTIC_EVENT x WHERE lower({level}) IN ('error', 'fatal', '3', '4') OR {like} LIMIT 1000"
        )
        told |= {str(text): bool(said) for text, said in events.rows(sql, *LOSSES, *LOSSES)}
    strings = "(SELECT value AS text FROM t.StringIds)"
    sql = f"SELECT DISTINCT substr(x.text, 1, 500) FROM {strings} x WHERE {like} LIMIT 1000"
    told |= {str(text): True for (text,) in events.rows(sql, *LOSSES)}
    lost = [text for text, said in told.items() if _lost(text, said=said)]
    for text in lost[:20]:
        metrics = _costs(events, text)
        if metrics is None:
            whole = f"nsys says: {text}: each launch and copy has its work, and all work its call"
            events.general.append(fault("incomplete", whole, aside=True))
        else:
            events.everywhere(f"nsys says: {text}", "profile fewer executions, or update nsys", metrics)
    of_memory = [text for text in told if text not in lost and _MEMORY.search(text) and _LOST.search(text)]
    for text in of_memory[:20] if MEMORY in events.tables else ():
        events.everywhere(f"nsys says: {text}", "capture again, or update nsys", ["peak_memory"])


def _costs(events: Events, text: str) -> Sequence[str] | None:
    """Metrics that a message's loss could change, empty for all; None without a loss.

    Two messages stand in whole traces, too: nothing is lost where each call has its work and all work its call.
    """
    migrations, records = _MIGRATIONS.search(text), _RECORDS.search(text)
    if not (migrations or records) or events.one("SELECT EXISTS (SELECT 1 FROM asked WHERE silent)"):
        return ()
    _call_ids(events)
    for kind, table in events.device.items():
        if events.one(f"SELECT EXISTS (SELECT 1 FROM ({events.unlinked(kind, table)}) y WHERE {_NOWHERE})"):
            return ()
    if records and any(_SEVERAL.search(name) and work(name) for name in events.functions.values()):
        return ()
    managed = "value LIKE 'cudaMallocManaged%' OR value LIKE 'cuMemAllocManaged%'"
    used = migrations and events.one(f"SELECT EXISTS (SELECT 1 FROM t.StringIds WHERE {managed})")
    return MOVED if used else None


def _lost(text: str, *, said: bool) -> bool:
    """`said`: its words are known to mean that events are missing."""
    elsewhere = _ELSEWHERE.search(text) is not None
    if said:
        return not elsewhere or _TRACED.search(text) is not None
    traced = _TRACED.search(text) or _INJECTION.search(text)
    about = _EVENTS.search(text) is not None or (traced is not None and not elsewhere)
    return about and _LOST.search(text) is not None and _HARMLESS.search(text) is None
