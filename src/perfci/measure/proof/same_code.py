"""The proof by the same code: a case whose processes touch nothing that differs between base and head is the same."""

import random
from collections.abc import Sequence

from perfci.measure.options import Options
from perfci.measure.place import Place
from perfci.measure.proof.differing import differing, unequal
from perfci.model.criteria import Criterion
from perfci.model.plan import Plan
from perfci.model.results import Case, Proof

SAME_FILES = "base and head are the same files"
AUDITED = 0.25
"""Share of the runs in which a proved case is measured all the same: it watches over many runs, and is no safeguard of
one."""


def seeks_proof(options: Options, place: Place) -> bool:
    """Tell whether cases may stay unmeasured: a comparison that is to be judged, where nobody asked for all."""
    whole = options.measure_all or options.profile or options.exact_pairs is not None
    return options.mode == "compare" and place.limits.prove and not whole


def prove(cases: Sequence[Case], place: Place, plan: Plan) -> None:
    """Fill `Case.proof` of all cases that work in base and in head as far as is known. Raises MachineError."""
    sought = [case for case in cases if all(side.status == "ok" for side in case.sides.values())]
    base, head = place.sides["base"], place.sides["head"]
    what = differing(base, head)
    whole = unequal(base, head)
    for case in sought:
        if why := unprovable(case, plan.criteria) or whole:
            case.proof = Proof(reason=why[:1000])
        elif not what.paths:
            case.proof = Proof(by="files", reason=SAME_FILES)


def unprovable(case: Case, criteria: Sequence[Criterion]) -> str:
    """Return why a case is measured whatever its code is, as a clause; empty where a proof would do."""
    if case.origin != "kernel":
        return "it is a command's, and only cases of kernels are proved"
    asked = [one for one in criteria if one.case_key == case.key and not one.waits]
    if not asked:
        return "no limit asks for its change"
    number = next((one for one in asked if one.timed and not one.relative), None)
    return f"{number.words()} asks for a number" if number else ""


def draw_audit(cases: Sequence[Case], lot: str) -> None:
    """Let one of the proved cases be measured all the same in some runs, as `lot` says, which the code under test must
    not foresee."""
    rng = random.Random(f"{lot}/audit")
    proved = [case.proof for case in cases if case.proof is not None and case.proof.by]
    if proved and rng.random() < AUDITED:
        rng.choice(proved).audited = True
