"""The verdict over all rows: exit codes, sentences, counts, and what a report holds besides."""

import math
import sys
from itertools import count as count_from_0

import numpy as np
import pytest

from perfci.judge import judge
from perfci.model.criteria import LimitSource
from perfci.model.results import Reason, Work
from perfci.stats.describe import describe

from .build import alone, case, limit, pairs, results, side, values

FAILED = side("failed", "timeout", "no answer for 60 s")
BROKEN = side("failed", "import", "SyntaxError: '(' was never closed (kernels/suite.py:7)")
OTHER = side(file="kernels/other.py")
SKIPPED = side("skipped", "device", "needs cuda")


def many(n, ratio=1.0, start=0, **fields):
    return [case(f"copy/n={i:02}", ratio, values={"seed": i}, **fields) for i in range(start, start + n)]


def skipped(n):
    return [case(f"z{i}", None, base=SKIPPED, head=SKIPPED) for i in range(n)]


WORK = side(work=Work(items=8))
IMPORTS = "`kernels/suite.py` does not import"
RUN = {"mode": "run"}


def held(cases, limits=None, fields=None):
    return results([*cases], limits, **(fields or {}))


def late(**fields):
    return case("a", stopped="budget", **fields)


def early(n):
    return late(ratio=3.1, values={"n": n})


SENTENCES = [
    # verdict (review: a failure that needs one), sentence, results: cases, limits, the rest
    ("pass", "No regression: 12 cases unchanged", many(12)),
    (
        "pass",
        "No regression: 1 case unchanged, 2 improvements (`b` is 30.0 % faster), 1 added, 1 skipped",
        [*many(1), case(ratio=0.7), case("b", ratio=0.7), case("c", base=side("absent")), *skipped(1)],
    ),
    ("review", "`sdpa/seq=512` is 3.1× slower", [case("sdpa/seq=512", ratio=3.1)]),
    ("review", "`matmul/n=64` is 15.2 % slower (+2 more)", [case(ratio=1.152), *many(2, 1.05), *many(5, start=5)]),
    ("review", "`b`: fails in head: no answer for 60 s (+1 more)", [case(ratio=1.152), case("b", head=FAILED)]),
    ("review", "`a` is missing in head", [case("a", head=side("absent")), *many(2)]),
    (
        "review",
        "`matmul/n=64`: throughput is 60.0 % lower",
        [case(base=WORK, head=WORK, ratio=2.5)],
        [limit(metric="throughput")],
    ),
    (
        "fail",
        "`matmul/n=64`: time of 5.01 ms is above the limit of 1.00 ms",
        [alone(level=5e-3)],
        [limit(kind="max", bound=1e-3)],
        RUN,
    ),
    (
        "undecided",
        "Undecided: 3 of 12 cases have no answer: `x0` is inconclusive",
        [*many(9), *(case(f"x{i}", values={"sd": 0.2, "seed": i}) for i in range(3))],
    ),
    (
        "undecided",
        "Undecided: 2 of 4 cases have no answer: `b`: parameter n is 64 in base, not set in head",
        [*many(2), case("a", values={"sd": 0.2}), case("b", head=side(params={}))],
    ),
    ("undecided", "Undecided: nothing was measured: `z0` is skipped: needs cuda (+1 more)", skipped(2)),
    ("pass", "All limits hold: 1 case within; compared with nothing", [alone()], [limit(kind="max", bound=1.0)], RUN),
    (
        "undecided",
        "Measured: 1 case; no absolute limit applies, and there is nothing to compare with",
        [alone()],
        [],
        RUN,
    ),
    ("undecided", "Undecided: 3 cases measured; no limit applies", many(3), []),
    ("pass", "Passed, but of 3 cases 1 changed", [*many(2), case(head=WORK)]),
    (
        "undecided",
        "Undecided: 1 of 3 cases has no answer: `a` seems 3.1× slower, which 9 pairs do not prove",
        [*many(2), early(9), *skipped(34)],
    ),
    (
        "undecided",
        "Undecided: 1 of 3 cases has no answer: `a`: no finished pair: the budget is too short for it; a budget of 30m "
        "would do",
        [*many(2), late(ratio=None, budget_needed=1800.0)],
    ),
    (
        "error",
        "The budget of 15m ended before the first 8 pairs of `a`: nothing is known of them",
        [early(7), *skipped(34)],
    ),
    ("review", "`copy/n=00` is 49.9 % slower (+1 more)", [*many(2, 1.5), early(7)]),
    (
        "error",
        "The budget of 15m is too short to show a regression of `a`: measuring ended early",
        [late(ratio=None, budget_needed=1800.0)],
        None,
        {"budget_needed": 1800.0},
    ),
    ("review", "`b`: fails in head: no answer for 60 s", [late(ratio=None), case("b", head=FAILED, ratio=None)]),
    (
        "fail",
        f"{IMPORTS} in head: SyntaxError: '(' was never closed (kernels/suite.py:7) (+1 more)",
        [case("a", None, head=BROKEN), case("b", None, head=BROKEN), case("c", 1.5, base=OTHER, head=OTHER)],
    ),
    (
        "error",
        f"{IMPORTS} in base and in head: SyntaxError: '(' was never closed (kernels/suite.py:7)",
        [case("a", None, base=BROKEN, head=BROKEN), *many(2)],
    ),
    ("fail", f"{IMPORTS}: SyntaxError: '(' was never closed (kernels/suite.py:7)", [alone(head=BROKEN)], [], RUN),
    ("error", "Nothing was measured: the budget of 15m ended", [late(ratio=None)], [], RUN),
    ("error", "Nothing was measured", []),
    ("error", "Nothing was measured: `b`: no finished pair", [case(ratio=None), case("b", ratio=None)]),
    (
        "error",
        "The measurement failed: the GPU fell off the bus",
        many(2),
        None,
        {"error": Reason(kind="crash", text="the GPU fell\noff the bus")},
    ),
    (
        "error",
        "`matmul/n=64`: fails in base and in head: no answer for 60 s",
        [case(base=FAILED, head=FAILED), *many(2)],
    ),
    (
        "error",
        "`matmul/n=64`: fails in base and in head: no answer for 60 s; besides, 2 more would fail the gate",
        [case(base=FAILED, head=FAILED), *many(2, 1.5)],
    ),
]


