"""The words of a change and of a value are the same wherever a report is written."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.judge import judge
from perfci.judge.words import change_words
from perfci.model.criteria import asked
from perfci.model.metrics import CustomMetric, known_metric
from perfci.model.policy import Limit
from perfci.model.report import Interval, Report
from perfci.model.results import Work
from perfci.model.units import direction
from perfci.render import comment, render_all
from perfci.render.view import View
from perfci.render.words import moved
from tests.judge import build
from tests.render.build import row
from tests.render.publications import publication
from tests.render.test_terminal import printed

DIRECTIONS = r"slower|faster|higher|lower"
OPEN = r"(?:-|−|\+)\d[^|<>]{0,40}?\(±[^)]*\)[^|\w]{0,12}(?:slower|faster|higher|lower)"
"""A change with its interval and a direction, in whatever a format puts between."""


def everywhere(report: Report) -> dict[str, str]:
    """Each way in which people and programs read a report, but the document itself."""
    files = {name: text for name, text in render_all(report).items() if name != "report.json"}
    shown = {f"terminal {width}": printed(report, width) for width in (0, 80, 120)}
    return files | shown | {"comment": comment.render(publication(report))}


def test_a_change_whose_interval_holds_none_has_no_direction() -> None:
    """The budget ended at 8 pairs between 12 % faster and 4 % slower: which way it went is not known."""
    made = build.pairs(*build.values(0.955, 8, sd=0.09, seed=4))
    case = build.case(pairs=made, stopped="budget")
    report = judge(build.results([case], [build.limit(bound=0.1)]))
    (found,) = report.rows
    assert (found.class_, found.effect) == ("inconclusive", "undecided")
    assert found.interval is not None and found.interval.low < found.change < 1 < found.interval.high
    assert re.search(r"the budget ended: between \d+(\.\d+)? % faster and \d+(\.\d+)? % slower", found.reason)
    for where, text in everywhere(report).items():
        assert not re.search(OPEN, text), where
        assert not re.search(rf"{change_words(found.change, 'time')}", text), where


def test_a_change_that_equal_clock_alone_shows_is_written_as_it_was_shown() -> None:
    """Measured it lies on both sides of none: neither its number nor the headline may name a direction for that."""
    base, head = build.values(1.003, 16, sd=0.01, seed=2)
    made = build.at_clocks(build.pairs(base, head), base=1.98e9, head=1.98e9 * 1.05)
    report = judge(build.results([build.case(pairs=made)], [build.limit(bound=0.02)]))
    (found,) = report.rows
    assert found.class_ == "regression" and found.interval is not None
    assert not found.interval.holds(1) and found.change == pytest.approx(1.05, abs=0.02)
    assert re.match(
        r"\d\.\d % slower at equal clock \(between [\d.]+ % faster and [\d.]+ % slower as measured", found.reason
    )


@given(
    st.floats(0.01, 10), st.floats(0, 2), st.floats(0, 2), st.sampled_from(["time", "cycles", "p99", "tflops"]),
    st.sampled_from(["s", "ms", "", "cycles"]),
)  # fmt: skip
def test_a_direction_is_named_where_it_is_known_alone(
    change: float, below: float, above: float, metric: str, unit: str
) -> None:
    low, high = max(0.0, change - below), change + above
    one = row(
        "a", "inconclusive", metric=metric, unit=unit, change=change, interval=Interval(low=low, high=high, level=0.95)
    )
    known = not low <= 1 <= high
    assert moved(one) == (direction(change, metric) if known else "")
    assert bool(re.search(DIRECTIONS, View.__new__(View).change(one))) == known


def test_what_is_counted_has_its_direction_and_a_single_pair_has_none() -> None:
    counted = row("a", "regression", metric="registers", unit="", change=1.5, interval=None, pairs=0)
    assert moved(counted) == "higher"
    assert moved(row("a", "inconclusive", change=1.5, interval=None, pairs=1)) == ""


@pytest.mark.parametrize("metric", ["time", "cycles", "throughput", "device_time", "range:encode", "p99", "score"])
def test_table_and_sentence_name_one_direction(metric: str) -> None:
    """Of the catalogue's metrics and of a command's own, in whatever unit."""
    custom = {"p99": CustomMetric(unit="s"), "score": CustomMetric(better="higher")}
    unit = {"time": "s", "device_time": "s", "range:encode": "s", "p99": "s", "cycles": "cycles"}.get(metric, "")
    for ratio in (0.8, 1.25):
        base, head = build.values(ratio)
        case = build.case(pairs=build.pairs(base, head, **{metric: (base, head)}))
        limit = build.limit(metric=metric, unit=unit, tier="timing", better="lower" if ratio > 1 else "higher")
        report = judge(build.results([case], [limit], custom_metrics=custom))
        (found,) = report.rows
        assert found.class_ == "regression"
        (word,) = {*re.findall(DIRECTIONS, found.reason)}
        smaller, larger = ("faster", "slower") if metric in ("time", "cycles") else ("lower", "higher")
        assert word == (larger if ratio > 1 else smaller)
        for where, text in everywhere(report).items():
            seen = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S)
            assert {*re.findall(rf"\b(?:{DIRECTIONS})\b", seen)} <= {word}, where


WITHIN, BROKEN, STILL = "within the limit of", "below the limit of", "base breaks it already"


@pytest.mark.parametrize(("bound", "ratio", "said"), [(1e3, 1.0, WITHIN), (2e6, 1.0, BROKEN), (7e5, 1.5, BROKEN), (2e6, 1.5, STILL)])  # fmt: skip
@pytest.mark.parametrize("declared", [True, False])
def test_a_throughput_names_its_items_everywhere(bound: float, ratio: float, said: str, declared: bool) -> None:
    """What the case declares that it counts; else, of a command that reports a rate, what the limit says."""
    base, head = build.values(ratio)
    side = build.side(work=Work(items=36, item="tokens") if declared else Work())
    rates = {} if declared else {"throughput": (36 / base, 36 / head)}
    case = build.case(pairs=build.pairs(base, head, **rates), base=side, head=side)
    change = build.limit(metric="throughput")
    policy = Limit(metric="throughput", min=f"{bound} {'' if declared else 'tokens'}/s")
    written = asked(policy, known_metric("throughput"), "cuda")["min"]
    report = judge(build.results([case], [change, build.limit(kind="min", **written)]))
    (found,) = [one for one in report.rows if one.kind == "min"]
    assert said in found.reason and found.reason.count(" tokens/s") >= 2
    shown = everywhere(report)
    assert "tokens/s" in shown["report.md"] and "tokens/s" in shown["report.csv"]
    for where, text in shown.items():
        assert not re.search(r"(?<![A-Za-z])/s\b", text), where
