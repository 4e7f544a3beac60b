"""The deal: every case once, none apart from its command, alike everywhere, and even."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.agreement import Quiet
from perfci.cli.shards import as_planned
from perfci.measure.request import Request, What
from perfci.measure.run import Measurement
from perfci.measure.shards.deal import deal, planned
from perfci.measure.shards.document import PlannedCase, Shard, SharedPlan, read_plan
from perfci.model.base import UsageError
from perfci.model.comparison import marks

from .build import shared_plan

SECONDS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4), st.one_of(st.just(0.0), st.floats(0.1, 100)), min_size=1, max_size=20
)


@given(SECONDS, st.integers(1, 16), st.integers(1, 3))
def test_each_case_goes_to_one_shard_and_none_is_empty(seconds: dict[str, float], shards: int, together: int) -> None:
    units = {key: key[:together] for key in seconds}
    if len(set(units.values())) < shards:
        with pytest.raises(UsageError, match="give --shards"):
            deal(seconds, units, shards)
        return
    dealt = deal(seconds, units, shards)
    assert list(dealt) == list(seconds)
    assert set(dealt.values()) == set(range(1, shards + 1))
    assert len({(units[key], number) for key, number in dealt.items()}) == len(set(units.values()))
    assert deal(dict(reversed(seconds.items())), units, shards) == dealt, "whatever the order"


@given(st.lists(st.floats(0.1, 100), min_size=4, max_size=30), st.integers(1, 4))
def test_the_deal_is_even(seconds: list[float], shards: int) -> None:
    """Longest first comes within a third of the best (Graham, SIAM J. Appl. Math. 17, 1969)."""
    costs = {f"{at:02}": one for at, one in enumerate(seconds)}
    dealt = deal(costs, {key: key for key in costs}, shards)
    load = [sum(costs[key] for key, number in dealt.items() if number == shard) for shard in range(1, shards + 1)]
    best = max(sum(seconds) / shards, max(seconds))
    assert max(load) <= sum(seconds) / shards + max(seconds)
    assert max(load) <= 2 * best


def plan() -> SharedPlan:
    cases = [PlannedCase(key=f"{name}@cuda", seconds=1.0, shard=number) for number, name in enumerate("ab", 1)]
    return shared_plan(cases, sources=marks({"the code of head": "a" * 64}))


def test_a_shard_keeps_the_error_rates_of_the_whole() -> None:
    whole = plan()
    own = planned(Shard.parse(whole, "2/2")).plan
    assert [one.case for one in own.criteria] == ["b"]
    assert (own.m, own.looks) == (whole.plan.m, whole.plan.looks)
    assert own.m == 2


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path / "plan.json", plan().model_dump_json(indent=1))) == plan()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one | {"run": "another"}, "its digest is another"),
        (lambda one: one | {"digest": ""}, "its digest is another"),
        (lambda one: one | {"version": 2}, "is no plan of this version"),
        (lambda one: one | {"cases": one["cases"] * 2}, "is no plan of this version"),
        (lambda one: one | {"shards": 3}, "is no plan of this version"),
        (lambda one: [one], "is no plan of this version"),
        (lambda one: one | {"more": 1}, "is no plan of this version"),
    ],
)
def test_a_plan_that_was_changed_is_refused(tmp_path: Path, change, said: str) -> None:
    text = json.dumps(change(json.loads(plan().model_dump_json())))
    with pytest.raises(UsageError, match=said):
        read_plan(written(tmp_path / "plan.json", text))


def test_a_plan_of_another_perfci_is_refused(tmp_path: Path) -> None:
    old = plan().model_copy(update={"perfci": "0.9.0"}).sealed()
    with pytest.raises(UsageError, match=r"made by perfci 0\.9\.0, and this is"):
        read_plan(written(tmp_path / "plan.json", old.model_dump_json()))


@pytest.mark.parametrize("text", ["", "not JSON", "{}", "[" * 100_000, '{"version": NaN}', "\x00"])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="is no plan of this version"):
        read_plan(written(tmp_path / "plan.json", text))


def test_no_file_and_no_ordinary_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="--shard"):
            read_plan(path)


@pytest.mark.parametrize("text", ["", "1", "1/", "/2", "1/2/3", "-1/2", "1.0/2", "0/2", "3/2", "1/3", "٣/2", "1 / 2"])
def test_what_is_no_shard_of_the_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(plan(), text)


def test_a_shard_does_what_was_planned_and_draws_its_audit_like_a_run_that_is_alone(tmp_path: Path) -> None:
    whole = plan().model_copy(update={"what": What(mode="compare", base="v1", cases=["a"], measure_all=True)}).sealed()
    said = Request.of("compare", tmp_path, tmp_path, cases=["b"], wait=1.0)
    asked = as_planned(said, Shard(whole, 2), tmp_path / "plan.json")
    assert asked.what == whole.what.model_copy(update={"base": whole.base})
    assert (asked.how, asked.where.out) == (said.how, said.where.out)
    assert asked.planned == planned(Shard(whole, 2))
    drawn: Any = Measurement(asked, Quiet())
    assert drawn._lot(whole.run) == whole.run, "which no policy tells before head's code has run"
