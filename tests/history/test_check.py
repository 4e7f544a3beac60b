"""What is said of a history: nothing across epochs, nothing that is not known, and each proposal with its bisect."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from benchmarks.history.simulate import WHITE, documents
from perfci.history import check as module
from perfci.history.check import check
from perfci.history.document import Compared, Night, Ratio
from perfci.history.series import collect, ratio_or_why
from perfci.history.store import Fault, open_store
from perfci.render.changes import render
from tests.history.nights import at, commit, compared, night, perfci, point
from tests.history.test_alert import answer, histories, walk
from tests.render.shown import golden

EPOCHS = ("0123456789abcdef", "fedcba9876543210")


def nights(ratios, case="sdpa/n=128", epoch=lambda day: EPOCHS[0], **also):
    """A night for each ratio; None for one without an answer."""
    found = []
    for day, value in enumerate(ratios):
        own = (
            point(case, reference=Compared(class_="inconclusive", reason="the budget ended"), **also)
            if value is None
            else point(case, value, reference=answer(value, 0.05), **also)
        )
        found.append(night(day, epoch=epoch(day), points=[own]))
    return found


def wobble(level, number):
    """Ratios about a level, as quiet as a good machine."""
    return [level * (1 + 0.001 * math.sin(7 * day)) for day in range(number)]


def checked(found, **also):
    return check(collect(found), **also)


def test_a_step_names_case_metric_size_commits_and_the_bisect_that_decides():
    found = checked(nights(wobble(1.0, 30) + wobble(1.03, 6)))
    (one,) = found.changes
    assert (one.case, one.metric, one.device, one.device_name) == ("sdpa/n=128", "time", "cpu", "AMD EPYC 9654")
    assert one.low < 1.03 < one.high
    assert (one.kind, one.worse) == ("step", True)
    assert (one.good, one.bad) == (commit(29).sha, commit(30).sha)
    assert one.command == ["perfci", "bisect", commit(29).sha, commit(30).sha, "-k", "sdpa/n=128", "--device", "cpu"]
    assert found.exit_code == 1


def test_the_words_of_a_check():
    drift = [1 + 0.0006 * max(0, day - 20) + 0.001 * math.sin(7 * day) for day in range(100)]
    found = nights([*wobble(1.0, 90), *wobble(1.03, 10)], case="sdpa/seq=512 causal")
    others = nights(drift, case="softmax/rows=64"), nights([*wobble(0.98, 80), *[None] * 20], case="lost`\u202e/<b>")
    for one, drifting, gone in zip(found, *others, strict=True):
        one.points += [*drifting.points, *gone.points]
    told = check(collect(found), [Fault("nights/x\x1b.json", "is damaged")], last=100)
    assert render(told) == golden(Path(__file__).with_name("golden") / "check.txt", render(told))


def test_the_command_means_the_case_alone_and_its_metric():
    (one,) = checked(nights(wobble(1.0, 30) + wobble(0.9, 6), case="a[b]*c d", metric="bandwidth", unit="B/s")).changes
    assert one.command[4:6] == ["-k", "a[[]b][*]c d"]
    assert one.command[-2:] == ["--metric", "bandwidth"]
    assert one.worse is True  # less bandwidth
    assert "'a[[]b][*]c d'" in render(checked(nights(wobble(1.0, 30) + wobble(0.9, 6), case="a[b]*c d")))


def test_a_metric_whose_better_direction_is_not_known_is_told_without_one():
    (one,) = checked(nights(wobble(1.0, 30) + wobble(0.9, 6), metric="own", unit="x")).changes
    assert one.worse is None


def test_no_bisect_is_offered_where_the_commit_stayed_the_same():
    found = [one.model_copy(update={"commit": commit(0)}) for one in nights(wobble(1.0, 30) + wobble(1.03, 6))]
    told = checked(found)
    assert [one.command for one in told.changes] == [[]]
    assert told.exit_code == 1
    assert "no commit did it" in render(told)


def test_nothing_is_concluded_across_epochs():
    ratios = wobble(1.0, 20) + wobble(1.03, 20)
    found = checked(nights(ratios, epoch=lambda day: EPOCHS[day >= 20]))
    assert found.changes == []
    (standing,) = found.standings
    assert standing.low < 1.03 < standing.high


class Counted(list[int]):
    """A list that counts what is read of it."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        for one in super().__iter__():
            Counted.read += 1
            yield one


