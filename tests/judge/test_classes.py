"""Every class, from the results that lead to it: what it says and what it does to the verdict."""

import math

import numpy as np
import pytest

from perfci.judge import judge
from perfci.model.base import SIDES
from perfci.model.fingerprint import Environments, Interpreter
from perfci.model.report import CLASSES
from perfci.model.results import Check, FileFailure, Moments, Reason, Scatter, Work
from perfci.model.timing import Timing

from .build import T, at_clocks, case, limit, pairs, results, side, values

WORK = Work(flops=1e9, read=4e6, written=2e6, items=32, item="tokens")


def only(report, kind=None):
    rows = [row for row in report.rows if kind is None or row.kind == kind]
    assert len(rows) == 1, rows
    return rows[0]


def clocked(ratio, base=1.98e9, head=1.98e9):
    return case(pairs=at_clocks(pairs(*values(ratio)), base=base, head=head))


def headed(value):
    return case(pairs=pairs(values()[0], np.full(24, value)))


def ended(why, **drawn):
    return case(values=drawn, stopped=why)


EFFECTS = dict.fromkeys(("regression", "violation", "missing", "failed"), "fail")
EFFECTS |= dict.fromkeys(("unchanged", "improvement", "added"), "pass")
"""What a class does where no row says otherwise: `undecided`."""
RELATIVE = [
    # case, class, words of the reason
    (case(ratio=1.152), "regression", "15.2 % slower; the limit is 2 %"),
    (case(ratio=1.0), "unchanged", "a change for the worse of 2 % is excluded"),
    (case(ratio=0.7), "improvement", "30.0 % faster"),
    (clocked(1.1, head=1.8e9), "clock", "10 % slower as measured, not at equal clock: head ran at 1.800 GHz, base "),
    (clocked(1.0, head=2.2e9), "clock", "11.1 % slower at equal clock, not as measured: head ran at 2.200 GHz, base "),
    (
        clocked(1.1, head=1.9e9),
        "regression",
        "5.5 % slower at equal clock (10 % slower as measured: head ran at 1.900 GHz, base at 1.980 GHz); the limit is 2 %",
    ),
    (
        clocked(0.9, head=1.9e9),
        "improvement",
        "13.7 % faster at equal clock (10.0 % faster as measured: head",
    ),
    (
        clocked(1.004, head=1.97e9),
        "unchanged",
        "2 % is excluded at equal clock (0.33 % slower as measured: head",
    ),
    (clocked(1.152, head=1.979e9), "regression", "15.1 % slower; the limit is 2 %"),
    (ended("interrupted", n=3), "inconclusive", "3 of the 8 pairs that a decision needs: the run was interrupted"),
    (ended("interrupted", sd=0.2), "inconclusive", "undecided after 24 pairs: the run was interrupted: "),
    (ended("budget", sd=0.2), "inconclusive", "undecided after 24 pairs: the budget ended: "),
    (case(ratio=None), "invalid", "no finished pair"),
    (headed(math.nan), "invalid", "time of a worker is not a finite number"),
    (headed(-1.0), "invalid", "time of a worker is not positive"),
]


@pytest.mark.parametrize(("given", "class_", "words"), RELATIVE, ids=[f"{r[1]}{i}" for i, r in enumerate(RELATIVE)])
def test_relative_limits(given, class_, words):
    made = results([given, case("other", values={"seed": 9})], [limit(), limit("other")])
    row = next(r for r in judge(made).rows if r.case != "other")
    effect = EFFECTS.get(class_, "undecided")
    assert (row.class_, row.effect) == (class_, effect)
    assert words in row.reason
    report = judge(made, strict=True)
    strict = "fail" if effect == "undecided" else effect
    assert next(r for r in report.rows if r.case != "other").effect == strict
    assert (report.verdict, report.exit_code) == (strict, int(strict == "fail"))


def test_a_regression_short_of_its_limit_says_why_it_is_one():
    row = only(judge(results([case(ratio=1.0185)])))
    assert (row.class_, row.reason) == ("regression", "1.8 % slower, shown to be more than half of the limit of 2 %")


