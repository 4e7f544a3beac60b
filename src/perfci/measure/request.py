"""The request of a measurement, and the progress reported to its caller."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from perfci.model.base import DeviceKind, Document, Side
from perfci.model.claims import Claim
from perfci.model.criteria import Purpose
from perfci.model.metrics import Direction
from perfci.model.plan import Plan
from perfci.model.policy import Traced
from perfci.model.results import MOST_MODELS, PlanPart, Proof, Results

OUT = "perfci-out"
RESULTS = "results.json"
RAW = "raw"
"""Below the output folder: the profilers' own reports."""
COMMAND = "PERFCI_COMMAND"
"""Variable with the command line that a container's was made of."""
MEASURE_ALL = "PERFCI_MEASURE_ALL"
"""Variable in place of `--measure-all`."""
WAIT, SEED = "PERFCI_WAIT", "PERFCI_SEED"
"""Variables of the machine: seconds to wait for another perfci on the device; seed of inputs and schedule."""
CACHE, KEEP = "PERFCI_CACHE", "PERFCI_KEEP"
"""Folder of kept builds, and the side kept there."""


class Question(Document, frozen=True):
    """The one question of a comparison within something larger, in place of the policy's limits."""

    metric: str
    bound: float | None = None
    better: Direction | None = None
    """None takes the metric's own."""
    threshold: bool = False
    sharing: int = 1
    """Questions that share α."""
    explained: bool = False
    """Profilers explain what changed."""
    precise: bool = False


class What(Document, frozen=True):
    """What `--resume` and each shard of a plan must repeat."""

    mode: Literal["run", "compare"]
    base: str | None = None
    head: str | None = None
    """A commit in place of the working tree; with `committed`."""
    limit: str = ""
    """The policy where the tree has none, of `--limit`."""
    pull_request: bool = False
    """HEAD is a pull request's merge commit: base is its first parent."""
    committed: bool = False
    """Measure HEAD as committed, not the working tree, as in CI."""
    commits: tuple[str, str] | None = None
    """Hashes of base and head, related or not, checked out or not; with `committed`."""
    suite: str | None = None
    """Hash of a commit whose policy and suite replace those of `commits`."""
    cases: list[str] = Field(default_factory=list)
    """Globs on case ids; empty takes all."""
    devices: list[DeviceKind] | None = None
    python: str | None = None
    base_python: str | None = None
    """Base's, where it is another."""
    env: dict[Side, dict[str, str]] = Field(default_factory=dict)
    """Variables of one side, beyond its policy's."""
    question: Question | None = None
    only: list[str] = Field(default_factory=list)
    """Globs of the files that head may change; empty: all."""
    claims: list[Claim] = Field(default_factory=list)
    described: str = ""
    """The words of a pull request's description that `claims` are read from."""
    attempt: int | None = Field(None, ge=1)
    """Of a search, which claims after each; they share α."""
    purpose: Purpose = "change"
    comparisons: int = 1
    models: int = Field(1, ge=1, le=MOST_MODELS)
    """Models of device that share α, each with its own plan, this one included."""
    quick: bool = False
    """Fewer looks, no fuzzing: an answer within a minute for a few cases."""
    exact_pairs: int | None = None
    """Pairs of every case; None measures until decided."""
    seed: int | None = None
    measure_all: bool = Field(default_factory=lambda: os.environ.get(MEASURE_ALL, "") not in ("", "0"))
    """Prove nothing: measure also what cannot have changed."""

    @property
    def environments(self) -> bool:
        """Tell whether interpreter or variables are to differ."""
        return self.base_python is not None or any(self.env.values())

    @property
    def head_judges(self) -> bool:
        """Tell whether head's limits judge: both sides are commits of main."""
        return self.purpose != "change"

    @property
    def itself(self) -> bool:
        """Tell whether base is head's tree: environments are compared."""
        return self.mode == "compare" and self.environments and self.base is None and not self.pull_request

    def python_of(self, name: Side) -> str | None:
        """Return the interpreter asked for one side."""
        return self.base_python or self.python if name == "base" else self.python


