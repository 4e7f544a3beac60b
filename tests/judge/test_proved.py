"""Proofs answer for cases that nobody measured, and never against what was measured."""

import pytest

from perfci.judge import judge
from perfci.judge.replan import judge_by
from perfci.model.plan import count_sharing
from perfci.model.policy_text import parse_policy
from perfci.model.results import Proof
from perfci.render import csv, junit, markdown
from perfci.render.html import render as html

from .build import case, limit, pairs, results, side

BY_CODE = Proof(by="code", reason="no file that it reads differs between base and head")
POLICY = "version: 1\nsuite: [a.py]\nlimits:\n  - {cases: '*', metric: time, regression: 2%}\n"


def proved(ident: str = "copy", **fields):
    bare = side(timing=None, inputs="")
    return case(ident, None, base=bare, head=bare.model_copy(), proof=BY_CODE.model_copy(update=fields))


def test_a_proof_answers_and_shares_no_alpha() -> None:
    made = results([proved(), proved("b"), case()])
    made.plan.m = count_sharing(made.plan.criteria, {one.key for one in made.cases if one.proved}, 1, 1)
    assert made.plan.m == 1
    report = judge(made)
    assert report.verdict == "pass" and not report.exploratory
    assert report.sentence == "No regression: 3 cases unchanged (2 proved)"
    rows = {row.case: row for row in report.rows}
    assert rows["copy"].proved and rows["copy"].class_ == "unchanged" and rows["copy"].change is None
    assert rows["copy"].reason == f"proved: {BY_CODE.reason}"
    assert not rows["matmul/n=64"].proved
    assert "2 of 3 cases proved unchanged, and not measured: they read no file that differs" in report.notes


def test_where_all_is_proved_nothing_has_to_be_measured() -> None:
    report = judge(results([proved(), proved("b", by="files", reason="base and head are the same files")]))
    assert report.verdict == "pass" and report.exit_code == 0
    assert report.sentence == "No regression: 2 cases unchanged (all proved)"
    assert "1 of 2 cases proved unchanged, and not measured: base and head are the same files" in report.notes


def test_a_case_that_is_proved_by_its_work_shares_alpha_as_it_was_planned() -> None:
    """It was checked and settled before it was proved, so that its sides are known."""
    same = case(pairs=[], proof=Proof(by="work", reason="base and head give the GPU the same work"))
    made = results([same, proved("b"), case("other")])
    made.plan.m = 2
    report = judge(made)
    assert report.verdict == "pass" and not report.exploratory
    assert report.sentence == "No regression: 3 cases unchanged (2 proved)"
    assert "1 of 3 cases proved unchanged, and not measured: they give the GPU the same work" in report.notes


@pytest.mark.parametrize("kind, bound", [("regression", 0.0), ("max", 64)])
def test_what_profilers_see_is_answered_too(kind: str, bound: float) -> None:
    report = judge(results([proved()], [limit("copy", "registers", kind, bound)]))
    assert [(row.class_, row.proved, row.effect) for row in report.rows] == [("unchanged", True, "pass")]


def test_a_bound_on_time_has_no_answer_without_a_number() -> None:
    report = judge(results([proved()], [limit("copy"), limit("copy", kind="max", bound=1.0)]))
    rows = {row.kind: row for row in report.rows}
    assert rows["regression"].class_ == "unchanged" and rows["max"].class_ == "invalid"
    assert report.verdict != "pass"


def numbered(head: float, workers: int = 4):
    """A proved case of which head was measured, in s."""
    proof = BY_CODE.model_copy(update={"number": "time max 1.00 s"})
    base = side(timing=None, inputs="")
    return case(pairs=pairs(None, [head] * workers), base=base, proof=proof)


ASKED = [limit(), limit(kind="max", bound=1.0)]


@pytest.mark.parametrize("head, class_, effect", [(0.9, "unchanged", "pass"), (1.1, "violation", "warn")])
def test_the_number_of_a_proved_case_is_head_s_and_fails_nothing(head: float, class_: str, effect: str) -> None:
    report = judge(results([numbered(head)], ASKED))
    rows = {row.kind: row for row in report.rows}
    assert rows["regression"].proved and rows["regression"].effect == "pass"
    bound = rows["max"]
    assert (bound.class_, bound.effect, bound.pairs) == (class_, effect, 4) and bound.head == pytest.approx(head)
    assert len(report.rows) == 2  # what was not asked of base is no difference to it
    assert report.notes[0] == (
        "1 of 1 case proved unchanged, and not measured but for 1 number of head: they read no file that differs"
    )
    if effect == "warn":
        assert bound.reason.endswith(f"above the limit of 1.00 s, and base's as well: {BY_CODE.reason}")


