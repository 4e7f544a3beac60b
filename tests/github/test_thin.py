"""Results that are too large for an artifact go without what decides nothing: never judged otherwise, and told."""

import lzma
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.cli.ci import Answer, _answer
from perfci.cli.measure import Finished
from perfci.github import artifact, thin
from perfci.github.artifact import Unfit, parse
from perfci.github.settings import Settings
from perfci.github.thin import NOTE, STEPS, fit
from perfci.judge.judge import judge
from perfci.model.plan import Looks
from perfci.model.profile import Profile
from perfci.model.results import Case, CaseSide, Check, Moments, Pair, Results, Scatter
from perfci.model.timing import Timing
from tests.github.loopback.scene import measured
from tests.judge.build import limit
from tests.render.h200 import FILE, publication

WORDS = [words for words, _ in STEPS[1:]]


@pytest.fixture
def recorded() -> Results:
    """Ten cases on an H200, profiled, of which five became slower; each under a name that tells it from a copy."""
    made = Results.model_validate_json(lzma.decompress(FILE.read_bytes()))
    made.plan.looks = Looks.fitted(made.plan.m)
    return made


def written(results: Results) -> bytes:
    return results.model_dump_json(indent=1).encode() + b"\n"


def answers(results: Results, *, strict: bool = False) -> list[Any]:
    report = judge(results, strict=strict)
    return [report.verdict, report.exit_code, report.sentence, report.advice, *report.rows]


def sizes(results: Results) -> list[int]:
    """Bytes after each step."""
    made = []
    for _, drop in STEPS:
        drop(results)
        made.append(len(thin._dumped(results)))
    return made


def test_what_fits_is_handed_over_as_it_is(recorded: Results) -> None:
    assert fit(written(recorded)) == (written(recorded), [])


