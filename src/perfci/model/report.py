"""The report: what was judged, and nothing rendered."""

from typing import Literal

from pydantic import Field

from perfci.model.base import DeviceKind, Document, Side
from perfci.model.criteria import Against, Beyond, Kind, Purpose, against, beyond
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.results import Check, FileFailure, Phase, Proof, Reason, ReasonKind, SideCode, Work
from perfci.model.timing import Timing
from perfci.model.units import Price

Class = Literal[
    "regression", "violation", "missing", "failed", "changed", "clock", "inconclusive", "invalid",
    "improvement", "unchanged", "added", "skipped",
]  # fmt: skip
CLASSES: tuple[Class, ...] = (
    "failed", "violation", "regression", "missing", "invalid", "changed", "clock", "inconclusive",
    "improvement", "added", "skipped", "unchanged",
)  # fmt: skip
"""Worst first."""
UNANSWERED: frozenset[Class] = frozenset({"invalid", "changed", "clock", "inconclusive"})
"""Asked and without an answer."""
Verdict = Literal["pass", "fail", "undecided", "error"]
"""`undecided`: nothing failed, and something has no answer."""
Effect = Literal["fail", "undecided", "warn", "pass"]
"""On the verdict, worst first; `warn` does nothing."""


class Interval(Document):
    """An interval of a relative change or of a value."""

    low: float
    high: float
    level: float
    """Exact coverage."""

    def holds(self, value: float) -> bool:
        """In it."""
        return self.low <= value <= self.high


class Stats(Document):
    """Worker values of one side, in the metric's unit."""

    n: int
    """Workers."""
    mean: float
    sd: float
    """Standard deviation; 0 for one worker."""
    median: float
    low: float
    """Of the exact interval of the median."""
    high: float
    level: float
    """Of [low, high]; 0 for too few workers."""


class Row(Document):
    """The outcome of a criterion, or of a case."""

    case: str
    kernel: str
    device: DeviceKind
    metric: str
    unit: str
    kind: Kind | Literal["presence"]
    """`presence`: of the case itself: missing, added, failed, skipped, changed."""
    class_: Class = Field(alias="class")
    effect: Effect
    reason: str = ""
    failure: ReasonKind | None = None
    """Of class `failed`: what `reason` tells."""
    base: float | None = None
    """Centre of base's workers, in `unit`."""
    head: float | None = None
    change: float | None = None
    """Ratio head/base (Hodges–Lehmann over pairs): at equal SM clock where measured; as measured where the two
    differ beyond limit and noise and that shows the change, too, and of class `clock`; `reason` then has both."""
    worse: bool | None = None
    """The change points to the worse side."""
    interval: Interval | None = None
    """Of the ratio head/base (`regression`), else of head's value."""
    limit: float | None = None
    """Relative change, or absolute bound in `unit`."""
    limit_source: str = ""
    pairs: int = 0
    look: int | None = None
    """Index of the deciding look; None where none did, the last one, or one before the first."""
    last_look: bool = False
    """A last look decided: over all `pairs`, at what was left of the error rates."""
    early_look: bool = False
    """A look before the first one decided: an obvious change."""
    p: float | None = None
    """One-sided p-value of the deciding test."""
    proved: bool = False
    """A proof answers."""
    cause: str = ""
    """Explains the change from profiles, in one sentence."""
    file: str = ""
    line: int = 0

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}

    @property
    def against(self) -> Against | None:
        """Head's counterpart by the limit; None of a case itself."""
        return None if self.kind == "presence" else against(self.kind)

    @property
    def beyond(self) -> Beyond | None:
        """The side of a bound that breaks it; None of any other row."""
        return beyond(self.kind) if self.kind != "presence" and self.against == "bound" else None


ClaimAnswer = Literal["shown", "not shown", "undecided"]
"""Less than is claimed is excluded; so much is; neither."""


