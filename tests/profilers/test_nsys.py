"""The reader of nsys exports: fixtures from an H200 against nsys's own sums, synthetic traces, and broken files."""

import csv
import io
import json
import lzma
import math
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfci.model.profile import Profile, concerns
from perfci.profilers.cuda import call_kind, plain_call, sweep
from perfci.profilers.metrics import take
from perfci.profilers.nsys.trace import Loop, Reading, read
from tests.nsys_stats import rows

DATA = Path(__file__).parent.parent / "data" / "nsys"
CASES = ["sdpa-seq512", "matmul-n4096", "trajectory_resample-batch32", "upload-mib64"]
PID = 0x0001_0000_1700_0000  # as nsys serialises one: machine, process, no thread
TID = PID + 23


def unpack(folder, side):
    """A recorded export: of the cases in base or head, or of a program that allocates, copies, multiplies and frees."""
    path = folder / f"{side}.sqlite"
    path.write_bytes(lzma.decompress((DATA / f"{side}.sqlite.xz").read_bytes()))
    return path


def change(path, *statements):
    """Execute statements, each of which must find what it changes."""
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        assert db.execute(statement).rowcount, statement
    db.close()


def profile_of(reading: Reading, name: str | None) -> Profile:
    """What perfci takes of one case in a trace, or for None of a command."""
    found, key = Profile(reports=1 if name is None else None), name or ""
    faults = [*reading.faults.get(key, []), *reading.general]
    if key in reading.seen:
        take(found, reading.seen[key], faults, (9, 0), True)
    else:
        found.faults += faults
    return found


def profiled(path: Path, name: str | None) -> Profile:
    """The same of a file."""
    return profile_of(read(path, None if name is None else CASES, executions=None if name is None else 10), name)


def nsys_here():
    found = os.environ.get("PERFCI_TEST_NSYS") or shutil.which("nsys")
    if found is None:
        pytest.skip("needs nsys on PATH or in PERFCI_TEST_NSYS")  # its answers are golden files too
    return found


# ---------------------------------------------------------------- the H200's traces


def projections(text):
    """Range → (projected ns, host ns, instances, device operations), of nvtx_gpu_proj_sum's CSV."""
    rows = csv.DictReader(io.StringIO(text[text.index("Range,Style") :]))
    columns = ("Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances", "Total GPU Ops")
    return {row["Range"].removeprefix("perfci:"): tuple(int(row[column]) for column in columns) for row in rows}


def told(reading):
    """The same of a reading. Its times are of one execution, in seconds: to ns they come back exactly."""
    found = {}
    for name, trace in reading.seen.items():
        n = trace.executions
        operations = sum(k.count for k in trace.kernels) + sum(c.count for c in trace.copies) + trace.sets
        found[name] = round(trace.span * n * 1e9), n, round(operations * n)
        assert trace.span * n * 1e9 == pytest.approx(found[name][0], rel=1e-12)
    return found


@pytest.mark.parametrize("side", ["base", "head"])
def test_the_projection_is_that_of_nvtx_gpu_proj_sum(recorded, side):
    golden = projections((DATA / f"{side}.proj_sum.csv").read_text())
    reading = read(recorded[side], CASES)
    assert reading.faults == {} and reading.general == []
    assert told(reading) == {name: (ns, n, ops) for name, (ns, _, n, ops) in golden.items()}
    whole = read(recorded[side], None)
    assert whole.faults == {} and whole.general == []
    ranges = {r.name: (round(r.device * 1e9), round(r.host * 1e9), r.count) for r in whole.seen[""].ranges}
    assert ranges == {name: (ns, host, n) for name, (ns, host, n, _) in golden.items()}


@pytest.mark.nsys
def test_sums_over_the_whole_capture_are_those_of_the_nsys_at_hand(recorded):
    """Kernels and API calls of the process tree: cuda_gpu_kern_sum and cuda_api_sum."""
    trace = read(recorded["head"], None).seen[""]
    sums = {}
    for report, column in (("cuda_gpu_kern_sum", "Instances"), ("cuda_api_sum", "Num Calls")):
        told = rows(nsys_here(), report, recorded["head"])
        sums[report] = {row["Name"]: (int(row["Total Time (ns)"]), int(row[column])) for row in told}
    kernels = Counter()
    for kernel in trace.kernels:
        kernels[kernel.name, "ns"] += round(kernel.seconds * 1e9)
        kernels[kernel.name, "n"] += round(kernel.count)
    assert {n: (kernels[n, "ns"], kernels[n, "n"]) for n, _ in kernels} == sums["cuda_gpu_kern_sum"]
    calls = {call.name: (round(call.seconds * 1e9), round(call.count)) for call in trace.calls}
    assert calls == {plain_call(name): value for name, value in sums["cuda_api_sum"].items()}


