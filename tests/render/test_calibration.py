"""Texts of a calibration."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from perfci.render.calibration import print_calibration, render
from tests.measure.recorded import STATES, calibrations
from tests.render.shown import golden, printed

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("state", STATES)
def test_golden_markdown(state):
    text = render(calibrations()[state])
    assert text == golden(GOLDEN / f"calibration-{state}.md", text)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("width", [0, 100])
def test_golden_terminal(state, width):
    text = printed(print_calibration, calibrations()[state], width)
    assert text == golden(GOLDEN / f"calibration-{state}.{width or 'plain'}.txt", text)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(state, width):
    lines = printed(print_calibration, calibrations()[state], width).split("Limits that")[0].splitlines()
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
    assert "\x1b" not in printed(print_calibration, hostile)
