"""The decision: what worker pairs say about a limit, look by look.

A group-sequential test without asymptotics: each look may spend a share of α on "slower than the limit" and a share of
β on "within the limit", and the shares of all looks sum to at most 1, so that both error rates hold by a union
bound. Every test is an exact signed-rank test over worker pairs. α is divided by the number of criteria that
share it (Bonferroni), so that it bounds the chance that a *run* on unchanged code fails.

Where pairs end between two looks, because the budget did, a *last look* spends of the rest; see `LAST`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from perfci.model.criteria import Beyond
from perfci.model.metrics import Direction
from perfci.model.plan import Looks
from perfci.stats.walsh import Array, Averages, hodges_lehmann, p_greater, p_less

Status = Literal["regression", "violation", "improvement", "unchanged", "clock", "continue", "inconclusive", "invalid"]
ReasonCode = Literal[
    "",
    "nonfinite",  # a value is NaN or infinite
    "nonpositive",  # a value of a metric that is positive by nature is not, or has no logarithm
    "margin",  # the limit is no positive, finite relative change
    "bound",  # the bound is not a finite number
    "empty",  # no finished pair
    "unmeasured",  # no value in head
    "base_unmeasured",  # values in head, none in base
    "bad_clock",  # a measured clock is no finite positive number
]


LAST = 10.0
"""A last look may spend what the looks up to its pairs have left of an error rate, divided by this.

When the budget ends may depend on the data, and a run may be continued after it (`--resume`). So what must not exceed
α/m is the chance that at *any* number of pairs from the first look on, by a planned look or a last one, unchanged code
would be a regression. `benchmarks/looks.py` simulates it for twenty m from 1 to 300, since p-values come in
steps. The worst of them, as a multiple of α/m, ± 0.03:

| divided by | 6 | 8 | 10 |
|---|--:|--:|--:|
| scatter that stays as it is | 1.03 | 0.96 | 0.93 |
| scatter that grows fourfold from the first pair to the 64th | 1.13 | 1.03 | 0.99 |

"Within the limit" spends at most 0.8 of β.
"""
SEEN = 0.025
"""Level at which a case within the limit ends as faster: its printed 95 % interval lies beyond."""
_SUSPECT = 0.05
"""Level at which a case within the limit at equal clock seems slower as measured, and takes more pairs. It decides
nothing: a looser one costs pairs, a stricter one lets a lowered clock pass."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of the data at the look that decided, or so far."""

    status: Status
    """`continue` asks for more pairs; never where none will come."""
    look: int | None
    """Index of the look that decided, or showed a case within the limit that goes on; else the last one taken. None
    for a last look, and for one before the first."""
    n: int
    """Pairs used."""
    p: float | None
    """p-value of the deciding test; None where none decided."""
    estimate: float | None
    """Hodges–Lehmann: a log ratio, positive is worse; for bounds in the metric's unit."""
    within: bool = False
    """A slow-down of the limit's size is excluded."""
    reason_code: ReasonCode = ""
    """Why the status is `invalid`."""
    last: bool = False
    """The last look decided, over all pairs."""
    early: bool = False
    """A look before the first one decided."""


def invalid(code: ReasonCode, n: int = 0) -> Decision:
    """Return that data or limit allow no decision."""
    return Decision("invalid", None, n, None, None, reason_code=code)


def margin(r: float, better: Direction) -> float:
    """Return the log ratio, positive is worse, of a change for the worse by the share r.

    ln(1 + r) where lower is better, -ln(1 - r) where higher is: r itself would call a true r within the limit where
    noise is tiny. NaN where there is no such change (r < 0; r ≥ 1 where higher is better).
    """
    if not math.isfinite(r) or r < 0 or (better == "higher" and r >= 1):
        return math.nan
    return math.log1p(r) if better == "lower" else -math.log1p(-r)


def may_prove_after(look: int, looks: Looks, m: int) -> bool:
    """Return whether a later look can show a regression: the smallest p-value of n pairs is 2^-n."""
    later = zip(looks.pairs[look + 1 :], looks.alpha_spending[look + 1 :], strict=True)
    return any(2.0**-n <= looks.alpha / m * share for n, share in later)


def last_share(looks: Looks, rate: Literal["alpha", "beta"], n: int) -> float:
    """Return the share of an error rate for a last look at n pairs; 0 before the first look."""
    if n < looks.first:
        return 0.0
    shares, early = (looks.alpha_spending, looks.obvious_spending) if rate == "alpha" else (looks.beta_spending, [])
    spent = [share for pairs, share in zip(looks.pairs, shares, strict=True) if pairs <= n]
    left = 1.0 - math.fsum([*early, *spent])
    return left / LAST if left > 1e-9 else 0.0  # what rounding leaves is nothing


