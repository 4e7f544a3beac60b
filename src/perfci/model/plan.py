"""The plan: everything that is fixed before the first sample."""

import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from perfci.model.base import DeviceKind, Document, Items, Share, Side
from perfci.model.criteria import Criterion, Purpose

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

OBVIOUS = {4: 0.02, 6: 0.005}
"""Pairs → share of α of a look at obvious changes (`stats/obvious.py`)."""
FIRST_SHARE = 0.30
"""Of α, at the first look that may call a regression; see `Looks.fitted`."""
ONLY_SHARE = 0.90
"""Of α, at a look that alone may call a regression: a last look before it has room (`benchmarks/looks.py`)."""


class Looks(Document):
    """The looks at the data, and how much of each error rate they may spend.

    Each column sums to at most 1: the rates hold by a union bound (docs/measurement.md; simulated in
    `benchmarks/looks.py`).
    """

    pairs: list[int] = Field(default_factory=lambda: [8, 12, 16, 24, 32, 48, 64])
    """Numbers of pairs at which to decide."""
    alpha_spending: list[Share] = Field(default_factory=lambda: [0.0, 0.0, 0.30, 0.25, 0.20, 0.15, 0.10])
    """Of α, for "slower than the limit"."""
    beta_spending: list[Share] = Field(default_factory=lambda: [0.40, 0.20, 0.10, 0.10, 0.10, 0.05, 0.05])
    """Of β, for "within the limit"."""
    obvious_pairs: list[int] = Field(default_factory=list)
    """Fewer than at the first look, at which an obvious change ends a case."""
    obvious_spending: list[Share] = Field(default_factory=list)
    """Of α, of each of these."""
    alpha: Share = 0.01
    """Chance that a run on unchanged code fails, over all its criteria."""
    beta: Share = 0.01
    """Chance, per criterion, that a slow-down of the limit's size is called within the limit."""
    confirm: Share = 0.005
    """Level at which a regression must also be more than half the limit."""

    @property
    def first(self) -> int:
        """Pairs at the first look, before which only what is obvious ends."""
        return self.pairs[0]

    @property
    def earliest(self) -> int:
        """Pairs at which anything can end."""
        return [*self.obvious_pairs, *self.pairs][0]

    def first_to_show(self, m: int) -> int:
        """Return the pairs at the first look that can show a regression: the smallest p of n pairs is 2^-n."""
        shares = zip(self.pairs, self.alpha_spending, strict=True)
        within = (n for n, share in shares if 2.0**-n <= min(share * self.alpha / m, self.confirm))
        return next(within, self.pairs[-1])

    def fewest_to_show(self, m: int) -> int:
        """Return the fewest pairs that show a regression, were all of α/m spent on one look."""
        return math.ceil(-math.log2(min(self.alpha / m, self.confirm)))

    @classmethod
    def fitted(cls, m: int, most: int | None = None) -> "Looks":
        """Return the looks of m criteria that share α, at `most` pairs or fewer.

        The smallest p-value of n pairs is 2^-n, so a look can call a regression where 2^-n ≤ `FIRST_SHARE` · α/m: after
        9, 12, 13 and 16 pairs for m = 1, 7, 20 and 100. The first such look spends that; later ones share the rest,
        less what `OBVIOUS` takes; a single one spends `ONLY_SHARE`. Raises ValueError for m < 1.
        """
        if m < 1:
            raise ValueError("the number of criteria is at least 1")
        usual = cls()
        cap = most or usual.pairs[-1]
        beta = {n: share for n, share in zip(usual.pairs, usual.beta_spending, strict=True) if n <= cap}
        first = min(cap, math.ceil(-math.log2(FIRST_SHARE * usual.alpha / m)))
        weights = {12: 0.20, 16: 0.20, 24: 0.25, 32: 0.20, 48: 0.15, 64: 0.10}
        later = {n: weight for n, weight in weights.items() if first < n <= cap}
        rest = (1 - FIRST_SHARE - math.fsum(OBVIOUS.values())) / math.fsum(later.values()) if later else 0.0
        alpha = {n: rest * weight for n, weight in later.items()}
        alpha[first] = FIRST_SHARE if later else ONLY_SHARE
        pairs = sorted({*beta, *alpha})
        whole = math.fsum(beta.values())
        return cls(
            pairs=pairs,
            alpha_spending=[alpha.get(n, 0.0) for n in pairs],
            beta_spending=[beta.get(n, 0.0) / whole for n in pairs],
            obvious_pairs=list(OBVIOUS),
            obvious_spending=list(OBVIOUS.values()),
        )

    @model_validator(mode="after")
    def _fit_together(self) -> "Looks":
        if not self.pairs or self.pairs[0] < 1 or any(a >= b for a, b in pairwise(self.pairs)):
            raise ValueError("looks need rising numbers of pairs")
        early = self.obvious_pairs
        if early and (early[0] < 2 or any(a >= b for a, b in pairwise([*early, self.pairs[0]]))):
            raise ValueError("looks need rising numbers of pairs, two at least where a change may be obvious")
        if len(self.obvious_spending) != len(self.obvious_pairs):
            raise ValueError("looks need one share for each number of pairs")
        for shares, before in ((self.alpha_spending, self.obvious_spending), (self.beta_spending, [])):
            if len(shares) != len(self.pairs) or math.fsum([*shares, *before]) > 1 + 1e-9:
                raise ValueError("looks need one share for each number of pairs, which sum to at most 1")
        return self

    def at(self, n: int) -> bool:
        """Return whether a look is at n pairs."""
        return n in self.pairs or n in self.obvious_pairs


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
    """Cases that base and head declare, whatever was asked for and this machine has."""

    kernels: list[str] = Field(default_factory=list)
    """Ids of the cases of kernels."""
    commands: list[str] = Field(default_factory=list)
    """As far as they are known."""
    unknown: list[str] = Field(default_factory=list)
    """Commands that did not run in every side, and may have further cases."""
    unrun: list[str] = Field(default_factory=list)
    """Kernels of benchmark scripts that were not asked for: they may have cases."""
    whole: bool = True
    """Every kernel is known: no suite file and no build failed."""


