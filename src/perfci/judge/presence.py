"""Rows that speak of a case itself: missing, added, failed, skipped, changed."""

from collections.abc import Sequence

from perfci.judge.compare import state
from perfci.judge.rows import Context, about, about_id, because, centre
from perfci.judge.words import one_line
from perfci.model.base import ARMS, DeviceKind
from perfci.model.comparison import differences, redeclared
from perfci.model.report import Class, Effect, Row
from perfci.model.results import Case, Results
from perfci.stats.series import arm_values, metrics


def presence(context: Context, case: Case) -> Row | None:
    """The presence row of a case; None where head runs it and, if there is a base, both arms ask the same."""
    found = _compared(context, case) if context.compared else _alone(context, case)
    if found is None:
        return None
    return _row(context, case, *found)


def _row(context: Context, case: Case, class_: Class, effect: Effect, reason: str) -> Row:
    metric = next(iter(metrics(case)), "")
    base, head = (centre(arm_values(case, arm, metric)) for arm in ARMS)
    fields = {"class": class_, "effect": effect, "reason": reason, "base": base, "head": head}
    unit = context.unit(metric)
    return Row(**about(case), **fields, metric=metric, unit=unit, kind="presence", pairs=len(case.pairs))


def _gone(context: Context, case: Case) -> Effect:
    """A limit that waits for another machine says what becomes of its case too: the case is gone there as well."""
    said = [one.on_missing for one in context.asked.get(case.key, [])]
    said += [one.on_missing for one in context.gates.get(case.key, [])]
    said += [one.on_missing for one in context.waiting.get(case.key, [])]
    return "fail" if "fail" in said else "warn"


def _alone(context: Context, case: Case) -> tuple[Class, Effect, str] | None:
    head = state(case, "head")
    match head.status:
        case "ok":
            return None
        case "failed":
            return "failed", "fail", f"fails{because(head)}"
        case "skipped":
            return "skipped", "pass", f"skipped{because(head)}"
        case "absent":
            return "missing", _gone(context, case), f"not there{because(head)}"


def _compared(context: Context, case: Case) -> tuple[Class, Effect, str] | None:
    base, head = state(case, "base"), state(case, "head")
    match base.status, head.status:
        case "absent", "absent":
            return "invalid", context.effect("invalid"), f"in neither base nor head{because(head)}"
        case _, "absent":
            return "missing", _gone(context, case), f"in base, not in head{because(head)}"
        case "failed", "failed":
            return "failed", "fail", f"fails in base and in head{because(head)}"
        case _, "failed":
            return "failed", "fail", f"fails in head{because(head)}"
        case "ok", "skipped":
            # A change must not pass by skipping what base measured.
            return "skipped", context.undecided, f"measured in base, skipped in head{because(head)}"
        case _, "skipped":
            return "skipped", "pass", f"skipped{because(head)}"
        case "absent", _:
            return "added", "pass", "in head, not in base: nothing to compare with"
        case "skipped", _:
            return "added", "pass", f"skipped in base{because(base)}"
        case "failed", _ if broke_down(case):
            return "invalid", context.effect("invalid"), f"base failed while it was measured{because(base)}"
        case "failed", _:
            return "invalid", context.effect("invalid"), f"fails in base only{because(base)}"
    if different := differences(base, head):
        return "changed", context.effect("changed"), "; ".join([*different, *redeclared(base, head)])
    return None


def declared_otherwise(context: Context, case: Case) -> Row | None:
    """The row of a case of which head declares something otherwise than base, and which is judged all the same; None
    where `presence` has a row, or all is alike."""
    base, head = state(case, "base"), state(case, "head")
    if not context.compared or base.status != "ok" or head.status != "ok":
        return None
    different = redeclared(base, head)
    if not different:
        return None
    reason = f"judged by base's declarations; {'; '.join(different)}"
    return _row(context, case, "changed", "warn", reason)


def fails_in_both(context: Context, case: Case) -> bool:
    """Whether a case fails in base and head alike: then the measurement failed, not the change."""
    return context.compared and all(state(case, arm).status == "failed" for arm in ARMS)


def breakdown(
    context: Context, cases: Sequence[Case], rows: Sequence[Row], *, observed: bool
) -> tuple[str, str] | None:
    """What makes the run an error, and what to do, where base failed while it was measured; None where it did not.

    Another case that fails the gate comes first, unless the run is `observed` and cannot fail: it is known whatever
    became of this one.
    """
    broke = [case for case in cases if context.compared and broke_down(case)]
    own = {(case.id, case.device) for case in broke}
    fails = any(row.effect == "fail" and (row.case, row.device) not in own for row in rows)
    if not broke or (fails and not observed):
        return None
    base = state(broke[0], "base")
    log = f"see {base.reason.log}, " if base.reason and base.reason.log else ""
    more = f"; so it was in {len(broke) - 1} more" if len(broke) > 1 else ""
    return (
        f"{broke[0].id}: base failed while it was measured, although it was right before{because(base)}{more}",
        f"Nothing can be said of these changes: {log}free memory, find out what ends it, in head too, and run again.",
    )


def broke_down(case: Case) -> bool:
    """Whether base failed while it was measured although it had been right, and head did not: then nothing is known."""
    base, head = state(case, "base"), state(case, "head")
    during = base.reason is not None and base.reason.during == "round"
    return base.status == "failed" and during and head.status == "ok"


def file_rows(context: Context, results: Results) -> tuple[list[Row], list[Row]]:
    """Rows of suite files that did not import, whose cases nobody knows; and which of them fail in both arms.

    A file whose failure the rows of its cases tell already gets none.
    """
    told = {
        (name, arm.file)
        for case in results.cases
        for name in ARMS
        if state(case, name).status == "failed"
        for arm in case.arms.values()
    }
    failed = {(failure.file, failure.arm): failure.reason for failure in results.files}
    device: DeviceKind = min(results.plan.devices, default="cpu")
    rows: list[Row] = []
    both: list[Row] = []
    for file in sorted({file for file, _ in failed}):
        arms = [arm for arm in ARMS if (file, arm) in failed and (arm, file) not in told]
        if not arms:
            continue
        where = f" in {' and in '.join(arms)}" if context.compared else ""
        class_: Class = "failed" if "head" in arms else "invalid"
        fields = {
            "class": class_,
            "effect": "fail" if class_ == "failed" else context.effect(class_),
            "reason": f"does not import{where}: {one_line(failed[file, arms[-1]].text, 400)}",
        }
        rows.append(Row(**about_id(file, device), **fields, metric="", unit="", kind="presence", file=file))
        if arms == list(ARMS):
            both.append(rows[-1])
    return rows, both
