"""The request of a measurement: what, where and how; and its progress as the caller is told it."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from perfci.model.base import DeviceKind, Document, Side
from perfci.model.criteria import Purpose
from perfci.model.metrics import Direction
from perfci.model.plan import Plan
from perfci.model.policy import Traced
from perfci.model.results import MOST_MODELS, Part, Proof, Results

OUT = "perfci-out"
RESULTS = "results.json"
RAW = "raw"
"""Folder below the output folder for the profilers' own reports, which tell of the machine."""
COMMAND = "PERFCI_COMMAND"
"""Variable with the command line as it was given, where another one was made of it: in a container."""
MEASURE_ALL = "PERFCI_MEASURE_ALL"
"""Variable that does what `--measure-all` does, for whatever calls perfci to compare a tree with itself."""
WAIT, LOCK_CLOCKS, SEED = "PERFCI_WAIT", "PERFCI_LOCK_CLOCKS", "PERFCI_SEED"
"""Variables of the machine: how long to wait for another perfci on the device, `base`, `max` or a frequency at which
the GPU's clock is held, and the seed of inputs and schedule."""
CACHE, KEEP = "PERFCI_CACHE", "PERFCI_KEEP"
"""The folder of builds that are kept, and the side whose build a run keeps there."""


class Question(Document, frozen=True):
    """The one question of a comparison that is a part of something larger, in place of all limits of the policy."""

    metric: str
    bound: float | None = None
    """Relative change; None takes the limit that the policy has for the metric."""
    better: Direction | None = None
    """The direction that counts as better; None takes the metric's own."""
    threshold: bool = False
    """As of a criterion."""
    sharing: int = 1
    """Questions among which α is shared out."""
    explained: bool = False
    """Let profilers explain what changed."""
    precise: bool = False
    """As of a plan."""


class What(Document, frozen=True):
    """The same for a run that goes on by `--resume`, and for each shard of a plan."""

    mode: Literal["run", "compare"]
    base: str | None = None
    """As it was named."""
    pull_request: bool = False
    """HEAD is a pull request's merge commit: base is its first parent."""
    committed: bool = False
    """Measure HEAD as committed, not the working tree: what CI does."""
    commits: tuple[str, str] | None = None
    """Hashes of base and head, whatever is checked out and however they are related; with `committed`."""
    suite: str | None = None
    """Hash of a commit whose policy and suite take the place of those of `commits`."""
    cases: list[str] = Field(default_factory=list)
    """Globs on case ids; empty takes all."""
    devices: list[DeviceKind] | None = None
    python: str | None = None
    """Interpreter of the code under test."""
    base_python: str | None = None
    """Base's, where it is another."""
    env: dict[Side, dict[str, str]] = Field(default_factory=dict)
    """Variables that one side alone gets, beyond its policy's."""
    question: Question | None = None
    purpose: Purpose = "change"
    comparisons: int = 1
    """Comparisons that share α, of which this is one."""
    models: int = Field(1, ge=1, le=MOST_MODELS)
    """Models of device that share α, each with a plan of its own, of which this is one."""
    quick: bool = False
    """Fewer looks, no fuzzing: an answer within a minute for a few cases."""
    exact_pairs: int | None = None
    """Pairs of every case, decided or not; None measures until decided."""
    seed: int | None = None
    """None takes the policy's."""
    measure_all: bool = Field(default_factory=lambda: os.environ.get(MEASURE_ALL, "") not in ("", "0"))
    """Prove nothing: measure what cannot have changed, too."""
    lock_clocks: str | None = None
    """`base`, `max` or a frequency at which the GPU's SM clock is held; None leaves it as it is. Of shards each may
    have its own."""

    @property
    def environments(self) -> bool:
        """True where base's interpreter or a variable is to differ, whatever the code."""
        return self.base_python is not None or any(self.env.values())

    @property
    def head_judges(self) -> bool:
        """True where head's limits judge, and those that its kernels declare: both sides are commits of main."""
        return self.purpose != "change"

    @property
    def itself(self) -> bool:
        """True where base is the tree of head: environments are compared, and no commit was named."""
        return self.mode == "compare" and self.environments and self.base is None and not self.pull_request

    def python_of(self, name: Side) -> str | None:
        """Return the interpreter that was asked for one side."""
        return self.base_python or self.python if name == "base" else self.python