class ClaimRow(Document):
    """The answer to a claim: the time of a case falls by a share at least."""

    case: str
    device: DeviceKind
    fall: float
    answer: ClaimAnswer
    reason: str
    change: float | None = None
    """Ratio head/base (Hodges–Lehmann) of its own pairs, at equal SM clock where measured."""
    interval: Interval | None = None
    pairs: int = 0


class Measured(Document):
    """Statistics of one metric of one case, limit or not."""

    case: str
    device: DeviceKind
    metric: str
    unit: str
    sides: dict[Side, Stats]


class Noise(Document):
    """Where worker pairs' noise comes from: standard deviations of log ratios at equal clock."""

    pair: float
    """Of one pair, as foretold from its parts."""
    worker: float
    """From worker pair to worker pair."""
    placement: float
    """From placement to placement within one."""
    block: float
    """From block to block within a placement."""
    placements: int
    """In a worker."""
    blocks: int
    """In a placement and side."""
    text: str
    """The dominating part, and what would help."""


class Look(Document):
    """Statistics of the pairs at one look."""

    pairs: int
    change: float
    """Ratio head/base, as in `Row.change`."""
    interval: Interval


class Trail(Document):
    """The ratios head/base that a relative limit was decided on."""

    case: str
    device: DeviceKind
    metric: str
    ratios: list[float | None]
    """In the order measured, at equal SM clock where measured; None: no finite number."""
    measured: list[float | None] = Field(default_factory=list)
    """Empty where that is the same."""
    looks: list[Look] = Field(default_factory=list)
    """Those taken, and the last pair where it is none."""


class RoofPoint(Document):
    """One side under the roofline, by declared work and median time."""

    rate: float | None = None
    """Floating-point operations per second; None without declared ones."""
    bandwidth: float | None = None
    """Declared bytes per second."""
    intensity: float | None = None
    """Declared operations per declared byte."""
    measured_intensity: float | None = None
    """Declared operations per counted byte of device memory."""
    share: float
    """Of what the binding ceiling allows."""
    bound: Literal["memory", "compute"]
    """The ceiling that binds."""


class Roof(Document):
    """Measured ceilings for a case's work, and where its sides stand; Williams, Waterman, Patterson 2009."""

    memory: float | None = None
    """Bytes per second, for the declared mix."""
    compute: float | None = None
    """Floating-point operations per second."""
    dtype: str = ""
    """Of the compute ceiling."""
    sides: dict[Side, RoofPoint]
    assumptions: list[str] = Field(default_factory=list)


class CaseFacts(Document):
    """Facts of a case besides its numbers."""

    case: str
    device: DeviceKind
    work: Work
    checks: dict[Side, Check]
    timing: Timing | None = None
    """None where nothing was measured."""
    reasons: dict[Side, Reason] = Field(default_factory=dict)
    proof: Proof | None = None
    """None where no proof was sought."""
    noise: Noise | None = None
    """None where the pairs do not tell its parts."""
    roof: Roof | None = None
    """None without declared work or measured ceiling."""
    versus: str = ""
    """Head's alternative; empty for none."""


class Observed(Document):
    """A metric that a profiler saw once in base and in head."""

    metric: str
    unit: str
    base: float | None = None
    head: float | None = None


BySide = dict[Side, float]
"""A value of base and of head; a side that lacks it is not there."""


class KernelRow(Document):
    """A kernel of a case in base and head, in one execution."""

    name: str
    short: str = ""
    """Shortened for people, and still another for each kernel of the case."""
    count: BySide = Field(default_factory=dict)
    """Launches."""
    seconds: BySide = Field(default_factory=dict)
    """Device time of all of them."""


Use = Literal["call", "copy", "os_call", "memory"]
"""A function of the CUDA API, copies between the same two memories, a function of the OS runtime, device memory."""


