"""Publishing a plan that several machines shared: its shards are one answer, or none."""

from typing import Any

import pytest

from perfci.measure.shards.merge import merge
from perfci.model.plan import Looks
from perfci.model.results import PlanPart, Reason, Results
from tests.github.loopback.scene import HEAD, measured, packed, published, refused
from tests.github.loopback.server import GitHub, Run, archive

RATIOS = (1.0, 1.10, 1.0, 1.0, 0.99, 1.0)
CALM = (1.0,) * 6
PLAN = "5" * 64


def whole(*ratios: float, device: str = "NVIDIA H200") -> Results:
    """One run over all cases."""
    made = measured(*ratios)
    made.fingerprint.devices = {**made.fingerprint.devices, "cuda": device}
    made.plan.devices = ["cuda"]
    made.plan.m = len(made.plan.criteria)
    made.plan.looks = Looks.fitted(made.plan.m)
    return made


def shared(run: Results, count: int, plan: str = PLAN) -> list[Results]:
    """The same dealt over shards."""
    made = []
    for number in range(1, count + 1):
        own = run.cases[number - 1 :: count]
        asked = [one for one in run.plan.criteria if one.case_key in {case.key for case in own}]
        part = PlanPart(plan=plan, shards=[number], of=count, cases=[case.key for case in run.cases])
        of_plan = run.plan.model_copy(update={"criteria": asked})
        made.append(run.model_copy(update={"cases": own, "plan": of_plan, "part": part}, deep=True))
    return made


def of_models(run: Results, count: int, models: int, plan: str = PLAN) -> list[Results]:
    """The same of one of several models of device, which share α."""
    run.plan.m *= models
    run.plan.looks = Looks.fitted(run.plan.m)
    made = shared(run, count, plan)
    for one in made:
        assert one.part is not None
        one.part.models = models
    return made


def hand_over(hub: GitHub, run: Run, shards: list[Results], *, attempt: int = 1, first: int = 0) -> None:
    for index, one in enumerate(shards, first):
        hub.upload(run, packed(one), name=f"perfci--measure--{index}--{attempt}")


def hand_over_plan(hub: GitHub, run: Run, *, attempt: int = 1, index: int = 0) -> None:
    """Of a plan nothing is read but that it is there: whoever measured it says which it was."""
    hub.upload(run, archive({"plan.json": "not read", "logs/a.log": ""}), name=f"perfci--plan--{index}--{attempt}")


def lines(hub: GitHub) -> str:
    return "\n".join(hub.own_comments())


def refuse(hub: GitHub, run: Run, said: str, **wanted: Any) -> None:
    """No shard is believed, and why is told."""
    refused(hub, run, **wanted)
    made = published(hub, run, **wanted).publication
    assert made.shards == [] and any(said in line for line in made.missing), made.missing


@pytest.mark.parametrize("count", [1, 4])
def test_all_shards_are_one_check_and_one_comment(hub: GitHub, run: Run, count: int) -> None:
    one = whole(*RATIOS)
    hand_over(hub, run, shared(one, count))
    outcome = published(hub, run)
    (shard,) = outcome.publication.shards
    assert (outcome.publication.exit_code, shard.name, len(shard.artifacts)) == (1, "", count)
    assert outcome.publication.jobs == 1 and lines(hub).count("### ") == 1 and "no verdict" not in lines(hub)
    assert {row.case: row.class_ for row in shard.report.rows} == {
        f"matmul/n={i}": "regression" if ratio > 1.05 else "unchanged" for i, ratio in enumerate(RATIOS)
    }
    assert not shard.report.exploratory
    assert (len(hub.checks), len(hub.own_comments())) == (1, 1)

    alone = hub.run(200, HEAD)
    hub.upload(alone, packed(one))
    (single,) = published(hub, alone).publication.shards
    assert shard.report.rows == single.report.rows
    assert (shard.report.verdict, shard.report.sentence) == (single.report.verdict, single.report.sentence)


@pytest.mark.parametrize("count", [1, 2])
def test_the_job_that_planned_was_heard(hub: GitHub, run: Run, count: int) -> None:
    run.jobs = dict.fromkeys(("measure plan", *(f"measure {number}" for number in range(count))), "success")
    hand_over_plan(hub, run)
    hand_over(hub, run, shared(whole(*CALM), count))
    outcome = published(hub, run, jobs="measure*")
    assert (outcome.publication.exit_code, outcome.publication.missing) == (0, [])
    assert (len(outcome.publication.shards), outcome.publication.jobs) == (1, 1)
    assert "no verdict" not in lines(hub) + hub.checks[0]["output"]["title"]
    run.jobs["measure a100"] = "success"
    said = f"of {count + 2} jobs that measured, {count + 1} handed over what was measured"
    assert published(hub, run, jobs="measure*").publication.missing == [said]


def test_a_plan_that_could_not_be_made_is_no_pass(hub: GitHub, run: Run) -> None:
    """The jobs that need it are skipped, as after a label, when nothing is to be measured."""
    run.conclusion, run.jobs = "failure", {"measure plan": "failure", "measure ${{ matrix.shard }}": "skipped"}
    refuse(hub, run, "job `measure plan` ended with failure: see its log", jobs="measure*")


def test_of_two_plans_the_one_that_was_not_measured_is_missed(hub: GitHub, run: Run) -> None:
    """Two models of GPU; a run of one of them passes nothing."""
    for index in range(2):
        hand_over_plan(hub, run, index=index)
    hand_over(hub, run, shared(whole(*CALM), 2))
    said = "no shard of 1 of 2 plans was handed over: see the logs of the jobs that measure it"
    assert refused(hub, run) == said


