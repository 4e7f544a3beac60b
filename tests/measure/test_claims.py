"""Pairs for claims: of stand-ins, so that whatever becomes of them changes no case that limits judge."""

from pathlib import Path
from typing import Any

import pytest

from perfci.measure import loop as measure_loop
from perfci.measure.claims import claimants, fit_claims, loop_plan, plan_claims
from perfci.measure.journal import Journal
from perfci.measure.request import What
from perfci.measure.rounds import PairOutcome
from perfci.model.claims import Claim
from perfci.model.results import Case, ClaimPairs, Pair, Proof, Reason
from tests.judge.build import case, results, side
from tests.measure.driven import driven

WHAT = What(mode="compare", claims=[Claim(cases="softmax*", fall=0.1)])
PROVED = {"proof": Proof(by="work", reason="the same")}


def begun(*cases: Case) -> Any:
    made = results([*cases])
    made.plan.claims = plan_claims(WHAT, cases)
    fit_claims(WHAT, made.plan.claims, cases)
    return made


def journal(folder: Path, *, resume: bool = False) -> Journal:
    return Journal(folder, {}, "run", resume=resume)


def test_only_what_pairs_can_answer_is_measured_again(tmp_path: Path) -> None:
    cases = [
        case("softmax/n=1"), case("softmax/n=2", base=side("absent")), case("softmax/n=3", **PROVED),
        case("softmax/n=4", head=side("failed", "wrong")), case("softmax/n=5", head=side(params={"n": 65})), case("add"),
    ]  # fmt: skip
    made = begun(*cases)
    with claimants(cases, made.plan.claims, journal(tmp_path), None) as stand_ins:
        assert [one.id for one in stand_ins] == ["softmax/n=1"]
        assert stand_ins[0].pairs == []


@pytest.mark.parametrize("failing", [False, True])
def test_no_limit_sees_what_becomes_of_a_claim(tmp_path: Path, failing: bool) -> None:
    made = begun(case("softmax/n=1", 0.8), case("add"))
    before = [one.model_copy(deep=True) for one in made.cases]
    kept = journal(tmp_path)
    rounds: list[int] = []

    def round_of(bench: Any, cases: list[Case], index: int, done: Any, deadline: float) -> None:
        rounds.append(index)
        for one in cases:
            if failing and len(one.pairs) == 3:
                done(PairOutcome(one, failures={"head": Reason(kind="wrong", text="off by 3")}))
                continue
            pair = Pair(index=len(one.pairs), values={"base": {"time": 1e-3}, "head": {"time": 0.8e-3}})
            done(PairOutcome(one, pair))

    with claimants(made.cases, made.plan.claims, kept, None) as stand_ins:
        plan = loop_plan(made.plan, made.plan.claims)
        with driven(made.model_copy(update={"plan": plan}), round_of, 1000.0, journal=kept.of_claims()) as of:
            of.before = 48
            of.run(stand_ins)
    kept.close()
    claimed = made.cases[0].claimed
    assert claimed is not None
    assert rounds[:3] == [48, 49, 50], "no order of theirs is one of the limits' rounds"
    assert len(claimed.pairs) == (3 if failing else plan.looks.pairs[1])
    assert (claimed.stopped, [*claimed.failures]) == (("failed", ["head"]) if failing else ("decided", []))
    made.cases[0].claimed = None
    assert made.cases == before

    again = journal(tmp_path, resume=True)
    again.restore(made.cases)
    again.close()
    assert (made.cases[0].pairs, again.claimed["softmax/n=1@cuda"].pairs) == ([], claimed.pairs)
    with claimants(before, begun(*before).plan.claims, again, None) as stand_ins:
        assert [measure_loop.can_measure(one) for one in stand_ins] == [not failing]
        assert stand_ins[0].pairs == claimed.pairs
    assert before[0].claimed == ClaimPairs(pairs=claimed.pairs, failures=claimed.failures, stopped="decided"), (
        "it goes on where it was"
    )
