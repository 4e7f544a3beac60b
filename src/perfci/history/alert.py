"""Alerts: the limits that main is over on two nights in a row.

Pure. Two nights within in a row end an alert; nights that know nothing do not count. Each epoch is counted by itself.
The alert of a reference or a bound goes on in the next one; that of a step, whose commit before was not measured there,
only stays.
"""

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from perfci.history.document import Commit, Instant
from perfci.history.limits import Distance, HeldAgainst, Said, Step, say
from perfci.history.series import Curve, Device, Entry, Head
from perfci.model.base import DeviceKind

_AGAINST: tuple[HeldAgainst, ...] = ("last", "reference", "bound")
NIGHTS_WITHIN = 2
"""In a row, to end an alert."""


@dataclass
class Alert:
    """A limit of a case that main is over, or was."""

    device: DeviceKind
    case: str
    metric: str
    unit: str
    against: HeldAgainst
    epoch: str
    """In which it began."""
    good: Commit | None
    """The newest commit before known to be within."""
    bad: Commit
    """The first commit over."""
    since: Instant
    """The first night over it."""
    begun: Instant | Literal[""] = ""
    """The night that confirmed it."""
    ended: Instant | Literal[""] = ""
    told: Instant = ""
    """The newest night with an answer."""
    base: Commit | None = None
    """The change is measured from it: before the step, or the reference; None of a bound."""
    name: str = ""
    """The reference's, of an alert against it."""
    change: Distance | None = None
    """From `base` to the newest commit with an answer; None without a ratio."""
    limit: float | None = None
    """The relative limit; None of a bound."""
    value: float | None = None
    """Of the newest commit with an answer, in `unit`."""
    reason: str = ""
    """Over a bound, as the newest such night says."""
    within: int = 0
    """Nights within in a row."""
    left: Instant | Literal[""] = ""
    """Of a step: the night of another epoch, where its base was not measured."""


@dataclass(frozen=True)
class Alerts:
    """The newest stretch of a device's alerts."""

    device: DeviceKind
    name: str
    open: list[Alert]
    ended: list[Alert]
    once: list[Alert]
    """Over on one night so far, of any stretch; with a step on an epoch's last night while that is the newest."""
    within: dict[tuple[str, str, str], Instant]
    """Case, metric and epoch → the newest night within the limit to the reference."""

    @property
    def begun(self) -> Instant | Literal[""]:
        """Begin of the stretch's newest alert."""
        return max((alert.begun for alert in (*self.open, *self.ended)), key=moment, default="")

    @property
    def told(self) -> Instant | Literal[""]:
        """The newest night that says something of the stretch."""
        return max((alert.told for alert in (*self.open, *self.ended)), key=moment, default="")


def find_alerts(devices: Iterable[Device]) -> list[Alerts]:
    """Return each device after all its nights."""
    return [_alerts(device) for device in sorted(devices, key=lambda device: (device.kind, device.name))]


def moment(instant: str) -> str:
    """Return an instant so that earlier ones sort first, and none before any."""
    return instant.replace("+00:00", "Z")


def _alerts(device: Device) -> Alerts:
    limits = [limit for curve in device.curves.values() for limit in _count(device, curve)]
    left, newest = _ends_of_epochs(device)
    stretch: list[Alert] = []
    begun = [alert for limit in limits for alert in limit.begun]
    for alert in sorted(begun, key=lambda alert: (moment(alert.begun), *_place(alert))):
        if all(before.ended and moment(before.ended) < moment(alert.begun) for before in stretch):
            stretch = []
        stretch.append(alert)
        if alert.against == "last" and not alert.ended:
            alert.left = left[alert.epoch]
    once = []
    for alert in sorted((alert for limit in limits for alert in limit.once.values()), key=_place):
        alert.left = left[alert.epoch]
        if not alert.left or (alert.against == "last" and alert.left == newest):
            once.append(alert)
    return Alerts(
        device.kind, device.name, open=[alert for alert in stretch if not alert.ended],
        ended=[alert for alert in stretch if alert.ended], once=once,
        within={
            (limit.curve.case, limit.curve.metric, epoch): night.started
            for limit in limits if limit.against == "reference" for epoch, night in limit.good.items()
        },
    )  # fmt: skip


