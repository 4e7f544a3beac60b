"""The policy: what a repository writes into `perfci.yaml`."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from perfci.model.base import DeviceKind, Document, Loc, Mistake, matches
from perfci.model.metrics import (
    CATALOGUE,
    HOST_TIME,
    OBSERVED,
    CustomMetric,
    Direction,
    Metric,
    of_ncu,
    resolve,
    unknown,
)
from perfci.model.suite import InsidePath, Script, SuiteEntry, as_list, as_values
from perfci.model.text import compiled, did_you_mean
from perfci.model.timing import TimingMode
from perfci.model.units import (
    BOUND_UNITS,
    CLOCK_UNITS,
    COUNT_UNITS,
    FLOP_UNITS,
    RATE_UNITS,
    SIZE_UNITS,
    Duration,
    Percent,
    Price,
    ShortDuration,
    Size,
    parse,
    pattern,
    split,
)

_KINDS: tuple[str, ...] = get_args(DeviceKind)
COMPARED_FILES = 300
"""As many as GitHub names in a comparison (its documentation, "Compare two commits")."""
KEY = "[key]"
"""Behind a field whose name is wrong, as pydantic writes it."""


def spelled(loc: Loc) -> str:
    """Return `limits[0].min`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def _regex(text: str) -> str:
    compiled(text)
    return text


def _devices(patterns: list[str]) -> list[str]:
    for index, name in enumerate(patterns):
        if name in _KINDS or any(mark in name for mark in "*?["):
            continue
        hint = did_you_mean("cuda" if name.lower() == "gpu" else name.lower(), _KINDS)
        if hint:  # of names of devices nothing is close to a kind
            text = "write cuda, cpu, or a glob on the device's name such as '*H200*'"
            raise Mistake(f"{name!r}: {hint} ({text})", index)
    return patterns


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("write a number, or a number with its unit such as '5ms', '80%' or '2TB/s'")
    return value


def _outcomes(names: list[str]) -> list[str]:
    if "undecided" in names and "broken" not in names:
        raise ValueError("undecided fails no run that what is broken does not: write [broken, undecided]")
    return sorted(set(names))


Patterns = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list), Field(min_length=1)]
DevicePatterns = Annotated[Patterns, AfterValidator(_devices)]
Quantity = Annotated[
    float | str,
    BeforeValidator(_quantity),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern([".*"], "[+-]?")}]}),
]
_NAME = "[A-Za-z_][A-Za-z0-9_.-]*"
Name = Annotated[str, Field(pattern=f"^{_NAME}$", max_length=80)]
Regex = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_regex)]
Outcome = Literal["broken", "missing", "undecided"]
"""What can come of a limit besides that it holds. `broken`: of a case, that it fails. `missing`: the case or the metric
is gone from head, or cannot be measured. `undecided`: there is no answer."""
FailOn = Annotated[list[Outcome], BeforeValidator(as_list), AfterValidator(_outcomes)]
FAIL_ON: tuple[Outcome, ...] = ("broken", "missing")
When = Literal["on_change", "always", "never"]
Traced = Literal["osrt", "memory"]
"""They slow the program down."""

UNITS_OF: dict[str, tuple[dict[str, float], str]] = {
    "s": (BOUND_UNITS, "5ms"),
    "B/s": (RATE_UNITS, "2TB/s"),
    "/s": (COUNT_UNITS, "5000/s"),
    "Hz": (CLOCK_UNITS, "1.5GHz"),
    "TFLOP/s": (FLOP_UNITS, "600TFLOP/s"),
    "B": (SIZE_UNITS, "2GB"),
    "%": ({"%": 1.0}, "80%"),
    "x": ({"x": 1.0}, "1.10x"),
}
"""A metric's unit → units of a bound, and an example."""


