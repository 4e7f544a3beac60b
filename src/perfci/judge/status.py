"""Effect on the verdict, order, and case of all rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from perfci.judge.hints import hinted
from perfci.model.base import SIDES, DeviceKind, Side
from perfci.model.comparison import differences, redeclared, results_apart
from perfci.model.criteria import Criterion, Purpose
from perfci.model.fingerprint import Environments
from perfci.model.metrics import CustomMetric, known_metric
from perfci.model.plan import Looks
from perfci.model.policy import FAIL_ON, Outcome
from perfci.model.report import CLASSES, UNANSWERED, Class, Effect, Row
from perfci.model.results import UNREAD, Case, CaseSide, Results
from perfci.model.text import one_line
from perfci.stats.series import metrics, side_values
from perfci.stats.walsh import Array, hodges_lehmann

EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""Worst first."""
ANSWERED: frozenset[Class] = frozenset(CLASSES) - UNANSWERED - {"skipped"}
"""Of what was asked and answered, if only that there is nothing to compare with yet."""


@dataclass(frozen=True)
class Context:
    """The settings by which rows are judged."""

    looks: Looks
    m: int
    """Number of criteria that share α."""
    strict: bool
    """What has no answer fails the run wherever what is broken does."""
    compared: bool
    criteria: dict[str, list[Criterion]]
    """Case key → its criteria."""
    custom: dict[str, CustomMetric]
    environments: Environments | None = None
    """Of base and head, where they differ."""
    fail_on: frozenset[Outcome] = frozenset(FAIL_ON)
    """The policy's own."""
    purpose: Purpose = "change"
    dependent: bool = False
    """Pairs resemble those before them beyond chance."""
    starved: bool = False
    """No case came to its first look."""
    held: bool = False
    """What head declares otherwise fails."""

    def relative_to(self, bound: Criterion) -> Criterion | None:
        """Return the relative criterion on the same metric of the case; None without one."""
        asked = self.criteria.get(bound.case_key, [])
        return next((one for one in asked if one.relative and not one.waits and one.metric == bound.metric), None)

    def unit(self, case: Case, metric: str) -> str:
        """Return a unit; empty where the metric is not known. A throughput names what is counted: `tokens/s`."""
        if metric == "throughput":
            works = (side.work for name in ("head", "base") if (side := case.sides.get(name)))
            told = [f"{work.item}/s" for work in works if work.items]
            asked = [one.unit for one in self.criteria.get(case.key, []) if one.metric == metric and one.unit != "/s"]
            return [*told, *asked, "items/s"][0]
        if metric in self.custom:
            return self.custom[metric].unit
        known = known_metric(metric)
        return known.unit if known is not None else ""

    def effect(self, class_: Class, criterion: Criterion) -> Effect:
        """Return the effect of a criterion's row. A limit that only warns does so whether or not it has an answer."""
        breaks = "broken" in criterion.fail_on
        if class_ in ("regression", "violation"):
            return "fail" if breaks else "warn"
        if class_ in UNANSWERED:
            fails = "undecided" in criterion.fail_on or (breaks and self.strict)
            return "fail" if fails else "undecided" if breaks else "warn"
        return "pass"

    def effect_if_unanswered(self, case: Case | None = None) -> Effect:
        """Return the effect of a row on a case or file that withholds an answer."""
        asked = self.criteria.get(case.key, ()) if case is not None else ()
        fails = self.strict or "undecided" in self.fail_on or any("undecided" in one.fail_on for one in asked)
        return "fail" if fails else "undecided"

    def effect_if_failed(self, asked: Sequence[Criterion] = ()) -> Effect:
        """Return the effect of a case that fails: what is wrong passes nowhere."""
        fails = "broken" in self.fail_on or any("broken" in criterion.fail_on for criterion in asked)
        return "fail" if fails else "undecided"


def effect_if_missing(criterion: Criterion) -> Effect:
    """Return the effect of what is gone, or cannot be measured."""
    return "fail" if "missing" in criterion.fail_on else "warn"


def order(row: Row) -> tuple[object, ...]:
    """Return a key that sorts rows worst first.

    Regressions and violations by how many times a value changed, or is beyond its bound.
    """
    ratio = row.change if row.against == "base" else row.head / row.limit if row.head and row.limit else None
    size = abs(math.log(ratio)) if ratio and ratio > 0 else 0.0
    return (
        EFFECTS.index(row.effect),
        CLASSES.index("regression" if row.class_ == "violation" else row.class_),
        -size,
        row.case,
        row.device,
        row.metric,
        row.kind,
        row.limit or 0.0,
        row.limit_source,
        row.reason,
    )


