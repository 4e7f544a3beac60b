"""Shards that belong together become one run; everything else is refused by name."""

from collections.abc import Callable

import pytest

from benchmarks.shards import LIMITS, count
from perfci.judge.judge import judge
from perfci.measure.shards.merge import _marks, _shared, merge
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.metrics import CustomMetric
from perfci.model.plan import ClaimPlan, Declared, Schedule
from perfci.model.results import FileFailure, Reason, Results, SideCode
from tests.judge.build import ceilings

from .build import setting
from .replay import Series, measure, part_of, planned, series

Change = Callable[[Results], object]
DEAL = {f"k/n={number}@cuda": 1 + number % 3 for number in range(6)}
SOURCE: Series = series(7, 6, {4: 1.1})


def shard(number: int, *, pairs: int | None = None, error: str = "", started: str = "") -> Results:
    """One of three shards; `pairs`: of each case no more, as where it was interrupted."""
    made = part_of(planned(SOURCE), DEAL, number)
    measure(made, SOURCE)
    made = Results.model_validate_json(made.model_dump_json())
    for case in made.cases:
        case.pairs = case.pairs[:pairs]
        for pair in case.pairs:
            pair.at = float(pair.index)
    made.error = Reason(kind="exit", text=error) if error else None
    made.started = started or made.started
    return made


def three(change: Change | None = None) -> list[tuple[str, Results]]:
    """All of them; `change` is of the second."""
    made = [(f"shard-{number}", shard(number)) for number in (1, 2, 3)]
    if change is not None:
        change(made[1][1])
    return made


def refused(found: list[tuple[str, Results]], kind: type[PerfciError] = UsageError) -> str:
    with pytest.raises(kind) as error:
        merge(found)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("gone", [[1], [2, 3]])
def test_a_missing_shard_is_no_pass(gone: list[int]) -> None:
    said = refused([one for one in three() if one[1].part and one[1].part.shards[0] not in gone], MachineError)
    assert ("shard 1 of 3" if gone == [1] else "shards 2, 3 of 3") in said


def test_a_decided_shard_is_not_replaced() -> None:
    assert "again: is shard 2 again, which shard-2 holds" in refused([*three(), ("again", shard(2))])


def test_an_attempt_that_gave_nothing_is_replaced() -> None:
    lost = ("lost", shard(2, pairs=0, error="no GPU"))
    for found in ([lost, *three()], [*three(), lost]):
        assert merge(found).model_dump_json() == merge(three()).model_dump_json()


def test_an_attempt_that_has_begun_is_not_replaced() -> None:
    """Who throws away what was measured, or a failure, chooses."""
    failed = shard(2, pairs=0, error="killed")
    failed.cases[0].sides["head"].status = "failed"
    for attempt in (failed, shard(2, pairs=3, error="killed")):
        assert "shard-2: is shard 2 again, which begun holds" in refused([("begun", attempt), *three()])


def test_a_shard_that_ended_by_an_error_makes_the_run_one() -> None:
    found = three()
    found[1] = ("shard-2", shard(2, pairs=4, error="the GPU fell off the bus"))
    whole = merge(found)
    report = judge(whole)
    assert (report.verdict, report.exit_code) == ("error", 3)
    assert "shard 2/3 (shard-2): the GPU fell off the bus" in report.sentence


