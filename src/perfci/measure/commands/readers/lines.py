"""perfci's own JSON lines."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfci.measure.commands.readers.base import (
    CLOCK_UNITS,
    MAX_ID,
    Format,
    Reported,
    read_json,
    read_text,
    reason,
)
from perfci.model.metrics import CATALOGUE, CustomMetric
from perfci.model.results import Reason, Work
from perfci.model.text import one_line
from perfci.model.units import COUNT_UNITS, FLOP_UNITS, RATE_UNITS

_UNITS: dict[str, Mapping[str, float]] = {
    "s": CLOCK_UNITS,
    "TFLOP/s": FLOP_UNITS,
    "B/s": RATE_UNITS,
    "/s": COUNT_UNITS,
}
"""Unit of a catalogue metric → units it may be reported in."""

_MAX_LINES = 1_000_000
_PART = r"(?!\.+(/|$))[A-Za-z0-9_.+-]+(=[A-Za-z0-9_.+-]+)?"


def read_perfci_lines(path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None) -> dict[str, Reported]:
    """Return cases from JSON lines that a command wrote into `$PERFCI_METRICS`.

    A line is `{"metric": "time", "value": 1.2e-3, "unit": "s"}`, optionally with `"case": "sub/n=1"` (id
    `NAME/sub/n=1`) and `"work": {"flops": …, "read": …, "written": …, "items": …, "item": "tokens"}`. Several lines of
    one case and metric are samples. `time` takes s, ms, us and ns; catalogue metrics are converted to their units.
    `custom`: the policy's metrics; where given, another name or unit is an error. Raises ValueError, one line with the
    line's number.
    """
    values: dict[str, dict[str, list[float]]] = {}
    units: dict[str, str] = {}
    works: dict[str, Work] = {}
    reasons: dict[str, Reason] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        if number > _MAX_LINES:
            raise ValueError(f"{where}: more than {_MAX_LINES} lines: report fewer samples")
        entry = read_json(line, where)
        if not isinstance(entry, dict):
            raise ValueError(f'{where}: is no object: write {{"metric": "time", "value": 1.2e-3, "unit": "s"}}')
        unknown = sorted(entry.keys() - {"metric", "value", "unit", "case", "work"})
        if unknown:
            raise ValueError(
                f"{where}: unknown field {one_line(unknown[0], 40)!r}: use metric, value, unit, case, work"
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
            reasons.setdefault(case, reason("invalid", text))
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
    if isinstance(sub, str) and len(sub) > MAX_ID:
        raise ValueError(f"{where}: the case id has {len(sub)} characters: {MAX_ID} at most")
    if not isinstance(sub, str) or not re.fullmatch(f"{_PART}(/{_PART})*", sub):
        raise ValueError(f"{where}: case {one_line(sub, 80)!r} is no plain id: write it like 'sub/n=1024'")
    return f"{name}/{sub}"


def _value(
    entry: dict[str, Any], units: dict[str, str], custom: Mapping[str, CustomMetric] | None, where: str
) -> tuple[str, float]:
    metric, value, unit = entry.get("metric"), entry.get("value"), entry.get("unit", "")
    if not isinstance(metric, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}", metric):
        raise ValueError(f"{where}: metric {one_line(metric, 80)!r} is no plain name: write it like 'time'")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: value {one_line(value, 40)!r} is no number")
    if not isinstance(unit, str) or len(unit) > 24:
        raise ValueError(f"{where}: unit {one_line(unit, 40)!r} is no unit")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if metric in CATALOGUE:
        return metric, number * to_own_unit(metric, unit, where)
    if custom is not None:
        if metric not in custom:
            raise ValueError(f"{where}: {metric!r} is no metric: declare it under metrics in perfci.yaml")
        units.setdefault(metric, custom[metric].unit)
        if "unit" not in entry:
            unit = units[metric]
    if units.setdefault(metric, unit) != unit:
        raise ValueError(f"{where}: unit {unit!r} of {metric} is not {units[metric]!r} as elsewhere")
    return metric, number


def to_own_unit(metric: str, unit: str, where: str) -> float:
    """Return the factor from a unit to that of a metric of the catalogue. Raises ValueError."""
    own = CATALOGUE[metric].unit
    known = _UNITS.get(own, {own: 1.0})
    if unit not in known:
        raise ValueError(f"{where}: unit {unit!r} does not fit {metric}: write one of {', '.join(known)}")
    return known[unit]


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


LINES = Format("perfci", "PERFCI_METRICS", "metrics.jsonl", "", read_perfci_lines)
