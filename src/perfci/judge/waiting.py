"""The row of a case that no limit answers here, though some name it: they wait for another device, or for a tool."""

from collections.abc import Iterable

from perfci.judge.status import Context, about
from perfci.model.plan import Waiting
from perfci.model.report import Effect, Row
from perfci.model.results import Case


def by_case(waiting: Iterable[Waiting]) -> dict[str, list[Waiting]]:
    """Case key → the limits that wait on it."""
    found: dict[str, list[Waiting]] = {}
    for one in waiting:
        found.setdefault(f"{one.case}@{one.device}", []).append(one)
    return found


def unanswered(context: Context, case: Case) -> list[Row]:
    """No row where a limit is judged of the case, or none waits on it. `case` works in head."""
    own = context.waiting.get(case.key, [])
    if not own or context.asked.get(case.key) or context.gates.get(case.key):
        return []
    first = next((one for one in own if one.severity == "fail"), own[0])
    more = f"; nor {len(own) - 1} more" if len(own) > 1 else ""
    reason = (
        f"no limit on it can be judged here: {first.source} on {first.metric}: {first.why}{more}: measure where it can "
        "be, or give the case a limit that holds here"
    )
    effect: Effect = context.undecided if first.severity == "fail" else "undecided"
    fields = {"class": "invalid", "effect": effect, "reason": reason}
    unit = context.unit(first.metric)
    return [Row(**about(case), **fields, metric=first.metric, unit=unit, kind="presence", limit_source=first.source)]
