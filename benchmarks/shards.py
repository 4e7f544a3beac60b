"""Shows that runs on unchanged code fail no oftener when several machines share them; no GPU is needed.

    python -m benchmarks.shards 1000            # whole runs of 24 cases over 4 shards, on pairs recorded on an H200

Each run draws its pairs of identical code from those that were recorded, dealt over shards that decide alone; all are
merged, and judged as one. Beside it, what would come of shards of which each spent all of α. Ends with 1 where more
than 1 % of runs fail beyond what chance explains.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfci.judge.judge import judge
from perfci.measure.shards.merge import merge
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.limits import Subject, criteria
from perfci.model.plan import Looks, Plan
from perfci.model.policy import Policy
from perfci.model.results import Case, CaseSide, Pair, PlanPart, Results, SideCode
from perfci.model.timing import Timing
from perfci.stats.answer import answer

RATIOS: Mapping[str, Sequence[float]] = json.loads(
    (Path(__file__).resolve().parent.parent / "tests" / "data" / "h200" / "pair_ratios.json").read_text()
)
"""`kernel|timing mode|metric` → ln(head/base) of pairs of identical code."""
SERIES = [np.array(x) for name, x in sorted(RATIOS.items()) if name.endswith(("rot|cycles", "cold|time"))]
CASES, SHARDS = 24, 4
LIMITS = (0.01, 0.0001)
"""Limits on the change in time: an ordinary one, half of which a regression must pass, so that fewer fail than α
allows; and one so small that α alone counts."""


class Found(NamedTuple):
    """Runs that fail."""

    runs: int
    shared: int
    """Where all limits of a run share α."""
    apart: int
    """Where each shard spends all of it."""

    @property
    def within(self) -> bool:
        """True where no more fail than α allows and chance explains."""
        allowed = Looks().alpha * self.runs
        return self.shared <= allowed + 3 * math.sqrt(allowed)


def drawn(rng: np.random.Generator) -> list[Case]:
    """Return cases of one run on unchanged code, with all pairs that a run could take."""
    side = CaseSide(timing=Timing(mode="rotating", threads=1))
    cases = []
    for number in range(CASES):
        x = rng.choice(SERIES[number % len(SERIES)], 64) * rng.choice([-1.0, 1.0], 64)
        pairs = [  # of a second each: no tick of a timer counts
            Pair(index=i, values={"base": {"time": 1.0}, "head": {"time": math.exp(v)}}) for i, v in enumerate(x)
        ]
        ident = f"k/n={number:02}"
        cases.append(Case(id=ident, kernel="k", device="cuda", sides={"base": side, "head": side}, pairs=pairs))
    return cases


def stopped(cases: Sequence[Case], asked: Mapping[str, Criterion], m: int) -> list[Case]:
    """Return the cases with the pairs that one machine takes of them, which decides by them alone."""
    looks = Looks.fitted(m)

    def ended(case: Case) -> Case:
        for n in sorted({*looks.pairs, *looks.obvious_pairs}):
            some = case.model_copy(update={"pairs": case.pairs[:n]})
            if answer(some, asked[case.key], looks, m).decision.status != "continue":
                return some
        return case

    return [ended(case) for case in cases]


def fails(cases: Sequence[Case], bound: float, *, shared: bool) -> bool:
    """Return whether a run fails whose cases are dealt over the shards. `shared`: by the m of all, else by its own."""
    policy = Policy.model_validate({"version": 1, "suite": "k.py", "limits": [{"regression": f"{bound:%}"}]})
    subjects = [Subject(case.id, case.device) for case in cases]
    asked = {one.case_key: one for one in criteria(policy, subjects, [case.id for case in cases], compared=True)}
    m = len(asked) if shared else len(asked) // SHARDS
    parts = []
    for number in range(1, SHARDS + 1):
        own = stopped(cases[number - 1 :: SHARDS], asked, m)
        parts.append((f"shard-{number}", _results(own, asked, m, number, [case.key for case in cases])))
    reports = [judge(merge(parts))] if shared else [judge(one) for _, one in parts]
    return any(report.verdict == "fail" for report in reports)


def _results(own: Sequence[Case], asked: Mapping[str, Criterion], m: int, number: int, keys: Sequence[str]) -> Results:
    plan = Plan(seed=0, sides=["base", "head"], looks=Looks.fitted(m), m=m, criteria=[asked[case.key] for case in own])
    return Results(
        run="r", mode="compare", started="2026-01-05T10:15:00+00:00", command=["perfci"], fingerprint=Fingerprint(),
        sides={"base": SideCode(), "head": SideCode()}, plan=plan, cases=list(own),
        part=PlanPart(plan="a", shards=[number], of=SHARDS, cases=list(keys)),
    )  # fmt: skip


def count(runs: int, bound: float, seed: int = 0) -> Found:
    """Return how many of so many runs on unchanged code fail, by a limit of `bound`."""
    rng = np.random.default_rng(seed)
    shared = apart = 0
    for _ in range(runs):
        cases = drawn(rng)
        shared += fails(cases, bound, shared=True)
        apart += fails(cases, bound, shared=False)
    return Found(runs, shared, apart)


def main(runs: int) -> int:
    """Print how many of so many runs fail by each limit; return 1 where they are too many."""
    within = True
    for bound in LIMITS:
        found = count(runs, bound)
        print(f"limit {bound:.2%}: {found.shared} of {runs} runs of {CASES} cases over {SHARDS} shards fail")
        print(f"limit {bound:.2%}: {found.apart} of {runs} would, if each shard spent all of α", flush=True)
        within = within and found.within
    return 0 if within else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit(str(__doc__))
    sys.exit(main(int(sys.argv[1])))