def test_details_of_kernels_copies_and_calls(recorded):
    base, head = (read(recorded[side], CASES).seen for side in ("base", "head"))
    kernel = base["sdpa-seq512"].kernels[0]
    assert "flash_fwd_kernel" in kernel.name
    assert (kernel.grid, kernel.block, kernel.registers, kernel.dynamic_shared) == ((4, 32, 8), (128, 1, 1), 255, 49152)
    for side, source in ((base, "pinned"), (head, "pageable")):
        (copy,) = side["upload-mib64"].copies
        told = copy.kind, copy.source, copy.target, copy.count, copy.bytes
        assert told == ("host to device", source, "device", 1, 2**26)
        matmul = side["matmul-n4096"]
        assert (matmul.sets, matmul.version, matmul.source) == (1, "2023.4.4.54", "nsys")
        for trace in side.values():
            assert 0 < trace.busy <= trace.span <= trace.wall
            assert [k.seconds for k in trace.kernels] == sorted((k.seconds for k in trace.kernels), reverse=True)
    assert [c.kind for c in base["upload-mib64"].calls] == ["synchronisation", "copy", "other"]


# ---------------------------------------------------------------- synthetic traces

KERNEL, RUNTIME, COPY, SET = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET"))
COLUMNS = {
    "NVTX_EVENTS": "start end eventType text globalTid endGlobalTid textId domainId",
    RUNTIME: "start end globalTid correlationId nameId returnValue",
    KERNEL: "start end deviceId correlationId globalPid demangledName shortName registersPerThread "
    "gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread",
}


