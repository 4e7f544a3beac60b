"""The table of metrics; CONTRIBUTING.md says how to add one."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial
from typing import Literal

from pydantic import Field

from perfci.model.base import Document, UsageError
from perfci.model.text import did_you_mean

HOST_TIME = "host_time"
Direction = Literal["lower", "higher"]
Tier = Literal["timing", "trace", "counters", "static", "reported"]
OBSERVED: frozenset[Tier] = frozenset({"trace", "counters", "static"})
"""Observed once a side, in a pass of its own."""
Source = Literal["worker", "work", "checks", "trace", "counters", "command"]
Aggregate = Literal["sum", "maximum", "minimum", "mean", "same"]
"""Of kernels' values: added, largest, smallest, mean weighted by device time, or the one that all have, else none."""
Event = Literal["launches", "kernels", "copies", "sets", "calls"]
"""Events that a timeline may lack."""


class CustomMetric(Document):
    """A metric that a command reports, declared so that a mistyped name is an error."""

    unit: str = Field("", max_length=24)
    """The unit, as it is to be shown."""
    better: Direction = "lower"
    """The better direction."""


# ---------------------------------------------------------------- ncu's names, by chip

FAMILIES: dict[str, tuple[str, ...]] = {
    "tu102": ("tu102", "tu104", "tu106", "tu116", "tu117"),
    "ga100": ("ga100",),
    "ga102": ("ga102", "ga103", "ga104", "ga106", "ga107"),
    "ga10b": ("ga10b",),
    "ad102": ("ad102", "ad103", "ad104", "ad106", "ad107"),
    "gh100": ("gh100",),
    "gb100": ("gb100", "gb102", "gb110", "gb112"),
    "gb10b": ("gb10b", "gb10c"),
    "gb202": ("gb202", "gb203", "gb205", "gb206", "gb207"),
    "gb20b": ("gb20b", "gb20c"),
    "gr100": ("gr100",),
}
"""Chips with the same of ncu's metrics below, under the name of the first. From libnvperf_host of CUDA 13.5, checked
against `ncu --query-metrics --chips` of 2024.1."""
_ALL = tuple(FAMILIES)
_DISCRETE = tuple(name for name in FAMILIES if name not in ("ga10b", "gb10b", "gb20b"))
_READ_WRITE = ("tu102", "ga100", "ga102", "ad102", "gh100", "gb100")
_OP_READ_WRITE = ("gb202", "gr100")
_PACKED = ("gb100", "gr100")
_UNPACKED = tuple(name for name in FAMILIES if name not in _PACKED)


@dataclass(frozen=True)
class NcuSum:
    """A sum of ncu's metrics, each in its base unit, times a factor."""

    metrics: Mapping[str, float]
    families: tuple[str, ...] = _ALL
    """Where all of them exist."""


def _ncu(*metrics: str, on: tuple[str, ...] = _ALL) -> tuple[NcuSum, ...]:
    return (NcuSum(dict.fromkeys(metrics, 1.0), on),)


def _flops(letter: str, families: tuple[str, ...] = _ALL, *, packed: bool = False) -> tuple[NcuSum, ...]:
    """A fused multiply-add is two operations, a packed instruction two of its kind."""
    counts = {"add": 1.0, "mul": 1.0, "fma": 2.0}
    counts |= {f"{operation}2": 2 * count for operation, count in counts.items()} if packed else {}
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    return (NcuSum({name.format(letter + operation): count for operation, count in counts.items()}, families),)


# ---------------------------------------------------------------- what an entry says


@dataclass(frozen=True)
class PerTime:
    """Declared work over time: the sum of `fields` of `results.Work`, in units of `unit`."""

    words: str
    fields: tuple[str, ...]
    unit: float = 1.0


@dataclass(frozen=True)
class Quantity:
    """Measured, observed or counted. No limit may be on one that is no Metric."""

    name: str
    unit: str
    """Stored in; none for counts and ratios."""
    about: str
    _: KW_ONLY
    tier: Tier
    sources: tuple[Source, ...]
    """Who tells it."""
    aggregate: Aggregate | None = None
    """None for what no single kernel has."""
    ncu: tuple[NcuSum, ...] = ()
    """At most one fits a chip."""
    ncu_also: tuple[NcuSum, ...] = ()
    """Other names in reports that perfci did not ask for."""
    lacking: str = ""
    """Why a chip that no `ncu` fits cannot give it."""
    deep: bool = False
    """Counted only under `counters: deep`."""
    most: float = math.inf
    """A larger value is none."""

    def __post_init__(self) -> None:
        if ("counters" in self.sources) != bool(self.ncu):
            raise ValueError(f"{self.name}: say what ncu counts for it where counters are a source, and only there")
        if self.ncu and self.aggregate is None:
            raise ValueError(f"{self.name}: say how the values of kernels aggregate")


