"""Everything measured, limit or not."""

import math
from collections.abc import Iterable

import numpy as np

from perfci.judge.explain.roofline import roof
from perfci.judge.explain.tuning import MOST_TUNED, variations
from perfci.judge.hints import hinted
from perfci.judge.status import Context, presence, state
from perfci.judge.timed import ratio
from perfci.model.base import SIDES
from perfci.model.fingerprint import Ceilings
from perfci.model.plan import Looks
from perfci.model.report import CaseFacts, Look, Measured, Noise, Row, Trail
from perfci.model.results import Case, CaseSide
from perfci.stats.components import Components, components, sentence
from perfci.stats.describe import describe
from perfci.stats.equal_clock import log_ratios
from perfci.stats.series import metrics, side_values
from perfci.stats.walsh import Array


def measured(context: Context, cases: list[Case]) -> tuple[list[Measured], list[str]]:
    """Return statistics of every metric, case and side; and notes on those without a finite number."""
    found: list[Measured] = []
    notes: list[str] = []
    for case in cases:
        for metric in metrics(case):
            sides = {}
            for side in SIDES:
                values = side_values(case, side, metric)
                if values.size and np.isfinite(values).all():
                    sides[side] = describe(values)
                elif values.size:
                    notes.append(f"{case.key}: a worker's {metric} in {side} is not a finite number")
            if sides:
                unit = context.unit(case, metric)
                found.append(Measured(case=case.id, device=case.device, metric=metric, unit=unit, sides=sides))
    return found, notes


def facts(case: Case, first: int, ceilings: Ceilings | None) -> CaseFacts:
    """Return what the report says of a case beside its rows.

    `first`: pairs of the first look.
    """
    sides = {name: state(case, name) for name in SIDES if name in case.sides}
    working = [side for name in ("head", "base") if (side := sides.get(name)) and side.status == "ok"]
    said = working[0] if working else CaseSide()
    because = said.timing and said.timing.because and hinted(said.timing.because)
    return CaseFacts(
        case=case.id,
        device=case.device,
        work=said.work,
        checks={name: side.check for name, side in sides.items()},
        timing=said.timing and said.timing.model_copy(update={"because": because}),
        reasons={name: side.reason for name, side in sides.items() if side.reason},
        proof=case.proof,
        noise=_parts(components(case, first), variations(case)),
        roof=roof(case, ceilings),
        versus=said.versus.name if said.versus is not None else "",
    )


def _parts(found: Components | None, tuning: list[str]) -> Noise | None:
    if found is None:
        return None
    return Noise(**found._asdict(), pair=found.noise(), text="; ".join([sentence(found), *tuning[:MOST_TUNED]]))


def noise(cases: list[Case], first: int) -> float | None:
    """Return the median over cases of the standard deviation of ln(head/base) of time, at equal clock where known.

    `first`: pairs of the first look. None without two pairs of finite positive times.
    """
    spreads = []
    for case in cases:
        x = log_ratios(case, "time", first).x
        good = x[np.isfinite(x)]
        if good.size > 1:
            spreads.append(float(np.std(good, ddof=1)))
    return float(np.median(spreads)) if spreads else None


def trails(cases: Iterable[Case], rows: Iterable[Row], looks: Looks) -> list[Trail]:
    """Return a trail for each row with a relative change, in order."""
    known = {(case.id, case.device): case for case in cases}
    compared: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row.against == "base" and row.change is not None and row.pairs and (row.case, row.device) in known:
            compared.setdefault((row.case, row.device, row.metric), row)
    return [
        _trail(known[row.case, row.device], row.metric, row.pairs, row.pairs if row.early_look else looks.first, looks)
        for row in compared.values()
    ]


def unasked(context: Context, cases: Iterable[Case], rows: Iterable[Row]) -> list[Trail]:
    """Return trails of times for a history: of cases that ask the same, can be believed, and have no such row."""
    if context.purpose not in ("reference", "seam"):
        return []
    rows = list(rows)
    told = {(row.case, row.device) for row in rows if row.against == "base" and row.metric == "time"}
    told |= {(row.case, row.device) for row in rows if row.kind == "presence" and row.class_ == "invalid"}
    looks, found = context.looks, list[Trail]()
    for case in cases:
        if (
            (case.id, case.device) not in told
            and state(case, "head").status == "ok"
            and presence(context, case) is None
        ):
            x = log_ratios(case, "time", looks.first).x
            if x.size and np.isfinite(x).all():
                found.append(_trail(case, "time", x.size, looks.first, looks))
    return found


def _trail(case: Case, metric: str, pairs: int, clock: int, looks: Looks) -> Trail:
    """`clock`: pairs from which the slope of times over clocks comes."""
    found = log_ratios(case, metric, clock)
    decided = found.first(pairs)
    taken = sorted({n for n in looks.pairs if n <= pairs} | {pairs})
    steps = []
    for n in taken if np.isfinite(decided.x).all() else []:
        change, bounds = ratio(decided.x[:n])
        steps.append(Look(pairs=n, change=change, interval=bounds))
    return Trail(
        case=case.id,
        device=case.device,
        metric=metric,
        ratios=_ratios(found.x),
        measured=_ratios(found.measured) if found.slope else [],
        looks=steps,
    )


def _ratios(logs: Array) -> list[float | None]:
    with np.errstate(over="ignore"):
        return [one if math.isfinite(one) else None for one in np.exp(logs).tolist()]
