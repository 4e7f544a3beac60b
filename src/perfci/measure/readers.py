"""What a command reports: NVBench's JSON and perfci's own JSON lines.

Both come from the code under test, so nothing of them is trusted: a file that is empty, torn, foreign or too
large is a ValueError of one line, and a value that is no finite number costs its case with a reason. Neither
ever becomes a zero.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from perfci.model.metrics import CATALOGUE, CustomMetric
from perfci.model.results import Reason, ReasonKind, Work
from perfci.model.units import FLOP_UNITS, RATE_UNITS, TIME_UNITS

MAX_BYTES = 256 * 2**20
"""Larger files are refused: float32 samples of this size are 67 million executions of one case."""

_CLOCK_UNITS = {name: scale for name, scale in TIME_UNITS.items() if scale <= 1.0}
_UNITS: dict[str, Mapping[str, float]] = {
    "s": _CLOCK_UNITS,
    "TFLOP/s": FLOP_UNITS,
    "B/s": {name: scale for name, scale in RATE_UNITS.items() if "B" in name},
    "/s": {name: scale for name, scale in RATE_UNITS.items() if "B" not in name},
}
"""Unit of a catalogue metric → the units it may be reported in."""

_MAX_LINES = 1_000_000
_MAX_ID = 300
_PART = r"(?!\.+(/|$))[A-Za-z0-9_.+-]+(=[A-Za-z0-9_.+-]+)?"

# Tags of NVBench's summaries (nvbench/json_printer.cu, detail/measure_cold.cu, detail/measure_cpu_only.cxx).
_SOURCES = (
    ("nv/json/bin:nv/cold/sample_times", "nv/cold/time/gpu/mean", "nv/cold/bw"),
    ("nv/json/bin:nv/cpu_only/sample_times", "nv/cpu_only/time/cpu/mean", "nv/cpu_only/bw"),
)
# For NVBench a state that failed is skipped too (nvbench/runner.cxx, runner.cuh); its text tells them apart.
_FAILED_SKIPS = ("Unexpected error: ", "Skipped because a previous state requested")


@dataclass(frozen=True)
class Reported:
    """One case as a command reported it: values, or the reason why there are none."""

    case: str
    """Case id, `NAME` or `NAME/…`."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """Metric → its samples in the metric's unit; never empty lists, always finite."""
    work: Work | None = None
    reason: Reason | None = None


def read_nvbench(path: Path, name: str) -> dict[str, Reported]:
    """Cases of an NVBench result (`--json`, `--jsonbin`; format 1.x) by id `NAME/BENCHMARK/N=1`.

    Where a benchmark ran on several devices, `device=0` stands before its axes.

    The metric `time` holds seconds: every sample's isolated ("cold") GPU time where the file was written by
    `--jsonbin`, else their mean; for a benchmark that runs on the CPU alone its CPU times. Declared work is
    NVBench's own rate times its own mean; NVBench does not split bytes into read and written: they stand
    under `read`.

    Raises ValueError, one line, where the file as a whole cannot be used.
    """
    root = _json(_text(path), path)
    benchmarks = root.get("benchmarks") if isinstance(root, dict) else None
    version = _dig(root, "meta", "version", "json", "major")
    if "benchmarks" not in (root if isinstance(root, dict) else ()) or version is None:
        raise ValueError(f"{path}: is no result of NVBench: run the benchmark with --jsonbin FILE")
    if version != 1:
        raise ValueError(f"{path}: NVBench file format {str(version)[:20]!r} is unknown: perfci reads 1.x")
    found: dict[str, Reported] = {}
    for benchmark in _dicts(benchmarks, path):
        states = _dicts(benchmark.get("states"), path)
        several = len({state.get("device") for state in states if isinstance(state.get("device"), int)}) > 1
        for state in states:
            reported = _state(state, f"{name}/{_plain(benchmark.get('name'))}", path, several)
            if reported.case in found:
                text = "two states of the benchmark have this id: give its axes different names or values"
                reported = Reported(reported.case, reason=_reason("protocol", text))
            found[reported.case] = reported
    if not found:
        raise ValueError(f"{path}: holds no measurement: NVBench ran no state")
    return found


