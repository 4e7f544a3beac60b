"""What an arm says of a case, for the judge."""

from perfci.model.base import ArmName
from perfci.model.results import Case, CaseArm


def state(case: Case, arm: ArmName) -> CaseArm:
    """What an arm says of a case, with two states said plainly.

    A case that is absent because its file did not import or its arm did not build has failed, and one that
    was skipped because time ran out was not skipped: it has no pairs.
    """
    found = case.arms.get(arm, CaseArm(status="absent"))
    kind = found.reason.kind if found.reason else None
    if found.status == "absent" and kind in ("import", "build"):
        return found.model_copy(update={"status": "failed"})
    if found.status == "skipped" and kind == "budget":
        return found.model_copy(update={"status": "ok"})
    return found
