"""Traces of an H200 that are odd and whole, and those that look whole and are not: made from the fixtures."""

import json
import sqlite3
from pathlib import Path

import pytest

from perfci.model.profile import doubt
from perfci.profilers.metrics import of_trace
from perfci.profilers.nsys.trace import read

from .test_nsys import CASES, COPY, KERNEL, RUNTIME, SET, change, profiled

MATMUL, UPLOAD, RESAMPLE = "matmul-n4096", "upload-mib64", "trajectory_resample-batch32"


def same(path: Path, other: Path) -> None:
    """Both files tell the same, without any fault that costs a value."""
    for ranges in (CASES, None):
        one, two = (read(file, ranges, executions=None if ranges is None else 10) for file in (path, other))
        assert one.faults == {} and [fault for fault in one.general if not fault.aside] == []
        assert {name: of_trace(trace) for name, trace in one.seen.items()} == {
            name: of_trace(trace) for name, trace in two.seen.items()
        }


# ---------------------------------------------------------------- odd, and whole


def test_a_table_that_numbers_no_rows_is_refused(trace):
    db = sqlite3.connect(trace)
    made = ", ".join(f'"{row[1]}"' for row in db.execute(f"PRAGMA table_info({KERNEL})"))
    db.close()
    change(
        trace,
        f"ALTER TABLE {KERNEL} RENAME TO was",
        f"CREATE TABLE {KERNEL} (place INTEGER PRIMARY KEY, {made}) WITHOUT ROWID",
        f"INSERT INTO {KERNEL} SELECT rowid, * FROM was",
        "DROP TABLE was",
    )
    (fault,) = read(trace, CASES).general
    assert fault.kind == "unreadable" and f"table {KERNEL} numbers no rows" in fault.text


def test_a_lone_surrogate_in_a_name_neither_ends_reading_nor_takes_the_kernel(trace, whole):
    """U+D800, which is no character, as UTF-8 would write it: of a kernel, a call and a range."""
    kernel = f"SELECT demangledName FROM {KERNEL} LIMIT 1"
    call = f"SELECT nameId FROM {RUNTIME} WHERE correlationId IN (SELECT correlationId FROM {SET})"
    text = "CAST(value || x'eda080' AS TEXT)"
    change(trace, *(f"UPDATE StringIds SET value = {text} WHERE id IN ({of})" for of in (kernel, call)))
    told, before = (read(path, CASES, executions=10) for path in (trace, whole))
    assert told.faults == {} and told.general == []
    names = [kernel.name for name in CASES for kernel in told.seen[name].kernels]
    assert sum("\ufffd" in name for name in names) == 1
    for name in CASES:
        json.loads(told.seen[name].model_dump_json())
        assert of_trace(told.seen[name]) == of_trace(before.seen[name])