def bound_in_unit(value: float | str, metric: Metric) -> float:
    """Return a bound in the metric's unit.

    Raises ValueError where the unit does not fit or is missing: 0.85 may have been intended as 85 %.
    """
    known, example = UNITS_OF.get(metric.unit, ({metric.unit: 1.0}, f"10{metric.unit}"))
    number, unit = split(value) if isinstance(value, str) else (float(value), "")
    if unit and not metric.unit:
        raise ValueError(f"{value!r}: {metric.name} has no unit: write a plain number, such as 1e6")
    if unit:
        number = parse(value, known, example)
    elif metric.unit and number:
        raise ValueError(f"{number:.15g} has no unit: write {_likely(number, metric.unit, example)}")
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _likely(number: float, unit: str, example: str) -> str:
    if unit == "%":
        share = f" ({number:.15g}% if that is intended)" if abs(number) <= 1 else ""
        return f"{number * 100 if share else number:.12g}%{share}"
    return f"it with its unit, like {example!r}" if unit in UNITS_OF else f"{number:.15g}{unit}"


LIMIT_KEYS = ("regression", "creep", "min", "max", "expect_kernels")
"""A limit has one of these at least."""
CHANGES = ("regression", "creep")
"""Those that bound a change."""


class Limit(Document):
    """A limit on a metric of the cases it names. Of several limits on one case and metric the last one counts."""

    cases: Patterns = Field(default_factory=lambda: ["*"])
    """Globs on case ids, such as `matmul/*`."""
    metric: str = Field("time", json_schema_extra={"pattern": rf"^({_NAME}|range:\S.*)$"})
    """A name from the metric catalogue, one declared under `metrics`, or ncu's own: `smsp__inst_executed.sum`."""
    regression: Percent | None = None
    """The smallest change for the worse, against base, that must be found."""
    creep: Percent | None = None
    """The change for the worse since the reference, such as the last release, that must be found: asked by the nightly
    comparison with it, and of no pull request."""
    min_change: ShortDuration | None = None
    """A change in `time` or `host_time` smaller than this is never a regression, nor creep."""
    min: Quantity | None = None
    """An absolute lower bound, with its unit: `80%`, `2TB/s`."""
    max: Quantity | None = None
    """An absolute upper bound, with its unit: `5ms`."""
    expect_kernels: Regex | None = None
    """A regular expression: some kernel that the case launches must match it (the attention must still be flash)."""
    better: Direction | None = None
    """The better direction of a metric by ncu's own name, of which perfci knows none: `regression` and `creep` need it
    there."""
    devices: DevicePatterns = Field(default_factory=lambda: ["*"])
    """Globs on the device's kind (`cuda`, `cpu`) or name (`*H200*`)."""
    fail_on: FailOn | None = None
    """What lets the run fail, in place of the policy's own: see there."""

    @model_validator(mode="after")
    def _one_kind(self) -> "Limit":
        if all(getattr(self, name) is None for name in LIMIT_KEYS):
            raise ValueError(f"a limit needs one of: {', '.join(LIMIT_KEYS)}")
        return self


Column = Annotated[str, Field(min_length=1, max_length=100)]


class Columns(Document):
    """What a printed table says where."""

    case: list[Column]
    """They tell rows apart."""
    value: Column
    unit: str
    metric: str


