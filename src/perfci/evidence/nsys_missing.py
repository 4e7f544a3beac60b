"""What is missing from the events of an nsys export, as faults: nsys itself exits 0 where it lost some."""

from perfci.evidence.cuda import CAPTURES, works
from perfci.evidence.nsys_events import COPY, DEVICE, GRAPH, MIGRATIONS, Events

# What nsys says (in DIAGNOSTIC_EVENT, before 2024 in StringIds) when events are missing from the trace. Its "Not all
# CUDA events might have been collected." is no such message: whole traces have it as well.
LOSSES = (
    "CUPTI dropped %", "Number of incomplete CUPTI events dropped%", "%CUPTI events might be missing%",
    "Could not parse % CUPTI activity records%", "CUPTI buffer allocation limit %", "%events were lost%",
    "%events were dropped%", "%could not be stored due to tool buffer overflow%",
)  # fmt: skip


def note_missing(events: Events) -> None:
    """Name, as faults of `events`, what is missing from them once they are collected."""
    if not events.whole:
        _strays(events)
        _bystanders(events)
    _graphs(events)
    _silent(events)
    _diagnostics(events)


def _strays(events: Events) -> None:
    """Name device work that ran during a case's executions and was launched outside of all.

    Cases are kept apart by a synchronisation: it comes from a thread that works on between executions, or calls
    are missing or have wrong times.
    """
    for kind, table in events.device.items():
        migrated = f"x.copyKind IN {MIGRATIONS}" if kind == COPY else "0"
        unlinked = (
            f"SELECT {events.process_of(table)} AS pid, x.start AS start {events.linked(table)} "
            f"WHERE l.call IS NULL AND NOT ({migrated}) AND {table.good}"
        )
        for index, count in events.rows(
            f"SELECT e.name, count(*) FROM ({unlinked}) y CROSS JOIN execs e ON e.id = {events.execution_of('y')} "
            "WHERE y.start <= e.end GROUP BY 1"
        ):
            text = f"{count} {DEVICE[kind][1]} ran during its executions and were launched outside of them: "
            text += "they are left out"
            events.note(events.names[index], "incomplete", text, "launch device work within the executions")


def _bystanders(events: Events) -> None:
    """Name device work beside executions that launched none: another process's, or their times are wrong."""
    idle = "SELECT name FROM execs EXCEPT SELECT e.name FROM ops o JOIN execs e ON e.id = o.exec"
    if not events.device or not events.one(f"SELECT EXISTS ({idle})"):
        return
    events.db.execute("CREATE INDEX execs_by_time ON execs (start)")
    for kind, table in events.device.items():
        for index, count in events.rows(
            f"SELECT e.name, count(*) FROM t.{table.name} x CROSS JOIN execs e ON e.id = (SELECT id FROM execs "
            f"WHERE start <= x.start ORDER BY start DESC LIMIT 1) WHERE {table.good} AND x.start <= e.end "
            f"AND e.name IN ({idle}) GROUP BY 1"
        ):
            text = f"{count} {DEVICE[kind][1]} ran during its executions and it launched none: they are left out"
            events.note(events.names[index], "incomplete", text, "launch device work in the case's own process")


def _graphs(events: Events) -> None:
    """Name graphs whose kernels are not in the trace."""
    for index, count in events.rows(
        f"SELECT e.name, count(*) FROM ops o JOIN execs e ON e.id = o.exec WHERE o.kind = {GRAPH} GROUP BY 1"
    ):
        text = f"{count} launches of CUDA graphs were traced as wholes: their kernels are not in the trace"
        events.note(events.names[index], "incomplete", text, "capture with --cuda-graph-trace=node")


def _silent(events: Events) -> None:
    """Name launches and copies whose device work is not in the trace."""
    events.db.execute("CREATE TABLE working (fn PRIMARY KEY, works INT, begins INT) WITHOUT ROWID")
    told = [(fn, works(name), CAPTURES.get(name)) for fn, name in events.functions.items()]
    events.db.executemany("INSERT OR IGNORE INTO working VALUES (?, ?, ?)", told)
    # What is captured into a graph does not run then.
    events.db.execute("CREATE TABLE captures (tid INT, start INT, begins INT)")
    events.db.execute(
        "INSERT INTO captures SELECT c.tid, c.start, w.begins FROM calls c JOIN working w ON w.fn = c.fn "
        "WHERE w.begins IS NOT NULL"
    )
    events.db.execute("CREATE INDEX captures_at ON captures (tid, start)")
    for index, all_, without in events.rows(
        "SELECT e.name, count(*), total(l.call IS NULL) FROM calls c JOIN execs e ON e.id = c.exec "
        "LEFT JOIN launched l ON l.call = c.id WHERE c.fn IN (SELECT fn FROM working WHERE works) AND NOT c.failed "
        "AND coalesce((SELECT p.begins FROM captures p WHERE p.tid = c.tid AND p.start <= c.start "
        "ORDER BY p.start DESC LIMIT 1), 0) = 0 GROUP BY 1"
    ):
        name = events.names[index]
        if without == all_:
            text = f"{all_} launches, copies or sets, and no device work of them in the trace"
            remedy = (
                "update nsys to fit the driver; in a sandbox such as gVisor or WSL set "
                "NSYS_CONFIG_DIRECTIVES=CuptiUseRawGpuTimestamps=false"
            )
            events.note(name, "empty", text, remedy)
            events.lost.add(name)
        elif without:
            text = f"{without:.0f} of {all_} launches, copies or sets have no device work in the trace"
            events.note(name, "incomplete", text, "profile fewer executions")


def _diagnostics(events: Events) -> None:
    """Name what nsys itself says was lost."""
    texts: list[str] = []
    like = " OR ".join(["x.text LIKE ?"] * len(LOSSES))
    if "DIAGNOSTIC_EVENT" in events.tables and {"text", "severity"} <= events.columns("DIAGNOSTIC_EVENT"):
        level = "x.severity"
        if {"id", "name"} <= events.columns("ENUM_DIAGNOSTIC_SEVERITY_LEVEL"):
            level = "(SELECT n.name FROM t.ENUM_DIAGNOSTIC_SEVERITY_LEVEL n WHERE n.id = x.severity)"
        sql = (
            "SELECT DISTINCT substr(x.text, 1, 500) FROM t.DIAGNOSTIC_EVENT x "
            f"WHERE lower({level}) IN ('error', 'fatal') OR {like} LIMIT 20"
        )
        texts += [str(text) for (text,) in events.rows(sql, *LOSSES)]
    strings = "(SELECT value AS text FROM t.StringIds)"
    sql = f"SELECT DISTINCT substr(x.text, 1, 500) FROM {strings} x WHERE {like} LIMIT 20"
    texts += [str(text) for (text,) in events.rows(sql, *LOSSES)]
    for text in dict.fromkeys(texts):
        events.everywhere(f"nsys says: {text}", "profile fewer executions, or update nsys")