def test_of_attempts_that_all_ended_by_errors_the_last_one_counts() -> None:
    first = shard(2, pairs=0, error="first", started="2026-01-01T00:00:00Z")
    second = shard(2, pairs=0, error="second", started="2026-01-01T00:10:00Z")
    others = [one for one in three() if one[0] != "shard-2"]
    for found in ([("a", first), ("b", second)], [("b", second), ("a", first)]):
        error = merge([*others, *found]).error
        assert error is not None
        assert "second" in error.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (setting("part.shards", [9]), "shard-2: is shard 9 of 3"),
        (setting("part", None), "shard-2: is no shard of a plan"),
        (setting("part.shards", [1, 2]), "shard-2: was merged already"),
        (lambda one: one.cases.append(shard(1).cases[0]), "shard-2: holds k/n=0@cuda, which shard-1 holds too"),
        (lambda one: one.cases.pop(), "no shard holds k/n=4@cuda"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(change: Change, said: str) -> None:
    assert said in refused(three(change))


OF_PLAN: dict[str, Change] = {
    "the plan": setting("part.plan", "6" * 64),
    "the number of shards": setting("part.of", 4),
    "the number of models": setting("part.models", 2),
    "the set of cases": lambda one: one.part and one.part.cases.pop(),
    "the run": setting("run", "another"),
    "the policy": setting("fail_on", []),
    "the environment": setting("environments", Environments(interpreters={})),
    "the plan's seed": setting("plan.seed", 9),
    "the plan's sides": setting("plan.sides", ["head"]),
    "the plan's looks": setting("plan.looks.alpha", 0.5),
    "the plan's devices": setting("plan.devices", ["cuda", "cpu"]),
    "the plan's schedules": setting("plan.schedules", {"hot": Schedule()}),
    "the plan's declared": setting("plan.declared", Declared()),
    "the plan's m": setting("plan.m", 1),
    "the plan's purpose": setting("plan.purpose", "seam"),
    "the plan's comparisons": setting("plan.comparisons", 2),
    "the plan's max_pairs": setting("plan.max_pairs", 3),
    "the plan's precise": setting("plan.precise", True),
    "the plan's exact_pairs": setting("plan.exact_pairs", 3),
    "the plan's judged": setting("plan.judged", False),
    "the plan's claims": setting("plan.claims", ClaimPlan(criteria=[])),
    "the plan's held": setting("plan.held", True),
    "the model of cuda": setting("fingerprint.devices", {"cuda": "NVIDIA H100"}),
    "the tree of base": setting("sides", {"base": SideCode(commit="4" * 40), "head": SideCode()}),
    "the tree of head": lambda one: setattr(one.sides["head"], "tree", "another"),
}
"""A line for each fact of a plan: it differs in that alone."""


@pytest.mark.parametrize("name", OF_PLAN)
def test_shards_of_which_one_fact_differs_are_refused_by_its_name(name: str) -> None:
    found = three()
    for _, one in found:
        one.plan.devices, one.fingerprint.devices = ["cuda"], {"cuda": "NVIDIA H200"}
        one.sides = {"base": SideCode(), "head": SideCode()}
    assert judge(merge(found)).verdict == "fail"
    assert _marks(_shared(*found[0])).keys() == OF_PLAN.keys()
    OF_PLAN[name](found[1][1])
    said = refused(found)
    assert said.startswith(f"shard-2: {name} is not that of shard-1"), said
    assert said.endswith(": merge the shards of one plan, each as it was measured")


@pytest.mark.parametrize("field", ["fail_on", "policy_from", "custom_metrics"])
def test_shards_of_another_policy_are_refused(field: str) -> None:
    others = {"fail_on": [], "policy_from": "base"}
    metric = CustomMetric(unit="s", better="lower")
    found = three(setting(field, others.get(field, {"mine": metric})))
    assert "shard-2: the policy is not that of shard-1: merge" in refused(found)


def test_no_folder_at_all_is_refused() -> None:
    assert "names no results" in refused([])


def test_costs_add_up_and_machines_are_told_where_they_differ() -> None:
    found = three()
    for number, (_, one) in enumerate(found, 1):
        one.costs, one.seconds, one.measuring_seconds = {"samples": 2.0, "build": 1.0}, 3.0, 2.0
        one.notes = ["the same in all", f"of {number}"]
        one.files = [
            FileFailure(side="head", file="k.py", reason=Reason(kind="import", text="no", log=f"shard-{number}/log"))
        ]
        one.fingerprint = Fingerprint(driver=f"58{number > 1:d}", uuid=f"GPU-{number}", cpu="one")
        one.fingerprint.ceilings = {"cuda": ceilings(read=number * 1e12, copied=None, float16=4e14 / number)}
    whole = merge(found)
    assert whole.costs == {"samples": 6.0, "build": 3.0}
    assert (whole.seconds, whole.measuring_seconds) == (9.0, 6.0)
    assert [note for note in whole.notes if note == "the same in all"] == ["the same in all"]
    assert {"of 1", "of 2", "of 3"} <= set(whole.notes)
    assert "the shards' machines differ in driver: 580 (shard 1); 581 (shard 2, 3)" in whole.notes
    assert len(whole.files) == 1
    assert whole.fingerprint.uuid is None
    highest = whole.fingerprint.ceilings["cuda"]
    assert (highest.read.value, highest.matmul["float16"].value) == (3e12, 4e14)


def test_a_budget_that_would_do_is_that_of_a_shard() -> None:
    found = three()
    for _, one in found:
        for case in one.cases:
            case.pairs, case.stopped, case.budget_needed = case.pairs[:4], "budget", 40.0
    whole, alone = judge(merge(found)), judge(found[0][1])
    assert (whole.verdict, alone.verdict) == ("error", "error")
    assert whole.advice == alone.advice
    assert "would do" in whole.advice


@pytest.mark.parametrize("bound", [LIMITS[0], *(pytest.param(bound, marks=pytest.mark.slow) for bound in LIMITS[1:])])
def test_no_more_runs_on_unchanged_code_fail(bound: float) -> None:
    """A few; benchmarks/shards.py takes many."""
    assert count(6, bound).within
