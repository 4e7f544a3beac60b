"""The results: what was planned, measured and profiled, and nothing judged."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from perfci.model.base import Amount, DeviceKind, Document, Items, Side
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.metrics import HOST_TIME, CustomMetric
from perfci.model.plan import Plan
from perfci.model.policy import FAIL_ON, FailOn
from perfci.model.profile import Profile
from perfci.model.timing import Timing
from perfci.model.units import Price

ReasonKind = Literal[
    "absent",  # the side does not declare the case
    "skipped",  # by the benchmark itself
    "device",  # the device that it needs is not here
    "import",  # the suite file does not import
    "script",  # a file or a glob of the suite has no case here
    "build",  # the side did not build
    "exception",  # the case raised
    "crash",  # killed by a signal
    "exit",  # ended its process
    "timeout",
    "memory",
    "protocol",  # spoke garbage on perfci's channel
    "wrong",  # wrong result
    "nan",  # not-a-number where the reference has a number
    "invalid",  # a measured value that is no finite positive number, or that cannot be trusted
    "budget",  # not reached in time
    "interrupt",  # by a person or the machine, and --resume goes on with it
    "policy",  # base's limits are wrong, and head fixes them
]


UNREAD: dict[ReasonKind, str] = {"import": "does not import", "script": "has no case"}
"""What is said of a file that gives no cases."""


class Reason(Document):
    """Why something has no value: a kind for programs, a sentence for people."""

    kind: ReasonKind
    text: str = Field(max_length=2000)
    """One line."""
    log: str | None = None
    """Path relative to the output folder."""
    during: Literal["", "round"] = ""
    """`round`: right when checked, it failed while it was measured."""


class Work(Document):
    """The declared work of one execution."""

    flops: float = 0.0
    read: float = 0.0
    """Bytes."""
    written: float = 0.0
    """Bytes."""
    items: float = 0.0
    item: str = "items"
    """Such as tokens, samples."""


class Check(Document):
    """The correctness checks of one side."""

    shapes: int = 0
    """Sets of parameters, the case's own and fuzzed ones."""
    compared: int = 0
    """Those compared with a reference."""
    worst: float | None = None
    """Error, as a share of the tolerance."""
    rtol: float | dict[str, float] | None = None
    """As declared, for all outputs or by position or key; None without a reference."""
    atol: float | dict[str, float] | None = None
    sketch: list[float] = Field(default_factory=list)
    """Projections of the reference's values, the case's own first, then at other parameters: equal if base's and head's
    agree."""
    result: list[float] = Field(default_factory=list)
    """Projections of the result of a script's call that has no reference; empty where it is not the same twice."""
    content: str = ""
    """Digest of all in it but numbers: containers, keys, texts."""
    unredrawn: str = ""
    """Why inputs were not redrawn in place; empty also without a reference."""
    missed: str = ""
    """How base's call of a script misses the script's own reference."""
    miss: Literal["", "first", "later"] = ""
    """Which of its executions: where it is the first nothing is compared, else only that of the first."""


class Versus(Document):
    """The alternative declared with `bench.versus`."""

    name: str = Field(max_length=40)
    code: str
    """Digest of its own bytecode and constants."""
    python: str
    """The Python that compiled it: bytecode of two versions differs."""
    wrong: str = ""
    """Why it is not timed."""


class CaseSide(Document):
    """One side of a case."""

    status: Literal["ok", "failed", "skipped", "absent"] = "ok"
    reason: Reason | None = None
    file: str = ""
    """Path in the repository."""
    line: int = 0
    params: dict[str, Any] = Field(default_factory=dict)
    work: Work = Field(default_factory=Work)
    least: float = 0.0
    """Seconds of this work at the measured ceilings; 0 where that cannot be said."""
    inputs: str = ""
    """Digest of shapes, types and values in the first placement."""
    dtype: str = ""
    """Type of most of their bytes."""
    timing: Timing | None = None
    """None without numbers."""
    check: Check = Field(default_factory=Check)
    versus: Versus | None = None
    """None where it declares none."""
    reports: list[str] | None = None
    """Metrics of a command's first execution, by which globs ask; None where not known."""
    profile: Profile | None = None
    """None where it was not profiled."""
    host: float | None = None
    """Seconds of the host for an execution, as examined on a GPU; None where not told apart from the GPU's."""
    tuner: str | None = None
    """Why processes of this code may run different kernels, seen before timing. Empty: for no reason; None: not
    asked, as on the CPU."""


