"""Texts of a calibration."""

import io
import os
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from perfci.render.calibration import print_calibration, render
from tests.measure.recorded import STATES, calibrations

GOLDEN = Path(__file__).with_name("golden")


def printed(state: str, width: int) -> str:
    """As on a terminal of that width, or, for 0, as into a file."""
    file = io.StringIO()
    console = (
        Console(file=file, width=width, force_terminal=True, color_system=None, _environ={})
        if width
        else Console(file=file, _environ={})
    )
    print_calibration(calibrations()[state], console)
    return file.getvalue()


def check(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("PERFCI_UPDATE_GOLDEN") == "1":
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("state", STATES)
def test_golden_markdown(state):
    check(f"calibration-{state}.md", render(calibrations()[state]))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("width", [0, 100])
def test_golden_terminal(state, width):
    check(f"calibration-{state}.{width or 'plain'}.txt", printed(state, width))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(state, width):
    lines = printed(state, width).split("Limits that")[0].splitlines()
    assert max(map(cell_len, lines)) <= width


def test_text_from_code_is_harmless():
    hostile = calibrations()["quiet"].model_copy(deep=True)
    hostile.cases[0].case = "a|b\x1b[31m`@team`"
    hostile.warnings = ["<img src=x> \u202e [link](http://x)"]
    hostile.limits = ["# ``` \x1b[31m"]
    text = render(hostile)
    assert "\x1b" not in text
    assert "<img" not in text
    assert "[link](" not in text
    row = next(line for line in text.splitlines() if "team" in line)
    assert row.count("|") == 8
    file = io.StringIO()
    print_calibration(hostile, Console(file=file, _environ={}))
    assert "\x1b" not in file.getvalue()