@dataclass(frozen=True, kw_only=True)
class Metric(Quantity):
    """A quantity that limits may be on."""

    better: Direction | None
    """None of ncu's own metrics: a limit says it."""
    exact: bool = False
    """The same code gives the same value: single observations can be compared."""
    alone: bool = False
    """Of head alone: no limit can be relative to base."""
    scatter: float = 0.0
    """Share by which an exact one may differ all the same."""
    work: PerTime | None = None
    """Over time, which it derives from."""
    of_commands: bool = True
    """Profilers can tell it of a whole command, whose start and end they record."""
    spoiled_by: tuple[Event, ...] = ()
    """Events that change it where a timeline lacks some."""
    overall: bool = False
    """Its change explains a case whose kernels cannot be compared one by one."""

    @property
    def of_host(self) -> bool:
        """It hangs on what the host does besides giving the GPU work."""
        return "calls" in self.spoiled_by or self.name == "device_busy"


_timing = partial(Metric, tier="timing", sources=("worker",))
_static = partial(Metric, tier="static", sources=("trace", "counters"), spoiled_by=("kernels",))
_trace = partial(Metric, tier="trace", sources=("trace",))
_counter = partial(Metric, tier="counters", sources=("counters",))
_dram = partial(_counter, lacking="an integrated GPU shares the memory of the host and has no DRAM counters of its own")
_explains = partial(Quantity, tier="counters", sources=("counters",))


_RAN: tuple[Event, ...] = ("launches", "kernels")
_DEVICE: tuple[Event, ...] = ("launches", "kernels", "copies", "sets")
STALLS = {
    "barrier": "at barriers",
    "long_scoreboard": "on global or local memory",
    "short_scoreboard": "on shared memory",
    "math_pipe_throttle": "on a full math pipe",
    "mio_throttle": "on a full shared-memory queue",
    "lg_throttle": "on a full global-memory queue",
    "wait": "on fixed latencies",
    "not_selected": "behind other ready warps",
}
"""Why a warp did not issue, by Nsight Compute's names, and where it waited."""


def table(*entries: Quantity) -> dict[str, Quantity]:
    """Return the entries by name. Raises ValueError for a name twice."""
    found: dict[str, Quantity] = {}
    for entry in entries:
        if entry.name in found:
            raise ValueError(f"two entries are called {entry.name}")
        found[entry.name] = entry
    return found


