"""The cache of a store, and `perfci history show`, which answers from it."""

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from perfci.history import cache as module
from perfci.history.cache import Answer, Cache, Entry, Series, open_cache
from perfci.history.document import Commit, Compared, Night, Reference
from perfci.history.store import Store, open_store
from perfci.history.stores.base import content_of, name_of
from perfci.model.base import UsageError
from perfci.render.history import fault_lines, no_series, print_series, sparkline
from tests.history.nights import at, commit, compared, night, point, ratio

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store("store", tmp_path)


def shown(store: Store, *args: object, **also: object) -> list[Series]:
    with open_cache(store) as cache:
        return cache.series(*args, **also)  # type: ignore[arg-type]


def expected(nights: list[Night], case: str, metric: str = "time") -> list[tuple[object, ...]]:
    """What a series must hold, of the documents themselves."""
    found = []
    for one in nights:
        for it in one.points:
            if (it.case, it.metric) == (case, metric):
                against = it.reference.ratio if it.reference else None
                found.append((one.started, one.run, one.commit.sha, it.value, it.scatter, against and against.ratio))
    return found


def told(series: Series) -> list[tuple[object, ...]]:
    return [(e.started, e.run, e.sha, e.value, e.scatter, e.reference and e.reference.ratio) for e in series.entries]


def test_series_are_those_of_the_documents(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 3)
    monkeypatch.setattr(module, "_MOST_FILES", 2)
    draw = random.Random(1)
    nights = [
        night(day, points=[point(f"case{n}", value=draw.uniform(0.9, 1.1)) for n in range(5) if draw.random() < 0.7])
        for day in draw.sample(range(40), 20)
    ]
    for index, one in enumerate(nights):
        store.add(one)
        if index % 4 == 0:
            shown(store)
    nights.sort(key=lambda one: one.started)
    found = {one.case: told(one) for one in shown(store)}
    assert found == {case: expected(nights, case) for case in (f"case{n}" for n in range(5))}
    for one in shown(store, limit=2):
        assert told(one) == expected(nights, one.case)[-2:]
    fresh = {one.case: told(one) for one in shown(open_store(store.text))}
    assert fresh == found


def test_every_field_of_an_entry(store: Store) -> None:
    last = Compared(class_="failed", reason="wrong")
    also = point("a", value=1.02, last=last, reference=Compared(class_="regression", ratio=ratio(1.02), limit=0.02))
    store.add(night(3, attempt=2, url="https://example.org/1", points=[also]))
    (series,) = shown(store)
    assert (series.case, series.device, series.device_name, series.metric) == ("a", "cpu", "AMD EPYC 9654", "time")
    assert (series.unit, series.timing) == ("s", "hot")
    assert series.entries == [
        Entry(
            started=at(3), run="run3", attempt=2, url="https://example.org/1", sha=commit(3).sha, date=commit(3).date,
            title="Change 3", epoch="0123456789abcdef", reference_name="v1.2", reference_sha=commit(-30).sha, value=1.02e-3, scatter=0.003,
            last=Answer("failed", None, None, None, None, 0, None),
            reference=Answer("regression", 1.02, 1.018, 1.022, 0.99, 24, 0.02),
        )
    ]  # fmt: skip


def test_a_repeated_run_is_one_night(store: Store) -> None:
    store.add(night(0, run="r1"))
    store.add(night(1, run="r2", attempt=1))
    assert len(shown(store, "*")[0].entries) == 2
    again = night(2, run="r2", attempt=2)
    store.add(again)
    assert [one.started for one in shown(store, "*")[0].entries] == [at(0), again.started]


def test_series_are_chosen_by_glob_metric_and_device(store: Store) -> None:
    h200 = {"devices": {"cuda": "NVIDIA H200", "cpu": "AMD EPYC 9654"}}
    points = [
        point("sdpa/n=1", device="cuda"),
        point("sdpa/n=1"),
        point("gemm/[x]"),
        point("sdpa/n=1", metric="bandwidth"),
    ]
    store.add(night(0, points=points, **h200))
    store.add(night(1, points=[point("sdpa/n=1", device="cuda")], devices={"cuda": "NVIDIA L4"}))

    def keys(*args: object, **also: object) -> list[tuple[str, str, str]]:
        return [(one.case, one.device_name, one.metric) for one in shown(store, *args, **also)]

    assert keys("sdpa/*", metric="time", device="cuda") == [
        ("sdpa/n=1", "NVIDIA H200", "time"), ("sdpa/n=1", "NVIDIA L4", "time"),
    ]  # fmt: skip
    assert keys("*", device="*L4") == [("sdpa/n=1", "NVIDIA L4", "time")]
    assert keys("gemm/[[]x]") == [("gemm/[x]", "AMD EPYC 9654", "time")]
    assert keys("sdpa/n=1", metric="bandwidth") == [("sdpa/n=1", "AMD EPYC 9654", "bandwidth")]
    assert keys("none") == []