class Where(Document, frozen=True):
    """Folders and device of this call."""

    repository: Path
    out: Path
    plan_file: Path | None = None
    """Plan of several shards: no part of the tree."""
    prepare: Path | None = None
    """Only build, into this new or empty folder."""
    prepared: Path | None = None
    """Folder of sides from `prepare`, without git or a network."""
    cache: Path | None = None
    """Folder of kept builds."""
    keep: Side | None = None
    """The side whose build is kept there, of a run that measures the base branch alone."""
    own_python: str = sys.executable
    """Where nothing else names one."""
    gpu: str | None = None
    """UUID, with `GPU-`; None: the first visible."""
    neighbours: int = 0
    """Processes on other GPUs of this host."""


class How(Document, frozen=True):
    """What a resumed run may change."""

    budget: float | None = None
    strict: bool = False
    raw: bool = False
    """Keep profilers' reports in RAW; of a comparison those that may leave the machine."""
    command: list[str] = Field(default_factory=list)
    resume: bool = False
    wait: float = 600.0
    """Seconds."""
    counters: bool = True
    """ncu may count, which takes rights that code which is not trusted shall not have."""
    profile: bool = False
    """Judge nothing: every case is profiled, and files are kept in `out`."""
    trace: frozenset[Traced] = frozenset()
    """What commands' timelines hold besides."""


WRITTEN = {
    "base": "BASE", "head": "HEAD", "cases": "-k", "limit": "--limit",
    "devices": "--device", "python": "--python", "base_python": "--python base:",
    "env": "--env", "quick": "--quick", "committed": "--committed", "only": "--only", "pull_request": "--pull-request",
    "claims": "--claim", "attempt": "--attempt", "described": "", "seed": SEED, "purpose": "--creep",
    "measure_all": "--measure-all", "exact_pairs": "--pairs", "budget": "--budget", "strict": "--strict",
    "raw": "--raw", "command": "",
}  # fmt: skip
"""Fields that `--resume` takes from the earlier run → their written form."""
ANEW = "make a new plan with `perfci plan`"


@dataclass(frozen=True)
class Planned:
    """One process's part of a plan made before, and what must be as planned."""

    plan: Plan
    run: str
    name: str
    part: PlanPart
    proofs: Mapping[str, Proof | None]
    """Case key → proof, of cases here."""
    known: Mapping[str, str]
    """Case key → its command, empty for a kernel."""
    sources: Mapping[str, str]
    machine: Mapping[str, str]
    draws: str


@dataclass(frozen=True)
class Request:
    """One call of `run` or `compare`."""

    what: What
    where: Where
    how: How
    planned: Planned | None = None

    @classmethod
    def of(cls, mode: Literal["run", "compare"], repository: Path, out: Path, **more: Any) -> "Request":
        """Return a request by its parts' fields."""
        return cls(What(mode=mode), Where(repository=repository, out=out), How()).but(**more)

    def but(self, **changes: Any) -> "Request":
        """Return the request with some fields changed."""
        made: dict[str, Any] = {"what": self.what, "where": self.where, "how": self.how}
        for name, part in made.items():
            own = {field: changes.pop(field) for field in type(part).model_fields.keys() & changes.keys()}
            made[name] = type(part)(**(dict(part) | own))
        if changes:
            raise TypeError(f"a request has no {', '.join(changes)}")
        return replace(self, **made)


class PairProgress(NamedTuple):
    """Progress of a run's pairs."""

    pairs: int
    """Of the case that has most."""
    open: int
    decided: int
    cases: int
    seconds: float
    budget: float
    expected: float | None
    """Probable seconds of further pairs."""


class Progress(Protocol):
    """Is told of every step."""

    def stage(self, text: str) -> None:
        """Begin a new step."""

    def note(self, text: str) -> None:
        """Report a line."""

    def pair(self, standing: PairProgress) -> None:
        """Report a finished worker pair."""

    def decided(self, results: Results) -> None:
        """Report results whose cases are just decided."""