@pytest.mark.parametrize("nights_of_epoch", [10, 1000])
def test_what_is_read_of_a_series_grows_as_its_nights_do(monkeypatch: pytest.MonkeyPatch, nights_of_epoch: int) -> None:
    latest = module._latest
    monkeypatch.setattr(module, "_latest", lambda device: Counted(latest(device)))
    read = []
    for number in (100, 200):
        ratios = [*[None] * (number // 2), *[1.0, None] * (number // 4)]
        [device] = collect(nights(ratios, epoch=lambda day: f"{day // nights_of_epoch:016x}"))
        for curve in device.curves.values():
            curve.nights = Counted(curve.nights)
        Counted.read = 0
        check([device])
        read.append(Counted.read)
    assert 0 < read[1] <= 2 * read[0]


def test_an_epoch_that_comes_again_goes_on():
    ratios = wobble(1.0, 20) + wobble(1.5, 10) + wobble(1.03, 10)
    (one,) = checked(nights(ratios, epoch=lambda day: EPOCHS[20 <= day < 30])).changes
    assert (one.good, one.bad) == (commit(19).sha, commit(30).sha)


def test_old_proposals_are_not_told_again():
    ratios = wobble(1.0, 30) + wobble(1.02, 60)
    assert checked(nights(ratios)).changes == []
    assert len(checked(nights(ratios), last=90).changes) == 1


@pytest.mark.parametrize(
    ("level", "state"), [(1.09, "over"), (1.0, "within"), (1.05, "unknown"), (1.051, "unknown"), (0.9, "within")]
)
def test_the_distance_to_the_reference_is_told_against_its_limit(level, state):
    """By the nights' own answers: a mean beyond the limit by less than a night tells apart is no alert either."""
    found = checked(nights(wobble(level, 20)))
    (one,) = found.standings
    assert one.state == state
    assert one.limit == 0.05
    assert one.low < level < one.high
    assert found.exit_code == (state == "over")
    assert ("the last nights do not say" in render(found)) == (state == "unknown")


@settings(max_examples=50)
@given(histories())
def test_a_standing_is_over_where_there_is_an_alert(nights):
    found = checked(nights)
    alerts = {(over.case, over.metric) for over in found.over if over.alert and over.against == "reference"}
    over = {(one.case, one.metric) for one in found.standings if one.state == "over"}
    decided = {(one.case, one.metric) for one in found.standings if one.state in ("within", "unknown")}
    assert over <= alerts and not decided & alerts


def test_five_changes_of_less_than_two_percent_are_over_a_limit_of_five():
    ratios = [ratio for step in range(6) for ratio in wobble(1.018**step, 15)]
    found = checked(nights(ratios), last=100)
    assert len(found.changes) == 5
    assert [one.state for one in found.standings] == ["over"]


def test_a_limit_that_main_no_longer_has_judges_nothing():
    without = [night(30 + day, points=[point("sdpa/n=128", 1.07, reference=compared(1.07))]) for day in range(3)]
    assert checked(nights(wobble(1.07, 30))).exit_code == 1
    assert checked([*nights(wobble(1.07, 30)), *without]).exit_code == 0


def test_nights_without_an_answer_are_counted_and_the_case_is_named():
    found = checked(nights([*wobble(1.0, 10), *[None] * 8]))
    assert (found.answers, found.unanswered) == (10, 8)
    (one,) = found.silent
    assert (one.nights, one.reason) == (8, "the budget ended")
    (standing,) = found.standings
    assert standing.state == "silent"
    assert "the budget ended" in render(found)


def other_nights(*days):
    """Nights of a new epoch that know another case alone."""
    return [night(day, epoch=EPOCHS[1], points=[point(case="other")]) for day in days]


LOST = [night(day, epoch=EPOCHS[1], points=[point(reference=None)], error="no report") for day in range(5)]
GONE = "the night has nothing of it"
SKIPS = point(case="skips", last=Compared(class_="skipped"), reference=None)
SKIPS.value = SKIPS.scatter = None
NEVER = [point(metric="cycles", last=None, reference=None), point(case="new", reference=None)]


@pytest.mark.parametrize(
    ("found", "silent", "unasked"),
    [
        pytest.param([*nights(wobble(1.0, 10)), night(10, points=[])], [(1, GONE)], 0, id="gone"),
        pytest.param([*nights([1.1] * 9), *other_nights(9)], [(1, GONE)], 0, id="gone as an epoch begins"),
        pytest.param([*nights([1.1] * 9), *other_nights(*range(9, 16))], [], 1, id="gone for a week"),
        pytest.param(
            [*nights([1.0] * 8), night(8, points=[point(reference=None)])],
            [(1, "the reference has no answer")], 0, id="asked no longer",
        ),
        pytest.param(LOST, [(5, "no report")], 0, id="a new release's comparison lost"),
        pytest.param([night(day, points=[point(), SKIPS]) for day in range(9)], [], 1, id="skips itself"),
        pytest.param([night(day, points=[point(), *NEVER]) for day in range(9)], [], 2, id="asked never"),
    ],
)  # fmt: skip
def test_a_case_that_was_asked_is_silent_and_not_one_that_never_was(found, silent, unasked):
    told = checked(found)
    assert ([(one.nights, one.reason) for one in told.silent], told.unasked) == (silent, unasked)
    assert (f"{unasked} series without any ratio" in render(told)) == bool(unasked)


def test_a_case_without_an_answer_in_the_last_epoch_stands_nowhere():
    ratios = [*wobble(1.0, 10), *[None] * 3]
    found = checked(nights(ratios, epoch=lambda day: EPOCHS[day >= 10]))
    (one,) = found.standings
    assert (one.state, one.ratio) == ("silent", None)
    assert found.unanswered == 3


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (None, "no answer"),
        (Compared(class_="missing", reason="the reference lacks it"), "lacks it"),
        (Compared(class_="invalid", reason="outputs differ", ratio=Ratio(ratio=1, low=1, high=1, level=1, pairs=3)), "differ"),
        (Compared(class_="unchanged", ratio=Ratio(ratio=2, low=1, high=1.5, level=0.99, pairs=9)), "does not hold"),
        (Compared(class_="unchanged", ratio=Ratio(ratio=1, low=1, high=1, level=0, pairs=1)), "too few pairs"),
        (Compared(class_="unchanged", ratio=Ratio(ratio=1, low=1e-300, high=1e300, level=0.9, pairs=9)), "no bounds"),
        (Compared(class_="unchanged", ratio=Ratio(ratio=1, low=0.9, high=1.1, level=1, pairs=0)), "no pair"),
    ],
)  # fmt: skip
def test_what_is_no_answer_says_why(one, why):
    said = ratio_or_why(one)
    assert isinstance(said, str)
    assert why in said