def test_a_night_more_reads_no_other_document(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(5):
        store.add(night(day))
    shown(store)
    store.add(night(5))
    asked: list[str] = []
    fetch = type(store)._fetch
    monkeypatch.setattr(type(store), "_fetch", lambda self, names: (asked.extend(names), fetch(self, names))[1])
    assert len(shown(store)[0].entries) == 6
    assert asked == [name_of(night(5))]


def test_what_was_changed_or_taken_away_is_no_more(store: Store, tmp_path: Path) -> None:
    for day in range(3):
        store.add(night(day))
    assert len(shown(store)[0].entries) == 3
    (tmp_path / "store" / name_of(night(0))).unlink()
    (tmp_path / "store" / name_of(night(1))).write_bytes(content_of(night(1, points=[point(value=7)])))
    assert [entry.value for entry in shown(store)[0].entries] == [7e-3, 1.01e-3]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flipped":
            path.write_bytes(content[:100] + bytes([content[100] ^ 255]) + content[101:])
        case "gone":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "gone", "folder"])
@pytest.mark.parametrize("name", ["tables.json", "points-*.parquet", "nights-*.parquet"])
def test_a_damaged_cache_is_made_anew(store: Store, folder: Path, name: str, how: str) -> None:
    for day in range(3):
        store.add(night(day))
    whole = shown(store)
    (path,) = folder.rglob(name)
    damage(path, how)
    assert shown(store) == whole


def test_a_cache_of_another_layout_is_made_anew(store: Store, folder: Path) -> None:
    store.add(night(0))
    whole = shown(store)
    (path,) = folder.rglob("tables.json")
    manifest = json.loads(path.read_text())
    manifest["layout"][1].pop()
    path.write_text(json.dumps(manifest))
    assert shown(store) == whole
    assert len(json.loads(next(folder.rglob("tables.json")).read_text())["layout"][1]) == len(module._POINT)


def test_damage_that_only_shows_when_asked_is_found(store: Store, folder: Path) -> None:
    """Bits that flip on the disk change neither a file's size nor its time."""
    for day in range(3):
        store.add(night(day))
    whole = shown(store)
    for path in folder.rglob("*.parquet"):
        status = path.stat()
        content = bytearray(path.read_bytes())
        content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shown(store) == whole


def test_two_stores_have_two_caches(store: Store, tmp_path: Path) -> None:
    store.add(night(0))
    other = open_store("other", tmp_path)
    assert len(shown(store)) == 1
    assert shown(other) == []


def test_the_tables_reach_nothing_but_their_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    cache = Cache(tmp_path / "tables", open_store("store", tmp_path), [])
    for query in (
        f"SELECT * FROM '{tmp_path}/secret.csv'",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')",
        f"ATTACH '{tmp_path}/x.db'",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
    ):
        with pytest.raises(duckdb.Error):
            cache._ask(query)
    assert not (tmp_path / "out.csv").exists()


def test_without_the_extra_it_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r'DuckDB is not installed here: pip install "perfci\[history\]"'):
        shown(store)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r's3fs is not installed here: pip install "perfci\[history\]"'):
        open_store("s3://bucket/history")


@settings(max_examples=20)
@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=4, unique=True), st.text(max_size=30))
def test_any_name_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, cases: list[str], title: str) -> None:
    root = tmp_path_factory.mktemp("store")
    store = open_store(str(root))
    store.add(night(0, points=[point(case) for case in cases], commit=Commit(sha="a" * 40, date=at(0), title=title)))
    found = shown(store)
    assert {one.case for one in found} == set(cases)
    assert {one.entries[0].title for one in found} == {title}


# ---------------------------------------------------------------- for people