class Clock(Document):
    """The SM clock of one worker, beside every block, and how block times moved with it.

    The sums run over the worker's blocks, as natural logarithms less their mean.
    """

    hertz: float
    """Geometric mean over the blocks."""
    blocks: int = Field(ge=1)
    variance: float = Field(ge=0)
    """Σ (ln clock)²."""
    covariance: float
    """Σ (ln time)(ln clock)."""


class Moments(Document):
    """Sums of squares and products of deviations, in natural logarithms."""

    time: float = Field(ge=0)
    """Σ (ln time)²."""
    cross: float
    """Σ (ln time)(ln clock)."""
    clock: float = Field(ge=0)
    """Σ (ln clock)²; 0 where the clock was not measured."""

    def at(self, slope: float) -> float:
        """Σ (ln time + slope · ln clock)²."""
        return max(0.0, self.time + 2 * slope * self.cross + slope**2 * self.clock)


class Scatter(Document):
    """The scatter of one pair's block values, as log ratios head/base of blocks next to each other."""

    placements: int = Field(ge=1)
    blocks: int = Field(ge=1)
    """In a placement and side."""
    placement: Moments
    """Of placements' means about the pair's."""
    block: Moments
    """Of blocks about their placement's mean."""


class Choice(Document):
    """A choice of Triton's autotuner for a kernel in a worker."""

    kernel: str = Field(max_length=200)
    config: dict[Annotated[str, Field(max_length=80)], Annotated[str, Field(max_length=80)]] = Field(max_length=32)
    """Parameter → value, with `num_warps` and its like."""


class Pair(Document):
    """A worker of each side: the unit of the statistics. Values are in the metric's unit."""

    index: int = Field(ge=0)
    first: Side | None = None
    """The side that was started first."""
    values: dict[Side, dict[str, float]]
    samples: dict[Side, int] = Field(default_factory=dict)
    """Timed samples behind `time`."""
    spread: dict[Side, float] = Field(default_factory=dict)
    """Relative standard deviation of samples."""
    clock: dict[Side, Clock] = Field(default_factory=dict)
    """Empty where not measured beside every block of both."""
    scatter: Scatter | None = None
    """None where block values do not tell it."""
    spent: dict[Side, float] = Field(default_factory=dict)
    """How many times the machine spent what a worker says, 1 where not more; a side without an entry was not read."""
    blocks: int = 0
    """Blocks of each side."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time of base and head: `first` placement with its warm-up, without what new workers load for all cases;
    `open` and `close` of the others, `block` for the blocks, `host` for host times."""
    at: float | None = None
    """When it ended, in seconds since 1970; None in older runs."""
    gaps: dict[Side, int] = Field(default_factory=dict)
    """Blocks in which the GPU waited for the CPU, so that launch gaps are in the samples."""
    tuners: dict[Side, str] = Field(default_factory=dict)
    """As a side's `tuner`, seen in this pair; a side without an entry was not asked."""
    refused: str = ""
    """The error of head's alternative while it was timed."""
    choices: dict[Side, list[Choice]] = Field(default_factory=dict)
    """Of Triton's autotuner, chosen or given alone."""


class Proof(Document):
    """The answer to whether a case can differ between base and head, found without measuring it."""

    by: Literal["", "files", "code", "work"] = ""
    """`files`: base and head are the same files. `code`: no process of the case named a file that differs. `work`: it
    gives the GPU the same to do. Empty: nothing proves it."""
    reason: str = Field(max_length=1000)
    """Why, or why not, as a clause."""
    audited: bool = False
    """Drawn to be measured all the same."""
    number: str = Field("", max_length=1000)
    """The limit that asks for a number whatever the code, `time max 5 ms`: head alone is measured."""
    host: str = Field("", max_length=1000)
    """The limit that asks for host time, which the same GPU work leaves open: it alone is measured, in both sides."""


