"""The state of a history.

Nothing is concluded across devices and epochs, and nothing accused: a bisect between the two commits of a change
decides.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfci.history.alert import Alerts, bisect, find_alerts, moment
from perfci.history.limits import HeldAgainst, Holds, direction
from perfci.history.series import Curve, Device, Key
from perfci.history.stores.base import Fault
from perfci.model.base import DeviceKind, Document
from perfci.model.metrics import decided_by_pairs
from perfci.stats.changes import RECENT, Change, Scanned, scan
from perfci.stats.segments import LEVEL

LAST = 30
"""Nights whose proposals are told."""

State = Literal["over", "within", "unknown", "silent", "unlimited"]


class _OfCase(Document):
    """Of a metric of a case on a device."""

    case: str
    metric: str
    device: DeviceKind
    device_name: str


class Proposal(_OfCase):
    """A change that is proposed."""

    epoch: str
    reference: str
    kind: Literal["step", "drift"]
    """A drift is no single commit's."""
    worse: bool | None
    """None without a known better direction."""
    change: float
    """Ratio of the level after to that before."""
    low: float
    high: float
    level: float
    """Coverage of the interval."""
    good: str
    """The last commit recorded before it."""
    bad: str
    """The first commit recorded behind it."""
    since: str
    """When `bad` was measured."""
    known: str
    """The night of its first proposal."""
    command: list[str]
    """The bisect that decides, as words; empty where `good` is `bad`: no commit changed it."""


class Standing(_OfCase):
    """Where a metric of a case stands to the reference."""

    reference: str
    state: State
    """`over` where two nights in a row are, until two are within; `within` where the last night with an answer is;
    `unknown` where neither; `silent` without a ratio of late; `unlimited` without a limit."""
    ratio: float | None = None
    """By its last answers since the last change; None without any in this epoch."""
    low: float | None = None
    high: float | None = None
    level: float = LEVEL
    limit: float | None
    """Relative, on the worse side; None without."""
    nights: int = 0
    """Answers that it rests on."""
    answered: str = ""
    """The night of the last answer."""
    commit: str = ""
    """Main on that night."""
    reason: str = ""
    """Why there is no answer of late."""


class Over(_OfCase):
    """A limit that main is over by one of the last seven nights of the epoch."""

    against: HeldAgainst
    """`last` of a step, `reference`, or `bound` of an absolute limit."""
    alert: bool
    """Two nights in a row are over it."""
    since: str
    """The first night over it."""
    good: str
    """The newest commit before that is known to be within."""
    bad: str
    """The first commit that was over."""
    base: str
    """Commit that the change is measured from; empty of a bound."""
    reference: str
    ratio: float | None
    """To `base`; None of a bound, and without a ratio."""
    low: float | None
    high: float | None
    limit: float | None
    """Relative; None of a bound."""
    reason: str
    """Why it is over a bound."""
    command: list[str]
    """The bisect that decides, as words; empty where no commit before is known, or pairs do not decide the metric."""


class Silent(_OfCase):
    """A metric of a case without an answer on the last night of its device."""

    nights: int
    """Of the epoch, since its last answer."""
    reason: str


class Left(Document):
    """A document of the store that was left out."""

    name: str
    reason: str