def largest_share(looks: Looks, rate: Literal["alpha", "beta"], n: int) -> float:
    """Return the largest share of an error rate that a look at n pairs may spend."""
    shares = looks.alpha_spending if rate == "alpha" else looks.beta_spending
    return max(last_share(looks, rate, n), dict(zip(looks.pairs, shares, strict=True)).get(n, 0.0))


def decide(x: Sequence[float] | Array, r_log: float, looks: Looks, m: int, *, ended: bool = False) -> Decision:
    """Decide between regression, improvement, unchanged, and more pairs.

    `x`: ln(head/base) per pair, shape (n,), in the order measured, positive is worse. `r_log`: the limit, from
    `margin`. `m`: number of criteria that share α. `ended`: no more pairs will come; never `continue`. The first final
    status wins. At each look:

    - regression: the location is above 0 within the look's share of α/m, and above r/2 at `confirm`;

    - improvement: the mirror image;

    - within the limit: the location is below r within the look's share of β. It ends the case, except where it seems
    faster by more than r/2 and a later look may still name it an improvement: then `continue`, `within`.

    Once they have ended undecided, with the first look's pairs or more, a last look at all of them does the same within
    its share (`LAST`) of what is left of α/m and β.

    A case within the limit ends as an improvement if it is faster than the limit at 97.5 %. That takes nothing of α,
    since neither fails a run. Within the limit is never a regression later; as the tests are monotone, raising any x
    never turns a regression into something else.

    Invalid: a value not finite, an r_log not positive and finite. Raises ValueError for m < 1.
    """
    values = np.asarray(x, dtype=np.float64)
    if (code := _unfit(values, m) or _no_margin(r_log)) != "":
        return invalid(code, len(values))
    cleared_at: tuple[int | None, float] | None = None
    for look in _taken(len(values), looks, m, ended=ended):
        used = Averages(values[: look.n])
        shown = _show(used, look, r_log, looks.confirm, within=cleared_at is not None)
        if shown.final is not None:
            return shown.final
        cleared_at = cleared_at if shown.p_within is None else (look.number, shown.p_within)
        goes_on = shown.faster and look.number is not None and may_prove_after(look.number, looks, m)
        if cleared_at is not None and not goes_on:
            return _passed(used, look, r_log, cleared_at)
    if cleared_at is not None:
        return Decision("continue", cleared_at[0], len(values), cleared_at[1], hodges_lehmann(values), within=True)
    return _open(values, looks, ended=ended)


class _Look(NamedTuple):
    number: int | None
    """None for the last one."""
    n: int
    alpha: float
    beta: float

    def decision(self, status: Status, p: float | None, used: Averages, *, within: bool) -> Decision:
        return Decision(status, self.number, self.n, p, used.hodges_lehmann(), within, last=self.number is None)


def _taken(n: int, looks: Looks, m: int, *, ended: bool) -> list[_Look]:
    shares = list(zip(looks.pairs, looks.alpha_spending, looks.beta_spending, strict=True))
    found = [
        _Look(index, pairs, looks.alpha / m * alpha, looks.beta * beta)
        for index, (pairs, alpha, beta) in enumerate(shares)
        if pairs <= n
    ]
    if ended and found:
        alpha, beta = last_share(looks, "alpha", n), last_share(looks, "beta", n)
        found.append(_Look(None, n, looks.alpha / m * alpha, looks.beta * beta))
    return found


def _unfit(values: Array, m: int) -> ReasonCode:
    if m < 1:
        raise ValueError("the number of criteria is at least 1")
    return "" if np.isfinite(values).all() else "nonfinite"


def _no_margin(r_log: float) -> ReasonCode:
    return "" if math.isfinite(r_log) and r_log > 0 else "margin"


def _open(values: Array, looks: Looks, *, ended: bool) -> Decision:
    reached = sum(n <= len(values) for n in looks.pairs)
    estimate = hodges_lehmann(values) if len(values) else None
    return Decision(
        "inconclusive" if ended else "continue", reached - 1 if reached else None, len(values), None, estimate
    )


class _Shown(NamedTuple):
    final: Decision | None = None
    p_within: float | None = None
    """The p-value of "within the limit", where it is small enough."""
    faster: bool = False
    """It seems faster by more than r/2."""


def _show(used: Averages, look: _Look, r_log: float, confirm: float, *, within: bool) -> _Shown:
    """`within`: shown by an earlier look, so that a regression is not asked again."""
    if not within and look.alpha > 0:
        p = used.p_greater(0.0)
        if p <= look.alpha and used.p_greater(r_log / 2) <= confirm:
            return _Shown(look.decision("regression", p, used, within=within))
    faster = used.p_less(-r_log / 2) <= confirm
    if faster and look.alpha > 0:
        p = used.p_less(0.0)
        if p <= look.alpha:
            return _Shown(look.decision("improvement", p, used, within=within))
    if within:
        return _Shown(faster=faster)
    p = used.p_less(r_log)
    return _Shown(None, p if p <= look.beta else None, faster)


