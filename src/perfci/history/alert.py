"""Alerts: what main is over on two nights in a row, since when, and what has come back. Pure.

A night answers for a limit of a case in one of three ways: over it, within it, or nothing known (undecided, failed, not
measured; the run an error). Two nights over in a row begin an alert, two nights within in a row end it; nights between
them that know nothing do not count either way.

Three kinds of limit are followed, each by itself, and each epoch by itself:

- `reference`: the distance to the reference. Each night answers for itself.
- `bound`: an absolute limit. So, too.
- `last`: a step. Only one night compares main with the commit before it; from the next night on both sides of that
  comparison have the step. What is asked from then on is the distance to the commit before the step, from ratios that
  were measured side by side: of tonight's commit and of that one, each to the reference, which is a second measurement;
  where that has no answer, the product of the ratios from night to night since.

Of such a distance: over the limit where the estimate is, and all of its interval is for the worse, since that night
only confirms what a test has shown; within the limit where all of the interval is; else nothing is known.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from perfci.history.document import ANSWERED, Commit, Compared, Instant, Night, Point, Ratio
from perfci.model.base import DeviceKind
from perfci.model.metrics import known_metric
from perfci.model.report import Class
from perfci.stats.decide import margin

Against = Literal["last", "reference", "bound"]
NIGHTS = 2
"""In a row, to begin an alert and to end it."""
_COMMITS = 32
"""For which distances are kept: main is compared with the commit recorded last, which is one of the newest."""
_WITHIN: frozenset[Class] = frozenset({"unchanged", "improvement"})
_MEASURED: frozenset[Class] = ANSWERED | {"inconclusive"}
"""Classes whose ratio is one: `invalid`, `clock` and `changed` say that it is not to be believed."""


class Distance(NamedTuple):
    """A logarithm of a ratio, with its interval."""

    log: float
    low: float
    high: float

    @classmethod
    def of(cls, ratio: Ratio) -> "Distance | None":
        """Return the logarithms of a ratio; None where its interval does not hold it."""
        if not ratio.low <= ratio.ratio <= ratio.high:
            return None
        return cls(math.log(ratio.ratio), math.log(ratio.low), math.log(ratio.high))

    def times(self, other: "Distance") -> "Distance":
        """Return the distance over both, which were measured apart: their widths add as squares do."""
        log = self.log + other.log
        below = math.hypot(self.log - self.low, other.log - other.low)
        return Distance(log, log - below, log + math.hypot(self.high - self.log, other.high - other.log))

    def back(self) -> "Distance":
        """Return the distance the other way."""
        return Distance(-self.log, -self.high, -self.low)

    def is_over(self, limit: float, worse: int) -> bool | None:
        """Tell whether this is over a relative `limit`; None where that is not known. `worse`: 1 where a larger ratio
        is worse, -1 where a smaller one is."""
        one, bound = (self, margin(limit, "lower")) if worse > 0 else (self.back(), margin(limit, "higher"))
        if one.log >= bound and one.low > 0:
            return True
        return False if one.high < bound else None


@dataclass
class Alert:
    """A limit of a case that main is over, or was."""

    device: DeviceKind
    case: str
    metric: str
    unit: str
    against: Against
    epoch: str
    """In which it began."""
    good: Commit | None
    """The newest commit before it that is known to be within; None where none is."""
    bad: Commit
    """The first commit that was over."""
    since: Instant
    """The first night over it."""
    begun: Instant | Literal[""] = ""
    """The night that confirmed it; empty until then."""
    ended: Instant | Literal[""] = ""
    """The night after which it was no alert any more."""
    told: Instant = ""
    """The newest night with an answer."""
    base: Commit | None = None
    """The commit that the change is measured from: before the step, or the reference; None of a bound."""
    name: str = ""
    """The reference's, of an alert against it."""
    change: Distance | None = None
    """From `base` to the newest commit with an answer; None where no ratio tells."""
    limit: float | None = None
    """The relative limit; None of a bound."""
    value: float | None = None
    """Of the newest commit with an answer, in `unit`."""
    reason: str = ""
    """Why it is over a bound, as the newest such night says."""
    within: int = 0
    """Nights within in a row."""
    left: Instant | Literal[""] = ""
    """Of a step: the night with which another epoch took over. What it is measured from was not measured there."""