@pytest.mark.parametrize("row", SENTENCES, ids=lambda row: row[1][:40])
def test_verdict_and_sentence(row):
    told, sentence, *given = row
    verdict = "fail" if told == "review" else told
    report = judge(held(*given))
    assert (report.sentence, report.needs_review) == (sentence, told == "review")
    assert (report.verdict, report.exit_code) == (verdict, {"pass": 0, "fail": 1, "undecided": 0, "error": 3}[verdict])
    assert bool(report.advice) == (verdict != "pass" or sentence.startswith("Passed, but")) or "nothing was" in sentence
    assert "\n" not in report.sentence + report.advice


@pytest.mark.parametrize("row", SENTENCES, ids=lambda row: row[1][:40])
def test_limits_that_only_warn_never_fail_and_errors_stay(row):
    verdict, _, *given = row
    made = held(*given)
    warns = [one.model_copy(update={"fail_on": []}) for one in made.plan.criteria]
    report = judge(made.model_copy(update={"fail_on": []}), criteria=warns, strict=False)
    assert report.verdict != "fail" and report.exit_code in (0, 3)
    assert verdict != "error" or report.verdict == "error"


def test_strict_fails_what_is_not_known():
    made = results([*many(2), case("a", values={"sd": 0.2})])
    assert judge(made).exit_code == 0
    report = judge(made, strict=True)
    assert (report.exit_code, report.strict) == (1, True)
    assert (report.sentence, report.needs_review) == ("`a` is inconclusive", True)


def test_a_name_in_backticks_cannot_end_early():
    report = judge(results([case("evil`b`/n=1", ratio=2.0)]))
    assert report.sentence.startswith("`evil'b'/n=1` is ")
    assert report.rows[0].case == "evil`b`/n=1"


def test_run_compares_with_nothing():
    report = judge(results([alone()], [limit(), limit(kind="max", bound=1.0)], mode="run"))
    assert [row.kind for row in report.rows] == ["max"]
    assert report.mode == "run"


@pytest.mark.parametrize(
    ("head", "class_", "code"), [(FAILED, "failed", 1), (SKIPPED, "skipped", 0), (side("absent"), "missing", 1)]
)
def test_run_says_what_became_of_each_case(head, class_, code):
    asked = [limit(name, kind="max", bound=1.0) for name in ("matmul/n=64", "other")]
    report = judge(results([alone(head=head), alone("other")], asked, mode="run"))
    assert report.exit_code == code
    assert [row.class_ for row in report.rows if row.case == "matmul/n=64"] == [class_]


def test_each_case_counts_once_by_its_worst_row():
    work = side(work=Work(items=8))
    both = case(ratio=1.5, base=work, head=work)
    cpu = case(ratio=1.0, device="cpu")
    unlimited = case("free")
    made = results(
        [both, cpu, unlimited], [limit(), limit(kind="max", bound=1.0), limit(metric="throughput"), limit(device="cpu")]
    )
    report = judge(made)
    assert len(report.rows) == 4
    assert report.counts == {"regression": 1, "unchanged": 1}
    assert {m.case for m in report.measured} == {"matmul/n=64", "free"}


