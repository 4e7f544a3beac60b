"""The limits by one night: over, within, or unknown. Pure.

Limits of a metric of a case:

- `reference`: the distance to the reference, of each night.

- `bound`: an absolute limit. Likewise.

- `last`: a step. Only one night compares main with the commit before it; from the next on both sides have it. Asked
from then on is the distance to the commit before the step, by tonight's ratio to the reference and that commit's, a
second measurement; without one, by the product of the ratios from night to night since.

The class of a night's own comparison tells. Of a distance that no test was asked about: within the limit where all of
the interval is; over where all of it is, or, once a test has shown the step, where the estimate confirms it.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from perfci.history.document import TELLS_OF_LIMIT, Commit
from perfci.history.series import Entry, Head, NightAnswer, read_ratio
from perfci.model.metrics import Direction, resolve
from perfci.model.report import Class
from perfci.stats.decide import margin

HeldAgainst = Literal["last", "reference", "bound"]
Holds = Literal["over", "within", "unknown"]
_COMMITS = 32
"""Newest commits whose distances are kept: main is compared with one of them."""
_LARGEST = 700.0
"""No float has the ratio of a larger logarithm."""
_ROUNDING = 1e-9
"""Of a product of ratios: counts that came back to what they were, within a limit of 0."""
_WITHIN: frozenset[Class] = frozenset({"unchanged", "improvement"})


class Distance(NamedTuple):
    """The logarithm of a ratio, with its interval."""

    log: float
    low: float
    high: float

    @property
    def ratios(self) -> tuple[float, float, float]:
        """As near as a float has them."""
        ratio, low, high = (math.exp(max(-_LARGEST, min(_LARGEST, log))) for log in self)
        return ratio, low, high

    def times(self, other: "Distance") -> "Distance":
        """Return the distance over both, measured apart: widths add as squares do."""
        log = self.log + other.log
        below = math.hypot(self.log - self.low, other.log - other.low)
        return Distance(log, log - below, log + math.hypot(self.high - self.log, other.high - other.log))

    def back(self) -> "Distance":
        """Return the distance the other way."""
        return Distance(-self.log, -self.high, -self.low)

    def holds(self, limit: float, better: Direction, *, shown: bool) -> Holds:
        """Compare with a relative `limit`. `shown`: by a test of an earlier night, so that the estimate confirms it."""
        growth, bound = (self if better == "lower" else self.back()), margin(limit, better) + _ROUNDING
        if growth.low > bound or (shown and growth.log > bound and growth.low > 0):
            return "over"
        return "within" if growth.high <= bound else "unknown"


class Said(NamedTuple):
    """The answer of a night to a limit."""

    holds: Holds
    base: Commit | None = None
    """The change is measured from it."""
    change: Distance | None = None
    """From `base` to the night's commit."""
    limit: float | None = None
    name: str = ""
    """The reference's."""
    reason: str = ""
    """Why a bound is broken."""


UNKNOWN = Said("unknown")


def say(against: HeldAgainst, metric: str, night: Head, entry: Entry, step: "Step", *, followed: bool) -> Said:
    """Say of a night whether a limit holds.

    `step`: of the epoch, with every night of it; `followed`: it was over and has not ended.
    """
    if against == "last":
        return step.say(night, entry, followed=followed)
    if against == "bound":
        return _bound(entry)
    if night.reference is None or entry.reference is None:
        return UNKNOWN
    return Said(
        _shown(entry.reference, metric), night.reference.commit, _distance(entry.reference), entry.reference.limit,
        night.reference.name,
    )  # fmt: skip


def _bound(entry: Entry) -> Said:
    answers = [answer for answer in (entry.last, entry.reference) if answer is not None]
    for answer in answers:
        if answer.class_ == "violation":
            return Said("over", reason=answer.reason)
    if any(answer.class_ in _WITHIN for answer in answers):
        return Said("within")
    return UNKNOWN  # beside a regression it may have no answer


