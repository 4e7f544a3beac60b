"""Judging by a policy other than the run's."""

from perfci.judge.judge import judge
from perfci.model.base import UsageError
from perfci.model.limits import UNSEEN, Subject, answerable, criteria, mistake, strictest
from perfci.model.plan import Declared
from perfci.model.policy import Policy
from perfci.model.policy_text import FILE
from perfci.model.report import Report
from perfci.model.results import Case, Results, reports


def judge_by(policy: Policy, results: Results, *, strict: bool = False, where: str = FILE) -> Report:
    """Judge by the limits, metrics and mode of `policy`.

    A kernel's own limits stand as planned, and fail the run as `policy` and they say. The report is exploratory where
    what pairs decide is not what was planned. Raises UsageError where a limit matches no case: `where` names the
    policy.
    """
    declared = _declared(results)
    if text := mistake(policy, declared, {}, where):
        raise UsageError(text)
    subjects = [_subject(results, case) for case in results.cases if case.stopped != "skipped"]
    purpose = results.plan.purpose
    written = criteria(policy, subjects, declared.kernels, purpose=purpose)
    captured = any(case.captured for case in results.cases)
    written = answerable(written, timed=not captured or any(case.pairs for case in results.cases))
    own = [one.under(policy.fail_on) for one in results.plan.criteria if one.source.origin == "kernel"]
    waiting = [one for one in (*written, *own) if one.waits]
    asked = [one for one in (*strictest(written, own), *waiting) if results.mode == "compare" or not one.relative]
    if not policy.prove:
        cases = [case.model_copy(update={"proof": None}) for case in results.cases]
        results = results.model_copy(update={"cases": cases})
    results = results.model_copy(update={"fail_on": policy.fail_on, "custom_metrics": policy.metrics})
    return judge(results, strict=strict, criteria=asked)


def _declared(results: Results) -> Declared:
    """Not whole: there may be more than was measured."""
    if results.plan.declared is not None:
        return results.plan.declared
    kernels = [case.id for case in results.cases if case.origin == "kernel"]
    return Declared(kernels=kernels, commands=[case.id for case in results.cases], whole=False)


def _subject(results: Results, case: Case) -> Subject:
    told = reports(case)
    return Subject(
        case.id,
        case.device,
        results.fingerprint.devices.get(case.device, ""),
        reports=told.relative or _planned(results, case),
        bounded=told.bounded,
        command=case.origin != "kernel" and not case.captured,
        unseen=UNSEEN if case.origin == "imported" else "",
    )


def _planned(results: Results, case: Case) -> frozenset[str] | None:
    planned = [one for one in results.plan.timed if one.case_key == case.key]
    return frozenset("time" if one.tier == "timing" else one.metric for one in planned) or None
