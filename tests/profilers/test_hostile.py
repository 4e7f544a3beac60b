"""Files that somebody made to keep a reader busy, through the processes that read them.

The bounds are the mechanism's: a reader that passed ten seconds of processor time or its memory would say so, and these
say something else.
"""

import gzip
import io
import json
import lzma
import os
import random
import struct
from pathlib import Path

import pytest

from perfci.model.profile import KernelUse
from perfci.profilers.ncu import layout as ncu_layout
from perfci.profilers.ncu import profiler as ncu_profiler
from perfci.profilers.ncu import report as ncu
from perfci.profilers.nsys import export as nsys_export
from perfci.profilers.nsys import perfetto
from perfci.profilers.nsys import profiler as nsys_profiler
from perfci.profilers.nsys import trace as nsys
from perfci.profilers.sass import code as sass
from perfci.profilers.sass import profiler as sass_profiler
from perfci.profilers.scan import held_secrets
from perfci.profilers.torch import profiler as kineto_profiler
from perfci.profilers.torch import trace as kineto
from perfci.system.bounded import Bounds, Unread

DATA = Path(__file__).parents[1] / "data"


def bound(monkeypatch, seconds):
    """Every reader within so many seconds and half a gigabyte, whatever the size of its file."""

    def grown(size, per_second, most, memory=0, **more):
        return Bounds(seconds, 400 * 2**20, **more)

    for module in (nsys_profiler, ncu_profiler, kineto_profiler):
        monkeypatch.setattr(module, "grown", grown)


@pytest.fixture(autouse=True)
def ten_seconds(monkeypatch):
    bound(monkeypatch, 10)


# ---------------------------------------------------------------- nsys


@pytest.fixture
def export(one):
    """A small export whose one case is read without a fault."""
    one.db.commit()
    return one


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, 'x' AS value FROM n"


def as_view(db):
    db.execute("ALTER TABLE StringIds RENAME TO Strings")
    db.execute(f"CREATE VIEW StringIds AS {ENDLESS}")


def as_lying_view(db):
    """Its entry says that it is a table with a page of its own."""
    as_view(db)
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET type = 'table', rootpage = 2 WHERE name = 'StringIds'")


def as_virtual(db):
    db.execute("ALTER TABLE StringIds RENAME TO Strings")
    db.execute("CREATE VIRTUAL TABLE StringIds USING fts5(id, value)")


@pytest.mark.parametrize("pose", [pytest.param(as_view, marks=pytest.mark.slow), as_lying_view, as_virtual])
def test_a_program_in_the_place_of_a_table(export, tmp_path, pose):
    pose(export.db)
    export.db.commit()
    export.db.close()
    (fault,) = nsys_profiler.traces(export.path, ["a"]).general
    assert fault.kind == "unreadable" and ("tables are missing" in fault.text or "damaged" in fault.text), fault
    (kept,) = nsys_profiler.keep_export(export.path, tmp_path)
    assert kept.kind == "unreadable" and ("which is no table" in kept.text or "cannot be scrubbed" in kept.text), kept
    timeline = perfetto.write(export.path, tmp_path / "out.gz")
    assert timeline is not None and timeline.kind == "unreadable"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["trace.sqlite"]


def test_a_view_beside_the_tables_that_a_lookup_asks_for(export):
    export.db.execute("DROP TABLE META_DATA_CAPTURE")
    export.db.execute(f"CREATE VIEW META_DATA_CAPTURE AS SELECT value AS name, value FROM ({ENDLESS})")
    export.db.execute(f"CREATE VIEW ENUM_DIAGNOSTIC_SEVERITY_LEVEL AS SELECT id, value AS name FROM ({ENDLESS})")
    export.db.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT, severity INTEGER)")
    export.db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES ('all is well', 1)")
    export.db.commit()
    assert len(nsys_profiler.traces(export.path, ["a"]).seen["a"].kernels) == 1


