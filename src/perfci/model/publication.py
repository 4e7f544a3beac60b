"""The publication on a pull request."""

from datetime import date

from pydantic import Field

from perfci.model.base import Document
from perfci.model.report import Report

ACCEPT_LABEL = "perf-regression-accepted"
ACCEPT_LINE = "Perf-Accepted"
"""Accepts a failing verdict: a label, and the line of the description with the reason."""


class Origin(Document):
    """From GitHub's API, never from an artifact."""

    repository: str
    """`owner/name`, of the base."""
    pull_request: int | None = None
    """None for a push, a schedule or a dispatch."""
    event: str = ""
    """`pull_request`, `push`, …"""
    head_sha: str
    head_ref: str = ""
    base_ref: str = ""
    fork: bool = False
    """The head lies in another repository."""
    run_id: int
    attempt: int = 1
    run_url: str = ""


class Artifact(Document):
    """Files of the run that people can fetch for some time."""

    name: str
    url: str
    expires: str = ""
    """ISO 8601, UTC; empty: not known."""


class Acceptance(Document):
    """Who took a failing verdict upon themselves."""

    by: str
    """Login, without `@`."""
    at: str
    """ISO 8601, UTC."""
    reason: str = ""
    """From a line `Perf-Accepted: …` of the description, which may be another's."""
    author: str = ""
    """Login of the description's author; empty where that account is gone."""


class Attempt(Document):
    """An earlier measurement of the head."""

    run_id: int
    attempt: int
    sentence: str
    url: str = ""


class MainStanding(Document):
    """How a metric stood on main to the reference, on the last night that tells."""

    case: str
    metric: str
    ratio: float
    """main/reference, side by side on that night."""
    low: float
    high: float
    reference: str
    """Its name: `v1.2`."""
    commit: str
    """Of main, whole."""
    day: date
    """Of the night, in UTC."""


class Shard(Document):
    """A job that measured: a matrix of GPUs gives several."""

    name: str = ""
    """Such as `h100`; empty for the only one."""
    report: Report
    """Judged anew by the publisher, with base's limits."""
    artifacts: list[Artifact] = Field(default_factory=list)


class Publication(Document):
    """All that comment, check run and summary say."""

    suite: str = "perfci"
    """Parts several suites' comments."""
    origin: Origin
    shards: list[Shard] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    """Why a job was not heard."""
    jobs: int = 0
    """To be heard; 0 where not known."""
    unmeasured: str = ""
    """Why nothing had to be measured."""
    nothing: str = ""
    """Why there was nothing to compare, which is no pass."""
    adopting: str = ""
    """Why limits bind nobody yet, where base has no policy: no pass either."""
    unconfirmed: str = ""
    """Why what was measured may not be this change's files, which is no pass."""
    checked: bool = True
    """A check of the head says the same; else nothing can be accepted."""
    acceptance: Acceptance | None = None
    standings: list[MainStanding] = Field(default_factory=list)
    """Of the cases that the change moves most. They judge nothing."""
    attempts: list[Attempt] = Field(default_factory=list)
    """Earlier ones of this head, oldest first."""

    @property
    def undecided(self) -> bool:
        """Something has no answer, and nothing fails that nobody accepted."""
        silent = any(shard.report.verdict == "undecided" for shard in self.shards)
        return self.exit_code == 0 and (silent or bool(self.nothing or self.adopting or self.unconfirmed))

    @property
    def exit_code(self) -> int:
        """0 passed or accepted, 1 failed, 3 where a job has no numbers: that outranks a failure."""
        codes = [shard.report.exit_code for shard in self.shards]
        if (self.unmeasured or self.nothing) and not codes and not self.missing:
            return 0
        if self.missing or not codes or 3 in codes:
            return 3
        return 1 if 1 in codes and self.acceptance is None else 0