def count_sharing(criteria: Iterable[Criterion], proved: Collection[str], models: int, comparisons: int) -> int:
    """Return m, how many criteria share α, at least 1: those of cases that are not `proved`, of each model of device
    and each comparison of a night, by a union bound."""
    here = sum(one.shares_alpha for one in criteria if one.case_key not in proved)
    return max(1, here) * models * comparisons


class ClaimPlan(Document):
    """What is claimed of cases, decided by pairs of its own at an α of its own."""

    criteria: Items[Criterion]
    """As of `Claim.criterion`."""
    looks: Looks = Field(default_factory=Looks)
    m: int = Field(1, ge=1)
    """Shares of α, as of `sharing`."""
    described: str = Field("", max_length=200)
    """The words of the pull request's description that claim it, whose answer changes no verdict."""


class Plan(Document):
    """All that is measured, in which order, and how it will be decided."""

    seed: int
    sides: list[Side]
    """`[head]` for a run without base."""
    looks: Looks = Field(default_factory=Looks)
    devices: list[DeviceKind] = Field(default_factory=list)
    schedules: dict[str, Schedule] = Field(default_factory=dict)
    """Timing mode → how its first pairs are measured."""
    criteria: Items[Criterion] = Field(default_factory=list)
    """Those included that cannot be judged here."""
    declared: Declared | None = None
    """None in documents that do not tell."""
    m: int = Field(1, ge=1)
    """Criteria that share α, each α/m; what is proved shares nothing."""
    purpose: Purpose = "change"
    comparisons: int = Field(1, ge=1, le=8)
    """Comparisons of a night that share α, this one included."""
    budget: Positive = 900.0
    """For everything after the builds: checks, pairs, profilers."""
    max_pairs: int = Field(64, ge=1)
    precise: bool = False
    """Take pairs of a changed case until its change is known well enough for the steps of a bisect."""
    exact_pairs: int | None = Field(None, ge=1)
    """Take this many pairs of every case, as calibration does."""
    judged: bool = True
    """False for a profile."""
    claims: ClaimPlan | None = None
    held: bool = False
    """Head may not ask or expect anything else than base (`--only`)."""

    @property
    def timed(self) -> list[Criterion]:
        """The criteria of worker pairs."""
        return [one for one in self.criteria if one.timed]

    @property
    def first_to_show(self) -> int:
        """Pairs at the first look that can show a regression."""
        return self.looks.first_to_show(self.m)

    @property
    def observed(self) -> list[Criterion]:
        """The criteria of profilers and checks."""
        return [one for one in self.criteria if one.observed]