@pytest.mark.slow
def test_a_name_of_a_hundred_megabytes(export, tmp_path):
    export.db.execute("UPDATE StringIds SET value = replace(hex(zeroblob(50000000)), '00', 'kk') WHERE value = 'k'")
    export.db.commit()
    export.db.close()
    (fault,) = nsys_profiler.traces(export.path, ["a"]).general
    assert (fault.kind, "too big" in fault.text) == ("unreadable", True), fault
    out = tmp_path / "out.gz"
    refused = perfetto.write(export.path, out)
    assert refused is not None and "too big" in refused.text and not out.exists()
    (kept,) = nsys_profiler.keep_export(export.path, tmp_path)
    assert "too big" in kept.text and sorted(one.name for one in tmp_path.iterdir()) == ["trace.sqlite"]


def test_names_are_cut_and_lanes_end(export, tmp_path):
    """A thousand slices of one thread that all overlap, of names half a megabyte long."""
    long = export.string("k" * 2**19)
    tid = export.db.execute("SELECT globalTid FROM NVTX_EVENTS").fetchone()[0]
    export.db.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) VALUES (?, ?, 60, ?, ?)",
        ((1000 + i, 5000 + i, tid, long) for i in range(1000)),
    )
    export.db.commit()
    out = tmp_path / "out.gz"
    assert perfetto.write(export.path, out) is None
    with gzip.open(out) as packed:
        document = json.load(packed)
    drawn = [one for one in document["traceEvents"] if one["ph"] == "X" and one["name"].startswith("kk")]
    assert len(drawn) == perfetto.MOST_LANES and {len(one["name"]) for one in drawn} == {perfetto.LONGEST_NAME}
    assert document["otherData"]["shown"] == document["otherData"]["events"] - 1000 + perfetto.MOST_LANES


@pytest.mark.slow
def test_joins_that_a_missing_key_makes_endless(export, monkeypatch):
    """Without its key each name is searched among all: 20 000 times 20 000."""
    db = export.db
    rows = db.execute("SELECT id, value FROM StringIds").fetchall()
    db.execute("DROP TABLE StringIds")
    db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [*((-i, "x") for i in range(1, 20_000)), *rows])
    tid = db.execute("SELECT globalTid FROM NVTX_EVENTS").fetchone()[0]
    db.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) VALUES (?, ?, 59, ?, 99999999)",
        ((110 + i, 110 + i, tid) for i in range(20_000)),
    )
    db.commit()
    (fault,) = nsys_profiler.traces(export.path, ["a"]).general
    assert fault.text.startswith("trace.sqlite: not read within"), fault


def holes(path, begin, size):
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(size)
    return path


def test_an_export_of_holes(tmp_path):
    path = holes(tmp_path / "t.sqlite", b"SQLite format 3\0", 2**30)
    (fault,) = nsys_profiler.traces(path, ["a"]).general
    assert fault.text == "t.sqlite: has 1024 MiB, of which 0 are on the disk" and fault.kind == "unreadable"
    assert nsys_profiler.keep_export(path, tmp_path) == [fault.model_copy(update={"aside": True})]
    with pytest.raises(Unread):
        held_secrets(path, {"A": "secret"}, nsys_export.LARGEST)


# ---------------------------------------------------------------- ncu


def message(**fields):
    """A protobuf message of small numbers."""
    return b"".join(bytes([int(key[1:]) << 3, value]) for key, value in fields.items())


def block(header):
    return struct.pack("<I", len(header)) + header


def counters(path):
    return ncu_profiler.counters(path, ranges=["a"], whole=False, names=["dram_bytes"], most=None, installed=None)


