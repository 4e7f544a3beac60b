"""Alerts: two nights over begin one, two within end it, and what is not known counts for nothing."""

import math
import random
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfci.history.alert import Alerts, find_alerts
from perfci.history.document import Compared, Night, Reference
from perfci.history.limits import Distance
from perfci.history.series import collect
from perfci.history.store import open_store
from perfci.model.report import Class
from tests.history.nights import at, commit, night, point, ratio

CASE = "sdpa/n=128"
REFERENCE = Reference(name="v1.2", commit=commit(-30, "Release v1.2"))
OTHER = "fedcba9876543210"


def answer(value: float, limit: float = 0.02, half: float = 0.002) -> Compared:
    """As the judge does: over where all of the interval is, within likewise, else inconclusive."""
    class_: Class = "inconclusive"
    if value - half > 1 + limit:
        class_ = "regression"
    elif value + half < 1 + limit:
        class_ = "unchanged"
    return Compared(class_=class_, ratio=ratio(value, half), limit=limit)


def walk(speeds: Sequence[float | None], creep: float | None = None, **also: Any) -> list[Night]:
    """Nights of a main whose case takes so many times what the reference takes; None: the case is undecided.

    Each is compared with the commit before it, and with the reference where `creep` limits that distance.
    """
    found, before = [], 1.0
    for day, speed in enumerate(speeds):
        if speed is None:
            undecided = Compared(class_="inconclusive", limit=0.02)
            points = [point(CASE, last=undecided if day else None, reference=undecided)]
        else:
            last = answer(speed / before) if day else None
            points = [point(CASE, last=last, reference=answer(speed, creep) if creep else None)]
            before = speed
        found.append(night(day, points=points, **also))
    return found


def only(nights: Sequence[Night]) -> Alerts:
    [found] = find_alerts(collect(nights))
    return found


def counts(nights: Sequence[Night], *against: str) -> list[int]:
    """Alerts that are open after each night, of these limits or of all."""
    after = [only(nights[: number + 1]).open for number in range(len(nights))]
    return [sum(not against or alert.against in against for alert in alerts) for alerts in after]


def judged(*classes: Class, limit: float | None = None, reason: str = "", **also: Any) -> list[Night]:
    """Nights of which a class alone tells."""
    answers = [Compared(class_=class_, limit=limit, reason=reason) for class_ in classes]
    return [night(day, points=[point(CASE, last=one, reference=None, **also)]) for day, one in enumerate(answers)]


def test_creep_begins_on_the_second_night_over_and_ends_on_the_second_within() -> None:
    nights = walk([1.0, 1.07, 1.07, 1.07, 1.0, 1.0, 1.07, 1.07], creep=0.05)
    creep = [n.model_copy(update={"points": [p.model_copy(update={"last": None}) for p in n.points]}) for n in nights]
    assert counts(creep) == [0, 0, 1, 1, 1, 0, 0, 1]
    [alert] = only(creep[:4]).open
    assert (alert.against, alert.name, alert.base) == ("reference", "v1.2", REFERENCE.commit)
    assert (alert.good, alert.bad, alert.since, alert.begun) == (commit(0), commit(1), at(1), at(2))
    assert alert.change is not None and math.exp(alert.change.log) == pytest.approx(1.07)
    ended = only(creep[:6])
    assert [(one.since, one.ended) for one in ended.ended] == [(at(1), at(5))]
    assert only(creep).ended == [], "another stretch"
    assert (only(creep).begun, only(creep).told) == (at(7), at(7))


def test_a_number_that_the_next_night_does_not_confirm_is_no_alert() -> None:
    """Against the reference, which is a second measurement, the first night's was an accident."""
    nights = walk([1.0, 1.0, 1.0, 1.0, 1.0], creep=0.5)
    nights[2].points[0].last = answer(1.05)
    assert len(only(nights[:3]).once) == 1
    assert counts(nights) == [0, 0, 0, 0, 0]
    assert only(nights).once == []


def test_a_step_is_measured_from_the_commit_before_it_and_not_from_the_reference() -> None:
    nights = walk([1.04] * 5, creep=0.5)
    nights[2].points[0].last = answer(1.05)
    assert counts(nights) == [0, 0, 0, 0, 0]
    [alert] = only(walk([1.04, 1.04, 1.1, 1.1], creep=0.5)).open
    assert alert.change is not None and math.exp(alert.change.log) == pytest.approx(1.1 / 1.04)


