"""Why pairs do not answer a limit, and how many more would."""

import math

from perfci.judge.status import Context
from perfci.judge.words import change_words
from perfci.model.criteria import Criterion
from perfci.model.results import Case
from perfci.model.text import count
from perfci.model.units import limit_percent, percent, show_budget
from perfci.stats.answer import Answer, pairs_to_decide
from perfci.stats.calibration import noise, reach
from perfci.stats.decide import largest_share, margin
from perfci.stats.walsh import Array, interval

LEVEL = 0.95
DRIFTS = "not shown, as pairs resemble those before them, which drift makes too: measure again where nothing else runs"
_STOPPED = {
    "budget": ": the budget ended",
    "interrupted": ": the run was interrupted",
    "failed": ": a worker failed",
    "hopeless": ": by their scatter the pairs that were left would not have decided it",
}
_RESUME = "--resume goes on"


def stopped(case: Case) -> str:
    """Return why measuring ended before the first look, as the end of a clause."""
    return ": the budget is too short for it" if case.budget_needed else _STOPPED.get(case.stopped, "")


def enough(case: Case) -> str:
    """Return the budget that would do, as a clause."""
    return f"; a budget of {show_budget(case.budget_needed)} would do" if case.budget_needed else ""


def undecided(context: Context, case: Case, criterion: Criterion, found: Answer, x: Array, words: str) -> str:
    """Return why a relative limit has no answer. `x`: log ratios; `words`: the change as seen."""
    n, first = found.decision.n, context.looks.first
    words += _beyond_the_interval(context, criterion, found.limit, criterion.sign * x)
    if case.origin == "imported":
        needed = context.looks.fewest_to_show(context.m)
        if n < needed:
            return f"{n} of the {needed} files each of base and head that it takes to show a regression"
        return f"undecided after {n} files each of base and head: {words}; more files, or a larger limit, would help"
    if n < first:
        seen = f"; seen so far: {words}" if n > 1 else ""
        helps = f"; {_RESUME}" if case.stopped == "interrupted" else enough(case) or "; a larger budget would help"
        return f"{n} of the {first} pairs that a decision needs{stopped(case)}{seen}{helps}"
    goes_on = n < context.looks.pairs[-1] and case.stopped != "hopeless"
    if criterion.threshold:
        asked = f" whether half of the whole change, {percent(found.limit)}, is there"
        helps = "a larger budget" if goes_on else "a quieter machine"
    else:
        asked, helps = "", "a larger budget or a larger limit" if goes_on else "a larger limit or a quieter machine"
    more = _more(context, case, criterion, found) or _could_hold(context, case, criterion, x)
    helps = _RESUME if case.stopped == "interrupted" else f"{helps} would help"
    return f"undecided after {n} pairs{asked}{_STOPPED.get(case.stopped, '')}: {words}{more}; {helps}"


def unproved(context: Context, case: Case, criterion: Criterion, found: Answer, broken: str) -> str:
    """Return why a bound has no answer. `broken`: how head's workers break it."""
    n = found.decision.n
    first = context.looks.earliest if case.answered(criterion.metric) else context.looks.first
    if n < first:
        return f"{n} of the {first} workers that a decision needs{stopped(case)}{enough(case)}"
    more = _more(context, case, criterion, found)
    return f"{broken}, but {n} workers do not prove it{_STOPPED.get(case.stopped, '')}{more}"


def too_few(n: int, needed: int) -> str:
    """Return why a bound that base breaks has no answer."""
    return f"{n} of the {needed} pairs that it takes to show that head is worse"


def _more(context: Context, case: Case, criterion: Criterion, found: Answer) -> str:
    needed = pairs_to_decide(criterion, found, context.looks, context.m)
    if needed is None or case.stopped == "hopeless":
        return ""
    more = count(needed - found.decision.n, "more pair" if found.ratios else "more worker")
    return f"; about {more} like these would decide it"


def _could_hold(context: Context, case: Case, criterion: Criterion, x: Array) -> str:
    held = reach(noise(x, 1), context.looks, context.m) if case.stopped == "hopeless" else {}
    if not held or criterion.threshold:
        return ""
    most = max(held)
    return f"; {most} pairs could hold a limit of about {percent(math.expm1(held[most]))}"


def _beyond_the_interval(context: Context, criterion: Criterion, limit: float, worse: Array) -> str:
    """Looks share the error rates, so that each asks more than the interval's level. `worse`: log ratios, positive is
    worse."""
    looks, n, r_log = context.looks, worse.size, margin(limit, criterion.better)
    low, high, level = interval(worse, LEVEL)
    if level <= 0 or low <= r_log <= high:
        return ""
    alpha = looks.alpha / context.m * largest_share(looks, "alpha", n)
    line = percent(limit) if criterion.threshold else limit_percent(limit)
    seen = f", all of it beyond {'that' if criterion.threshold else f'the limit of {line}'}" if low > r_log else ""
    if n < looks.first:
        return seen
    if criterion.threshold:
        what, share, short = "to tell takes", alpha, high < r_log
    elif high < r_log:
        what, share, short = f"to exclude {line} takes", looks.beta * largest_share(looks, "beta", n), True
    elif interval(worse, 1 - 2 * alpha).low <= 0 or 2.0**-n > alpha:
        what, share, short = "to show that it is worse takes", alpha, False
    else:
        what, share, short = f"to show more than half of {line} takes", looks.confirm, False
    if 2.0**-n > share:
        return f"{seen}; {what} {_confidence(share)}, which {n} pairs cannot give"
    bounds = interval(worse, 1 - 2 * share)
    end = math.exp(criterion.sign * (bounds.high if short else bounds.low))
    return f"{seen}; {what} {_confidence(share)}, at which it may be {change_words(end, criterion.metric)}"


def _confidence(share: float) -> str:
    if share <= 0:
        return "certainty"
    digits = max(0, math.ceil(-math.log10(share * 100)))
    return f"{100 - share * 100:.{digits}f} % confidence"