def test_the_largest_change_leads_whichever_limit_found_it():
    """A value far over its bound stands above a small regression, and below a large one."""
    over = limit("c", kind="max", bound=6e-5)  # and 194 µs are measured
    made = results([case("c", ratio=4.0), case("d", ratio=28.0), case("e", ratio=1.1)], [limit("d"), limit("e"), over])
    report = judge(made)
    assert [(row.case, row.class_) for row in report.rows] == [
        ("d", "regression"), ("c", "violation"), ("e", "regression")
    ]  # fmt: skip
    assert report.sentence.startswith("`d` is 28× slower (+2 more)")


def test_measured_values_have_statistics_with_or_without_limits():
    work = side(work=Work(flops=1e9))
    made = results([case("free", base=work, head=work, pairs=pairs(*values(), errors=(None, values()[1])))], [])
    found = {m.metric: m for m in judge(made).measured}
    assert list(found) == ["time", "tflops", "errors"]
    base = [p.values["base"]["time"] for p in made.cases[0].pairs]
    assert found["time"].sides["base"] == describe(base)
    assert found["tflops"].unit == "TFLOP/s"
    assert list(found["errors"].sides) == ["head"]


def test_values_that_are_no_numbers_are_noted_even_without_a_limit():
    made = results([case("free", pairs=pairs(values()[0], np.full(24, math.nan)))], [])
    report = judge(made)
    assert report.notes == ["free@cuda: a worker's time in head is not a finite number"]
    assert list(report.measured[0].sides) == ["base"]


def test_noise_is_the_median_spread_of_a_pairs_ratio():
    made = results([case(f"c{i}", values={"sd": sd, "n": 64}) for i, sd in enumerate((0.001, 0.004, 0.05))])
    assert judge(made).noise == pytest.approx(0.004, rel=0.25)
    assert judge(results([alone()], [], mode="run")).noise is None


def test_other_limits_than_planned_make_the_report_exploratory():
    made = results([case(ratio=1.05)])
    same = judge(made, criteria=[limit(source=LimitSource(origin="kernel", where="k.py:3"))])
    assert (same.exploratory, same.exit_code) == (False, 1)
    looser = judge(made, criteria=[limit(bound=0.1)])
    assert (looser.exploratory, looser.exit_code) == (True, 0)
    assert any("error rates do not hold" in note for note in looser.notes)


def test_more_criteria_that_share_alpha_need_more_pairs():
    made = results([case(ratio=1.05, values={"n": 16})])
    assert judge(made).rows[0].class_ == "regression"
    others = [limit(f"other/n={i}", kind="max") for i in range(1000)]
    report = judge(made, criteria=[limit(), *others])
    assert next(r for r in report.rows if r.case == "matmul/n=64").class_ == "inconclusive"


def test_facts_of_a_case_are_heads_or_else_bases():
    work = Work(flops=1e9)
    facts = judge(results([case(base=side(work=work), head=FAILED)])).facts[0]
    assert facts.work == work
    assert facts.timing == side().timing
    assert facts.reasons["head"].kind == "timeout"


def test_the_report_keeps_what_the_results_say():
    made = results(
        many(1), notes=["head has uncommitted changes"], repository="lib", seconds=9.0, measuring_seconds=4.0
    )
    report = judge(made)
    assert (report.run, report.command, report.repository) == (made.run, made.command, "lib")
    assert (report.seconds, report.measuring_seconds, report.pairs) == (9.0, 4.0, 24)
    assert report.notes == ["head has uncommitted changes"]


def test_four_times_as_many_cases_are_four_times_the_work():
    """By calls, which no machine delays: what compares each case with each other would be sixteen times as much."""

    def calls(count: int) -> int:
        made = results([case(f"c/n={i}", values={"n": 64, "sd": 0.01, "seed": i}) for i in range(count)])
        seen = count_from_0()
        sys.setprofile(lambda frame, event, arg: next(seen))
        try:
            report = judge(made)
        finally:
            sys.setprofile(None)
        assert len(report.rows) == count
        return next(seen)

    assert calls(100) < 5 * calls(25)


def test_the_files_that_differ_stand_in_what_to_do_about_a_regression() -> None:
    slower = results([case(ratio=2.0)], changed="`a.py` +1 -1")
    assert judge(slower).advice.startswith("See what moved between base and head (`a.py` +1 -1); if it is intended, ")
    assert judge(results([case(ratio=2.0)])).advice.startswith("See what moved between base and head; if it is ")
    assert "a.py" not in judge(results([case()], changed="`a.py` +1 -1")).advice