def _place(alert: Alert) -> tuple[str, str, str, str]:
    return alert.case, alert.metric, alert.against, moment(alert.since)


def _ends_of_epochs(device: Device) -> tuple[dict[str, Instant], Instant]:
    """Epoch → the first night behind it; and the night of which the newest epoch has taken over. Errors are of no
    epoch."""
    nights = [head for head in device.heads if not head.error or not head.empty]
    left, newest = dict.fromkeys((night.epoch for night in nights), ""), ""
    for night, after in pairwise(nights):
        left[night.epoch] = after.started
        newest = after.started if after.epoch != night.epoch else newest
    if nights:
        left[nights[-1].epoch] = ""
    return left, newest


def _count(device: Device, curve: Curve) -> list["_Limit"]:
    limits: dict[tuple[HeldAgainst, str], _Limit] = {}
    for index, entry in curve.entries.items():
        night = device.heads[index]
        for against in _AGAINST:
            key = against, night.epoch if against == "last" else ""
            if key not in limits:
                limits[key] = _Limit(device.kind, curve, against)
            limits[key].add(night, entry)
    return list(limits.values())


class _Limit:
    def __init__(self, device: DeviceKind, curve: Curve, against: HeldAgainst) -> None:
        self._device, self.curve, self.against = device, curve, against
        self._step = Step(curve.metric)
        self._within: dict[str, int] = {}
        """Epoch → nights within since the last one over, in any epoch."""
        self.good: dict[str, Head] = {}
        """Epoch → the newest night within."""
        self.once: dict[str, Alert] = {}
        """Epoch → over on one night."""
        self.begun: list[Alert] = []
        """All but the last have ended."""

    def add(self, night: Head, entry: Entry) -> None:
        alert = self.begun[-1] if self.begun and not self.begun[-1].ended else None
        followed = alert is not None or bool(self.once)
        said = say(self.against, self.curve.metric, night, entry, self._step, followed=followed)
        if said.holds == "unknown":
            return
        if said.holds == "over":
            self._within.clear()
            alert = alert or self._over(night, said)
        else:
            self._within[night.epoch] = self._within.get(night.epoch, 0) + 1
            self.good[night.epoch] = night
            self.once.pop(night.epoch, None)
        if alert is None:
            return
        alert.told, alert.value, alert.within = night.started, entry.value, max(self._within.values(), default=0)
        alert.base, alert.name, alert.change, alert.limit = said.base, said.name, said.change, said.limit
        alert.reason = said.reason or alert.reason
        if alert.within >= NIGHTS_WITHIN:
            alert.ended = night.started
            self._within.clear()
            self.once.clear()

    def _over(self, night: Head, said: Said) -> Alert:
        alert = self.once.pop(night.epoch, None)
        if alert is not None:
            alert.begun = night.started
            self.begun.append(alert)
            return alert
        within = self.good.get(night.epoch)
        good = said.base if self.against == "last" else within.commit if within is not None else None
        alert = self.once[night.epoch] = Alert(
            self._device, self.curve.case, self.curve.metric, self.curve.unit, self.against, night.epoch,
            good=good, bad=night.commit, since=night.started,
        )  # fmt: skip
        return alert


def bisect(case: str, metric: str, device: DeviceKind, good: str, bad: str, *, several: bool = False) -> list[str]:
    """Return the words of the bisect that decides between two commits; none where they are one.

    `several`: small changes may add up.
    """
    if good == bad:
        return []
    words = ["perfci", "bisect", *(["--all"] if several else []), good, bad, "-k", glob.escape(case)]
    return [*words, "--device", device, *([] if metric == "time" else ["--metric", metric])]
