"""Runs whose budget ended before a case had the pairs of its first look: they have no verdict."""

from perfci.judge.status import Context, state
from perfci.model.comparison import differences
from perfci.model.results import Case, Phase, Results
from perfci.model.text import listed
from perfci.model.units import show_budget

ROOM = 1.25
"""A budget that would do is the pairs' mean cost so far and a quarter: later pairs may be dearer (`effort.DEAREST` is
for single cases), and processes start anew in each round."""
BEYOND: tuple[Phase, ...] = ("wait", "snapshot", "build", "profile")
"""Phases that the budget does not hold, or that come after the pairs."""


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
    if results.budget_needed:
        sentence = f"The budget of {budget} is too short to show a regression of {who}: measuring ended early"
        return sentence, _would_do(results.budget_needed)
    sentence = f"The budget of {budget} ended before the first {first} pairs of {who}: nothing is known of them"
    pairs = sum(len(case.pairs) for case in results.cases)
    if not pairs:
        return sentence, f"Give a much larger budget: not one pair was finished in {budget}. Or name fewer cases."
    before = results.seconds - results.measuring_seconds - sum(results.costs.get(name, 0.0) for name in BEYOND)
    need = max(0.0, before) + ROOM * results.measuring_seconds / pairs * results.plan.convicting * len(asked)
    if results.part is not None:
        need /= len(results.part.shards)  # each has the budget for itself, and all seconds are added up here
    return sentence, _would_do(max(need, 1.1 * results.plan.budget))


def _would_do(seconds: float) -> str:
    shown = show_budget(seconds)
    return f"A budget of {shown} would do (--budget {shown}, or budget in perfci.yaml); or name fewer cases."


def unreached(context: Context, case: Case) -> bool:
    """Tell whether the budget ended before the case had the pairs of the first look."""
    return case.stopped == "budget" and len(case.pairs) < context.looks.pairs[0]


def _asked(context: Context, case: Case) -> bool:
    """Tell whether a limit on what pairs tell waits for an answer from this case."""
    base, head = state(case, "base"), state(case, "head")
    if head.status != "ok":
        return False
    compares = context.compared and base.status == "ok" and not case.proved
    compares = compares and not differences(base, head, context.environments)
    asked = [one for one in context.criteria.get(case.key, []) if one.timed]
    return any(compares or not one.relative for one in asked)