MADE = ncu_layout.MAGIC + block(message(f1=7))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(lambda: MADE + block(message(f2=0)) * 10_000_000, "has more than 200000 blocks", marks=pytest.mark.slow),
        (lambda: MADE + struct.pack("<I", 20_000_000) + b"\x08\x00" * 30_000_000, "is cut or damaged"),
        pytest.param(lambda: b'"x",' * 2**18 * 300, "", marks=pytest.mark.slow),
    ],
    ids=["sixty megabytes of tiny blocks", "a block whose header is the file", "a page that is one line"],
)  # fmt: skip
def test_large_reports_that_hold_nothing(tmp_path, content, says):
    path = tmp_path / "r.ncu-rep"
    path.write_bytes(content())
    (fault,) = counters(path).general
    assert fault.kind == "unreadable" and says in fault.text


def test_a_report_of_holes_or_without_an_end(tmp_path):
    path = holes(tmp_path / "r.ncu-rep", ncu_layout.MAGIC, 2**30)
    (fault,) = counters(path).general
    assert fault.text == "r.ncu-rep: has 1024 MiB, of which 0 are on the disk"
    path.unlink()
    os.mkfifo(path)
    (fault,) = counters(path).general
    assert fault.text == "r.ncu-rep: is no ordinary file"


def test_a_header_that_holds_all_texts_is_no_damage():
    """As of a report with `--set full`."""
    texts = b"\x12" + b"\x80\x80\x10" + b"x" * 2**18  # field 2, of 2^18 bytes
    report = MADE + block(message(f2=1)) + block(texts)
    found = ncu_layout.blocks(io.BytesIO(report), len(report))
    assert found is not None and len(found) == 3


# ---------------------------------------------------------------- torch.profiler


def trace(path):
    ((seen, faults),) = kineto_profiler.traces({"a": path}, "perfci-execution", "cuda").values()
    assert seen is None
    return faults[0]


def packed(path, begin, repeated, times):
    """A file of many members, which is small as only what was made by hand is."""
    piece = gzip.compress(repeated * (2**24 // len(repeated)))
    path.write_bytes(gzip.compress(begin) + piece * times)
    return path


@pytest.mark.parametrize("times", [pytest.param(3, id="48 kB"), pytest.param(240, id="4 MB", marks=pytest.mark.slow)])
def test_white_space(tmp_path, times):
    fault = trace(packed(tmp_path / "t.json.gz", b'{"traceEvents": [', b" \n\t\r", times))
    assert fault.kind == "unreadable"
    assert ("unpacks to more than" in fault.text) == (times > 100) and "within" not in fault.text, fault


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        (b'{"traceEvents": [', b"["),
        (b'{"traceEvents": [{"name": "', b"x"),
        (b'{"traceEvents": [', b"1"),
        pytest.param(b'{"traceEvents": [0', b",[]", marks=pytest.mark.slow),
        pytest.param(b'{"traceEvents": [0', b", {}", marks=pytest.mark.slow),
        pytest.param(
            b'{"traceEvents": [0',
            b',{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 1}',
            marks=pytest.mark.slow,
        ),
        pytest.param(b'{"a": 0', b', "a": 0', marks=pytest.mark.slow),
    ],
)
def test_bombs(tmp_path, monkeypatch, begin, repeated):
    bound(monkeypatch, 3)
    fault = trace(packed(tmp_path / "t.json.gz", begin, repeated, 6))
    assert fault.kind in ("unreadable", "incomplete"), fault


@pytest.mark.slow
def test_one_of_several_breaks_only_itself(tmp_path, monkeypatch):
    recorded = DATA / "kineto" / "cuda.json"
    bomb = packed(tmp_path / "t.json.gz", b'{"traceEvents": [', b'{"cat": "x"},', 40)
    bound(monkeypatch, 2)
    found = kineto_profiler.traces(
        {"bomb": bomb, "whole": recorded, "none": tmp_path / "none"}, "perfci-execution", "cuda"
    )
    assert found["whole"] == (kineto.read(recorded, "perfci-execution"), [])
    assert found["bomb"][0] is None and found["bomb"][1][0].kind == "unreadable"
    assert found["none"][1][0].text == "none: there is no such file"