class Command(Document):
    """A case that is a process of its own: a C++ benchmark, an application."""

    name: Name
    """The case id, or the first part of the ids that it reports itself."""
    run: str = Field(min_length=1)
    """The command line, run by `sh -c` in the side's tree."""
    reads: Literal["wall", "perfci", "nvbench", "google-benchmark", "pytest-benchmark", "hyperfine", "csv", "jsonl"] = (
        "wall"
    )
    """The source of the numbers: the process's wall time, `perfci` JSON lines in the file `$PERFCI_METRICS`, what a
    benchmarking tool reports, or a table: `csv` or `jsonl`, printed, or written to `$PERFCI_CSV` or `$PERFCI_JSONL`.
    perfci adds the tool's own option to the end of the line, such as `--benchmark-json="$PERFCI_PYTEST_BENCHMARK"`,
    where the line does not name that variable itself."""
    case: Annotated[list[Column], BeforeValidator(as_list)] = Field(default_factory=list)
    """Columns of the table that tell its rows apart: `N=1024` for each, below the command's name."""
    value: Column | None = None
    """The table's column with the number of a row."""
    unit: str = Field("", max_length=24)
    """The unit of `value`, such as ms."""
    metric: str = Field("time", max_length=80)
    """The metric that `value` is of, in the table."""
    device: DeviceKind = "cpu"
    """The device that the command needs."""
    timeout: Duration | None = None
    """For one execution; the policy's own by default."""
    kernels: Regex | None = None
    """Kernels that ncu profiles, as its `--kernel-name regex:` takes it: a regular expression that is found in the
    names of functions, without arguments. All by default."""
    range: str | None = Field(None, min_length=1, max_length=200)
    """The NVTX range whose executions are what a timeline tells of the command, an execution: its loop without its
    start and end. The whole process by default."""
    skip: int = Field(0, ge=0, le=10**6)
    """So many first executions of `range` are left out in each process: the warm-up."""
    trace: Annotated[list[Traced], BeforeValidator(as_list)] = Field(default_factory=list)
    """Events that its timeline holds besides: calls of the OS runtime (`osrt`), and how much device memory is allocated
    when (`memory`). Both slow it down."""

    @property
    def columns(self) -> Columns | None:
        """The columns of a table, where it reads one."""
        if self.value is None:
            return None
        return Columns(case=self.case, value=self.value, unit=self.unit, metric=self.metric)

    @model_validator(mode="after")
    def _fits_together(self) -> "Command":
        table = self.reads in ("csv", "jsonl")
        if table and self.value is None:
            raise Mistake("a table needs `value:`, the column with the number, its `unit:`, and `case:`", "reads")
        given = self.model_fields_set & {"case", "value", "unit", "metric"}
        if given and not table:
            raise Mistake("is of a table: write `reads: csv` or `jsonl`, or leave it out", min(given))
        if self.value in self.case:
            raise Mistake(f"{self.value!r} cannot tell rows apart, and be their number", "case")
        if self.skip and self.range is None:
            raise Mistake("there is no `range:` whose first executions could be left out: name one", "skip")
        if "memory" in self.trace and self.device == "cpu":
            raise Mistake("a command on the CPU has no device memory: write device: cuda, or trace: osrt", "trace")
        return self


def _unique(commands: list[Command]) -> list[Command]:
    names = [command.name for command in commands]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise Mistake(f"two commands are named {name!r}", index, "name")
    return commands


CounterSet = Literal["default", "deep", "full"]
SECTIONS = (
    "C2CLink", "ComputeWorkloadAnalysis", "InstructionStats", "LaunchStats", "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables", "NumaAffinity", "Nvlink", "Nvlink_Tables",
    "Nvlink_Topology", "Occupancy", "PmSampling", "PmSampling_WarpStates", "SchedulerStats", "SourceCounters",
    "SpeedOfLight", "SpeedOfLight_HierarchicalDoubleRooflineChart", "SpeedOfLight_HierarchicalHalfRooflineChart",
    "SpeedOfLight_HierarchicalSingleRooflineChart", "SpeedOfLight_HierarchicalTensorRooflineChart",
    "SpeedOfLight_RooflineChart", "WarpStateStats", "WorkloadDistribution",
)  # fmt: skip
"""Of Nsight Compute 2022.3 to 2025.3. ncu refuses what it does not know."""


def _counters(value: Any) -> Any:
    if isinstance(value, str) and value not in get_args(CounterSet):
        raise ValueError(f"{value!r} is no set: write {', '.join(get_args(CounterSet))}, or sections: [SpeedOfLight]")
    if value == []:
        raise ValueError("names no section: write some, such as [SpeedOfLight], or leave it out")
    for index, name in enumerate(value if isinstance(value, list) else ()):
        known = name in SECTIONS or any(str(name).startswith(f"{one}_") for one in SECTIONS)
        if name in get_args(CounterSet):
            raise Mistake(f"{name} is a set and no section of ncu: write counters: {name}", index)
        if not isinstance(name, str) or not re.fullmatch(_SECTION, name):
            raise Mistake(f"{name!r} is no name of a section of ncu: write one such as SpeedOfLight", index)
        if not known and (near := did_you_mean(name, SECTIONS, least=0.8)):
            raise Mistake(f"{name!r} is no section of ncu: {near}", index)
    return value


