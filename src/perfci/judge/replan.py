"""Judging by a policy other than the one that the run was planned with: base's of today, or one that is being tried."""

import re
from typing import TypeVar

from perfci.judge.judge import judge
from perfci.model.limits import Subject, gates, judgements
from perfci.model.metrics import CATALOGUE
from perfci.model.plan import Gate, Judgement
from perfci.model.policy import Policy
from perfci.model.report import Report
from perfci.model.results import Case, Results

Asked = TypeVar("Asked", Judgement, Gate)
_WRITTEN = re.compile(r"limits\[\d+\]|default")
"""The source of a limit that stands in a policy; a kernel's own names its file."""


def judge_by(policy: Policy, results: Results, *, strict: bool = False) -> Report:
    """Judge `results` by the limits, metrics and mode of `policy`, and by what kernels declare themselves.

    A kernel's own limits stand as planned: the measuring side takes them from base wherever base declares the kernel.
    The report is exploratory where the judgements are not the planned ones.
    """
    subjects = [_subject(results, case) for case in results.cases if case.stopped != "skipped"]
    asked = _merged(judgements(policy, subjects), results.plan.judgements)
    gating = _merged(gates(policy, subjects), results.plan.gates)
    if results.mode == "run":
        asked = [one for one in asked if one.kind != "regression"]
        gating = [one for one in gating if one.kind != "regression"]
    results = results.model_copy(
        update={"gate": policy.mode, "on_undecided": policy.on_undecided, "custom_metrics": policy.metrics}
    )
    return judge(results, strict=strict, judgements=asked, gates=gating)


def _merged(written: list[Asked], planned: list[Asked]) -> list[Asked]:
    """Those of the policy, and in their place the kernels' own, which come last and so count."""
    made: dict[tuple[str, ...], Asked] = {}
    for one in written:
        made[one.case, one.device, one.metric, one.kind] = one
    for one in planned:
        if not _WRITTEN.fullmatch(one.source):
            made[one.case, one.device, one.metric, one.kind] = one
    return [made[key] for key in sorted(made)]


def _subject(results: Results, case: Case) -> Subject:
    name = results.fingerprint.devices.get(case.device, "")
    return Subject(case.id, case.device, name, reports=_reports(results, case), command=case.origin != "kernel")


def _reports(results: Results, case: Case) -> frozenset[str] | None:
    """What the case reported in base, else in head; of a case without values what the plan asked it for."""
    if case.origin == "kernel":
        return frozenset({"time"})
    for arm in ("base", "head"):
        found = {name for pair in case.pairs for name in pair.values.get(arm, {})}
        if found:
            return frozenset(found)
    planned = {one.metric for one in results.plan.judgements if (one.case, one.device) == (case.id, case.device)}
    timed = {name for name in planned if name in CATALOGUE and CATALOGUE[name].tier == "timing"}
    return frozenset(planned - timed | ({"time"} if timed else set())) or None
