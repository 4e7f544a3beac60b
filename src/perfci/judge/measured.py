"""What was measured, limit or not, and what is worth knowing beside the numbers."""

import numpy as np

from perfci.judge.compare import state
from perfci.judge.rows import Context
from perfci.model.base import ARMS
from perfci.model.report import CaseFacts, Measured, Stats
from perfci.model.results import Case, CaseArm
from perfci.stats.describe import describe
from perfci.stats.series import arm_values, metrics, paired_values


def measured(context: Context, cases: list[Case]) -> tuple[list[Measured], list[str]]:
    """Statistics of every metric of every case and arm; and a note for each that holds no finite number."""
    found: list[Measured] = []
    notes: list[str] = []
    for case in cases:
        for metric in metrics(case):
            arms = {}
            for arm in ARMS:
                values = arm_values(case, arm, metric)
                if values.size and np.isfinite(values).all():
                    arms[arm] = Stats(**describe(values)._asdict())
                elif values.size:
                    notes.append(f"{case.key}: a launch's {metric} in {arm} is not a finite number")
            if arms:
                unit = context.unit(metric)
                found.append(Measured(case=case.id, device=case.device, metric=metric, unit=unit, arms=arms))
    return found, notes


def facts(case: Case) -> CaseFacts:
    """Work, checks, contract and reasons of a case; work and contract are head's, or else base's."""
    arms = {name: state(case, name) for name in ARMS if name in case.arms}
    working = [arm for name in ("head", "base") if (arm := arms.get(name)) and arm.status == "ok"]
    said = working[0] if working else CaseArm()
    return CaseFacts(
        case=case.id,
        device=case.device,
        work=said.work,
        checks={name: arm.check for name, arm in arms.items()},
        contract={name: str(value) for name, value in sorted(said.contract.items())},
        reasons={name: arm.reason for name, arm in arms.items() if arm.reason},
    )


def noise(cases: list[Case]) -> float | None:
    """Median over cases of the standard deviation of ln(head/base) of time.

    None where no case has two pairs with finite positive times.
    """
    spreads = []
    for case in cases:
        base, head = paired_values(case, "time")
        good = (base > 0) & (head > 0) & np.isfinite(base) & np.isfinite(head)
        if np.count_nonzero(good) > 1:
            spreads.append(float(np.std(np.log(head[good]) - np.log(base[good]), ddof=1)))
    return float(np.median(spreads)) if spreads else None
