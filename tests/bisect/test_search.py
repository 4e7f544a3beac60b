"""The search over real histories of git: whom it accuses, whom it does not, and what it says."""

import math
import random
import subprocess
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import pytest

from benchmarks import bisects
from perfci.bisect.document import BisectStep, Range
from perfci.bisect.search import Trial, search, search_all
from perfci.bisect.walk import GitHistory
from perfci.model.report import Interval
from perfci.sources.git import Repository

LIMIT = 0.02


def answered(level: Callable[[str], float], broken: Collection[str], asked: Trial) -> BisectStep:
    """What a measurement without noise answers; `level`: log ratio of a commit."""
    found = BisectStep(purpose=asked.purpose, base=asked.base, head=asked.head, answer="unknown", reason="broken")
    if asked.base in broken or asked.head in broken:
        return found
    log = level(asked.head) - level(asked.base)
    way = -1.0 if asked.better == "higher" else 1.0
    bound = LIMIT if asked.bound is None else asked.bound
    margin = math.log1p(bound) if way > 0 else -math.log1p(-bound)
    there = way * log > margin or (asked.purpose == "whole" and -log > margin)
    wide = 0.001
    return found.model_copy(
        update={
            "answer": "yes" if there else "no",
            "reason": "" if there else "a change of 2 % is excluded",
            "change": math.exp(log),
            "limit": bound,
            "interval": Interval(low=math.exp(log - wide), high=math.exp(log + wide), level=0.95),
        }
    )