class Export:
    """A trace in the making: tables appear with their first event, as nsys writes them."""

    def __init__(self, path, *, old=False):
        self.path, self.old = path, old
        self.db = sqlite3.connect(path)
        self.tables, self.strings = set(), {}
        self.db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        self.add("EXPORT_META_DATA" if old else "META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2022.2.1")
        if not old:
            self.add("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value="false")

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.db.execute("INSERT INTO StringIds VALUES (?, ?)", (self.strings[text], text))
        return self.strings[text]

    def add(self, table, **values):
        if table not in self.tables:
            self.tables.add(table)
            self.db.execute(f"CREATE TABLE {table} ({', '.join(COLUMNS.get(table, ' '.join(values)).split())})")
        places = ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", list(values.values()))

    def push(self, name, start, end, tid=TID, domain=None, inline=False, kind=59):
        text = {"text": name} if self.old or inline else {"textId": self.string(name)}
        self.add("NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=tid, domainId=domain, **text)

    def domain(self, name, number, tid=TID):
        self.add("NVTX_EVENTS", start=0, eventType=75, globalTid=tid, domainId=number, text=name)

    def call(self, name, start, end, corr, tid=TID, failed=0):
        values = {"correlationId": corr, "nameId": self.string(name), "returnValue": failed}
        self.add(RUNTIME, start=start, end=end, globalTid=tid, **values)

    def kernel(self, name, start, end, corr, pid=PID, grid=(1, 1, 1)):
        values = dict.fromkeys(COLUMNS[KERNEL].split(), 0) | dict.fromkeys(("blockY", "blockZ"), 1)
        values |= dict.fromkeys(("demangledName", "shortName"), self.string(name))
        values |= zip(("gridX", "gridY", "gridZ"), grid, strict=True)
        values |= {"start": start, "end": end, "correlationId": corr, "globalPid": pid}
        self.add(KERNEL, **values | {"registersPerThread": 32, "blockX": 128})

    def launch(self, name, at, corr, *, tid=TID, start=None, length=10, **more):
        """A launch of 5 ns at `at`, and its kernel."""
        start = at + 20 if start is None else start
        self.call("cudaLaunchKernel_v7000", at, at + 5, corr, tid)
        self.kernel(name, start, start + length, corr, tid & ~0xFFFFFF, **more)

    def read(self, ranges=("a",), **more):
        self.db.commit()
        return read(self.path, ranges, **more)


def test_quantities_are_of_one_execution(export):
    """Two executions, the work of each beginning after its range ended, and one on two streams at once."""
    export.push("a", 100, 200)
    export.launch("k", 110, 1, start=300, length=100)
    export.launch("k", 130, 2, start=350, length=100)
    export.push("a", 210, 290)
    export.launch("k", 220, 3, start=500, length=50, grid=(2, 1, 1))
    export.push("b", 1000, 1100)
    trace = (reading := export.read(("a", "b"))).seen["a"]
    fault = only(reading)
    assert fault.text == "its executions differ: 1 to 2 kernels in one" and reading.general == []
    assert "kernel_launches" in fault.metrics and "copy_bytes" not in fault.metrics
    assert trace.executions == 2
    assert trace.wall * 1e9 == pytest.approx((550 - 100) / 2)
    assert trace.busy * 1e9 == pytest.approx((150 + 50) / 2)
    assert trace.span * 1e9 == pytest.approx((150 + 50) / 2)
    assert [(k.count, k.grid, round(k.seconds * 1e9)) for k in trace.kernels] == [
        (1, (1, 1, 1), 100),
        (0.5, (2, 1, 1), 25),
    ]
    (call,) = trace.calls
    assert (call.name, call.kind, call.count, round(call.seconds * 1e9, 6)) == ("cudaLaunchKernel", "launch", 1.5, 7.5)
    host = reading.seen["b"]
    assert (host.kernels, host.busy, host.span, round(host.wall * 1e9)) == ([], 0, 0, 100)


@pytest.mark.parametrize("old", [True, False])
def test_schemas_old_and_new(tmp_path, old):
    export = Export(tmp_path / "t.sqlite", old=old)
    export.push("a", 100, 200)
    export.launch("k", 110, 1)
    trace = export.read().seen["a"]
    assert trace.version == "2022.2.1" and trace.kernels[0].name == "k"


def test_columns_that_a_schema_lacks_are_none_and_not_zero(one):
    one.db.execute(f"ALTER TABLE {KERNEL} DROP COLUMN registersPerThread")
    one.db.execute(f"UPDATE {KERNEL} SET localMemoryPerThread = NULL")
    (kernel,) = one.read().seen["a"].kernels
    assert (kernel.registers, kernel.local, kernel.static_shared) == (None, None, 0)


def test_names_may_stand_inline(one):
    one.db.execute("UPDATE NVTX_EVENTS SET text = 'a', textId = NULL")
    one.db.execute(f"UPDATE {KERNEL} SET demangledName = 'void f<1>()'")
    one.db.execute(f"UPDATE {RUNTIME} SET nameId = 'cuLaunchKernel'")
    trace = one.read().seen["a"]
    assert (trace.kernels[0].name, trace.calls[0].name) == ("void f<1>()", "cuLaunchKernel")


def test_processes_are_joined_by_pid_and_threads_by_time(export):
    """The same correlation in two processes; and a backward pass, launched by a thread of autograd's."""
    other, autograd = TID + 0x5000000, TID + 9
    export.push("a", 100, 200)
    export.push("a", 100, 200, tid=other)
    export.launch("forward", 110, 1)
    export.launch("elsewhere", 120, 1, tid=other, length=1000)
    export.launch("backward", 150, 2, tid=autograd)
    export.launch("after", 250, 3, tid=autograd)
    export.push("b", 400, 500)
    export.launch("b's", 410, 4)
    reading = export.read(("a", "b"))
    assert only(reading).text == "its executions differ: 1 to 2 kernels in one" and reading.general == []
    assert {k.name: k.count for k in reading.seen["a"].kernels} == {"forward": 0.5, "elsewhere": 0.5, "backward": 0.5}
    assert [k.name for k in reading.seen["b"].kernels] == ["b's"]
    assert reading.seen["a"].executions == 2
    assert reading.seen["a"].wall * 1e9 == pytest.approx((100 + 1140 - 100) / 2)


def test_ranges_of_the_users_own_nest_and_are_projected(export):
    export.push("a", 100, 200)
    export.push("encode", 110, 150)
    export.push("attention", 115, 135)
    export.push("loss", 140, 190, tid=TID + 9)
    export.push("idle", 160, 170)
    export.domain("NCCL", 3)
    export.push("all_reduce", 175, 180, domain=3)
    export.push("crosses", 120, 300, kind=60)
    export.launch("k", 120, 1, start=300, length=50)
    export.launch("k", 140, 2, start=600, length=10)
    export.launch("k", 150, 3, tid=TID + 9, start=700, length=5)
    ranges = export.read().seen["a"].ranges
    assert {r.name: (r.count, round(r.host * 1e9), round(r.device * 1e9)) for r in ranges} == {
        "encode": (1, 40, 310), "encode/attention": (1, 20, 50), "loss": (1, 50, 5), "idle": (1, 10, 0),
        "NCCL:all_reduce": (1, 5, 0),
    }  # fmt: skip


@pytest.mark.nsys
def test_nested_ranges_are_projected_as_by_the_nsys_at_hand(tmp_path):
    """Random nests over random launches; the paths fold back to nsys's names."""
    draw = random.Random(4)
    export = Export(tmp_path / "t.sqlite")
    at, corr, names = 0, 0, ["encode", "decode", "loss"]

    def nest(depth, tid):
        nonlocal at, corr
        for _ in range(draw.randint(1, 3)):
            begin, name = at, draw.choice(names) + str(depth)
            at += draw.randint(1, 20)
            for _ in range(draw.randint(0, 3)):
                corr += 1
                export.launch("k", at, corr, tid=tid, start=at + draw.randint(0, 500), length=draw.randint(1, 80))
                at += 10
            if depth < 3:
                nest(depth + 1, tid)
            at += draw.randint(1, 20)
            export.push(name, begin, at, tid=tid)
            at += draw.randint(1, 5)

    for _ in range(20):
        nest(0, TID)
    trace = export.read(None).seen[""]
    command = [nsys_here(), "stats", "--report", "nvtx_gpu_proj_sum", "--format", "csv", str(export.path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    ours = Counter()
    for one in trace.ranges:
        ours[one.name.rsplit("/", 1)[-1]] += round(one.device * 1e9)
    assert len(ours) > 9 and any(one.name.count("/") == 3 for one in trace.ranges)
    theirs = {name: ns for name, (ns, _, _, _) in projections(out).items()}
    assert {name: ns for name, ns in ours.items() if ns} == theirs


def test_ranges_of_the_same_name_in_another_domain_are_not_executions(export):
    export.domain("other", 1)
    export.domain("perfci", 2)
    export.push("a", 100, 200, domain=1)
    export.push("a", 300, 400, domain=2)
    export.push("a", 500, 600, domain=0)
    assert export.read().seen["a"].executions == 2


def test_without_ranges_the_capture_is_one_execution(export):
    export.launch("k", 110, 1)
    export.launch("k", 210, 1, tid=TID + 0x5000000, length=200)
    export.push("step", 100, 500)
    reading = export.read(None)
    trace = reading.seen[""]
    assert reading.faults == {} and trace.executions == 1
    assert (trace.kernels[0].count, round(trace.wall * 1e9), round(trace.busy * 1e9)) == (2, 400, 210)
    assert [(r.name, round(r.device * 1e9)) for r in trace.ranges] == [("step", 10)]


def test_copies_tell_kind_and_memory(export):
    export.push("a", 100, 900)
    rows = {
        (1, 0, 2, 100): ("host to device", "pageable", "device", 100),
        (1, 1, 2, 50): ("host to device", "pinned", "device", 50),
        (2, 2, 1, 10): ("device to host", "device", "pinned", 10),
        (8, 2, 2, 7): ("device to device", "device", "device", 7),
        (10, 2, 2, 5): ("peer to peer", "device", "device", 5),
        (99, 42, None, 1): ("other", "unknown", "unknown", 1),
        (11, 4, 2, 64): ("host to device", "managed", "device", 64),  # which has no call
    }
    for corr, row in enumerate(rows):
        values = dict(zip(("copyKind", "srcKind", "dstKind", "bytes"), row, strict=True), correlationId=corr)
        if row[0] == 11:
            values["correlationId"] = None
        else:
            export.call("cudaMemcpyAsync_v3020", 110 + corr, 111 + corr, corr)
        export.add(COPY, start=200 + corr, end=201 + corr, globalPid=PID, **values)
    reading = export.read()
    assert reading.faults == {} and reading.general == []
    copies = reading.seen["a"].copies
    assert sorted((c.kind, c.source, c.target, c.bytes) for c in copies) == sorted(rows.values())


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("launch", "cudaLaunchKernelExC_v11060 cudaLaunchKernel_ptsz_v7000 cuLaunchKernelEx cudaGraphLaunch_v10000"),
        ("allocation", "cudaMalloc_v3020 cudaFreeAsync_v11020 cuMemAlloc_v2 cudaHostAlloc_v3020"),
        ("synchronisation", "cudaDeviceSynchronize_v3020 cuStreamSynchronize"),
        ("copy", "cudaMemcpyAsync_v3020 cuMemcpyHtoDAsync_v2"),
        ("other", "cudaLaunchHostFunc_v10000 cudaStreamWaitEvent_v3020 cudaMemsetAsync_v3020 cudaEventQuery_v3020"),
    ],
)
def test_api_calls_by_kind(kind, names):
    for name in names.split():
        plain = plain_call(name)
        assert plain == re.sub("(_ptsz)?_v[0-9]+$", "", name) and call_kind(plain) == kind


# ---------------------------------------------------------------- what is missing is named


def only(reading, name="a"):
    assert list(reading.faults) == [name]
    (fault,) = reading.faults[name]
    return fault


def test_ranges_that_nsys_lost_are_named_with_the_way_round(export):
    """What nsys 2023.4 records of nvtx 0.2.17: its domains, and no range."""
    export.domain("perfci", 1)
    fault = only(reading := export.read())
    assert reading.seen == {} and (fault.kind, fault.tool) == ("empty", "nsys")
    assert fault.text == "no NVTX push/pop range is in the trace" and "nvtx 0.2.11" in fault.remedy
    assert "torch.cuda.nvtx" in fault.remedy


def test_launches_without_kernels_are_no_zero(export):
    """As under WSL and gVisor, where the device's part of the trace is missing."""
    export.push("a", 100, 200)
    export.call("cudaLaunchKernel_v7000", 110, 120, 1)
    fault = only(reading := export.read())
    assert reading.seen == {} and fault.kind == "empty" and "CuptiUseRawGpuTimestamps" in fault.remedy


def test_a_few_launches_without_kernels_are_told(one):
    one.call("cudaLaunchKernel_v7000", 130, 140, 2)
    one.call("cudaLaunchKernel_v7000", 150, 155, 3, failed=1)
    one.call("cudaStreamBeginCapture_v10000", 160, 161, 4)
    one.call("cudaLaunchKernel_v7000", 162, 163, 5)
    one.call("cudaStreamEndCapture_v10000", 164, 165, 6)
    fault = only(reading := one.read())
    assert reading.seen["a"].kernels[0].count == 1
    assert (fault.kind, fault.text) == ("incomplete", "1 of 2 launches have no device work in the trace")


@pytest.mark.parametrize("pid", [PID, PID + 0x5000000])
def test_kernels_without_calls_are_told(export, pid):
    """Of a call that is lost, or of a server or a child to which a case hands its work."""
    export.push("a", 100, 200)
    export.kernel("k", 120, 130, 77, pid)
    if pid != PID:
        export.call("cudaLaunchKernel_v7000", 110, 115, 77, TID + 0x5000000)
    fault = only(reading := export.read())
    assert fault.kind == "incomplete" and reading.general == [] and not reading.seen["a"].kernels
    assert fault.text.startswith("1 kernels have no call in its executions that launched them")


def test_graphs_that_were_traced_as_wholes(export):
    export.push("a", 100, 200)
    export.call("cudaGraphLaunch_v10000", 110, 120, 1)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=300, end=400, correlationId=1, globalPid=PID, graphId=1)
    fault = only(reading := export.read())
    assert fault.kind == "incomplete" and "--cuda-graph-trace=node" in fault.remedy
    trace = reading.seen["a"]
    assert (trace.kernels, round(trace.busy * 1e9), round(trace.wall * 1e9)) == ([], 100, 300)


def test_dropped_events(one):
    """As nsys told before 2024, among its texts."""
    message = "Number of incomplete CUPTI events dropped: 12. Incomplete events appear when …"
    one.string(message)
    one.string("Not all CUDA events might have been collected.")
    (fault,) = one.read().general
    assert fault.kind == "incomplete" and fault.text == f"nsys says: {message}"


def test_errors_of_nsys_are_told_and_warnings_are_not(one):
    for number, name in enumerate(("Info", "Warning", "Error"), 1):
        one.add("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", id=number, name=name)
    for severity, text in ((1, "Profiling has started."), (2, "driver newer"), (3, "CUDA device went away")):
        one.add("DIAGNOSTIC_EVENT", timestamp=1, severity=severity, text=text, globalPid=PID)
    assert [fault.text for fault in one.read().general] == ["nsys says: CUDA device went away"]


@pytest.mark.parametrize("ranges", [("a",), Loop("a", 1)])
def test_executions_that_the_end_cut_are_left_out(one, ranges):
    one.push("a", 300, 400)
    one.push("a", 500, None)
    ((fault, *_),) = (reading := one.read(ranges)).faults.values()
    assert fault.kind == "incomplete" and "1 did not end before the capture did" in fault.text
    assert concerns(fault, "device_busy")
    assert [trace.executions for trace in reading.seen.values()] == [2 if ranges == ("a",) else 1]


def test_executions_that_overlap_are_left_out(export):
    export.push("a", 100, 200)
    export.push("a", 150, 250, tid=TID + 1)
    export.push("a", 300, 400)
    fault = only(reading := export.read())
    assert "2 of its executions overlap" in fault.text and reading.seen["a"].executions == 1


@pytest.mark.parametrize(
    ("column", "values"),
    [("start", [None, "soon", b"\0"]), ("end", [0, 2**60, math.inf]), ("gridX", [0, -4])],
)
def test_kernels_with_impossible_values_cost_the_trace(one, column, values):
    one.launch("bad", 130, 2)
    for value in values:
        one.db.execute(f"UPDATE {KERNEL} SET {column} = ? WHERE correlationId = 2", (value,))
        fault = only(reading := one.read())
        assert reading.seen == {} and fault.kind == "incomplete"
        assert fault.text.startswith("1 kernels have no usable values")


def test_kernels_without_a_name_are_told(one):
    one.db.execute("DELETE FROM StringIds WHERE value = 'k'")
    assert only(one.read()).text == "1 kernels have no name"


def test_more_launch_configurations_than_can_be_told(export):
    export.push("a", 100, 10**6)
    for corr in range(1005):
        export.launch("k", 200 + 10 * corr, corr, grid=(corr + 1, 1, 1), length=1000 - corr // 2)
    fault = only(reading := export.read())
    assert len(reading.seen["a"].kernels) == 1000
    assert fault.text.startswith("5 further launch configurations, 0.3% of the kernels' time")


def test_a_trace_of_cuda_without_any_call_is_told(export):
    export.push("a", 100, 200)
    assert export.read().general == []
    export.db.execute("UPDATE META_DATA_CAPTURE SET value = 'true'")
    (fault,) = export.read().general
    assert (fault.kind, fault.text) == ("empty", "no CUDA API call is in the trace")


# ---------------------------------------------------------------- the loop of a command


def test_the_first_executions_of_each_process_are_left_out(export):
    other = TID + 0x5000000
    for tid in (TID, other):
        for number in range(4):
            at = 1000 * number
            export.push("step", at, at + 400, tid=tid)
            export.launch("warm" if number < 2 else "k", at + 10, number, tid=tid, length=100 if number < 2 else 200)
    export.launch("between", 3500, 9)
    trace = export.read(Loop("step", 2)).seen[""]
    assert (trace.within, trace.executions) == ("step", 4)
    assert [(one.name, one.count) for one in trace.kernels] == [("k", 1)]
    assert trace.wall * 1e9 == pytest.approx(400) and trace.busy * 1e9 == pytest.approx(200)
    every = export.read(Loop("step")).seen[""]
    assert every.executions == 8 and every.busy * 1e9 == pytest.approx(150)
    ((fault,),) = export.read(Loop("step", 4)).faults.values()
    assert "not execute it more often than the 4 times that are skipped" in fault.text
    ((fault,),) = export.read(Loop("stop", 1)).faults.values()
    assert fault.kind == "empty" and "no range of this name among 8" in fault.text


def test_a_loop_that_runs_ahead_of_the_device_takes_what_the_device_takes(export):
    """A step of 1 µs on the host and 10 µs on the device, never waited for: the backlog of what is skipped is no time
    of what follows, and the device never idles."""
    for number in range(20):
        at = 2000 * number
        export.push("warmup" if number < 5 else "step", at, at + 1000)
        export.launch("k", at + 100, number, start=1000 + 10_000 * number, length=10_000)
    trace = export.read(Loop("step", 5)).seen[""]
    assert trace.executions == 10 and trace.wall * 1e9 == pytest.approx(10_000)
    assert trace.busy * 1e9 == pytest.approx(10_000) and trace.launching == 0
    both = export.read("outermost").seen
    assert both["step"].wall * 1e9 == pytest.approx(10_000) and both["step"].busy == both["step"].wall
    assert both["warmup"].wall * 1e9 == pytest.approx(51_000 / 5) and both["warmup"].busy * 1e9 == pytest.approx(10_000)
    assert both["warmup"].launching * 1e9 == pytest.approx(1)  # 5 ns of the first of 5


def test_executions_that_lost_their_tail_are_told(tmp_path):
    path = unpack(tmp_path, "mallocs")
    db = sqlite3.connect(path)
    begins = db.execute("SELECT start FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start").fetchall()
    for table in ("RUNTIME", "KERNEL", "MEMCPY"):
        db.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE start >= ?", begins[10])
    db.commit()
    for reading in (read(path, Loop("step", 3)), read(path, "outermost")):
        ((fault,),) = reading.faults.values()
        assert "10 of its " in fault.text and "events may be lost" in fault.text
        assert concerns(fault, "kernel_launches") and concerns(fault, "device_busy")


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)).map(lambda one: (one[0], sum(one))), max_size=8)


