"""Base failed while it was measured although it had been right: no verdict, unless another case fails."""

import pytest

from perfci.judge.judge import judge
from perfci.model.results import CaseSide, Reason
from tests.judge.build import case, limit, results, side

KILLED = "killed by SIGKILL (out of memory, or killed from outside) before it answered"


def broken(during: str = "round", text: str = KILLED) -> CaseSide:
    return side("failed", reason=Reason(kind="crash", text=text, log="logs/base.log", during=during))  # type: ignore[arg-type]


@pytest.mark.parametrize("strict", [False, True])
def test_it_is_an_error_with_the_reason_and_what_to_do(strict):
    report = judge(results([case(base=broken()), case("other")]), strict=strict)
    assert (report.verdict, report.exit_code) == ("error", 3)
    assert report.sentence == f"matmul/n=64: base failed while it was measured, although it was right before: {KILLED}"
    assert "see logs/base.log, free memory, find out what ends it, in head too, and run again" in report.advice
    (row,) = [row for row in report.rows if row.case == "matmul/n=64"]
    assert (row.class_, row.reason) == ("invalid", f"base failed while it was measured: {KILLED}")


def test_several_cases_are_counted():
    report = judge(results([case(base=broken()), case("other", base=broken())]))
    assert report.sentence.endswith("; so it was in 1 more")


def test_what_fails_comes_first():
    slower = case("slower", ratio=1.5)
    report = judge(results([case(base=broken()), slower]))
    assert (report.verdict, report.exit_code) == ("fail", 1)
    assert next(row for row in report.rows if row.case == "matmul/n=64").class_ == "invalid"


@pytest.mark.parametrize("head", [case("slower", ratio=1.5), case("other")])
def test_where_nothing_can_fail_it_is_an_error_still(head):
    report = judge(results([case(base=broken()), head], [limit(fail_on=[]), limit(head.id, fail_on=[])], fail_on=[]))
    assert (report.verdict, report.exit_code) == ("error", 3)


def test_what_failed_before_it_was_measured_is_no_breakdown():
    report = judge(results([case(base=broken(during="")), case("other")]))
    assert report.verdict != "error"
    assert "fails in base only" in next(row for row in report.rows if row.case == "matmul/n=64").reason


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        (side("failed", "crash", "too"), "error"),
        (side("skipped", "device", "needs cuda"), None),
        (side("absent"), "fail"),
    ],
)
def test_where_head_does_not_run_either_that_is_what_counts(head, verdict):
    given = case(base=broken(), head=head)
    report = judge(results([given, case("other")], [limit(), limit("other")]))
    assert "although it was right before" not in report.sentence
    assert verdict in (None, report.verdict)


def test_head_that_fails_in_a_round_fails_the_gate():
    report = judge(results([case(head=broken()), case("other")]))
    assert (report.verdict, report.exit_code) == ("fail", 1)
