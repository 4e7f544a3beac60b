"""Judging by a policy other than the one that the run was planned with: base's of today, or one that is being tried."""

from perfci.judge.judge import judge
from perfci.model.base import UsageError
from perfci.model.coverage import mistake
from perfci.model.criteria import UNSEEN, Asked, Subject, gates, is_own, judgements, late, tightened, waiting
from perfci.model.metrics import CATALOGUE
from perfci.model.plan import Declared
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE
from perfci.model.report import Report
from perfci.model.results import Case, Reports, Results, at_first, ever


def judge_by(policy: Policy, results: Results, *, strict: bool = False, where: str = FILE) -> Report:
    """Judge `results` by the limits, metrics and mode of `policy`, and by what kernels declare themselves.

    A kernel's own limits stand as planned: the measuring side takes them from base wherever base declares the kernel.
    The report is exploratory where the judgements are not the planned ones. Raises UsageError where a limit of the
    policy matches no case: `where` names the policy.
    """
    declared = _declared(results)
    if text := mistake(policy, declared, {}, where):
        raise UsageError(text)
    subjects = [_subject(results, case, at_first(case)) for case in results.cases if case.stopped != "skipped"]
    written = judgements(policy, subjects)
    again = [_subject(results, case, ever(case)) for case in results.cases if case.stopped != "skipped"]
    asked = _merged([*written, *late(policy, again, written)], results.plan.judgements)
    gating = _merged(gates(policy, subjects, declared.kernels), results.plan.gates)
    own = [one for one in results.plan.waiting if is_own(one.source)]
    waits = [*waiting(policy, subjects, declared.kernels), *own]
    if results.mode == "run":
        asked = [one for one in asked if one.kind != "regression"]
        gating = [one for one in gating if one.kind != "regression"]
        waits = [one for one in waits if not one.relative]
    results = results.model_copy(
        update={"gate": policy.mode, "on_undecided": policy.on_undecided, "custom_metrics": policy.metrics}
    )
    return judge(results, strict=strict, judgements=asked, gates=gating, waiting=waits)


def _merged(written: list[Asked], planned: list[Asked]) -> list[Asked]:
    """Those of the policy, which the kernels' own may tighten."""
    made: dict[tuple[str, ...], Asked] = {(one.case, one.device, one.metric, one.kind): one for one in written}
    for one in planned:
        if is_own(one.source):
            key = one.case, one.device, one.metric, one.kind
            made[key] = tightened(made[key], one) if key in made else one
    return [made[key] for key in sorted(made)]


def _declared(results: Results) -> Declared:
    """What base and head declare; of a document that does not tell, not whole: there may be more than was measured."""
    if results.plan.declared is not None:
        return results.plan.declared
    kernels = [case.id for case in results.cases if case.origin == "kernel"]
    return Declared(kernels=kernels, commands=[case.id for case in results.cases], whole=False)


def _subject(results: Results, case: Case, told: Reports) -> Subject:
    return Subject(
        case.id,
        case.device,
        results.fingerprint.devices.get(case.device, ""),
        reports=told.relative or _planned(results, case),
        bounded=told.bounded,
        command=case.origin != "kernel",
        unseen=UNSEEN if case.origin == "imported" else "",
    )


def _planned(results: Results, case: Case) -> frozenset[str] | None:
    """What the plan asked a case for of which nothing else tells what it reports."""
    planned = {one.metric for one in results.plan.judgements if (one.case, one.device) == (case.id, case.device)}
    timed = {name for name in planned if name in CATALOGUE and CATALOGUE[name].tier == "timing"}
    return frozenset(planned - timed | ({"time"} if timed else set())) or None