@given(SPANS, SPANS)
def test_what_is_left_of_spans_is_counted_as_moment_by_moment(spans, others):
    def moments(*intervals):
        return {at for start, end in intervals for at in range(start, end)}

    inside, edges = [(0, 20), (20, 45)], []
    for intervals, change in ((inside, (1, 0, 0)), (spans, (0, 1, 0)), (others, (0, 0, 1))):
        for name, (start, end) in enumerate(intervals):
            edges += [(7, start, name, *change), (7, end, name, *(-one for one in change))]
    busy, launching = sweep(sorted(edges, key=lambda edge: edge[1:2] + edge[3:4]))
    assert [busy[name] for name in (0, 1)] == [len(moments(one) & moments(*spans)) for one in inside]
    assert launching.total() == len(moments(*others) - moments(*spans))


def test_a_process_with_too_few_executions_is_told(export):
    for tid, many in ((TID, 6), (TID + 0x5000000, 2)):
        for number in range(many):
            export.push("step", 1000 * number, 1000 * number + 400, tid=tid)
            export.launch("k", 1000 * number + 10, number, tid=tid)
    reading = export.read(Loop("step", 3))
    assert reading.seen[""].executions == 3
    assert "1 of 2 processes do not execute it more often than the 3 times" in only(reading, "").text
    assert concerns(only(reading, ""), "device_busy")


