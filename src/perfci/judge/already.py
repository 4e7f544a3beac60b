"""Bounds that base breaks already: they still bind head, which must not be worse than base."""

from collections.abc import Iterable
from typing import TypeVar

from perfci.judge.explain.thresholds import BYTES, POINTS
from perfci.judge.status import Context
from perfci.judge.words import change_words
from perfci.model.metrics import CATALOGUE
from perfci.model.plan import Gate, Judgement
from perfci.model.report import Effect
from perfci.model.results import Case
from perfci.model.units import show
from perfci.stats.answer import answer
from perfci.stats.decide import pairs_needed
from perfci.stats.series import paired_values
from perfci.stats.walsh import hodges_lehmann

Asked = TypeVar("Asked", Judgement, Gate)
NOISE = 1e-9
"""The relative change that is looked for where no limit names one: anything beyond noise."""


def measured(context: Context, case: Case, judgement: Judgement, base: float, broken: str) -> tuple[Effect, str]:
    """What a bound does that both sides break, and why. `base`: its centre; `broken`: how head breaks the bound.

    Head fails where it is worse than base by more than the relative limit on the metric, or without one where it is
    shown to be worse at all: by the looks and the share of α of the bound itself, so that unchanged code fails no
    oftener than the bound may.
    """
    was = show(base, judgement.unit)
    own = _relative(context.asked.get(case.key, []), judgement)
    asked = own or judgement.model_copy(update={"kind": "regression", "bound": NOISE, "min_change": 0.0, "tick": 0.0})
    found = answer(case, asked, context.looks, context.m, ended=True).decision
    if found.status == "regression":
        return context.effect("violation", judgement.severity), _worse(broken, was, _ratio(case, judgement), judgement)
    already = f"{broken}, as it already was in base ({was})"
    if found.status == "invalid":
        why = f"what is known of {judgement.metric} does not show whether head is worse"
        return context.effect("invalid", judgement.severity), f"{already}; {why}"
    needed = pairs_needed(context.looks, context.m)
    if found.n < needed:
        why = f"{found.n} of the {needed} pairs that it takes to show that head is worse"
        return context.effect("inconclusive", judgement.severity), f"{already}; {why}"
    return "warn", already


def observed(context: Context, gate: Gate, base: float, head: float, broken: str) -> tuple[Effect, str]:
    """The same of what a profiler saw once in each side: noise is what such values scatter by from run to run."""
    was = show(base, gate.unit)
    limit = _relative(context.gates.get(f"{gate.case}@{gate.device}", []), gate)
    worse = head - base if gate.kind == "max" else base - head
    if limit is not None:
        allowed = abs(base) * limit.bound
    elif gate.metric in CATALOGUE and CATALOGUE[gate.metric].exact:
        allowed = 0.0
    else:
        allowed = POINTS if gate.unit == "%" else abs(base) * BYTES
    if worse > allowed:
        ratio = head / base if base > 0 and head > 0 else None
        return context.effect("violation", gate.severity), _worse(broken, was, ratio, gate)
    return "warn", f"{broken}, as it already was in base ({was})"


def _relative(asked: Iterable[Asked], bound: Asked) -> Asked | None:
    return next((one for one in asked if one.kind == "regression" and one.metric == bound.metric), None)


def _ratio(case: Case, judgement: Judgement) -> float | None:
    base, head = (hodges_lehmann(values) for values in paired_values(case, judgement.metric))
    return head / base if base > 0 and head > 0 else None


def _worse(broken: str, was: str, ratio: float | None, asked: Judgement | Gate) -> str:
    words = "worse" if ratio is None else change_words(ratio, asked.metric)
    return f"{broken}; base breaks it already ({was}), and head is {words} still"
