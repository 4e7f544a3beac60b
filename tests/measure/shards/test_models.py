"""Several models of device that share α: every criterion counts once for each, and none of them passes alone."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.github import artifact
from perfci.judge.judge import judge
from perfci.measure.plan import fitted, shared
from perfci.measure.request import What
from perfci.measure.shards.merge import merge_models, model_of
from perfci.model.base import MachineError, UsageError
from perfci.model.results import Results
from tests.judge.build import case, limit, results

Found = list[tuple[str, Results]]


def of_model(model: int, cases: int, shards: int, models: int) -> Found:
    """The shards of one model's plan, which has so many cases."""
    ids = [f"k/n={number}" for number in range(cases)]
    whole = results([case(ident, ratio=1.0) for ident in ids], [limit(ident) for ident in ids])
    what = What(mode="compare", models=models)
    whole.plan.m = shared(whole.plan.criteria, what)
    whole.plan.looks = fitted(whole.plan.m, what)
    whole.fingerprint.devices = {**whole.fingerprint.devices, "cuda": f"NVIDIA {model}"}
    whole.plan.devices = ["cuda"]
    whole.run = f"run-{model}"
    found = []
    for number in range(1, shards + 1):
        own = whole.cases[number - 1 :: shards]
        keys = {one.key for one in own}
        asked = [one for one in whole.plan.criteria if one.case_key in keys]
        part = {"plan": f"{model:064}", "shards": [number], "of": shards, "models": models}
        plan = whole.plan.model_copy(update={"criteria": asked})
        made = whole.model_copy(update={"cases": own, "plan": plan}, deep=True).model_dump(mode="json")
        part["cases"] = [one.key for one in whole.cases]
        found.append((f"{model}/shard-{number}", Results.model_validate(made | {"part": part})))
    return found


def plans(*dealt: tuple[int, int]) -> list[Found]:
    """A plan for each model: how many cases, over how many shards."""
    return [of_model(at, cases, min(shards, cases), len(dealt)) for at, (cases, shards) in enumerate(dealt, 1)]


DEALT = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4)


@given(DEALT, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_all_criteria_of_all_models_spend_alpha_once(dealt, random) -> None:
    found = [one for shards in plans(*dealt) for one in shards]
    random.shuffle(found)
    merged = merge_models(found)
    assert sorted(map(model_of, merged)) == sorted(f"NVIDIA {at}" for at in range(1, len(dealt) + 1))
    spent = [one.plan.looks.alpha / one.plan.m for one in merged for _ in one.plan.criteria]
    assert math.isclose(sum(spent), merged[0].plan.looks.alpha)
    for one in merged:
        assert one.part is not None and one.part.whole
        assert one.plan.m == len(dealt) * len(one.plan.criteria)
        artifact.check_whole(one)
        notes = [note for note in judge(one).notes if "models of device that share α" in note]
        assert len(notes) == (len(dealt) > 1)


@given(DEALT.filter(lambda dealt: len(dealt) > 1), st.data())
@settings(max_examples=40)
def test_nothing_passes_with_a_model_or_a_shard_of_one_missing(dealt, data) -> None:
    whole = plans(*dealt)
    gone = data.draw(st.sampled_from(range(len(whole))))
    lost = data.draw(st.sampled_from([*range(len(whole[gone])), None]))
    kept = [shards for at, shards in enumerate(whole) if at != gone]
    if lost is not None:
        kept.append([one for at, one in enumerate(whole[gone]) if at != lost])
    with pytest.raises(MachineError, match="there is no verdict without") as error:
        merge_models([one for shards in kept for one in shards])
    assert "\n" not in str(error.value)


def test_who_is_missing_is_told_by_who_is_here() -> None:
    first, _ = plans((2, 2), (2, 1))
    with pytest.raises(MachineError, match="of 2 models of device only NVIDIA 1 is here"):
        merge_models(first)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.fingerprint.devices.update(cuda="NVIDIA 1"), "NVIDIA 1 has two plans"),
        (lambda one: setattr(one.part, "models", 3), "the plan of NVIDIA 1 does not share α with 2 others"),
        (lambda one: setattr(one.part, "models", 1), "the plan of NVIDIA 2 does not share α with 1 others"),
        (
            lambda one: setattr(one.sides["head"], "tree", "f" * 64),
            "NVIDIA 2: the tree of head is not that of NVIDIA 1.*: make new plans",
        ),
    ],
)
def test_plans_that_do_not_share_are_refused(change, said: str) -> None:
    first, second = plans((2, 1), (3, 1))
    change(second[0][1])
    with pytest.raises(UsageError, match=said):
        merge_models([*first, *second])


def test_more_alpha_than_the_models_share_is_refused() -> None:
    """By fewer limits than it was shared among: what is slower would be found more rarely."""
    (first, _) = plans((2, 1), (2, 1))
    one = first[0][1]
    artifact.check_whole(one)
    one.plan.m += 1
    with pytest.raises(artifact.Unfit, match="error rates that are not perfci's"):
        artifact.check_whole(one)


def test_limits_that_were_not_planned_with_share_alpha_with_the_other_models_too() -> None:
    """Base's policy of today may have some: a regression is called at the look where its share of α allows it."""
    one = of_model(1, 2, 1, 2)[0][1]
    slower = results([case("k/n=0", ratio=1.1), case("k/n=1")], [limit("k/n=0"), limit("k/n=1")])
    one = one.model_copy(update={"cases": slower.cases, "plan": slower.plan})
    other = [limit(of.id, bound=0.03) for of in one.cases]
    shares, alone = (judge(of, criteria=other) for of in (one, one.model_copy(update={"part": None})))
    assert shares.exploratory and alone.exploratory
    assert [row.class_ for row in shares.rows] == [row.class_ for row in alone.rows] == ["regression", "unchanged"]
    assert shares.rows[0].p is not None and alone.rows[0].p is not None
    assert shares.rows[0].p < alone.rows[0].p
