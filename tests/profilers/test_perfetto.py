"""The browser's timeline of an nsys export recorded on an H200, and of broken and hostile ones."""

import collections
import gzip
import json
import lzma
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfci.model.profile import Fault
from perfci.profilers.nsys.perfetto import GPU_PROCESS, write

DATA = Path(__file__).parents[1] / "data" / "nsys"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "base.sqlite"
    with lzma.open(DATA / "base.sqlite.xz") as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    return path


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


def test_everything_of_the_export_is_in_it(recorded, tmp_path):
    document = timeline(recorded, tmp_path)
    assert document["otherData"] == {
        "source": "nsys",
        "events": 325,
        "shown": 325,
        "most": 500_000,
        "origin_ns": 6240829,
    }
    assert collections.Counter(one["cat"] for one in slices(document)) == {"cuda": 195, "kernel": 70, "nvtx": 40, "set": 10, "copy": 10}  # fmt: skip
    assert {one["args"]["name"] for one in document["traceEvents"] if one["ph"] == "M"} == {"process 23", "thread 23", "GPU 0 (process 23)", "stream 7"}  # fmt: skip
    database = sqlite3.connect(recorded)
    for table, category in (("CUPTI_ACTIVITY_KIND_KERNEL", "kernel"), ("NVTX_EVENTS", "nvtx"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "cuda")):  # fmt: skip
        rows = sorted(database.execute(f'SELECT start - 6240829, "end" - start FROM {table} WHERE "end" IS NOT NULL'))
        assert [(round(one["ts"] * 1000), round(one["dur"] * 1000)) for one in slices(document, category)] == rows


def test_names_and_details(recorded, tmp_path):
    document = timeline(recorded, tmp_path, ranges={"sdpa-seq512": "sdpa/seq=512"})
    assert collections.Counter(one["name"] for one in slices(document, "nvtx")) == {
        "sdpa/seq=512": 10, "matmul-n4096": 10, "trajectory_resample-batch32": 10, "upload-mib64": 10
    }  # fmt: skip
    flash = slices(document, "kernel")[0]
    assert flash["name"].startswith("void pytorch_flash::flash_fwd_kernel<") and flash["pid"] >= GPU_PROCESS
    details = dict(flash["args"])
    assert details.pop("correlationId") == 73
    assert details == {
        "registersPerThread": 255, "staticSharedMemory": 0, "dynamicSharedMemory": 49152, "localMemoryPerThread": 0,
        "grid": [4, 32, 8], "block": [128, 1, 1],
    }  # fmt: skip
    copy = slices(document, "copy")[0]
    assert copy["name"] == "copy host to device (pinned to device)" and copy["args"]["bytes"] == 64 * 2**20


def test_nothing_of_the_machine_is_in_it(recorded, tmp_path):
    """What the export holds beside events, and what a name that is an id might lead to."""
    export = tmp_path / "export.sqlite"
    shutil.copy(recorded, export)
    database = sqlite3.connect(export)
    canary = "canary-4711"
    database.execute("UPDATE META_DATA_CAPTURE SET value = ?", (canary,))
    database.execute("UPDATE META_DATA_EXPORT SET value = ?", (canary,))
    database.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ?", (canary,))
    database.execute("UPDATE PROCESSES SET name = ?", (canary,))
    database.execute("UPDATE TARGET_INFO_GPU SET name = ?, uuid = ?, busLocation = ?", (canary,) * 3)
    database.execute("INSERT INTO StringIds VALUES (99999, ?)", (f"AWS_SECRET={canary}",))
    database.execute("UPDATE ProcessStreams SET contentId = 99999, filenameId = 99999")
    database.execute("UPDATE ThreadNames SET nameId = 99999")
    database.commit()
    database.close()
    document = timeline(export, tmp_path)
    assert canary not in json.dumps(document) and len(slices(document)) == 325


