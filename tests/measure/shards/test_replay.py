"""Recorded runs, dealt over shards: the verdict of one machine, nothing lost, nothing doubled, no more false alarms."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.judge.judge import judge
from perfci.measure.journal import JOURNAL
from perfci.measure.shards.merge import merge
from perfci.model.results import Results
from perfci.stats.lag import lag
from tests.judge.build import pairs

from .replay import Killed, measure, part_of, planned, series


def dealt(plan: Results, numbers: list[int]) -> dict[str, int]:
    """Case key → shard, numbered without gaps."""
    used = sorted(set(numbers))
    return {case.key: used.index(number) + 1 for case, number in zip(plan.cases, numbers, strict=True)}


def shards(plan: Results, deal: dict[str, int]) -> list[Results]:
    return [part_of(plan, deal, number) for number in range(1, max(deal.values()) + 1)]


def merged(parts: list[Results]) -> Results:
    """Through their text, as they come from elsewhere."""
    return merge([(f"shard-{i}", Results.model_validate_json(one.model_dump_json())) for i, one in enumerate(parts, 1)])


@given(
    seed=st.integers(0, 2**16),
    numbers=st.lists(st.integers(1, 4), min_size=6, max_size=6),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=20, deadline=None)
def test_the_order_of_folders_does_not_matter(seed: int, numbers: list[int], order: object) -> None:
    source = series(seed, 6, {1: 1.05})
    plan = planned(source)
    parts = shards(plan, dealt(plan, numbers))
    for one in parts:
        measure(one, source)
    named = [(f"shard-{one.part.shards[0]}", one) for one in parts if one.part]
    shuffled = order.sample(named, len(named))  # type: ignore[attr-defined]
    assert merge(shuffled).model_dump_json() == merge(named).model_dump_json()


@given(
    seed=st.integers(0, 2**16),
    numbers=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    lost=st.integers(0, 60),
    share=st.floats(0, 1),
)
@settings(max_examples=25, deadline=None)
def test_a_machine_that_is_lost_loses_nothing_finished_and_doubles_nothing(seed, numbers, lost, share):
    """Killed after some pairs, its journal cut at any byte behind the last of them that was on disk."""
    source = series(seed, 5, {2: 1.03})
    plan = planned(source)
    deal = dealt(plan, numbers)
    whole = shards(plan, deal)
    for one in whole:
        measure(one, source)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        begun = part_of(plan, deal, 1)
        with contextlib.suppress(Killed):
            measure(begun, source, out, most=lost)
        kept = cut(out / JOURNAL, share)
        again = part_of(plan, deal, 1)
        new = measure(again, source, out, resume=True)
        assert sum(new.values()) == sum(len(case.pairs) for case in again.cases) - kept, "what is there is not repeated"
        for case in again.cases:
            assert [pair.index for pair in case.pairs] == list(range(len(case.pairs)))
    assert stripped(merged([again, *whole[1:]])) == stripped(merged(whole))


def cut(journal: Path, share: float) -> int:
    """Cut the file behind a share of its bytes; return the pairs whose lines are whole."""
    content = journal.read_bytes()
    content = content[: round(share * len(content))]
    journal.write_bytes(content)
    return sum(line.endswith(b"\n") and b'"kind":"pair"' in line for line in content.splitlines(keepends=True))


def stripped(results: Results) -> str:
    """Without the moments at which pairs were taken."""
    for case in results.cases:
        for pair in case.pairs:
            pair.at = None
    return results.model_dump_json(include={"cases", "plan", "part"})


def test_pairs_that_resemble_their_neighbours_are_asked_over_the_whole() -> None:
    """Though no shard sees it in its own."""
    source = {name: sorted(pairs, key=drift) for name, pairs in series(3, 6, {}).items()}
    source = {name: [pair.model_copy(update={"index": i}) for i, pair in enumerate(p)] for name, p in source.items()}
    plan = planned(source)
    parts = shards(plan, dealt(plan, [1, 2, 3, 4, 5, 6]))
    for one in parts:
        measure(one, source)
    found = lag(merged(parts).cases, plan.plan.looks)
    assert found is not None
    assert found.beyond_chance
    report = judge(merged(parts))
    assert any("Pairs resemble those before them" in note for note in report.notes)


def drift(pair: object) -> float:
    values = pair.values  # type: ignore[attr-defined]
    return float(values["head"]["time"] / values["base"]["time"])


@pytest.mark.parametrize(("sd", "fewest", "most"), [(0.005, 4, 12), (0.2, 13, 64)])
def test_a_change_that_others_are_held_against_is_measured_until_it_is_known(sd: float, fewest: int, most: int) -> None:
    """Half of what is seen of a noisy one may be more than all that is there."""
    x = 0.4 + sd * np.random.default_rng(3).standard_normal(64)
    made_of = [pair.model_copy(update={"seconds": {"block": 0.1}}) for pair in pairs(np.ones(64), np.exp(x))]
    source, taken = {"k/n=0": made_of}, {}
    for precise in (False, True):
        made = planned(source)
        made.plan.precise = precise
        taken[precise] = sum(measure(made, source).values())
    assert taken[False] <= 12 and fewest <= taken[True] <= most
