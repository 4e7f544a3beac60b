"""Output of `perfci`: tables that fit a terminal, stable lines for logs."""

import io
import os
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from perfci.render.terminal import print_costs, print_report
from tests.render.build import HOSTILE, report, reports, row, unchanged

GOLDEN = Path(__file__).with_name("golden")
REPORTS = reports()


def printed(shown, width: int = 0, colour: str | None = None) -> str:
    """As on a terminal of that width, or, for 0, as into a file."""
    file = io.StringIO()
    console = (
        Console(file=file, width=width, force_terminal=True, color_system=colour, _environ={})
        if width
        else Console(file=file, _environ={})
    )
    print_report(shown, console)
    return file.getvalue()


@pytest.mark.parametrize("state", ["mixed", "run", "devices", "error", "traced", "traced-alone"])
@pytest.mark.parametrize("width", [0, 80, 120])
def test_golden(state, width):
    text = printed(REPORTS[state], width)
    file = GOLDEN / f"{state}.{width or 'plain'}.txt"
    if os.environ.get("PERFCI_UPDATE_GOLDEN") == "1":
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("state", REPORTS)
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(state, width):
    assert max(cell_len(line) for line in printed(REPORTS[state], width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_long_case_ids_are_folded_and_never_cut(width):
    name = "resample/" + "/".join(f"parameter_{i}=value_{i}" for i in range(6))
    text = printed(report([row(name, "regression", ratio=2.0)], "x"), width)
    assert "…" not in text
    table = text.split("─\n")[1].split("\n\n")[0].splitlines()
    start = next(line for line in table if "resample/" in line).index("resample/")
    folded = "".join(line[start:].split("  ")[0] for line in table)
    assert folded == name


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


def test_rich_markup_in_names_is_text():
    assert "[bold]k[/bold]/n=1" in printed(report([row("[bold]k[/bold]/n=1")], "see [red]x[/red]"), 120)


COSTS = {"samples": 61.0, "import": 20.0, "start": 14.0, "close": 3.0, "snapshot": 2.0, "wait": 0.0}


def test_a_report_says_where_its_time_went():
    shown = report([row("k", "unchanged")], "x", seconds=100, costs=COSTS, imports={"import torch": 2.14})
    line = "1 min 40 s: 61 % samples, 20 % import, 14 % start, 5 % others; import torch: 2.1 s in each worker"
    assert line in printed(shown).replace("`", "")
    assert "others" not in printed(report([], "x", seconds=2, costs={"check": 1.0, "build": 1.0}))


def test_costs_are_listed_with_their_imports():
    file = io.StringIO()
    imports = {"import torch": 2.14, "import numpy": 0.06}
    print_costs(report([], "x", seconds=100, costs=COSTS, imports=imports), Console(file=file, _environ={}))
    lines = [" ".join(line.split()) for line in file.getvalue().replace("`", "").splitlines() if line]
    assert lines == [
        "phase wall time share",
        "samples 61.0 s 61.0 %",
        "import 20.0 s 20.0 %",
        "start 14.0 s 14.0 %",
        "close 3.0 s 3.0 %",
        "snapshot 2.0 s 2.0 %",
        "import torch: 2.1 s in each worker",
        "import numpy: 0.060 s in each worker",
    ]


def test_costs_that_are_no_numbers_are_not_told():
    shown = report([row("k", "unchanged")], "x", seconds=1, costs={"samples": float("inf"), "import": 1.0})
    assert "samples" not in printed(shown)
