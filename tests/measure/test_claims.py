"""Pairs for claims: of stand-ins, so that whatever becomes of them changes no case that limits judge."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.measure import loop as measure_loop
from perfci.measure import run as measure_run
from perfci.measure.claims import CLAIM_ROUNDS, claimants, fit_claims, loop_plan, plan_claims
from perfci.measure.journal import Journal
from perfci.measure.request import Request, What
from perfci.measure.rounds import PairOutcome
from perfci.measure.run import Measurement
from perfci.model.base import MachineError
from perfci.model.claims import Claim
from perfci.model.results import Case, ClaimPairs, Pair, Proof, Reason
from tests.judge.build import case, results, side
from tests.measure.driven import SILENT, driven

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
        case("softmax/n=1"),
        case("softmax/n=2", base=side("absent")),
        case("softmax/n=3", **PROVED),
        case("softmax/n=4", head=side("failed", "wrong")),
        case("softmax/n=5", head=side(params={"n": 65})),
        case("add"),
    ]
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
            of.first_round = CLAIM_ROUNDS
            of.run(stand_ins)
    kept.close()
    claimed = made.cases[0].claimed
    assert claimed is not None
    assert rounds[:3] == [CLAIM_ROUNDS + n for n in range(3)], "no order of theirs is one of the limits' rounds"
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


@pytest.mark.parametrize("error", [MachineError("journal.jsonl: disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("line", ["", "softmax* 10%"])
def test_no_description_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, line: str) -> None:
    made = begun(case("softmax/n=1"))
    made.plan.claims.described = line

    class Ending:
        def __init__(self, *parts: Any) -> None: ...

        def run(self, cases: list[Case]) -> None:
            raise error

    monkeypatch.setattr(measure_run, "Loop", Ending)
    place = SimpleNamespace(benches={}, runner=None, environments=None)
    run: Any = SimpleNamespace(
        place=place,
        plan=made.plan,
        results=made,
        journal=journal(tmp_path),
        watch=None,
        budget=None,
        cases=SimpleNamespace(measured=made.cases),
    )
    measurement = Measurement(Request.of("compare", tmp_path, tmp_path), SILENT)
    with nullcontext() if line else pytest.raises(type(error)):
        measurement._claim(run)
    assert made.notes == (
        [f"what the description claims was not measured: {str(error) or 'interrupted'}"] if line else []
    )
