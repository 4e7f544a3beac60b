"""Runs whose budget ended before a case had the pairs of its first look: they have no verdict."""

import math

from perfci.judge.status import Context, state
from perfci.model.comparison import differences
from perfci.model.results import Case, Results
from perfci.model.text import listed

ROOM = 1.25
"""A budget that would do is the pairs' mean cost so far and a quarter: later pairs may be dearer (`effort.DEAREST` is
for single cases), and processes start anew in each round."""


def starved(results: Results, context: Context) -> tuple[str, str] | None:
    """Return the sentence of a run whose budget ended before a case's first look, and what to do; None where it did
    not."""
    first = context.looks.pairs[0]
    asked = [case for case in results.cases if _asked(context, case)]
    short = [case for case in asked if unreached(context, case)]
    if not short:
        return None
    budget = show_budget(results.plan.budget)
    who = listed((case.id for case in short), mark="`")
    sentence = f"The budget of {budget} ended before the first {first} pairs of {who}: nothing is known of them"
    pairs = sum(len(case.pairs) for case in results.cases)
    if not pairs:
        return sentence, f"Give a much larger budget: not one pair was finished in {budget}. Or name fewer cases."
    need = max(ROOM * results.measuring_seconds / pairs * first * len(asked), 1.1 * results.plan.budget)
    would_do = show_budget(need)
    return (
        sentence,
        f"A budget of {would_do} would do (--budget {would_do}, or budget in perfci.yaml); or name fewer cases.",
    )


def unreached(context: Context, case: Case) -> bool:
    """Tell whether the budget ended before the case had the pairs of the first look."""
    return case.stopped == "budget" and len(case.pairs) < context.looks.pairs[0]


def _asked(context: Context, case: Case) -> bool:
    """Tell whether a limit on what pairs tell waits for an answer from this case."""
    base, head = state(case, "base"), state(case, "head")
    if head.status != "ok" or case.proved:
        return False
    compares = context.compared and base.status == "ok" and not differences(base, head)
    asked = [one for one in context.criteria.get(case.key, []) if one.timed]
    return any(compares or not one.relative for one in asked)


def show_budget(seconds: float) -> str:
    """Show seconds as a policy has them, rounded up: `50s`, `4m`."""
    return f"{math.ceil(seconds)}s" if seconds <= 90 else f"{math.ceil(seconds / 60)}m"