def _apart(pairs: list[Pair]) -> list[Pair]:
    if len({pair.index for pair in pairs}) != len(pairs):
        raise ValueError("two pairs have the same index")
    return pairs


Pairs = Annotated[Items[Pair], AfterValidator(_apart)]
"""Each with an index of its own."""
Stopped = Literal["decided", "cap", "budget", "failed", "skipped", "interrupted", "changed", "hopeless"]
"""Why measuring ended. `hopeless`: hardly any further pairs would have decided it."""


class ClaimPairs(Document):
    """Pairs taken for what is claimed of a case, behind its limits' decisions: none of them judges a limit."""

    pairs: Pairs = Field(default_factory=list)
    stopped: Stopped = "decided"
    failures: dict[Side, Reason] = Field(default_factory=dict)


class Case(Document):
    """A case on one device, with everything measured."""

    id: str
    kernel: str
    device: DeviceKind
    origin: Literal["kernel", "command", "imported"] = "kernel"
    """`imported`: from another tool's files, each a worker of a side."""
    sides: dict[Side, CaseSide]
    proof: Proof | None = None
    """None where no proof was sought."""
    pairs: Pairs = Field(default_factory=list)
    stopped: Stopped = "decided"
    claimed: ClaimPairs | None = None
    budget_needed: Amount = 0.0
    """Seconds that would do for the case and all cheaper ones, where the budget ended before the first look that can
    show a regression; else 0."""

    @property
    def key(self) -> str:
        """`id@device`."""
        return f"{self.id}@{self.device}"

    @property
    def captured(self) -> bool:
        """A range or kernel of a profiler's file."""
        return self.origin == "imported" and any(side.profile is not None for side in self.sides.values())

    @property
    def proved(self) -> bool:
        """A proof answers for the case's change, and for what profilers and checks see."""
        return self.proof is not None and bool(self.proof.by) and not self.proof.audited

    @property
    def code_proved(self) -> bool:
        """Proved, and nothing of it was executed: it shares no α."""
        return self.proved and self.proof is not None and self.proof.by != "work"

    @property
    def host_open(self) -> bool:
        """Proved but for its host time, which a limit asks."""
        return self.proved and self.proof is not None and bool(self.proof.host)

    def answered(self, metric: str) -> bool:
        """Return whether a proof answers for a metric: the same GPU work does not for the host's time."""
        return self.proved and (self.code_proved or metric != HOST_TIME)

    def measured(self, side: Side) -> bool:
        """Return whether a side is timed: of a proved case head, if a limit asks for a number; both for host time."""
        if not self.proved or self.proof is None or self.host_open:
            return True
        return side == "head" and bool(self.proof.number)


class SideCode(Document):
    """Where a side's code came from."""

    ref: str = ""
    """As the user named it."""
    commit: str | None = None
    """Full hash, or None outside git."""
    subject: str = ""
    """First line of the commit message."""
    dirty: bool = False
    """Uncommitted changes were measured."""
    tree: str = ""
    """Digest of the files that were measured."""
    build_seconds: float = 0.0
    modules: dict[str, str] = Field(default_factory=dict)
    """The repository's own, imported → path below `tree/` or `site/`."""


class FileFailure(Document):
    """A suite file that could not be imported in one side, or a benchmark script without cases."""

    side: Side
    file: str
    reason: Reason

    @property
    def why(self) -> ReasonKind:
        """Return the key of `UNREAD`; a file that ends its process does not import."""
        return self.reason.kind if self.reason.kind in UNREAD else "import"


class Moment(Document):
    """The GPU at one moment, as NVML tells it. None: not told."""

    at: float
    """Seconds since 1970."""
    temperature: float | None = None
    """°C."""
    sm_clock: float | None = None
    """Hz."""
    power: float | None = None
    """Watts, averaged by the driver over up to a second."""