def test_a_cap_is_said(recorded, tmp_path):
    document = timeline(recorded, tmp_path, most=100)
    assert document["otherData"]["events"] == 325 and document["otherData"]["shown"] == 100 == len(slices(document))
    last = document["traceEvents"][-1]
    assert last["ph"] == "i" and last["name"].startswith("100 of 325 events are shown")
    assert slices(document) == slices(timeline(recorded, tmp_path))[:100]


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


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", "unreadable"), (b"version https://git-lfs.github.com/spec/v1\n", "unreadable"), (b"x" * 5000, "unreadable")],
)
def test_what_is_no_export_is_a_fault(tmp_path, content, kind):
    path = tmp_path / "t.sqlite"
    path.write_bytes(content)
    fault = write(path, tmp_path / "out.gz")
    assert isinstance(fault, Fault) and fault.kind == kind and "\n" not in fault.text and fault.remedy
    assert [one.name for one in tmp_path.iterdir()] == ["t.sqlite"]


def test_missing_empty_and_foreign(tmp_path):
    assert write(tmp_path / "none.sqlite", tmp_path / "out.gz").kind == "unreadable"
    assert not (tmp_path / "none.sqlite").exists()
    assert write(export_of(tmp_path, other=("a", (1,))), tmp_path / "out.gz").kind == "unreadable"
    empty = export_of(tmp_path, NVTX_EVENTS=("start end text globalTid",), StringIds=("id value",))
    assert write(empty, tmp_path / "out.gz").kind == "empty"
    assert not (tmp_path / "out.gz").exists()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.95])
def test_truncated(recorded, tmp_path, share):
    path = tmp_path / "t.sqlite"
    whole = recorded.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    out = tmp_path / "out.gz"
    fault = write(path, out)
    assert (fault is None) == out.exists() and (fault is None or fault.kind in ("unreadable", "empty"))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_bytes_are_a_timeline_or_a_fault(recorded, tmp_path, data):
    content = bytearray(recorded.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 200))
        piece = data.draw(st.binary(min_size=1, max_size=100))
        content[at : at + len(piece)] = piece
    path, out = tmp_path / "t.sqlite", tmp_path / "out.gz"
    out.unlink(missing_ok=True)
    path.write_bytes(content)
    fault = write(path, out)
    assert (fault is None) == out.exists()
    if fault is None:
        with gzip.open(out, "rt") as packed:
            valid(json.load(packed, parse_constant=pytest.fail)["traceEvents"])


VALUE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[VALUE] * 8), max_size=8))
@example([(0, 29480251, *[None] * 6), (-3_713_575_159_818_634_750, 29480251, *[None] * 6)])
def test_any_values_are_a_timeline_or_a_fault(tmp_path, rows):
    columns = "start end globalPid deviceId streamId copyKind srcKind bytes"
    path, out = export_of(tmp_path, CUPTI_ACTIVITY_KIND_MEMCPY=(columns, *rows)), tmp_path / "trace.json.gz"
    out.unlink(missing_ok=True)
    if write(path, out) is None:
        with gzip.open(out, "rt") as packed:
            valid(json.load(packed, parse_constant=pytest.fail)["traceEvents"])


@pytest.mark.slow
def test_a_large_export_in_bounded_memory(tmp_path):
    """Two million calls and kernels: 200 MB of sqlite."""
    import subprocess
    import sys

    path = tmp_path / "large.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    database.execute("INSERT INTO StringIds VALUES (1, ?)", ("k" * 200,))
    database.execute(
        'CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, nameId, correlationId, returnValue)'
    )
    database.execute(
        'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", globalPid, deviceId, streamId, correlationId, demangledName)'
    )
    n = 10**6
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, 1, ?, 0)",
        ((i * 10, i * 10 + 5, 7 << 24 | 9, i) for i in range(n)),
    )
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 0, 7, ?, 1)",
        (((n - i) * 10, (n - i) * 10 + 9, 7 << 24, i) for i in range(n)),
    )
    database.commit()
    database.close()
    code = f"""
from pathlib import Path
from perfci.profilers.nsys.perfetto import write
def most():  # not ru_maxrss: it begins with that of the process that started this one
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    return int(line.split()[1])
before = most()
assert write(Path({str(path)!r}), Path({str(tmp_path / "out.gz")!r})) is None
print((most() - before) // 1024)
"""
    grown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(grown) < 150
    text = gzip.decompress((tmp_path / "out.gz").read_bytes()).decode()
    assert text.rstrip().endswith('"shown": 500000, "most": 500000, "origin_ns": 0}}')
