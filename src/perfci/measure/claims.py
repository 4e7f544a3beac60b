"""Claims: which cases they are of, and pairs of their own behind the limits' decisions."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from perfci.measure.journal import Journal
from perfci.measure.plan import fitted
from perfci.measure.request import What
from perfci.model.base import UsageError, matches
from perfci.model.claims import claimed_of, sharing
from perfci.model.comparison import comparable
from perfci.model.fingerprint import Environments
from perfci.model.limits import nearest
from perfci.model.plan import ClaimPlan, Plan
from perfci.model.results import Case, ClaimPairs

CLAIM_ROUNDS = 10**9
"""Number of their first round: no run of limits has as many pairs, resumed or not."""


def plan_claims(what: What, cases: Sequence[Case]) -> ClaimPlan | None:
    """Return what is claimed of which case; None where nothing is.

    Raises UsageError for a claim that is of none, unless a description makes it: no job may end by one.
    """
    if not what.claims:
        return None
    lost = next((claim for claim in what.claims if not any(matches(claim.cases, case.id) for case in cases)), None)
    if lost is not None and not what.described:
        why = nearest(lost.cases, (case.id for case in cases))
        raise UsageError(f"--claim {lost.cases}: matches no case that is measured: {why}")
    asked = claimed_of(what.claims, ((case.id, case.device) for case in cases))
    return ClaimPlan(criteria=asked, described=what.described)


def fit_claims(what: What, plan: ClaimPlan, cases: Iterable[Case]) -> None:
    """Share α among the claims that pairs decide."""
    proved = {case.key for case in cases if case.code_proved}
    plan.m = sharing(sum(one.case_key not in proved for one in plan.criteria), what.attempt)
    plan.looks = fitted(plan.m, what)


def loop_plan(plan: Plan, claims: ClaimPlan) -> Plan:
    """Return the plan by which pairs are taken for `claims`."""
    most = claims.looks.pairs[-1]
    update = {"criteria": claims.criteria, "looks": claims.looks, "m": claims.m, "max_pairs": most, "purpose": "change"}
    return plan.model_copy(update={**update, "exact_pairs": None, "precise": False})


@contextmanager
def claimants(
    cases: Iterable[Case], claims: ClaimPlan, journal: Journal, environments: Environments | None
) -> Iterator[list[Case]]:
    """Yield cases in the place of those that a claim is of and pairs can decide; at the end these have their pairs.

    Whatever becomes of one is no change of its original: neither its pairs nor what fails in them.
    """
    claimed = {one.case_key for one in claims.criteria}
    taken = {
        case.key: case for case in cases if case.key in claimed and not case.proved and comparable(case, environments)
    }
    stand_ins = [_stand_in(case, journal.claimed.get(key, ClaimPairs())) for key, case in taken.items()]
    try:
        yield stand_ins
    finally:
        for one in stand_ins:
            failures = {name: side.reason for name, side in one.sides.items() if side.status == "failed"}
            new = {name: reason for name, reason in failures.items() if taken[one.key].sides[name].status != "failed"}
            known = {name: reason for name, reason in new.items() if reason is not None}
            taken[one.key].claimed = ClaimPairs(pairs=one.pairs, stopped=one.stopped, failures=known)


def _stand_in(case: Case, known: ClaimPairs) -> Case:
    sides = {name: side.model_copy() for name, side in case.sides.items()}
    for name, reason in known.failures.items():
        sides[name].status, sides[name].reason = "failed", reason
    pairs = sorted(known.pairs, key=lambda pair: pair.index)
    return case.model_copy(update={"sides": sides, "pairs": pairs, "stopped": "decided", "claimed": None})