def example(store: Store) -> None:
    """Two epochs with a step, a night without an answer, and names that try something."""
    for day in range(10):
        reference = Reference(name="v1.2" if day < 6 else "v1.3<b>", commit=commit(-3))
        value = 1 + 0.001 * (day % 3) + (0.03 if 3 < day < 6 else 0)
        against = Compared(
            class_="inconclusive" if day == 2 else "regression" if value > 1.02 else "unchanged",
            ratio=None if day == 2 else ratio(value),
        )
        proved = Compared(class_="unchanged", ratio=ratio(1, 0, 0))
        points = [
            point("sdpa/n=128", value=value, reference=against, last=compared(1.0) if day else None),
            point(
                "sdpa/\x1b[31m\u202eevil",
                metric="registers",
                unit="",
                value=40,
                reference=proved,
                scatter=None,
                timing="",
            ),
        ]
        title = "日本語の題名 that is far too long for a narrow terminal to hold" if day == 4 else f"Change {day}"
        store.add(
            night(
                day, reference=reference, epoch=("a" if day < 6 else "b") * 16, points=points, commit=commit(day, title)
            )
        )


@pytest.mark.parametrize("width", [0, 70, 120])
def test_a_series_reads_well(store: Store, width: int) -> None:
    example(store)
    console = Console(record=True, width=width or 80, force_terminal=bool(width), file=io.StringIO(), color_system=None)
    print_series(shown(store), console)
    text = console.export_text()
    if width:
        assert all(Console(width=500).measure(line).maximum <= width for line in text.splitlines())
    path = GOLDEN / f"show-{width or 'plain'}.txt"
    if os.environ.get("PERFCI_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_a_sparkline_does_not_draw_noise_as_change() -> None:
    def line(*values: float | None) -> str:
        return sparkline(
            [
                None if value is None else Answer("unchanged", value, value - 0.01, value + 0.01, 0.99, 9, None)
                for value in values
            ]
        )

    assert line(1.0) == line(None, 1.0) == line() == ""
    assert line(1.0, 1.1) == "▁█ +0.00 % to +10.0 %"
    assert line(1.0, None, 1.001)[:3] in ("▄·▅", "▅·▅", "▄·▄")
    assert line(1.0, 1.0)[:2] in ("▄▄", "▅▅")


def test_a_ratio_without_bounds_draws_a_line() -> None:
    wide = Answer("inconclusive", 1.0, 1e-308, 1e308, 0.5, 1, None)
    assert sparkline([wide, wide]).endswith("+0.00 % to +0.00 %")


def test_faults_are_told_and_counted(store: Store, tmp_path: Path) -> None:
    for number in range(13):
        path = tmp_path / "store/nights/2026/11" / f"\x1b[2J{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    shown(store)
    lines = fault_lines(store.faults)
    assert lines[0] == "left out: nights/2026/11/\\x1b[2J00 is no document of a history"
    assert lines[-1] == "left out: 3 documents more (history show --json names them)"
    assert len(lines) == 11


def perfci(*args: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "perfci", "history", *args], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_the_verb_shows_a_case_and_names_what_it_left_out(store: Store, tmp_path: Path) -> None:
    example(store)
    (tmp_path / "store/nights/2026/11/junk").touch()
    out, err = perfci("show", "sdpa/n*", "--store", store.text, "--limit", "3")
    assert out.startswith("sdpa/n=128  time on AMD EPYC 9654, hot\n")
    assert out.count("Change") == 3
    assert err == "perfci: left out: nights/2026/11/junk is no document of a history\n"
    out, _ = perfci("show", "sdpa/n*", "--store", store.text, "--limit", "1", "--json")
    (series,) = json.loads(out)["series"]
    assert series["entries"][0]["reference"] == {
        "class": "unchanged", "ratio": 1.0, "low": 0.998, "high": 1.002, "level": 0.99, "pairs": 24, "limit": None,
    }  # fmt: skip
    assert json.loads(out)["faults"][0]["name"] == "nights/2026/11/junk"


def test_what_is_not_there_is_told_with_what_is() -> None:
    assert "nothing is recorded there yet: `perfci history record`" in no_series("x", [])
    known = [("sdpa/n=128", "cuda", "NVIDIA H200", "time"), ("gemm\x1b", "cuda", "NVIDIA H200", "time")]
    assert no_series("x", known) == "no recorded case matches 'x': there is sdpa/n=128, gemm\\u001b"
    told = "no such metric or device is recorded of it: there is time on NVIDIA H200"
    assert no_series("sdpa/*", known) == told


@pytest.mark.slow
def test_nothing_to_show_is_an_error_of_usage(store: Store) -> None:
    assert "x: nothing is recorded there yet" in perfci("show", "x", "--store", store.text, code=2)[1]
    store.add(night(0))
    told = perfci("show", "sdpa/*", "--store", store.text, "--metric", "registers", code=2)[1]
    assert told == "perfci: sdpa/*: no such metric or device is recorded of it: there is time on AMD EPYC 9654\n"