def test_a_commit_against_itself_adds_nothing_to_the_distance() -> None:
    nights = walk([1.0, 1.05, 1.05])
    again = [
        night(day, commit=commit(2), last=commit(2), points=[point(CASE, last=answer(1.009), reference=None)])
        for day in (3, 4, 5)
    ]
    [alert] = only([*nights, *again]).open
    assert alert.change is not None and math.exp(alert.change.log) == pytest.approx(1.05)


def test_a_run_without_an_answer_begins_no_epoch() -> None:
    """It may have ended before it knew its environment."""
    error = night(3, error="no GPU", epoch=OTHER, points=[])
    [alert] = only([*walk([1.0, 1.05, 1.05]), error]).open
    assert alert.left == ""


def test_where_the_reference_is_too_noisy_the_nights_since_tell() -> None:
    nights = walk([1.0, 1.05, 1.05, 1.05, 1.0, 1.0], creep=0.5)
    for one, noise in zip(nights, [0.0, 0.01, -0.03, 0.02, -0.01, 0.0], strict=True):
        told = one.points[0].reference
        one.points[0].reference = Compared(class_="unchanged", ratio=ratio(told.ratio.ratio + noise, 0.06))
    assert counts(nights) == [0, 0, 1, 1, 1, 0]


def test_a_ratio_to_the_reference_counts_though_no_limit_asks_for_it() -> None:
    nights = walk([1.0] * 4, creep=0.5)
    nights[1].points[0].last = answer(1.05)
    for one in nights:
        told = one.points[0].reference
        one.points[0].reference = Compared(class_="inconclusive", ratio=told.ratio)
    assert counts(nights) == [0, 0, 0, 0]


def test_a_step_that_is_taken_back_in_part_ends_where_it_is_shown_to_be_within() -> None:
    nights = walk([1.0, 1.05, 1.05, 1.0199, 1.0199, 1.01, 1.01], creep=0.5)
    assert counts(nights) == [0, 0, 1, 1, 1, 1, 0]
    [alert] = only(nights[:5]).open
    assert alert.within == 0, "1.99 % of 2 %, and the interval reaches beyond"


def test_a_second_step_while_one_is_open_is_the_same_alert() -> None:
    nights = walk([1.0, 1.05, 1.05, 1.10, 1.10, 1.05, 1.05, 1.0, 1.0])
    assert counts(nights) == [0, 0, 1, 1, 1, 1, 1, 1, 0]
    [alert] = only(nights[:5]).open
    assert (alert.since, alert.base) == (at(1), commit(0))
    assert alert.change is not None and math.exp(alert.change.log) == pytest.approx(1.10)


def test_where_more_is_better_a_step_is_downward() -> None:
    nights = walk([1.0, 0.9, 0.9, 0.9, 1.0, 1.0])
    for one in nights[1:]:
        value = one.points[0].last.ratio.ratio
        one.points[0].last.class_ = "regression" if value < 0.95 else "improvement" if value > 1.05 else "unchanged"
    assert counts(nights) == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("class_", ["inconclusive", "invalid", "clock", "changed", "failed", "missing", "skipped"])
def test_nights_without_an_answer_count_neither_way(class_: Class) -> None:
    for value in (1.0, 1.5):
        told = Compared(class_=class_, ratio=ratio(value), limit=0.02)
        nights = walk([1.0, 1.07, 1.07, 1.07, 1.07, 1.0, 1.0, 1.0], creep=0.05)
        for day in (2, 4, 6):
            nights[day].points[0].last = nights[day].points[0].reference = told
        assert counts(nights[:3]) == [0, 0, 0]
        assert counts(nights, "reference") == [0, 0, 0, 1, 1, 1, 1, 0]
        assert only(nights[:5]) == only([*nights[:4], nights[4].model_copy(update={"points": []})])


def test_an_error_leaves_other_cases_their_answers_and_other_devices_count_neither_way() -> None:
    nights = walk([1.0, 1.07, 1.07, 1.07], creep=0.05)
    nights[2].error = "another case fails in both"
    assert counts(nights) == [0, 0, 2, 2], "its other points say what they say"
    nights[2].points = []
    assert counts(nights) == [0, 0, 0, 2]
    elsewhere = night(2.5, run="other", devices={"cpu": "AMD Ryzen"}, points=[point(CASE, 1.5)])
    assert [found.name for found in find_alerts(collect([*nights[:3], elsewhere]))] == ["AMD EPYC 9654", "AMD Ryzen"]
    assert find_alerts(collect([*nights, elsewhere]))[0] == only(nights)


