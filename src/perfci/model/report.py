"""The report: what was judged, and nothing rendered."""

from typing import Literal

from pydantic import Field

from perfci.model.base import DeviceKind, Document, Side
from perfci.model.criteria import Against, Beyond, Kind, Purpose, against, beyond
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.results import Check, Phase, Proof, Reason, SideCode, Work
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
"""Worst first: the order in which people read them."""
UNANSWERED: frozenset[Class] = frozenset({"invalid", "changed", "clock", "inconclusive"})
"""Classes of what was asked and has no answer."""
Verdict = Literal["pass", "fail", "undecided", "error"]
"""`undecided`: nothing failed, and something that was asked has no answer."""
Effect = Literal["fail", "undecided", "warn", "pass"]
"""Effect of a row on the verdict, worst first; `warn` is told and does nothing."""


class Interval(Document):
    """An interval of a relative change or of a value."""

    low: float
    high: float
    level: float
    """Exact coverage."""

    def holds(self, value: float) -> bool:
        """Tell whether a value lies in it."""
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
    """Lower end of the exact interval of the median."""
    high: float
    level: float
    """Coverage of [low, high]; 0 where there are too few workers for an interval."""


class Row(Document):
    """The outcome of one criterion, or of a case itself."""

    case: str
    kernel: str
    device: DeviceKind
    metric: str
    unit: str
    kind: Kind | Literal["presence"]
    """Of the limit; `presence` rows speak of the case itself: missing, added, failed, skipped, changed."""
    class_: Class = Field(alias="class")
    effect: Effect
    """Its effect on the verdict."""
    reason: str = ""
    """One sentence: why this class."""
    base: float | None = None
    """Centre of base's workers, in `unit`."""
    head: float | None = None
    change: float | None = None
    """Ratio head/base of the metric (Hodges–Lehmann over pairs): at equal SM clock where the clock was measured, and as
    measured where the two differ by more than the limit and the noise let pass and that shows it, too; `reason`
    then has both."""
    worse: bool | None = None
    """True where the change points to the worse side."""
    interval: Interval | None = None
    """Of the ratio head/base (`regression`), else of head's value."""
    limit: float | None = None
    """Relative change, or absolute bound in `unit`."""
    limit_source: str = ""
    pairs: int = 0
    look: int | None = None
    """Index of the look that decided; None where none did, the last one, or one before the first."""
    last_look: bool = False
    """True where a last look decided: over all `pairs`, when no more would come, at what was left of the error
    rates."""
    early_look: bool = False
    """True where a look before the first one decided: the change is obvious in a few pairs."""
    p: float | None = None
    """One-sided p-value of the deciding test."""
    proved: bool = False
    """True where a proof answers, and nothing was measured."""
    cause: str = ""
    """The explanation of the change from profiles, in one sentence; empty where there is none."""
    file: str = ""
    line: int = 0

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}

    @property
    def against(self) -> Against | None:
        """The counterpart that its limit compares head with; None where it speaks of the case itself."""
        return None if self.kind == "presence" else against(self.kind)

    @property
    def beyond(self) -> Beyond | None:
        """The side of an absolute bound on which a value breaks it; None of any other row."""
        return beyond(self.kind) if self.kind != "presence" and self.against == "bound" else None


class Measured(Document):
    """Statistics of one metric of one case, limit or not."""

    case: str
    device: DeviceKind
    metric: str
    unit: str
    sides: dict[Side, Stats]


class Noise(Document):
    """Where the noise of a case's worker pairs comes from: standard deviations of log ratios at equal clock."""

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
    """The part that dominates, and what would help."""


class Look(Document):
    """The statistics of the pairs at one look."""

    pairs: int
    """Their number."""
    change: float
    """Ratio head/base, as in `Row.change`."""
    interval: Interval


class Trail(Document):
    """The ratios head/base, pair by pair, that a relative limit on one metric was decided on."""

    case: str
    device: DeviceKind
    metric: str
    ratios: list[float | None]
    """In the order measured: at equal SM clock where the clock was measured; None for what is no finite number."""
    measured: list[float | None] = Field(default_factory=list)
    """As measured; empty where that is the same."""
    looks: list[Look] = Field(default_factory=list)
    """Those that were taken, and the last pair where it is none."""


class RoofPoint(Document):
    """Where one side stands under the roofline, by its declared work and the median of its times."""

    rate: float | None = None
    """Floating-point operations per second; None where none are declared."""
    bandwidth: float | None = None
    """Declared bytes per second; None where none are declared."""
    intensity: float | None = None
    """Declared operations per declared byte."""
    measured_intensity: float | None = None
    """Declared operations per byte of device memory that was counted."""
    share: float
    """Of what the binding ceiling allows."""
    bound: Literal["memory", "compute"]
    """The ceiling that binds."""


class Roof(Document):
    """The measured ceilings for the work of a case, and where its sides stand; Williams, Waterman, Patterson 2009."""

    memory: float | None = None
    """Bytes per second, of the declared mix of reads and writes."""
    compute: float | None = None
    """Floating-point operations per second."""
    dtype: str = ""
    """Type whose compute ceiling it is."""
    sides: dict[Side, RoofPoint]
    assumptions: list[str] = Field(default_factory=list)


class Tuned(Document):
    """The configurations that so many workers of a side ran a kernel with, by Triton's autotuner."""

    kernel: str
    configs: list[dict[str, str]]
    """Parameter → value; several where the kernel is called with different arguments."""
    pairs: int


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
    tuned: dict[Side, list[Tuned]] = Field(default_factory=dict)
    """Configurations that an autotuner chose, those of most workers first; several of one kernel vary by process."""
    roof: Roof | None = None
    """None where no work is declared, or no ceiling was measured for it."""
    versus: str = ""
    """The name of head's alternative; empty where it declares none."""