@dataclass(frozen=True)
class Alerts:
    """The newest stretch of a device's alerts: from the first of them until none is left."""

    device: DeviceKind
    name: str
    """Of the device."""
    open: list[Alert]
    ended: list[Alert]
    once: list[Alert]
    """Over on one night so far, which is no alert yet; of any stretch. A step on the last night of an epoch, which the
    epoch after it cannot confirm, is among them for as long as that is the newest."""

    @property
    def begun(self) -> Instant | Literal[""]:
        """When the newest alert of the stretch began; empty where there never was one."""
        return max((one.begun for one in (*self.open, *self.ended)), key=moment, default="")

    @property
    def told(self) -> Instant | Literal[""]:
        """The newest night that says something of the stretch; empty where there never was an alert."""
        return max((one.told for one in (*self.open, *self.ended)), key=moment, default="")


def find_alerts(nights: Iterable[Night]) -> list[Alerts]:
    """Return what `nights`, in the order of their start, say of each device that they name, by kind and name.

    They are to be of one attempt a run (`Store.runs`), and are not kept.
    """
    devices: dict[tuple[DeviceKind, str], _Device] = {}
    for night in nights:
        for kind, name in night.devices.items():
            devices.setdefault((kind, name), _Device(kind, name)).add(night)
    return [devices[key].found() for key in sorted(devices)]


def moment(instant: str) -> str:
    """Return an instant as all are written alike: the earlier one sorts first, and none before any."""
    return instant.replace("+00:00", "Z")


def _place(one: Alert) -> tuple[str, str, str, str]:
    return one.case, one.metric, one.against, moment(one.since)


class _Device:
    """The limits of one device, night after night."""

    def __init__(self, kind: DeviceKind, name: str) -> None:
        self.kind, self.name = kind, name
        self.limits: dict[tuple[str, str, type, str], _Limit] = {}
        """By case, metric and kind of limit; a step's by its epoch, too."""
        self.epochs: list[tuple[str, Instant]] = []
        """Epoch and start of each night that has an answer."""

    def add(self, night: Night) -> None:
        """Take the next night. Of one with an error the points that it has say what they say, each by its own class."""
        if not night.error or night.points:
            self.epochs.append((night.epoch, night.started))
        for point in night.points:
            if point.device != self.kind:
                continue
            for kind in _KINDS:
                key = (point.case, point.metric, kind, night.epoch if kind is _Step else "")
                if key not in self.limits:
                    self.limits[key] = kind()
                one = self.limits[key]
                one.measure(night, point)
                if (over := one.answer(night, point)) is not None:
                    one.tell(night, point, over)

    def found(self) -> Alerts:
        """Return what is known after all nights."""
        stretch: list[Alert] = []
        begun = [one for limit in self.limits.values() for one in limit.begun]
        for one in sorted(begun, key=lambda one: (moment(one.begun), *_place(one))):
            if all(other.ended and moment(other.ended) < moment(one.begun) for other in stretch):
                stretch = []
            stretch.append(one)
            one.left = "" if one.ended or one.against != "last" else self._left(one.epoch)
        once = [one for limit in self.limits.values() for one in limit.once.values()]
        for one in once:
            one.left = self._left(one.epoch)
        now = self._since()
        once = [one for one in once if not one.left or (one.against == "last" and one.left == now)]
        once.sort(key=_place)
        ended = [one for one in stretch if one.ended]
        return Alerts(self.kind, self.name, [one for one in stretch if not one.ended], ended, once)

    def _left(self, epoch: str) -> Instant | Literal[""]:
        """Return the start of the first night behind the last one of `epoch`; empty where there is none."""
        after = ""
        for other, started in reversed(self.epochs):
            if other == epoch:
                break
            after = started
        return after

    def _since(self) -> Instant | Literal[""]:
        """Return the start of the first of the newest nights, which are of one epoch; empty where there is none."""
        since = ""
        for epoch, started in reversed(self.epochs):
            if epoch != self.epochs[-1][0]:
                break
            since = started
        return since