def test_a_bound_is_followed_by_its_violations() -> None:
    nights = judged(
        "unchanged", "violation", "inconclusive", "violation", "unchanged", "unchanged", reason="12 ms, over 10 ms"
    )
    assert counts(nights) == [0, 0, 0, 1, 1, 0]
    [alert] = only(nights[:4]).open
    assert (alert.against, alert.good, alert.reason, alert.change) == ("bound", commit(0), "12 ms, over 10 ms", None)
    nights[4].points[0].last = Compared(class_="regression", limit=0.02)
    assert "bound" in [one.against for one in only(nights).open], "the worst class: of the bound nothing is known"


def test_a_violation_hides_no_step_and_no_creep() -> None:
    """Of several limits on a metric the worst class is recorded: the ratio still tells of the relative one."""
    nights = walk([1.0, 1.07, 1.07, 1.07, 1.03, 1.03], creep=0.05)
    for one in nights[1:4]:
        for told in (one.points[0].last, one.points[0].reference):
            told.class_ = "violation"
    assert sorted(one.against for one in only(nights[:3]).open) == ["bound", "last", "reference"]
    assert [one.against for one in only(nights).open] == ["last"]
    named = [n.model_copy(deep=True) for n in nights]
    for metric, known in (("range:encode", ["bound", "last", "reference"]), ("own", ["bound"])):
        for one in named:
            one.points[0].metric = metric  # of one that the policy declares nobody tells the direction
        assert sorted(one.against for one in only(named[:3]).open) == known


