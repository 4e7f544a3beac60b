"""Device memory in an nsys export (`--cuda-memory-usage=true`): the most held, and what is at the end.

Levels are of what the process tree has allocated since the capture began. Processes add up on a GPU of one number.
"""

import re
from collections import defaultdict

from perfci.model.profile import MemoryUse
from perfci.profilers.cuda import memory, plain_call
from perfci.profilers.nsys.events import CALLING, PROCESS, Events
from perfci.profilers.nsys.export import MEMORY, NEWER, BadExport, Table

METRICS = ("peak_memory",)
_ALLOCATES = re.compile(
    r"cudaMalloc(?!Host)\w*|cuMemAlloc(?!Host)\w*|cuMemCreate|cu(Array|Array3D|MipmappedArray)Create"
)
_ON_DEVICE = "('device', 'pool', 'array')"
_KIND = "CUDA_MEMOPR_MEMORY_KIND_"
_OPERATIONS = {"CUDA_DEV_MEM_EVENT_OPR_ALLOCATION": 1, "CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION": -1}
_AGAIN = "capture the whole process, from its start"


def memory_use(events: Events, *, asked: bool) -> dict[int, MemoryUse]:
    """Return by name what its executions hold. What is missing is a fault of `peak_memory` alone.

    `asked`: its absence is a fault.
    """
    traced = events.facts("META_DATA_CAPTURE", "%COLLECT_GPU_MEMORY_USAGE")
    if MEMORY not in events.tables and "true" not in [value for _, value in traced]:
        if asked:
            remedy = "trace it with an nsys that knows --cuda-memory-usage"
            events.everywhere("the use of device memory was not traced", remedy, METRICS)
        return {}
    try:
        _fill(events)
    except BadExport as why:
        events.everywhere(f"the use of device memory is not told: {why.text}", why.remedy, METRICS)
        return {}
    _note_missing(events)
    return _told(events)


def _fill(events: Events) -> None:
    """Fill `allocations` with allocations (op 1) and frees (-1) in order, and `moves` with what was at the address
    before. Raises BadExport."""
    events.db.executescript("""
        CREATE TABLE sites (pid INT, corr INT, site TEXT, PRIMARY KEY (pid, corr)) WITHOUT ROWID;
        CREATE TABLE allocations (id INTEGER PRIMARY KEY, pid INT, device INT, kind TEXT, op INT, address INT,
                                  bytes INT, start INT, corr INT);
        CREATE TABLE memory_kinds (id PRIMARY KEY, kind TEXT) WITHOUT ROWID;
        CREATE TABLE memory_operations (id PRIMARY KEY, op INT) WITHOUT ROWID;
    """)
    _fill_sites(events)
    needs = ("globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")
    usable = f"x.bytes BETWEEN 0 AND {2**53} AND x.deviceId BETWEEN 0 AND 1023"
    table = events.table(MEMORY, needs, usable, has=("correlationId",), moment=True)
    if table is not None:
        kinds = events.enumeration("ENUM_CUDA_MEM_KIND")
        known = [(number, memory(said.removeprefix(_KIND))) for number, said in kinds.items()]
        events.db.executemany("INSERT OR IGNORE INTO memory_kinds VALUES (?, ?)", known)
        changes = events.enumeration("ENUM_CUDA_DEV_MEM_EVENT_OPER")
        operations = [(number, _OPERATIONS[said]) for number, said in changes.items() if said in _OPERATIONS]
        if {op for _, op in operations} != {1, -1}:
            raise BadExport("table ENUM_CUDA_DEV_MEM_EVENT_OPER does not say what allocates and what frees", NEWER)
        events.db.executemany("INSERT OR IGNORE INTO memory_operations VALUES (?, ?)", operations)
        _insert(events, table)
    events.db.execute("""
        CREATE TABLE moves AS SELECT id, pid, device, op, bytes, start, lag(op) OVER own AS was_op,
            lag(bytes) OVER own AS was_bytes, CASE op WHEN 1 THEN kind ELSE coalesce(lag(kind) OVER own, kind) END AS
            kind
        FROM allocations WINDOW own AS (PARTITION BY pid, address ORDER BY id)""")


def _insert(events: Events, table: Table) -> None:
    pools = [f"x.{name}" for name in ("localMemoryPoolAddress", "importedMemoryPoolAddress") if name in table.columns]
    pooled = " OR ".join(f"coalesce({pool}, 0) <> 0" for pool in pools) or "0"
    # nsys may tell an event twice; at one moment nobody allocates an address twice.
    events.db.execute(
        "INSERT INTO allocations (pid, device, kind, op, address, bytes, start, corr) SELECT DISTINCT "
        f"x.globalPid & {PROCESS} AS pid, x.deviceId AS device, CASE WHEN k.kind = 'device' AND ({pooled}) THEN 'pool' "
        "ELSE k.kind END AS kind, o.op AS op, x.address AS address, x.bytes AS bytes, x.start AS start, "
        f"x.correlationId AS corr FROM {table.rows} x JOIN memory_kinds k ON k.id = x.memKind "
        f"JOIN memory_operations o ON o.id = x.memoryOperationType WHERE {table.good} ORDER BY 7, 8, 4"
    )
    rows = events.one(f"SELECT count(*) FROM {table.rows}")
    usable = events.one(
        f"SELECT count(*) FROM {table.rows} x JOIN memory_kinds k ON k.id = x.memKind "
        f"JOIN memory_operations o ON o.id = x.memoryOperationType WHERE {table.good}"
    )
    if usable < rows:
        text = f"{rows - usable} allocations or frees of memory have no usable values: left out"
        events.everywhere(text, "update perfci where nsys is newer, or capture again", METRICS)