@pytest.mark.parametrize("models", [1, 2])
def test_what_was_merged_before_stands_for_its_plan(hub: GitHub, run: Run, models: int) -> None:
    hand_over_plan(hub, run)
    shards = of_models(whole(*CALM), 3, models)
    hub.upload(run, packed(merge([(str(i), one) for i, one in enumerate(shards)])))
    outcome = published(hub, run)
    assert outcome.publication.exit_code == (0 if models == 1 else 3)
    assert [("of 2 models" in line) for line in outcome.publication.missing] == [True] * (models - 1)


def test_shards_that_are_no_whole_are_no_pass(hub: GitHub, run: Run) -> None:
    """tests/measure/shards/test_merge.py has the other ways."""
    hand_over(hub, run, shared(whole(*CALM), 3)[::2])
    refuse(hub, run, "shard 2 of 3")


def test_shards_that_share_more_than_there_is_are_no_pass(hub: GitHub, run: Run) -> None:
    made = whole(*RATIOS)
    made.plan.m, made.plan.looks = 500, Looks.fitted(500)
    hand_over(hub, run, shared(made, 2))
    refuse(hub, run, "error rates that are not perfci's")


@pytest.mark.parametrize("count", [1, 2])
def test_a_decided_shard_is_not_measured_again(hub: GitHub, run: Run, count: int) -> None:
    """`Re-run failed jobs` would let a change be measured until it passes."""
    hand_over(hub, run, shared(whole(*RATIOS), count))
    run.attempt = 2
    hand_over(hub, run, shared(whole(*CALM), count)[-1:], attempt=2, first=count - 1)
    refuse(hub, run, f"is shard {count} again")


def test_a_shard_that_measured_nothing_is_replaced_by_its_next_attempt(hub: GitHub, run: Run) -> None:
    shards = shared(whole(*RATIOS), 2)
    lost = shards[0].model_copy(deep=True)
    lost.cases, lost.error = [], Reason(kind="exit", text="GPU 0 is lost")
    hand_over(hub, run, [lost, shards[1]])
    assert published(hub, run).publication.exit_code == 3
    run.attempt = 2
    hand_over(hub, run, [shards[0]], attempt=2)
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.missing) == (1, [])


def test_all_jobs_run_again_are_a_plan_of_their_own(hub: GitHub, run: Run) -> None:
    for attempt, ratios, plan in ((1, RATIOS, PLAN), (2, CALM, "7" * 64)):
        run.attempt = attempt
        hand_over_plan(hub, run, attempt=attempt)
        hand_over(hub, run, shared(whole(*ratios), 2, plan=plan), attempt=attempt)
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.missing) == (0, [])


def test_two_models_stand_beside_each_other(hub: GitHub, run: Run) -> None:
    hand_over(hub, run, shared(whole(*RATIOS), 2))
    hand_over(hub, run, shared(whole(*CALM, device="NVIDIA A100"), 3, plan="6" * 64), first=2)
    outcome = published(hub, run)
    assert [shard.name for shard in outcome.publication.shards] == ["NVIDIA H200", "NVIDIA A100"]
    assert outcome.publication.jobs == 2 and "no verdict" not in lines(hub)
    assert (len(hub.checks), len(hub.own_comments()), outcome.publication.exit_code) == (1, 1, 1)
    assert "NVIDIA A100" in lines(hub)


@pytest.mark.parametrize(("ratios", "code"), [(RATIOS, 1), (CALM, 0)])
def test_models_that_share_error_rates_are_one_check(
    hub: GitHub, run: Run, ratios: tuple[float, ...], code: int
) -> None:
    for index, device in enumerate(("NVIDIA H200", "NVIDIA A100")):
        hand_over_plan(hub, run, index=index)
        own = ratios if index == 0 else CALM
        hand_over(hub, run, of_models(whole(*own, device=device), 2, 2, plan=f"{index}" * 64), first=2 * index)
    for asked in (0, 2):
        made = published(hub, run, models=asked).publication
        assert (made.exit_code, made.missing) == (code, [])
    assert [shard.name for shard in made.shards] == ["NVIDIA H200", "NVIDIA A100"]
    assert published(hub, run, models=3).publication.exit_code == 3


def test_a_model_that_is_missing_passes_nothing(hub: GitHub, run: Run) -> None:
    """tests/measure/shards/test_models.py has plans that do not share their error rates."""
    hand_over(hub, run, of_models(whole(*CALM), 2, 2))
    assert "of 2 models of device only NVIDIA H200 is here" in refused(hub, run)


@pytest.mark.parametrize("planned", [True, False])
def test_a_change_cannot_leave_a_model_out_where_the_publisher_is_told_of_it(
    hub: GitHub, run: Run, planned: bool
) -> None:
    one = whole(*CALM)
    hand_over(hub, run, shared(one, 2) if planned else [one])
    assert published(hub, run).publication.exit_code == 0
    assert "2 models of device are asked for, and 1 share α" in refused(hub, run, models=2)


def test_shards_that_tell_of_another_number_are_refused_without_counting_to_it(hub: GitHub, run: Run) -> None:
    text = shared(whole(*RATIOS), 2)[0].model_dump_json()
    assert text.count('"of":2') == 1
    hub.upload(run, archive({"results.json": text.replace('"of":2', '"of":1000000000')}))
    refuse(hub, run, "artifact `perfci--measure--0--1` ")