def test_a_step_from_nothing_has_no_ratio_and_is_followed_by_its_classes() -> None:
    """Spills: 0 bytes before, 64 since."""
    classes: list[Class] = ["unchanged", "regression", "unchanged", "unchanged", "improvement", "unchanged"]
    assert counts(judged(*classes, limit=0.0, metric="local_memory", unit="B")) == [0, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("known", [None, 42], ids=["by the nights since", "by the reference"])
def test_a_count_that_comes_back_to_what_it_was_is_within_a_limit_of_nothing(known: int | None) -> None:
    nights, before = [], 40
    for day, registers in enumerate([40, 48, 48, 40, 40]):
        class_: Class = "regression" if registers > before else "improvement" if registers < before else "unchanged"
        last = Compared(class_=class_, ratio=ratio(registers / before, 0), limit=0.0)
        reference = Compared(class_="inconclusive", ratio=ratio(registers / known, 0)) if known else None
        nights.append(night(day, points=[point(CASE, metric="registers", unit="", last=last, reference=reference)]))
        before = registers
    assert counts(nights) == [0, 0, 1, 1, 0]


def test_nothing_is_concluded_across_epochs_and_no_alert_vanishes() -> None:
    old = walk([1.0, 1.07, 1.07], creep=0.05)
    new = [n.model_copy(update={"epoch": OTHER}) for n in walk([1.0] * 3 + [1.07] * 3, creep=0.05)[3:]]
    new[0].points[0].last = answer(1.0)
    assert counts([*old[:2], new[0]]) == [0, 0, 0], "one night over in each"
    [creep, step] = sorted(only([*old, *new[:1]]).open, key=lambda one: one.against, reverse=True)
    assert (creep.against, creep.left, step.against, step.left) == ("reference", "", "last", at(3))
    within = [n.model_copy(update={"epoch": OTHER}) for n in walk([1.0] * 6, creep=0.05)[3:]]
    assert [(one.against, one.left) for one in only([*old, *within]).open] == [("last", at(3))], "the creep has ended"
    assert [one.against for one in only([*old, *within]).ended] == ["reference"]


def test_a_step_that_its_epoch_cannot_confirm_is_told() -> None:
    old = walk([1.0, 1.05], creep=0.5)
    new = [n.model_copy(update={"epoch": OTHER}) for n in walk([1.05] * 4, creep=0.5)[2:]]
    [once] = only([*old, *new]).once
    assert (once.left, once.bad, only([*old, *new]).open) == (at(2), commit(1), [])


def test_machines_that_take_turns_do_not_hide_each_others_creep() -> None:
    nights = walk([1.0] + [1.07] * 6, creep=0.05)
    for day in (2, 4, 6):  # with another driver it is within
        nights[day].epoch = OTHER
        nights[day].points[0].reference = answer(1.0, 0.05)
        nights[day].points[0].last = None
    assert counts(nights, "reference") == [0, 0, 0, 1, 1, 1, 1]


def test_of_a_run_its_highest_attempt_with_answers_counts(tmp_path: Any) -> None:
    store = open_store(str(tmp_path))
    first, second, third = walk([1.0, 1.07, 1.07], creep=0.05)
    for one in (first, second, second.model_copy(update={"attempt": 2, "started": at(1.5)}), third):
        store.add(one)
    assert [(one.run, one.attempt) for one in store.runs()] == [("run0", 1), ("run1", 2), ("run2", 1)]
    again = walk([1.0, 1.0], creep=0.05)[1].model_copy(update={"attempt": 10, "started": at(2.5)})
    store.add(again)
    assert [one.attempt for one in store.runs()] == [1, 1, 10]
    assert only([*store.runs()]).open == []


UNDECIDED = [point(CASE, last=None, reference=Compared(class_="inconclusive", ratio=ratio(1.0), limit=0.05))]
SPEECHLESS = [point(CASE, last=None, reference=Compared(class_="failed", reason="lost"))]


@pytest.mark.parametrize(
    "lost",
    [
        {"error": "the GPU fell off the bus", "points": []},
        {"error": "against the reference: no worker started", "points": SPEECHLESS},
        {"points": SPEECHLESS},
        {"points": UNDECIDED},
        {"points": []},
        {"error": "the budget ended"},
    ],
    ids=["error", "error of the case", "no ratio", "undecided", "nothing", "error beside answers"],
)
def test_an_attempt_with_less_than_answers_silences_no_alert(tmp_path: Any, lost: dict[str, Any]) -> None:
    store = open_store(str(tmp_path))
    first, second, third = walk([1.0, 1.07, 1.07], creep=0.05)
    silent = third.model_copy(update={"attempt": 2, "started": at(2.5), **lost})
    for one in (first, second, third, silent, night(3, points=[], error="no GPU")):
        store.add(one)
    assert [(one.run, one.attempt) for one in store.runs()] == [("run0", 1), ("run1", 1), ("run2", 1), ("run3", 1)]
    assert only([*store.runs()]).open
    store.add(third.model_copy(update={"attempt": 3, "started": at(2.6)}))
    assert [one.attempt for one in store.runs()] == [1, 1, 3, 1], "with answers it counts"


# Any history

_LOGS = st.floats(-5, 5)
_WIDTHS = st.floats(0, 1)
_DISTANCES = st.builds(lambda log, below, above: Distance(log, log - below, log + above), _LOGS, _WIDTHS, _WIDTHS)


@given(_DISTANCES, _DISTANCES, st.floats(0, 0.9))
def test_distances_add_up_and_turn_around(one: Distance, other: Distance, limit: float) -> None:
    both = one.times(other)
    assert both.log == one.log + other.log and both.low <= both.log <= both.high
    assert both.high - both.low >= max(one.high - one.low, other.high - other.low) - 1e-12
    assert both.high - both.low <= one.high - one.low + other.high - other.low + 1e-12
    assert one.back().back() == one
    assert one.times(Distance(0.0, 0.0, 0.0)).log == one.log
    if one.holds(limit, "lower", shown=True) == "over":
        assert one.log >= math.log1p(limit) and one.low > 0
    if one.holds(limit, "lower", shown=False) == "over":
        assert one.low >= math.log1p(limit) and one.holds(limit, "lower", shown=True) == "over"
    if one.holds(limit, "lower", shown=True) == "within":
        assert one.high <= math.log1p(limit) + 1e-9 and one.holds(limit, "lower", shown=False) == "within"
    if one.holds(limit, "higher", shown=True) == "over":
        assert math.exp(one.log) <= (1 - limit) * (1 + 1e-12) and one.high < 0


@st.composite
def mains(draw: st.DrawFn) -> tuple[list[float], int, float]:
    """Nights before a step, at it and behind it; which night it is, and its height in limits."""
    before, after = draw(st.integers(1, 6)), draw(st.integers(2, 12))
    height = draw(st.floats(1.5, 10))
    return [1.0] * before + [1 + height * 0.02] * after, before, height


@settings(max_examples=100)
@given(mains(), st.integers(0, 2**32 - 1), st.booleans())
def test_a_step_is_one_alert_from_its_second_night_on(
    main: tuple[list[float], int, float], seed: int, chained: bool
) -> None:
    """Whatever the noise, at a tenth of the limit a pair of commits."""
    speeds, step, _ = main
    random_ = random.Random(seed)
    nights, sd = [], 0.0008
    for day, speed in enumerate(speeds):
        last = answer(speed / speeds[day - 1] * math.exp(random_.gauss(0, sd))) if day else None
        reference = answer(speed * math.exp(random_.gauss(0, sd)), 0.5)
        nights.append(night(day, points=[point(CASE, last=last, reference=None if chained else reference)]))
    assert counts(nights[: step + 2]) == [0] * (step + 1) + [1]
    found = only(nights)
    [alert] = found.open
    assert (alert.against, alert.since, alert.begun) == ("last", at(step), at(step + 1))
    assert (alert.good, alert.base, alert.bad) == (commit(step - 1), commit(step - 1), commit(step))
    assert alert.change is not None and math.exp(alert.change.log) == pytest.approx(speeds[-1], abs=0.02)
    assert found.ended == found.once == []
    for day, last in ((len(speeds), 1 / speeds[-1]), (len(speeds) + 1, 1.0)):
        reference = None if chained else answer(1.0, 0.5)
        nights.append(night(day, points=[point(CASE, last=answer(last), reference=reference)]))
    assert [one.ended for one in only(nights).ended] == [at(len(speeds) + 1)]


@st.composite
def histories(draw: st.DrawFn) -> list[Night]:
    """Nights that say anything at all."""
    classes = get_args(Class)

    def side() -> Compared | None:
        if draw(st.integers(0, 5)) == 0:
            return None
        measured = (
            ratio(draw(st.sampled_from([0.5, 0.99, 1.0, 1.01, 1.05, 3.0, 1e300]))) if draw(st.booleans()) else None
        )
        return Compared(
            class_=draw(st.sampled_from(classes)), ratio=measured, limit=draw(st.sampled_from([None, 0.0, 0.02, 1.5]))
        )

    found = []
    for day in range(draw(st.integers(1, 14))):
        points = [point(case, last=side(), reference=side()) for case in ("a", "b") if draw(st.integers(0, 4))]
        also: dict[str, Any] = {"epoch": draw(st.sampled_from(["0" * 16, "0" * 16, OTHER])), "points": points}
        if draw(st.integers(0, 6)) == 0:
            also["error"] = "no GPU"
        if draw(st.integers(0, 6)) == 0:
            also |= {"last": None, "reference": None}
        found.append(night(day, **also))
    return found


@settings(max_examples=150)
@given(histories())
def test_every_alert_has_two_nights_over_in_one_epoch(nights: list[Night]) -> None:
    started = {one.started: one for one in nights}
    for number in range(len(nights)):
        found = only(nights[: number + 1])
        for one in (*found.open, *found.ended):
            assert one.since < one.begun <= one.told
            assert started[one.since].epoch == started[one.begun].epoch == one.epoch
            assert started[one.since].points and started[one.begun].points
            assert one.bad == started[one.since].commit
        assert all(one.ended and one.ended > one.begun for one in found.ended)
        assert not any(one.ended for one in found.open) and not any(one.begun for one in found.once)
        keys = [(one.case, one.metric, one.against, one.epoch) for one in found.open]
        assert len(keys) == len(set(keys))


@settings(max_examples=100)
@given(histories(), st.data())
def test_nights_that_know_nothing_change_nothing_wherever_they_stand(nights: list[Night], data: st.DataObject) -> None:
    where = data.draw(st.integers(0, len(nights)))
    silent = Compared(class_="inconclusive", limit=0.02)
    near = [one for one in (*nights[:where][::-1], *nights[where:]) if not one.error or one.points]
    before = (near or nights)[0]
    nothing = night(
        where - 0.5, run="nothing", epoch=before.epoch, commit=before.commit, last=before.last,
        points=[point(case, last=silent, reference=silent) for case in ("a", "b")],
    )  # fmt: skip
    with_it = [*nights[:where], nothing, *nights[where:]]
    assert only(with_it) == only(nights)