class Observed(Document):
    """One metric that a profiler saw once in base and in head."""

    metric: str
    unit: str
    base: float | None = None
    head: float | None = None


class KernelRow(Document):
    """A kernel of a case in base and head: launches and device seconds of one execution; None where a side lacks it."""

    name: str
    short: str = ""
    """Shortened for people, and still another for each kernel of the case."""
    base_count: float | None = None
    head_count: float | None = None
    base_seconds: float | None = None
    head_seconds: float | None = None


class CallRow(Document):
    """A function of the CUDA API in base and head: calls and the host's seconds in one execution; None where a side
    lacks it."""

    name: str
    base_count: float | None = None
    head_count: float | None = None
    base_seconds: float | None = None
    head_seconds: float | None = None
    base_share: float | None = None
    head_share: float | None = None
    """Of the host's time in all calls of the API."""


class CopyRow(Document):
    """Copies between the same two memories in base and head, in one execution; None where a side has none."""

    name: str
    """Such as `host to device, pageable`."""
    base_bytes: float | None = None
    head_bytes: float | None = None
    base_seconds: float | None = None
    head_seconds: float | None = None


class OsCallRow(Document):
    """A function of the OS runtime in base and head, in one execution: seconds and shares are of all threads together;
    None where a side lacks it."""

    name: str
    base_count: float | None = None
    head_count: float | None = None
    base_seconds: float | None = None
    head_seconds: float | None = None
    base_share: float | None = None
    head_share: float | None = None
    """Of the time of all threads in such calls."""
    base_launching: float | None = None
    head_launching: float | None = None
    """Seconds of these on threads that launch work of the GPU; None where no thread does."""


class CaseProfile(Document):
    """The profile of a case, explained."""

    case: str
    device: DeviceKind
    sentences: list[str] = Field(default_factory=list)
    """Explanations of the change, or of what stands out: most telling first."""
    next_steps: list[str] = Field(default_factory=list)
    """Steps to try next."""
    roofline: str = ""
    """Where the case stands between memory and arithmetic; empty where it declares no work."""
    sources: list[str] = Field(default_factory=list)
    """Such as `nsys 2023.4.4`."""
    kernels: list[KernelRow] = Field(default_factory=list)
    """Longest first, of whichever side takes longer."""
    calls: list[CallRow] = Field(default_factory=list)
    """Of a command, an imported capture or a profile: those that take the host longest."""
    copies: list[CopyRow] = Field(default_factory=list)
    """Likewise."""
    os_calls: list[OsCallRow] = Field(default_factory=list)
    """Longest first, where they were traced."""
    memory: list[Observed] = Field(default_factory=list)
    """Device memory that is allocated at most and at the end, where it was traced."""
    observed: list[Observed] = Field(default_factory=list)
    faults: list[str] = Field(default_factory=list)
    """Why something was not seen, one line each."""

    @property
    def launching(self) -> bool:
        """True where it is told how much of the OS runtime is of threads that launch work of the GPU."""
        return any(row.base_launching is not None or row.head_launching is not None for row in self.os_calls)


class Report(Document):
    """`report.json`."""

    version: Literal[1] = 1
    run: str
    mode: Literal["run", "compare"]
    purpose: Purpose = "change"
    verdict: Verdict
    exit_code: Literal[0, 1, 3]
    sentence: str
    """The verdict with its largest change, as one sentence."""
    advice: str = ""
    """The next step for the reader."""
    advised: list[str] = Field(default_factory=list)
    """Words of the command that `advice` ends with, which is shown as it is typed; empty where it names none."""
    strict: bool = False
    """True where a missing answer fails: `--strict`, or `on_undecided: fail` of the policy."""
    observe: bool = False
    exploratory: bool = False
    """Judged by other limits than the measurement was planned with: error rates do not hold."""
    counts: dict[str, int]
    """Class → cases, each case counted once by its worst row."""
    rows: list[Row]
    """Worst first."""
    measured: list[Measured]
    facts: list[CaseFacts]
    """Of every case, and `measured` likewise, in the order of its worst row."""
    trails: list[Trail] = Field(default_factory=list)
    """Of the relative limits that were answered, in the order of `rows`."""
    unasked: list[Trail] = Field(default_factory=list)
    """Of main against a reference, or of one against the one before: times of cases on whose change there is no limit.
    Recorded, and judged by nothing. What is proved has none."""
    profiles: list[CaseProfile] = Field(default_factory=list)
    """Of the cases that were profiled, in the order of `rows`."""
    notes: list[str]
    files: list[str] = Field(default_factory=list)
    """Suite files that did not import, one line each."""
    started: str
    seconds: float
    measuring_seconds: float
    costs: dict[Phase, float] = Field(default_factory=dict)
    """Phase → its part of `seconds`."""
    imports: dict[str, float] = Field(default_factory=dict)
    """`import NAME` of the suite → seconds that it takes each worker."""
    gpu_hour: Price | None = None
    """Price of an hour on the GPU, as the policy says."""
    pairs: int = 0
    """Worker pairs of the case that took most."""
    noise: float | None = None
    """Median over cases of the relative standard deviation of one pair's time ratio, at equal clock where it was
    measured."""
    command: list[str]
    repository: str = ""
    fingerprint: Fingerprint
    environments: Environments | None = None
    """None where base and head run in the same one."""
    sides: dict[Side, SideCode]
    policy_from: Side = "head"