def _passed(used: Averages, look: _Look, r_log: float, cleared_at: tuple[int | None, float]) -> Decision:
    """`cleared_at`: look and p-value of "within the limit"."""
    p = used.p_less(-r_log)
    if p <= SEEN:
        return look.decision("improvement", p, used, within=True)
    by, p = cleared_at
    return look._replace(number=by if look.number is None else look.number).decision("unchanged", p, used, within=True)


def decide_threshold(
    x: Sequence[float] | Array, r_log: float, looks: Looks, m: int, *, ended: bool = False
) -> Decision:
    """Decide on which side of `r_log` the location of x lies: `regression` beyond it, `unchanged` short of it.

    Both are exact tests within α/m of that point. Arguments, `invalid` and errors as of `decide`.
    """
    values = np.asarray(x, dtype=np.float64)
    if (code := _unfit(values, m) or _no_margin(r_log)) != "":
        return invalid(code, len(values))
    for look in _taken(len(values), looks, m, ended=ended):
        used = Averages(values[: look.n])
        beyond, short = used.p_greater(r_log), used.p_less(r_log)
        if min(beyond, short) <= look.alpha:
            status: Status = "regression" if beyond < short else "unchanged"
            return look.decision(status, min(beyond, short), used, within=status == "unchanged")
    return _open(values, looks, ended=ended)


def decide_beside(
    x: Sequence[float] | Array,
    measured: Sequence[float] | Array,
    r_log: float,
    looks: Looks,
    m: int,
    *,
    ended: bool = False,
) -> Decision:
    """Decide at equal clock; where what was measured says otherwise, the clock did it.

    `x`: log ratios at equal clock; `measured`: of the same pairs as measured. The decision is `decide(x)`, save for two
    cases, which are `clock`:

    - x says unchanged or improvement, and `decide(measured)` says regression. A case that seems so (slower by more than
    r/2 at 5 %) goes on while a later look may show it; the last look asks what was measured too.

    - x says regression, and what was measured shows at `confirm` that it is not slower by r/2.

    A `clock` holds the measured p-value and estimate in the first case, those of x in the second. Raises and is invalid
    as `decide`.
    """
    plain = np.asarray(measured, dtype=np.float64)
    decision = decide(x, r_log, looks, m, ended=ended)
    if decision.status == "regression" and p_less(plain[: decision.n], r_log / 2) <= looks.confirm:
        return replace(decision, status="clock")
    if decision.status not in ("unchanged", "improvement"):
        return decision
    for look, n in enumerate(looks.pairs):
        if n < decision.n:
            continue
        if n > len(plain):
            break
        beside = decide(plain[:n], r_log, looks, m)
        if beside.status == "regression":
            return Decision("clock", look, n, beside.p, hodges_lehmann(plain[:n]))
        slower = p_greater(plain[:n], r_log / 2) <= _SUSPECT
        if beside.within or not (slower and may_prove_after(look, looks, m)):
            return decision
    if not ended:
        return replace(decision, status="continue", n=len(plain), within=True)
    beside = decide(plain, r_log, looks, m, ended=True)
    if beside.status == "regression":
        return Decision("clock", None, len(plain), beside.p, hodges_lehmann(plain), last=True)
    return decision


def decide_bound(
    values: Sequence[float] | Array,
    bound: float,
    beyond: Beyond,
    looks: Looks,
    m: int,
    *,
    ended: bool = False,
) -> Decision:
    """Decide whether the location of head's worker values is `beyond` the bound: `above` it, or `below`.

    `values`: shape (n,), in the metric's unit, in the order measured. `violation` where the location is beyond within
    the look's share of α/m; `unchanged` at the first look whose Hodges–Lehmann centre is on the right side or exactly
    on the bound; else `continue`, or with `ended` a last look. Invalid: a value or bound not finite. Raises ValueError
    for m < 1.
    """
    array = np.asarray(values, dtype=np.float64)
    if (code := _unfit(array, m) or ("" if math.isfinite(bound) else "bound")) != "":
        return invalid(code, len(array))
    for look in _taken(len(array), looks, m, ended=ended):
        used = Averages(array[: look.n])
        centre = used.hodges_lehmann()
        p = (used.p_greater if beyond == "above" else used.p_less)(bound)
        if p <= look.alpha:
            return look.decision("violation", p, used, within=False)
        if (centre <= bound) if beyond == "above" else (centre >= bound):
            return look.decision("unchanged", None, used, within=True)
    return _open(array, looks, ended=ended)