def test_the_loop_of_a_program_is_what_plain_sql_says(tmp_path):
    """A program on an H200 that allocates, copies, multiplies and frees, twenty times."""
    path = unpack(tmp_path, "mallocs")
    trace = read(path, Loop("step", 3)).seen[""]
    db = sqlite3.connect(path)
    steps = db.execute("SELECT start, end FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY start").fetchall()[3:]
    work = db.execute(f"SELECT start, end FROM {KERNEL} UNION ALL SELECT start, end FROM {COPY}").fetchall()
    busy = sum(end - start for start, end in work if start >= steps[0][0])  # nothing overlaps in one stream
    assert trace.executions == 17 and trace.busy * 17e9 == pytest.approx(busy, rel=1e-9)
    assert trace.wall * 17e9 == pytest.approx(sum(end - start for start, end in steps), rel=1e-9)
    names = dict(db.execute("SELECT id, value FROM StringIds"))
    spent = Counter()
    for name, start, end in db.execute("SELECT nameId, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME"):
        if start >= steps[0][0]:
            spent[plain_call(names[name])] += end - start
    told = {call.name: call.seconds * 17e9 for call in trace.calls}
    assert told == {name: pytest.approx(ns, rel=1e-9) for name, ns in spent.items()}
    whole = read(path, None).seen[""]
    assert whole.wall > 2 * 20 * trace.wall and not whole.within


