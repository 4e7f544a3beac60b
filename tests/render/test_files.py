"""JUnit and CSV: what other programs read."""

import csv
import io
import math
from xml.etree import ElementTree as ET

import pytest

from perfci.render import csv as csv_renderer
from perfci.render import junit, render_all
from tests.render.build import HOSTILE, presence, report, reports, row, unchanged

REPORTS = reports()


def parsed(state: str) -> ET.Element:
    return ET.fromstring(junit.render(REPORTS[state]).encode())


def cases_of(root: ET.Element) -> dict[str, ET.Element]:
    return {case.get("name", ""): case for case in root.iter("testcase")}


@pytest.mark.parametrize("state", REPORTS)
def test_junit_counts_what_it_holds(state):
    """Readers trust the numbers on a suite; an empty file is an error to Jenkins."""
    root = parsed(state)
    for element in (root, *root.iter("testsuite")):
        cases = list(element.iter("testcase"))
        assert int(element.get("tests", "0")) == len(cases) > 0
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(attribute, "-1")) == sum(case.find(tag) is not None for case in cases)


@pytest.mark.parametrize(
    ("state", "failures", "errors"),
    [
        ("pass", 0, 0), ("inconclusive", 0, 0), ("improvement", 0, 0), ("regression", 1, 0), ("missing", 1, 0),
        ("failed", 0, 1), ("mixed", 3, 1), ("error", 0, 1), ("run", 1, 0),
    ],
)  # fmt: skip
def test_junit_fails_where_the_gate_fails(state, failures, errors):
    root = parsed(state)
    assert (int(root.get("failures", "")), int(root.get("errors", ""))) == (failures, errors)


def test_junit_names_a_test_by_case_metric_and_kind():
    cases = cases_of(parsed("mixed"))
    regression = cases["sdpa/seq=512 time regression"]
    assert regression.get("classname") == "sdpa"
    failure = regression.find("failure")
    assert failure is not None and failure.get("type") == "regression"
    assert "left flash attention" in (failure.get("message") or "")
    assert "+211 %" in (failure.text or "")
    assert cases["layernorm/dim=1024 presence"].find("error") is not None
    skipped = cases["add/n=65536 time regression"].find("skipped")
    assert skipped is not None and "undecided" in (skipped.get("message") or "")
    assert len(cases["matmul/n=64 time regression"]) == 0


def test_junit_has_a_suite_per_device_with_both_commits():
    root = parsed("devices")
    assert [suite.get("name") for suite in root] == ["perfci", "cpu", "cuda"], "in the order of rows"
    for suite in root:
        properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
        assert properties["base.commit"].startswith("4d5993f") and properties["head.commit"].startswith("2fed942")


def test_junit_skipped():
    skipped = report([presence("upload/mib=64", "skipped", "needs cuda", device="cpu"), *unchanged(1)], "x")
    case = cases_of(ET.fromstring(junit.render(skipped)))["upload/mib=64 presence"]
    found = case.find("skipped")
    assert found is not None and found.get("message") == "needs cuda"


def test_hostile_names_are_valid_xml_and_no_formula():
    assert len(cases_of(parsed("hostile"))) == 1 + len(HOSTILE)
    sheet = report([row("=cmd|' /C calc'!A0"), row("+1/n=1"), row("@x")], "x")
    cases = {line[0] for line in csv.reader(io.StringIO(csv_renderer.render(sheet)))}
    assert cases == {"case", "'=cmd|' /C calc'!A0", "'+1/n=1", "'@x"}


@pytest.mark.parametrize("state", REPORTS)
def test_csv_holds_every_value_exactly(state):
    lines = list(csv.DictReader(io.StringIO(csv_renderer.render(REPORTS[state]))))
    values = [
        (entry.metric, side, stats) for entry in REPORTS[state].measured for side, stats in sorted(entry.sides.items())
    ]
    assert len(lines) == len(values)
    for line, (metric, side, stats) in zip(lines, values, strict=True):
        assert (line["metric"], line["side"], int(line["n"])) == (metric, side, stats.n)
        read = [float(line[name]) for name in ("mean", "standard_deviation", "median", "interval_low", "interval_high")]
        wanted = [stats.mean, stats.sd, stats.median, stats.low, stats.high]
        assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(read, wanted, strict=True))


def test_render_all_names_its_files():
    assert set(render_all(REPORTS["pass"])) == {"report.md", "report.html", "report.json", "junit.xml", "report.csv"}
    assert set(render_all(REPORTS["profile"])) - set(render_all(REPORTS["pass"])) == {"profile.csv"}