# ---------------------------------------------------------------- what is whole is read the same


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.slow
def test_whole_files_are_read_as_without_a_process(recorded, tmp_path, side):
    path = recorded[side]
    whole = nsys.read(path, None)
    assert nsys_profiler.traces(path, None) == whole
    kept = tmp_path / "kept"
    kept.mkdir()
    assert nsys_profiler.keep_export(path, kept) == []
    assert nsys.read(kept / path.name, None) == whole
    assert perfetto.write(path, tmp_path / "direct.gz") is None
    with gzip.open(kept / f"{side}.timeline.json.gz") as a, gzip.open(tmp_path / "direct.gz") as b:
        assert a.read() == b.read()
    assert held_secrets(path, {"A": "never in it", "B": "StringIds"}, nsys_export.LARGEST) == ["B"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_damaged_files_are_read_as_without_a_process(recorded, tmp_path, seed):
    draw = random.Random(seed)

    def damaged(content: bytes, name: str) -> Path:
        mutant = bytearray(content)
        for _ in range(draw.randint(1, 5)):
            at = draw.randrange(len(mutant))
            mutant[at : at + 20] = draw.randbytes(draw.choice((1, 5, 20)))
        (tmp_path / name).write_bytes(mutant)
        return tmp_path / name

    export = damaged(recorded["head"].read_bytes(), "x.sqlite")
    assert nsys_profiler.traces(export, None) == nsys.read(export, None)
    page = damaged(lzma.decompress((DATA / "ncu" / "ncu_base.csv.xz").read_bytes()), "x.csv")
    apart = ncu_profiler.counters(page, ranges=None, whole=True, names=["dram_bytes"], most=None, installed=None)
    assert apart == ncu.read(page, whole=True, names=["dram_bytes"])
    for path in (DATA / "kineto" / "cuda.json", DATA / "kineto" / "cpu.json.gz"):
        trace = damaged(path.read_bytes(), path.name)
        found = kineto.read(trace, "perfci-execution", "cpu")
        ((seen, faults),) = kineto_profiler.traces({"a": trace}, "perfci-execution", "cpu").values()
        assert [seen] == ([None] if faults else [found]) and faults == ([found] if faults else [])


# ---------------------------------------------------------------- machine code


def inspected(folder, script, *names):
    """What is read of one file by a tool that runs this, for kernels of these names."""
    tool = folder / "cuobjdump"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    (folder / "a.cubin").write_bytes(b"\x7fELF" + " ".join(names).encode())
    kernels = [KernelUse(name=name, count=1, seconds=1, grid=(1, 1, 1), block=(1, 1, 1)) for name in names]
    return sass_profiler.code([folder], tool, (9, 0), [kernels, []])


def test_a_tool_that_prints_without_end(tmp_path):
    """What it prints of a file, in the place of a stranger's kernel."""
    found = inspected(tmp_path, "exec tr '\\0' x </dev/zero", "k")
    assert found == ([[None], []], ["a.cubin: it prints a line that has no end"])


def test_a_tool_that_takes_all_memory(tmp_path):
    _, left = inspected(tmp_path, "exec python3 -c 'bytearray(2**30)'", "k")
    assert left == ["a.cubin: cuobjdump exited with status 1: MemoryError"]


def test_names_that_a_demangler_dies_of(tmp_path):
    """C++'s own follows a name as deep as it goes: 100 000 pointers end a process, and not this one."""
    script = "printf '\\tFunction : _Z1fI%sivE\\n' $(head -c 300000 /dev/zero | tr '\\0' P)\necho '\t..........'"
    try:
        assert inspected(tmp_path, script, "_Z1fI" + "P" * 1900 + "ivE") == ([[None], []], [])
    except Unread as why:
        assert "died" in str(why)


def test_libraries_of_holes_are_left(tmp_path):
    for number in range(50):
        holes(tmp_path / f"{number}.so", b"\x7fELF", sass.LARGEST)
    found, left = sass_profiler.code([tmp_path], None, (9, 0), [])
    assert found == [] and left[0].endswith(".so: not read, mostly holes") and len(left) == 50
