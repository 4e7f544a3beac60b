"""google-benchmark's JSON, from version 1.5 on (which tells iterations from aggregates)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfci.measure.commands.readers.base import (
    CLOCK_UNITS,
    About,
    Format,
    Reported,
    Statistic,
    case_id,
    declared,
    declared_times,
    dicts,
    dig,
    each_once,
    number,
    plain,
    positive,
    read_document,
    reason,
    text_at,
)
from perfci.model.metrics import CustomMetric
from perfci.model.text import one_line

_FITTED = ("BigO", "RMS")
"""Aggregates of a family: coefficients of its complexity, no time."""
_STATISTICS: tuple[Statistic, ...] = ("mean", "median")
"""Aggregates for a benchmark without its repetitions, in order of choice."""
_RATES = {"bytes_per_second": "bandwidth", "items_per_second": "throughput"}
_OWN = frozenset({"real_time", "cpu_time", *_RATES})
"""No metric of the policy takes these for counters."""
NAMES = "give them names of their own"


def read_google_benchmark(
    path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None
) -> dict[str, Reported]:
    """Return cases of a google-benchmark result (`--benchmark_out`) by id `NAME/BENCHMARK/ARGUMENT…`; `n:8` becomes
    `n=8`.

    `time`: seconds of real time (under `/manual_time` the benchmark's own), one per repetition; the mean of a file with
    aggregates only. `bandwidth`, `throughput`: google-benchmark's bytes and items per second, over CPU time except
    under `/real_time` and `/manual_time`. Counters and `cpu_time` need a declaration in `custom`. Raises ValueError,
    one line, for an unusable file.
    """
    root = read_document(path, _fits, "google-benchmark", "write it with --benchmark_out=FILE")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for entry in dicts(root["benchmarks"], path, "google-benchmark"):
        if entry.get("run_type") not in ("iteration", "aggregate"):
            raise ValueError(f"{path}: was written by google-benchmark before 1.5, which perfci does not read")
        if entry.get("aggregate_name") not in _FITTED:
            key = (str(entry.get("family_index")), str(entry.get("per_family_instance_index")))
            groups.setdefault((*key, str(entry.get("run_name"))), []).append(entry)
    found = (
        _benchmark(case_id(name, map(_part, run.split("/"))), entries, custom or {})
        for (*_, run), entries in groups.items()
    )
    return each_once(found, path, NAMES, "no benchmark ran (does a filter leave none?)")


def _part(text: str) -> str:
    """Turn `n:1024` into `n=1024`, but not the `::` of a C++ scope."""
    return "=".join(map(plain, re.split(r"(?<!:):(?!:)", text)))


def _benchmark(case: str, entries: list[dict[str, Any]], custom: Mapping[str, CustomMetric]) -> Reported:
    for entry in entries:
        if entry.get("error_occurred"):
            return Reported(case, reason=reason("exception", f"SkipWithError: {entry.get('error_message')}"))
        if entry.get("skipped"):
            return Reported(case, reason=reason("skipped", str(entry.get("skip_message") or "by the benchmark")))
    runs = [entry for entry in entries if entry["run_type"] == "iteration"]
    if runs:
        if len({str(entry.get("repetition_index")) for entry in runs}) < len(runs):
            return Reported(case, reason=reason("protocol", f"two benchmarks have this name: {NAMES}"))
        return _measured(case, runs, custom)
    for statistic in _STATISTICS:
        chosen = [entry for entry in entries if entry.get("aggregate_name") == statistic]
        if len(chosen) == 1:
            return _measured(case, chosen, custom, statistic)
    text = "the file holds neither repetitions nor their mean or median"
    return Reported(case, reason=reason("invalid", text))


def _measured(
    case: str, entries: list[dict[str, Any]], custom: Mapping[str, CustomMetric], statistic: Statistic = "samples"
) -> Reported:
    values: dict[str, list[float]] = {}
    try:
        for entry in entries:
            for metric, value in _values(entry, custom).items():
                values.setdefault(metric, []).append(value)
    except ValueError as error:
        return Reported(case, reason=reason("invalid", str(error)))
    for metric, one in values.items():
        if len(one) != len(entries):
            return Reported(case, reason=reason("invalid", f"only some repetitions report {metric}"))
    return Reported(case, values, statistic=statistic)


def _values(entry: dict[str, Any], custom: Mapping[str, CustomMetric]) -> dict[str, float]:
    """Raises ValueError."""
    unit = CLOCK_UNITS.get(str(entry.get("time_unit")))
    if unit is None:
        raise ValueError(f"time_unit {one_line(entry.get('time_unit'), 20)!r} is unknown")
    values = {"time": positive(entry.get("real_time"), "real_time") * unit}
    for field, metric in _RATES.items():
        if field in entry and number(entry[field]) != 0:  # 0: no bytes, no items
            values[metric] = positive(entry[field], field)
    if "cpu_time" in custom:
        values |= declared_times({"cpu_time": positive(entry.get("cpu_time"), "cpu_time") * unit}, custom)
    return values | declared({field: entry[field] for field in entry.keys() - _OWN}, custom)


def _fits(root: Any) -> bool:
    return isinstance(dig(root, "context"), dict) and "benchmarks" in root


def _about(root: Any) -> About:
    context = root["context"]
    remarks = []
    if context.get("library_build_type") == "debug":
        remarks.append(
            "google-benchmark's library was built in debug mode, it says: times of short benchmarks may be too long"
        )
    if context.get("cpu_scaling_enabled") is True:
        remarks.append("the CPU's frequency scaling was on")
    cores, megahertz = number(context.get("num_cpus")), number(context.get("mhz_per_cpu"))
    clock = f"{megahertz:g} MHz" if megahertz > 0 and math.isfinite(megahertz) else ""
    facts = (("CPU clock", clock), ("executable", text_at(context, "executable")))
    return About(
        date=text_at(context, "date"),
        host=text_at(context, "host_name"),
        cores=int(cores) if 0 < cores < 1e6 else 0,
        more=tuple((name, value) for name, value in facts if value),
        remarks=tuple(remarks),
    )


GOOGLE_BENCHMARK = Format(
    "google-benchmark",
    "PERFCI_GOOGLE_BENCHMARK",
    "google-benchmark.json",
    '--benchmark_out="$PERFCI_GOOGLE_BENCHMARK" --benchmark_out_format=json',
    read_google_benchmark,
    _fits,
    _about,
)
