"""A history in a folder, and how any store reads what others wrote."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.history.store import open_store
from perfci.history.stores import base
from perfci.history.stores.base import BadNight, content_of, name_of, parse_night
from perfci.model.base import UsageError
from tests.history.nights import at, night, nights_in, point

ROOT = Path(__file__).parents[2]
VERSION_1 = ROOT / "tests/data/history/v1"


def put(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_nights_come_in_the_order_of_their_start(tmp_path: Path) -> None:
    store = open_store("store", tmp_path)
    assert nights_in(store) == []
    days = [70, 3, 400, 0]
    assert all(store.add(night(day)) for day in days)
    assert [one.started for one in nights_in(store)] == [at(day) for day in sorted(days)]
    assert nights_in(store)[0] == night(0)


def test_the_same_again_is_fine_and_other_content_is_refused_by_name(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert store.add(night(0))
    assert not store.add(night(0))
    with pytest.raises(UsageError, match=r"nights/2026/11/20261101T031500Z-run0-1.json is there with other content"):
        store.add(night(0, points=[]))
    with pytest.raises(UsageError, match="run run0, attempt 1, is there as"):
        store.add(night(2, run="run0"))
    assert store.add(night(2, run="run0", attempt=2))
    assert len(nights_in(store)) == 2


def test_a_night_that_starts_before_the_newest_takes_its_place_and_is_told(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert store.add(night(2))
    assert store.warnings == []
    assert store.add(night(1))
    (told,) = store.warnings
    assert "run1 started at 20261102T031500Z, before the newest night there, of 20261103T031500Z" in told
    assert not store.add(night(1))  # as it is there already
    assert len(store.warnings) == 1
    assert [one.run for one in store.runs()] == ["run1", "run2"]


def test_a_damaged_attempt_replaces_none_and_is_named_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for one in (night(0), night(1), night(2)):
        store.add(one)
    put(tmp_path, name_of(night(1.5, run="run1", attempt=2)), b"{")
    assert [(one.run, one.attempt) for one in store.runs()] == [("run0", 1), ("run1", 1), ("run2", 1)]
    assert [fault.name for fault in store.faults] == [name_of(night(1.5, run="run1", attempt=2))]
    put(tmp_path, name_of(night(1)), b"{")
    assert [one.run for one in store.runs()] == ["run0", "run2"]
    assert len(store.faults) == 2


def test_a_night_too_large_to_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LARGEST", 1000)
    with pytest.raises(UsageError, match="record fewer cases"):
        open_store(str(tmp_path)).add(night(0, points=[point(f"case{n}") for n in range(9)]))


@pytest.mark.parametrize("text", ["", "s3://bucket/x", "https://example.org/x", "S3://bucket/x", "GIT:main", "~/store"])
def test_what_names_no_store_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no store: name a folder, git:BRANCH"):
        open_store(text)


WRITER = """
import sys
from perfci.history.store import open_store
from tests.history.nights import night, point
store = open_store(sys.argv[1])
points = [point(f"case{n}") for n in range(100)]
print("ready", flush=True)
for number in range(1000):
    store.add(night(number, points=points))
"""


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_a_killed_writer_leaves_nothing_half_read(tmp_path: Path, seed: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.01, 0.3))
        process.send_signal(signal.SIGKILL)
    store = open_store(str(tmp_path))
    assert all(len(one.points) == 100 for one in nights_in(store))
    assert not store.faults
    store.add(night(2000))  # and the next writer is not in its way


def test_writers_of_one_name_agree_on_one(tmp_path: Path) -> None:
    code = (
        "import sys; from perfci.history.store import open_store; from tests.history.nights import night\n"
        "print(open_store(sys.argv[1]).add(night(0)))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert sorted(process.communicate()[0].strip() for process in processes) == ["False", "False", "True"]


def test_a_night_is_read_while_writers_come_and_go(tmp_path: Path) -> None:
    """A writer's temporary file may be gone between its listing and its reading."""
    store = open_store(str(tmp_path))
    store.add(night(0))
    over = threading.Event()

    def litter() -> None:
        folder = next(tmp_path.rglob("*.json*")).parent
        while not over.is_set():
            for number in range(20):
                (folder / f".{number:016x}.tmp").write_bytes(b"")
            for number in range(20):
                (folder / f".{number:016x}.tmp").unlink()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(litter)
        try:
            read = [len(nights_in(open_store(str(tmp_path)))) for _ in range(300)]
        finally:
            over.set()
        writing.result()
    assert set(read) == {1}


# ---------------------------------------------------------------- data of others


def faults(folder: Path) -> dict[str, str]:
    store = open_store(str(folder))
    for one in nights_in(store):
        assert one.run.startswith("run")
    return {fault.name: fault.reason for fault in store.faults}


def changed(**also: Any) -> bytes:
    return json.dumps({**json.loads(content_of(night(0))), **also}).encode()


