"""What was measured, limit or not, and what is worth knowing beside the numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfci.judge.compare import state
from perfci.judge.roofline import roof
from perfci.judge.rows import Context
from perfci.model.base import ARMS
from perfci.model.report import CaseFacts, Measured, Noise, Stats
from perfci.model.results import Case, CaseArm
from perfci.stats.components import Components, components, sentence
from perfci.stats.describe import describe
from perfci.stats.equal_clock import log_ratios
from perfci.stats.series import arm_values, metrics


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


def facts(case: Case, first: int, ceilings: Mapping[str, Any]) -> CaseFacts:
    """Work, checks, contract, reasons, noise and roofline of a case; work and contract are head's, or else base's.

    `first`: pairs of the first look. `ceilings`: of the case's device, as measured.
    """
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
        noise=_parts(components(case, first)),
        roof=roof(case, ceilings),
    )


def _parts(found: Components | None) -> Noise | None:
    return None if found is None else Noise(**found._asdict(), pair=found.noise(), text=sentence(found))


def noise(cases: list[Case], first: int) -> float | None:
    """Median over cases of the standard deviation of ln(head/base) of time, at equal clock where it is known.

    `first`: pairs of the first look. None where no case has two pairs with finite positive times.
    """
    spreads = []
    for case in cases:
        x = log_ratios(case, "time", first).x
        good = x[np.isfinite(x)]
        if good.size > 1:
            spreads.append(float(np.std(good, ddof=1)))
    return float(np.median(spreads)) if spreads else None