class HistoryCheck(Document):
    """The answer of `perfci history check`."""

    kind: Literal["perfci-history-check"] = "perfci-history-check"
    version: Literal[1] = 1
    nights: int
    series: int
    """Metrics of cases on devices."""
    unasked: int
    """Not compared with the reference: it or main lacks the case, or nothing asks."""
    answers: int
    unanswered: int
    """Missing on nights of the last epochs."""
    changes: list[Proposal]
    """Latest first."""
    standings: list[Standing]
    """Of every series that was ever compared with a reference, those over first."""
    over: list[Over]
    """Alerts first."""
    silent: list[Silent]
    left_out: list[Left]

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where something is proposed, or over a limit on two nights in a row."""
        return 1 if self.changes or any(over.alert for over in self.over) else 0


@dataclass(frozen=True)
class ScannedSeries:
    """A series of one epoch, nights of its device, and proposals."""

    curve: Curve
    scanned: Scanned
    nights: Sequence[int]
    """Columns of what was scanned."""


def epochs(device: Device) -> dict[str, list[int]]:
    """Return epoch → nights, in the order of their first."""
    found: dict[str, list[int]] = {}
    for index, head in enumerate(device.heads):
        found.setdefault(head.epoch, []).append(index)
    return found


def scanned(device: Device) -> Iterator[tuple[str, Key, ScannedSeries]]:
    """Yield every series of every epoch with an answer."""
    answered: dict[tuple[str, str], list[tuple[Key, list[int]]]] = {}
    for key, curve in sorted(device.curves.items()):
        places: dict[str, list[int]] = {}
        for place, night in enumerate(curve.nights):
            places.setdefault(device.heads[night].epoch, []).append(place)
        for epoch, own in places.items():
            answered.setdefault((epoch, key[1]), []).append((key, own))
    metrics = sorted({metric for _, metric in device.curves})
    for epoch, nights in epochs(device).items():
        column = {night: number for number, night in enumerate(nights)}
        for metric in metrics:
            series = answered.get((epoch, metric), [])
            x = np.full((len(series), len(nights)), np.nan)
            error = x.copy()
            for row, (key, own) in enumerate(series):
                curve = device.curves[key]
                for place in own:
                    at = column[curve.nights[place]]
                    x[row, at], error[row, at] = curve.x[place], curve.error[place]
            for (key, _), told in zip(series, scan(x, error), strict=True):
                yield epoch, key, ScannedSeries(device.curves[key], told, nights)


def check(devices: Iterable[Device], left_out: Iterable[Fault] = (), last: int = LAST) -> HistoryCheck:
    """Return what the history says. `last`: nights whose proposals are told."""
    found = HistoryCheck(
        nights=0, series=0, unasked=0, answers=0, unanswered=0, changes=[], standings=[], over=[], silent=[],
        left_out=[Left(name=fault.name, reason=fault.reason) for fault in left_out],
    )  # fmt: skip
    runs: set[tuple[str, str]] = set()
    for device in devices:
        runs |= {(head.started, head.run) for head in device.heads}
        found.series += len(device.curves)
        found.answers += sum(len(curve.nights) for curve in device.curves.values())
        nights = _latest(device)
        latest = device.heads[nights[0]].epoch
        recent = len(device.heads) - last
        (alerts,) = find_alerts([device])
        over = [*_over(device, alerts, nights)]
        found.over += over
        holds = _holds(device, alerts, over, nights)
        standing: set[Key] = set()
        for epoch, key, one in scanned(device):
            found.changes += [
                _change(device, one, change) for change in one.scanned.changes if one.nights[change.known] >= recent
            ]
            if epoch == latest:
                standing.add(key)
                _stand(found, device, one.curve, one, nights, holds)
        for key in sorted(device.curves.keys() - standing):
            _stand(found, device, device.curves[key], None, nights, holds)
    found.nights = len(runs)
    found.over.sort(key=lambda over: not over.alert)
    found.changes.sort(key=lambda one: (one.known, abs(math.log(one.change))), reverse=True)
    order: dict[State, int] = {"over": 0, "silent": 1, "unknown": 2, "within": 3, "unlimited": 4}
    found.standings.sort(key=lambda one: (order[one.state], -abs(math.log(one.ratio or 1)), one.case))
    return found


def _over(device: Device, alerts: Alerts, nights: Sequence[int]) -> Iterator[Over]:
    for alert in (*alerts.open, *alerts.once):
        if alert.left or not _is_recent(alert.told, device, nights):
            continue
        ratio, low, high = (None, None, None) if alert.change is None else alert.change.ratios
        before = (alert.base or alert.good) if decided_by_pairs(alert.metric) else None
        commits = (before.sha, alert.bad.sha) if before is not None else ("", "")
        yield Over(
            case=alert.case, metric=alert.metric, device=device.kind, device_name=device.name, against=alert.against,
            alert=bool(alert.begun), since=alert.since, good=alert.good.sha if alert.good else "", bad=alert.bad.sha,
            base=alert.base.sha if alert.base else "", reference=alert.name, ratio=ratio, low=low, high=high,
            limit=alert.limit, reason=alert.reason,
            command=bisect(alert.case, alert.metric, device.kind, *commits, several=alert.against == "reference"),
        )  # fmt: skip


def _is_recent(instant: str, device: Device, nights: Sequence[int]) -> bool:
    return moment(instant) >= moment(device.heads[nights[-RECENT:][0]].started)


def _holds(device: Device, alerts: Alerts, over: Iterable[Over], nights: Sequence[int]) -> dict[Key, Holds]:
    """Limits to the reference by the last seven nights of the epoch; over on one night so far, nothing is known."""
    latest = device.heads[nights[0]].epoch
    holds: dict[Key, Holds] = {
        (case, metric): "within"
        for (case, metric, epoch), night in alerts.within.items()
        if epoch == latest and _is_recent(night, device, nights)
    }
    told = [limit for limit in over if limit.against == "reference"]
    return holds | {(limit.case, limit.metric): "over" if limit.alert else "unknown" for limit in told}


def _latest(device: Device) -> list[int]:
    spoken = [night for curve in device.curves.values() for night in (*curve.values, *curve.nights, *curve.silent)]
    last = max(spoken, default=len(device.heads) - 1)
    return sorted({*epochs(device)[device.heads[last].epoch], *range(last + 1, len(device.heads))})


def _is_unasked(device: Device, curve: Curve, nights: Sequence[int]) -> bool:
    """Either never though nothing went wrong, or gone for too many nights for a gap."""
    if not {*curve.silent, *curve.nights}.isdisjoint(nights):
        return False
    if curve.nights or curve.silent:
        return sum(not device.heads[night].error for night in nights) >= RECENT
    return not curve.values or any(not device.heads[night].error for night in curve.values)


def _stand(
    found: HistoryCheck,
    device: Device,
    curve: Curve,
    one: ScannedSeries | None,
    nights: Sequence[int],
    holds: Mapping[Key, Holds],
) -> None:
    if _is_unasked(device, curve, nights):
        found.unasked += 1
        return
    have, own = set(curve.nights), set(nights)
    asked = sorted(own & {*have, *curve.silent})
    seen = asked or sorted(own & curve.values.keys())
    begun = [night for night in nights if not seen or night >= seen[0]]
    found.unanswered += sum(night not in have for night in begun)
    answers = [night for night in begun if night in have]
    since = [night for night in begun if not answers or night > answers[-1]]
    reason = ""
    if since:
        beside = "the reference has no answer" if since[-1] in curve.values else "the night has nothing of it"
        reason = curve.silent.get(since[-1]) or device.heads[since[-1]].error or beside
        found.silent.append(
            Silent(
                case=curve.case, metric=curve.metric, device=device.kind, device_name=device.name,
                nights=len(since), reason=reason,
            )
        )  # fmt: skip
    told = Standing(
        case=curve.case, metric=curve.metric, device=device.kind, device_name=device.name,
        reference=device.heads[nights[0]].reference_name, state="silent", limit=curve.limit, reason=reason,
    )  # fmt: skip
    found.standings.append(told)
    if one is None or one.scanned.now is None:
        return
    now, head = one.scanned.now, device.heads[answers[-1]]
    told.ratio, told.low, told.high = (math.exp(value) for value in (now.value, now.low, now.high))
    told.nights, told.answered, told.commit = now.nights, head.started, head.commit.sha
    if len(since) >= RECENT:
        return
    told.state = "unlimited" if curve.limit is None else holds.get((curve.case, curve.metric), "unknown")


def _change(device: Device, one: ScannedSeries, change: Change) -> Proposal:
    before, after = (device.heads[one.nights[column]] for column in (change.before, change.after))
    good, bad = before.commit.sha, after.commit.sha
    better = direction(one.curve.metric)
    return Proposal(
        case=one.curve.case, metric=one.curve.metric, device=device.kind, device_name=device.name,
        epoch=after.epoch, reference=after.reference_name, kind=change.kind,
        worse=None if better is None else (change.size > 0) == (better == "lower"),
        change=math.exp(change.size), low=math.exp(change.low), high=math.exp(change.high), level=LEVEL,
        good=good, bad=bad, since=after.started, known=device.heads[one.nights[change.known]].started,
        command=bisect(one.curve.case, one.curve.metric, device.kind, good, bad),
    )  # fmt: skip