NAME = name_of(night(0))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged (EOF while parsing"),
        (content_of(night(0))[:700], "is damaged (EOF while parsing"),
        (b"[" * 3_000_000, "is damaged (recursion limit exceeded"),
        (b'{"a":' * 1_000_000, "is damaged (recursion limit exceeded"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is no night that perfci recorded"),
        (b'{"kind": "something"}', "is no night that perfci recorded"),
        (changed(version=2), "is of version 2, which a newer perfci wrote: update perfci"),
        (changed(extra=1), "is no night of this version (extra: Extra inputs are not permitted)"),
        (changed(**{f"x{n}": 0 for n in range(200_000)}), "is no night of this version (200000 errors)"),
        (changed(points=[{}] * 500_000), "is no night of this version (points.0.case: Field required)"),
        (changed(run="../../etc"), "is no night of this version (run: String should match"),
        (changed(run="other"), "is of another name than its content, which is nights/2026/11/20261101T031500Z-other-1"),
        (changed(started="2026-02-31T00:00:00Z"), "is no night of this version (started: Value error, day is out of"),
        (changed(epoch="x" * 3_000_000), "is no night of this version (epoch: String should match"),
        (changed(url="javascript:alert(1)"), "is no night of this version (url: String should match"),
        (changed(points=[json.loads(point().model_dump_json())] * 2), "two points are of the same case"),
        (content_of(night(0)).replace(b'"value":0.00101', b'"value":NaN'), "is damaged"),
        (content_of(night(0)).replace(b'"value":0.00101', b'"value":1e999'), "points.0.value: Input should be a finite"),
        (content_of(night(0)).replace(b'"low":0.998', b'"low":7'), "the interval ends before it begins"),
        (content_of(night(0)).replace(b'"pairs":24', b'"pairs":' + b"9" * 40), "ratio.pairs: Input should be less than"),
        (b" " * (8 * 2**20 + 1), "has 8 MiB, more than the 8 that are read"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_hostile_document_is_named_and_left_out(tmp_path: Path, content: bytes, reason: str) -> None:
    put(tmp_path, NAME, content)
    put(tmp_path, name_of(night(1)), content_of(night(1)))
    store = open_store(str(tmp_path))
    assert [one.run for one in nights_in(store)] == ["run1"]
    ((name, said),) = [(fault.name, fault.reason) for fault in store.faults]
    assert name == NAME
    assert reason in said
    assert len(said) < 300
    assert said.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "nights/2026/11/20261101T031500Z-run0-1.json.json",
        "nights/2026/12/20261101T031500Z-run0-1.json",
        "nights/2026/20261101T031500Z-run0-1.json",
        "nights/2026/11/20261101T031500Z-run0-0.json",
        "nights/2026/11/20261101T031500Z-run0-1.json\n",
        "nights/2026/11/<img src=x onerror=alert(1)>",
        "nights/2026/11/\x1b[2J",
        "nights/٢٠٢٦/11/20261101T031500Z-run0-1.json",
        "nights/...",
    ],
)
def test_a_foreign_name_is_escaped_and_left_out(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, content_of(night(0)))
    ((told, reason),) = faults(tmp_path).items()
    assert told.isprintable()
    assert reason == "is no document of a history"


def test_links_pipes_and_folders_in_the_place_of_documents_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere", content_of(night(0)))
    store = tmp_path / "store"
    put(store, name_of(night(1)), content_of(night(1)))
    (store / NAME).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(store / name_of(night(2)))
    (store / name_of(night(3))).mkdir()
    (store / "nights/2027").symlink_to(tmp_path)
    assert set(faults(store).values()) == {"is no ordinary file"}
    assert len(faults(store)) == 4
    assert [one.run for one in nights_in(open_store(str(store)))] == ["run1"]


def test_a_link_in_the_place_of_the_store_s_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "store/nights").symlink_to(tmp_path / "other")
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(base.MachineError, match="is a link: put a folder in its place"):
        store.add(night(0))
    assert nights_in(store) == []
    assert [fault.name for fault in store.faults] == ["nights"]


def test_a_second_document_of_a_run_and_attempt_is_left_out(tmp_path: Path) -> None:
    for day in (0, 1):
        put(tmp_path, name_of(night(day, run="run")), content_of(night(day, run="run")))
    assert faults(tmp_path) == {
        "nights/2026/11/20261102T031500Z-run-1.json": f"is of the same run and attempt as {name_of(night(0, run='run'))}"
    }


def test_faults_and_documents_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_FAULTS", 3)
    monkeypatch.setattr(base, "MOST_NIGHTS", 2)
    for day in range(5):
        put(tmp_path, name_of(night(day)), content_of(night(day)))
        put(tmp_path, f"nights/2026/{day}", b"")
    store = open_store(str(tmp_path))
    assert [one.run for one in nights_in(store)] == ["run3", "run4"]
    assert len(store.faults) == 4
    assert store.faults[-1].reason == "and 3 documents more"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_whatever_stands_there_is_a_night_or_a_reason(content: bytes) -> None:
    with pytest.raises(BadNight) as why:
        parse_night(NAME, content)
    assert str(why.value).isprintable()


keys = sorted(json.loads(content_of(night(0))))


@given(st.sampled_from(keys), json_values)
def test_a_night_with_a_field_of_something_else_is_a_night_or_a_reason(key: str, value: Any) -> None:
    try:
        found = parse_night(NAME, changed(**{key: value}))
    except BadNight as why:
        assert str(why).isprintable()
    else:
        assert name_of(found) == NAME


@given(st.text(max_size=100), st.text(min_size=1, max_size=100), st.text(max_size=50))
def test_any_text_comes_back_as_it_was(title: str, case: str, unit: str) -> None:
    one = night(0, points=[point(case, unit=unit)], error=title)
    assert parse_night(NAME, content_of(one)) == one


def test_a_store_of_version_1_is_read_for_good() -> None:
    store = open_store(str(VERSION_1))
    found = nights_in(store)
    assert not store.faults
    assert [one.run for one in found] == [f"{run}.amd-epyc-9654" for run in (7391, 7402, 7410, 7423)]
    assert found[0].last is None
    assert found[2].error
    assert found[3].seam is not None