@dataclass
class _Limit:
    """One limit of a case: nights over and within it. Those of one epoch make a row."""

    against: Against
    once: dict[str, Alert] = field(default_factory=dict)
    """Epoch → over on one night."""
    within: dict[str, int] = field(default_factory=dict)
    """Epoch → nights within since the last one over, of any epoch."""
    good: dict[str, Commit] = field(default_factory=dict)
    """Epoch → the newest commit within."""
    begun: list[Alert] = field(default_factory=list)
    """Alerts, oldest first; all but the last have ended."""

    @property
    def open(self) -> Alert | None:
        """The alert that has not ended."""
        return self.begun[-1] if self.begun and not self.begun[-1].ended else None

    def measure(self, night: Night, point: Point) -> None:
        """Keep what was measured, whatever it answers."""

    def answer(self, night: Night, point: Point) -> bool | None:
        """Tell whether main is over the limit; None where that is not known."""
        raise NotImplementedError  # each kind of limit has its own

    def update(self, alert: Alert, night: Night, point: Point) -> None:
        """Write down what a night with an answer says of an alert."""
        raise NotImplementedError  # each kind of limit has its own

    def first(self, night: Night) -> Commit | None:
        """Return the newest commit that is known to be within, on the first night over."""
        return self.good.get(night.epoch)

    def tell(self, night: Night, point: Point, over: bool) -> None:
        """Count a night with an answer."""
        epoch, alert = night.epoch, self.open
        if over:
            self.within.clear()
            if alert is None:
                alert = self.once.pop(epoch, None)
                if alert is not None:
                    alert.begun = night.started
                    self.begun.append(alert)
                else:
                    alert = self.once[epoch] = Alert(
                        point.device, point.case, point.metric, point.unit, self.against, epoch,
                        good=self.first(night), bad=night.commit, since=night.started,
                    )  # fmt: skip
        else:
            self.within[epoch] = self.within.get(epoch, 0) + 1
            self.good[epoch] = night.commit
            self.once.pop(epoch, None)
        if alert is not None:
            alert.told, alert.value, alert.within = night.started, point.value, max(self.within.values(), default=0)
            self.update(alert, night, point)
            if alert.within >= NIGHTS:
                alert.ended = night.started
                self.within.clear()
                self.once.clear()


class _ToReference(_Limit):
    """The distance to the reference."""

    def __init__(self) -> None:
        super().__init__("reference")

    def answer(self, night: Night, point: Point) -> bool | None:
        return None if night.reference is None else _shown(point.reference, point.metric)

    def update(self, alert: Alert, night: Night, point: Point) -> None:
        assert point.reference is not None and night.reference is not None
        alert.base, alert.name = night.reference.commit, night.reference.name
        alert.change, alert.limit = _distance(point.reference), point.reference.limit


class _Bound(_Limit):
    """An absolute limit, which is of main's value alone: either comparison tells of it."""

    def __init__(self) -> None:
        super().__init__("bound")

    def answer(self, night: Night, point: Point) -> bool | None:
        classes = {one.class_ for one in (point.last, point.reference) if one is not None}
        if "violation" in classes:
            return True
        return False if classes & _WITHIN else None  # beside a regression it may have no answer

    def update(self, alert: Alert, night: Night, point: Point) -> None:
        told = [one.reason for one in (point.last, point.reference) if one is not None and one.class_ == "violation"]
        alert.reason = told[0] if told else alert.reason