_SECTION = "[A-Za-z][A-Za-z0-9_]{0,79}"
Counters = Annotated[
    CounterSet | Annotated[list[Annotated[str, Field(pattern=f"^{_SECTION}$")]], Field(min_length=1, max_length=50)],
    BeforeValidator(_counters),
]


class History(Document):
    """Settings of the nightly comparisons of main."""

    reference: str | None = Field(None, min_length=1, max_length=200, pattern=r"^[^-\s]\S*$")
    """The tag, branch or commit that `creep` limits hold main to; by default the last release: the highest version
    among the tags that main contains."""


class Policy(Document):
    """`perfci.yaml`: which cases there are, how they are built, and what must hold."""

    version: Literal[1]
    """The format of this file."""
    suite: Annotated[list[SuiteEntry], BeforeValidator(as_values)] = Field(default_factory=list)
    """Globs of Python files that declare kernels, and benchmark scripts."""
    commands: Annotated[list[Command], AfterValidator(_unique)] = Field(default_factory=list)
    """Cases that are processes of their own."""
    build: Annotated[list[str], BeforeValidator(as_list)] = Field(default_factory=list)
    """Shell lines run in each side's tree; what they install into `$PERFCI_SITE` comes first on the path."""
    path: Annotated[list[InsidePath], BeforeValidator(as_list)] = Field(default_factory=lambda: [".", "src"])
    """Folders of the tree that Python imports from, after `$PERFCI_SITE`."""
    python: str | None = None
    """The interpreter of the code under test."""
    env: dict[Name, str] = Field(default_factory=dict)
    """Environment variables for build and cases."""
    pass_env: list[Name] = Field(default_factory=list)
    """Names of variables taken over from the caller's environment, besides those that perfci passes anyway."""
    devices: list[DeviceKind] | None = None
    """Devices to measure on; the GPU where there is one, else the CPU."""
    timing: TimingMode = "auto"
    """The timing mode on a GPU, where a kernel does not say: `rotating`, `cold` and `hot` as docs/measurement.md
    describes them; `auto` is rotating where a case can be captured into a CUDA graph, else cold."""
    profile: When = "on_change"
    """When a case is profiled: where it changed, always or never; always where a limit needs what profilers see."""
    counters: Counters = "default"
    """Hardware counters of the profile: `deep` adds throughputs, stalls and the instruction mix, `full` all that ncu
    has in its own set of that name; a list adds ncu's sections of these names. Each takes longer."""
    prove: bool = True
    """Leave unmeasured what is proved to be unchanged; false measures every case."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads that a case may use; the same cores for base and head."""
    budget: Duration = Field(default="15m")  # type: ignore[assignment]  # validated like a written value
    """Time for all that follows the builds: checks, pairs and profilers; what is undecided then is inconclusive."""
    timeout: Duration = Field(default="60s")  # type: ignore[assignment]
    """For one step of one case, without compilers that it starts; a case that takes longer has failed."""
    build_timeout: Duration = Field(default="30m")  # type: ignore[assignment]
    """For the build of one side, and for all that cases compile before the first pair, which the budget does not
    count."""
    memory: Size | None = None
    """Host memory that one worker may use; by default what is free, shared out over the workers that live together."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of inputs and schedule."""
    fail_on: FailOn = Field(default_factory=lambda: list(FAIL_ON))
    """What lets the run fail: `broken` limits and cases; `missing`, what is gone from head or cannot be measured;
    `undecided`, what has no answer, with which else the run ends with 0 and the verdict `undecided`, as which a branch
    rule lets a pull request pass. Empty only warns. A limit may have its own."""
    gpu_hour: Price | None = None
    """Price of an hour on the GPU, such as `3.50 USD`: reports then say what the run cost."""
    metrics: dict[Name, CustomMetric] = Field(default_factory=dict)
    """Metrics that commands report themselves."""
    limits: list[Limit] = Field(default_factory=list)
    """The limits that must hold."""
    ignore: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list)] = Field(default_factory=list)
    """Globs on paths, such as `docs/*` or `*.md`: in CI a change to nothing but these passes without being measured,
    where base says so."""
    history: History = Field(default_factory=History)
    """Settings of the nightly comparisons."""

    _lines: Mapping[Loc, int] = PrivateAttr(default_factory=dict)

    def read_from(self, lines: Mapping[Loc, int]) -> None:
        """Remember the line of each value."""
        self._lines = lines

    def place(self, file: str, loc: Loc) -> str:
        """Return `perfci.yaml:7`; `file` where no line is known."""
        line = line_of(loc, self._lines)
        return file if line is None else f"{file}:{line}"

    @property
    def globs(self) -> list[str]:
        """Return the suite's files that declare kernels."""
        return [entry for entry in self.suite if isinstance(entry, str)]

    @property
    def scripts(self) -> list[dict[str, Any]]:
        """Return the suite's benchmark scripts, as workers take them."""
        return [one for entry in self.suite if isinstance(entry, Script) for one in entry.messages()]

    def ignores(self, files: Sequence[str]) -> bool:
        """Tell whether a change to these paths need not be measured."""
        known = 0 < len(files) < COMPARED_FILES
        return known and all(any(matches(glob, file) for glob in self.ignore) for file in files)

    @model_validator(mode="after")
    def _metrics_known(self) -> "Policy":
        for name in self.metrics:
            if name in CATALOGUE:
                raise Mistake("is a name of perfci's own catalogue: choose another", "metrics", name, KEY)
        for index, limit in enumerate(self.limits):
            try:
                check_limit(limit, self.metrics)
            except Mistake as error:
                raise Mistake(str(error), "limits", index, *error.loc) from None
        return self


