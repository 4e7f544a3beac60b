"""perfci's names for hardware counters, and ncu's metrics behind them on each chip.

Availability and the number of passes were taken from NVIDIA's own host library (libnvperf_host of CUDA 13.5) for every
chip here, and checked against `ncu --query-metrics --chips` of 2024.1 for those that it knows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

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
"""Chips that give the same of the metrics below, under the name of the first."""
_COMPUTE = {
    (7, 5): "tu102",
    (8, 0): "ga100",
    (8, 6): "ga102",
    (8, 7): "ga10b",
    (8, 9): "ad102",
    (9, 0): "gh100",
    (10, 0): "gb100",
    (10, 3): "gb100",
    (11, 0): "gb10b",
    (12, 0): "gb202",
    (12, 1): "gb20b",
}

_INTEGRATED = ("ga10b", "gb10b", "gb20b")
_DISCRETE = tuple(name for name in FAMILIES if name not in _INTEGRATED)
_READ_WRITE = ("tu102", "ga100", "ga102", "ad102", "gh100", "gb100")
_OP_READ_WRITE = ("gb202", "gr100")
_PACKED = ("gb100", "gr100")
_UNPACKED = tuple(name for name in FAMILIES if name not in _PACKED)


@dataclass(frozen=True)
class Source:
    """A sum of ncu's metrics, each in its base unit and times a factor."""

    metrics: Mapping[str, float]
    families: tuple[str, ...] = tuple(FAMILIES)
    """Where all of them exist."""


@dataclass(frozen=True)
class Quantity:
    """One of perfci's names for what ncu counts."""

    name: str
    unit: str
    """Of perfci: `%`, `B`, `B/s`, or none for counts and ratios."""
    sources: tuple[Source, ...]
    """At most one fits a chip."""
    about: str
    lacking: str = ""
    """Why a chip that no source fits cannot give it."""
    others: tuple[Source, ...] = ()
    """Under other names, of reports that perfci did not ask for: read where no source is there, and never asked for."""


def _one(metric: str, *families: str) -> tuple[Source, ...]:
    return (Source({metric: 1.0}, families or tuple(FAMILIES)),)


def _sass(kind: str, *, packed: bool) -> dict[str, float]:
    """Operations on floating-point numbers: a fused multiply-add is two, a packed instruction does two of its kind."""
    letter = {"fp32": "f", "fp64": "d"}[kind]
    flops = {"add": 1.0, "mul": 1.0, "fma": 2.0}
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    metrics = {name.format(letter + operation): count for operation, count in flops.items()}
    if packed:
        metrics |= {name.format(f"{letter}{operation}2"): 2 * count for operation, count in flops.items()}
    return metrics


_NO_DRAM = "an integrated GPU shares the memory of the host and has no DRAM counters of its own"
_STALLS = {
    "long_scoreboard": "global, local or texture memory",
    "short_scoreboard": "shared memory or special functions",
    "barrier": "the other warps of its block",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "mio_throttle": "the queue to shared memory and special functions",
    "lg_throttle": "the queue to global and local memory",
    "wait": "a fixed latency",
    "not_selected": "its turn: another warp was issued",
}

QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for quantity in (
        Quantity(
            "sm_throughput", "%", _one("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
            "busiest part of the SMs, of its peak",
        ),
        Quantity(
            "memory_throughput", "%",
            _one("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
            "busiest part of the memory system, caches included, of its peak",
        ),
        Quantity(
            "dram_throughput", "%", _one("dram__throughput.avg.pct_of_peak_sustained_elapsed", *_DISCRETE),
            "DRAM, of its peak", _NO_DRAM,
            # What ncu's own section SpeedOfLight shows as DRAM throughput: the same units, seen from the GPU.
            _one("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", *_DISCRETE),
        ),
        Quantity(
            "dram_bandwidth", "B/s", _one("dram__bytes.sum.per_second", *_DISCRETE),
            "DRAM traffic over the kernels' time", _NO_DRAM,
        ),
        Quantity("dram_bytes", "B", _one("dram__bytes.sum", *_DISCRETE), "DRAM traffic", _NO_DRAM),
        Quantity(
            "dram_read", "B",
            (*_one("dram__bytes_read.sum", *_READ_WRITE), *_one("dram__bytes_op_read.sum", *_OP_READ_WRITE)),
            "read from DRAM", _NO_DRAM,
        ),
        Quantity(
            "dram_written", "B",
            (*_one("dram__bytes_write.sum", *_READ_WRITE), *_one("dram__bytes_op_write.sum", *_OP_READ_WRITE)),
            "written to DRAM", _NO_DRAM,
        ),
        Quantity(
            "tensor_active", "%", _one("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
            "cycles in which tensor cores worked, of those in which an SM was active",
        ),
        Quantity(
            "occupancy", "%", _one("sm__warps_active.avg.pct_of_peak_sustained_active"),
            "warps on an active SM, of the most that it holds",
        ),
        Quantity(
            "occupancy_theoretical", "%", _one("sm__maximum_warps_per_active_cycle_pct"),
            "warps that the launch configuration allows on an SM, of the most that it holds",
        ),
        Quantity(
            "l1_hit_rate", "%", _one("l1tex__t_sector_hit_rate.pct"),
            "sectors found in L1; ncu says 0 of a kernel that looks none up, such as one that loads by TMA",
        ),
        Quantity("l2_hit_rate", "%", _one("lts__t_sector_hit_rate.pct"), "sectors found in L2"),
        Quantity("registers", "", _one("launch__registers_per_thread"), "registers of a thread"),
        Quantity(
            "shared_memory", "B",
            (Source({"launch__shared_mem_per_block_static": 1.0, "launch__shared_mem_per_block_dynamic": 1.0}),),
            "shared memory of a block, static and dynamic, without what the driver adds",
        ),
        Quantity(
            "spills", "",
            (Source({"smsp__inst_executed_op_local_ld.sum": 1.0, "smsp__inst_executed_op_local_st.sum": 1.0}),),
            "loads from and stores to local memory (LDL, STL), warp instructions: spilled registers, and also arrays "
            "that a thread indexes at run time and stacks of calls, which no counter tells apart",
        ),
        Quantity(
            "bank_conflicts", "", _one("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
            "conflicts between banks of shared memory",
        ),
        Quantity("instructions", "", _one("smsp__inst_executed.sum"), "warp instructions"),
        Quantity(
            "tensor_instructions", "", _one("sm__inst_executed_pipe_tensor.sum"),
            "warp instructions of the tensor pipe",
        ),
        Quantity(
            "issue_active", "%", _one("smsp__issue_active.avg.pct_of_peak_sustained_active"),
            "cycles in which a scheduler issued an instruction",
        ),
        Quantity(
            "branch_efficiency", "%", _one("smsp__sass_average_branch_targets_threads_uniform.pct"),
            "branches whose threads all went the same way",
        ),
        *(
            Quantity(
                f"{kind}_flops", "",
                # fp32 instructions on pairs exist on two families only.
                (
                    Source(_sass(kind, packed=True), _PACKED),
                    Source(_sass(kind, packed=False), _UNPACKED),
                )
                if kind == "fp32"
                else (Source(_sass(kind, packed=False)),),
                f"{kind} operations outside the tensor cores, a fused multiply-add counted as two",
            )
            for kind in ("fp32", "fp64")
        ),
        *(
            Quantity(
                f"stall_{reason}", "",
                _one(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"),
                f"warps that wait for {what}, for each instruction issued",
            )
            for reason, what in _STALLS.items()
        ),
        Quantity(
            "waves", "", _one("launch__waves_per_multiprocessor"),
            "blocks, of those that fit on the GPU at once",
        ),
        Quantity("grid_size", "", _one("launch__grid_size"), "blocks of a launch"),
        Quantity("block_size", "", _one("launch__block_size"), "threads of a block"),
    )
}  # fmt: skip

TIME = "gpu__time_duration.sum"
"""Always collected: the weight of a launch."""

_DEFAULT = (
    "dram_bytes", "dram_read", "dram_written", "dram_bandwidth", "dram_throughput", "occupancy",
    "occupancy_theoretical", "tensor_active", "l1_hit_rate", "l2_hit_rate", "instructions", "spills", "bank_conflicts",
    "registers", "shared_memory", "waves", "grid_size", "block_size",
)  # fmt: skip
SETS: dict[str, tuple[str, ...]] = {"default": _DEFAULT, "deep": tuple(QUANTITIES)}
"""`default` takes two replay passes on every chip: what it holds beyond time, bytes, warps, tensor cycles and hit rates
fits into the same two. `deep` takes 11 to 14, before what ncu's sections add."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "default": ("LaunchStats", "Occupancy"),
    "deep": ("LaunchStats", "Occupancy", "SpeedOfLight", "WarpStateStats"),
}
"""ncu's sections that bring the rules of each set; those of `default` take no further pass."""


def chip_of(major: int, minor: int) -> str | None:
    """The chip of a compute capability, such as `gh100`: the first of its family. None where perfci knows none."""
    return _COMPUTE.get((major, minor))


@lru_cache(maxsize=256)
def family(chip: str) -> str | None:
    """The family of a chip such as `GB203`, in any case; None where perfci does not know it."""
    return next((name for name, chips in FAMILIES.items() if chip.lower() in chips), None)


def expand(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names of quantities, of a set where `names` is the name of one. Raises ValueError for a name that is neither."""
    if isinstance(names, str):
        names = SETS.get(names, (names,))
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in QUANTITIES:
            raise ValueError(f"{name}: no counter of perfci's catalogue: name one of {', '.join(sorted(QUANTITIES))}")
    return wanted


@lru_cache(maxsize=1024)
def source(name: str, chip: str) -> Source | None:
    """Where `name` comes from on a chip; None where that cannot give it. Raises KeyError for an unknown name.

    On a chip that perfci does not know it is a source that all known chips share.
    """
    where = family(chip)
    for one in QUANTITIES[name].sources:
        if where in one.families or (where is None and len(one.families) == len(FAMILIES)):
            return one
    return None


@lru_cache(maxsize=1024)
def sources(name: str, chip: str) -> tuple[Source, ...]:
    """All that a report may hold `name` under, best first; where the chip is not known, on any. KeyError as above."""
    quantity, where = QUANTITIES[name], family(chip)
    every = (*quantity.sources, *quantity.others)
    if not chip:
        return every
    first = source(name, chip)
    return () if first is None else (first, *(one for one in quantity.others if where in one.families))


def metrics_for(names: str | Iterable[str], chip: str) -> list[str]:
    """What to hand to ncu's `--metrics` for a set or for quantities, time first, without what the chip cannot give.

    Raises ValueError for an unknown name.
    """
    found = [one for name in expand(names) if (one := source(name, chip)) is not None]
    return list(dict.fromkeys([TIME, *(metric for one in found for metric in one.metrics)]))


def unavailable(names: str | Iterable[str], chip: str) -> dict[str, str]:
    """Quantity → why `chip` cannot give it, in one line. Raises ValueError for an unknown name."""
    missing = [name for name in expand(names) if source(name, chip) is None]
    if family(chip) is None:
        why = f"ncu's metric for it differs by chip, and perfci does not know {chip or 'this one'}"
        return dict.fromkeys(missing, why)
    return {name: QUANTITIES[name].lacking for name in missing}
