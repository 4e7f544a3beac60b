"""The decision: what launch pairs say about a limit, look by look.

A group-sequential test without asymptotics: each look may spend a share of α on a conviction and a share of
β on an acquittal, and the shares of all looks sum to at most 1, so that both error rates hold by a union
bound. Every test is an exact signed-rank test over launch pairs. α is divided by the number of gating
judgements (Bonferroni), so that it bounds the chance that a *run* on unchanged code fails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfci.model.metrics import Direction
from perfci.model.plan import Looks
from perfci.stats.walsh import Array, hodges_lehmann, p_greater, p_less

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
    "clock",  # a measured clock is no finite positive number
]


_SUSPECT = 0.05
"""Level at which a case that is acquitted at equal clock looks slower as measured, so that more pairs are worth taking.
It decides nothing: a looser one costs pairs, a stricter one lets a lowered clock pass unsaid."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the data say at the look that decided, or so far."""

    status: Status
    """`continue` asks for more pairs; `final` says what it means where there are none to come."""
    look: int | None
    """Index of the look that decided; of the acquitting look where an acquitted case goes on; else the last
    one taken."""
    n: int
    """Pairs that were used."""
    p: float | None
    """p-value of the deciding test; None where none decided."""
    estimate: float | None
    """Hodges–Lehmann estimate over these pairs: a log ratio, positive is worse; for bounds a value in the
    metric's unit."""
    acquitted: bool = False
    """Whether a slow-down of the limit's size is excluded."""
    reason_code: ReasonCode = ""
    """Why the status is `invalid`."""


def invalid(code: ReasonCode, n: int = 0) -> Decision:
    """The decision that data or limit allow none."""
    return Decision("invalid", None, n, None, None, reason_code=code)


def margin(r: float, better: Direction) -> float:
    """The log ratio, positive is worse, of a change for the worse by the share r.

    ln(1 + r) where lower is better, -ln(1 - r) where higher is better: r itself would acquit a true r where
    the noise is tiny. NaN where there is no such change (r < 0; r ≥ 1 where higher is better), which
    `decide` calls invalid.
    """
    if not math.isfinite(r) or r < 0 or (better == "higher" and r >= 1):
        return math.nan
    return math.log1p(r) if better == "lower" else -math.log1p(-r)


def _may_convict_after(look: int, looks: Looks, m: int) -> bool:
    """Whether a later look can convict at all: the smallest p-value of n pairs is 2^-n."""
    later = zip(looks.pairs[look + 1 :], looks.convict[look + 1 :], strict=True)
    return any(2.0**-n <= looks.alpha / m * share for n, share in later)


def pairs_needed(looks: Looks, m: int) -> int:
    """The fewest pairs with which a look that may spend all of α/m can convict: the smallest p of n pairs is 2^-n."""
    return math.ceil(-math.log2(min(looks.alpha / m, looks.confirm)))


def decide(x: Sequence[float] | Array, r_log: float, looks: Looks, m: int) -> Decision:
    """Regression, improvement, unchanged, or more pairs?

    `x`: ln(head/base) per pair, shape (n,), in the order measured, oriented so that positive is worse.
    `r_log`: the limit as a log ratio, from `margin`. `m`: number of gating judgements of the run.

    Looks are replayed from the first; the first final status wins and later data are ignored. At each look:
    - regression: the location is above 0 within the look's share of α/m, and above r/2 at `confirm`;
    - improvement: the mirror image;
    - acquittal: the location is below r within the look's share of β. It ends as `unchanged`, except where
      the case looks faster by more than r/2 and a later look may still name it an improvement: then
      `continue`, acquitted.
    An acquitted case is never convicted of a regression later. With the tests' own monotonicity it follows
    that raising any x never turns a regression into something else.

    Invalid: a value that is not finite, an r_log that is not positive and finite.
    Raises ValueError for m < 1.
    """
    values = np.asarray(x, dtype=np.float64)
    if m < 1:
        raise ValueError("the number of judgements is at least 1")
    if not np.isfinite(values).all():
        return invalid("nonfinite", len(values))
    if not (math.isfinite(r_log) and r_log > 0):
        return invalid("margin", len(values))
    acquittal: tuple[int, float] | None = None
    last: int | None = None
    for look, n in enumerate(looks.pairs):
        if n > len(values):
            break
        last, used = look, values[:n]
        alpha = looks.alpha / m * looks.convict[look]
        if acquittal is None and alpha > 0:
            p = p_greater(used, 0.0)
            if p <= alpha and p_greater(used, r_log / 2) <= looks.confirm:
                return Decision("regression", look, n, p, hodges_lehmann(used))
        faster = p_less(used, -r_log / 2) <= looks.confirm
        if faster and alpha > 0:
            p = p_less(used, 0.0)
            if p <= alpha:
                return Decision("improvement", look, n, p, hodges_lehmann(used), acquittal is not None)
        if acquittal is None:
            p = p_less(used, r_log)
            if p <= looks.beta * looks.acquit[look]:
                acquittal = look, p
        if acquittal is not None and not (faster and _may_convict_after(look, looks, m)):
            return Decision("unchanged", look, n, acquittal[1], hodges_lehmann(used), acquitted=True)
    estimate = hodges_lehmann(values) if len(values) else None
    if acquittal is not None:
        return Decision("continue", acquittal[0], len(values), acquittal[1], estimate, acquitted=True)
    return Decision("continue", last, len(values), None, estimate)


