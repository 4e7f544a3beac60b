"""The findings of `perfci calibrate`: how identical code scatters on this machine, and what limits that allows."""

from typing import Literal

from pydantic import Field

from perfci.model.base import Amount, DeviceKind, Document, Finite, Share
from perfci.model.fingerprint import Fingerprint


class Shares(Document):
    """Outcomes of whole decisions at the limit asked for, replayed on the recorded pairs."""

    unchanged: Share
    inconclusive: Share
    failing: Share
    improved: Share
    pairs: Amount
    """Median number of pairs of the unchanged ones; of all where none is."""


class CaseCalibration(Document):
    """One metric of one case on one device: base and head are the same code, built twice."""

    case: str
    device: DeviceKind
    metric: str = "time"
    question: str
    """Digest of parameters, declared work and timing mode: noise holds for the same question alone."""
    measured: str
    """When: UTC, ISO 8601."""
    pairs: int = Field(ge=2)
    value: Amount
    """Median worker value of base, in the metric's unit."""
    noise: Amount
    """Standard deviation of the pairs' log ratios."""
    robust: Amount
    """The same from the median absolute deviation: without stray pairs."""
    effect: Finite
    """Bias: ln(head/base), Hodges–Lehmann."""
    low: Finite
    high: Finite
    level: Share
    """Exact coverage of [low, high], corrected for the number of cases."""
    differs: bool
    """True where the sides differ though the code is the same."""
    reach: dict[int, Amount] = Field(default_factory=dict)
    """Pairs at most → the smallest r, a log ratio, that is found in 99 % and excluded in 99 %; empty where none is."""
    asked: Amount | None = None
    """The limit in effect, a relative change, never under its least change; None where there is none."""
    replayed: Shares | None = None
    """Of whole decisions at the limit asked for; None where there is none."""
    seconds: Amount | None = None
    """Wall seconds of one pair, its share of the start-up included; None where they were not measured."""
    components: dict[str, Amount] = Field(default_factory=dict)
    """Standard deviations of the parts of a pair's log ratio, by name; empty where the blocks do not tell them."""

    @property
    def key(self) -> str:
        """As `Case.key`: `id@device`."""
        return f"{self.case}@{self.device}"

    @property
    def smallest(self) -> float | None:
        """The smallest r at the largest number of pairs, a log ratio; None where none can be promised."""
        return self.smallest_within(max(self.reach, default=0))

    def smallest_within(self, pairs: int) -> float | None:
        """Return the smallest r, a log ratio, of runs of `pairs` pairs at most; None where none can be promised."""
        caps = [cap for cap in self.reach if cap <= pairs]
        return self.reach[max(caps)] if caps else None


class FailRate(Document):
    """The number of replayed runs of the whole suite that fail though nothing changed."""

    runs: int = Field(ge=1)
    failing: int = Field(ge=0)
    low: Share
    """Clopper–Pearson, 95 %."""
    high: Share
    noise_alone: int = Field(ge=0)
    """Failing runs when each pair is turned by a coin, which leaves noise and takes biases out."""


class Calibration(Document):
    """`calibration.json`."""

    version: Literal[1] = 1
    run: str
    started: str
    """UTC, ISO 8601."""
    seconds: Amount
    """Wall time of everything."""
    measuring_seconds: Amount
    repository: str = ""
    commit: str | None = None
    fingerprint: Fingerprint
    machines: dict[DeviceKind, str] = Field(default_factory=dict)
    """Device → the key that this calibration is stored by."""
    criteria: int = Field(ge=1)
    """Criteria of the suite that share α."""
    failing: FailRate | None = None
    """None where no relative limit could be replayed."""
    cases: list[CaseCalibration] = Field(default_factory=list)
    """Those to worry about first."""
    sentence: str
    """The outcome in a sentence."""
    warnings: list[str] = Field(default_factory=list)
    """Worst first."""
    notes: list[str] = Field(default_factory=list)
    limits: list[str] = Field(default_factory=list)
    """The limits that it proposes: lines of YAML."""
    exit_code: Literal[0, 1]
    """1 where a bias is proven or more than 1 % of runs fail."""


class Machine(Document):
    """The store of one device of one machine: the newest calibration of each case."""

    version: Literal[1] = 1
    machine: dict[str, str] = Field(default_factory=dict)
    """Facts that make noise comparable: device, driver, versions, schedule."""
    cases: dict[str, CaseCalibration] = Field(default_factory=dict)
    """By id, device, metric and question."""