# ---------------------------------------------------------------- files that are none


def test_files_that_cannot_be_read(recorded, tmp_path):
    whole = recorded["base"].read_bytes()
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).execute("CREATE TABLE t (a)")
    files = {
        b"": "empty",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n": "a Git LFS pointer, not the file itself",
        b"NVIDIA Tegra Profiler Report": "no SQLite file",
        whole[:100_000]: "truncated: 100000 of 380928 bytes",
        other.read_bytes(): "no export of nsys: its tables are missing",
        whole[:4096] + random.Random(1).randbytes(len(whole) - 4096): "damaged (its schema cannot be read)",
    }
    for content, text in files.items():
        path = tmp_path / "x.sqlite"
        path.write_bytes(content)
        for ranges in (["a"], None):
            reading = read(path, ranges)
            assert reading.seen == {} and reading.faults == {}
            (fault,) = reading.general
            assert (fault.kind, fault.text) == ("unreadable", f"x.sqlite: {text}") and fault.remedy
    assert read(tmp_path / "none.sqlite", ["a"]).general[0].text == "none.sqlite: there is no such file"
    assert read(tmp_path, ["a"]).general[0].kind == "unreadable"


def test_a_missing_column_is_named(one):
    one.db.execute(f"ALTER TABLE {KERNEL} DROP COLUMN correlationId")
    (fault,) = one.read().general
    assert fault.text == "trace.sqlite: table CUPTI_ACTIVITY_KIND_KERNEL has no column correlationId"