class Where(Document, frozen=True):
    """Folders and the device of this call alone."""

    repository: Path
    """Any folder of it."""
    out: Path
    plan_file: Path | None = None
    """Where the plan of several shards lies, or is to lie: no part of the tree."""
    prepare: Path | None = None
    """Measure nothing: snapshots and builds into this folder, which is new or empty, to be measured later."""
    prepared: Path | None = None
    """Take the sides from this folder, where `prepare` put them: neither git nor a network is needed then."""
    cache: Path | None = None
    """Folder of builds that are kept: base's is taken from there."""
    keep: Side | None = None
    """The side whose build is kept there: of a run that measures the base branch alone."""
    own_python: str = sys.executable
    """Taken where neither `python`, the policy nor an active environment names one."""
    gpu: str | None = None
    """UUID, with `GPU-` in front, of the GPU that this process is to measure on; None takes the first that it sees."""
    neighbours: int = 0
    """Processes that measure on other GPUs of this host meanwhile."""


class How(Document, frozen=True):
    """The ways of measuring and telling: a run may go on in another."""

    budget: float | None = None
    """Seconds; None takes the policy's."""
    strict: bool = False
    """A missing answer fails."""
    raw: bool = False
    """Keep the profilers' own reports too, in RAW below `out`; of a comparison those that may leave the machine."""
    command: list[str] = Field(default_factory=list)
    """The command line."""
    resume: bool = False
    wait: float = 600.0
    """Seconds to wait for another perfci on the same device."""
    counters: bool = True
    """True where ncu may count: reading counters takes rights that code which is not trusted shall not have."""
    profile: bool = False
    """Judge nothing: a few workers, then every case is profiled, and what profilers wrote is kept in `out`."""
    trace: frozenset[Traced] = frozenset()
    """Of a profile, what the timelines of commands hold besides."""
    trial: bool = False
    """Take just so many pairs that their cost is known, and answer nothing."""


WRITTEN = {
    "base": "--base", "cases": "CASE", "devices": "--device", "python": "--python", "base_python": "--python base:",
    "env": "--env", "quick": "--quick", "committed": "--committed", "pull_request": "--pull-request",
    "seed": SEED, "purpose": "--creep", "measure_all": "--measure-all", "lock_clocks": LOCK_CLOCKS,
    "exact_pairs": "--pairs", "budget": "--budget", "strict": "--strict", "raw": "--raw", "command": "",
}  # fmt: skip
"""Fields of What and How that `--resume` takes from the run before → as they are written."""
ANEW = "make a new plan with `perfci plan`"
"""The remedy where something is not as it was planned."""


@dataclass(frozen=True)
class Planned:
    """A plan that was made before, as far as one process measures it, and what must be as it was planned."""

    plan: Plan
    run: str
    """Identifier of the run."""
    name: str
    """Of what is measured here, and of nothing else."""
    part: Part
    proofs: Mapping[str, Proof | None]
    """Of each case that is measured here, by its key."""
    known: Mapping[str, str]
    """Key of each case that is to be found here → the command that it is of; empty for a kernel's."""
    sources: Mapping[str, str]
    machine: Mapping[str, str]
    """Claims."""
    draws: str
    """As of `Bench`."""


@dataclass(frozen=True)
class Request:
    """One call of `run` or `compare`."""

    what: What
    where: Where
    how: How
    planned: Planned | None = None
    """None plans it here."""

    @classmethod
    def of(cls, mode: Literal["run", "compare"], repository: Path, out: Path, **more: Any) -> "Request":
        """Return a request by the names of its parts' fields."""
        return cls(What(mode=mode), Where(repository=repository, out=out), How()).but(**more)

    def but(self, **changes: Any) -> "Request":
        """Return the same request but for some fields of its parts."""
        made: dict[str, Any] = {"what": self.what, "where": self.where, "how": self.how}
        for name, part in made.items():
            own = {field: changes.pop(field) for field in type(part).model_fields.keys() & changes.keys()}
            made[name] = type(part)(**(dict(part) | own))
        if changes:
            raise TypeError(f"a request has no {', '.join(changes)}")
        return replace(self, **made)


class Standing(NamedTuple):
    """How far the pairs of a run have come."""

    pairs: int
    """Of the case that has most."""
    open: int
    """Cases that need more."""
    decided: int
    cases: int
    seconds: float
    """Spent of the budget."""
    budget: float
    expected: float | None
    """Seconds that further pairs will probably take; None where nothing tells yet."""


class Progress(Protocol):
    """Told about every step, so that a person sees that something happens."""

    def stage(self, text: str) -> None:
        """A new step begins."""

    def note(self, text: str) -> None:
        """Something worth a line of its own."""

    def pair(self, standing: Standing) -> None:
        """A worker pair is done."""

    def decided(self, results: Results) -> None:
        """Results whose cases a proof or their pairs have decided just now."""