@pytest.mark.parametrize("n", [3, 24])
def test_an_interrupted_case_is_not_advised_a_budget(n):
    reason = only(judge(results([case(values={"n": n, "sd": 0.2}, stopped="interrupted")]))).reason
    assert reason.endswith("; --resume goes on") and "would help" not in reason


def test_a_regression_row_holds_everything_a_reader_needs():
    row = only(judge(results([case(ratio=1.152)])))
    assert (row.kind, row.metric, row.unit) == ("regression", "time", "s")
    assert (row.limit, row.limit_source) == (0.02, "limits[0]")
    assert row.base == pytest.approx(T, rel=0.01)
    assert row.head == pytest.approx(T * 1.152, rel=0.01)
    assert row.change == pytest.approx(1.152, rel=0.003)
    assert row.interval.low < row.change < row.interval.high
    assert row.interval.level >= 0.95
    assert row.worse is True
    assert (row.pairs, row.look) == (9, 1)
    assert row.p == pytest.approx(2.0**-9)
    assert (row.file, row.line, row.kernel) == ("kernels/suite.py", 7, "matmul")


def test_worse_follows_the_direction_of_the_metric():
    slow = case(ratio=1.1, base=side(work=WORK), head=side(work=WORK))
    row = only(judge(results([slow], [limit(metric="throughput")])))
    assert (row.class_, row.worse) == ("regression", True)
    assert row.change == pytest.approx(1 / 1.1, rel=0.003)
    assert row.reason.startswith("9.0 % lower")


def test_sides_without_any_difference_point_nowhere():
    base = values()[0]
    row = only(judge(results([case(pairs=pairs(base, base))])))
    assert (row.class_, row.change, row.worse) == ("unchanged", 1.0, None)


ABSOLUTE = [
    # head's level, base's level, bound, class, effect, words
    (5e-3, 4e-3, 4.5e-3, "violation", "fail", "5.00 ms is above the limit of 4.50 ms"),
    (5e-3, 5e-3, 4.5e-3, "violation", "warn", "as it already was in base (5.00 ms)"),
    (4e-3, 5e-3, 4.5e-3, "unchanged", "pass", "4.00 ms is within the limit of 4.50 ms"),
]


@pytest.mark.parametrize(("head", "base", "bound", "class_", "effect", "words"), ABSOLUTE)
def test_absolute_limits(head, base, bound, class_, effect, words):
    given = case(pairs=pairs(values(base=base, sd=1e-4)[0] ** 0 * base, values(base=head)[0] ** 0 * head))
    row = only(judge(results([given], [limit(kind="max", bound=bound)])))
    assert (row.class_, row.effect) == (class_, effect)
    assert words in row.reason
    assert row.head == pytest.approx(head)
    assert row.interval.low == pytest.approx(head)


def test_a_lower_bound_on_a_derived_metric():
    given = case(base=side(work=WORK), head=side(work=WORK))
    held, row = (
        only(judge(results([given], [limit(metric="bandwidth", kind="min", bound=6e6 / T * factor)])))
        for factor in (0.5, 2)
    )
    assert held.class_ == "unchanged"
    assert (row.class_, row.effect) == ("violation", "warn")
    assert "below the limit" in row.reason


ALREADY = [
    # ratio head/base where base breaks the bound, other limits of the case, effect, words
    (1.0, [], "warn", "as it already was in base"),
    (0.9, [], "warn", "as it already was in base"),
    (1.05, [], "fail", "; base breaks it already (4.79 ms), and head is 5.1 % slower still"),
    (2.65, [], "fail", "and head is 2.7× slower still"),
    (1.05, [limit(bound=0.1)], "warn", "as it already was in base"),
    (1.3, [limit(bound=0.1)], "fail", "and head is 30.1 % slower still"),
]


@pytest.mark.parametrize(("ratio", "others", "effect", "words"), ALREADY)
def test_a_bound_that_base_breaks_already_still_binds_head(ratio, others, effect, words):
    given = case(ratio=ratio, values={"base": 4.8e-3})
    row = only(judge(results([given], [limit(kind="max", bound=3.4e-3), *others])), "max")
    assert (row.class_, row.effect) == ("violation", effect)
    assert words in row.reason