def test_views_and_time_limits(export):
    """A file from elsewhere could hold a view of endless rows under a table's name, or just too much."""
    export.push("a", 100, 200)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
    export.db.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    assert export.read().seen["a"].kernels == []
    for corr in range(2000):
        export.call("cudaLaunchKernel", 110, 120, corr)
    (fault,) = export.read(limit=0).general
    assert fault.text == "trace.sqlite: not read within 0 s"


def test_the_trace_is_not_written_to(recorded, tmp_path):
    path = tmp_path / "a trace?#%.sqlite"
    shutil.copy(recorded["base"], path)
    path.chmod(0o400)
    before = path.read_bytes()
    assert len(read(path, CASES).seen) == 4
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


# ---------------------------------------------------------------- mutated files

TABLES = ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "ANALYSIS_DETAILS", "PROCESSES", "ENUM_CUDA_MEM_KIND"]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.sampled_from([0, -1, 1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), math.nan, math.inf, -math.inf, 1e308, "", "x", "\0", b"\xff\xfe"]),
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=20),
)  # fmt: skip
SQL = st.one_of(
    st.tuples(st.just("drop"), st.sampled_from(TABLES)),
    st.tuples(st.just("column"), st.sampled_from(TABLES), st.integers(0, 40)),
    st.tuples(st.just("set"), st.sampled_from(TABLES), st.integers(0, 40), st.sampled_from([1, 2, 7, 100]), VALUES),
    st.tuples(st.just("delete"), st.sampled_from(TABLES), st.sampled_from([1, 2, 7])),
    st.tuples(st.just("double"), st.sampled_from(TABLES)),
)
BYTES = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 2**20), st.integers(1, 255)),
    st.tuples(st.just("page"), st.integers(0, 100), st.integers(0, 255)),
    st.tuples(st.just("swap"), st.integers(0, 100), st.integers(0, 100)),
    st.tuples(st.just("cut"), st.integers(0, 2**19)),
)


def mutate(path, sql, raw):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA writable_schema = ON")  # NOT NULL and keys would refuse what a broken file may well hold
    db.execute(
        "UPDATE sqlite_master SET sql = replace(replace(sql, 'NOT NULL', ''), 'PRIMARY KEY', '') WHERE name <> 'StringIds'"
    )
    db.execute("PRAGMA writable_schema = RESET")
    for kind, table, *rest in sql:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        if not columns:
            continue
        if kind == "drop":
            db.execute(f"DROP TABLE {table}")
        elif kind == "column" and len(columns) > 1 and not (table == "StringIds" and rest[0] % 2 == 0):
            db.execute(f'ALTER TABLE {table} DROP COLUMN "{columns[rest[0] % len(columns)]}"')
        elif kind == "set" and not (table == "StringIds" and rest[0] % len(columns) == 0):
            value = "" if table == "StringIds" and (rest[2] is None or rest[2] != rest[2]) else rest[2]
            column = columns[rest[0] % len(columns)]
            db.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid % ? = 0', (value, rest[1]))
        elif kind == "delete":
            db.execute(f"DELETE FROM {table} WHERE rowid % ? = 0", (rest[0],))
        elif kind == "double" and table != "StringIds":
            db.execute(f"INSERT INTO {table} SELECT * FROM {table}")
    db.close()
    content = bytearray(path.read_bytes())
    for kind, *rest in raw:
        pages = max(1, len(content) // 4096)
        if kind == "flip" and content:
            content[rest[0] % len(content)] ^= rest[1]
        elif kind == "page":
            at = rest[0] % pages * 4096
            content[at : at + 4096] = bytes([rest[1]]) * len(content[at : at + 4096])
        elif kind == "swap":
            a, b = (number % pages * 4096 for number in rest)
            content[a : a + 4096], content[b : b + 4096] = content[b : b + 4096], content[a : a + 4096]
        elif kind == "cut":
            del content[rest[0] % (len(content) + 1) :]
    path.write_bytes(content)


def judge(reading: Reading, names) -> str:
    """Every name has a trace or a fault; what has no device work though the fixture's cases all have has a fault."""
    assert set(reading.seen) | set(reading.faults) == set(names) or reading.general[0].kind == "unreadable"
    for name, trace in reading.seen.items():
        type(trace).model_validate(json.loads(trace.model_dump_json()))
        numbers = [trace.wall, trace.busy, trace.span, *(k.seconds for k in trace.kernels)]
        numbers += [copy.bytes for copy in trace.copies]
        assert all(math.isfinite(n) and n >= 0 for n in numbers)
        if not trace.busy:
            assert name in reading.faults or reading.general, f"silent zero in {name!r}"
    if reading.general and reading.general[0].kind == "unreadable":
        return "unreadable"
    if not reading.seen:
        return "no trace, faults"
    return "traces with faults" if reading.faults or reading.general else "whole traces"


@pytest.mark.parametrize("column", [b"deviceId", b"correlationId"])
def test_a_column_whose_name_is_no_text_is_damage(recorded, tmp_path, column):
    path = tmp_path / "mutant.sqlite"
    content = recorded["base"].read_bytes()
    at = content.index(column, re.search(rb"TABLE .?CUPTI_ACTIVITY_KIND_KERNEL\W", content).end())
    path.write_bytes(content[:at] + b"\xe4" + content[at + 1 :])
    (found,) = read(path, CASES).general
    assert found.kind == "unreadable" and "has a name that is no UTF-8" in found.text


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    "examples", [120, pytest.param(2_500, marks=[pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(1800)])]
)
def test_mutated_files_end_in_a_documented_outcome(recorded, tmp_path, examples):
    outcomes = Counter()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(SQL, max_size=3), st.lists(BYTES, max_size=3), st.booleans(), st.sampled_from(["base", "head"]))
    def run(sql, raw, whole, side):
        path = Path(shutil.copy(recorded[side], tmp_path / "mutant.sqlite"))
        mutate(path, sql, raw)
        reading = read(path, None if whole else CASES, limit=20)
        outcomes[judge(reading, [""] if whole else CASES)] += 1

    run()
    assert len(outcomes) == 4, "every documented outcome is met"


