"""`perfci history show`: the last commits of a case, from the one reading of a store."""

import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from perfci.history.document import Commit, Compared, Reference
from perfci.history.series import Interval, NightAnswer, Series, choose, collect, read
from perfci.history.store import Store, open_store
from perfci.render.history import as_json, fault_lines, no_series, print_series, sparkline
from tests.history.nights import at, commit, compared, night, perfci, point, ratio
from tests.render.shown import golden

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store("store", tmp_path)


def shown(
    store: Store, pattern: str = "*", metric: str = "time", device: str | None = None, limit: int = 99
) -> list[Series]:
    return choose(read(store), pattern, metric, device, limit)


def test_series_are_those_of_the_documents(store: Store) -> None:
    draw = random.Random(1)
    nights = [
        night(day, points=[point(f"case{n}", value=draw.uniform(0.9, 1.1)) for n in range(5) if draw.random() < 0.7])
        for day in draw.sample(range(40), 20)
    ]
    for one in nights:
        store.add(one)
    nights.sort(key=lambda one: one.started)
    for limit in (2, 99):
        for series in shown(store, limit=limit):
            expected = [(one.run, own.value) for one in nights for own in one.points if own.case == series.curve.case]
            assert [(head.run, entry.value) for head, entry in series.nights] == expected[-limit:]
    assert [one.curve.case for one in shown(store)] == [f"case{n}" for n in range(5)]


def test_every_field_of_a_night(store: Store) -> None:
    last = Compared(class_="failed", reason="wrong")
    also = point("a", value=1.02, last=last, reference=Compared(class_="regression", ratio=ratio(1.02), limit=0.02))
    store.add(night(3, attempt=2, url="https://example.org/1", points=[also]))
    nothing = {"ratio": None, "low": None, "high": None, "level": None, "pairs": 0, "limit": None}
    assert as_json(shown(store), []) == {"series": [{
        "case": "a", "device": "cpu", "device_name": "AMD EPYC 9654", "metric": "time", "unit": "s", "timing": "hot",
        "entries": [{
            "started": at(3), "run": "run3", "attempt": 2, "url": "https://example.org/1", "sha": commit(3).sha,
            "date": commit(3).date, "title": "Change 3", "author": "Ada <b>", "epoch": "0123456789abcdef", "reference_name": "v1.2",
            "reference_sha": commit(-30).sha, "value": 1.02e-3, "scatter": 0.003, "last": {"class": "failed", **nothing},
            "reference": {"class": "regression", "ratio": 1.02, "low": 1.018, "high": 1.022, "level": 0.99, "pairs": 24, "limit": 0.02},
        }],
    }], "faults": []}  # fmt: skip


def test_series_are_chosen_by_glob_metric_and_device(store: Store) -> None:
    h200 = {"devices": {"cuda": "NVIDIA H200", "cpu": "AMD EPYC 9654"}}
    same = ({"device": "cuda"}, {}, {"metric": "bandwidth"})
    points = [point("gemm/[x]"), *(point("sdpa/n=1", **also) for also in same)]
    store.add(night(0, points=points, **h200))
    store.add(night(1, points=[point("sdpa/n=1", device="cuda")], devices={"cuda": "NVIDIA L4"}))

    def keys(*args: str, **also: str) -> list[tuple[str, str, str]]:
        return [(one.curve.case, one.device.name, one.curve.metric) for one in shown(store, *args, **also)]

    assert keys("sdpa/*", device="cuda") == [("sdpa/n=1", "NVIDIA H200", "time"), ("sdpa/n=1", "NVIDIA L4", "time")]
    assert keys("sdpa/*", device="*L4") == [("sdpa/n=1", "NVIDIA L4", "time")]
    assert keys("gemm/[[]x]") == [("gemm/[x]", "AMD EPYC 9654", "time")]
    assert keys("sdpa/n=1", metric="bandwidth") == [("sdpa/n=1", "AMD EPYC 9654", "bandwidth")]
    assert keys("none") == []


@settings(max_examples=20)
@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=4, unique=True), st.text(max_size=30))
def test_any_name_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, cases: list[str], title: str) -> None:
    store = open_store(str(tmp_path_factory.mktemp("store")))
    store.add(night(0, points=[point(case) for case in cases], commit=Commit(sha="a" * 40, date=at(0), title=title)))
    found = shown(store)
    assert {one.curve.case for one in found} == set(cases)
    assert {head.commit.title for one in found for head, _ in one.nights} == {title}


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
        seen = {"metric": "registers", "unit": "", "scatter": None, "timing": ""}
        points = [
            point("sdpa/n=128", value=value, reference=against, last=compared(1.0) if day else None),
            point("sdpa/\x1b[31m\u202eevil", value=40, reference=proved, **seen),
        ]
        title = "日本語の題名 that is far too long for a narrow terminal to hold" if day == 4 else f"Change {day}"
        at_day = commit(day, title)
        store.add(night(day, reference=reference, epoch="ab"[day > 5] * 16, points=points, commit=at_day))


