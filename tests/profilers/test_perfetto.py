"""The browser's timeline of an nsys export whole on an H200, and of broken and hostile ones."""

import collections
import gzip
import json
import sqlite3

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfci.model.profile import Fault
from perfci.profilers.nsys.perfetto import GPU_PROCESS, write

from .test_nsys import COPY, KERNEL, RUNTIME, change, large, memory_of


def timeline(export, tmp_path, **more):
    out = tmp_path / "trace.json.gz"
    assert write(export, out, **more) is None
    with gzip.open(out, "rt") as packed:
        document = json.load(packed, parse_constant=pytest.fail)
    valid(document["traceEvents"])
    return document


def valid(events):
    """Chrome's Trace Event Format, as far as ui.perfetto.dev asks for it; slices of a thread nest."""
    named, open_ends, last = set(), collections.defaultdict(list), 0
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            key = event["name"], event["pid"] if event["name"] == "process_name" else track
            assert key not in named
            named.add(key)
        elif event["ph"] == "X":
            assert event["ts"] >= last and event["dur"] >= 0 and isinstance(event["args"], dict)
            last = event["ts"]
            assert ("process_name", event["pid"]) in named and ("thread_name", track) in named
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            ends = open_ends[track]
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)
        else:
            assert event["ph"] == "i" and event["s"] == "g"


def slices(document, category=None):
    return [one for one in document["traceEvents"] if one["ph"] == "X" and category in (None, one["cat"])]


def test_everything_of_the_export_is_in_it(whole, tmp_path):
    document = timeline(whole, tmp_path)
    told = document["otherData"]
    assert told == {"source": "nsys", "events": 325, "shown": 325, "most": 500_000, "origin_ns": 6240829}
    assert collections.Counter(one["cat"] for one in slices(document)) == {"cuda": 195, "kernel": 70, "nvtx": 40, "set": 10, "copy": 10}  # fmt: skip
    assert {one["args"]["name"] for one in document["traceEvents"] if one["ph"] == "M"} == {"process 23", "thread 23", "GPU 0 (process 23)", "stream 7"}  # fmt: skip
    database = sqlite3.connect(whole)
    for table, category in ((KERNEL, "kernel"), ("NVTX_EVENTS", "nvtx"), (RUNTIME, "cuda")):
        rows = sorted(database.execute(f'SELECT start - 6240829, "end" - start FROM {table} WHERE "end" IS NOT NULL'))
        assert [(round(one["ts"] * 1000), round(one["dur"] * 1000)) for one in slices(document, category)] == rows


def test_names_and_details(whole, tmp_path):
    document = timeline(whole, tmp_path)
    assert collections.Counter(one["name"] for one in slices(document, "nvtx")) == {
        "sdpa-seq512": 10, "matmul-n4096": 10, "trajectory_resample-batch32": 10, "upload-mib64": 10
    }  # fmt: skip
    flash = slices(document, "kernel")[0]
    assert flash["name"].startswith("void pytorch_flash::flash_fwd_kernel<") and flash["pid"] >= GPU_PROCESS
    assert flash["args"] == {
        "correlationId": 73, "registersPerThread": 255, "staticSharedMemory": 0, "dynamicSharedMemory": 49152,
        "localMemoryPerThread": 0, "grid": [4, 32, 8], "block": [128, 1, 1],
    }  # fmt: skip
    copy = slices(document, "copy")[0]
    assert copy["name"] == "copy host to device (pinned to device)" and copy["args"]["bytes"] == 64 * 2**20


def test_nothing_of_the_machine_is_in_it(trace, tmp_path):
    """What the export holds beside events, and what a name that is an id might lead to."""
    canary = "canary-4711"
    change(
        trace,
        *(f"UPDATE {name} SET value = '{canary}'" for name in ("META_DATA_CAPTURE", "META_DATA_EXPORT")),
        f"UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{canary}'",
        f"UPDATE PROCESSES SET name = '{canary}'",
        f"UPDATE TARGET_INFO_GPU SET name = '{canary}', uuid = '{canary}', busLocation = '{canary}'",
        f"INSERT INTO StringIds VALUES (99999, 'AWS_SECRET={canary}')",
        "INSERT INTO ProcessStreams (globalPid, contentId, filenameId) VALUES (1, 99999, 99999)",
        "UPDATE ThreadNames SET nameId = 99999",
    )
    document = timeline(trace, tmp_path)
    assert canary not in json.dumps(document) and len(slices(document)) == 325


def test_a_cap_is_said(whole, tmp_path):
    document = timeline(whole, tmp_path, most=100)
    assert document["otherData"]["events"] == 325 and document["otherData"]["shown"] == 100 == len(slices(document))
    last = document["traceEvents"][-1]
    assert last["ph"] == "i" and last["name"].startswith("100 of 325 events are shown")
    assert slices(document) == slices(timeline(whole, tmp_path))[:100]


