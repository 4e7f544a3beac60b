"""One criterion answered from one case."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from perfci.model.criteria import Criterion, least_change
from perfci.model.metrics import CATALOGUE, HOST_TIME
from perfci.model.plan import Looks
from perfci.model.results import Case, CaseSide
from perfci.stats.decide import (
    Decision,
    ReasonCode,
    decide,
    decide_beside,
    decide_bound,
    decide_threshold,
    invalid,
    margin,
)
from perfci.stats.equal_clock import LogRatios, log_ratios
from perfci.stats.obvious import obvious, one_peak
from perfci.stats.series import side_values
from perfci.stats.walsh import Array, hodges_lehmann, interval

PRECISE = 0.25
GIVEN_UP = 0.95
"""Share of undecided continuations from which a case is hopeless."""
CONTINUATIONS = 200
"""The share is then known to ± 1.5 %."""


class Answer(NamedTuple):
    """A decision with the values that it rests on."""

    decision: Decision
    limit: float
    """Applied: a relative change, never under the least change; or the absolute bound."""
    base: Array
    """Worker values in the metric's unit, shape (n,)."""
    head: Array
    ratios: LogRatios | None = None
    """Of the pairs decided on; None for bounds, and without values that have a logarithm."""
    only_at_equal_clock: bool = False
    """A change for the worse is shown at equal clock, and not by the measured values alone."""


def answer(case: Case, criterion: Criterion, looks: Looks, m: int, *, ended: bool = False) -> Answer:
    """Decide from the pairs of `case`, looks replayed from the first.

    `ended`: no more pairs will come, so that the last look is taken. The status is `invalid` where values are missing,
    not finite, or not positive though they must be. Raises ValueError for names.
    """
    match criterion.against:
        case "base":
            return _relative(case, criterion, looks, m, ended=ended)
        case "bound":
            return _absolute(case, criterion, looks, m, ended=ended)
        case "names":
            raise ValueError(f"{criterion.case_key}: pairs do not hold names of kernels")
        case _:
            assert_never(criterion.against)


def _absolute(case: Case, criterion: Criterion, looks: Looks, m: int, *, ended: bool) -> Answer:
    base, head = (side_values(case, side, criterion.metric) for side in ("base", "head"))
    if not head.size:
        decision = invalid("unmeasured" if case.pairs else "empty")
    elif criterion.metric in CATALOGUE and not (head > 0).all() and np.isfinite(head).all():
        decision = invalid("nonpositive", len(head))
    elif case.origin == "imported":
        decision = _centred(head, criterion)
    elif case.answered(criterion.metric):
        decision = _number(head, criterion, looks, ended=ended)
    else:
        decision = decide_bound(head, criterion.bound, criterion.beyond, looks, m, ended=ended)
    return Answer(decision, criterion.bound, base, head[: decision.n])


def _centred(head: Array, criterion: Criterion) -> Decision:
    """Without statistics: often a file is all there is."""
    if not np.isfinite(head).all():
        return invalid("nonfinite", len(head))
    centre = hodges_lehmann(head)
    holds = not criterion.broken_by(centre)
    return Decision("unchanged" if holds else "violation", 0, len(head), None, centre, within=holds)


def _number(head: Array, criterion: Criterion, looks: Looks, *, ended: bool) -> Decision:
    """Base is the same, so head cannot fail by it, and no error rate is at stake."""
    n = looks.earliest
    if len(head) < n:
        return Decision("inconclusive" if ended else "continue", None, len(head), None, None)
    return _centred(head[:n], criterion)


def _relative(case: Case, criterion: Criterion, looks: Looks, m: int, *, ended: bool) -> Answer:
    metric, limit = criterion.metric, criterion.bound
    ratios = log_ratios(case, metric, looks.first)
    base, head = ratios.base, ratios.head
    if not base.size:
        return Answer(invalid(_why_none(case, metric)), limit, base, head)
    if not (np.isfinite(base).all() and np.isfinite(head).all()):
        return Answer(invalid("nonfinite", len(base)), limit, base, head)
    if not ((base > 0).all() and (head > 0).all()):
        return Answer(invalid("nonpositive", len(base)), limit, base, head)
    if not np.isfinite(ratios.x).all():
        return Answer(invalid("bad_clock", len(base)), limit, base, head)
    if (early := _obvious(case, criterion, looks, m)) is not None:
        return early
    # The pairs of the first look alone, so that the limit is the same at every look.
    limit = _limit(case, criterion, base[: looks.first])
    r_log = margin(limit, criterion.better)
    decision = _decided(ratios, criterion, r_log, looks, m, ended=ended)
    n, hidden = decision.n, False
    if ratios.slope is not None and not criterion.threshold and decision.status in ("regression", "clock"):
        measured = criterion.sign * ratios.measured[:n]
        hidden = decide(measured, r_log, looks, m, ended=decision.last).status != "regression"
    return Answer(decision, limit, base[:n], head[:n], ratios.first(n), hidden)


def _decided(ratios: LogRatios, criterion: Criterion, r_log: float, looks: Looks, m: int, *, ended: bool) -> Decision:
    sign = criterion.sign
    if criterion.threshold:
        return decide_threshold(sign * ratios.x, r_log, looks, m, ended=ended)
    if ratios.slope is None:
        return decide(sign * ratios.x, r_log, looks, m, ended=ended)
    return decide_beside(sign * ratios.x, sign * ratios.measured, r_log, looks, m, ended=ended)