def test_a_bound_that_base_breaks_already_fails_unchanged_code_no_oftener_than_other_limits():
    """Of 400 runs in which base breaks the bound, and nothing changed: at most one in a hundred fails."""
    effects = []
    for seed in range(400):
        given = case(values={"base": 4.8e-3, "sd": 0.01, "seed": seed, "n": 16})
        effects.append(only(judge(results([given], [limit(kind="max", bound=3.4e-3)]))).effect)
    assert set(effects) == {"fail", "warn"}
    assert effects.count("fail") <= 4


FAIL_ON = {"fail": ["broken", "missing"], "warn": ["broken"]}


@pytest.mark.parametrize("fail_on", [[], ["missing"], ["broken"], ["broken", "undecided"]])
@pytest.mark.parametrize("strict", [False, True])
def test_what_has_no_answer_fails_where_its_limit_or_strict_with_a_limit_that_can_break_says_so(fail_on, strict):
    noisy = case("a", values={"sd": 0.2})
    asked = [limit("a", fail_on=fail_on), limit("b")]
    report = judge(results([noisy, case("b")], asked), strict=strict)
    row = next(row for row in report.rows if row.case == "a" and row.kind != "presence")
    fails = "undecided" in fail_on or (strict and "broken" in fail_on)
    assert row.effect == "fail" if fails else row.effect in ("undecided", "warn")
    assert report.exit_code == int(fails)


@pytest.mark.parametrize("inputs", ["other inputs", ""], ids=["changed", "skipped"])
def test_a_limit_that_fails_without_an_answer_does_so_where_its_case_withholds_it(inputs):
    head = side(inputs=inputs) if inputs else side("skipped")
    for fail_on, effect in ((["broken"], "undecided"), (["broken", "undecided"], "fail")):
        report = judge(results([case(head=head)], [limit(fail_on=fail_on)]))
        assert only(report).effect == effect, report.rows


@pytest.mark.parametrize(
    ("policys", "own", "effect"), [([], [], "undecided"), ([], ["broken"], "fail"), (["broken"], [], "fail")]
)
def test_a_case_that_fails_is_never_green(policys, own, effect):
    report = judge(results([case(head=FAILED)], [limit(fail_on=own)], fail_on=policys))
    assert only(report).effect == effect
    assert report.verdict == {"fail": "fail", "undecided": "undecided"}[effect]


@pytest.mark.parametrize("on_missing", ["fail", "warn"])
@pytest.mark.parametrize("kind", ["min", "max", "regression"])
def test_a_metric_that_was_not_measured_never_passes(kind, on_missing):
    blind = limit(metric="p99", kind=kind, bound=0.8, fail_on=FAIL_ON[on_missing])
    row = only(judge(results([case()], [blind])))
    # Of a case with no other limit, nothing is known then.
    assert (row.class_, row.effect) == ("invalid", "fail" if on_missing == "fail" else "undecided")
    beside = judge(results([case()], [blind, limit()])).rows
    assert {row.metric: row.effect for row in beside} == {"p99": on_missing, "time": "pass"}
    assert row.reason == "not measured: head has no p99"


def test_a_metric_that_is_gone_from_head_and_one_that_is_new():
    gone = case(pairs=pairs(*values(), errors=(values()[0], None)))
    row = only(judge(results([gone], [limit(metric="errors")])))
    assert (row.class_, row.effect) == ("invalid", "fail")
    assert row.reason == "not measured: base has errors, head has not"
    new = case(pairs=pairs(*values(), errors=(None, values()[0])))
    row = only(judge(results([new], [limit(metric="errors")])))
    assert (row.class_, row.effect) == ("added", "pass")


def test_a_derived_metric_says_which_work_is_not_declared():
    row = only(judge(results([case()], [limit(metric="tflops", kind="min", bound=1.0)])))
    assert row.reason == "not measured: head declares no floating-point operations"


def test_a_planned_case_that_the_results_do_not_hold_never_passes():
    row = next(r for r in judge(results([case()], [limit(), limit("gone/n=1")])).rows if r.case == "gone/n=1")
    assert (row.class_, row.effect, row.kernel) == ("invalid", "fail", "gone")