def test_a_standard_error_is_that_of_the_interval():
    one = Compared(
        class_="unchanged", ratio=Ratio(ratio=1, low=math.exp(-0.01), high=math.exp(0.01), level=0.95, pairs=9)
    )
    assert ratio_or_why(one) == pytest.approx((0, -0.01, 0.01, 0.01 / 1.959964))
    proved = Compared(class_="unchanged", ratio=Ratio(ratio=1, low=1, high=1, level=1, pairs=0))
    assert ratio_or_why(proved) == (0.0, 0.0, 0.0, 0.0)


def test_machines_are_looked_at_apart():
    first, second = nights(wobble(1.0, 30)), nights(wobble(1.03, 30))
    both = [
        one.model_copy(update={"devices": {"cpu": name}, "run": f"{name[:1]}{one.run}", "epoch": epoch})
        for pair in zip(first, second, strict=True)
        for one, name, epoch in zip(pair, ("Alpha", "Beta"), EPOCHS, strict=True)
    ]
    found = checked(both)
    assert found.changes == []
    assert [one.device_name for one in found.standings] == ["Beta", "Alpha"]


def test_the_verb_ends_with_what_it_found(tmp_path):
    store = open_store("store", tmp_path)
    for one in nights(wobble(1.0, 20)):
        store.add(one)
    code, out, _ = perfci(tmp_path, "history", "check", "--store", "store")
    assert (code, out.splitlines()[0]) == (
        0, "20 nights, 1 series with 20 answers, 0 without in the latest epoch: 0 changes proposed, 0 over a limit",
    )  # fmt: skip
    (tmp_path / "store/nights/2026/11/foreign.json").write_text("{}")
    for one in nights(wobble(1.0, 20) + wobble(1.1, 5))[20:]:
        store.add(one)
    code, out, _ = perfci(tmp_path, "history", "check", "--store", "store", "--json")
    told = json.loads(out)
    assert code == 1
    assert [one["name"] for one in told["left_out"]] == ["nights/2026/11/foreign.json"]
    assert [one["state"] for one in told["standings"]] == ["over"]


