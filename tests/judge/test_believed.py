"""An impossible time proves nothing: neither an improvement nor that a bound holds."""

import pytest

from perfci.judge.judge import judge
from perfci.model.results import Work
from perfci.model.timing import Timing

from .build import T, alone, case, ceilings, limit, results, side

TRUE = T * 4e12 / 1.3
"""Bytes that the reference time leaves room for; half that time does not."""


def judged(found, **fields):
    document = results([found], fields.pop("limits", None), **{k: v for k, v in fields.items() if k != "strict"})
    document.fingerprint.ceilings = {"cuda": ceilings(read=4e12, bf16=7e14)}
    return judge(document, strict=fields.get("strict", False))


def cold(read=TRUE, **fields):
    return side(work=Work(read=read), timing=Timing(mode="cold"), **fields)


def test_a_believable_case_is_judged_as_ever():
    report = judged(case(ratio=1.0, base=cold(), head=cold()))
    assert [row.class_ for row in report.rows] == ["unchanged"]


def test_a_head_that_is_impossibly_fast_is_invalid_and_no_improvement():
    report = judged(case(ratio=0.2, base=cold(), head=cold()))
    (row,) = report.rows
    assert (row.class_, row.effect, row.metric, report.exit_code) == ("invalid", "undecided", "time", 0)
    assert row.reason.startswith("head is faster than this GPU can move the declared bytes (4.00 TB/s at most)")
    assert row.reason.endswith("declared work wrong, or work not done")
    assert row.base is not None and row.head is not None
    assert judged(case(ratio=0.2, base=cold(), head=cold()), strict=True).exit_code == 1


def test_a_base_that_is_impossibly_fast_makes_no_regression():
    report = judged(case(ratio=5.0, base=cold(3 * TRUE), head=cold(3 * TRUE)))
    assert [(row.class_, row.reason[:4]) for row in report.rows] == [("invalid", "base")]


@pytest.mark.parametrize("metric", ["time", "bandwidth", "cycles"])
def test_a_bound_is_not_met_by_a_time_that_cannot_be(metric):
    asked = [limit(metric=metric, kind="min" if metric == "bandwidth" else "max", bound=1.0)]
    report = judged(alone(level=T / 5), limits=asked, mode="run")
    assert not any("faster than" in row.reason for row in report.rows), "without declared work nothing is impossible"
    found = alone(level=T / 5)
    found.sides["head"] = cold()
    report = judged(found, limits=asked, mode="run")
    assert [(row.class_, "faster than" in row.reason) for row in report.rows] == [("invalid", True)]


def test_metrics_that_no_clock_tells_are_judged_all_the_same():
    found = case(ratio=0.2, base=cold(), head=cold())
    for pair in found.pairs:
        for values in pair.values.values():
            values["ptxas_registers"] = 64.0
    report = judged(found, limits=[limit(), limit(metric="ptxas_registers", kind="max", bound=100.0)])
    assert sorted((row.metric, row.class_) for row in report.rows) == [
        ("ptxas_registers", "unchanged"),
        ("time", "invalid"),
    ]


def test_without_ceilings_nothing_is_impossible():
    document = results([case(ratio=0.2, base=cold(), head=cold())])
    assert [row.class_ for row in judge(document).rows] == ["improvement"]


def test_an_impossible_time_is_no_ratio_for_the_history() -> None:
    """Where nothing is asked of the case, against a reference."""
    for ratio, kept in ((1.0, 1), (0.2, 0)):
        document = results([case(ratio=ratio, base=cold(), head=cold())], [])
        document.plan.purpose = "reference"
        document.fingerprint.ceilings = {"cuda": ceilings(read=4e12, bf16=7e14)}
        assert len(judge(document).unasked) == kept