OK, FAILED, SKIPPED, ABSENT = (
    side(),
    side("failed", "exception", "ValueError: no"),
    side("skipped", "device", "needs cuda"),
    side("absent", "absent", "not declared"),
)
PRESENCE = [
    # base, head, class, effect, words
    (OK, ABSENT, "missing", "fail", "in base, not in head"),
    (FAILED, ABSENT, "missing", "fail", "in base, not in head"),
    (SKIPPED, ABSENT, "missing", "fail", "in base, not in head"),
    (ABSENT, OK, "added", "pass", "in head, not in base"),
    (OK, FAILED, "failed", "fail", "fails in head: ValueError: no"),
    (ABSENT, FAILED, "failed", "fail", "fails in head: ValueError: no"),
    (SKIPPED, FAILED, "failed", "fail", "fails in head: ValueError: no"),
    (FAILED, FAILED, "failed", "fail", "fails in base and in head: ValueError: no"),
    (FAILED, OK, "invalid", "undecided", "fails in base only: ValueError: no"),
    (SKIPPED, SKIPPED, "skipped", "pass", "skipped: needs cuda"),
    (FAILED, SKIPPED, "skipped", "pass", "skipped: needs cuda"),
    (ABSENT, SKIPPED, "skipped", "pass", "skipped: needs cuda"),
    (OK, SKIPPED, "skipped", "undecided", "measured in base, skipped in head: needs cuda"),
    (SKIPPED, OK, "added", "pass", "skipped in base: needs cuda"),
    (ABSENT, ABSENT, "invalid", "undecided", "in neither base nor head"),
    (OK, side(params={"n": 128}), "changed", "undecided", "parameter n is 64 in base, 128 in head"),
    (OK, side("absent", "import", "SyntaxError"), "failed", "fail", "does not import in head: SyntaxError"),
    (OK, side("absent", "build", "nvcc failed"), "failed", "fail", "fails in head: nvcc failed"),
]


@pytest.mark.parametrize(("base", "head", "class_", "effect", "words"), PRESENCE)
def test_presence(base, head, class_, effect, words):
    made = results([case(base=base, head=head), case("other")], [limit(), limit("other")])
    report = judge(made)
    row = next(r for r in report.rows if r.case != "other")
    assert (row.kind, row.class_, row.effect) == ("presence", class_, effect)
    assert words in row.reason
    verdict = "error" if base is head is FAILED else effect
    assert (report.verdict, report.exit_code) == (verdict, {"fail": 1, "error": 3}.get(verdict, 0))
    assert [r.case for r in report.rows].count("matmul/n=64") == 1, "no limit row beside it"
    strict = next(r for r in judge(made, strict=True).rows if r.case != "other").effect
    assert strict == ("fail" if effect == "undecided" else effect)


def test_a_case_that_time_did_not_reach_is_not_skipped():
    late = case("late", ratio=None, head=side("skipped", "budget", "no time left"), stopped="budget")
    row = next(r for r in judge(results([case(), late])).rows if r.case == "late")
    assert (row.class_, row.effect, row.reason) == ("invalid", "undecided", "no finished pair: the budget ended")


@pytest.mark.parametrize(
    "base", [ABSENT, side("failed", "wrong", "0 instead of 1"), side("skipped", "skipped", "no GPU")]
)
def test_what_was_not_checked_in_head_for_want_of_budget_is_neither_added_nor_fixed(base):
    late = case("late", ratio=None, base=base, head=side("skipped", "budget", "the budget ended"), stopped="budget")
    report = judge(results([case(), late]))
    row = next(row for row in report.rows if row.case == "late")
    assert (row.class_, row.effect, row.reason) == ("invalid", "undecided", "not checked in head: the budget ended")
    assert report.verdict == "undecided"


@pytest.mark.parametrize("metric", ["time", "registers"])
@pytest.mark.parametrize(
    ("on_missing", "effect"), [(["fail", "warn"], "fail"), (["warn", "warn"], "warn"), ([], "warn")]
)
def test_a_removed_case_does_what_its_limits_say_of_missing(on_missing, effect, metric):
    """Also those on what profilers see."""
    kinds = zip(("regression", "max"), on_missing, strict=False)
    limits = [limit(metric=metric, kind=kind, fail_on=FAIL_ON[what]) for kind, what in kinds]
    row = only(judge(results([case(head=ABSENT)], limits)))
    assert (row.class_, row.effect) == ("missing", effect)