def test_a_schema_from_the_future_is_read_by_its_columns_and_told(trace, whole):
    change(trace, "UPDATE META_DATA_EXPORT SET value = '99.0.0' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    same(trace, whole)
    (note,) = read(trace, CASES).general
    assert note.aside and "schema 99.0.0" in note.text and note.kind == "incompatible"
    assert profiled(trace, MATMUL).metrics == profiled(whole, MATMUL).metrics


@pytest.mark.parametrize("table", [KERNEL, RUNTIME, COPY, SET, "NVTX_EVENTS"])
def test_rows_that_stand_twice_count_once(trace, whole, table):
    change(trace, f"INSERT INTO {table} SELECT * FROM {table}")
    same(trace, whole)


def test_kernels_that_only_look_alike_are_counted(trace, whole):
    """At one time, of one name and shape, but on another stream: two of them."""
    columns = [row[1] for row in sqlite3.connect(trace).execute(f"PRAGMA table_info({KERNEL})")]
    other = ", ".join("streamId + 1" if column == "streamId" else f'"{column}"' for column in columns)
    change(trace, f"INSERT INTO {KERNEL} SELECT {other} FROM {KERNEL}")
    for name in (MATMUL, RESAMPLE):
        counts = [of_trace(read(path, CASES).seen[name])["kernel_launches"] for path in (trace, whole)]
        assert counts[0] == 2 * counts[1]


def ask(function: str, name: str, executions: int = 10) -> list[str]:
    """A call of `function` in the first executions of `name`, on its thread, that puts no work on the device."""
    return [
        f"INSERT OR IGNORE INTO StringIds SELECT max(id) + 1, '{function}' FROM StringIds",
        f"INSERT INTO {RUNTIME} (start, end, eventClass, globalTid, correlationId, nameId, returnValue) "
        "SELECT x.start + 1, x.start + 2, 0, x.globalTid, 900000 + x.rowid, "
        f"(SELECT id FROM StringIds WHERE value = '{function}' LIMIT 1), 0 FROM NVTX_EVENTS x "
        f"JOIN StringIds s ON s.id = x.textId WHERE s.value = '{name}' ORDER BY x.start LIMIT {executions}",
    ]


@pytest.mark.parametrize(
    ("function", "name"),
    [("cudaMemsetAsync_v3020", UPLOAD), ("cuMemsetD8Async", MATMUL), ("cudaMemcpyAsync_v3020", MATMUL)],
)
def test_a_call_of_zero_bytes_in_each_execution_is_no_loss(trace, whole, function, name):
    change(trace, *ask(function, name))
    reading = read(trace, CASES, executions=10)
    assert reading.faults == {} and reading.general == []
    assert of_trace(reading.seen[name]) == of_trace(read(whole, CASES).seen[name])


def test_a_set_of_zero_bytes_in_a_whole_process_is_no_loss(trace):
    change(trace, "UPDATE NVTX_EVENTS SET eventType = 34", *ask("cudaMemsetAsync_v3020", MATMUL, 1))
    assert read(trace, None).faults == {}


def test_a_copy_of_zero_bytes_in_a_whole_process_costs_what_is_told_of_copies(trace, whole):
    """There is one execution: nothing tells it from a copy that was lost."""
    change(trace, *ask("cudaMemcpyAsync_v3020", MATMUL, 1))
    found, before = profiled(trace, None), profiled(whole, None)
    assert doubt(found, "copy_bytes") and "or of zero bytes" in doubt(found, "copy_bytes").text
    for metric in ("kernel_launches", "device_time", "registers", "sync_count"):
        assert found.metrics[metric] == before.metrics[metric] and not doubt(found, metric)


ELSEWHERE = [
    "GPU Metrics [0]: NVPA_STATUS_ERROR - API function: Nvpw.GPU_PeriodicSampler_DecodeCounters_V2(&params)",
    "Failed to set up CPU sampling: Linux kernel paranoid level is 4.",
    "Some CPU sampling events were lost: the perf buffer was too small.",
    "Failed to resolve symbols of /usr/lib/libcudart.so.12",
    "OS runtime libraries injection failed.",
    "Not all CUDA events might have been collected.",
    "CUDA profiling might have not been started correctly.",
    "No NVTX events collected. Does the process use NVTX?",
    "ETW events were dropped",
]
LOSSES = [
    "CUPTI dropped 512 records. Some CUPTI events might be missing.",
    "NVTX events were lost",
    "Some events were lost.",
    "CUDA trace buffer overflow: events discarded",
    "CUDA injection failed to initialise",
]
"""The first three are nsys's own words for a loss, whatever their severity."""


@pytest.mark.parametrize(
    ("text", "lost", "severity"),
    [
        *((one, False, 3) for one in ELSEWHERE),
        *((one, True, 3) for one in LOSSES),
        *((one, True, 2) for one in LOSSES[:3]),
    ],
)
def test_only_what_nsys_says_of_events_that_perfci_reads_is_a_loss(trace, text, lost, severity):
    change(
        trace,
        "DROP TABLE IF EXISTS DIAGNOSTIC_EVENT",
        f"CREATE TABLE DIAGNOSTIC_EVENT AS SELECT 1 AS timestamp, {severity} AS severity, '{text}' AS text",
    )
    found = profiled(trace, MATMUL)
    assert bool(doubt(found, "kernel_launches")) == lost
    assert ("kernel_launches" in found.metrics) == (not lost)


# ---------------------------------------------------------------- not whole, and told


@pytest.mark.parametrize(
    ("statement", "name", "costs", "leaves"),
    [
        (f"DELETE FROM {KERNEL} WHERE rowid % 2 = 0", RESAMPLE, "kernel_launches device_time", ""),
        (f"DELETE FROM {RUNTIME} WHERE rowid % 7 = 0", RESAMPLE, "kernel_launches", ""),
        (f"DELETE FROM {KERNEL}", MATMUL, "kernel_launches device_time registers kernels", "sync_count"),
        (f"DROP TABLE {KERNEL}", MATMUL, "kernel_launches device_time registers kernels", "sync_count"),
        (f"DROP TABLE {SET}", MATMUL, "device_busy launch_overhead", "kernel_launches registers"),
        (f"DELETE FROM {SET} WHERE rowid = 3", MATMUL, "device_busy launch_overhead", "kernel_launches registers"),
        (f"DROP TABLE {COPY}", UPLOAD, "copy_bytes copy_time kernel_launches", ""),
        (f"DELETE FROM {COPY} WHERE rowid = 3", UPLOAD, "copy_bytes copy_time", "sync_count kernel_launches"),
    ],
)
def test_what_is_lost_costs_what_follows_from_it(trace, statement, name, costs, leaves):
    change(trace, statement)
    found = profiled(trace, name)
    for metric in costs.split():
        assert doubt(found, metric) and metric not in found.metrics, metric
    for metric in leaves.split():
        assert not doubt(found, metric) and metric in found.metrics, metric


def test_an_execution_that_is_missing_is_told(trace):
    named = f"SELECT x.rowid FROM NVTX_EVENTS x JOIN StringIds s ON s.id = x.textId WHERE s.value = '{MATMUL}' LIMIT 1"
    change(trace, f"DELETE FROM NVTX_EVENTS WHERE rowid = ({named})")
    found = doubt(profiled(trace, MATMUL), "kernel_launches")
    assert found is not None and found.text == "9 of its executions are in the trace, and 10 were made"
    assert profiled(trace, RESAMPLE).faults == []


def test_a_call_that_is_missing_in_a_whole_process_costs_it_all(trace):
    """With it the kernel of another call may be gone, and nothing would tell."""
    change(trace, f"DELETE FROM {RUNTIME} WHERE correlationId = (SELECT correlationId FROM {KERNEL} LIMIT 1)")
    found = profiled(trace, None)
    assert found.metrics == {} and "1 kernels have no call" in doubt(found, "kernel_launches").text
