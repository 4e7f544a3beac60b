"""Cases that the budget did not bring to their first look."""

from collections.abc import Iterable, Sequence

from perfci.judge.status import Context, state
from perfci.model.comparison import differences
from perfci.model.results import Case, Results
from perfci.model.text import listed
from perfci.model.units import show_budget


def starved(context: Context, cases: Sequence[Case]) -> bool:
    """Tell whether no case, of which pairs are to tell something, came so far."""
    asked = [case for case in cases if _asked(context, case)]
    return bool(asked) and all(unreached(context, case) for case in asked)


def sentence(results: Results, context: Context) -> str:
    """Return the sentence of a starved run."""
    budget, first = show_budget(results.plan.budget), context.looks.first
    who = listed((case.id for case in results.cases if _asked(context, case)), mark="`")
    if results.budget_needed:
        return f"The budget of {budget} is too short to show a regression of {who}: measuring ended early"
    return f"The budget of {budget} ended before the first {first} pairs of {who}: nothing is known of them"


def advice(cases: Iterable[Case]) -> str:
    """Return which budget would do for at least one unreached case."""
    needed = [case.budget_needed for case in cases]
    if not all(needed):
        return "Give a much larger budget, or name fewer cases."
    shown = show_budget(max(needed))
    return f"A budget of {shown} would do (--budget {shown}, or budget in perfci.yaml); or name fewer cases."


def unreached(context: Context, case: Case) -> bool:
    """Tell whether the budget ended before the first look."""
    return case.stopped == "budget" and len(case.pairs) < context.looks.first


def _asked(context: Context, case: Case) -> bool:
    base, head = state(case, "base"), state(case, "head")
    if head.status != "ok":
        return False
    compares = context.compared and base.status == "ok" and (not case.proved or case.host_open)
    compares = compares and not differences(base, head, context.environments)
    asked = [one for one in context.criteria.get(case.key, []) if one.timed]
    return any(compares or not one.relative for one in asked)
