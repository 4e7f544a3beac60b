"""The ratios that relative limits were decided on, and base and head under one roofline."""

import math

import pytest

from perfci.judge.judge import judge
from perfci.model.results import Work
from tests.judge.build import at_clocks, case, ceilings, limit, pairs, results, side, values


def test_a_trail_holds_every_pair_and_every_look_up_to_the_decision():
    report = judge(results([case(ratio=1.05)]))
    (trail,), row = report.trails, report.rows[0]
    assert len(trail.ratios) == 24 and trail.measured == []
    assert [look.pairs for look in trail.looks] == [n for n in (8, 9, 12, 16, 24) if n <= row.pairs]
    assert trail.looks[-1].change == row.change and trail.looks[-1].interval == row.interval


def test_a_trail_of_an_obvious_change_ends_at_the_look_before_the_first():
    made = case(ratio=1.3, base=side(tuner=""), head=side(tuner=""), values={"n": 4})
    for pair in made.pairs:
        pair.tuners = {"base": "", "head": ""}
    report = judge(results([made]))
    (row,), (trail,) = report.rows, report.trails
    assert (row.class_, row.pairs, row.early_look, row.look, row.last_look) == ("regression", 4, True, None, False)
    assert report.verdict == "fail" and report.exit_code == 1
    assert [look.pairs for look in trail.looks] == [4]
    assert trail.looks[0].interval == row.interval and row.interval.level == 0.875


def test_at_equal_clock_the_measured_ratios_stand_beside():
    made = case(pairs=at_clocks(pairs(*values(1.0)), base=2e9, head=1.9e9))
    (trail,) = judge(results([made])).trails
    assert [a / b for a, b in zip(trail.ratios, trail.measured, strict=True)] == pytest.approx([0.95] * 24)


def test_no_number_no_trail():
    base, head = values(1.0)
    head[3] = math.nan
    assert judge(results([case(pairs=pairs(base, head))])).trails == []
    assert judge(results([case(ratio=None)])).trails == []
    assert judge(results([case()], [limit(kind="max", bound=1.0)])).trails == []


def test_both_sides_stand_under_one_roof():
    work = {name: side(work=Work(flops=1e9, read=1e6, written=1e6), dtype="bf16") for name in ("base", "head")}
    made = results([case(ratio=2.0, **work)])
    made.fingerprint.ceilings["cuda"] = ceilings(read=4e12, copied=4e12, bf16=800e12)
    roof = judge(made).facts[0].roof
    assert (roof.memory, roof.compute, roof.dtype) == (4e12, 800e12, "bf16")
    assert roof.sides["base"].intensity == roof.sides["head"].intensity == 500
    assert roof.sides["base"].rate / roof.sides["head"].rate == pytest.approx(2.0, rel=0.01)
    assert roof.sides["base"].share / roof.sides["head"].share == pytest.approx(2.0, rel=0.01)
