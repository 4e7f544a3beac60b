"""Which metrics a case reports, as limits ask it for them."""

from typing import NamedTuple

from perfci.model.base import ArmName
from perfci.model.results import Case, CaseArm


class Reports(NamedTuple):
    """What a case reports: a change is asked of what base reports, a bound holds for whatever head reports."""

    relative: frozenset[str] | None
    """In base, in head where base reports nothing; None where neither is known to report anything."""
    bounded: frozenset[str]
    """In head."""


def at_first(case: Case) -> Reports:
    """What the first executions reported, by which the plan is made; where those are not known, what pairs hold."""
    return _reports(case, later=False)


def ever(case: Case) -> Reports:
    """What any execution reported."""
    return _reports(case, later=True)


def _reports(case: Case, *, later: bool) -> Reports:
    if case.origin == "kernel":
        return Reports(frozenset({"time"}), frozenset())
    base, head = _of(case, "base", later=later), _of(case, "head", later=later)
    return Reports(base or head or None, head)


def _of(case: Case, name: ArmName, *, later: bool) -> frozenset[str]:
    told = case.arms.get(name, CaseArm()).reports
    if told is not None and not later:
        return frozenset(told)
    return frozenset(told or ()).union(*(pair.values.get(name, {}) for pair in case.pairs))
