"""The doctor's text for typical machines, from the first line to the last."""

import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from perfci.doctor.survey import diagnose
from perfci.model.doctor import Diagnosis, Finding
from perfci.render.doctor import metric_names, print_diagnosis
from tests.render.shown import golden, printed
from tests.system.machines import MACHINES, SECRET, quiet

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory):
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        quiet(patch)
        for name, make in MACHINES.items():
            folder = tmp_path_factory.mktemp("m")
            diagnosis = diagnose(make(folder))
            text = diagnosis.model_dump_json().replace(str(folder), "/x").replace(sys.executable, "/x/bin/own-python")
            found[name] = Diagnosis.model_validate_json(text)
    return found


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("width", [0, 100])
def test_golden(diagnoses, name, width):
    text = printed(print_diagnosis, diagnoses[name], width)
    assert text == golden(GOLDEN / f"doctor-{name}.{width or 'plain'}.txt", text)
    assert max(map(cell_len, text.splitlines())) <= (width or 10**6)


def test_no_text_shows_the_secret(diagnoses):
    assert diagnoses["token"].exit_code == 3
    assert SECRET not in diagnoses["token"].model_dump_json()


def test_text_from_tools_is_harmless():
    line = Finding(name="nsys", status="warn", found="x \x1b[31m \u202e", remedy="\x1b]0;title\x07 [bold]")
    found = Diagnosis(perfci="0", seconds=0.1, findings=[line], tiers=[], exit_code=0)
    for width in (0, 80):
        text = printed(print_diagnosis, found, width)
        assert "\x1b" not in text and "\u202e" not in text and "[bold]" in text


def test_families_of_metrics_are_folded():
    assert metric_names(["time", "stall_wait", "stall_barrier", "cv"]) == "time stall_{wait,barrier} cv"
    assert metric_names(["stall_wait"]) == "stall_wait"
