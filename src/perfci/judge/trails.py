"""What relative limits were decided on, for plots: ratios pair by pair, and what they said at each look."""

import math
from collections.abc import Iterable

import numpy as np

from perfci.judge.limits import ratio
from perfci.model.plan import Looks
from perfci.model.report import Look, Row, Trail
from perfci.model.results import Case
from perfci.stats.equal_clock import log_ratios
from perfci.stats.walsh import Array


def trails(cases: Iterable[Case], rows: Iterable[Row], looks: Looks) -> list[Trail]:
    """A trail for each case and metric of `rows` with a relative change, in their order."""
    known = {(case.id, case.device): case for case in cases}
    compared: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row.kind == "regression" and row.change is not None and row.pairs and (row.case, row.device) in known:
            compared.setdefault((row.case, row.device, row.metric), row)
    return [_trail(known[row.case, row.device], row, looks) for row in compared.values()]


def _trail(case: Case, row: Row, looks: Looks) -> Trail:
    found = log_ratios(case, row.metric, looks.pairs[0])
    decided = found.first(row.pairs)
    taken = sorted({n for n in looks.pairs if n <= row.pairs} | {row.pairs})
    steps = []
    for n in taken if np.isfinite(decided.x).all() else []:
        change, bounds = ratio(decided.x[:n])
        steps.append(Look(pairs=n, change=change, interval=bounds))
    return Trail(
        case=row.case,
        device=row.device,
        metric=row.metric,
        ratios=_ratios(found.x),
        measured=_ratios(found.measured) if found.slope else [],
        looks=steps,
    )


def _ratios(logs: Array) -> list[float | None]:
    with np.errstate(over="ignore"):
        return [one if math.isfinite(one) else None for one in np.exp(logs).tolist()]
