"""The history as a site for Pages.

Strangers' names enter pages as text, and file names only through a hash. A link needs a run at an https address of
GitHub Actions.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from markupsafe import Markup

from perfci.history.check import HistoryCheck, Proposal, Standing, epochs
from perfci.history.series import Curve, Device, Head
from perfci.model.text import shell, shorten
from perfci.model.units import limit_percent, show, show_span
from perfci.render import changes as words
from perfci.render.escape import visible
from perfci.render.html import asset, jinja, policy
from perfci.render.html.plots import embed

MOST_NIGHTS = 2000
POINTS = 150
"""Points of a sparkline."""
_WIDTH, _HEIGHT = 220, 40
_TITLE, _AUTHOR = 60, 30
_RUN = re.compile(r"(https://[A-Za-z0-9.-]+(?::[0-9]+)?/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)/actions/runs/[0-9]+")
_SHA = re.compile(r"[0-9a-f]{40}")
_SCRIPTS, _STYLES = ("uPlot.iife.min.js", "copy.js", "history.js"), ("uPlot.min.css", "style.css", "history.css")


@dataclass(frozen=True)
class Spark:
    """A line of ratios with its band, as points of SVG."""

    lines: list[str]
    bands: list[str]
    zero: float
    """Where the ratio is 1."""
    seams: list[float]
    label: str


@dataclass(frozen=True)
class Entry:
    """A metric of a case on a device."""

    device: Device
    curve: Curve
    standing: Standing | None
    changes: list[Proposal] = field(default_factory=list)

    @property
    def page(self) -> str:
        """From the overview."""
        return page_name(self.curve.case)

    @property
    def state(self) -> str:
        """A class of CSS and a word."""
        return self.standing.state if self.standing is not None else "silent"

    @property
    def now(self) -> str:
        """With half of its interval."""
        one = self.standing
        if one is None or one.ratio is None or one.low is None or one.high is None:
            return "no answer"
        return show_span(one.ratio, one.low, one.high)

    @property
    def limit(self) -> str:
        """Its limit; empty without one."""
        return limit_percent(self.standing.limit) if self.standing and self.standing.limit is not None else ""

    def title(self, change: Proposal) -> str:
        """The title and author of the first commit behind a change."""
        heads = (head for head in self.device.heads if head.commit.sha == change.bad)
        return next((_told(head) for head in heads), "")

    @property
    def last(self) -> str:
        """Its last change, and when."""
        return f"{words.change(self.changes[0])}, {self.changes[0].since[:10]}" if self.changes else ""


def _told(head: Head) -> str:
    author = f" ({shorten(visible(head.commit.author), _AUTHOR)})" if head.commit.author else ""
    return shorten(visible(head.commit.title), _TITLE) + author


def page_name(case: str) -> str:
    """Return letters, digits and hyphens, and a hash of the case."""
    plain = re.sub(r"[^a-z0-9]+", "-", case.lower()).strip("-")[:60]
    return f"{plain or 'case'}-{hashlib.sha256(case.encode()).hexdigest()[:12]}.html"


def site(devices: Sequence[Device], found: HistoryCheck) -> Iterator[tuple[str, str]]:
    """Yield path in the site, and text. `found` has the changes of all nights."""
    entries = _entries(devices, found)
    yield "index.html", _overview(devices, entries, found)
    cases: dict[str, list[Entry]] = {}
    for one in entries:
        cases.setdefault(one.curve.case, []).append(one)
    facts = {id(device): _nights(device) for device in devices}
    for case, own in sorted(cases.items()):
        yield f"cases/{page_name(case)}", _case(case, own, facts)


def _entries(devices: Sequence[Device], found: HistoryCheck) -> list[Entry]:
    standings = {(one.device, one.device_name, one.case, one.metric): one for one in found.standings}
    changes: dict[tuple[str, str, str, str], list[Proposal]] = {}
    for one in found.changes:
        changes.setdefault((one.device, one.device_name, one.case, one.metric), []).append(one)
    order = ("over", "unknown", "within", "unlimited", "silent")
    entries = [
        Entry(device, curve, standings.get(key), changes.get(key, []))
        for device in devices for curve in device.curves.values()
        for key in [(device.kind, device.name, curve.case, curve.metric)]
    ]  # fmt: skip
    return sorted(entries, key=lambda one: (order.index(one.state), one.curve.case, one.curve.metric, one.device.name))


def _page(name: str, title: str, data: Any, **values: Any) -> str:
    return jinja().get_template(name).render(
        title=title, policy=policy(_SCRIPTS, _STYLES), data=Markup(embed(data)),
        styles=[Markup(asset(one)) for one in _STYLES], scripts=[Markup(asset(one)) for one in _SCRIPTS], **values,
    )  # fmt: skip


def _overview(devices: Sequence[Device], entries: Sequence[Entry], found: HistoryCheck) -> str:
    last = max(head.started for device in devices for head in device.heads)
    over = sum(one.state == "over" for one in entries)
    return _page(
        "history.html.j2", "History", {}, entries=entries, sparks=[_spark(one) for one in entries], found=found,
        devices=devices, last=last[:10], over=over, shown=str(len(entries)),
        faults=[(visible(one.name), visible(one.reason)) for one in found.left_out[: words.MOST]],
    )  # fmt: skip


def _spark(one: Entry) -> Spark:
    curve, nights = one.curve, max(1, len(one.device.heads) - 1)
    index = range(0, len(curve.nights), max(1, math.ceil(len(curve.nights) / POINTS)))
    ends = sorted([*(curve.x[i] for i in index), 0.0])
    low, high = ends[0], ends[-1]
    pad = max((high - low) * 0.15, 0.005)
    low, high = low - pad, high + pad

    def at(night: int) -> str:
        return f"{night / nights * _WIDTH:.1f}"

    def up(x: float) -> str:
        return f"{(high - min(high, max(low, x))) / (high - low) * _HEIGHT:.1f}"

    parts: dict[str, list[int]] = {}
    for i in index:
        parts.setdefault(one.device.heads[curve.nights[i]].epoch, []).append(i)
    lines, bands = [], []
    for part in parts.values():
        lines.append(" ".join(f"{at(curve.nights[i])},{up(curve.x[i])}" for i in part))
        upper = [f"{at(curve.nights[i])},{up(curve.high[i])}" for i in part]
        bands.append(" ".join([*upper, *(f"{at(curve.nights[i])},{up(curve.low[i])}" for i in reversed(part))]))
    seams = [float(at(night)) for night in _seams(one.device)]
    label = f"Ratio to the reference over {len(one.device.heads)} nights, {len(curve.nights)} of them answered"
    return Spark(lines, bands, float(up(0.0)), seams, label)


def _seams(device: Device) -> list[int]:
    heads = device.heads
    return [night for night in range(1, len(heads)) if heads[night].epoch != heads[night - 1].epoch]


def _links(head: Head) -> tuple[str, str]:
    known = _RUN.fullmatch(head.url)
    return (f"{known[1]}/commit/{head.commit.sha}", head.url) if known else ("", "")


class _Facts(NamedTuple):
    first: int
    """Night that a page begins with."""
    data: dict[str, Any]


def _nights(device: Device) -> _Facts:
    first = max(0, len(device.heads) - MOST_NIGHTS)
    heads = device.heads[first:]
    links = [_links(head) for head in heads]
    places = sorted({commit.rpartition("/")[0] for commit, _ in links if commit})
    of_epochs = {epoch: device.heads[nights[0]].reference_name for epoch, nights in epochs(device).items()}
    return _Facts(first, {
        "at": [int(datetime.fromisoformat(head.started).timestamp()) for head in heads],
        "sha": [head.commit.sha for head in heads],
        "title": [_told(head) for head in heads],
        "commits": places,
        "place": [places.index(commit.rpartition("/")[0]) if commit else -1 for commit, _ in links],
        "run": [run.rpartition("/")[2] for _, run in links],
        "seams": [
            [night - first, visible(of_epochs[device.heads[night].epoch])] for night in _seams(device) if night >= first
        ],
    })  # fmt: skip


def _case(case: str, own: Sequence[Entry], facts: dict[int, _Facts]) -> str:
    places = {key: number for number, key in enumerate({id(one.device): None for one in own})}
    data = {
        "nights": [facts[key].data for key in places],
        "series": [_series(one, facts[id(one.device)].first, places[id(one.device)]) for one in own],
    }
    # Whole hashes would break in the middle of a line on a phone.
    commands = [
        [shell([word[:12] if _SHA.fullmatch(word) else word for word in change.command]) for change in one.changes]
        for one in own
    ]
    values = [_last(one.curve) for one in own]
    return _page(
        "series.html.j2", case, data, case=case, entries=own, commands=commands, values=values, change=words.change,
        between=words.between,
    )  # fmt: skip


def _last(curve: Curve) -> str:
    return show(curve.values[max(curve.values)] if curve.values else None, curve.unit)


def _series(one: Entry, first: int, device: int) -> dict[str, Any]:
    """Percent to four decimals, a night of the page for each answer."""
    curve = one.curve
    begin = next((i for i, night in enumerate(curve.nights) if night >= first), len(curve.nights))

    def points(values: Sequence[float]) -> list[float]:
        return [round(math.expm1(x) * 100, 3) for x in values[begin:]]

    heads = one.device.heads
    places = {head.started: night for night, head in enumerate(heads)}
    shown = []
    for change in one.changes:
        bad = places[change.since]
        good = next((night for night in range(bad - 1, -1, -1) if heads[night].commit.sha == change.good), bad - 1)
        if bad >= first:
            shown.append([max(0, good - first), bad - first, change.kind == "drift"])
    return {
        "device": device,
        "night": [night - first for night in curve.nights[begin:]],
        "ratio": points(curve.x),
        "low": points(curve.low),
        "high": points(curve.high),
        "changes": sorted(shown),
        "limit": None if one.standing is None or one.standing.limit is None else round(one.standing.limit * 100, 3),
    }  # fmt: skip