class Step:
    """A step over the limit from the commit before it, within one epoch."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._to_reference: dict[str, Distance] = {}
        """Newest commits → distance to the reference."""
        self._before: Distance | None = None
        """Distance of the commit before the step to the reference, as measured before it was seen."""
        self._to_base: dict[str, Distance] = {}
        """Commit → distance to the commit before the step, by those between."""
        self._base: Commit | None = None
        self._limit: float | None = None
        self._better: Direction | None = None
        """None for a step without a ratio."""
        self._still = False
        """A step without a ratio is still there."""
        self._change: Distance | None = None

    def say(self, night: Head, entry: Entry, *, followed: bool) -> Said:
        """Say whether the step is there; `followed`: one has not ended."""
        self._keep(night, entry)
        last = entry.last if night.last is not None else None
        stepped = _shown(last, self._metric) == "over"
        if not followed:
            if not stepped:
                return UNKNOWN
            self._begin(night, entry)
        if last is not None and last.class_ in TELLS_OF_LIMIT and last.limit is not None:
            self._limit = last.limit
        if self._better is None:
            return Said(self._by_class(last), self._base, self._change, self._limit)
        changes = [*self._changes(night, entry)] if followed else [self._to_base[night.commit.sha]]
        limit = math.nan if self._limit is None else self._limit
        said = [(change, change.holds(limit, self._better, shown=True)) for change in changes]
        known = [(change, holds) for change, holds in said if holds != "unknown"]
        if known or (stepped and changes):
            self._change = known[0][0] if known else changes[0]
        return Said("over" if stepped else known[0][1] if known else "unknown", self._base, self._change, self._limit)

    def _keep(self, night: Head, entry: Entry) -> None:
        commit, last, reference = night.commit.sha, _distance(entry.last), _distance(entry.reference)
        if reference is not None:
            self._to_reference.pop(commit, None)
            self._to_reference[commit] = reference
            if len(self._to_reference) > _COMMITS:
                del self._to_reference[next(iter(self._to_reference))]
        if last is not None and night.last is not None and commit != night.last.sha in self._to_base:
            self._to_base[commit] = self._to_base[night.last.sha].times(last)

    def _begin(self, night: Head, entry: Entry) -> None:
        last, self._base = _distance(entry.last), night.last
        self._better = None if last is None or not last.log else "lower" if last.log > 0 else "higher"
        self._to_base, self._before = {}, None
        if last is not None and night.last is not None:
            self._before = self._to_reference.get(night.last.sha)
            self._to_base = {night.last.sha: Distance(0.0, 0.0, 0.0), night.commit.sha: last}

    def _changes(self, night: Head, entry: Entry) -> Iterator[Distance]:
        reference, here = entry.reference, _distance(entry.reference)
        measured = reference is not None and (reference.class_ in TELLS_OF_LIMIT or reference.limit is None)
        if measured and here is not None and self._before is not None:  # the ratio, whatever was asked
            yield here.times(self._before.back())
        if entry.last is not None and entry.last.class_ in TELLS_OF_LIMIT and night.commit.sha in self._to_base:
            yield self._to_base[night.commit.sha]

    def _by_class(self, last: NightAnswer | None) -> Holds:
        """Of a step without a ratio, such as from 0 bytes to 64."""
        now = _shown(last, "")
        if now == "unknown":
            return now
        self._still = now == "over" or (self._still and last is not None and last.class_ == "unchanged")
        return "over" if self._still else "within"


def _shown(answer: NightAnswer | None, metric: str) -> Holds:
    """A violation says nothing of the relative limit on the same metric: all of its ratio's interval must."""
    if answer is None or answer.class_ not in TELLS_OF_LIMIT:
        return "unknown"
    if answer.class_ != "violation":
        return "over" if answer.class_ == "regression" else "within"
    distance, better = _distance(answer), direction(metric)
    if distance is None or answer.limit is None or better is None:
        return "unknown"
    return distance.holds(answer.limit, better, shown=False)


def direction(metric: str) -> Direction | None:
    """Return the better direction, if known."""
    try:
        return resolve(metric, {}).better
    except KeyError:
        return None  # the policy's own, of which a night does not say it


def _distance(answer: NightAnswer | None) -> Distance | None:
    distance = read_ratio(answer)
    return None if isinstance(distance, str) else Distance(*distance)
