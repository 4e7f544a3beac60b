"""Why a limit has no answer: what it takes beyond the printed interval, and how many more pairs would do."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.judge import judge
from perfci.model.plan import Looks
from perfci.model.report import Row
from perfci.stats.answer import answer, pairs_to_decide
from tests.judge import build

MAY_BE = re.compile(
    r"takes ([\d.]+) % confidence, at which it may be (?:([\d.]+) % (slower|faster|higher|lower)|the same)"
)
CANNOT = re.compile(r"takes (?:[\d.]+ % confidence|certainty), which \d+ pairs cannot give")


def judged(
    x: np.ndarray, bound: float = 0.1, m: int = 1, metric: str = "time", stopped: str = "budget", **asked
) -> Row:
    """The row of pairs with these log ratios. `m`: criteria that share α."""
    base = np.full(x.size, build.T)
    case = build.case(pairs=build.pairs(base, base * np.exp(x), metric=metric), stopped=stopped)
    limits = [build.limit(metric=metric, bound=bound, **asked)]
    others = [build.limit(f"other{n}") for n in range(m - 1)]
    found = judge(build.results([case], limits + others)).rows
    return next(row for row in found if row.case == case.id)


def test_an_interval_within_the_limit_is_told_what_it_lacks() -> None:
    row = judged(np.random.default_rng(34).normal(-0.02, 0.055, 8))
    assert row.interval is not None and row.interval.high < 1.1
    assert row.reason == (
        "undecided after 8 pairs: the budget ended: between 5.2 % faster and 6.2 % slower; to exclude 10 % takes 99.6 % "
        "confidence, at which it may be 12.9 % slower; about 4 more pairs like these would decide it; "
        "a larger budget or a larger limit would help"
    )


def test_an_interval_beyond_the_limit_is_told_what_it_lacks() -> None:
    row = judged(np.random.default_rng(0).normal(0.15, 0.03, 8))
    assert row.interval is not None and row.interval.low > 1.1
    assert row.reason.endswith(
        "slower, all of it beyond the limit of 10 %; to show that it is worse takes 99.90 % confidence, which 8 pairs "
        "cannot give; about 1 more pair like these would decide it; a larger budget or a larger limit would help"
    )


def test_one_that_nothing_is_known_of_names_no_number() -> None:
    """A hopeless case has been foretold better than pairs taken again can."""
    row = judged(np.random.default_rng(3).normal(0.05, 0.2, 24), stopped="hopeless")
    assert "more pairs like these" not in row.reason and row.reason.endswith(
        "a larger limit or a quieter machine would help"
    )


@given(
    st.integers(0, 10_000), st.integers(8, 40), st.floats(-0.3, 0.3), st.floats(0.01, 0.2), st.sampled_from([1, 20]),
    st.sampled_from(["time", "score"]),
)  # fmt: skip
def test_what_an_answer_takes_is_told_where_the_interval_does_not_show_it(
    seed: int, n: int, shift: float, sd: float, m: int, metric: str
) -> None:
    """And at that confidence the change may indeed lie on the other side of what is asked."""
    better = "lower" if metric == "time" else "higher"
    row = judged(
        np.random.default_rng(seed).normal(shift, sd, n), m=m, metric=metric, unit="", better=better, tier="timing"
    )
    if row.class_ != "inconclusive" or "pairs resemble those before them" in row.reason:  # drift has words of its own
        return
    assert row.interval is not None
    limit = 1.1 if better == "lower" else 0.9
    worse = 1 if better == "lower" else -1
    ends = sorted(worse * math.log(end / limit) for end in (row.interval.low, row.interval.high))
    found = MAY_BE.search(row.reason)
    if ends[0] <= 0 <= ends[1]:
        assert "confidence" not in row.reason
        return
    assert found or CANNOT.search(row.reason)
    if found is None:
        return
    assert float(found[1]) > 97.5, "more than the interval's side"
    change = float(found[2] or 0) / 100 * (1 if found[3] in ("slower", "higher") else -1)
    about = 1e-3 + 0.006 * abs(change)  # as it is rounded
    if "to exclude 10 %" in row.reason:
        assert ends[1] < 0 and worse * change >= 0.1 - about
    elif "to show that it is worse" in row.reason:
        assert ends[0] > 0 and worse * change <= about
    else:
        assert "to show more than half of 10 %" in row.reason and worse * change <= 0.0541 + about


def test_the_line_of_a_bisect_is_what_is_said() -> None:
    """Half of the whole change is asked, whatever the limit is: no larger limit would help."""
    x = np.random.default_rng(5).normal(math.log(1.206), 0.03, 64)
    row = judged(x, bound=0.20526718, stopped="cap", threshold=True)
    assert row.class_ == "inconclusive"
    assert row.reason.startswith("undecided after 64 pairs whether half of the whole change, 20.5 %, is there: ")
    assert row.reason.endswith("; a quieter machine would help") and "limit" not in row.reason
    beyond = judged(x + 0.1, bound=0.20526718, threshold=True)
    assert beyond.class_ == "regression" and beyond.reason.endswith("; half of the whole change is 20.5 %")


@pytest.mark.parametrize("m", [1, 20])
def test_the_outlook_is_about_right(m: int) -> None:
    """Half of the cases are decided before the number that is told, and half after it."""
    rng, looks, found = np.random.default_rng(m), Looks.fitted(m), []
    for shift in (0.0, 0.15):
        for _ in range(40):
            x = rng.normal(math.log1p(shift), 0.1, 64)
            case = build.case(pairs=build.pairs(np.full(64, build.T), build.T * np.exp(x)))
            whole = answer(case, build.limit(bound=0.1), looks, m, ended=True).decision
            case.pairs = case.pairs[:8]
            few = answer(case, build.limit(bound=0.1), looks, m, ended=True)
            if few.decision.status == "inconclusive" and whole.status != "inconclusive":
                told = pairs_to_decide(build.limit(bound=0.1), few, looks, m)
                found += [] if told is None else [told / whole.n]
    assert len(found) > 40
    assert 0.75 <= np.median(found) <= 1.35
    assert np.quantile(found, 0.1) > 0.3 and np.quantile(found, 0.9) < 2.5