class _Step(_Limit):
    """A step: what main is over the limit from the commit before it, within one epoch."""

    def __init__(self) -> None:
        super().__init__("last")
        self.to_reference: dict[str, Distance] = {}
        """Of the newest commits: commit → its distance to the reference."""
        self.before: Distance | None = None
        """The same of the commit before the step, as it was measured before the step was seen."""
        self.to_base: dict[str, Distance] = {}
        """Commit → its distance to the commit before the step, by those between them."""
        self.base: Commit | None = None
        self.limit: float | None = None
        self.worse = 0
        """1 where a larger ratio is worse, -1 where a smaller one is; 0 where the step has no ratio."""
        self.over = False
        """Of a step without a ratio: is it still there."""
        self.change: Distance | None = None

    def measure(self, night: Night, point: Point) -> None:
        commit, last, reference = night.commit.sha, _distance(point.last), _distance(point.reference)
        if reference is not None:
            self.to_reference.pop(commit, None)
            self.to_reference[commit] = reference
            if len(self.to_reference) > _COMMITS:
                del self.to_reference[next(iter(self.to_reference))]
        if last is not None and night.last is not None and commit != night.last.sha in self.to_base:
            self.to_base[commit] = self.to_base[night.last.sha].times(last)

    def answer(self, night: Night, point: Point) -> bool | None:
        last = point.last if night.last is not None else None
        step = _shown(last, point.metric) is True
        begins = step and not (self.open or self.once)
        if begins:
            self._begin(night, point)
        elif not (self.open or self.once):
            return None
        if last is not None and last.class_ in ANSWERED and last.limit is not None:
            self.limit = last.limit
        if not self.worse:
            return self._by_class(last)
        found = [_distance(last)] if begins else [*self._changes(night, point)]
        answers = [(one.is_over(self.limit, self.worse), one) for one in found if one and self.limit is not None]
        over, change = next((one for one in answers if one[0] is not None), (None, None))
        self.change = change or (found[0] if step and found else self.change)
        return True if step else over

    def _begin(self, night: Night, point: Point) -> None:
        last, self.base = _distance(point.last), night.last
        self.worse = 0 if last is None or not last.log else int(math.copysign(1, last.log))
        self.to_base, self.before = {}, None
        if last is not None and night.last is not None:
            self.before = self.to_reference.get(night.last.sha)
            self.to_base = {night.last.sha: Distance(0.0, 0.0, 0.0), night.commit.sha: last}

    def _changes(self, night: Night, point: Point) -> Iterator[Distance]:
        """Yield the distances from the commit before the step that tonight measured, that by the reference first."""
        one, here = point.reference, _distance(point.reference)
        measured = one is not None and (one.class_ in ANSWERED or one.limit is None)  # the ratio, whatever was asked
        if measured and here is not None and self.before is not None:
            yield here.times(self.before.back())
        if point.last is not None and point.last.class_ in ANSWERED and night.commit.sha in self.to_base:
            yield self.to_base[night.commit.sha]

    def _by_class(self, last: Compared | None) -> bool | None:
        """Tell whether a step without a ratio, such as from 0 bytes to 64, is still there."""
        if (now := _shown(last, "")) is None:
            return None
        self.over = now or (self.over and last is not None and last.class_ == "unchanged")
        return self.over

    def first(self, night: Night) -> Commit | None:
        return self.base

    def update(self, alert: Alert, night: Night, point: Point) -> None:
        alert.base, alert.change, alert.limit = self.base, self.change, self.limit


_KINDS: tuple[type[_ToReference] | type[_Bound] | type[_Step], ...] = (_Step, _ToReference, _Bound)


def _shown(one: Compared | None, metric: str) -> bool | None:
    """Tell whether a change was shown to be over its limit, or within it; None where that is not known.

    A violation says nothing of the relative limit on the same metric: there its ratio must, all of the interval.
    """
    if one is None or one.class_ != "violation":
        return None if one is None or one.class_ not in ANSWERED else one.class_ == "regression"
    distance, known = _distance(one), known_metric(metric)
    if distance is None or one.limit is None or known is None or known.better is None:
        return None
    worse, bound = distance if known.better == "lower" else distance.back(), margin(one.limit, known.better)
    return True if worse.low > bound else False if worse.high < bound else None


def _distance(one: Compared | None) -> Distance | None:
    if one is None or one.ratio is None or one.class_ not in _MEASURED:
        return None
    return Distance.of(one.ratio)
