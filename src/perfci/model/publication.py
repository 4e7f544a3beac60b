"""The publication on a pull request: where the numbers come from, and the report of every matrix job that has some."""

from datetime import date

from pydantic import Field

from perfci.model.base import Document
from perfci.model.report import Report

ACCEPT_LABEL = "perf-regression-accepted"
ACCEPT_LINE = "Perf-Accepted"
"""How a failing verdict is accepted: a label, and the line of the description that gives the reason."""


class Origin(Document):
    """The run that measured. A publisher fills it from GitHub's API, never from an artifact."""

    repository: str
    """`owner/name`, of the base."""
    pull_request: int | None = None
    """None for a push, a schedule or a dispatch."""
    event: str = ""
    """The event that started the run: `pull_request`, `push`, …"""
    head_sha: str
    head_ref: str = ""
    base_ref: str = ""
    fork: bool = False
    """True where the head lies in another repository."""
    run_id: int
    attempt: int = 1
    run_url: str = ""


class Artifact(Document):
    """Files of the run that people can fetch while GitHub keeps them."""

    name: str
    url: str
    expires: str = ""
    """ISO 8601, UTC; empty where it is not known."""


class Acceptance(Document):
    """Who took a failing verdict upon themselves."""

    by: str
    """Login, without `@`."""
    at: str
    """ISO 8601, UTC."""
    reason: str = ""
    """From a line `Perf-Accepted: …` of the pull request's description, which may be another's than who accepted."""
    author: str = ""
    """Login of whoever opened the pull request, whose description it is; empty where that account is gone."""


class Attempt(Document):
    """An earlier measurement of the same head."""

    run_id: int
    attempt: int
    sentence: str
    """Its verdict."""
    url: str = ""


class Standing(Document):
    """How a metric of a case stood on main to the reference, on the last night of the history that tells."""

    case: str
    metric: str
    ratio: float
    """main/reference, measured side by side on that night."""
    low: float
    high: float
    reference: str
    """Its name: `v1.2`."""
    commit: str
    """Of main, whole."""
    day: date
    """Of the night, in UTC."""


class Shard(Document):
    """One job that measured: a matrix of GPUs gives several."""

    name: str = ""
    """Its name among the others, such as `h100`; empty where there is one."""
    report: Report
    """Judged anew by the publisher, with the limits of the base branch."""
    artifacts: list[Artifact] = Field(default_factory=list)


class Publication(Document):
    """Everything that the comment, the check run and the summary say."""

    suite: str = "perfci"
    """Tells the comments of several suites of one repository apart."""
    origin: Origin
    shards: list[Shard] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    """Why a job that should have measured was not heard, one line each."""
    jobs: int = 0
    """How many jobs were to be heard; 0 where that is not known."""
    unmeasured: str = ""
    """Why nothing had to be measured; empty where something had."""
    nothing: str = ""
    """Why there was nothing to compare, which is no pass; empty where there was something."""
    adopting: str = ""
    """Why the limits bind nobody yet, where base has no policy: what passes by them is no pass."""
    unconfirmed: str = ""
    """Why it is not known that what was measured has this change's files, which is no pass; empty where it is."""
    checked: bool = True
    """True where a check of the head says the same: without one nothing can be accepted."""
    acceptance: Acceptance | None = None
    standings: list[Standing] = Field(default_factory=list)
    """Of the cases that the change moves most, as far as the history tells. They judge nothing."""
    attempts: list[Attempt] = Field(default_factory=list)
    """Earlier ones of this head, oldest first."""

    @property
    def undecided(self) -> bool:
        """True where something that was asked has no answer, and nothing fails that nobody accepted."""
        silent = any(shard.report.verdict == "undecided" for shard in self.shards)
        return self.exit_code == 0 and (silent or bool(self.nothing or self.adopting or self.unconfirmed))

    @property
    def exit_code(self) -> int:
        """0 passed or accepted, 1 failed, 3 where a job has no numbers: an infrastructure fault outranks a failure."""
        codes = [shard.report.exit_code for shard in self.shards]
        if (self.unmeasured or self.nothing) and not codes and not self.missing:
            return 0
        if self.missing or not codes or 3 in codes:
            return 3
        return 1 if 1 in codes and self.acceptance is None else 0