def _state(state: dict[str, Any], prefix: str, path: Path, several_devices: bool) -> Reported:
    parts = [prefix]
    if several_devices:
        parts.append(f"device={_plain(state.get('device'))}")
    parts += [
        f"{_plain(axis.get('name'))}={_plain(axis.get('value'))}" for axis in _dicts(state.get("axis_values"), path)
    ]
    case = "/".join(parts)[:_MAX_ID]
    if state.get("is_skipped"):
        text = str(state.get("skip_reason") or "skipped by the benchmark without a reason")
        failed = text.startswith(_FAILED_SKIPS)
        return Reported(case, reason=_reason("exception" if failed else "skipped", text))
    summaries = {str(summary.get("tag")): summary for summary in _dicts(state.get("summaries"), path)}
    for sidecar, mean, rates in _SOURCES:
        if sidecar not in summaries and mean not in summaries:
            continue
        try:
            average = _number(summaries, mean)
            times = _sidecar(summaries[sidecar], path) if sidecar in summaries else [average]
        except ValueError as error:
            return Reported(case, reason=_reason("invalid", str(error)))
        items, moved = (
            _amount(summaries, f"{rates}/{rate}", average) for rate in ("item_rate", "global/bytes_per_second")
        )
        work = Work(items=items, read=moved, item="elements") if items or moved else None
        return Reported(case, {"time": times}, work)
    return Reported(case, reason=_reason("invalid", "NVBench reports no isolated time of this state"))


def _number(summaries: dict[str, dict[str, Any]], tag: str) -> float:
    """The positive number of a summary; NVBench writes numbers as strings, and null for infinities."""
    if tag not in summaries:
        raise ValueError(f"NVBench's summary {tag} is missing")
    raw = _data(summaries[tag]).get("value")
    try:
        value = float(raw) if isinstance(raw, (str, int, float)) and not isinstance(raw, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"NVBench's {tag} is {str(raw)[:40]!r}: no finite positive number")
    return value


def _amount(summaries: dict[str, dict[str, Any]], tag: str, seconds: float) -> float:
    """Work declared to NVBench. It stores the rate, amount/mean, so the whole number is exact below 2^50."""
    if tag not in summaries:
        return 0.0
    try:
        amount = round(_number(summaries, tag) * seconds)
    except (ValueError, OverflowError):  # a rate that is no number declares no work; the time stands
        return 0.0
    return float(amount) if amount < 2**50 else 0.0


def _sidecar(summary: dict[str, Any], path: Path) -> list[float]:
    """Samples in seconds from the file that `--jsonbin` writes beside the JSON: little-endian float32."""
    data = _data(summary)
    name, size = data.get("filename"), str(data.get("size"))
    if not isinstance(name, str) or not size.isdecimal():
        raise ValueError("NVBench could not write the samples: its log says why")
    # Relative to the JSON (older versions: as --jsonbin was given); the files lie in FOLDER/RESULT-bin/N.bin.
    folder = path.parent.resolve()
    last = PurePath(name.replace("\0", "_"))
    file = folder / last.parent.name / last.name
    shown = _one_line(name, 120)
    try:
        inside = file.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a loop of links
        inside = False
    if not inside:
        raise ValueError(f"the samples file {shown!r} lies outside the result's folder")
    try:
        raw = _bytes(file)
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


def read_perfci_lines(path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None) -> dict[str, Reported]:
    """Cases from JSON lines that a command wrote into `$PERFCI_METRICS`.

    A line is `{"metric": "time", "value": 1.2e-3, "unit": "s"}` with, if wanted, `"case": "sub/n=1"` (the id
    is then `NAME/sub/n=1`) and `"work": {"flops": …, "read": …, "written": …, "items": …, "item": "tokens"}`.
    Several lines of one case and metric are its samples. `time` takes s, ms, us and ns; every metric of the
    catalogue is converted to its unit. `custom` are the metrics that the policy declares: where given,
    another name or unit is an error.

    Raises ValueError, one line with the line's number, for anything that is not of this form.
    """
    values: dict[str, dict[str, list[float]]] = {}
    units: dict[str, str] = {}
    works: dict[str, Work] = {}
    reasons: dict[str, Reason] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        if number > _MAX_LINES:
            raise ValueError(f"{where}: more than {_MAX_LINES} lines: report fewer samples")
        entry = _json(line, where)
        if not isinstance(entry, dict):
            raise ValueError(f'{where}: is no object: write {{"metric": "time", "value": 1.2e-3, "unit": "s"}}')
        unknown = sorted(entry.keys() - {"metric", "value", "unit", "case", "work"})
        if unknown:
            raise ValueError(
                f"{where}: unknown field {_one_line(unknown[0], 40)!r}: use metric, value, unit, case, work"
            )
        case = _case(entry.get("case"), name, where)
        metric, value = _value(entry, units, custom, where)
        if "work" in entry:
            work = _work(entry["work"], where)
            if works.setdefault(case, work) != work:
                raise ValueError(f"{where}: declares other work for {case} than a line before")
        if not math.isfinite(value) or (metric in CATALOGUE and value <= 0):
            kind = "finite positive" if metric in CATALOGUE else "finite"
            text = f"line {number}: {metric} is {value:g}: no {kind} number"
            reasons.setdefault(case, _reason("invalid", text))
            continue
        values.setdefault(case, {}).setdefault(metric, []).append(value)
    if not values and not reasons:
        raise ValueError(f"{path}: is empty: the command reported nothing")
    return {
        case: Reported(case, reason=reasons[case]) if case in reasons else Reported(case, values[case], works.get(case))
        for case in sorted(values.keys() | reasons.keys())
    }