def centre(values: Array) -> float | None:
    """Return the Hodges–Lehmann centre; None where it is no number."""
    return hodges_lehmann(values) if values.size and np.isfinite(values).all() else None


def because(side: CaseSide) -> str:
    """Return `: `, the reason of a side's state, and the hint for it."""
    text = hinted(side.reason.text) if side.reason else ""
    return f": {text}" if text else ""


def about(case: Case) -> dict[str, Any]:
    """Return a row's fields that name its case, head's first."""
    declared = next((side for name in ("head", "base") if (side := state(case, name)).file), CaseSide())
    return {
        "case": case.id,
        "kernel": case.kernel,
        "device": case.device,
        "file": declared.file,
        "line": declared.line,
    }


def about_id(case: str, device: DeviceKind) -> dict[str, Any]:
    """Return the same by the id."""
    return {"case": case, "kernel": case.split("/", maxsplit=1)[0], "device": device}


def about_criterion(criterion: Criterion) -> dict[str, Any]:
    """Return the fields that name a criterion."""
    return {
        "metric": criterion.metric,
        "unit": criterion.unit,
        "kind": criterion.kind,
        "limit": None if criterion.against == "names" else criterion.bound,
        "limit_source": str(criterion.source),
    }


def judged(class_: Class, effect: Effect, reason: str, **values: float | None) -> dict[str, Any]:
    """Return a row's fields on how it was judged."""
    return {"class": class_, "effect": effect, "reason": reason, **values}


def criterion_row(case: Case, criterion: Criterion, class_: Class, effect: Effect, reason: str, **values: Any) -> Row:
    """Return the row that answers a criterion."""
    return Row(**{**about(case), **about_criterion(criterion), **judged(class_, effect, reason), **values})


def of_case(case: Case, metric: str, unit: str, class_: Class, effect: Effect, reason: str) -> Row:
    """Return a row on a case itself."""
    base, head = (centre(side_values(case, side, metric)) for side in SIDES)
    fields = judged(class_, effect, reason, base=base, head=head)
    why = state(case, "head").reason if class_ == "failed" else None
    fields |= {"failure": why and why.kind, "pairs": len(case.pairs)}
    return Row(**about(case), **fields, metric=metric, unit=unit, kind="presence")


def state(case: Case, side: Side) -> CaseSide:
    """Return a side's state of a case.

    One absent because its file did not import or its side did not build has failed; one skipped because time ran out
    has no pairs.
    """
    found = case.sides.get(side, CaseSide(status="absent"))
    kind = found.reason.kind if found.reason else None
    if found.status == "absent" and kind in (*UNREAD, "build"):
        return found.model_copy(update={"status": "failed"})
    if found.status == "skipped" and kind == "budget":
        return found.model_copy(update={"status": "ok"})
    return found


def presence(context: Context, case: Case) -> Row | None:
    """Return the presence row; None where head runs the case, and base asks the same."""
    found = _compared(context, case) if context.compared else _alone(context, case)
    if found is None:
        return None
    return _row(context, case, *found)


def _row(context: Context, case: Case, class_: Class, effect: Effect, reason: str) -> Row:
    metric = next(iter(metrics(case)), "")
    return of_case(case, metric, context.unit(case, metric), class_, effect, reason)


def _gone(context: Context, case: Case) -> Effect:
    return min(map(effect_if_missing, context.criteria.get(case.key, [])), key=EFFECTS.index, default="warn")


def _fails(side: CaseSide) -> str:
    return "fails" if side.reason is None else UNREAD.get(side.reason.kind, "fails")


def _alone(context: Context, case: Case) -> tuple[Class, Effect, str] | None:
    head, failed = state(case, "head"), context.effect_if_failed(context.criteria.get(case.key, ()))
    match head.status:
        case "ok":
            return None
        case "failed":
            return "failed", failed, f"{_fails(head)}{because(head)}"
        case "skipped":
            return "skipped", "pass", f"skipped{because(head)}"
        case "absent":
            return "missing", _gone(context, case), f"not there{because(head)}"


