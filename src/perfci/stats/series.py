"""Worker values of a case, metric by metric."""

import math
from collections.abc import Sequence

import numpy as np

from perfci.model.base import Side
from perfci.model.metrics import DERIVED, PerTime
from perfci.model.results import Case, CaseSide, Pair
from perfci.stats.walsh import Array

_ABSENT = CaseSide()


def in_order(case: Case) -> list[Pair]:
    """Return the pairs in the order measured."""
    return sorted(case.pairs, key=lambda pair: pair.index)


def value(case: Case, pair: Pair, side: Side, metric: str) -> float | None:
    """Return the worker value, None where not measured; NaN where it derives from a time that is none."""
    values = pair.values.get(side, {})
    if metric in values:
        return values[metric]
    if metric == "cv":  # a worker of a single sample has none
        return 100 * pair.spread[side] if pair.spread.get(side, 0.0) > 0 else None
    if metric not in DERIVED or "time" not in values:
        return None
    work = _declared(case, side, DERIVED[metric])
    if not work > 0:
        return None
    time = values["time"]
    return work / time if math.isfinite(time) and time > 0 else math.nan


def _declared(case: Case, side: Side, derived: PerTime) -> float:
    """As base declares it, where it does."""

    def amount(one: CaseSide) -> float:
        known = {**one.work.model_dump(), "least": one.least}
        return math.fsum(known[field] for field in derived.fields) / derived.unit

    base = case.sides.get("base", _ABSENT)
    theirs = amount(base) if base.status == "ok" else 0.0
    return theirs if theirs > 0 else amount(case.sides.get(side, _ABSENT))


def side_values(case: Case, side: Side, metric: str) -> Array:
    """Return worker values in order, shape (workers,)."""
    found = (value(case, pair, side, metric) for pair in in_order(case))
    return np.array([v for v in found if v is not None], dtype=np.float64)


def paired(case: Case, metric: str) -> list[tuple[Pair, float, float]]:
    """Return the pairs with base and head, in the order measured."""
    found = []
    for pair in in_order(case):
        base, head = value(case, pair, "base", metric), value(case, pair, "head", metric)
        if base is not None and head is not None:
            found.append((pair, base, head))
    return found


def values_of(found: Sequence[tuple[Pair, float, float]]) -> tuple[Array, Array]:
    """Return base's and head's values, shape (pairs,) each."""
    base, head = (np.array([one[at] for one in found], dtype=np.float64) for at in (1, 2))
    return base, head


def metrics(case: Case) -> list[str]:
    """Return the metrics with a value in some worker: time first, then cycles, derived, reported."""
    reported = {name for pair in case.pairs for values in pair.values.values() for name in values}
    known = ["time", "cycles", *DERIVED]
    have = [name for name in known if any(side_values(case, side, name).size for side in case.sides)]
    return have + sorted(reported - set(known))