def line_of(loc: Loc, lines: Mapping[Loc, int]) -> int | None:
    """Return the line of the value, or of what holds it."""
    return next((lines[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in lines), None)


def own_limit(written: dict[str, Any], custom: dict[str, CustomMetric]) -> Limit:
    """Return a kernel's limit. Raises Mistake."""
    try:
        limit = Limit.model_validate(written)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        below = cause.loc if isinstance(cause := first.get("ctx", {}).get("error"), Mistake) else ()
        text = first["msg"].removeprefix("Value error, ")
        raise Mistake(text, *first["loc"], *below) from None
    check_limit(limit, custom)
    return limit


def check_limit(limit: Limit, custom: dict[str, CustomMetric]) -> None:
    """Raise Mistake for an unknown metric, a wrong unit, and what cannot be answered."""
    try:
        metric = resolve(limit.metric, custom)
    except KeyError:
        why = unknown(limit.metric, "metric", [*CATALOGUE, *custom], "; declare your own under metrics")
        bare, text = limit.metric.removeprefix("ncu:"), str(why)
        if of_ncu(bare) is not None:
            text = f"{limit.metric!r} is no metric: write {bare}"
        elif "__" in bare and not did_you_mean(bare, [*CATALOGUE, *custom]):
            text = f"{limit.metric[:80]!r} is no metric, nor can ncu have it: write it like smsp__inst_executed.sum"
        raise Mistake(text, "metric") from None
    changes = {name: bound for name in CHANGES if (bound := getattr(limit, name)) is not None}
    if limit.min_change is not None and (metric.name not in ("time", HOST_TIME) or not changes):
        raise Mistake("belongs to a limit on time or host_time, with regression or creep", "min_change")
    if limit.better is not None and metric.better not in (None, limit.better):
        raise Mistake(f"of {metric.name} {metric.better} is better: leave it out", "better")
    for name, bound in changes.items():
        if metric.better is None and limit.better is None:
            # Of such a metric perfci cannot tell whether it repeats, either: who says its direction answers for that.
            text = f"perfci does not know which way {metric.name} gets worse: add better: lower (or higher)"
            raise Mistake(text, name)
        if metric.better is not None and metric.tier in OBSERVED and not metric.exact:
            text = f"{metric.name} is observed once and scatters from run to run: write min or max"
            raise Mistake(text, name)
        if metric.alone:
            raise Mistake(f"{metric.name} is measured of head alone: write min, such as 1.10x", name)
        if bound == 0 and metric.tier not in OBSERVED:
            raise Mistake("0% can never be excluded by timing: write the change that must be found", name)
    for name in ("min", "max"):
        value = getattr(limit, name)
        if value is not None:
            try:
                bound_in_unit(value, metric)
            except ValueError as error:
                raise Mistake(str(error), name) from None