def test_a_number_of_too_few_workers_is_no_answer() -> None:
    made = numbered(0.9, 3)
    made.stopped = "budget"
    report = judge(results([made], ASKED))
    assert report.verdict == "error"
    assert {row.kind: row.class_ for row in report.rows} == {"regression": "unchanged", "max": "inconclusive"}


def test_what_is_not_proved_is_never_answered_by_its_reason() -> None:
    report = judge(results([proved(by="", reason="it reads tree/a, which differs")]))
    assert report.rows[0].class_ == "invalid" and report.verdict != "pass"
    assert report.facts[0].proof is not None and report.facts[0].proof.reason == "it reads tree/a, which differs"


@pytest.mark.parametrize("status", ["failed", "absent", "skipped"])
def test_a_proof_hides_no_failure(status: str) -> None:
    made = proved()
    made.sides["head"] = side(status, "crash", "killed by SIGSEGV")
    assert judge(results([made]), strict=True).verdict in ("fail", "error")


def test_an_audit_that_finds_a_change_contradicts_the_proof_and_fails() -> None:
    audited = BY_CODE.model_copy(update={"audited": True})
    slower = case(ratio=1.3, proof=audited)
    report = judge(results([slower], [limit(fail_on=["missing"])]))
    assert report.verdict == "fail"
    (row,) = report.rows
    assert row.class_ == "regression" and "contradicts its proof, by which no file that it reads differs" in row.reason
    same = judge(results([case(proof=audited)]))
    assert same.verdict == "pass" and not same.rows[0].proved
    assert any("measured all the same, to audit the proofs" in note for note in same.notes)


def test_base_may_refuse_proofs_where_results_are_judged_again() -> None:
    made = results([proved()])
    assert judge_by(parse_policy(POLICY), made).verdict == "pass"
    policy = parse_policy(f"{POLICY}prove: false\n")
    for refused, class_ in ((made, "invalid"), (results([numbered(0.9)], ASKED), "changed")):
        report = judge_by(policy, refused)
        assert report.verdict != "pass" and [row.class_ for row in report.rows] == [class_]


def test_every_rendering_says_that_it_was_proved() -> None:
    report = judge(results([proved(), case()]))
    for text in (html(report), markdown.render(report)):
        assert "1 of 2 cases proved unchanged, and not measured" in text
    assert "unchanged: proved: no file that it reads differs" in junit.render(report)
    assert "copy" not in csv.render(report), "there are no values"


BY_WORK = Proof(by="work", reason="base and head give the GPU the same work")
HOSTS = [limit(), limit(metric="host_time", bound=0.25)]


def hosted(head: float, **fields):
    """A case whose work is proved, its host times measured, in s."""
    return case(pairs=pairs([20e-6] * 12, [head] * 12, "host_time"), proof=BY_WORK.model_copy(update=fields))


@pytest.mark.parametrize("head, class_", [(20e-6, "unchanged"), (320e-6, "regression")])
def test_the_same_work_answers_for_everything_but_the_host(head: float, class_: str) -> None:
    report = judge(results([hosted(head, host="host_time within 25 %")], HOSTS))
    rows = {row.metric: row for row in report.rows}
    assert rows["time"].proved and rows["time"].class_ == "unchanged"
    assert not rows["host_time"].proved and rows["host_time"].class_ == class_
    assert report.verdict == ("fail" if class_ == "regression" else "pass")
    assert any("but for the host times of 1 case" in note for note in report.notes)


def test_the_same_code_answers_for_the_host_too() -> None:
    report = judge(results([proved()], [limit("copy"), limit("copy", "host_time", bound=0.25)]))
    assert [row.proved for row in report.rows] == [True, True]


@pytest.mark.parametrize(("base", "effect"), [(None, "warn"), (20e-6, "fail")])
def test_a_host_time_that_cannot_be_told_apart_is_invalid(base: float | None, effect: str) -> None:
    """It fails where base's can."""
    made = hosted(20e-6)
    made.pairs, made.sides["base"].host = [], base
    for one in made.sides.values():
        one.timing = one.timing.model_copy(update={"host": "host and GPU cannot be told apart"})
    report = judge(results([made], HOSTS))
    row = next(row for row in report.rows if row.metric == "host_time")
    assert (row.class_, row.effect) == ("invalid", effect)
    assert row.reason == "not measured: host and GPU cannot be told apart"