# ---------------------------------------------------------------- large traces


def memory_of(begin, code, *words):
    """The most memory of a process when it has begun and when it ends, and what it printed."""
    most = "next(int(line.split()[1]) * 1024 for line in open('/proc/self/status') if line.startswith('VmHWM:'))"
    # Not ru_maxrss: it begins with that of the process that started this one.
    code = f"import json, sys\nfrom pathlib import Path\n{begin}\nprint({most})\n{code}\nprint({most})"
    command = [sys.executable, "-c", code, *map(str, words)]
    before, *told, after = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return int(before), int(after), told


def large(path, launches):
    """A trace of four cases of `launches` kernels altogether, a nested range around every tenth."""
    export = Export(path)
    launch, kernels = export.string("cudaLaunchKernel_v7000"), [export.string(f"kernel {i}") for i in range(50)]
    export.call("cudaLaunchKernel_v7000", 0, 1, -1)
    export.kernel("kernel 0", 0, 1, -1)
    each = launches // 400
    for i in range(400):
        export.push(f"case-{i // 100}", 1000 * each * i + 500, 1000 * each * (i + 1) + 499)
    nested = export.string("step")
    series = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {each * 400 - 1}) "
    db = export.db
    db.execute(
        f"{series} INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 1000 * i + 500, 1000 * i + 900, {TID}, i, {launch}, 0 FROM n"
    )
    columns = COLUMNS["CUPTI_ACTIVITY_KIND_KERNEL"].split()
    values = {"start": "1000 * i + 2000", "end": "1000 * i + 2900", "deviceId": "0", "correlationId": "i", "globalPid": PID, "demangledName": f"{kernels[0]} + i % 50", "shortName": f"{kernels[0]} + i % 50", "gridX": "1 + i % 4", "staticSharedMemory": 123456789, "dynamicSharedMemory": 123456789, "localMemoryPerThread": 123456789}  # fmt: skip
    db.execute(
        f"{series} INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT {', '.join(str(values.get(c, 1)) for c in columns)} FROM n"
    )
    db.execute(
        f"{series} INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) SELECT 1000 * i + 499, 1000 * i + 950, 59, {TID}, {nested} FROM n WHERE i % 10 = 5"
    )
    db.commit()
    db.close()


READER = """
reading = read(Path(sys.argv[1]), [f"case-{number}" for number in range(4)] if sys.argv[2] == "ranges" else None)
trace = [*reading.seen.values()][-1]
faults = [fault.text for fault in [*sum(reading.faults.values(), []), *reading.general]]
print(json.dumps([faults, len(reading.seen), trace.executions, sum(kernel.count for kernel in trace.kernels)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("way", "told"), [("ranges", [[], 4, 100, 1250]), ("whole", [[], 1, 1, 500_001])])
def test_a_large_trace_is_read_in_bounded_memory(tmp_path, way, told):
    large(path := tmp_path / "large.sqlite", 500_000)
    assert path.stat().st_size > 40e6
    _, most, printed = memory_of("from perfci.profilers.nsys.trace import read", READER, path, way)
    assert json.loads(*printed) == told
    # 160e6 to 185e6, whatever the size; rows that are held would take 60 bytes each at least.
    assert most < 230e6
