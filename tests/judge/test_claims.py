"""Claims: what pairs of their own show of them, and what that does to the verdict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.judge.judge import judge
from perfci.measure.claims import fit_claims, loop_plan, plan_claims
from perfci.measure.request import What
from perfci.model.base import UsageError
from perfci.model.claims import Claim, sharing
from perfci.model.plan import Looks
from perfci.model.report import Report
from perfci.model.results import Case, ClaimPairs, Pair, Proof, Reason, Results
from perfci.stats.answer import answer
from perfci.stats.decide import margin
from tests.judge.build import at_clocks, case, pairs, results, side, values
from tests.stats.recorded import SUMS, recorded_pairs

ANSWERS = {"regression": "shown", "unchanged": "not shown"}


def claimed(ratio: float | None, ident: str = "softmax/n=1", **fields: object) -> Case:
    """A case that its limit found unchanged, whose pairs for a claim have `ratio` in time."""
    made = case(ident, 0.99, **fields)
    made.claimed = None if ratio is None else ClaimPairs(pairs=pairs(*values(ratio, n=16, seed=1)))
    return made


def asked(cases: list[Case], *claims: str, attempt: int | None = None) -> Results:
    found = results(cases)
    what = What(mode="compare", claims=[Claim.parse(text) for text in claims], attempt=attempt)
    found.plan.claims = plan_claims(what, cases)
    assert found.plan.claims is not None
    fit_claims(what, found.plan.claims, cases)
    return found


def answers(report: Report) -> dict[str, str]:
    return {row.case: row.answer for row in report.claims}


@pytest.mark.parametrize(
    ("ratio", "answer", "verdict", "code"),
    [
        (0.85, "shown", "pass", 0),
        (0.95, "not shown", "fail", 1),
        (1.2, "not shown", "fail", 1),
        (0.9, "undecided", "undecided", 0),
    ],
)
def test_a_claim_is_answered_by_its_own_pairs(ratio, answer, verdict, code):
    found = asked([claimed(ratio)], "softmax*: 10%")
    report = judge(found)
    assert answers(report) == {"softmax/n=1": answer}
    assert (report.verdict, report.exit_code) == (verdict, code)
    assert [(row.class_, row.effect) for row in report.rows] == [("unchanged", "pass")], "whatever was claimed"
    assert judge(found, strict=True).exit_code == (0 if answer == "shown" else 1)


def test_what_was_claimed_is_said_first_where_nothing_else_fails():
    report = judge(asked([claimed(0.95), claimed(0.8, "softmax/n=2")], "softmax*: 10%", "softmax/n=2: 15%"))
    assert report.sentence == (
        "`softmax/n=1`: 10 % faster was claimed and is excluded: "
        "5.1 % faster, between 4.9 % faster and 5.3 % faster, by 10 pairs of its own"
    )
    assert [(row.case, row.fall, row.answer) for row in report.claims] == [
        ("softmax/n=1", 0.1, "not shown"),
        ("softmax/n=2", 0.1, "shown"),
        ("softmax/n=2", 0.15, "shown"),
    ]
    shown = judge(asked([claimed(0.85)], "softmax*: 10%"))
    assert shown.sentence.endswith("; 1 claim shown")
    slower = judge(asked([case("softmax/n=1", 1.2), claimed(0.95, "softmax/n=2")], "softmax/n=2: 10%"))
    assert slower.sentence.startswith("`softmax/n=1` is 20"), "limits fail first"


def test_what_has_no_pairs_of_its_own_says_why():
    proved = claimed(None, proof=Proof(by="code", reason="the same"), pairs=[])
    report = judge(asked([proved], "*: 10%"))
    assert (answers(report), report.exit_code) == ({"softmax/n=1": "not shown"}, 1)
    assert report.claims[0].reason == "proved unchanged"
    broken = claimed(None, head=side("failed", "wrong", "off by 3"), pairs=[])
    assert judge(asked([broken], "*: 10%")).claims[0].reason == "failed: fails in head: off by 3"
    late = claimed(None, stopped="budget")
    assert judge(asked([late], "*: 10%")).claims[0].reason == "not measured for it: the budget ended"


@pytest.mark.parametrize(("name", "answer", "code"), [("head", "not shown", 1), ("base", "undecided", 0)])
def test_who_fails_in_the_pairs_of_a_claim_fails_the_claim_alone(name, answer, code):
    made = claimed(0.5)
    made.claimed.failures[name] = Reason(kind="wrong", text="off by 3")
    report = judge(asked([made], "*: 10%"))
    assert (answers(report), report.exit_code) == ({"softmax/n=1": answer}, code)
    assert report.claims[0].reason.startswith(f"{name} failed when it was measured for it: off by 3")
    assert [row.class_ for row in report.rows] == ["unchanged"]


def test_a_lower_clock_of_head_is_no_speed_up():
    """12 % faster at equal clock, and as slow as before as it was measured."""
    made = claimed(1.0)
    at_clocks(made.claimed.pairs, base=1.98e9, head=1.98e9 * 0.88)
    report = judge(asked([made], "*: 10%"))
    assert answers(report) == {"softmax/n=1": "undecided"}
    assert "the clock of head was lower" in report.claims[0].reason


@pytest.mark.parametrize(("ratio", "answer"), [(0.5, "shown"), (0.85, "shown"), (1.0, "not shown")])
@pytest.mark.parametrize("clocks", [False, True])
def test_what_is_obvious_is_answered_by_four_pairs(ratio, answer, clocks):
    """Of replayed graphs without a tuner, as most are on a GPU."""
    calm = {"tuner": ""}
    made = case("softmax/n=1", base=side(**calm), head=side(**calm))
    own = pairs(*values(ratio, n=4, sd=1e-4, seed=1))
    for pair in at_clocks(own) if clocks else own:
        pair.tuners = {"base": "", "head": ""}
    made.claimed = ClaimPairs(pairs=own)
    report = judge(asked([made], "softmax*: 10%"))
    assert (answers(report), report.claims[0].pairs) == ({"softmax/n=1": answer}, 4)


def test_what_has_no_answer_fails_where_the_policy_says_so():
    found = asked([claimed(0.9)], "softmax*: 10%")
    found.fail_on = ["broken", "undecided"]
    assert judge(found).exit_code == 1


def test_one_case_claimed_twice_alike_is_claimed_once():
    found = asked([claimed(0.8)], "*: 10%", "softmax*: 10%", "softmax*: 5%")
    assert [one.bound for one in found.plan.claims.criteria] == [0.05, 0.1]
    assert found.plan.claims.m == 2


def test_pairs_that_resemble_those_before_them_answer_nothing():
    made = claimed(0.8)
    walk = 0.8 * np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, 64)))
    made.claimed.pairs = pairs(np.ones(64), walk)
    report = judge(asked([made], "*: 10%"))
    assert answers(report) == {"softmax/n=1": "undecided"}
    assert "resemble those before them" in report.claims[0].reason


def test_a_claim_must_be_of_a_case_that_is_measured():
    with pytest.raises(UsageError, match=r"^--claim softmx\*: matches no case that is measured: .*softmax"):
        asked([claimed(0.8)], "softmx*: 10%")
    assert plan_claims(What(mode="compare"), [claimed(0.8)]) is None


@pytest.mark.parametrize(
    "text", ["", "softmax", "softmax*: 0%", "softmax*: 100%", "softmax*: -3%", "softmax*: 10", "a b: 1%", "x: nan%"]
)
def test_what_is_no_claim_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write cases and by how much their time falls"):
        Claim.parse(text)


@given(
    st.from_regex(r"[a-z_]{1,8}(/[a-z]=[0-9*]{1,3})?", fullmatch=True),
    st.integers(1, 999),
    st.sampled_from([": ", " ", ":\t"]),
)
def test_a_claim_is_read_as_it_is_written(cases, tenths, between):
    claim = Claim.parse(f"{cases}{between}{tenths / 10}%")
    assert (claim.cases, claim.fall) == (cases, pytest.approx(tenths / 1000))


def test_all_attempts_together_spend_alpha_once():
    assert sum(1 / sharing(1, attempt) for attempt in range(1, 10_000)) == pytest.approx(1, abs=1e-3)
    assert (sharing(3, None), sharing(3, 2), sharing(0, None)) == (3, 18, 1)
    first, tenth = (asked([claimed(0.8)], "*: 10%", attempt=attempt).plan.claims for attempt in (1, 10))
    assert (first.m, tenth.m) == (2, 110)
    assert tenth.looks == Looks.fitted(110)


def test_the_pairs_of_claims_follow_their_own_plan():
    found = asked([claimed(0.8), case("other")], "softmax*: 10%")
    plan = loop_plan(found.plan, found.plan.claims)
    assert [one.case for one in plan.timed] == ["softmax/n=1"]
    assert (plan.m, plan.looks, plan.max_pairs) == (1, Looks.fitted(1), 64)
    assert found.plan.timed != plan.timed


# ---------------------------------------------------------------- pairs recorded on an H200


def replayed(key: str, fall: float, true: float, runs: int, m: int) -> list[str]:
    """Answers of runs whose pairs are drawn from those recorded, sides exchanged by a coin, head faster by `true`."""
    recorded, rng, looks = recorded_pairs(key), np.random.default_rng(1), Looks.fitted(m)
    criterion = Claim(cases="*", fall=fall).criterion("k", "cuda")
    found = []
    for _ in range(runs):
        drawn = []
        for index, at in enumerate(rng.integers(0, 64, 64)):
            pair, swapped = recorded[at], rng.integers(0, 2)
            base, head = ("head", "base") if swapped else ("base", "head")
            times = {"base": pair.values[base], "head": {"time": pair.values[head]["time"] * (1 - true)}}
            drawn.append(Pair(index=index, values=times, clock={"base": pair.clock[base], "head": pair.clock[head]}))
        decision = answer(case("k", pairs=drawn), criterion, looks, m, ended=True).decision
        found.append(ANSWERS.get(decision.status, "undecided"))
    return found


@pytest.mark.parametrize("key", [key for key in sorted(SUMS) if "|rot" in key])
def test_a_fifth_more_than_is_claimed_is_shown(key):
    """A claim of 5 %, where 64 pairs can tell 6 % from it."""
    spread = float(np.std(SUMS[key]["time"]))
    assert spread < (margin(0.06, "higher") - margin(0.05, "higher")) * 1.4, "noise allows it"
    assert replayed(key, 0.05, 0.06, 100, m=12).count("shown") >= 99


def test_what_is_not_there_is_hardly_ever_shown():
    for true in (0.05, 0.04):
        found = [one for key in sorted(SUMS) for one in replayed(key, 0.05, true, 100, m=1)]
        assert found.count("shown") <= 0.01 * len(found)