def test_a_store_without_a_night_is_refused(tmp_path):
    code, _, said = perfci(tmp_path, "history", "check", "--store", ".")
    assert code == 3
    assert said.startswith("perfci: .: has no night (it is empty)") and len(said.splitlines()) == 1


def test_simulated_nights_are_documents_of_a_history():
    found = [Night.model_validate(one) for one in documents(replace(WHITE, cases=50, nights=40), 1)]
    assert len(found) == 40
    told = checked(found)
    assert told.series == 50
    assert len(told.silent) == 0


@pytest.mark.parametrize("before", [1, 12])
def test_the_last_night_over_the_limit_is_told_before_a_level_is_known(before):
    """One night is no level, and `within` would be no answer to who has seen it fail."""
    found = walk([*[1.0] * before, 1.19], creep=0.05)
    told = checked(found)
    (one,) = told.standings
    assert one.state == "unknown"
    day = at(before)[:10]
    assert [(over.against, over.alert) for over in told.over] == [("last", False), ("reference", False)]
    assert f"+19.0 % (±0.2) against v1.2, over its limit of 5 %, on one night so far, {day}" in render(told)
    assert told.exit_code == 0
    assert checked(walk([*[1.0] * before, 1.19, 1.0], creep=0.05)).over == []


def test_a_limit_over_on_two_nights_is_an_alert_and_told_once():
    told = checked(walk([*[1.0] * 3, 1.19, 1.19], creep=0.05))
    assert [(over.against, over.alert, over.bad) for over in told.over] == [
        ("last", True, commit(3).sha), ("reference", True, commit(3).sha),
    ]  # fmt: skip
    assert told.exit_code == 1
    assert "0 changes proposed, 2 over a limit" in render(told)
    assert f"+19.0 % (±0.3) against {commit(2).sha[:10]}, over its limit of 2 %, since {at(3)[:10]}" in render(told)
    decides = f"perfci bisect {commit(2).sha} {commit(3).sha} -k sdpa/n=128 --device cpu"
    assert f"  since {commit(3).sha[:10]}; to decide:\n  {decides}\n" in render(told)
    assert f"  perfci bisect --all {told.over[1].base} {commit(3).sha} -k sdpa/n=128" in render(told)
    told = checked(walk([1.0, *[1.19] * 9], creep=0.05))
    assert [one.state for one in told.standings] == ["over"]
    assert render(told).count("against v1.2") == 1


def test_an_alert_that_no_recent_night_knows_of_is_left_to_its_issue():
    found = walk([*[1.0] * 3, 1.19, 1.19])
    gone = [night(5 + day, points=[]) for day in range(7)]
    assert [len(checked([*found, *gone[:days]]).over) for days in (6, 7)] == [1, 0]
    assert checked([*found, night(5, epoch=EPOCHS[1], points=[point(last=None, reference=None)])]).over == []


def test_nights_of_two_devices_are_counted_once():
    found = nights([1.0, 1.0])
    both = [one.model_copy(update={"devices": {**one.devices, "cuda": "NVIDIA H200"}}) for one in found]
    assert checked(both).nights == 2


def test_a_night_that_went_wrong_does_not_silence_what_was_over():
    """Nine nights over the limit, then one without an answer, of another epoch since its environment is not known."""
    found = nights([1.1] * 9)
    assert checked(found).exit_code == 1
    found.append(night(9, epoch=EPOCHS[1], points=[], error="against the reference: no worker could be started"))
    told = checked(found)
    (silent,) = told.silent
    assert (silent.nights, silent.reason) == (1, "against the reference: no worker could be started")
    assert (told.unasked, told.unanswered, [one.state for one in told.standings]) == (0, 1, ["over"])
    assert told.exit_code == 1
    assert "over its limit of 5 %" in render(told)
