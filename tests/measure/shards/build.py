"""Plans of shards, and how a fact becomes another."""

from collections.abc import Callable, Sequence
from typing import Any

import perfci
from perfci.measure.request import What
from perfci.measure.shards.document import PlannedCase, SharedPlan
from perfci.model.results import Results
from tests.judge.build import case, limit, results


def shared_plan(cases: Sequence[PlannedCase], made: Results | None = None, **fields: Any) -> SharedPlan:
    """A sealed plan over the shards that its cases name; of the cases a and b, or of a run before its first pair."""
    run = made or results([case("a"), case("b")], [limit("a"), limit("b")])
    given = {"run": run.run, "sides": run.sides, "plan": run.plan, "cases": [*cases]}
    named = {"perfci": perfci.__version__, "made": "now", "command": ["perfci", "plan"], "what": What(mode="compare")}
    shards = max(one.shard for one in cases)
    return SharedPlan(**({"sources": {}, "machine": {}, "shards": shards} | named | given | fields)).sealed()


def setting(at: str, value: object) -> Callable[[Any], None]:
    """Set what a path of attributes or keys names."""

    def change(holder: Any) -> None:
        *path, last = at.split(".")
        for name in path:
            holder = holder[name] if isinstance(holder, dict) else getattr(holder, name)
        if isinstance(holder, dict):
            holder[last] = value
        else:
            setattr(holder, last, value)

    return change