def hopeless(case: Case, criteria: Iterable[Criterion], looks: Looks, m: int) -> bool:
    """Return whether nearly all continuations leave all open criteria undecided.

    `criteria`: those that pairs decide. Each continuation draws from a resample of its own, since few pairs leave open
    where they lie. The same pairs give the same answer.
    """
    still = [(one, found) for one in criteria if (found := answer(case, one, looks, m)).decision.status == "continue"]
    return bool(still) and all(_hopeless(one, found, looks, m) for one, found in still)


def _hopeless(criterion: Criterion, found: Answer, looks: Looks, m: int) -> bool:
    return futile(len(found.head), looks, lambda drawn: _drawn(criterion, found, looks, m, drawn))


def _drawn(criterion: Criterion, found: Answer, looks: Looks, m: int, drawn: NDArray[np.intp]) -> Decision:
    if found.ratios is None:
        return decide_bound(found.head[drawn], criterion.bound, criterion.beyond, looks, m, ended=True)
    r_log = margin(found.limit, criterion.better)
    return _decided(found.ratios.taken(drawn), criterion, r_log, looks, m, ended=True)


def replay(case: Case, criterion: Criterion, looks: Looks, m: int, places: NDArray[np.intp]) -> list[Decision]:
    """Return the decisions at the end of runs drawn from the pairs of `case`, for a relative criterion.

    `places`: the pairs of each run in their order, shape (runs, pairs). Looks before the first one, which ask for
    samples, are left out.
    """
    ratios = log_ratios(case, criterion.metric, looks.first)
    r_log = margin(_limit(case, criterion, ratios.base[: looks.first]), criterion.better)
    return [_decided(ratios.taken(where), criterion, r_log, looks, m, ended=True) for where in places]


def precise(case: Case, criterion: Criterion, looks: Looks) -> bool:
    """Return whether half of the 95 % interval of a change, by all pairs, is `PRECISE` of it at most, in logs."""
    x = log_ratios(case, criterion.metric, looks.first).x
    low, high, level = interval(x, 0.95)
    return level > 0 and (high - low) / 2 <= PRECISE * abs(hodges_lehmann(x))


def pairs_to_decide(criterion: Criterion, found: Answer, looks: Looks, m: int) -> int | None:
    """Return the pairs in all that would decide, further ones being alike; None where none would."""
    decision = _drawn(criterion, found, looks, m, np.arange(looks.pairs[-1]) % len(found.head))
    return None if decision.status == "inconclusive" else decision.n


def futile(n: int, looks: Looks, decided: Callable[[NDArray[np.intp]], Decision]) -> bool:
    """Return whether `decided` leaves the share `GIVEN_UP` or more of continuations of n pairs open.

    `decided`: from the places of pairs, those that there are first, all looks being taken.
    """
    rng, most = np.random.default_rng(n), looks.pairs[-1]
    pools = rng.integers(0, n, (CONTINUATIONS, n))
    left = CONTINUATIONS * (1 - GIVEN_UP)
    for pool in pools:
        more = rng.permuted(np.tile(pool, -(-most // n)))[: most - n]
        left -= decided(np.concatenate([np.arange(n), more])).status != "inconclusive"
        if left < 0:
            return False
    return True


def _limit(case: Case, criterion: Criterion, base: Array) -> float:
    least = least_change(criterion, case.sides.get("head", CaseSide()).timing)
    return limit_in_effect(criterion, float(np.median(base)), least)


def limit_in_effect(criterion: Criterion, value: float | None, least: float) -> float:
    """Return the limit as a relative change, never under `least`, in seconds, of a typical `value` of base."""
    if criterion.unit == "s" and least > 0 and value is not None and value > 0:
        return max(criterion.bound, least / value)
    return criterion.bound


def _obvious(case: Case, criterion: Criterion, looks: Looks, m: int) -> Answer | None:
    """By the looks before the first one: clock and limit come from their pairs alone, whatever pairs follow."""
    sign = criterion.sign
    if criterion.metric == HOST_TIME:  # its pairs may fall between two values, as cores do
        return None
    for n, share in zip(looks.obvious_pairs, looks.obvious_spending, strict=True):
        ratios = log_ratios(case, criterion.metric, n).first(n)
        if len(ratios.x) < n or not one_peak(case, n):
            return None
        limit = _limit(case, criterion, ratios.base)
        r_log = margin(limit, criterion.better)
        alpha = looks.alpha / m * share
        decision = obvious(sign * ratios.x, sign * ratios.measured, r_log, alpha, threshold=criterion.threshold)
        if decision is not None:
            return Answer(decision, limit, ratios.base, ratios.head, ratios)
    return None


def tightest_margin(case: Case, criteria: Iterable[Criterion]) -> float | None:
    """Return the smallest log ratio that a relative limit asks for; None without one."""
    margins = [
        margin(one.bound, one.better) for one in criteria if one.timed and one.relative and one.case_key == case.key
    ]
    return min((one for one in margins if one > 0), default=None)


def _why_none(case: Case, metric: str) -> ReasonCode:
    if not case.pairs:
        return "empty"
    if side_values(case, "head", metric).size:
        return "empty" if side_values(case, "base", metric).size else "base_unmeasured"
    return "unmeasured"