@pytest.mark.parametrize("width", [0, 70, 120])
def test_a_series_reads_well(store: Store, width: int) -> None:
    example(store)
    console = Console(record=True, width=width or 80, force_terminal=bool(width), file=io.StringIO(), color_system=None)
    print_series([*shown(store, metric="registers"), *shown(store)], console)
    text = console.export_text()
    if width:
        assert all(Console(width=500).measure(line).maximum <= width for line in text.splitlines())
    assert text == golden(GOLDEN / f"show-{width or 'plain'}.txt", text)


def answer(value: float, low: float, high: float) -> NightAnswer:
    return NightAnswer("unchanged", "", Interval(value, low, high, 0.99, 9), None)


def test_a_sparkline_does_not_draw_noise_as_change_nor_what_has_no_bounds() -> None:
    def line(*values: float | None) -> str:
        return sparkline([value and answer(value, value - 0.01, value + 0.01) for value in values])

    assert line(1.0) == line(None, 1.0) == line() == ""
    assert line(1.0, 1.1) == "▁█ +0.00 % to +10.0 %"
    assert line(1.0, None, 1.001)[:3] in ("▄·▅", "▅·▅", "▄·▄")
    assert line(1.0, 1.0)[:2] in ("▄▄", "▅▅")
    wide = answer(1.0, 1e-308, 1e308)
    assert sparkline([wide, wide]).endswith("+0.00 % to +0.00 %")


def test_faults_are_told_and_counted(store: Store, tmp_path: Path) -> None:
    for number in range(13):
        path = tmp_path / "store/nights/2026/11" / f"\x1b[2J{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    store.add(night(0))
    shown(store)
    lines = fault_lines(store.faults)
    assert lines[0] == "left out: nights/2026/11/\\x1b[2J00 is no document of a history"
    assert lines[-1] == "left out: 3 documents more (history show --json names them)"
    assert len(lines) == 11


def test_the_verb_shows_a_case_and_names_what_it_left_out(store: Store, tmp_path: Path) -> None:
    example(store)
    (tmp_path / "store/nights/2026/11/junk").touch()
    code, out, err = perfci(tmp_path, "history", "show", "-k", "sdpa/n*", "--store", "store", "--limit", "3")
    assert code == 0 and out.startswith("sdpa/n=128  time on AMD EPYC 9654, hot\n")
    assert out.count("Change") == 3
    assert err == "perfci: left out: nights/2026/11/junk is no document of a history\n"
    _, out, _ = perfci(tmp_path, "history", "show", "-k", "sdpa/n*", "--store", "store", "--limit", "1", "--json")
    (series,) = json.loads(out)["series"]
    assert series["entries"][0]["reference"] == {
        "class": "unchanged", "ratio": 1.0, "low": 0.998, "high": 1.002, "level": 0.99, "pairs": 24, "limit": None,
    }  # fmt: skip
    assert json.loads(out)["faults"][0]["name"] == "nights/2026/11/junk"


def test_what_is_not_there_is_told_with_what_is() -> None:
    points = [point("sdpa/n=128", device="cuda"), point("gemm\x1b", device="cuda")]
    known = collect([night(0, devices={"cuda": "NVIDIA H200"}, points=points)])
    assert no_series("x", known) == "no recorded case matches 'x': there is gemm\\u001b, sdpa/n=128"
    assert no_series("x", collect([night(0, points=[])])) == "no recorded case matches 'x': there is none"
    told = "no such metric or device is recorded of it: there is time on NVIDIA H200"
    assert no_series("sdpa/*", known) == told


@pytest.mark.slow
def test_nothing_to_show_is_an_error_of_usage(store: Store, tmp_path: Path) -> None:
    store.add(night(0))
    code, _, said = perfci(tmp_path, "history", "show", "-k", "sdpa/*", "--store", "store", "--metric", "registers")
    told = "perfci: sdpa/*: no such metric or device is recorded of it: there is time on AMD EPYC 9654\n"
    assert (code, said) == (2, told)