@pytest.mark.parametrize("base", [ABSENT, SKIPPED, FAILED, side(params={"n": 1})])
def test_a_bound_is_judged_on_head_alone_where_nothing_can_be_compared(base):
    given = case(base=base, pairs=pairs(None, values(base=5e-3)[1]))
    report = judge(results([given], [limit(), limit(kind="max", bound=1e-3)]))
    assert [r.class_ for r in report.rows if r.kind == "max"] == ["violation"]
    assert [r for r in report.rows if r.kind == "regression"] == []
    assert report.exit_code == 1


CHANGES = [
    ({"params": {"n": 64, "dtype": "bf16"}}, "parameter dtype is not set in base, bf16 in head"),
    ({"inputs": "cd" * 32}, "the inputs' digest is abababababab in base, cdcdcdcdcdcd in head"),
    ({"inputs": ""}, "the inputs' digest is abababababab in base, unknown in head"),
    ({"timing": Timing(mode="cold", settings={"timer": "events"})}, "timing mode is rotating in base, cold in head"),
    ({"timing": Timing(mode="rotating", settings={"timer": "wall"})}, "timing timer is events in base, wall in head"),
]
REDECLARED = [
    ({"work": Work(flops=2e9)}, "declared work flops is 0.0 in base, 2000000000.0 in head"),
    ({"work": Work(item="tokens")}, "declared work item is items in base, tokens in head"),
    ({"check": Check(rtol=0.1)}, "rtol is None in base, 0.1 in head"),
    ({"check": Check(atol=0.1)}, "atol is None in base, 0.1 in head"),
    ({"check": Check(sketch=[1.0])}, "a reference is not given in base, given in head"),
]


@pytest.mark.parametrize(("fields", "words"), CHANGES)
def test_a_different_question_is_named_and_not_compared(fields, words):
    row = only(judge(results([case(ratio=3.0, head=side(**fields))])))
    assert (row.class_, row.kind, row.effect) == ("changed", "presence", "undecided")
    assert words in row.reason
    assert row.base == pytest.approx(T, rel=0.01)
    assert row.head == pytest.approx(3 * T, rel=0.01)
    assert row.change is None


@pytest.mark.parametrize("asked", [True, False])
def test_settings_that_follow_from_environments_are_compared_where_these_were_asked_for(asked):
    """`--env TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`: what torch then says of TF32 is the change. A policy's own `env:`
    is head's, and no way around the question."""
    timing = Timing(mode="rotating", settings={"timer": "events", "tf32": True})
    given = results([case(ratio=3.0, head=side(timing=timing))])
    given.environments = Environments(
        asked=asked, interpreters={name: Interpreter(path="python", python="3.12") for name in SIDES}
    )
    report = judge(given)
    assert [row.class_ for row in report.rows] == ["regression" if asked else "changed"]
    assert [(one.name, one.base, one.head) for one in report.environments.settings] == [("tf32", None, "True")]
    timing.settings["timer"] = "wall"
    report = judge(given)
    assert [row.class_ for row in report.rows] == ["changed"], "the timer is perfci's own"
    assert [one.name for one in report.environments.settings] == ["tf32"]


@pytest.mark.parametrize(
    ("base", "head", "words"),
    [
        (([3.0], "a"), ([4.0], "a"), "a projection of it is 3 in base, 4 in head"),
        (([3.0], "a"), ([3.0], "b"), "its keys or texts differ"),
        (([3.0], "a"), ([3.01], "a"), ""),
        (([3.0], "a"), ([], ""), ""),
    ],
)
def test_another_result_than_base_s_has_no_answer_where_nothing_says_which_is_right(base, head, words):
    sides = [side(check=Check(result=result, content=content)) for result, content in (base, head)]
    report = judge(results([case(base=sides[0], head=sides[1])]))
    told = [row for row in report.rows if row.class_ == "changed"]
    assert [(row.effect, row.reason.rpartition(": ")[2]) for row in told] == [("undecided", words)] * bool(words)
    assert report.verdict == ("undecided" if words else "pass")


