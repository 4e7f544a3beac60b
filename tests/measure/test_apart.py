"""Results of commands and other tools, read in a process with bounds where they are not small."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from perfci.measure.commands.readers import FORMATS, apart
from perfci.measure.commands.readers.base import MAX_BYTES
from perfci.model.metrics import CustomMetric
from perfci.model.policy import Columns
from perfci.system.bounded import Bounds

DATA = Path(__file__).parents[1] / "data"
CUSTOM = {"tokens": CustomMetric(unit="/s")}
TABLE = Columns(case=["a"], value="b", unit="s", metric="time")


@pytest.fixture
def always(monkeypatch):
    """Nothing is small."""
    monkeypatch.setattr(apart, "SMALL", -1)


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("nvbench", "nvbench/matmul.json"),
        pytest.param("google-benchmark", "import/google-benchmark.json", marks=pytest.mark.slow),
        pytest.param("pytest-benchmark", "import/pytest-benchmark-saved.json", marks=pytest.mark.slow),
        ("hyperfine", "import/hyperfine.json"),
    ],
)
def test_what_is_whole_is_read_as_without_a_process(always, tool, file):
    form, path = FORMATS[tool], DATA / file
    told = apart.read(form, path, "c", CUSTOM)
    assert (told.tool, told.cases) == (tool, form.read(path, "c", CUSTOM))
    seen = apart.read(None, path, "", {})
    assert (seen.tool, seen.cases) == (tool, form.read(path, "", {}))
    assert seen.about == form.about(json.loads(path.read_text()))


@pytest.mark.slow
def test_a_million_samples_come_through(tmp_path):
    """Their file is small, and names another one that is not."""
    samples = np.linspace(1e-3, 2e-3, 10**6, dtype="<f4")
    root = json.loads((DATA / "nvbench" / "matmul.json").read_text())
    state = root["benchmarks"][0]["states"][0]
    sidecar = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": "r.json-bin/0.bin"}, {"name": "size", "value": str(len(samples))}]}  # fmt: skip
    state["summaries"].append(sidecar)
    root["benchmarks"] = [{**root["benchmarks"][0], "states": [state]}]
    (tmp_path / "r.json-bin").mkdir()
    samples.tofile(tmp_path / "r.json-bin" / "0.bin")
    (tmp_path / "r.json").write_text(json.dumps(root))
    (reported,) = apart.read(FORMATS["nvbench"], tmp_path / "r.json", "c", {}).cases.values()
    assert reported.values == {"time": [float(one) for one in samples]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: "[" * (2 * 2**20), "is nested too deeply to be a result"),
        (lambda: " " * (60 * 2**20), "is empty"),
        (lambda: '{"results": [' + "[]," * (20 * 2**20) + "[]]}", "reading it takes more than 384 MiB of memory: report fewer"),
        (lambda: '{"results": ' + "9" * (2 * 2**20) + "}", "integer string conversion"),
        (lambda: '{"results": [{"command": "x", "times": [NaN, 1e999]}]}' + " " * (2 * 2**20), "no finite"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a result.json"])
@pytest.mark.slow
def test_files_that_are_large_by_hand(tmp_path, monkeypatch, content, says, name):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.write_text(content())
    try:
        told = apart.read(FORMATS["hyperfine"], path, "c", {})
    except ValueError as error:
        assert str(error).startswith("a result.json: ") and says in str(error) and "\n" not in str(error)
    else:
        assert [says in one.reason.text for one in told.cases.values() if one.reason] == [True]


def test_a_table_is_read_as_without_a_process(always, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\nx,1.5\n")
    told = apart.read(FORMATS["csv"], path, "c", {}, columns=TABLE)
    assert told.cases == FORMATS["csv"].read(path, "c", {}, columns=TABLE) != {}


def test_a_small_file_that_is_nested_deeply_is_a_value_error(tmp_path):
    path = tmp_path / "r"
    for depth in (300, 900, 990, 5000, 500_000):
        deep = "[" * depth + "]" * depth
        for text in (
            deep,
            f'{{"context": {{"date": 1}}, "benchmarks": [{{"run_type": "iteration", "family_index": {deep}}}]}}',
        ):
            path.write_text(text)
            for form in (*FORMATS.values(), None):
                if form is not FORMATS["nvbench"]:
                    try:
                        apart.read(form, path, "c", {}, columns=TABLE if form and form.printed else None)
                    except ValueError as error:
                        assert "\n" not in str(error)


def test_what_passes_a_bound_is_a_value_error(always, monkeypatch):
    monkeypatch.setattr(apart, "BOUNDS", Bounds(seconds=10, memory=2**20))
    with pytest.raises(ValueError, match="takes more than 1 MiB of memory: report fewer samples"):
        apart.read(FORMATS["hyperfine"], DATA / "import" / "hyperfine.json", "c", {})


def test_no_file_a_folder_and_one_too_large(tmp_path):
    path = tmp_path / "r"
    for one in (path, tmp_path):
        with pytest.raises(ValueError, match="no such file"):
            apart.read(FORMATS["nvbench"], one, "c", {})
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        apart.read(FORMATS["nvbench"], path, "c", {})
