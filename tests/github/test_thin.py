"""Results that are too large for an artifact go without what decides nothing: never judged otherwise, and told."""

import lzma
import math
import random
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfci.cli.ci import JobAnswer, _answer
from perfci.cli.measure import Finished
from perfci.github import artifact, thin
from perfci.github.artifact import Unfit, parse
from perfci.github.settings import Settings
from perfci.github.thin import NOTE, fit
from perfci.judge.judge import judge
from perfci.model.plan import Looks
from perfci.model.profile import Profile
from perfci.model.results import Case, CaseSide, Check, Moments, Pair, Results, Scatter
from perfci.model.timing import Timing
from tests.github.loopback.scene import measured, replanned
from tests.judge.build import limit
from tests.render.h200 import FILE, publication


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
    """Bytes without spaces and defaults; and without what may be left out."""
    compact = len(thin._dumped(results))
    thin._leave_out(results)
    return [compact, len(thin._dumped(results))]


def test_what_fits_is_handed_over_as_it_is(recorded: Results) -> None:
    assert fit(written(recorded)) == (written(recorded), "")


def test_no_more_is_left_out_than_is_too_much(recorded: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, sentence and advice stay, word for word."""
    whole, before = written(recorded), answers(recorded)
    reached = sizes(recorded.model_copy(deep=True))
    assert reached[1] < 0.7 * reached[0]
    for size, note in zip(reached, ["", NOTE], strict=True):
        monkeypatch.setattr(artifact, "MEMBER_BYTES", size + 600)  # for the note
        content, left = fit(whole)
        assert left == note
        found = parse(content)
        assert answers(found) == before
        assert [text for text in found.notes if text not in recorded.notes] == [note] * bool(note)
        if not note:
            assert found == recorded, "spaces and defaults"
    monkeypatch.setattr(artifact, "MEMBER_BYTES", reached[-1] - 1)
    with pytest.raises(Unfit, match=r"^has a results\.json of more than "):
        fit(whole)


def test_what_any_metric_is_of_stays(recorded: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever base's policy asks of it."""
    monkeypatch.setattr(artifact, "MEMBER_BYTES", sizes(recorded.model_copy(deep=True))[-1] + 600)
    found = parse(fit(written(recorded))[0])
    for mine, theirs in zip(recorded.cases, found.cases, strict=True):
        kept = attrgetter("index", "values", "clock", "spread", "tuners", "gaps")
        assert [*map(kept, mine.pairs)] == [*map(kept, theirs.pairs)]
        for name, side in mine.sides.items():
            assert side.profile is not None
            assert _told(side.profile) == _told(theirs.sides[name].profile)
            assert (side.work, side.least, side.reports) == (theirs.sides[name].work, theirs.sides[name].least, None)


def _told(profile: Profile | None) -> list[Any]:
    assert profile is not None and profile.trace is not None
    counted = [] if profile.counters is None else [(one.name, one.values) for one in profile.counters.kernels]
    return [profile.metrics, profile.faults, profile.trace.kernels, profile.trace.copies, profile.trace.ranges, counted]


@pytest.mark.parametrize("dropped", ["pairs", "profiles"])
def test_a_step_that_changed_an_answer_would_be_refused(
    recorded: Results, monkeypatch: pytest.MonkeyPatch, dropped: str
) -> None:
    def drop(results: Results) -> None:
        for case in results.cases:
            del case.pairs[1 if dropped == "pairs" else len(case.pairs) :]
            for side in case.sides.values():
                side.profile = None if dropped == "profiles" else side.profile

    monkeypatch.setattr(artifact, "MEMBER_BYTES", len(thin._dumped(recorded)) - 100)
    monkeypatch.setattr(thin, "_leave_out", drop)
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

    def answer() -> JobAnswer:
        file.write_bytes(written(recorded))
        return _answer(outcome, Settings(publish="true"), context, tmp_path, "perfci--gate--0--1")

    assert answer().annotations == [] and capsys.readouterr().out.count("\n") == 1  # that the gate fails
    assert file.read_bytes() == written(recorded)
    monkeypatch.setattr(artifact, "MEMBER_BYTES", reached[1] + 600)
    assert answer().annotations == []
    said = "results.json: left out of what was handed over, of which 16 MiB are read: pictures of pairs"
    assert said in capsys.readouterr().out
    assert parse(file.read_bytes()).notes[-1] == NOTE
    monkeypatch.setattr(artifact, "MEMBER_BYTES", 1 << 16)
    (told,) = answer().annotations
    said = "no publishing job will take what was measured, which has a results.json of more"
    assert told.startswith("::warning") and said in told
    assert file.read_bytes() == written(recorded)


def test_many_cases_of_three_pairs_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CPU measures them, and in proportion: what 10 000 of them may take."""
    whole = many(100)
    for name in ("MEMBER_BYTES", "MOST_OBJECTS"):
        monkeypatch.setattr(artifact, name, getattr(artifact, name) * 100 // artifact.MOST_CASES)
    content = written(whole)
    with pytest.raises(Unfit):
        parse(content)
    assert len(content) > 3 * artifact.MEMBER_BYTES
    thinned, left = fit(content)
    found = parse(thinned)
    assert left and len(thinned) <= artifact.MEMBER_BYTES and NOTE in found.notes
    assert answers(found) == answers(whole)


def many(number: int) -> Results:
    """A comparison of so many cases on a CPU, three pairs each, whose numbers have as many digits as they ever have."""
    rng = random.Random(1)
    made = measured(1.0)
    moments = Moments(time=rng.random(), cross=0.0, clock=0.0)
    scatter = Scatter(placements=3, blocks=6, placement=moments, block=moments)

    def pair(index: int) -> Pair:
        both = {name: rng.random() for name in ("base", "head")}
        return Pair(
            index=index, first="head", blocks=18, at=1.8e9 + rng.random(), samples={"base": 90, "head": 90},
            values={name: {"time": math.exp(rng.gauss(-10, 0.01))} for name in both}, spread=both,
            seconds={name: rng.random() for name in ("first", "open", "block", "close")}, scatter=scatter,
        )  # fmt: skip

    def case(n: int) -> Case:
        settings = {"timer": "perf_counter_ns", "allocator": "keeps freed memory"}
        check = Check(
            shapes=1, compared=1, worst=0.0, rtol=1e-9, atol=0.0, sketch=[rng.random() for _ in range(5)],
            unredrawn="its inputs are the same in every draw",
        )  # fmt: skip
        side = CaseSide(
            file="kernels/k.py", line=2, params={"n": n}, inputs=f"{rng.getrandbits(256):064x}", check=check,
            timing=Timing(mode="cpu", cache="warm", threads=1, settings=settings),
        )  # fmt: skip
        sides, pairs = {"base": side, "head": side}, [pair(index) for index in range(3)]
        return Case(id=f"adding/n={n}", kernel="adding", device="cpu", sides=sides, pairs=pairs, stopped="budget")

    made.cases = [case(n) for n in range(number)]
    asked = [limit(one.id, bound=0.5, device="cpu") for one in made.cases]
    return replanned(made, criteria=asked, declared=None, m=number, looks=Looks.fitted(number))
