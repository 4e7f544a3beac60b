"""Device memory in exports of nsys: against plain SQL and a sweep by hand, and never told where events are missing."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.model.profile import concerns
from perfci.profilers.metrics import of_trace
from perfci.profilers.nsys.trace import Loop, read
from tests.profilers.test_nsys import PID, TID, VALUES, Export, change, mutate, unpack

EVENTS = "CUDA_GPU_MEMORY_USAGE_EVENTS"
MIB = 2**20


class Memory(Export):
    """A trace with the use of memory."""

    def __init__(self, path):
        super().__init__(path)
        for number, name in enumerate(("ALLOCATION", "DEALLOCATION")):
            self.add("ENUM_CUDA_DEV_MEM_EVENT_OPER", id=number, name=f"CUDA_DEV_MEM_EVENT_OPR_{name}")
        for number, name in enumerate(("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED")):
            self.add("ENUM_CUDA_MEM_KIND", id=number, name=f"CUDA_MEMOPR_MEMORY_KIND_{name}")
        self.corr = 10_000

    def move(self, at, address, size, free=False, kind=2, device=0, tid=TID, call="cudaMalloc_v3020", pool=None):
        """An allocation or a free, and the call that makes it."""
        self.corr += 1
        call = ("cudaFree_v3020" if call == "cudaMalloc_v3020" else call) if free else call
        if call:
            self.call(call, at - 1, at + 1, self.corr, tid)
        self.add(
            EVENTS, start=at, globalPid=tid & ~0xFFFFFF, deviceId=device, contextId=1, address=address, bytes=size,
            memKind=kind, memoryOperationType=int(free), correlationId=self.corr, localMemoryPoolAddress=pool,
        )  # fmt: skip


@pytest.fixture
def export(tmp_path):
    return Memory(tmp_path / "trace.sqlite")


def loop(export, executions, *, skip=0):
    """Read executions of `step`, 1000 ns apart and 900 long, each with a launch."""
    for number in range(executions):
        export.push("step", 1000 * (number + 1), 1000 * (number + 1) + 900)
        export.launch("k", 1000 * (number + 1) + 500, number)
    return export.read(Loop("step", skip))


@pytest.mark.parametrize("ranges", [None, Loop("step", 3), "outermost"])
def test_a_program_that_allocates_is_what_plain_sql_says(tmp_path, ranges):
    path = unpack(tmp_path, "mallocs")
    reading = read(path, ranges)
    assert reading.faults == {} and reading.general == []
    (trace,) = reading.seen.values()
    db = sqlite3.connect(path)
    level = db.execute(
        f"SELECT max(level), min(level) FROM (SELECT sum(CASE memoryOperationType WHEN 0 THEN bytes ELSE -bytes END) "
        f"OVER (ORDER BY start) AS level FROM {EVENTS})"
    ).fetchone()
    assert (trace.memory.peak, trace.memory.final) == level == (16 * MIB, 0)
    assert of_trace(trace)["peak_memory"] == 16 * MIB


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 39), min_size=1, max_size=40))
def test_where_events_are_lost_the_peak_is_the_same_or_in_doubt(tmp_path_factory, lost):
    path = unpack(tmp_path_factory.mktemp("lost"), "mallocs")
    db = sqlite3.connect(path)
    order = [row for (row,) in db.execute(f"SELECT rowid FROM {EVENTS} ORDER BY start")]
    db.executemany(f"DELETE FROM {EVENTS} WHERE rowid = ?", [(order[at],) for at in lost])
    db.commit()
    db.close()
    reading = read(path, Loop("step", 3))
    doubted = any(concerns(one, "peak_memory") for one in reading.general)
    assert doubted or reading.seen[""].memory.peak == 16 * MIB
    assert doubted or lost == {39}, "only that the last one is not freed may be so"
    assert not any(concerns(one, "device_busy") for one in reading.general), "all else stands"


MOVES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 100), st.integers(0, 1), st.sampled_from([2, 3, 1])), max_size=25
)


@settings(max_examples=60, deadline=None)
@given(MOVES, st.integers(0, 2))
def test_levels_are_those_of_a_sweep_by_hand(tmp_path_factory, moves, skip):
    export = Memory(tmp_path_factory.mktemp("sweep") / "trace.sqlite")
    held: dict[int, tuple[int, int, int]] = {}
    level, at = [0, 0], 500
    seen: list[tuple[int, int]] = [(0, 0)]  # of time: the level on the GPU that holds most
    for slot, size, device, kind in moves:
        free = slot in held
        size, device, kind = held.pop(slot) if free else held.setdefault(slot, (size, device, kind))
        export.move(at, 4096 * (slot + 1), size, free, kind, device)
        if kind != 1:
            level[device] += -size if free else size
        seen.append((at, max(level)))
        at += 170
    export.move(at, 4096 * 100, 1)
    seen.append((at, max(level[0] + 1, level[1])))
    reading = loop(export, 5, skip=skip)
    memory = reading.seen[""].memory
    inside = [
        most
        for number in range(skip, 5)
        for time, most in [*seen, (1000 * (number + 1), max(seen, key=lambda one: (one[0] <= 1000 * (number + 1), one[0]))[1])]
        if 1000 * (number + 1) <= time <= 1000 * (number + 1) + 900
    ]  # fmt: skip
    before = [max((one for one in seen if one[0] <= 1000 * (n + 1)), default=(0, 0))[1] for n in range(skip, 5)]
    assert memory.peak == max([*inside, *before])
    assert memory.final == max(one for one in seen if one[0] <= 5900)[1]
    assert not any(concerns(one, "peak_memory") for one in reading.general)


def test_kinds_of_memory_are_told_apart(export):
    export.move(1010, 4096, 10, call="cudaMallocAsync", pool=77)
    export.move(1020, 8192, 20, kind=1, call="cudaHostAlloc")
    export.move(1030, 12288, 30, kind=3, call="cudaMallocArray")
    trace = loop(export, 1).seen[""]
    assert trace.memory.peak == 40, "pinned memory is the host's"


def test_gpus_are_told_apart_and_processes_add_up(export):
    other = TID + 0x5000000
    export.move(1010, 4096, 10, tid=TID)
    export.move(1020, 4096, 20, tid=other)
    export.move(1030, 8192, 25, device=1)
    reading = loop(export, 1)
    assert reading.seen[""].memory.peak == 30
    (fault,) = reading.general
    assert concerns(fault, "peak_memory") and "whether it is the same GPU is not told" in fault.text
    export.add("TARGET_INFO_GPU", id=0, name="H200")
    assert export.read(Loop("step")).general == []


def doubt(reading):
    (fault,) = [one for one in reading.general if concerns(one, "peak_memory")]
    assert fault.metrics == ["peak_memory"]
    return fault.text


LOST = {"timestamp": 0, "severity": 3, "text": "Memory usage events were lost", "globalPid": PID}


@pytest.mark.parametrize(
    ("lose", "says"),
    [
        (
            lambda made: made.move(1020, 8192, 10, kind=4, call="cudaMallocManaged"),
            "10 B were allocated as managed memory",
        ),
        (
            lambda made: made.call("cuMemCreate", 1020, 1021, 5),
            "1 calls that allocate (cuMemCreate) have no memory in the",
        ),
        (
            lambda made: made.move(1020, 8192, 10, kind=6, call=""),
            "1 allocations or frees of memory have no usable values",
        ),
        (lambda made: made.add("DIAGNOSTIC_EVENT", **LOST), "Memory usage events were lost"),
    ],
    ids=["managed memory", "a call without its memory", "a kind that nobody explains", "nsys says so"],
)
def test_what_keeps_the_peak_alone_from_being_told(export, lose, says):
    export.move(1010, 4096, 10)
    export.call("cudaMalloc", 1030, 1031, 6, failed=2)  # which has no memory
    lose(export)
    assert says in doubt(loop(export, 1))


def test_events_that_stand_twice_count_once(export):
    export.move(1010, 4096, 10)
    export.db.execute(f"INSERT INTO {EVENTS} SELECT * FROM {EVENTS}")
    reading = loop(export, 1)
    assert reading.general == [] and reading.seen[""].memory.peak == 10


def test_memory_that_was_to_be_traced_and_was_not(export):
    export.push("step", 100, 200)
    export.launch("k", 110, 1)
    ranges = Loop("step")
    assert export.read(ranges).general == [] and export.read(ranges).seen[""].memory is None
    assert doubt(export.read(ranges, asked=("memory",))) == "the use of device memory was not traced"
    export.add("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_GPU_MEMORY_USAGE", value="true")
    reading = export.read(ranges, asked=("memory",))
    assert reading.general == [] and reading.seen[""].memory.peak == 0, "there was none"
    export.call("cudaMalloc", 120, 121, 9)
    assert "1 calls that allocate (cudaMalloc) have no memory" in doubt(export.read(ranges))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (f"ALTER TABLE {EVENTS} RENAME COLUMN memKind TO kind", "has no column memKind"),
        (f"ALTER TABLE {EVENTS} RENAME COLUMN correlationId TO corr", "has no column correlationId"),
        ("DROP TABLE ENUM_CUDA_MEM_KIND", "ENUM_CUDA_MEM_KIND is missing"),
        ("DROP TABLE ENUM_CUDA_DEV_MEM_EVENT_OPER", "ENUM_CUDA_DEV_MEM_EVENT_OPER is missing"),
        ("UPDATE ENUM_CUDA_DEV_MEM_EVENT_OPER SET name = 'RESIZE' WHERE id = 1", "does not say what allocates"),
    ],
)
def test_tables_of_another_schema_are_refused(tmp_path, statement, says):
    path = unpack(tmp_path, "mallocs")
    before = read(path, Loop("step")).seen[""]
    change(path, statement)
    reading = read(path, Loop("step"))
    assert says in doubt(reading)
    after = reading.seen[""]
    assert after.memory is None and (after.calls, after.os_calls) == (before.calls, before.os_calls)


ENUMS = ["ENUM_CUDA_MEM_KIND", "ENUM_CUDA_DEV_MEM_EVENT_OPER", "ENUM_NSYS_EVENT_CLASS"]
TABLES = [EVENTS, "OSRT_API", *ENUMS, "StringIds"]
BROKEN = st.one_of(
    st.tuples(st.just("drop"), st.sampled_from(TABLES[:-1])),
    st.tuples(st.just("column"), st.sampled_from(TABLES), st.integers(0, 40)),
    st.tuples(st.just("set"), st.sampled_from(TABLES), st.integers(0, 40), st.sampled_from([1, 2, 7, 100]), VALUES),
    st.tuples(st.just("delete"), st.sampled_from(TABLES[:-1]), st.sampled_from([1, 2, 7])),
    st.tuples(st.just("double"), st.sampled_from(TABLES[:-1])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(BROKEN, min_size=1, max_size=3), st.sampled_from([None, Loop("step", 3)]))
def test_broken_tables_are_faults_and_never_another_peak(tmp_path_factory, broken, ranges):
    path = unpack(tmp_path_factory.mktemp("broken"), "mallocs")
    change(path, "DROP TABLE OSRT_CALLCHAINS")  # whose key is of two columns, for which mutate is not made
    mutate(path, broken, [])
    reading = read(path, ranges, asked=("osrt", "memory"), limit=30)
    # Sizes, GPUs, times and addresses that are changed as if they were right nothing in a file can show.
    other = any(kind == "set" and table == EVENTS for kind, table, *_ in broken)
    for trace in reading.seen.values():
        type(trace).model_validate_json(trace.model_dump_json())
        faults = [*reading.general, *reading.faults.get("", [])]
        doubted = any(concerns(one, "peak_memory") for one in faults)
        assert doubted or other or trace.memory.peak == 16 * MIB, "silently another peak"
    assert reading.seen or reading.faults or reading.general
