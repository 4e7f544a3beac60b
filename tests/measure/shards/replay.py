"""Recorded pairs under the real rounds, journal and judge, on one machine or dealt over shards.

What is replayed: pairs of identical code, recorded on one NVIDIA H200, of each case one series, with the changes that
are planted. The n-th pair of a case is the same wherever it is taken.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfci.measure.journal import Journal
from perfci.measure.rounds import PairOutcome
from perfci.model.plan import Looks
from perfci.model.report import Report
from perfci.model.results import Case, Pair, PlanPart, Results
from tests.judge.build import case as empty_case
from tests.judge.build import limit, results
from tests.measure.driven import JOURNAL, KEYS, PAIRS, driven, taken

Series = Mapping[str, Sequence[Pair]]
"""Id of a case → its pairs, in the order in which they are taken."""


def series(seed: int, count: int, factors: Mapping[int, float]) -> Series:
    """So many cases: recorded pairs in another order, some with their sides exchanged. `factors`: number of a case →
    head's true factor."""
    rng = np.random.default_rng(seed)
    made = {}
    for number in range(count):
        pairs, factor = PAIRS[KEYS[number % len(KEYS)]], factors.get(number, 1.0)
        order, swap = rng.permutation(64), rng.integers(0, 2, 64)
        made[f"k/n={number}"] = [
            taken(index, pairs[at], swap=bool(swap[index]), factor=factor, seconds=0.1)
            for index, at in enumerate(order)
        ]
    return made


def planned(source: Series, r: float = 0.02) -> Results:
    """The run before its first pair: the plan of one machine."""
    cases = [empty_case(name, ratio=None) for name in source]
    return results(cases, [limit(name, bound=r) for name in source], looks=Looks.fitted(len(source)))


def part_of(plan: Results, deal: Mapping[str, int], number: int) -> Results:
    """The results of one shard before its first pair. `deal`: case key → shard."""
    own = [case.model_copy(deep=True) for case in plan.cases if deal[case.key] == number]
    asked = [one for one in plan.plan.criteria if deal[one.case_key] == number]
    part = PlanPart(plan="5" * 64, shards=[number], of=max(deal.values()), cases=[case.key for case in plan.cases])
    return plan.model_copy(
        update={"cases": own, "plan": plan.plan.model_copy(update={"criteria": asked}), "part": part}
    )


class Killed(BaseException):
    """The machine is gone."""


def measure(
    made: Results,
    source: Series,
    out: Path | None = None,
    *,
    resume: bool = False,
    most: float = math.inf,
    decided: Callable[[list[Case]], None] = lambda cases: None,
) -> dict[str, int]:
    """Take pairs until all is decided, with a journal in `out`. Returns case key → pairs that were taken now.

    `most`: the machine is lost after so many. Raises Killed then.
    """
    journal: Any = JOURNAL
    if out is not None:
        out.mkdir(exist_ok=True)
        identity = {"the plan": made.plan.model_dump_json(), "the shard": made.part.plan if made.part else ""}
        journal = Journal(out, identity, made.run, resume)
        journal.restore(made.cases)
    count: dict[str, int] = {}

    def round_(bench: Any, cases: Sequence[Case], index: int, done: Callable[[PairOutcome], None], end: float) -> None:
        for case in cases:
            if sum(count.values()) >= most:
                raise Killed
            count[case.key] = count.get(case.key, 0) + 1
            pair = source[case.id][len(case.pairs)].model_copy(deep=True)
            done(PairOutcome(case, pair, {"base": [[1.0]], "head": [[1.0]]}))

    with driven(made, round_, 1e9, journal=journal) as loop:
        try:
            loop.run(made.cases, decided)
        finally:
            journal.close()
    return count


def judged(report: Report) -> str:
    """All that a verdict is: what stands in the rows, byte for byte, and over them."""
    return report.model_dump_json(
        include={"verdict", "exit_code", "sentence", "advice", "counts", "rows", "trails", "measured", "pairs", "noise"}
    )