def export_of(tmp_path, **tables):
    """An export with these tables: column names, then rows."""
    path = tmp_path / "made.sqlite"
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    for name, (columns, *rows) in tables.items():
        database.execute(f"CREATE TABLE {name} ({', '.join(f'{chr(34)}{one}{chr(34)}' for one in columns.split())})")
        for row in rows:
            database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
    database.commit()
    database.close()
    return path


def test_slices_that_do_not_nest_get_lanes(tmp_path):
    thread = (7 << 24) + 9
    rows = [(0, 100, "a", thread), (50, 150, "b", thread), (60, 90, "c", thread), (120, 130, "d", thread), (150, 160, "e", thread)]  # fmt: skip
    path = export_of(tmp_path, NVTX_EVENTS=("start end text globalTid", *rows))
    document = timeline(path, tmp_path)
    lanes = {one["tid"]: one["args"]["name"] for one in document["traceEvents"] if one["name"] == "thread_name"}
    found = {one["name"]: lanes[one["tid"]] for one in slices(document)}
    assert found == {"a": "thread 9", "b": "thread 9 (2)", "c": "thread 9", "d": "thread 9", "e": "thread 9"}


def test_an_old_schema_and_names_that_json_must_escape(tmp_path):
    nasty = 'quote " back\\slash \n new </script> \x00 \ud83d'.encode(errors="surrogatepass").decode(errors="replace")
    path = export_of(
        tmp_path, StringIds=("id value", (1, nasty)),
        CUPTI_ACTIVITY_KIND_KERNEL=("start end demangledName", (5, 9, 1), (9, 12, 77)),
        NVTX_EVENTS=("start end text", (1, None, "mark"), (2, 20, nasty), (3, 4, None)),
    )  # fmt: skip
    document = timeline(path, tmp_path)
    assert [one["name"] for one in slices(document)] == [nasty, "nvtx", nasty, "kernel"]


def test_missing_empty_and_foreign(tmp_path):
    fault = write(tmp_path / "none.sqlite", tmp_path / "out.gz")
    assert isinstance(fault, Fault) and fault.kind == "unreadable" and "\n" not in fault.text and fault.remedy
    assert not (tmp_path / "none.sqlite").exists()
    assert write(export_of(tmp_path, other=("a", (1,))), tmp_path / "out.gz").kind == "unreadable"
    empty = export_of(tmp_path, NVTX_EVENTS=("start end text globalTid",), StringIds=("id value",))
    assert write(empty, tmp_path / "out.gz").kind == "empty"
    empty.write_bytes(b"x" * 5000)
    assert write(empty, tmp_path / "out.gz").kind == "unreadable"
    assert list(tmp_path.iterdir()) == [empty]


def drawn(folder, content):
    """The fault of drawing a file of these bytes, or None of a valid timeline."""
    path, out = folder / "t.sqlite", folder / "out.gz"
    out.unlink(missing_ok=True)
    path.write_bytes(content)
    fault = write(path, out)
    assert (fault is None) == out.exists()
    if fault is None:
        with gzip.open(out, "rt") as packed:
            valid(json.load(packed, parse_constant=pytest.fail)["traceEvents"])
    return fault


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_bytes_are_a_timeline_or_a_fault(whole, tmp_path, data):
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 200))
        piece = data.draw(st.binary(min_size=1, max_size=100))
        content[at : at + len(piece)] = piece
    drawn(tmp_path, content)


VALUE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[VALUE] * 8), max_size=8))
@example([(0, 29480251, *[None] * 6), (-3_713_575_159_818_634_750, 29480251, *[None] * 6)])
def test_any_values_are_a_timeline_or_a_fault(tmp_path, rows):
    columns = "start end globalPid deviceId streamId copyKind srcKind bytes"
    drawn(tmp_path, export_of(tmp_path, **{COPY: (columns, *rows)}).read_bytes())


@pytest.mark.slow
def test_a_large_export_in_bounded_memory(tmp_path):
    """A million calls and kernels."""
    large(path := tmp_path / "large.sqlite", 500_000)
    begin, code = "from perfci.profilers.nsys.perfetto import write", "assert write(*map(Path, sys.argv[1:])) is None"
    before, most, _ = memory_of(begin, code, path, tmp_path / "out.gz")
    assert most - before < 150 * 2**20
    text = gzip.decompress((tmp_path / "out.gz").read_bytes()).decode()
    assert text.rstrip().endswith('"shown": 500000, "most": 500000, "origin_ns": 0}}')
