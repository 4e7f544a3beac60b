"""Judging by another policy than the plan's: what counts, and what stays."""

import pytest

from perfci.judge.replan import judge_by
from perfci.model.criteria import LimitSource
from perfci.model.limits import Subject, criteria
from perfci.model.policy_text import parse_policy
from perfci.model.results import Results
from tests.judge.build import case, limit, pairs, results, side, values

POLICY = "version: 1\nsuite: [k.py]\nlimits:\n  - {cases: '*', metric: time, regression: 2%}\n"


def measured(policy: str = POLICY) -> Results:
    cases = [case(ratio=1.05)]
    return results(cases, criteria(parse_policy(policy), [Subject(c.id, c.device) for c in cases]))


def test_the_same_policy_gives_the_planned_criteria() -> None:
    report = judge_by(parse_policy(POLICY), measured())
    assert (report.exit_code, report.exploratory) == (1, False)


def test_the_plans_own_limits_and_mode_do_not_count() -> None:
    loose = measured(POLICY.replace("2%", "50%")).model_copy(update={"fail_on": []})
    report = judge_by(parse_policy(POLICY), loose)
    assert (report.exit_code, report.exploratory) == (1, True)


def test_a_kernels_own_limit_tightens_and_never_loosens() -> None:
    for bound, counts in ((0.5, 0.02), (0.01, 0.01)):
        made = measured()
        made.plan.criteria[:] = [limit(bound=bound, source=LimitSource(origin="kernel", where="kernels/a.py:3"))]
        report = judge_by(parse_policy(POLICY), made)
        assert [row.limit for row in report.rows] == [counts]
        assert report.exploratory == (bound != counts), "what was planned is not what counts"


@pytest.mark.parametrize(
    ("planned", "judging", "added", "code"),
    [("[]", "[broken, missing]", [], 1), ("[broken, missing]", "[]", [], 0), ("[]", "[]", ["broken"], 1)],
)
def test_a_kernels_own_limit_fails_the_run_as_the_policy_that_judges_and_it_say(planned, judging, added, code) -> None:
    own = {"metric": "time", "regression": "2%", **({"fail_on": added} if added else {})}
    policy = "version: 1\nsuite: [k.py]\nlimits: [{cases: '*', metric: peak_memory, max: 1TB}]\nfail_on: "
    cases = [case(ratio=1.05)]
    subject = Subject(cases[0].id, cases[0].device, own=[own], where="kernels/a.py:3")
    made = results(cases, [one for one in criteria(parse_policy(policy + planned), [subject]) if one.metric == "time"])
    assert judge_by(parse_policy(policy + judging), made).exit_code == code


@pytest.mark.parametrize(
    ("sides", "asked"),
    [
        ((0, 1), {("regression", "unchanged", "pass"), ("max", "unchanged", "pass")}),
        ((0,), {("regression", "invalid", "fail"), ("max", "invalid", "fail")}),
        ((1,), {("max", "unchanged", "pass")}),
    ],
    ids=["both", "base alone", "head alone"],
)
def test_a_glob_asks_only_for_what_a_case_reports(sides, asked) -> None:
    """What base reported is asked of head, and a bound of what head alone reports."""
    policy = POLICY + "  - {cases: '*', metric: p99, max: 1s, regression: 5%}\nmetrics: {p99: {unit: s}}\n"
    p99 = [two if at in sides else None for at, two in enumerate(values(1.0))]
    serve = case("serve", origin="command", pairs=pairs(*values(1.0), p99=p99))
    report = judge_by(parse_policy(policy), results([case(), serve], []))
    assert {(row.kind, row.class_, row.effect) for row in report.rows if row.metric == "p99"} == asked
    assert {row.case for row in report.rows if row.metric == "time"} == {"matmul/n=64", "serve"}


def test_a_comparison_with_the_reference_is_judged_by_creep() -> None:
    """Main is 5 % behind it by changes of less than 2 % each."""
    policy = POLICY.replace("regression: 2%", "regression: 2%, creep: 8%")
    one = case(ratio=1.05)
    asked = criteria(parse_policy(policy), [Subject(one.id, one.device)], purpose="reference")
    made = results([one], asked)
    made.plan.purpose = "reference"
    report = judge_by(parse_policy(policy), made)
    assert [(row.kind, row.class_, row.limit) for row in report.rows] == [("creep", "unchanged", 0.08)]
    assert not report.exploratory
    report = judge_by(parse_policy(policy.replace("8%", "3%")), made)
    assert [(row.kind, row.class_, row.effect) for row in report.rows] == [("creep", "regression", "fail")]


def test_a_night_without_creep_is_advised_that_and_no_other_limit() -> None:
    made = results([case()], [])
    made.plan.purpose = "reference"
    report = judge_by(parse_policy(POLICY), made)
    assert report.sentence == "Undecided: 1 case measured; no limit applies"
    assert report.advice == "Give them limits in perfci.yaml, such as creep: 5%."


def test_the_advice_is_that_of_what_main_is_compared_with() -> None:
    """Nobody can raise a limit in a commit that is on main already."""
    advised = {"change": "raise the limit in base first", "last": "perfci bisect; if it is intended, leave it"}
    for purpose, words in advised.items():
        made = measured()
        made.policy_from = "base"
        made.plan.purpose = purpose
        report = judge_by(parse_policy(POLICY), made)
        assert report.verdict == "fail"
        assert words in report.advice


def test_a_case_that_the_reference_asks_otherwise_or_lacks_does_not_fail_a_night() -> None:
    other = case("a/n=1", base=side(params={"n": 1}), head=side(params={"n": 2}))
    new = case("b/n=1", base=side("absent", kind="absent"), ratio=None)
    policy = POLICY.replace("regression: 2%", "creep: 8%") + "fail_on: [broken, undecided]\n"
    for purpose, effect in (("change", "fail"), ("reference", "warn")):
        made = results([other, new], [])
        made.plan.purpose = purpose
        report = judge_by(parse_policy(policy), made)
        assert {row.case: (row.class_, row.effect) for row in report.rows} == {
            "a/n=1": ("changed", effect), "b/n=1": ("added", "pass"),
        }  # fmt: skip


def test_ratios_to_the_reference_are_kept_where_nothing_is_asked() -> None:
    """For the history, of cases that ask the same in both; a pull request's report has none."""
    cases = [
        case("asked/n=1", 1.05),
        case("plain/n=1", 1.05),
        case("other/n=1", base=side(params={"n": 1}), head=side(params={"n": 2})),
        case("new/n=1", base=side("absent", kind="absent"), ratio=None),
    ]
    policy = POLICY.replace("cases: '*', metric: time, regression: 2%", "cases: 'asked/*', creep: 8%")
    for purpose, kept in (("change", set()), ("reference", {"plain/n=1"}), ("seam", {"asked/n=1", "plain/n=1"})):
        made = results(cases, [])
        made.plan.purpose = purpose
        report = judge_by(parse_policy(policy), made)
        assert {trail.case for trail in report.unasked} == kept, purpose
        assert all(trail.looks[-1].pairs == len(trail.ratios) == 24 for trail in report.unasked)
