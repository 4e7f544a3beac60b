"""The plots of a page as JSON."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from perfci.model.base import DeviceKind
from perfci.model.metrics import resolve
from perfci.model.profile import MOST_SLICES, Slice, Trace
from perfci.model.report import Measured, Report, Roof, Row, Trail
from perfci.model.results import Case, Results
from perfci.model.text import shorten
from perfci.model.units import TIME_UNITS
from perfci.render.escape import visible
from perfci.render.html.recorded import Recorded
from perfci.stats.series import in_order

MOST_SAMPLES = 120_000
"""Order statistics of samples in a page: 0.8 MB."""
MOST_DRAWN = 30_000
"""Slices of timelines in a page: 0.8 MB."""
_RANKS = ((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0), (0.5,))
"""Of a placement; fewer where there are many."""
_DIGITS = 6

Key = tuple[str, DeviceKind]


def embed(data: Any) -> str:
    """Return `data` as JSON that can stand inside `<script>`."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page(report: Report, recorded: Recorded, keys: Sequence[Key]) -> dict[str, Any]:
    """Return `overview`, and `cases` in the order of `keys`."""
    results = recorded.results
    cases = {(case.id, case.device): case for case in results.cases} if results else {}
    trails: dict[Key, Trail] = {}
    for one in report.trails:
        if (one.case, one.device) not in trails or one.metric == "time":
            trails[one.case, one.device] = one
    rows = {(row.case, row.device, row.metric): row for row in reversed(report.rows) if row.against == "base"}
    roofs = {(facts.case, facts.device): facts.roof for facts in report.facts if facts.roof}
    measured = {(one.case, one.device, one.metric): one for one in report.measured}
    short = {kernel.name: kernel.short for one in report.profiles for kernel in one.kernels if kernel.short}
    ranks = _ranks(recorded)
    profiled = sum(side.profile is not None for case in cases.values() for side in case.sides.values())
    most = min(MOST_SLICES, MOST_DRAWN // max(1, profiled))
    moments = [one for one in results.moments if one.temperature is not None] if results else []
    times = [one.at for one in moments] + [pair.at for case in cases.values() for pair in case.pairs]
    start = min((at for at in times if at is not None and math.isfinite(at)), default=0.0)
    found = []
    for key in keys:
        plots: dict[str, Any] = {}
        if case := cases.get(key):
            metric = _metric(case)
            plots["workers"] = _workers(
                case, metric, measured.get((*key, metric)), recorded.samples.get(case.key), ranks
            )
            plots["clock"] = _clock(case, start)
            plots["timeline"] = _timeline(case, short, most)
        if trail := trails.get(key):
            plots["ratios"] = _ratios(trail, rows[(*key, trail.metric)], results)
        if key in roofs:
            plots["roof"] = _roof(roofs[key])
        found.append({name: plot for name, plot in plots.items() if plot})
    return {
        "overview": _overview(trails, rows, keys, results),
        "moments": [[_number(one.at - start), _number(one.temperature)] for one in moments],
        "cases": found,
    }


def _number(value: float | None, digits: int = _DIGITS) -> float | None:
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None


def _numbers(values: Iterable[float | None], scale: float = 1.0) -> list[float | None]:
    return [_number(None if value is None else value / scale) for value in values]


def _points(ratio: float | None) -> float | None:
    return None if ratio is None else _number((ratio - 1) * 100)


def _unit(values: Iterable[float]) -> tuple[str, float]:
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return next(((name, TIME_UNITS[name]) for name in ("s", "ms", "µs") if largest >= TIME_UNITS[name]), ("ns", 1e-9))


def _metric(case: Case) -> str:
    names = {name for pair in case.pairs for values in pair.values.values() for name in values} - {"cycles"}
    return "time" if "time" in names else min(names, default="time")


def _ranks(recorded: Recorded) -> tuple[float, ...]:
    placements = sum(
        len(one) for pairs in recorded.samples.values() for pair in pairs.values() for one in pair.values()
    )
    return next((ranks for ranks in _RANKS if placements * len(ranks) <= MOST_SAMPLES), _RANKS[-1])


def _workers(
    case: Case, metric: str, measured: Measured | None, samples: Any, ranks: Sequence[float]
) -> dict[str, Any] | None:
    pairs = in_order(case)
    values = {name: [pair.values.get(name, {}).get(metric) for pair in pairs] for name in case.sides}
    known = [value for side in values.values() for value in side if value is not None]
    if not known:
        return None
    unit, scale = (measured.unit if measured else "", 1.0) if metric != "time" else _unit(known)
    drawn: dict[str, Any] = {
        "metric": metric,
        "unit": unit,
        "pairs": [pair.index + 1 for pair in pairs],
        "first": [pair.first for pair in pairs],
        "values": {name: _numbers(side, scale) for name, side in values.items()},
        "medians": {name: _number(one.median / scale) for name, one in measured.sides.items()} if measured else {},
    }
    if samples and metric == "time":
        drawn["ranks"] = ranks
        drawn["samples"] = {
            name: [[_order(one, ranks, scale) for one in samples.get(pair.index, {}).get(name, ())] for pair in pairs]
            for name in case.sides
        }
    return drawn


def _order(samples: list[float], ranks: Sequence[float], scale: float) -> list[float | None]:
    ordered = sorted(samples)
    return [_number(ordered[round(rank * (len(ordered) - 1))] / scale, 5) for rank in ranks]


def _better(metric: str, results: Results | None) -> str:
    try:
        return resolve(metric, results.custom_metrics if results else {}).better or "lower"
    except KeyError:
        return "lower"


def _limit(row: Row, results: Results | None) -> float | None:
    if row.limit is None:
        return None
    return _number(row.limit * (100 if _better(row.metric, results) == "lower" else -100))


def _ratios(trail: Trail, row: Row, results: Results | None) -> dict[str, Any] | None:
    if not any(ratio is not None for ratio in trail.ratios):
        return None
    return {
        "metric": trail.metric,
        "ratios": [_points(ratio) for ratio in trail.ratios],
        "measured": [_points(ratio) for ratio in trail.measured],
        "looks": [
            [look.pairs, _points(look.change), _points(look.interval.low), _points(look.interval.high)]
            for look in trail.looks
        ],
        "planned": results.plan.looks.pairs if results else [],
        "limit": _limit(row, results),
        "decided": row.pairs if row.look is not None or row.last_look or row.early_look else None,
    }


def _overview(
    trails: dict[Key, Trail], rows: dict[tuple[str, DeviceKind, str], Row], keys: Sequence[Key], results: Results | None
) -> list[dict[str, Any]]:
    found = []
    for number, key in enumerate(keys):
        row = rows.get((*key, trails[key].metric)) if key in trails else None
        if row is None or row.change is None or row.interval is None:
            continue
        found.append(
            {
                "case": number,
                "name": shorten(visible(row.case), 60, middle=True),
                "change": _points(row.change),
                "low": _points(row.interval.low),
                "high": _points(row.interval.high),
                "limit": _limit(row, results),
                "class": row.class_,
                "effect": row.effect,
            }
        )
    return found


def _clock(case: Case, start: float) -> dict[str, Any] | None:
    pairs = in_order(case)
    clocks = {
        name: _numbers((pair.clock[name].hertz if name in pair.clock else None for pair in pairs), 1e9)
        for name in case.sides
    }
    if not any(value is not None for side in clocks.values() for value in side):
        return None
    times = [pair.at - start for pair in pairs if pair.at is not None and math.isfinite(pair.at)]
    return {
        "pairs": [pair.index + 1 for pair in pairs],
        "seconds": _numbers(times) if len(times) == len(pairs) else [],
        "clocks": clocks,
    }


def _roof(roof: Roof | None) -> dict[str, Any] | None:
    if roof is None or not (roof.memory and roof.compute):
        return None
    sides = {
        name: {
            "intensity": _number(point.intensity),
            "measured": _number(point.measured_intensity),
            "rate": _number(point.rate * 1e-12),
        }
        for name, point in roof.sides.items()
        if point.rate and point.intensity
    }
    if not sides:
        return None
    return {
        "memory": _number(roof.memory * 1e-12),
        "compute": _number(roof.compute * 1e-12),
        "dtype": roof.dtype,
        "sides": sides,
    }


def _timeline(case: Case, short: dict[str, str], most: int) -> dict[str, Any] | None:
    """Slices as [name, stream, start, duration]: the first two by number, start and duration in a unit for people."""
    traces = {name: side.profile.trace for name, side in case.sides.items() if side.profile and side.profile.trace}
    kept = {name: (trace, trace.slices[:most]) for name, trace in traces.items() if trace.slices}
    if not kept:
        return None
    unit, scale = _unit(one.start + one.seconds for _, slices in kept.values() for one in slices)
    names: dict[str, int] = {}
    streams: dict[int, int] = {}
    drawn = {}
    for side, (trace, slices) in kept.items():
        drawn[side] = [
            [
                names.setdefault(_operation(trace, one, short), len(names)),
                streams.setdefault(one.stream, len(streams)),
                _number(one.start / scale),
                _number(one.seconds / scale),
            ]
            for one in slices
        ]
    return {
        "unit": unit,
        "names": list(names),
        "streams": len(streams),
        "sides": drawn,
        "cut": [side for side, (trace, slices) in kept.items() if len(slices) == min(MOST_SLICES, most)],
    }


def _operation(trace: Trace, one: Slice, short: dict[str, str]) -> str:
    if one.kernel is None or one.kernel >= len(trace.kernels):
        return visible(one.name) or "kernel"
    name = trace.kernels[one.kernel].name
    return shorten(visible(short.get(name) or name), 100, middle=True)
