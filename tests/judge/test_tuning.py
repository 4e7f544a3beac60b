"""Configurations that an autotuner chose, as sentences."""

from perfci.judge.explain.case import case_profile, seen
from perfci.judge.explain.tuning import changes, variations
from perfci.model.base import SIDES
from perfci.model.results import Case, Choice
from tests.judge import build

Chosen = dict[str, list[dict[str, str]]]
OLD = {"BLOCK": "128", "num_warps": "8", "num_stages": "3"}
NEW = {"BLOCK": "64", "num_warps": "4", "num_stages": "3"}


def case(*pairs: tuple[Chosen, Chosen]) -> Case:
    def choices(chosen: Chosen) -> list[Choice]:
        return [Choice(kernel=name, config=config) for name, configs in chosen.items() for config in configs]

    made = build.pairs([1e-4] * len(pairs), [1e-4] * len(pairs))
    for pair, both in zip(made, pairs, strict=True):
        pair.choices = {side: choices(one) for side, one in zip(SIDES, both, strict=True) if one}
    return build.case("softmax/n=64", pairs=made)


def test_another_choice_is_told_by_what_differs() -> None:
    moved = case(*[({"add": [OLD]}, {"add": [NEW]})] * 4)
    assert changes(moved) == ["autotuning: BLOCK 128 → 64, num_warps 8 → 4"]
    assert variations(moved) == []
    assert seen(moved)
    assert case_profile(moved, [], None).sentences[0] == changes(moved)[0], "also where no profiler saw it"


def test_the_same_choice_is_not_told() -> None:
    """In whatever order its parameters stand."""
    same = case(*[({"add": [OLD]}, {"add": [dict(reversed(OLD.items()))]})] * 4)
    assert not seen(same)


def test_parameters_of_one_side_alone_and_several_kernels() -> None:
    """A kernel that one side alone tunes has no counterpart: profilers tell of kernels that come and go."""
    moved = case(({"add": [OLD], "mul": [OLD], "old": [OLD]}, {"add": [OLD | {"maxnreg": "96"}], "mul": [NEW]}))
    assert changes(moved) == [
        "autotuning of add: maxnreg none → 96",
        "autotuning of mul: BLOCK 128 → 64, num_warps 8 → 4",
    ]


def test_configurations_for_different_arguments_are_one_choice_of_a_process() -> None:
    moved = case(*[({"add": [OLD, NEW]}, {"add": [OLD]})] * 3)
    assert changes(moved) == [
        "autotuning: BLOCK 128 num_stages 3 num_warps 8 / BLOCK 64 num_stages 3 num_warps 4 → BLOCK 128 num_stages 3 num_warps 8"
    ]
    assert variations(moved) == []
    assert variations(case(*[({"add": [OLD, NEW]}, {"add": [NEW, OLD]})] * 3)) == []


def test_a_choice_that_varies_from_process_to_process_is_noise_and_no_cause() -> None:
    steady, other = ({"add": [OLD]}, {"add": [OLD]}), ({"add": [OLD]}, {"add": [NEW]})
    varies = case(steady, other, steady, steady)
    assert changes(varies) == []
    assert variations(varies) == [
        "autotuning varies from process to process: head BLOCK 128 num_warps 8 in 3, BLOCK 64 num_warps 4 in 1 of 4"
    ]
    assert case_profile(varies, [], None).sentences == variations(varies)


def test_hostile_names_stay_in_one_short_line() -> None:
    long = {"`B\n\x1b[31m" + "x" * 60: "`1\u202e", **{f"P{n}": "1" * 80 for n in range(20)}}
    said = changes(case(({"k`\n" * 60: [{}], "b": [{}]}, {"k`\n" * 60: [long], "b": [long]})))
    assert len(said) == 2
    for line in said:
        assert line.isprintable() and "`" not in line and len(line) <= 140
