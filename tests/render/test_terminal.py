"""Output of `perfci`: tables that fit a terminal, stable lines for logs."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perfci.render.terminal import print_costs, print_decided, print_report
from perfci.render.view import View
from tests.render import build, shown
from tests.render.build import (
    HOSTILE,
    IMPROVED,
    REGRESSED,
    UNDECIDED,
    VIOLATION,
    presence,
    report,
    reports,
    row,
    unchanged,
)

GOLDEN = Path(__file__).with_name("golden")
REPORTS = reports()


printed = partial(shown.printed, print_report)


@pytest.mark.parametrize("state", ["mixed", "run", "devices", "error", "traced", "traced-alone", "environments"])
@pytest.mark.parametrize("width", [0, 80, 120, 200])
def test_golden(state, width):
    text = printed(REPORTS[state], width)
    assert text == shown.golden(GOLDEN / f"{state}.{width or 'plain'}.txt", text)


@pytest.mark.parametrize("state", REPORTS)
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(state, width):
    assert max(cell_len(line) for line in printed(REPORTS[state], width).splitlines()) <= width


NAMES = [
    "resample/" + "/".join(f"parameter_{i}=value_{i}" for i in range(6)),
    "trajectory_resample/batch=32",
    "a_kernel_whose_name_is_longer_than_the_column_of_a_narrow_terminal/n=1",
    "k",
]


@pytest.mark.parametrize("metric", ["time", "dram_bandwidth"])
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", NAMES)
def test_ids_are_broken_at_slashes_alone_and_never_cut(name, width, metric):
    lines = printed(report([row(name, "regression", ratio=2.0, metric=metric)], "x"), width).splitlines()
    start = next(at for at, line in enumerate(lines) if "─" in line) + 1
    column = lines[start - 2].index("case")
    told = ""
    for line in lines[start:]:
        part = line[column:].split(" ")[0]
        assert part == name or part.endswith("/") or name.endswith(part), line
        told += part
        if told == name:
            return
    raise AssertionError(f"{told} is not {name}")


@pytest.mark.parametrize("state", ["mixed", "regression", "profile", "truncated", "run"])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_number_is_left_out_of_a_narrow_table(state, width):
    """Every change with its ±, and every limit, whatever the width."""
    view, text = View(REPORTS[state]), printed(REPORTS[state], width)
    table = " ".join(text.split("─\n")[1].split("\n\n")[0].split())
    for one in [one for one in REPORTS[state].rows if len(REPORTS[state].rows) <= 40 or one.class_ != "unchanged"]:
        numbers = [view.base(one), *view.head(one).split(" (")[:1], view.change(one), view.limit(one)]
        assert all(number in table for number in numbers if number != "–"), (one.case, numbers)
    assert table.count("±") == sum(f"{view.head(one)} {view.change(one)}".count("±") for one in REPORTS[state].rows)


@given(st.lists(st.text("abk/=_ 宽", min_size=1, max_size=90), min_size=1, max_size=4), st.integers(60, 200))
def test_whatever_ids_are_called_nothing_is_wider_than_the_terminal_and_no_number_lost(names, width):
    rows = [row(name, "regression", ratio=2.0, metric=metric) for name in names for metric in ("time", "x")]
    text = printed(report(rows, "x"), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    told = "".join(text.split("─\n")[1].split())
    assert told.count("(±0.4)") == 2 * len(names) and told.count("2%") >= 2 * len(names)


def test_into_a_file_each_row_is_one_plain_line_with_its_whole_id():
    text = printed(REPORTS["truncated"])
    assert "\x1b" not in text and "─" not in text
    lines = [line for line in text.splitlines() if line.startswith("fail")]
    assert len(lines) == 200
    assert all(f"  sdpa/seq={i} " in line and "slower by at least" in line for i, line in enumerate(lines))


def test_unchanged_rows_are_listed_while_they_are_few():
    few, many = printed(report(unchanged(40), "x")), printed(report(unchanged(41), "x"))
    assert few.count("pass    unchanged") == 40 and "not shown" not in few
    assert "pass    unchanged" not in many and "41 unchanged rows are not shown" in many


@pytest.mark.parametrize("width", [0, 80])
def test_text_from_code_cannot_drive_the_terminal(width):
    text = printed(REPORTS["hostile"], width)
    assert "\x1b" not in text and "\u202e" not in text and "\u200b" not in text
    assert "\\u001b[31m" in text.replace("\n", "")
    assert HOSTILE[0] in text.replace("\n", "")


def test_colour_only_where_it_is_asked_for():
    assert "\x1b[" in printed(REPORTS["mixed"], 100, "truecolor")
    assert "\x1b[" not in printed(REPORTS["mixed"], 100)


def test_what_a_profiler_did_not_see_is_told_with_its_remedy():
    profiled = REPORTS["profile"].model_copy(deep=True)
    for one in profiled.rows:
        one.cause = ""
    assert "not seen: head: ncu: 2 of 14 kernels have no l1_hit_rate: profile it alone" in printed(profiled)


def test_rich_markup_in_names_is_text():
    assert "[bold]k[/bold]/n=1" in printed(report([row("[bold]k[/bold]/n=1")], "see [red]x[/red]"), 120)


def decided(*rows) -> list[str]:
    return shown.printed(print_decided, report(list(rows), "x")).splitlines()


def test_decided_rows_are_a_line_each_and_proved_cases_a_count():
    """A row without an answer, and one that no pairs decide, is not told."""
    proved = [
        row(f"k/n={n}", base=None, change=None, interval=None, proved=True, metric=m) for n in (1, 2) for m in "ab"
    ]
    told = decided(
        REGRESSED, VIOLATION, IMPROVED, UNDECIDED, presence("k/n=3", "added", "in head"), row("k/n=4"), *proved
    )
    assert told == [
        "✓ 2 cases proved unchanged",
        "✗ sdpa/seq=512 time 48.5 µs → 151 µs · +211 % (±0.4) slower · limit 2 %",
        "✗ softmax/rows=8192 bandwidth 3.40 TB/s → 2.52 TB/s (±0.4 %) · -25.9 % lower · limit ≥ 2.8 TB/s",
        "✓ trajectory_resample/batch=32 time 41.9 µs → 30.6 µs · -26.9 % (±0.4) faster · limit 2 %",
        "✓ k/n=4 time 48.5 µs → 48.5 µs · +0.02 % (±0.4) · limit 2 %",
    ]


def test_decided_rows_cannot_drive_the_terminal():
    told = decided(*(row(name, "regression", ratio=2.0) for name in HOSTILE))
    assert len(told) == len(HOSTILE) and all(line.isprintable() for line in told)


COSTS = {"samples": 61.0, "import": 20.0, "start": 14.0, "close": 3.0, "snapshot": 2.0, "wait": 0.0}


def test_where_time_went_is_told_where_it_is_asked_for():
    costly = report([row("k", "unchanged")], "x", seconds=100, costs=COSTS, imports={"import torch": 2.14})
    assert "samples" not in printed(costly) and "import" not in printed(costly)


def test_costs_are_listed_with_their_imports():
    imports = {"import torch": 2.14, "import numpy": 0.06}
    text = shown.printed(print_costs, report([], "x", seconds=100, costs=COSTS, imports=imports))
    lines = [" ".join(line.split()) for line in text.replace("`", "").splitlines() if line]
    assert lines == [
        "phase wall time share",
        "samples 61.0 s 61.0 %",
        "import 20.0 s 20.0 %",
        "start 14.0 s 14.0 %",
        "clean-up 3.0 s 3.0 %",
        "snapshot 2.0 s 2.0 %",
        "import torch: 2.1 s in each worker: logs/imports.log says why it is not imported once a run "
        "(docs/suite.md#imports-that-take-long)",
        "import numpy: 0.060 s in each worker",
    ]


def test_costs_that_are_no_numbers_are_not_told():
    endless = report([row("k", "unchanged")], "x", seconds=1, costs={"samples": float("inf"), "import": 1.0})
    assert "samples" not in shown.printed(print_costs, endless)


def test_columns_that_do_not_tell_a_change_say_why() -> None:
    """Each is the median of a side; a change is that of pairs."""
    one, other = row("a/n=1", "unchanged", ratio=1.0), row("b/n=1", "unchanged", ratio=1.0)
    told = build.report([one, other], "x")
    words = "a change is that of pairs measured side by side, and decides: they disagree for a/n=1"
    assert not any("side by side" in remark for remark in View(told).remarks)
    assert one.interval is not None and one.base is not None
    one.change, one.interval.low, one.interval.high, one.head = 1.0007, 0.999, 1.002, one.base * 1.014
    assert any(remark.endswith(words) for remark in View(told).remarks)
    one.base = -one.base  # as a stranger's report may say
    assert View(told).remarks
