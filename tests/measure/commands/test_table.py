"""Printed tables are read row by row, or refused in a line; nothing in them vanishes or becomes a zero."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfci.measure.commands.readers.table import read_csv, read_jsonl
from perfci.model.metrics import CustomMetric
from perfci.model.policy import Columns

COLUMNS = Columns(case=["N", "provider"], value="ms", unit="ms", metric="time")
PRINTED = """\
tuning for NVIDIA H100
 N , provider, ms, GB/s
1024, triton, 0.25, 31.5
4096, "torch, eager", 1e-1, 33

mean: 0.2, of 2 rows
"""


def values(text: str, folder: Path, columns: Columns = COLUMNS, read=read_csv, **custom) -> dict[str, object]:
    path = folder / "table"
    path.write_text(text)
    cases = read(path, "sweep", custom, columns=columns)
    return {case: next(iter(one.values.items()), None) or one.reason.text for case, one in cases.items()}


def test_rows_of_a_csv_are_cases_and_what_stands_around_is_passed_over(tmp_path):
    found = values(PRINTED, tmp_path)
    assert found == {
        "sweep/N=1024/provider=triton": ("time", pytest.approx([0.25e-3])),
        "sweep/N=4096/provider=torch__eager": ("time", pytest.approx([1e-4])),
    }
    for delimiter in (";", "\t", "|"):
        assert values(f"N{delimiter}provider{delimiter}ms\n8{delimiter}a{delimiter}2\n".replace("\n", "\r\n"), tmp_path)


def test_objects_a_line_are_cases(tmp_path):
    text = 'INFO start\n{"event": "start"}\n{"N": 8, "provider": "a", "ms": 2}\n{"N": 8, "provider": [1], "ms": 0.5}\n'
    found = values(text, tmp_path, read=read_jsonl)
    assert found == {
        "sweep/N=8/provider=a": ("time", pytest.approx([2e-3])),
        "sweep/N=8/provider=_1_": ("time", pytest.approx([5e-4])),
    }


def test_a_metric_of_its_own_and_one_of_the_catalogue(tmp_path):
    tokens = Columns(case=["N"], value="tok/s", unit="", metric="tokens")
    assert values("N,tok/s\n8,-2\n", tmp_path, tokens, tokens=CustomMetric(unit="/s")) == {
        "sweep/N=8": ("tokens", [-2.0])
    }
    rate = Columns(case=[], value="GB/s", unit="GB/s", metric="bandwidth")
    assert values("GB/s\n2\n", tmp_path, rate) == {"sweep": ("bandwidth", [2e9])}


@pytest.mark.parametrize("cell", ["", "nan", "inf", "OOM", "-1", "0", "0x10", "1_000", "1,5", '"1 2"'])
def test_a_cell_that_is_no_time_costs_its_case_alone(tmp_path, cell):
    cell = cell if "," not in cell else f'"{cell}"'
    found = values(f"N,provider,ms\n8,a,{cell}\n9,a,1\n", tmp_path)
    assert "no finite positive number" in found["sweep/N=8/provider=a"]
    assert found["sweep/N=9/provider=a"] == ("time", [1e-3])


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_csv, "", "is empty"),
        (read_csv, "N,ms\n8,1\n", "has no header with the columns N, ms, provider"),
        (read_csv, "N,provider,ms\n", "holds no measurement"),
        (read_csv, "N,provider,ms\n8,a,1\nN,provider,ms\n9,a,1\n", "table:3: a second header"),
        (read_csv, "N,provider,ms\n8,a,1\n\nN,provider,ms\n9,a,1\n", "table:4: a second header"),
        (read_csv, "N,provider,ms\n8,a\n", "table:2: has 2 fields, and the header 3"),
        (read_csv, "N,provider,ms\n8,a,1\ndone\n", "table:3: has 1 fields"),
        (read_csv, "N,provider,ms,ms\n8,a,1,2\n", "two columns are named 'ms'"),
        (read_jsonl, "nothing\n", "holds no measurement"),
        (read_jsonl, '{"N": 8, "ms": 1}\n', "table:1: has no 'provider'"),
        (read_jsonl, '{"N": 8, "provi\n', "torn or no JSON"),
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path, read, text, told):
    with pytest.raises(ValueError, match="table") as caught:
        values(text, tmp_path, read=read)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_csv, read_jsonl])
def test_two_rows_of_one_case_are_no_samples(tmp_path, read):
    rows = [{"N": 8, "provider": "a", "ms": 1}, {"N": 8, "provider": "a", "ms": 1.1}]
    text = "\n".join(map(json.dumps, rows)) if read is read_jsonl else "N,provider,ms\n8,a,1\n8,a,1.1\n"
    assert "rows of an earlier run" in values(text, tmp_path, read=read)["sweep/N=8/provider=a"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (Columns(case=["N"], value="ms", unit="", metric="time"), "unit '' does not fit time"),
        (Columns(case=["N"], value="ms", unit="", metric="p99"), "'p99' is no metric: declare it"),
        (Columns(case=["N"], value="ms", unit="s", metric="tokens"), "unit 's' of tokens is not '/s'"),
    ],
)
def test_a_unit_that_does_not_fit_is_refused(tmp_path, columns, told):
    with pytest.raises(ValueError, match="table") as caught:
        values("N,ms\n8,1\n", tmp_path, columns, tokens=CustomMetric(unit="/s"))
    assert told in str(caught.value)


CELL = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8)
SOME = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SOME
@given(st.lists(st.tuples(st.integers(), st.floats(1e-6, 1e6)), min_size=1, max_size=20, unique_by=lambda row: row[0]))
def test_what_a_writer_of_csv_writes_is_read(tmp_path, rows):
    out = io.StringIO()
    csv.writer(out).writerows([["N", "other", "ms"], *[[n, "a, b", ms] for n, ms in rows]])
    found = values(out.getvalue(), tmp_path, COLUMNS.model_copy(update={"case": ["N"]}))
    assert found == {f"sweep/N={n}": ("time", [pytest.approx(ms * 1e-3)]) for n, ms in rows}


@SOME
@given(
    st.lists(st.lists(st.sampled_from(["N", "provider", "ms", "8", "a", "1.5", "", '"', "{", "\n", "\r", "\0"]) | CELL))
)
def test_whatever_is_printed_is_read_or_refused(tmp_path, rows):
    text = "\n".join(",".join(row) for row in [["N", "provider", "ms"], *rows])
    for read in (read_csv, read_jsonl):
        try:
            found = values(text, tmp_path, read=read)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert found and all(isinstance(one, str) or one[1][0] > 0 for one in found.values())
