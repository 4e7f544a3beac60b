"""One judgement answered from one case: what the conductor asks at each look, and the judge in the end."""

from typing import Literal, NamedTuple

import numpy as np

from perfci.model.metrics import CATALOGUE
from perfci.model.plan import Judgement, Looks
from perfci.model.results import Case
from perfci.stats.decide import Decision, ReasonCode, decide, decide_bound, invalid, margin
from perfci.stats.series import DERIVED, arm_values, paired_values
from perfci.stats.walsh import Array


class Answer(NamedTuple):
    """A decision with the values that it rests on."""

    decision: Decision
    limit: float
    """The limit that was applied: a relative change, never under the floor; or the absolute bound."""
    base: Array
    """Base's launch values in the metric's unit, shape (n,); for bounds all that there are."""
    head: Array


def answer(case: Case, judgement: Judgement, looks: Looks, m: int) -> Answer:
    """What the pairs of `case` say about `judgement`, looks replayed from the first.

    The decision is the same for the conductor, which has the pairs so far, and for the judge, which has
    them all. Its status is `invalid` where values are missing, not finite, or not positive though they must
    be.
    """
    if judgement.kind == "regression":
        return _relative(case, judgement, looks, m)
    return _absolute(case, judgement, looks, m)


def _absolute(case: Case, judgement: Judgement, looks: Looks, m: int) -> Answer:
    base, head = (arm_values(case, arm, judgement.metric) for arm in ("base", "head"))
    if not head.size:
        decision = invalid("unmeasured" if case.pairs else "empty")
    elif judgement.metric in CATALOGUE and not (head > 0).all() and np.isfinite(head).all():
        decision = invalid("nonpositive", len(head))
    else:
        side: Literal["min", "max"] = "min" if judgement.kind == "min" else "max"
        decision = decide_bound(head, judgement.bound, side, looks, m)
    return Answer(decision, judgement.bound, base, head[: decision.n])


def _relative(case: Case, judgement: Judgement, looks: Looks, m: int) -> Answer:
    base, head = paired_values(case, judgement.metric)
    limit = judgement.bound
    if not base.size:
        return Answer(invalid(_why_none(case, judgement.metric)), limit, base, head)
    if not (np.isfinite(base).all() and np.isfinite(head).all()):
        return Answer(invalid("nonfinite", len(base)), limit, base, head)
    if not ((base > 0).all() and (head > 0).all()):
        return Answer(invalid("nonpositive", len(base)), limit, base, head)
    if judgement.unit == "s" and judgement.floor > 0:
        # The pairs of the first look alone, so that the limit is the same at every look.
        limit = max(limit, judgement.floor / float(np.median(base[: looks.pairs[0]])))
    x = np.log(head) - np.log(base)
    r_log = margin(limit, judgement.better)
    decision = decide(x if judgement.better == "lower" else -x, r_log, looks, m)
    if decision.status == "regression" and _same_in_cycles(case, judgement.metric, r_log, looks, m):
        decision = Decision("clock", decision.look, decision.n, decision.p, decision.estimate)
    return Answer(decision, limit, base[: decision.n], head[: decision.n])


def _why_none(case: Case, metric: str) -> ReasonCode:
    if not case.pairs:
        return "empty"
    if arm_values(case, "head", metric).size:
        return "empty" if arm_values(case, "base", metric).size else "base_unmeasured"
    return "unmeasured"


def _same_in_cycles(case: Case, metric: str, r_log: float, looks: Looks, m: int) -> bool:
    """Whether what is slower in time is acquitted in SM cycles: then the clock moved, not the code."""
    if metric != "time" and metric not in DERIVED:
        return False
    base, head = paired_values(case, "cycles")
    if not ((base > 0).all() and (head > 0).all()):
        return False
    with np.errstate(invalid="ignore"):
        decision = decide(np.log(head) - np.log(base), r_log, looks, m)
    return decision.status in ("unchanged", "improvement")
