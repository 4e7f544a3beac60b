"""Publishing a plan that several machines shared: its shards are one answer, or none."""

from collections.abc import Iterator

import pytest

from perfci.measure.shards.merge import merge
from perfci.model.plan import Looks
from perfci.model.results import Part, Reason, Results
from tests.github.loopback.scene import HEAD, measured, packed, published, scene
from tests.github.loopback.server import GitHub, Run, archive, serve

RATIOS = (1.0, 1.10, 1.0, 1.0, 0.99, 1.0)
PLAN = "5" * 64


@pytest.fixture
def hub() -> Iterator[GitHub]:
    with serve() as made:
        yield made


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
        part = Part(plan=plan, shards=[number], of=count, cases=[case.key for case in run.cases])
        of_plan = run.plan.model_copy(update={"criteria": asked})
        made.append(run.model_copy(update={"cases": own, "plan": of_plan, "part": part}, deep=True))
    return made


def hand_over(hub: GitHub, run: Run, shards: list[Results], *, attempt: int = 1, first: int = 0) -> None:
    for index, one in enumerate(shards, first):
        hub.upload(run, packed(one), name=f"perfci--measure--{index}--{attempt}")


def lines(hub: GitHub) -> str:
    return "\n".join(hub.own_comments())


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_all_shards_are_one_check_and_one_comment(hub: GitHub, count: int) -> None:
    _, run = scene(hub)
    one = whole(*RATIOS)
    hand_over(hub, run, shared(one, count))
    outcome = published(hub, run)
    (shard,) = outcome.publication.shards
    assert (outcome.publication.exit_code, shard.name, len(shard.artifacts)) == (1, "", count)
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


def test_what_was_merged_before_is_published_as_it_is(hub: GitHub) -> None:
    _, run = scene(hub)
    hub.upload(run, packed(merge([(str(i), one) for i, one in enumerate(shared(whole(*RATIOS), 3))])))
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, len(outcome.publication.shards), outcome.publication.missing) == (1, 1, [])


def test_a_missing_shard_is_no_pass(hub: GitHub) -> None:
    _, run = scene(hub)
    shards = shared(whole(*(1.0,) * 6), 3)
    hand_over(hub, run, [shards[0], shards[2]])
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.shards) == (3, [])
    assert any("shard 2 of 3" in line and "missing" in line for line in outcome.publication.missing)
    assert hub.checks[0]["conclusion"] == "action_required"


def test_a_shard_of_another_plan_is_no_pass(hub: GitHub) -> None:
    _, run = scene(hub)
    run_of_all = whole(*(1.0,) * 6)
    hand_over(hub, run, [*shared(run_of_all, 3)[:2], shared(run_of_all, 3, plan="6" * 64)[2]])
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.shards) == (3, [])
    assert len([line for line in outcome.publication.missing if "missing" in line]) == 2


def test_a_shard_that_is_there_twice_is_refused(hub: GitHub) -> None:
    _, run = scene(hub)
    shards = shared(whole(*RATIOS), 2)
    hand_over(hub, run, [*shards, shards[1]])
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.shards) == (3, [])
    assert any("is shard 2 again" in line for line in outcome.publication.missing), outcome.publication.missing


def test_a_decided_shard_is_not_measured_again(hub: GitHub) -> None:
    """`Re-run failed jobs` would let a change be measured until it passes."""
    _, run = scene(hub)
    slow, calm = shared(whole(*RATIOS), 2), shared(whole(*(1.0,) * 6), 2)
    hand_over(hub, run, slow)
    run.attempt = 2
    hand_over(hub, run, [calm[1]], attempt=2, first=1)
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.shards) == (3, [])
    assert any("is shard 2 again" in line for line in outcome.publication.missing), outcome.publication.missing


def test_a_shard_that_measured_nothing_is_replaced_by_its_next_attempt(hub: GitHub) -> None:
    _, run = scene(hub)
    shards = shared(whole(*RATIOS), 2)
    lost = shards[0].model_copy(deep=True)
    lost.cases, lost.error = [], Reason(kind="exit", text="GPU 0 is lost")
    hand_over(hub, run, [lost, shards[1]])
    before = published(hub, run)
    assert before.publication.exit_code == 3
    run.attempt = 2
    hand_over(hub, run, [shards[0]], attempt=2)
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.missing) == (1, [])


def test_all_jobs_run_again_are_a_plan_of_their_own(hub: GitHub) -> None:
    _, run = scene(hub)
    hand_over(hub, run, shared(whole(*RATIOS), 2))
    run.attempt = 2
    hand_over(hub, run, shared(whole(*(1.0,) * 6), 2, plan="7" * 64), attempt=2)
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.missing) == (0, [])


def test_two_models_stand_beside_each_other(hub: GitHub) -> None:
    _, run = scene(hub)
    hand_over(hub, run, shared(whole(*RATIOS), 2))
    hand_over(hub, run, shared(whole(*(1.0,) * 6, device="NVIDIA A100"), 3, plan="6" * 64), first=2)
    outcome = published(hub, run)
    assert [shard.name for shard in outcome.publication.shards] == ["NVIDIA H200", "NVIDIA A100"]
    assert (len(hub.checks), len(hub.own_comments()), outcome.publication.exit_code) == (1, 1, 1)
    assert "NVIDIA A100" in lines(hub)


def test_error_rates_that_are_shared_by_more_than_there_is_are_refused(hub: GitHub) -> None:
    _, run = scene(hub)
    one = whole(*RATIOS)
    one.plan.m, one.plan.looks = 500, Looks.fitted(500)
    hand_over(hub, run, shared(one, 2))
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.shards) == (3, [])
    assert any("error rates that are not perfci's" in line for line in outcome.publication.missing)


def test_shards_that_tell_of_another_number_are_refused_without_counting_to_it(hub: GitHub) -> None:
    _, run = scene(hub)
    text = shared(whole(*RATIOS), 2)[0].model_dump_json()
    assert text.count('"of":2') == 1
    hub.upload(run, archive({"results.json": text.replace('"of":2', '"of":1000000000')}))
    outcome = published(hub, run)
    assert (outcome.publication.exit_code, outcome.publication.shards) == (3, [])
