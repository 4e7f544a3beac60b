"""The plan: everything that is fixed before the first sample."""

import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from perfci.model.base import DeviceKind, Document, Items, Share, Side
from perfci.model.criteria import Criterion

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Looks(Document):
    """The looks at the data, and how much of each error rate a look may spend.

    The shares of each column sum to at most 1, so that the rates hold by a union bound over the looks.
    Simulated in `tests/stats`; the procedure is described in docs/measurement.md.
    """

    pairs: list[int] = Field(default_factory=lambda: [8, 12, 16, 24, 32, 48, 64])
    """Numbers of pairs at which to decide."""
    alpha_spending: list[Share] = Field(default_factory=lambda: [0.0, 0.0, 0.30, 0.25, 0.20, 0.15, 0.10])
    """Share of α that "slower than the limit" may spend at each look."""
    beta_spending: list[Share] = Field(default_factory=lambda: [0.40, 0.20, 0.10, 0.10, 0.10, 0.05, 0.05])
    """Share of β that "within the limit" may spend at each look."""
    alpha: Share = 0.01
    """Chance that a run on unchanged code fails, over all its criteria together."""
    beta: Share = 0.01
    """Chance, per criterion, that a slow-down of the limit's size is called within the limit."""
    confirm: Share = 0.005
    """A regression must also show a change of more than half the limit at this level."""

    @model_validator(mode="after")
    def _fit_together(self) -> "Looks":
        if not self.pairs or self.pairs[0] < 1 or any(a >= b for a, b in pairwise(self.pairs)):
            raise ValueError("looks need rising numbers of pairs")
        for shares in (self.alpha_spending, self.beta_spending):
            if len(shares) != len(self.pairs) or math.fsum(shares) > 1 + 1e-9:
                raise ValueError("looks need one share for each number of pairs, which sum to at most 1")
        return self


class Schedule(Document):
    """The way a worker pair is measured."""

    placements: int = Field(3, ge=1, le=64)
    """Fresh allocations of each case's inputs in one worker."""
    blocks: int = Field(4, ge=2, le=64)
    """Blocks of samples per side and placement; even."""
    samples: int = Field(5, ge=1, le=1000)
    """Samples per block at most."""
    sample_time: Positive = 1e-3
    """Seconds that a batch of executions lasts at least (CPU)."""
    block_time: Positive = 6e-3
    """Seconds that a block aims at."""


class Declared(Document):
    """The declarations of base and head, whatever was asked for and whatever this machine has."""

    kernels: list[str] = Field(default_factory=list)
    """Ids of the cases of kernels."""
    commands: list[str] = Field(default_factory=list)
    """Ids of the cases of commands, as far as they are known."""
    unknown: list[str] = Field(default_factory=list)
    """Commands that did not run in every side, and may report further cases."""
    whole: bool = True
    """True where no suite file and no build failed, so that every kernel is known."""


def sharing(criteria: Iterable[Criterion], proved: Collection[str] = ()) -> int:
    """Return the number of criteria that share α, at least 1: none of the cases whose keys are in `proved`."""
    return max(1, sum(one.shares_alpha for one in criteria if one.case_key not in proved))


class Plan(Document):
    """The plan of a run: what is measured, in which order, and how it will be decided."""

    seed: int
    sides: list[Side]
    """`[head]` for a run without base."""
    looks: Looks = Field(default_factory=Looks)
    devices: list[DeviceKind] = Field(default_factory=list)
    """The devices to measure on."""
    schedules: dict[str, Schedule] = Field(default_factory=dict)
    """Timing mode → how a pair of a case under it is measured at first."""
    criteria: Items[Criterion] = Field(default_factory=list)
    """All criteria, those that cannot be judged here among them."""
    declared: Declared | None = None
    """None in documents that do not tell."""
    m: int = Field(1, ge=1)
    """Number of criteria that share α, by which statistics can let the run fail: each gets α/m. What is proved shares
    nothing."""
    budget: Positive = 900.0
    """Seconds for measuring."""
    max_pairs: int = Field(64, ge=1)
    exact_pairs: int | None = Field(None, ge=1)
    """Take this many pairs of every case, whatever the looks say: what calibration does."""
    judged: bool = True
    """False for a profile, in which no limit is asked."""

    @property
    def timed(self) -> list[Criterion]:
        """The criteria that worker pairs decide."""
        return [one for one in self.criteria if one.timed]

    @property
    def observed(self) -> list[Criterion]:
        """The criteria that profilers and checks answer."""
        return [one for one in self.criteria if one.observed]