class UseRow(Document):
    """What one execution of a case used beside its kernels, in base and head. Its kind tells which values it has."""

    kind: Use
    name: str
    """Such as `cudaMalloc`; `host to device, pageable`; `poll`; `allocated at most`."""
    count: BySide = Field(default_factory=dict)
    """Calls."""
    seconds: BySide = Field(default_factory=dict)
    """Of the host in calls, of all threads together in those of the OS runtime; of the device in copies."""
    bytes: BySide = Field(default_factory=dict)
    """Copied, or allocated."""
    share: BySide = Field(default_factory=dict)
    """Of the time in all calls of this kind."""
    launching: BySide = Field(default_factory=dict)
    """Seconds on threads that launch work of the GPU; empty where no thread does."""


class CaseProfile(Document):
    """The profile of a case, explained."""

    case: str
    device: DeviceKind
    sentences: list[str] = Field(default_factory=list)
    """Explanations of the change, or of what stands out, most telling first."""
    next_steps: list[str] = Field(default_factory=list)
    roofline: str = ""
    """Between memory and arithmetic; empty without declared work."""
    sources: list[str] = Field(default_factory=list)
    """Such as `nsys 2023.4.4`."""
    kernels: list[KernelRow] = Field(default_factory=list)
    """Longest first, of whichever side takes longer."""
    uses: list[UseRow] = Field(default_factory=list)
    """Of a command, an imported capture or a profile: by kind, in the order of `Use`, those that take longest first."""
    observed: list[Observed] = Field(default_factory=list)
    faults: list[str] = Field(default_factory=list)
    """Why something was not seen, one line each."""


class Failure(Document):
    """What `--json` prints where there is no report."""

    version: Literal[1] = 1
    error: str
    """One line: what, where, and what to do."""
    exit_code: Literal[2, 3]
    """2: usage, policy, or a change that `--only` refuses; 3: measurement or machine."""


class Report(Document):
    """`report.json`."""

    version: Literal[1] = 1
    run: str
    mode: Literal["run", "compare"]
    purpose: Purpose = "change"
    verdict: Verdict
    exit_code: Literal[0, 1, 3]
    sentence: str
    """The verdict with its largest change."""
    needs_review: bool = False
    """The change itself fails, not an import."""
    unjudged: bool = False
    """No limit was to be asked: that nothing is decided is right."""
    advice: str = ""
    advised: list[str] = Field(default_factory=list)
    """Words of the command that `advice` ends with."""
    strict: bool = False
    """True where a missing answer fails: `--strict`, or `undecided` in `fail_on` of the policy."""
    exploratory: bool = False
    """Judged by other limits than planned: error rates do not hold."""
    counts: dict[str, int]
    """Class → cases, each by its worst row."""
    rows: list[Row]
    """Worst first."""
    claims: list[ClaimRow] = Field(default_factory=list)
    """Those that are not shown first; pairs of their own answer them."""
    measured: list[Measured]
    facts: list[CaseFacts]
    """Of every case, as `measured`, in the order of its worst row."""
    trails: list[Trail] = Field(default_factory=list)
    """Of relative limits with an answer, in the order of `rows`."""
    unasked: list[Trail] = Field(default_factory=list)
    """Of main and a reference, or of two references: times of cases without a limit on their change, for the record."""
    profiles: list[CaseProfile] = Field(default_factory=list)
    """In the order of `rows`."""
    notes: list[str]
    files: list[FileFailure] = Field(default_factory=list)
    started: str
    seconds: float
    measuring_seconds: float
    costs: dict[Phase, float] = Field(default_factory=dict)
    """Phase → its part of `seconds`."""
    imports: dict[str, float] = Field(default_factory=dict)
    """`import NAME` of the suite → seconds in each worker."""
    gpu_hour: Price | None = None
    """From the policy."""
    pairs: int = 0
    """Of the case that took most."""
    noise: float | None = None
    """Median over cases of the relative standard deviation of a pair's time ratio, at equal clock where measured."""
    command: list[str]
    repository: str = ""
    fingerprint: Fingerprint
    environments: Environments | None = None
    """None where they are the same."""
    sides: dict[Side, SideCode]
    policy_from: Side = "head"