def _compared(context: Context, case: Case) -> tuple[Class, Effect, str] | None:
    base, head = state(case, "base"), state(case, "head")
    failed = context.effect_if_failed(context.criteria.get(case.key, ()))
    if base.status != "ok" and head.status == "ok" and case.sides["head"].status == "skipped":
        return "invalid", context.effect_if_unanswered(case), f"not checked in head{because(head)}"
    match base.status, head.status:
        case "absent", "absent":
            return "invalid", context.effect_if_unanswered(case), f"in neither base nor head{because(head)}"
        case _, "absent":
            return "missing", _gone(context, case), f"in base, not in head{because(head)}"
        case "failed", "failed":
            verb = _fails(head) if _fails(head) == _fails(base) else "fails"
            return "failed", failed, f"{verb} in base and in head{because(head)}"
        case _, "failed":
            return "failed", failed, f"{_fails(head)} in head{because(head)}"
        case "ok", "skipped":
            # A change must not pass by skipping what base measured.
            return "skipped", context.effect_if_unanswered(case), f"measured in base, skipped in head{because(head)}"
        case _, "skipped":
            return "skipped", "pass", f"skipped{because(head)}"
        case "absent", _:
            return "added", "pass", "in head, not in base: nothing to compare with"
        case "skipped", _:
            return "added", "pass", f"skipped in base{because(base)}"
        case "failed", _ if base_failed_later(case):
            return "invalid", context.effect_if_unanswered(case), f"base failed while it was measured{because(base)}"
        case "failed", _:
            return "invalid", context.effect_if_unanswered(case), f"{_fails(base)} in base only{because(base)}"
    if not case.code_proved and (different := differences(base, head, context.environments)):
        # A release asks what it asked: until the next one there is nothing that could be done about it.
        effect: Effect = "warn" if context.purpose == "reference" else context.effect_if_unanswered(case)
        effect = "fail" if context.held else effect
        return "changed", effect, "; ".join([*different, *redeclared(base, head), *results_apart(base, head)])
    return None


def declared_otherwise(context: Context, case: Case) -> Row | None:
    """Return the row of a case that head declares otherwise, or that has another result where no reference says which
    is right, and is judged all the same."""
    base, head = state(case, "base"), state(case, "head")
    if not context.compared or base.status != "ok" or head.status != "ok" or case.code_proved:
        return None
    different, apart = redeclared(base, head, whole=context.held), results_apart(base, head)
    if apart:
        reason = f"another result than base's, and no reference says which is right: {'; '.join([*apart, *different])}"
        return _row(context, case, "changed", context.effect_if_unanswered(case), reason)
    if not different:
        return None
    reason = f"judged by base's declarations; {'; '.join(different)}"
    return _row(context, case, "changed", "fail" if context.held else "warn", reason)


def fails_in_both(context: Context, case: Case) -> bool:
    """Tell whether a case fails in base and head: the measurement failed."""
    return context.compared and all(state(case, side).status == "failed" for side in SIDES)


def base_failed_later(case: Case) -> bool:
    """Tell whether base, right before, failed while it was measured."""
    base, head = state(case, "base"), state(case, "head")
    during = base.reason is not None and base.reason.during == "round"
    return base.status == "failed" and during and head.status == "ok"


def file_rows(context: Context, results: Results) -> tuple[list[Row], list[Row]]:
    """Return rows of suite files that did not import, and those that fail in base and head."""
    told = {
        (name, side.file)
        for case in results.cases
        for name in SIDES
        if state(case, name).status == "failed"
        for side in case.sides.values()
    }
    failed = {(failure.file, failure.side): failure for failure in results.files}
    device: DeviceKind = min(results.plan.devices, default="cpu")
    rows: list[Row] = []
    both: list[Row] = []
    for file in sorted({file for file, _ in failed}):
        sides = [side for side in SIDES if (file, side) in failed and (side, file) not in told]
        if not sides:
            continue
        where = f" in {' and in '.join(sides)}" if context.compared else ""
        class_: Class = "failed" if "head" in sides else "invalid"
        effect = context.effect_if_failed() if class_ == "failed" else context.effect_if_unanswered()
        failure = failed[file, sides[-1]]
        reason = f"{UNREAD[failure.why]}{where}: {one_line(failure.reason.text, 400)}"
        said = {**about_id(file, device), **judged(class_, effect, reason), "file": file}
        said["failure"] = failure.why if class_ == "failed" else None
        rows.append(Row(**said, metric="", unit="", kind="presence"))
        if sides == list(SIDES):
            both.append(rows[-1])
    return rows, both