@pytest.mark.parametrize(("fields", "words"), REDECLARED)
def test_what_head_declares_otherwise_is_told_and_the_time_judged_all_the_same(fields, words):
    report = judge(results([case(ratio=3.0, head=side(**fields))]))
    assert [(row.class_, row.effect) for row in report.rows] == [("regression", "fail"), ("changed", "warn")]
    assert report.rows[1].reason == f"judged by base's declarations; {words}"
    calm = judge(results([case(head=side(**fields))]), strict=True)
    assert (calm.verdict, {row.class_ for row in calm.rows}) == ("pass", {"changed", "unchanged"})


def test_a_smaller_declared_work_hides_no_slow_down():
    """Declared half as much, the rate of a kernel twice as fast would stay; declared twice, that of a slower one."""
    slow = case(ratio=2.0, base=side(work=WORK), head=side(work=WORK.model_copy(update={"items": 64.0})))
    row = judge(results([slow], [limit(metric="throughput")])).rows[0]
    assert (row.class_, row.change) == ("regression", pytest.approx(0.5, rel=0.01))
    none = case(ratio=2.0, base=side(work=WORK), head=side())
    assert judge(results([none], [limit(metric="throughput")])).rows[0].class_ == "regression"


@pytest.mark.parametrize(
    ("base", "head", "same"),
    [
        ([1e3, 2.0], [1e3, 2.0 + 5e-4], True),
        ([1e3, 2.0], [1e3, 2.0 + 5e-3], False),
        ([0.0], [0.0], True),
        ([1.0], [1.0, 2.0], False),
        ([1.0, math.nan], [1.0, math.nan], False),
        ([math.inf], [math.inf], False),
    ],
)
def test_references_agree_within_a_millionth_of_their_largest_value(base, head, same):
    given = case(base=side(check=Check(sketch=base)), head=side(check=Check(sketch=head)))
    assert (len(judge(results([given])).rows) == 1) is same


def test_a_file_that_does_not_import_in_head_fails_although_it_names_no_case():
    failure = FileFailure(side="head", file="kernels/new.py", reason=Reason(kind="import", text="NameError: x"))
    report = judge(results([case()], files=[failure]))
    row = report.rows[0]
    assert (row.case, row.class_, row.effect) == ("kernels/new.py", "failed", "fail")
    assert row.reason == "does not import in head: NameError: x"
    assert report.exit_code == 1
    assert report.files == [failure]


def test_a_file_that_does_not_import_is_told_once():
    """Where base's cases of the file stand as failed in head, the file needs no row of its own."""
    failure = FileFailure(side="head", file="kernels/suite.py", reason=Reason(kind="import", text="NameError"))
    report = judge(results([case(head=side("failed", "import", "NameError"))], files=[failure]))
    assert only(report).case == "matmul/n=64"


@pytest.mark.parametrize(
    ("sides", "verdict", "class_"), [(["base"], "undecided", "invalid"), (["base", "head"], "error", "failed")]
)
def test_a_file_that_does_not_import_in_base(sides, verdict, class_):
    reason = Reason(kind="import", text="NameError")
    report = judge(results([case()], files=[FileFailure(side=name, file="a.py", reason=reason) for name in sides]))
    assert (report.verdict, report.rows[0].class_) == (verdict, class_)


def test_every_class_is_reached_by_these_tests():
    reached = {r[1] for r in RELATIVE} | {r[3] for r in ABSOLUTE} | {r[2] for r in PRESENCE}
    assert reached == set(CLASSES)


def test_the_report_says_where_the_noise_of_a_case_comes_from():
    """Workers of 1 %, placements and blocks that hardly differ: known from the pairs' own scatter, else not at all."""
    quiet = Moments(time=1e-9, cross=0.0, clock=0.0)
    made = pairs(*values(1.0, sd=0.01))
    told = judge(results([case(pairs=made)])).facts[0].noise
    assert told is None
    for pair in made:
        pair.scatter = Scatter(placements=3, blocks=4, placement=quiet, block=quiet)
    told = judge(results([case(pairs=made)])).facts[0].noise
    assert told.worker == pytest.approx(0.01, rel=0.3)
    assert max(told.placement, told.block) < 1e-4
    assert "only more pairs help" in told.text
