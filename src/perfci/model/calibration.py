"""The findings of `perfci calibrate`."""

from typing import Literal

from pydantic import Field

from perfci.model.base import Amount, DeviceKind, Document, Finite, Share
from perfci.model.fingerprint import Fingerprint


class Shares(Document):
    """Outcomes of decisions at the limit asked for, replayed on the recorded pairs."""

    unchanged: Share
    failing: Share
    pairs: Amount
    """Median of the unchanged ones; of all where there are none."""


class CaseCalibration(Document):
    """One metric of a case: base and head are the same code, built twice."""

    case: str
    device: DeviceKind
    metric: str = "time"
    pairs: int = Field(ge=2)
    value: Amount
    """Median of base's workers, in the metric's unit."""
    noise: Amount
    """Standard deviation of the pairs' log ratios."""
    effect: Finite
    """Bias: ln(head/base), Hodges–Lehmann."""
    low: Finite
    high: Finite
    level: Share
    """Exact, of [low, high], corrected for the number of cases."""
    differs: bool
    """The sides differ though the code is the same."""
    reach: dict[int, Amount] = Field(default_factory=dict)
    """Pairs at most → the smallest r, a log ratio, that is found, and excluded, in 99 %."""
    asked: Amount | None = None
    """The limit in effect, relative, never under its least change; None without one."""
    replayed: Shares | None = None
    """Of whole decisions at the limit asked for; None where there is none."""
    seconds: Amount
    """Wall seconds of one pair, its share of the start-up included."""
    components: dict[str, Amount] = Field(default_factory=dict)
    """Standard deviations of the parts of a pair's log ratio; empty where blocks do not tell them."""

    @property
    def key(self) -> str:
        """`id@device`."""
        return f"{self.case}@{self.device}"

    @property
    def smallest(self) -> float | None:
        """The smallest r at the most pairs, a log ratio; None where none can be promised."""
        return self.reach[max(self.reach)] if self.reach else None


class FailRate(Document):
    """Replayed runs of the whole suite that fail though nothing changed."""

    runs: int = Field(ge=1)
    failing: int = Field(ge=0)
    low: Share
    """Clopper–Pearson, 95 %."""
    high: Share


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
    criteria: int = Field(ge=1)
    """Criteria of the suite that share α."""
    failing: FailRate | None = None
    """None where no relative limit could be replayed."""
    cases: list[CaseCalibration] = Field(default_factory=list)
    """Those to worry about first."""
    sentence: str
    warnings: list[str] = Field(default_factory=list)
    """Worst first."""
    notes: list[str] = Field(default_factory=list)
    limits: list[str] = Field(default_factory=list)
    """Proposed, as lines of YAML."""
    exit_code: Literal[0, 1]
    """1 where a bias is proven or over 1 % of runs fail."""

    @property
    def devices(self) -> list[DeviceKind]:
        """Those of its cases."""
        return sorted({case.device for case in self.cases})