def _case(sub: Any, name: str, where: str) -> str:
    if sub is None:
        return name
    if not isinstance(sub, str) or not re.fullmatch(f"{_PART}(/{_PART})*", sub):
        raise ValueError(f"{where}: case {_one_line(sub, 80)!r} is no plain id: write it like 'sub/n=1024'")
    if len(sub) > _MAX_ID:
        raise ValueError(f"{where}: the case id has {len(sub)} characters: {_MAX_ID} at most")
    return f"{name}/{sub}"


def _value(
    entry: dict[str, Any], units: dict[str, str], custom: Mapping[str, CustomMetric] | None, where: str
) -> tuple[str, float]:
    """Metric and value in the metric's own unit; `units` remembers what each undeclared metric came in."""
    metric, value, unit = entry.get("metric"), entry.get("value"), entry.get("unit", "")
    if not isinstance(metric, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}", metric):
        raise ValueError(f"{where}: metric {_one_line(metric, 80)!r} is no plain name: write it like 'time'")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: value {_one_line(value, 40)!r} is no number")
    if not isinstance(unit, str) or len(unit) > 24:
        raise ValueError(f"{where}: unit {_one_line(unit, 40)!r} is no unit")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if metric in CATALOGUE:
        own = CATALOGUE[metric].unit
        known = _UNITS.get(own, {own: 1.0})
        if unit not in known:
            raise ValueError(f"{where}: unit {unit!r} does not fit {metric}: write one of {', '.join(known)}")
        return metric, number * known[unit]
    if custom is not None:
        if metric not in custom:
            raise ValueError(f"{where}: {metric!r} is no metric: declare it under metrics in perfci.yaml")
        units.setdefault(metric, custom[metric].unit)
        if "unit" not in entry:
            unit = units[metric]
    if units.setdefault(metric, unit) != unit:
        raise ValueError(f"{where}: unit {unit!r} of {metric} is not {units[metric]!r} as elsewhere")
    return metric, number


def _work(raw: Any, where: str) -> Work:
    if isinstance(raw, dict) and raw.keys() <= Work.model_fields.keys():
        amounts = [value for key, value in raw.items() if key != "item"]
        item = raw.get("item", "items")
        if (
            all(isinstance(a, (int, float)) and not isinstance(a, bool) and 0 <= a <= 1e30 for a in amounts)
            and isinstance(item, str)
            and re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]{0,31}", item)
        ):
            return Work(**raw)
    raise ValueError(
        f"{where}: work holds finite amounts of flops, read, written and items, and a plain word under item"
    )


def _bytes(path: Path) -> bytes:
    """The whole file. Raises ValueError where it is missing, no plain file, or larger than MAX_BYTES."""
    try:
        if not path.is_file():  # before opening: a named pipe would block
            raise ValueError(f"{path}: no such file: the command wrote no results")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path}: is larger than {MAX_BYTES >> 20} MiB: report fewer samples")
    return raw


def _text(path: Path) -> str:
    raw = _bytes(path)
    if not raw.strip():
        raise ValueError(f"{path}: is empty: the command reported nothing")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no UTF-8 text (byte {error.start})") from None


def _json(text: str, where: object) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: is nested too deeply to be a result") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: is torn or no JSON ({error.msg} at line {error.lineno} column {error.colno})"
        ) from None
    except ValueError as error:  # an integer of more than 4300 digits
        raise ValueError(f"{where}: {_one_line(error, 120)}") from None


def _dicts(value: Any, path: Path) -> list[dict[str, Any]]:
    """A list of objects; NVBench writes null for an empty one."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{path}: is no result of NVBench: a list of objects was expected")
    return value


def _data(summary: dict[str, Any]) -> dict[str, Any]:
    entries = summary.get("data")
    if not isinstance(entries, list):
        return {}
    return {str(entry.get("name")): entry.get("value") for entry in entries if isinstance(entry, dict)}


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _plain(value: Any) -> str:
    """A name or value as a part of a case id: every other character becomes `_`."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", str(value))[:80] or "_"


def _reason(kind: ReasonKind, text: str) -> Reason:
    return Reason(kind=kind, text=_one_line(text, 500))


def _one_line(value: object, limit: int) -> str:
    text = " ".join(str(value).encode("utf-8", "replace").decode("utf-8").split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