IMPORT = r"^import \w{1,60}$"
"""A statement whose cost is told."""
Phase = Literal[
    "wait", "snapshot", "build", "prove", "machine", "start", "import", "check", "open", "warm", "samples", "close",
    "commands", "profile", "other",
]  # fmt: skip
"""`wait`: for another perfci on the device. `snapshot`: base and head copied, and found untouched. `prove`: which cases
cannot have changed. `machine`: its facts and ceilings. `start`: of workers, `import`: of the suite in them. `check`:
results before timing. `open`: inputs drawn and placed, `warm`: first executions, `samples`: executions that are timed,
`close`: results after timing, memory freed. `commands`: processes of the policy's commands. `other`: what belongs to
none."""


MOST_SHARDS = 256
"""Of a plan: jobs of a matrix of GitHub's."""


MOST_MODELS = 16
"""Of device that share α."""


class PlanPart(Document):
    """One shard of a plan, or once they are merged all."""

    plan: str = Field(max_length=100)
    """Digest of the plan."""
    shards: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """The shards that are here."""
    of: int = Field(ge=1, le=MOST_SHARDS)
    """Number of shards of the plan."""
    models: int = Field(1, ge=1, le=MOST_MODELS)
    """Models of device that share α, each with its own plan: no verdict before all are here."""
    cases: Items[str]
    """Keys of the whole plan, in order."""

    @property
    def whole(self) -> bool:
        """All shards are here."""
        return len(self.shards) == self.of


UNMEASURED = "unmeasured.json"
"""In place of `results.json` where nothing had to be measured."""


class Results(Document):
    """`results.json`."""

    version: Literal[1] = 1
    run: str
    mode: Literal["run", "compare"]
    started: str
    """UTC, ISO 8601."""
    seconds: Amount = 0.0
    """Wall time of everything."""
    measuring_seconds: Amount = 0.0
    """Wall time of the worker pairs."""
    budget_needed: Amount = 0.0
    """Seconds that would do for all cases, where the run ended since its own could not show a regression of any; else
    0."""
    costs: dict[Phase, Amount] = Field(default_factory=dict)
    """Phase → its part of `seconds`; empty in results of another tool."""
    imports: dict[Annotated[str, Field(pattern=IMPORT)], Amount] = Field(default_factory=dict)
    """Statement such as `import torch` → seconds in each worker; the dearest."""
    command: list[str]
    """Command line that reproduces the run."""
    repository: str = ""
    fingerprint: Fingerprint
    environments: Environments | None = None
    """None where they are the same. The fingerprint is head's."""
    sides: dict[Side, SideCode]
    policy_from: Side = "head"
    """Whose limits apply."""
    fail_on: FailOn = Field(default_factory=lambda: list(FAIL_ON))
    """As the policy has it: criteria have their own."""
    gpu_hour: Price | None = None
    """From the policy."""
    custom_metrics: dict[str, CustomMetric] = Field(default_factory=dict)
    plan: Plan
    part: PlanPart | None = None
    """None where the plan is all there is. Else criteria of the plan are those of these shards, `m` that of the
    whole."""
    cases: Items[Case] = Field(default_factory=list)
    moments: Items[Moment] = Field(default_factory=list)
    """Before and after each round; empty without a GPU."""
    changed: str = Field("", max_length=1000)
    """The files that differ between base and head, with their lines, for people."""
    files: Items[FileFailure] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """Comparisons made, and what was not measured and why."""
    error: Reason | None = None
    """Ended the measurement: the verdict is `error`."""


class Reports(NamedTuple):
    """Metrics of a case: a change is asked of base's, a bound holds for head's."""

    relative: frozenset[str] | None
    """In base, else in head; None where neither is known."""
    bounded: frozenset[str]
    """In head."""


def reports(case: Case) -> Reports:
    """Return the metrics of the first executions, by which the plan is made; where not known, what pairs hold."""
    if case.origin == "kernel":
        return Reports(frozenset({"time"}), frozenset())
    base, head = _reported(case, "base"), _reported(case, "head")
    return Reports(base or head or None, head)


def _reported(case: Case, name: Side) -> frozenset[str]:
    first = case.sides.get(name, CaseSide()).reports
    return frozenset().union(*(pair.values.get(name, {}) for pair in case.pairs)) if first is None else frozenset(first)
