"""Which commits a night compares main with, on real repositories: first nights, releases, lost and unreachable commits."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.history.document import Commit, Compared, Night, Reference
from perfci.history.plan import NightPlan, _numbers, plan_night
from perfci.model.base import UsageError
from perfci.model.policy import History, Policy
from tests.history import nights
from tests.history.nights import compared, point
from tests.sources.repo import commit, find, git, init

PLAIN = Policy(version=1)


def night(sha: str, reference: tuple[str, str] | None = None, *, error: str = "", measured: bool = True) -> Night:
    last = compared(1.0) if measured else Compared(class_="unchanged")
    return nights.night(
        commit=Commit(sha=sha, date="2026-11-18T01:00:00Z"),
        reference=reference
        and Reference(name=reference[0], commit=Commit(sha=reference[1], date="2026-11-01T00:00:00Z")),
        error=error,
        points=[point(last=last, reference=None)],
    )


def planned(folder: Path, *before: Night, policy: Policy = PLAIN) -> NightPlan:
    """`before`: the last one first."""
    return plan_night(find(folder), policy, before)


def shas(plan: NightPlan) -> tuple[str | None, str | None, str | None]:
    reference, seam = (one and one.commit.sha for one in (plan.reference, plan.seam))
    return plan.last and plan.last.sha, reference, seam


def test_the_first_night_of_a_repository_without_a_release_says_what_it_leaves_out(tmp_path: Path) -> None:
    init(tmp_path / "r", {"a": "1"})
    plan = planned(tmp_path / "r")
    assert shas(plan) == (None, None, None)
    assert [note.split(":")[0] for note in plan.notes] == ["no reference", "nothing is recorded yet"]
    assert (plan.head.date, plan.head.author) == ("2024-01-01T00:00:00Z", "A")


def test_the_reference_is_the_highest_release_that_main_contains(tmp_path: Path) -> None:
    folder = init(tmp_path / "r", {"a": "1"})
    first = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "v1.9")
    old = commit(folder, {"a": "2"})
    git(folder, "tag", "-a", "v1.10.1", "-m", "annotated")
    git(folder, "branch", "v1.10.1", first)  # a branch of the tag's name is none
    for name in ("v1.11-rc1", "v2", "nightly-9.9", "99"):
        git(folder, "tag", name)
    git(folder, "checkout", "-q", "-b", "side")
    commit(folder, {"b": "1"})
    git(folder, "tag", "v3.0")
    git(folder, "checkout", "-q", "main")
    recorded = commit(folder, {"a": "3"})
    plan = planned(folder, night(recorded, ("v1.10.1", old)))
    assert shas(plan) == (recorded, old, None)
    assert plan.reference is not None and plan.reference.name == "v1.10.1"
    assert plan.notes == []
    named = planned(folder, policy=Policy(version=1, history=History(reference="v3.0")))
    assert named.reference is not None and named.reference.name == "v3.0"
    with pytest.raises(UsageError, match=r"history.reference: 'v4.0': no such branch, tag or commit"):
        planned(folder, policy=Policy(version=1, history=History(reference="v4.0")))


def test_a_new_release_is_compared_with_the_one_before(tmp_path: Path) -> None:
    folder = init(tmp_path / "r", {"a": "1"})
    first = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "v1.0")
    second = commit(folder, {"a": "2"})
    git(folder, "tag", "v1.1")
    before = night(second, ("v1.0", first))
    assert shas(planned(folder, before)) == (second, second, first)
    assert shas(planned(folder, night(second, ("v1.1", second)), before)) == (second, second, None)
    assert shas(planned(folder, night(second), before)) == (second, second, first), "a night without a reference"


def test_a_night_without_an_answer_recorded_nothing(tmp_path: Path) -> None:
    folder = init(tmp_path / "r", {"a": "1"})
    first, second = git(folder, "rev-parse", "HEAD"), commit(folder, {"a": "2"})
    failed = night(second, error="the GPU fell off the bus", measured=False)
    assert shas(planned(folder, failed, night(first)))[0] == first
    half = night(second, error="the reference does not build any more")
    assert shas(planned(folder, half, night(first)))[0] == second


def test_what_was_pushed_over_is_said_and_main_is_compared_with_the_rest(tmp_path: Path) -> None:
    folder = init(tmp_path / "r", {"a": "1"})
    git(folder, "tag", "v1.0")
    here = git(folder, "rev-parse", "HEAD")
    plan = planned(folder, night("d" * 40, ("v0.9", "e" * 40)))
    assert shas(plan) == (None, here, None)
    assert plan.notes == [
        "the commit that was recorded last, dddddddddd of 2026-11-18, is no longer in the repository: main is compared "
        "with the reference alone",
        "the reference before, v0.9, eeeeeeeeee of 2026-11-01, is no longer in the repository: how the two stand is not "
        "known",
    ]


def test_a_shallow_clone_cannot_tell_what_is_lost(tmp_path: Path) -> None:
    folder = init(tmp_path / "r", {"a": "1"})
    first = git(folder, "rev-parse", "HEAD")
    commit(folder, {"a": "2"})
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{folder}", "shallow")
    with pytest.raises(UsageError, match=r"last release cannot be known in a shallow clone: run `") as why:
        planned(tmp_path / "shallow")
    named = Policy(version=1, history=History(reference="HEAD"))
    with pytest.raises(UsageError, match=rf"{first[:10]}: was recorded, and is not in this shallow clone"):
        planned(tmp_path / "shallow", night(first), policy=named)
    subprocess.run(["sh", "-c", str(why.value).split("`")[1]], cwd=tmp_path / "shallow", check=True)
    assert shas(planned(tmp_path / "shallow", night(first), policy=named))[0] == first


@given(st.lists(st.integers(0, 10**8), min_size=2, max_size=5), st.sampled_from(["", "v"]))
def test_versions_are_in_the_order_of_their_numbers(numbers: list[int], mark: str) -> None:
    tag = mark + ".".join(map(str, numbers))
    later = mark + ".".join(map(str, [*numbers[:-1], numbers[-1] + 1]))
    assert _numbers(tag) == tuple(numbers)
    assert _numbers(tag) < _numbers(later)
