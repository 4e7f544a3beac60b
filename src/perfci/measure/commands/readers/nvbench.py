"""NVBench's JSON."""

import math
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from perfci.measure.commands.readers.base import (
    About,
    Format,
    Reported,
    case_id,
    dicts,
    dig,
    each_once,
    number,
    plain,
    read_bytes,
    read_document,
    reason,
    text_at,
)
from perfci.model.metrics import CustomMetric
from perfci.model.results import Work
from perfci.model.text import one_line

# Tags of NVBench's summaries (nvbench/json_printer.cu, detail/measure_cold.cu, detail/measure_cpu_only.cxx).
_SOURCES = (
    ("nv/json/bin:nv/cold/sample_times", "nv/cold/time/gpu/mean", "nv/cold/bw"),
    ("nv/json/bin:nv/cpu_only/sample_times", "nv/cpu_only/time/cpu/mean", "nv/cpu_only/bw"),
)
# For NVBench a state that failed is skipped too (nvbench/runner.cxx, runner.cuh); its text tells them apart.
_FAILED_SKIPS = ("Unexpected error: ", "Skipped because a previous state requested")


def read_nvbench(path: Path, name: str, _: Mapping[str, CustomMetric] | None = None) -> dict[str, Reported]:
    """Return cases of an NVBench result (`--json`, `--jsonbin`; format 1.x) by id `NAME/BENCHMARK/N=1`, with `device=0`
    before its axes where it ran on several.

    `time`: seconds of every sample's isolated ("cold") GPU time under `--jsonbin`, else their mean; CPU times of a
    CPU-only benchmark. Declared work is NVBench's rate times its mean; its bytes, not split into read and written,
    stand under `read`. Raises ValueError, one line, for an unusable file.
    """
    root = read_document(path, _fits, "NVBench", "run the benchmark with --jsonbin FILE")
    version = dig(root, "meta", "version", "json", "major")
    if version != 1:
        raise ValueError(f"{path}: NVBench file format {str(version)[:20]!r} is unknown: perfci reads 1.x")
    found: list[Reported] = []
    for benchmark in dicts(root["benchmarks"], path, "NVBench"):
        states = dicts(benchmark.get("states"), path, "NVBench")
        several = len({state.get("device") for state in states if isinstance(state.get("device"), int)}) > 1
        prefix = case_id(name, [plain(benchmark.get("name"))])
        found += [_state(state, prefix, path, several) for state in states]
    return each_once(found, path, "give its axes different names or values", "NVBench ran no state")


def _state(state: dict[str, Any], prefix: str, path: Path, several_devices: bool) -> Reported:
    parts = []
    if several_devices:
        parts.append(f"device={plain(state.get('device'))}")
    parts += [
        f"{plain(axis.get('name'))}={plain(axis.get('value'))}"
        for axis in dicts(state.get("axis_values"), path, "NVBench")
    ]
    case = case_id(prefix, parts)
    if state.get("is_skipped"):
        text = str(state.get("skip_reason") or "skipped by the benchmark without a reason")
        failed = text.startswith(_FAILED_SKIPS)
        return Reported(case, reason=reason("exception" if failed else "skipped", text))
    summaries = {str(summary.get("tag")): summary for summary in dicts(state.get("summaries"), path, "NVBench")}
    for sidecar, mean, rates in _SOURCES:
        if sidecar not in summaries and mean not in summaries:
            continue
        try:
            average = _number(summaries, mean)
            times = _sidecar(summaries[sidecar], path) if sidecar in summaries else [average]
        except ValueError as error:
            return Reported(case, reason=reason("invalid", str(error)))
        items, moved = (
            _amount(summaries, f"{rates}/{rate}", average) for rate in ("item_rate", "global/bytes_per_second")
        )
        work = Work(items=items, read=moved, item="elements") if items or moved else None
        return Reported(case, {"time": times}, work, statistic="samples" if sidecar in summaries else "mean")
    return Reported(case, reason=reason("invalid", "NVBench reports no isolated time of this state"))


def _number(summaries: dict[str, dict[str, Any]], tag: str) -> float:
    """NVBench writes numbers as strings, and null for infinities."""
    if tag not in summaries:
        raise ValueError(f"NVBench's summary {tag} is missing")
    raw = _data(summaries[tag]).get("value")
    try:
        value = float(raw) if isinstance(raw, str) else number(raw)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"NVBench's {tag} is {str(raw)[:40]!r}: no finite positive number")
    return value


def _amount(summaries: dict[str, dict[str, Any]], tag: str, seconds: float) -> float:
    """NVBench stores the rate, amount/mean, so the whole number is exact below 2^50."""
    if tag not in summaries:
        return 0.0
    try:
        amount = round(_number(summaries, tag) * seconds)
    except (ValueError, OverflowError):  # a rate that is no number declares no work; the time stands
        return 0.0
    return float(amount) if amount < 2**50 else 0.0


def _sidecar(summary: dict[str, Any], path: Path) -> list[float]:
    """Samples in seconds from `--jsonbin`'s file beside the JSON: little-endian float32."""
    data = _data(summary)
    name, size = data.get("filename"), str(data.get("size"))
    if not isinstance(name, str) or not size.isdecimal():
        raise ValueError("NVBench could not write the samples: what it printed says why")
    # Relative to the JSON (older versions: as --jsonbin was given); the files lie in FOLDER/RESULT-bin/N.bin.
    folder = path.parent.resolve()
    last = PurePath(name.replace("\0", "_"))
    file = folder / last.parent.name / last.name
    shown = one_line(name, 120)
    try:
        inside = file.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a loop of links
        inside = False
    if not inside:
        raise ValueError(f"the samples file {shown!r} lies outside the result's folder")
    try:
        raw = read_bytes(file)
    except ValueError as error:
        raise ValueError(f"the samples cannot be read: {error}") from None
    if len(raw) % 4 or len(raw) // 4 != int(size[:18]):
        raise ValueError(
            f"the samples file {shown!r} holds {len(raw)} bytes, not {size[:18]} float32 values: it is torn"
        )
    samples = np.frombuffer(raw, "<f4").astype(np.float64)
    if not samples.size:
        raise ValueError(f"the samples file {shown!r} is empty")
    bad = int(np.count_nonzero(~(np.isfinite(samples) & (samples > 0))))
    if bad:
        raise ValueError(f"{bad} of {samples.size} samples in {shown!r} are no finite positive times")
    return [float(value) for value in samples]


def _data(summary: dict[str, Any]) -> dict[str, Any]:
    entries = summary.get("data")
    if not isinstance(entries, list):
        return {}
    return {str(entry.get("name")): entry.get("value") for entry in entries if isinstance(entry, dict)}


def _fits(root: Any) -> bool:
    return dig(root, "meta", "version", "json", "major") is not None and "benchmarks" in root


def _about(root: Any) -> About:
    devices = root.get("devices")
    names = {text_at(one, "name") for one in devices} if isinstance(devices, list) else set()
    return About(device=", ".join(sorted(names - {""})))


NVBENCH = Format(
    "nvbench", "PERFCI_NVBENCH", "nvbench.json", '--jsonbin "$PERFCI_NVBENCH"', read_nvbench, _fits, _about
)
