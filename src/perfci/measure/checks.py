"""Before timing: is each case right in each arm, and how long does it take?"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfci.measure.cases import Found
from perfci.measure.journal import Journal
from perfci.measure.rounds import Bench
from perfci.model.base import ArmName
from perfci.model.results import Case, Check, Reason, Work
from perfci.system.process import Died, Launch

Estimates = dict[str, dict[ArmName, float]]


def check_arm(
    bench: Bench,
    name: ArmName,
    cases: Sequence[Case],
    found: Mapping[ArmName, Found],
    journal: Journal,
    *,
    fuzz: bool,
    note: Callable[[str], None],
) -> Estimates:
    """Check every case of one arm; fills `case.arms[name]`. Returns the estimated seconds of one execution.

    Base goes first: its tolerances are then head's.
    """
    estimates: Estimates = {}
    launch: Launch | None = None
    for key, arm, seconds in journal.estimates():
        if arm == name:
            estimates.setdefault(key, {})[name] = seconds
    for case in cases:
        if (case.key, name) in journal.checked:
            case.arms[name] = journal.checked[case.key, name]
            continue
        arm_case = case.arms[name]
        if arm_case.status != "ok":
            continue
        note(f"checking {name} · {case.id}")
        estimate = None
        try:
            if launch is None or not launch.alive:
                launch = bench.launch(name)
            shapes = 1 + (found[name].cases[case.key]["fuzz"] if fuzz else 0)
            estimate = _check_one(bench, launch, name, case, fuzz, shapes * bench.timeout)
        except Died as died:
            arm_case.status = "failed"
            arm_case.reason = died.reason.model_copy(update={"log": f"logs/{name}.log"})
        if estimate is not None:
            estimates.setdefault(case.key, {})[name] = estimate
        journal.add_check(case.key, name, arm_case, estimate)
    if launch is not None:
        launch.close()
    return estimates


def _check_one(bench: Bench, launch: Launch, name: ArmName, case: Case, fuzz: bool, timeout: float) -> float | None:
    """Check and estimate one case. Returns seconds of one execution, None where the result is wrong. Raises Died."""
    arm = case.arms[name]
    base = case.arms.get("base")
    theirs = base.check if base is not None and base.status == "ok" else Check()
    fields: dict[str, Any] = {"kernel": case.kernel, "params": arm.params, "device": case.device}
    reply = launch.ask("check", timeout, seed=bench.seed, fuzz=fuzz, rtol=theirs.rtol, atol=theirs.atol, **fields)
    arm.check = Check(
        shapes=reply["shapes"], compared=reply["compared"], worst=_finite(reply["worst"]),
        rtol=reply["rtol"], atol=reply["atol"], sketch=reply["sketch"],
    )  # fmt: skip
    if not reply["ok"]:
        arm.status = "failed"
        arm.reason = Reason(kind=reply["kind"], text=reply["text"][:1000])
        return None
    opened = launch.ask("open", bench.timeout, seed=bench.seed, placement=0, digest=True, **fields)
    launch.ask("close", bench.timeout, verify=False)
    arm.inputs = opened["digest"]
    arm.work = Work.model_validate(opened["work"])
    arm.contract = opened["contract"]
    return float(opened["estimate"])


def _finite(worst: float | None) -> float | None:
    """Where a result is not finite its error has no size; the reason says so."""
    return worst if worst is not None and math.isfinite(worst) else None