TABLE: dict[str, Quantity] = table(
    # Timing
    _timing("time", "s", "time of one execution under the case's timing mode", better="lower"),
    _timing("cycles", "cycles", "time × the SM clock measured beside it", better="lower"),
    _timing("cv", "%", "relative standard deviation of the samples of a worker", better="lower"),
    _timing("tflops", "TFLOP/s", "declared floating-point operations over time", better="higher", sources=("work",),
        work=PerTime("floating-point operations", ("flops",), 1e12)),
    _timing("bandwidth", "B/s", "declared bytes read and written over time", better="higher", sources=("work",),
        work=PerTime("bytes", ("read", "written"))),
    _timing("throughput", "/s", "declared items (tokens, samples) over time", better="higher", sources=("work",),
        work=PerTime("items", ("items",))),
    _timing("peak", "%", "share of the ceiling measured on this device, of memory or compute, that the declared work "
        "reaches", better="higher", sources=("work",),
        work=PerTime("floating-point operations or bytes, or no ceiling of them was measured", ("least",), 0.01)),
    _timing("speedup", "x", "time of the alternative that the case declares over its own, both in head's process",
        better="higher", alone=True),
    _timing(HOST_TIME, "s", "time of the host for one execution on a GPU until it returns", better="lower"),
    # Launch configurations and memory
    _static("peak_memory", "B", "device memory of the inputs, and what an execution needs besides; of a command all "
        "that it holds at most", better="lower", exact=True, sources=("checks", "trace"), spoiled_by=("calls",)),
    _static("registers", "", "a thread, of the kernel that needs most", better="lower", exact=True, aggregate="maximum",
        ncu=_ncu("launch__registers_per_thread"), overall=True),
    # Without what the driver adds.
    _static("shared_memory", "B", "static and dynamic, a block, of the kernel with most", better="lower", exact=True,
        aggregate="maximum", ncu=_ncu("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"),
        overall=True),
    _static("local_memory", "B", "spills and arrays, a thread, of the kernel with most", better="lower", exact=True,
        sources=("trace",), aggregate="maximum", overall=True),
    _static("occupancy_theoretical", "%", "what launch configurations allow, weighted by time", better="higher",
        aggregate="mean", ncu=_ncu("sm__maximum_warps_per_active_cycle_pct"), overall=True),
    _static("blocks_per_sm", "", "blocks that an SM holds at once by their launch configuration, weighted by time",
        better="higher", sources=("trace",)),
    _static("warps_per_sm", "", "warps of these blocks", better="higher", sources=("trace",)),
    _static("threads_per_sm", "", "threads of these blocks", better="higher", sources=("trace",)),
    # A timeline
    _trace("kernel_launches", "", "kernels launched", better="lower", exact=True, spoiled_by=_RAN, overall=True),
    _trace("copy_bytes", "B", "bytes copied between memories", better="lower", exact=True, spoiled_by=("copies",)),
    _trace("sync_count", "", "calls that wait for the device", better="lower", exact=True, spoiled_by=("calls",)),
    _trace("alloc_count", "", "calls that allocate or free memory", better="lower", exact=True, spoiled_by=("calls",)),
    _trace("device_time", "s", "device time of all kernels", better="lower", spoiled_by=_RAN),
    _trace("device_busy", "%", "share of the wall time in which the device works", better="higher", spoiled_by=_DEVICE,
        of_commands=False),
    _trace("launch_overhead", "%", "share of the wall time in which the host launches and the device idles",
        better="lower", spoiled_by=(*_DEVICE, "calls"), of_commands=False),
    _trace("alloc_time", "s", "host time in calls that allocate or free memory", better="lower", spoiled_by=("calls",)),
    _trace("copy_time", "s", "device time of copies", better="lower", spoiled_by=("copies",)),
    _trace("copy_bandwidth_h2d", "B/s", "bytes over device time of copies to the device", better="higher",
        spoiled_by=("copies",)),
    _trace("copy_bandwidth_d2h", "B/s", "bytes over device time of copies to the host", better="higher",
        spoiled_by=("copies",)),
    # Hardware counters
    _counter("sm_throughput", "%", "of the SMs' peak", better="higher", aggregate="mean",
        ncu=_ncu("sm__throughput.avg.pct_of_peak_sustained_elapsed"), deep=True),
    _counter("memory_throughput", "%", "of the peak of whichever memory unit is used most", better="higher",
        aggregate="mean", ncu=_ncu("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"), deep=True),
    # `ncu_also` is what ncu's own section SpeedOfLight shows: the same units, seen from the GPU.
    _dram("dram_throughput", "%", "of the device memory's peak", better="higher", aggregate="mean",
        ncu=_ncu("dram__throughput.avg.pct_of_peak_sustained_elapsed", on=_DISCRETE),
        ncu_also=_ncu("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", on=_DISCRETE)),
    _dram("dram_bandwidth", "B/s", "bytes of device memory moved over kernel time", better="higher", aggregate="mean",
        ncu=_ncu("dram__bytes.sum.per_second", on=_DISCRETE)),
    _dram("dram_bytes", "B", "bytes of device memory read and written", better="lower", aggregate="sum",
        ncu=_ncu("dram__bytes.sum", on=_DISCRETE), overall=True),
    _dram("dram_read", "B", "bytes of device memory read", better="lower", aggregate="sum",
        ncu=_ncu("dram__bytes_read.sum", on=_READ_WRITE) + _ncu("dram__bytes_op_read.sum", on=_OP_READ_WRITE)),
    _dram("dram_written", "B", "bytes of device memory written", better="lower", aggregate="sum",
        ncu=_ncu("dram__bytes_write.sum", on=_READ_WRITE) + _ncu("dram__bytes_op_write.sum", on=_OP_READ_WRITE)),
    _counter("tensor_active", "%", "cycles in which the tensor pipes work", better="higher", aggregate="mean",
        ncu=_ncu("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"), overall=True),
    _counter("occupancy", "%", "active warps of those that an SM holds", better="higher", aggregate="mean",
        ncu=_ncu("sm__warps_active.avg.pct_of_peak_sustained_active")),
    # Hits and look-ups are counted in different passes: of a kernel with few ncu tells 246 %, seen on an H200. Of one
    # that looks none up, such as one that loads by TMA, it tells 0.
    _counter("l1_hit_rate", "%", "sectors found in the L1", better="higher", aggregate="mean",
        ncu=_ncu("l1tex__t_sector_hit_rate.pct"), most=100),
    _counter("l2_hit_rate", "%", "sectors found in the L2", better="higher", aggregate="mean",
        ncu=_ncu("lts__t_sector_hit_rate.pct"), most=100),
    _counter("instructions", "", "executed, of all warps", better="lower", aggregate="sum",
        # Loops that wait for copies or other blocks count, too: of matmul/n=4096 on an H200 163 of 17 million.
        ncu=_ncu("smsp__inst_executed.sum"), exact=True, scatter=1e-3, overall=True),
    # Also of arrays that a thread indexes at run time, and of stacks of calls: no counter tells them apart.
    _counter("spills", "", "loads and stores of local memory, of all warps", better="lower", aggregate="sum",
        ncu=_ncu("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum"), exact=True,
        overall=True),
    _counter("bank_conflicts", "", "of shared memory", better="lower", aggregate="sum",
        ncu=_ncu("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")),
    _counter("branch_efficiency", "%", "branches that all threads of a warp take alike", better="higher",
        aggregate="mean", ncu=_ncu("smsp__sass_average_branch_targets_threads_uniform.pct"), deep=True),
    *(
        _counter(
            f"stall_{reason}", "", f"warps stalled ({reason.replace('_', ' ')}) per instruction", better="lower",
            aggregate="mean", ncu=_ncu(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"), deep=True,
        )
        for reason in STALLS
    ),
    # Counted to explain
    _explains("tensor_instructions", "", "warp instructions of the tensor pipe", aggregate="sum",
        ncu=_ncu("sm__inst_executed_pipe_tensor.sum"), deep=True),
    _explains("issue_active", "%", "cycles in which a scheduler issued an instruction", aggregate="mean",
        ncu=_ncu("smsp__issue_active.avg.pct_of_peak_sustained_active"), deep=True),
    _explains("fp32_flops", "", "fp32 operations outside the tensor cores, a fused multiply-add counted as two",
        aggregate="sum", ncu=_flops("f", _PACKED, packed=True) + _flops("f", _UNPACKED), deep=True),
    _explains("fp64_flops", "", "fp64 operations outside the tensor cores, a fused multiply-add counted as two",
        aggregate="sum", ncu=_flops("d"), deep=True),
    _explains("waves", "", "blocks, of those that fit on the GPU at once", aggregate="mean",
        ncu=_ncu("launch__waves_per_multiprocessor")),
    _explains("grid_size", "", "blocks of a launch", aggregate="maximum", ncu=_ncu("launch__grid_size")),
    _explains("block_size", "", "threads of a block", aggregate="maximum", ncu=_ncu("launch__block_size")),
)  # fmt: skip

CATALOGUE: dict[str, Metric] = {name: entry for name, entry in TABLE.items() if isinstance(entry, Metric)}
"""Limits may be on these."""
COUNTERS: dict[str, Quantity] = {name: entry for name, entry in TABLE.items() if entry.aggregate}
"""Single kernels have these."""
DERIVED: dict[str, PerTime] = {name: entry.work for name, entry in CATALOGUE.items() if entry.work}
"""From time and declared work."""
CHECKED = frozenset(name for name, entry in TABLE.items() if "checks" in entry.sources)
"""Told by a kernel's checks before timing; of commands and captures a timeline may tell them."""
TOLD_OF_RANGES = frozenset(name for name, entry in CATALOGUE.items() if not entry.of_commands)
"""Told of a command only within a range: its process starts and ends within what is recorded."""
RANGE = re.compile(r"range:(?P<name>\S.*)")
"""`range:encode`: device time of a user's NVTX range within the case."""
ALL_RANGES = "range:*"


def following(event: Event) -> tuple[str, ...]:
    """Return what changes where some `event` is missing, ALL_RANGES last where ranges do."""
    names = tuple(name for name, entry in CATALOGUE.items() if event in entry.spoiled_by)
    return (*names, ALL_RANGES) if event in _DEVICE else names


def unknown(name: str, what: str, known: Iterable[str], otherwise: str = "") -> UsageError:
    """Return the error that `name` is no `what`, with the nearest of `known`, else all.

    `otherwise`: what else can be done.
    """
    names, name = [*known], name[:80]
    hint = did_you_mean(name, names, f"known are {', '.join(names)}{otherwise}")
    return UsageError(f"{name!r} is no {what}: {hint}")


# ---------------------------------------------------------------- ncu's own names

NCU = re.compile(
    r"(?P<base>[a-z][a-z0-9]{0,20}__[A-Za-z0-9_]{1,150})"
    r"(?:\.(?:(?P<rollup>sum|avg|min|max)(?:\.(?P<of>per_second|per_cycle_(?:active|elapsed|in_frame|in_region)"
    r"|peak_(?:sustained|burst)(?:_(?:active|elapsed|frame|region))?(?:\.per_second)?"
    r"|pct_of_peak_(?:sustained|burst)_(?:active|elapsed|frame|region)))?|(?P<ratio>pct|ratio|max_rate)))?"
)
"""`smsp__inst_executed.sum` (Kernel Profiling Guide, "Metrics Structure")."""
PLAIN_NCU = f"^{re.sub(r'[(][?]P<[a-z]+>', '(', NCU.pattern)}$"


@lru_cache(maxsize=4096)
def of_ncu(name: str) -> Metric | None:
    """Return the metric that ncu calls `name`; None for what cannot be a name of its.

    A name that the table lacks tells unit and aggregate, not the better direction; a chip, or an ncu, may lack it.
    """
    match = NCU.fullmatch(name)
    if match is None:
        return None
    alone = NcuSum({name: 1.0})
    for entry in CATALOGUE.values():
        if any(source.metrics == alone.metrics for source in entry.ncu):
            return replace(
                entry, name=name, tier="counters", sources=("counters",), ncu=(alone,), ncu_also=(), lacking="",
                deep=False, spoiled_by=(), overall=False,
            )  # fmt: skip
    return _counter(name, _unit_of_ncu(match), "a metric of ncu's own", better=None, aggregate=_kernels_of_ncu(match),
        ncu=(alone,))  # fmt: skip


def _kernels_of_ncu(match: re.Match[str]) -> Aggregate:
    """A peak is the chip's; without rollup or ratio it is a launch's, and may be anything."""
    rollup, of, ratio = match["rollup"], match["of"] or "", match["ratio"]
    if of.startswith("peak") or ratio == "max_rate" or not (rollup or ratio):
        return "same"
    if rollup in ("max", "min"):
        return "maximum" if rollup == "max" else "minimum"
    return "sum" if rollup == "sum" and not of else "mean"


def _unit_of_ncu(match: re.Match[str]) -> str:
    """A report that tells another dimension has no value for it."""
    base, of, ratio = match["base"], match["of"] or "", match["ratio"]
    if of.startswith("pct") or ratio == "pct" or base.endswith("_pct"):
        return "%"
    if ratio or of.startswith(("per_cycle", "peak")):
        return ""
    size = re.search(r"_bytes(_|$)|__shared_mem_(per|config)_|_cache_size$", base) is not None
    if of == "per_second":
        return "B/s" if size else "Hz" if "cycles_" in base else "/s"
    return "B" if size else "s" if "__time_" in base else ""


def counter(name: str) -> Quantity:
    """Return the quantity of single kernels of this name, or ncu's. Raises UsageError."""
    found = COUNTERS.get(name) or of_ncu(name)
    if found is None:
        raise unknown(name, "counter", COUNTERS)
    return found


def known_metric(name: str) -> Metric | None:
    """Return the metric of this name, or ncu's; None for any other, as of a range."""
    return CATALOGUE.get(name) or of_ncu(name)


def decided_by_pairs(name: str) -> bool:
    """Tell whether pairs of workers decide limits on a metric, so that a bisect can ask for it."""
    known = known_metric(name)
    return not RANGE.fullmatch(name) and (known is None or known.tier not in OBSERVED)


def resolve(name: str, custom: Mapping[str, CustomMetric]) -> Metric:
    """Return the metric from the catalogue, of a range, the policy's own, or ncu's. Raises KeyError."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    if RANGE.fullmatch(name):
        return _trace(name, "s", "device time of an NVTX range", better="lower", spoiled_by=_DEVICE)
    if name not in custom and (found := of_ncu(name)) is not None:
        return found
    own = custom[name]
    return Metric(name, own.unit, "", better=own.better, tier="reported", sources=("command",))


def combined(name: str, parts: Collection[tuple[float | None, float]]) -> float | None:
    """Aggregate a counter over `parts`: values and their device times in seconds.

    None where there is no part, one lacks its value, a mean has no weight, they differ where they must not, or the
    result is not finite. Raises UsageError for no counter.
    """
    how = counter(name).aggregate
    known = [(value, seconds) for value, seconds in parts if value is not None]
    if not known or len(known) < len(parts):
        return None
    values = [value for value, _ in known]
    weight = sum(seconds for _, seconds in known)
    if how in ("maximum", "minimum"):
        total = max(values) if how == "maximum" else min(values)
    elif how == "sum":
        total = sum(values)
    elif how == "same":
        total = values[0] if len(set(values)) == 1 else math.nan
    elif 0 < weight < math.inf:
        total = sum(value * (seconds / weight) for value, seconds in known)
    else:
        return None
    return total if math.isfinite(total) else None