def test_no_more_is_left_out_than_is_too_much(recorded: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the steps; and rows, sentence and advice stay, word for word."""
    whole, before = written(recorded), answers(recorded)
    reached = sizes(recorded.model_copy(deep=True))
    assert reached == sorted(reached, reverse=True) and len(set(reached)) == len(STEPS)
    for step, size in enumerate(reached):
        monkeypatch.setattr(artifact, "MEMBER_BYTES", size + 600)  # for the note
        content, left = fit(whole)
        assert left == WORDS[:step]
        found = parse(content)
        assert answers(found) == before
        assert [note for note in found.notes if note not in recorded.notes] == (
            [f"{NOTE}{'; '.join(left)}"] if step else []
        )
        if step == 0:
            assert found == recorded, "spaces and defaults"
    monkeypatch.setattr(artifact, "MEMBER_BYTES", reached[-1] - 1)
    with pytest.raises(Unfit, match=r"^has a results\.json of more than "):
        fit(whole)


def test_what_any_metric_is_of_stays(recorded: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever base's policy asks of it."""
    monkeypatch.setattr(artifact, "MEMBER_BYTES", sizes(recorded.model_copy(deep=True))[-1] + 600)
    found = parse(fit(written(recorded))[0])
    for mine, theirs in zip(recorded.cases, found.cases, strict=True):
        assert [(p.index, p.values, p.clock, p.spread, p.tuners, p.gaps) for p in mine.pairs] == [
            (p.index, p.values, p.clock, p.spread, p.tuners, p.gaps) for p in theirs.pairs
        ]
        for name, side in mine.sides.items():
            assert side.profile is not None
            assert _told(side.profile) == _told(theirs.sides[name].profile)
            assert (side.work, side.least, side.reports) == (theirs.sides[name].work, theirs.sides[name].least, None)


def _told(profile: Profile | None) -> list[Any]:
    assert profile is not None and profile.trace is not None
    counted = [] if profile.counters is None else [(one.name, one.values) for one in profile.counters.kernels]
    return [profile.metrics, profile.faults, profile.trace.kernels, profile.trace.copies, profile.trace.ranges, counted]


def _dropped_values(results: Results) -> None:
    for case in results.cases:
        case.pairs = case.pairs[:1]


def _dropped_profiles(results: Results) -> None:
    for case in results.cases:
        for side in case.sides.values():
            side.profile = None


@pytest.mark.parametrize("drop", [_dropped_values, _dropped_profiles])
def test_a_step_that_changed_an_answer_would_be_refused(
    recorded: Results, monkeypatch: pytest.MonkeyPatch, drop: Callable[[Results], None]
) -> None:
    monkeypatch.setattr(artifact, "MEMBER_BYTES", len(thin._dumped(recorded)) - 100)
    monkeypatch.setattr(thin, "STEPS", [("what matters", drop)])
    with pytest.raises(Unfit, match="decides"):
        fit(written(recorded))


def test_what_no_publishing_job_would_believe_is_not_made_so() -> None:
    other = measured(1.0, 1.1)
    other.plan.looks = Looks()
    with pytest.raises(Unfit, match="looks or error rates"):
        fit(written(other))


def test_the_measuring_job_says_what_it_leaves_out(
    recorded: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a job whose results nobody will take does, before another job misses them."""
    file = tmp_path / "results.json"
    outcome = Finished(judge(recorded), None)
    context: Any = SimpleNamespace(origin=publication(outcome.report).origin)
    reached = sizes(recorded.model_copy(deep=True))

    def answer() -> Answer:
        file.write_bytes(written(recorded))
        return _answer(outcome, Settings(publish="true"), context, tmp_path, "perfci--gate--0--1")

    assert answer().annotations == [] and capsys.readouterr().out.count("\n") == 1  # that the gate fails
    assert file.read_bytes() == written(recorded)
    monkeypatch.setattr(artifact, "MEMBER_BYTES", reached[1] + 600)
    assert answer().annotations == []
    assert f"results.json: left out of what was handed over, of which 16 MiB are read: {WORDS[0]}\n" in (
        capsys.readouterr().out
    )
    assert parse(file.read_bytes()).notes[-1] == f"{NOTE}{WORDS[0]}"
    monkeypatch.setattr(artifact, "MEMBER_BYTES", 1 << 16)
    (told,) = answer().annotations
    assert (
        told.startswith("::warning")
        and "no publishing job will take what was measured, which has a results.json of more" in told
    )
    assert file.read_bytes() == written(recorded)


def test_many_cases_of_three_pairs_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CPU measures them, and in proportion: what 10 000 of them may take."""
    whole = many(300)
    for name in ("MEMBER_BYTES", "MOST_OBJECTS"):
        monkeypatch.setattr(artifact, name, getattr(artifact, name) * 300 // artifact.MOST_CASES)
    content = written(whole)
    with pytest.raises(Unfit):
        parse(content)
    assert len(content) > 3 * artifact.MEMBER_BYTES
    thinned, left = fit(content)
    found = parse(thinned)
    assert left and len(thinned) <= artifact.MEMBER_BYTES and f"{NOTE}{'; '.join(left)}" in found.notes
    assert answers(found) == answers(whole)


@pytest.mark.slow
def test_as_many_cases_as_are_read_at_most_fit_with_three_pairs() -> None:
    whole = many(artifact.MOST_CASES)
    assert thin._refused(written(whole)) == "has a results.json of more than 16 MiB"
    for _, drop in STEPS:
        drop(whole)
    assert thin._refused(thin._dumped(whole)) == ""


def many(number: int) -> Results:
    """A comparison of so many cases on a CPU, three pairs each."""
    rng = random.Random(1)
    made = measured(1.0, 1.1)
    moments = Moments(time=rng.random(), cross=0.0, clock=0.0)
    made.cases = [
        Case(
            id=f"adding/n={n}", kernel="adding", device="cpu",
            sides={name: _side(rng, n) for name in ("base", "head")}, pairs=[_pair(rng, index) for index in range(3)],
            stopped="budget",
        )
        for n in range(number)
    ]  # fmt: skip
    for case in made.cases:
        case.sides["head"].inputs = case.sides["base"].inputs
        case.sides["head"].check.sketch = case.sides["base"].check.sketch
        for pair in case.pairs:
            pair.scatter = Scatter(placements=3, blocks=6, placement=moments, block=moments)
    made.plan.criteria = [limit(case.id, bound=0.5, device="cpu") for case in made.cases]
    made.plan.declared = None
    made.plan.m = number
    made.plan.looks = Looks.fitted(number)
    return made


def _side(rng: random.Random, n: int) -> CaseSide:
    settings = {"timer": "perf_counter_ns", "allocator": "keeps freed memory"}
    check = Check(
        shapes=1, compared=1, worst=0.0, rtol=1e-9, atol=0.0, sketch=[rng.random() for _ in range(5)],
        unredrawn="its inputs are the same in every draw",
    )  # fmt: skip
    return CaseSide(
        file="kernels/k.py", line=2, params={"n": n}, inputs=f"{rng.getrandbits(256):064x}", check=check,
        timing=Timing(mode="cpu", cache="warm", threads=1, settings=settings),
    )  # fmt: skip


def _pair(rng: random.Random, index: int) -> Pair:
    time = math.exp(rng.gauss(-10, 1))
    return Pair(
        index=index, first="head", blocks=18, at=1.8e9 + rng.random(),
        values={name: {"time": time * math.exp(rng.gauss(0, 0.01))} for name in ("base", "head")},
        samples={"base": 90, "head": 90}, spread={"base": rng.random(), "head": rng.random()},
        seconds={name: rng.random() for name in ("first", "open", "block", "close")},
    )  # fmt: skip
