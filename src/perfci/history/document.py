"""A night: one run on main, as a document that never changes.

A stored value is shown, never judged against.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from perfci.model.base import Amount, DeviceKind, Document, Finite, Items
from perfci.model.report import Class

TELLS_OF_LIMIT: frozenset[Class] = frozenset({"regression", "violation", "unchanged", "improvement"})
"""Classes that say whether a limit holds."""

Name = Annotated[str, Field(min_length=1, max_length=500)]
Text = Annotated[str, Field(max_length=1000)]
Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


def _real(text: str) -> str:
    datetime.fromisoformat(text)  # there is no 31 February
    return text


Instant = Annotated[
    str,
    Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|\+00:00)$"),
    AfterValidator(_real),
]
"""Of UTC, as ISO 8601 has it."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Commit(Document):
    """A commit of the repository."""

    sha: Sha
    date: Instant
    """When it was committed."""
    title: Text = ""
    author: Text = ""
    """Who wrote it, by the repository's mailmap."""


class Reference(Document):
    """The commit that ratios are chained to: a release."""

    name: Name
    """As people call it: `v1.2`."""
    commit: Commit


class Ratio(Document):
    """A ratio head/base of two commits measured in turns, with its interval."""

    ratio: Positive
    low: Positive
    high: Positive
    level: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    """Exact coverage of the interval."""
    pairs: Annotated[int, Field(ge=0, le=1_000_000_000)]
    """Worker pairs; 0 of a proof's ratio: 1, without a width."""

    @model_validator(mode="after")
    def _ends_in_order(self) -> "Ratio":
        if self.low > self.high:
            raise ValueError("the interval ends before it begins")
        return self


class Compared(Document):
    """A metric of a case against one other commit."""

    class_: Class = Field(alias="class")
    reason: Text = ""
    """Why that class, and no ratio."""
    ratio: Ratio | None = None
    limit: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    """Relative, of the change; None without."""

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}


class Point(Document):
    """A metric of a case, on one night."""

    case: Name
    device: DeviceKind
    metric: Name
    unit: Annotated[str, Field(max_length=50)]
    timing: Annotated[str, Field(max_length=50)] = ""
    """Timing mode; empty where nothing was timed."""
    value: Finite | None = None
    """Median of main's workers, in `unit`."""
    scatter: Amount | None = None
    """Standard deviation of the logarithms of pairs' ratios against the reference, else the commit recorded last; None
    with fewer than two pairs."""
    last: Compared | None = None
    """Against the commit recorded last; None on the first night."""
    reference: Compared | None = None
    """None also where the reference lacks the case, or asks otherwise."""


class Seam(Document):
    """A new reference against the one before, measured where its epoch begins."""

    before: Reference
    points: Items[Point]
    """`last` holds the ratio new reference / old reference."""


class Night(Document):
    """The answer of one run on main."""

    kind: Literal["perfci-night"] = "perfci-night"
    version: Literal[1] = 1
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """With `attempt` the document's name: of GitHub's run, or of the result."""
    attempt: Annotated[int, Field(ge=1, le=10_000)] = 1
    url: Annotated[str, Field(max_length=500, pattern=r"^(https://[^\s\"'<>]+)?$")] = ""
    """Of the run, where it has one."""
    started: Instant
    commit: Commit
    last: Commit | None = None
    """Recorded last, and measured again; None on the first night."""
    reference: Reference | None = None
    devices: dict[DeviceKind, Name]
    """Device kind → its name."""
    environment: dict[Name, Text]
    """Facts that ratios are not chained across: driver, torch, CUDA, interpreter, image."""
    epoch: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Digest of reference, devices and environment (`record.py`): nothing is concluded across two."""
    seam: Seam | None = None
    error: Text = ""
    """Why the run has no answer; points are those that it had."""
    points: Items[Point]
    """One of each case, device and metric."""

    @property
    def answers(self) -> tuple[bool, bool, bool]:
        """Tell if it knows whether a limit holds, if it has a ratio, and if it ran without an error.

        An attempt at a run is worth the more of this it has, in this order.
        """
        told = [one for point in self.points for one in (point.last, point.reference) if one is not None]
        decided = any(one.class_ in TELLS_OF_LIMIT for one in told)
        return decided, any(one.ratio is not None for one in told), not self.error

    @model_validator(mode="after")
    def _points_differ(self) -> "Night":
        if len({(point.case, point.device, point.metric) for point in self.points}) != len(self.points):
            raise ValueError("two points are of the same case, device and metric")
        return self
