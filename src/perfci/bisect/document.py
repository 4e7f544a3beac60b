"""The document of a bisect: ranges, and every comparison."""

from typing import Literal

from pydantic import Field

from perfci.model.base import DeviceKind, Document, Items
from perfci.model.metrics import Direction
from perfci.model.report import Interval

StepPurpose = Literal["whole", "step", "confirm"]
"""`whole`: does the metric change between the ends of a range? `step`: is at least half of that change there, from the
good end to a candidate? `confirm`: does it change from a parent to the commit that the steps name?"""
Answer = Literal["yes", "no", "unknown"]
Ending = Literal["found", "alike", "unmeasured", "unconfirmed", "joined", "skipped"]
"""`found`: a commit is accused. Else none is. `alike`: the metric does not change between the ends. `unmeasured`: that
is not known. `unconfirmed`: the commit that the steps name does not change it. `joined`: that is a merge, and each of
the lines that it joins has a part of the change. `skipped`: what cannot be measured hides the commit."""


class CommitFacts(Document):
    """A commit, as people are told of it."""

    commit: str
    """Full hash."""
    subject: str = ""
    """First line of its message."""
    author: str = ""
    date: str = ""
    """Of the author: `2026-11-18`."""


class BisectStep(Document):
    """One comparison: `head` against `base`."""

    purpose: StepPurpose
    base: str
    """Full hash."""
    head: str
    answer: Answer
    reason: str = Field("", max_length=1000)
    """Why it is unknown, or where the answer comes from if not from pairs."""
    change: float | None = None
    """Ratio head/base of the metric; None where nothing was compared."""
    interval: Interval | None = None
    """Of `change`."""
    limit: float | None = None
    """Relative change that was asked about."""
    pairs: int = 0
    seconds: float = 0.0
    """Wall time, builds included."""
    folder: str = ""
    """Below the bisect's own folder; empty where nothing had to be measured."""
    explained: list[str] = Field(default_factory=list)
    """Of a confirmation: what profilers saw."""


class Range(Document):
    """A search between two commits."""

    good: CommitFacts
    bad: CommitFacts
    candidates: int
    """Commits of `bad` that `good` has not."""
    whole: BisectStep
    steps: Items[BisectStep] = Field(default_factory=list)
    confirmed: Items[BisectStep] = Field(default_factory=list)
    """The commit that the steps name, against each of its parents."""
    named: CommitFacts | None = None
    """The commit that the steps name; it is accused where `ending` is `found`."""
    suspects: Items[CommitFacts] = Field(default_factory=list)
    """Of `skipped`: one of them did it."""
    ending: Ending
    own: float | None = None
    """Of `found`: ratio of the metric that is the commit's own."""
    several: bool = False
    """Of `found`: True where that is not the change between the ends."""
    sentence: str
    """The answer in one line."""


class Bisect(Document):
    """`bisect.json`."""

    version: Literal[1] = 1
    repository: str
    case: str
    device: DeviceKind | None
    """None where nothing had to be measured."""
    device_name: str
    metric: str
    better: Direction
    limit: float | None
    """Relative change from which on the ends of a range differ; None where the policy's was never read."""
    command: list[str]
    """Command line that does it again."""
    sentence: str
    """The commits that are accused, or that none is, in one line."""
    ranges: list[Range]
    """The one that was asked for; with --all what it left to search, too."""
    names: dict[str, CommitFacts]
    """Full hash → what people are told of it, of every commit that was compared."""
    seconds: float
    """Wall time of all comparisons, those before an interruption among them."""

    @property
    def accused(self) -> list[CommitFacts]:
        """The commits that are accused, in the order found."""
        return [one.named for one in self.ranges if one.ending == "found" and one.named is not None]

    @property
    def exit_code(self) -> Literal[0, 1, 3]:
        """0: a commit is accused; 1: none is; 3: it cannot be said whether the metric changes at all."""
        if self.accused:
            return 0
        return 3 if self.ranges[0].ending == "unmeasured" else 1