def decide_beside(
    x: Sequence[float] | Array, measured: Sequence[float] | Array, r_log: float, looks: Looks, m: int
) -> Decision:
    """The decision at equal clock, with an eye on what was measured: where the two part, the clock did it.

    `x`: log ratios at equal clock; `measured`: of the same pairs as measured; both as `decide` takes them.
    The decision is `decide(x)`, save for two cases, which are `clock`:
    - x says unchanged or improvement, and `decide(measured)` says regression: slower, but not at equal clock.
      A case that looks so (slower by more than r/2 at 5 %) goes on while a later look may convict.
    - x says regression, and what was measured shows at `confirm` that it is not slower by r/2: slower at equal
      clock, and the clock made up for it.
    A `clock` holds the measured p-value and estimate in the first case, those of x in the second.

    Raises and is invalid as `decide`.
    """
    plain = np.asarray(measured, dtype=np.float64)
    decision = decide(x, r_log, looks, m)
    if decision.status == "regression" and p_less(plain[: decision.n], r_log / 2) <= looks.confirm:
        return replace(decision, status="clock")
    if decision.look is None or decision.status not in ("unchanged", "improvement"):
        return decision
    for look, n in enumerate(looks.pairs):
        if n < decision.n:
            continue
        if n > len(plain):
            return replace(decision, status="continue", n=len(plain), acquitted=True)
        beside = decide(plain[:n], r_log, looks, m)
        if beside.status == "regression":
            return Decision("clock", look, n, beside.p, hodges_lehmann(plain[:n]))
        slower = p_greater(plain[:n], r_log / 2) <= _SUSPECT
        if beside.acquitted or not (slower and _may_convict_after(look, looks, m)):
            break
    return decision


def decide_bound(
    values: Sequence[float] | Array, bound: float, side: Literal["min", "max"], looks: Looks, m: int
) -> Decision:
    """Is the location of head's launch values at least (`min`) or at most (`max`) `bound`?

    `values`: shape (n,), in the metric's unit and in the order measured; they need not be positive.
    `violation` where the location is beyond the bound within the look's share of α/m; `unchanged` at the
    first look whose Hodges–Lehmann centre is on the right side; else `continue`. Exactly on the bound is
    within. Invalid: a value or bound that is not finite. Raises ValueError for m < 1.
    """
    array = np.asarray(values, dtype=np.float64)
    if m < 1:
        raise ValueError("the number of judgements is at least 1")
    if not np.isfinite(array).all():
        return invalid("nonfinite", len(array))
    if not math.isfinite(bound):
        return invalid("bound", len(array))
    beyond = p_greater if side == "max" else p_less
    last: int | None = None
    for look, n in enumerate(looks.pairs):
        if n > len(array):
            break
        last, used = look, array[:n]
        centre = hodges_lehmann(used)
        p = beyond(used, bound)
        if p <= looks.alpha / m * looks.convict[look]:
            return Decision("violation", look, n, p, centre)
        if (centre <= bound) if side == "max" else (centre >= bound):
            return Decision("unchanged", look, n, None, centre, acquitted=True)
    return Decision("continue", last, len(array), None, hodges_lehmann(array) if len(array) else None)


def final(decision: Decision) -> Decision:
    """The decision where no more pairs will come: what is undecided is `inconclusive`, or `unchanged` where
    acquitted."""
    if decision.status != "continue":
        return decision
    return replace(decision, status="unchanged" if decision.acquitted else "inconclusive")
