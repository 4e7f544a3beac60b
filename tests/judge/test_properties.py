"""Whatever the numbers: order does not matter, worse is never better, and what is no number never passes."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.judge import judge
from perfci.judge.headline import answers
from perfci.model.results import Work

from .build import case, limit, pairs, results, side

WORK = Work(flops=1e9, items=8)
ok = st.builds(side, status=st.just("ok"), params=st.sampled_from([{"n": 64}, {"n": 128}]), work=st.just(WORK))
statuses = st.sampled_from(["failed", "skipped", "absent"])
bad = st.builds(side, status=statuses, kind=st.just("exception"), text=st.text(max_size=30))
good = st.floats(1e-6, 1e-3)
anything = st.one_of(good, st.floats(), st.just(0.0))


@st.composite
def worker_pairs(draw, number=good, least=0):
    n = draw(st.integers(least, 20))
    scale = draw(st.sampled_from([1.0, 1.3, 0.6]))
    base = [draw(number)] * n if draw(st.booleans()) else [draw(number) for _ in range(n)]
    head = [v * scale for v in base] if draw(st.booleans()) else [draw(number) for _ in range(n)]
    return pairs(base, head) if n else []


@st.composite
def some_cases(draw, number=good):
    return [
        case(f"k/n={i}", base=draw(ok | ok | bad), head=draw(ok | ok | bad), pairs=draw(worker_pairs(number)))
        for i in range(draw(st.integers(1, 4)))
    ]


ASKED = [("time", "regression", 0.02), ("time", "max", 1e-4), ("tflops", "regression", 0.1), ("x", "min", 1.0)]


@st.composite
def some_limits(draw, cases):
    return [
        limit(c.id, metric, kind, bound, fail_on=draw(st.sampled_from([["broken", "missing"], ["missing"]])))
        for c in cases
        for metric, kind, bound in draw(st.lists(st.sampled_from(ASKED), unique=True))
    ]


@given(st.data(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_order_of_cases_pairs_and_limits_does_not_matter(data, shuffle: random.Random, strict):
    cases = data.draw(some_cases(anything))
    limits = data.draw(some_limits(cases))
    report = judge(results(cases, limits), strict=strict)
    shuffled = [
        c.model_copy(update={"pairs": shuffle.sample(c.pairs, len(c.pairs))}) for c in shuffle.sample(cases, len(cases))
    ]
    again = judge(results(shuffled, shuffle.sample(limits, len(limits))), strict=strict)
    assert again.model_dump_json() == report.model_dump_json()


@given(st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_verdict_exit_code_and_rows_agree(data, strict):
    cases = data.draw(some_cases(anything))
    report = judge(results(cases, data.draw(some_limits(cases))), strict=strict)
    effects = {row.effect for row in report.rows}
    if report.verdict == "pass":
        assert (report.exit_code, bool(effects & {"fail", "undecided"})) == (0, False)
        assert any(map(answers, report.rows))
    elif report.verdict == "undecided":
        assert (report.exit_code, "fail" in effects) == (0, False)
    elif report.verdict == "fail":
        assert report.exit_code == 1 and ("fail" in effects or not any(map(answers, report.rows)))
    else:
        assert report.exit_code == 3
    assert sum(report.counts.values()) == len({(row.case, row.device) for row in report.rows})
    assert all(row.reason for row in report.rows)


@given(worker_pairs(least=16), st.data())
@settings(max_examples=200, deadline=None)
def test_slower_launches_never_turn_fail_into_pass(made, data):
    limits = [limit(), limit(kind="max", bound=5e-4)]
    before = judge(results([case(pairs=made)], limits))
    slower = [pair.model_copy(deep=True) for pair in made]
    for pair in slower:
        pair.values["head"]["time"] *= 1 + data.draw(st.floats(0, 3))
    after = judge(results([case(pairs=slower)], limits))
    if any(row.class_ == "regression" for row in before.rows):
        # Where some launches alone are slower, it may look like drift: it is not shown then, and fails all the same.
        assert any(row.kind == "regression" and row.effect == "fail" for row in after.rows)
    if before.verdict == "fail":
        assert after.verdict == "fail"


@given(
    worker_pairs(least=1),
    st.data(),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1e-6]),
    st.sampled_from(["base", "head"]),
    st.sampled_from([("time", "regression", 0.02), ("tflops", "regression", 0.02), ("time", "max", 1.0)]),
)
@settings(max_examples=200, deadline=None)
def test_one_value_that_is_no_time_makes_the_row_invalid(made, data, value, where, asked):
    metric, kind, bound = asked
    if kind == "max":
        where = "head"
    pair = data.draw(st.sampled_from(made))
    pair.values[where]["time"] = value
    work = side(work=WORK)
    given = results([case(base=work, head=work, pairs=made)], [limit(metric=metric, kind=kind, bound=bound)])
    report = judge(given)
    row = report.rows[0]
    assert (row.class_, row.effect) == ("invalid", "undecided")
    assert report.verdict == "undecided"
    assert judge(given, strict=True).exit_code == 1