class Made:
    """A history that is drawn by hand: `a - b - c` are commits, each with what it adds to the log ratio."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._git("init", "-q", "-b", "main")
        self.commits: dict[str, str] = {}
        self.own: dict[str, float] = {}
        self.levels: dict[str, float] = {}
        self.broken: set[str] = set()

    def _git(self, *args: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        done = subprocess.run(["git", *who, *args], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, name: str, own: float = 0.0, *, at: str | None = None, merge: str | None = None) -> None:
        if at is not None:
            self._git("checkout", "-q", self.commits[at])
        if merge is not None:
            self._git("merge", "-q", "--no-ff", "--no-commit", "-s", "ours", self.commits[merge])
        (self.folder / name).write_text(name)
        self._git("add", "-A")
        self._git("commit", "-q", "-m", name)
        self.commits[name] = self._git("rev-parse", "HEAD")
        self.own[self.commits[name]] = own

    def level(self, commit: str) -> float:
        if commit not in self.levels:
            self.levels[commit] = math.fsum(self.own[one] for one in self._git("rev-list", commit).split())
        return self.levels[commit]

    def ask(self, asked: Trial) -> BisectStep:
        return answered(self.level, {self.commits[name] for name in self.broken}, asked)

    def search(self, good: str, bad: str, *, deeper: bool = False, first_parent: bool = False) -> list[Range]:
        repo = Repository.find(self.folder)
        assert repo is not None
        scratch = self.folder.parent / "walks"
        scratch.mkdir()
        history = GitHistory(repo, scratch, first_parent)
        return search_all(history, self.ask, self.commits[good], self.commits[bad], "time", deeper=deeper)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    one = Made(tmp_path / "repo")
    one.commit("start")
    return one


def names(ranges: list[Range]) -> list[str | None]:
    return [one.named.subject if one.named and one.ending == "found" else None for one in ranges]


def test_a_step_on_a_branch_is_found_behind_the_merge(made: Made) -> None:
    made.commit("b1", at="start")
    made.commit("slow", 0.1)
    made.commit("b3")
    made.commit("m1", at="start")
    made.commit("m2")
    made.commit("merge", merge="b3")
    made.commit("end")
    (found,) = made.search("start", "end")
    assert (names([found]), found.several) == (["slow"], False)
    assert found.sentence.endswith(f"against its parent {made.commits['b1'][:10]}")


def test_with_first_parent_the_merge_is_named(made: Made) -> None:
    made.commit("slow", 0.1, at="start")
    made.commit("m1", at="start")
    made.commit("merge", merge="slow")
    made.commit("end")
    (found,) = made.search("start", "end", first_parent=True)
    assert names([found]) == ["merge"]
    assert [one.base for one in found.confirmed] == [made.commits["m1"]]


def test_a_merge_that_does_it_itself_is_accused(made: Made) -> None:
    made.commit("side", 0.004, at="start")
    made.commit("m1", at="start")
    made.commit("merge", 0.1, merge="side")
    made.commit("end")
    (found,) = made.search("start", "end")
    assert (names([found]), found.several, len(found.confirmed)) == (["merge"], False, 2)
    assert found.own == pytest.approx(math.exp(0.1), abs=1e-6)
    assert "beside what it merges" in found.sentence


def test_a_merge_that_joins_two_halves_is_not(made: Made) -> None:
    made.commit("one half", 0.048, at="start")
    made.commit("other half", 0.048, at="start")
    made.commit("merge", 0.001, merge="one half")
    made.commit("end")
    (found,) = made.search("start", "end")
    assert (names([found]), found.ending) == ([None], "joined")
    for parent in ("one half", "other half"):
        assert f"{made.commits['start'][:10]} {made.commits[parent][:10]}" in found.sentence


def test_two_steps_are_told_and_all_of_them_found(made: Made) -> None:
    for name, own in (("c1", 0.0), ("slow", 0.08), ("c3", 0.0), ("slower", 0.05), ("c5", 0.0)):
        made.commit(name, own)
    (found,) = made.search("start", "c5")
    assert (names([found]), found.several) == (["slow"], True)
    assert "there are several steps, or some go back" in found.sentence


def test_all_searches_what_is_left(made: Made) -> None:
    for name, own in (("c1", 0.0), ("slow", 0.08), ("c3", 0.0), ("slower", 0.05), ("c5", -0.03), ("c6", 0.0)):
        made.commit(name, own)
    found = made.search("start", "c6", deeper=True)
    assert {*names(found)} - {None} == {"slow", "slower", "c5"}


def test_what_cannot_be_measured_may_hide_it(made: Made) -> None:
    for name, own in (("c1", 0.0), ("b1", 0.0), ("b2", 0.1), ("c4", 0.0)):
        made.commit(name, own)
    made.broken = {"b1", "b2"}
    (found,) = made.search("start", "c4")
    assert found.ending == "skipped"
    assert {one.subject for one in found.suspects} == {"b1", "b2", "c4"}
    assert found.sentence.startswith("no commit is accused: it is one of 3 commits that steps could not part: ")


def test_many_small_steps_accuse_nobody(made: Made) -> None:
    for number in range(12):
        made.commit(f"c{number}", 0.006)
    (found,) = made.search("start", "c11")
    assert found.ending == "unconfirmed"
    assert "a change of 2 % is excluded" in found.sentence


def without_noise(planted: bisects.Planted) -> Callable[[Trial], BisectStep]:
    return partial(answered, planted.level, frozenset())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_history_nobody_is_accused_without_a_change_of_its_own(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    repo, plain = bisects.history(tmp_path / "repo", rng.randint(5, 40), rng)
    chosen = rng.sample(plain.commits[1:], rng.randint(1, 4))
    steps = {one: rng.choice((1, 1, -1)) * rng.uniform(0.03, 0.15) for one in chosen}
    planted = bisects.Planted(plain.commits, plain.ancestors, steps)
    (tmp_path / "walks").mkdir()
    history = GitHistory(repo, tmp_path / "walks")
    found = search(history, without_noise(planted), planted.commits[0], planted.commits[-1], "time")
    if found.ending == "found":
        assert found.named is not None and found.named.commit in steps
        whole = planted.level(planted.commits[-1])
        assert found.several == (abs(whole - math.log(found.own or math.nan)) > math.log1p(LIMIT))
    elif len(steps) == 1:
        raise AssertionError(f"one step is found: {found.sentence}")


@pytest.mark.slow
def test_planted_changes_are_found_by_recorded_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    """Some; benchmarks/bisects.py takes many."""
    assert bisects.run(20, seed=7), capsys.readouterr().out


def test_histories_have_merges_and_branches(tmp_path: Path) -> None:
    repo, planted = bisects.history(tmp_path, 60, random.Random(3))
    assert any(len(repo.parents(one)) > 1 for one in planted.commits)
    assert all(planted.commits[0] in planted.ancestors[one] for one in planted.commits)
