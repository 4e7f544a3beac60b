"""The findings of `perfci doctor`."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from perfci.model.base import Amount, Document
from perfci.model.metrics import Tier

Status = Literal["ok", "warn", "fail"]
STATUSES: tuple[Status, ...] = ("fail", "warn", "ok")
"""Worst first."""


class Finding(Document):
    """A fact that everybody needs, or something that has a remedy on this machine."""

    name: str = Field(pattern=r"[a-z0-9]+([ _-][a-z0-9]+)*")
    """Stable, such as `gpu 0 clocks`."""
    status: Status
    """`fail`: nothing can be measured, or wrongly, or a secret lies open; `warn`: something is out of reach."""
    found: str = Field(min_length=1, max_length=1000)
    """The observation, in one line."""
    remedy: str = Field("", max_length=1000)
    """A command or step; always there but for `ok`."""
    values: dict[str, Any] = Field(default_factory=dict)
    """For programs; sizes in bytes."""

    @model_validator(mode="after")
    def _fixable(self) -> Self:
        if self.status != "ok" and not self.remedy:
            raise ValueError(f"{self.name}: a line that is not ok needs a remedy")
        return self


class TierState(Document):
    """Metrics of one tier, and whether this machine can give them."""

    tier: Tier
    given: bool
    source: str = ""
    """Their source, such as `nsys 2023.4.4`."""
    why: str = ""
    """Why they are out, or in part."""
    metrics: list[str] = Field(default_factory=list)


class Diagnosis(Document):
    """`perfci doctor --json`."""

    version: Literal[1] = 1
    perfci: str
    seconds: Amount
    findings: list[Finding]
    """Worst first; among equals, what matters more."""
    tiers: list[TierState]
    exit_code: Literal[0, 3]
    """3 where a line fails."""