def _fill_sites(events: Events) -> None:
    for name in CALLING:
        table = events.table(name, ("globalTid",), has=("returnValue",))
        if table is None:
            continue
        fns = events.rows(f"SELECT y.fn, {events.text('y.fn')} FROM (SELECT DISTINCT nameId AS fn FROM {table.rows}) y")
        known = [(fn, plain_call(said)) for fn, said in list(fns) if isinstance(said, str)]
        scratch = f"site_names_{name}"
        events.db.execute(f"CREATE TABLE {scratch} (fn, said TEXT)")
        events.db.executemany(
            f"INSERT INTO {scratch} VALUES (?, ?)",
            [(fn, said) for fn, said in known if _ALLOCATES.fullmatch(said)],
        )
        events.db.execute(
            f"INSERT OR IGNORE INTO sites SELECT x.globalTid & {PROCESS}, x.correlationId, n.said FROM {table.rows} x "
            f"JOIN {scratch} n ON n.fn = x.nameId WHERE {table.good} AND typeof(x.correlationId) = 'integer' "
            "AND x.returnValue = 0"
        )


def _note_missing(events: Events) -> None:
    def note(number: int, text: str, remedy: str = _AGAIN) -> None:
        if number:
            events.everywhere(text.format(number), remedy, METRICS)

    moves = "SELECT count(*) FROM moves WHERE "
    note(events.one(f"{moves} op = -1 AND was_op IS NOT 1"), "{} frees of memory whose allocation is not in the trace")
    note(events.one(f"{moves} op = 1 AND was_op = 1"), "{} frees of memory are not in the trace: its address came anew")
    events.db.execute("CREATE INDEX allocations_by ON allocations (pid, corr)")
    silent = dict(
        events.rows(
            "SELECT s.site, count(*) FROM sites s WHERE NOT EXISTS (SELECT 1 FROM allocations a WHERE a.pid = s.pid "
            "AND a.corr = s.corr AND a.op = 1) GROUP BY s.site"
        )
    )
    text = (
        f"{{}} calls that allocate ({', '.join(sorted(silent)[:3])}) have no memory in the trace, or are of zero bytes"
    )
    note(sum(silent.values()), text)
    managed = events.one("SELECT coalesce(sum(bytes), 0) FROM allocations WHERE op = 1 AND kind = 'managed'")
    note(managed, "{} B were allocated as managed memory, and how much of it lies on the device is not told", "")
    unknown = events.one("SELECT count(*) FROM allocations WHERE op = 1 AND kind = 'unknown'")
    note(unknown, "{} allocations are of a kind of memory that the trace does not tell", "")
    shared = events.one(
        "SELECT count(*) FROM (SELECT device FROM allocations WHERE op = 1 GROUP BY device "
        "HAVING count(DISTINCT pid) > 1)"
    )
    if shared and _gpus(events) != 1:
        text = "several processes allocate on a GPU of the same number, and whether it is the same GPU is not told"
        note(shared, text, "let one process use the GPU, or make one GPU visible")


def _gpus(events: Events) -> int | None:
    return events.one("SELECT count(*) FROM t.TARGET_INFO_GPU") if "TARGET_INFO_GPU" in events.tables else None


def _told(events: Events) -> dict[int, MemoryUse]:
    names = [index for (index,) in events.rows("SELECT DISTINCT name FROM execs")]
    peaks, finals = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    levels: dict[int, int] = defaultdict(int)
    open_: dict[int, int] = {}
    if events.whole:
        open_[0] = 0
    edges = "" if events.whole else (
        " UNION ALL SELECT start, 0, pid, name, 0 FROM execs UNION ALL SELECT end, 2, pid, name, 0 FROM execs"
    )  # fmt: skip
    delta = "CASE op WHEN 1 THEN bytes ELSE 0 END - CASE was_op WHEN 1 THEN was_bytes ELSE 0 END"
    for _, what, pid, which, change in events.rows(
        f"SELECT * FROM (SELECT start AS time, 1 AS what, pid, device, {delta} FROM moves WHERE kind IN {_ON_DEVICE}"
        f"{edges}) ORDER BY time, what"
    ):
        if what == 1:
            levels[which] += change
            for name in open_.values():
                peaks[name] = max(peaks[name], levels[which])
        elif what == 0:
            open_[pid] = which
            peaks[which] = max(peaks[which], *levels.values(), 0)
        else:
            open_.pop(pid, None)
            finals[which] = max(levels.values(), default=0)
    if events.whole:
        finals[0] = max(levels.values(), default=0)
    return {index: MemoryUse(peak=peaks[index], final=finals[index]) for index in names}
