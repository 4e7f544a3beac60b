"""Gather what the jobs of a run handed over: each job's measurements, and those of a plan that several shared as one.

Shards are merged before anything is judged: the error rates, and so the verdict, are of the whole plan.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from github.Artifact import Artifact as RemoteArtifact

from perfci.github.api import Api, ApiError
from perfci.github.artifact import Unfit, Unmeasured, check_whole
from perfci.github.measured import Scope, confirm, named
from perfci.github.source import Found, Source, change, fetch
from perfci.measure.shards.merge import merge, model_of, require_models
from perfci.model.base import PerfciError
from perfci.model.results import Results

READING = 480.0
"""Seconds after which no further artifact is read: publishing jobs have a quarter of an hour."""


class Handed(NamedTuple):
    """Measurements that are judged as one."""

    said: str
    """As errors name them."""
    name: str
    """Tells them from the others; empty where there are none."""
    results: Results
    artifacts: Sequence[Found]


class Gathered(NamedTuple):
    """All that there is, and what is missing."""

    handed: list[Handed]
    missing: list[str]
    """One line each."""
    idle: int
    """Jobs that had nothing to measure."""
    joined: int = 0
    """Jobs that give no answer of their own: that made a plan, and of the shards of each plan all but one."""
    unconfirmed: str = ""
    """As of a Publication."""


def gather(source: Source, scope: Scope, api: Api) -> Gathered:
    """Read what the jobs of a run measured, and confirm that it was this change. Raises ApiError."""
    gathered = Gathered([], [], 0)
    idle, planned, unconfirmed, began = 0, 0, "", time.monotonic()
    of = change(source, api) if source.artifacts else None
    plans: dict[str, list[tuple[Found, str, Results]]] = {}
    wholes: list[Results] = []

    def read(remote: RemoteArtifact) -> Results | Unmeasured:
        if time.monotonic() - began > READING:  # the job has a limit, at which nothing would be said at all
            raise Unfit(f"was not read: the others took over {READING / 60:g} min")
        return fetch(remote, source.origin, api)

    for found in source.artifacts:
        said = f"artifact {named(found.measured.name)}"
        try:
            results = read(found.measured)
            if not isinstance(results, Results):
                idle += results == "idle"
                planned += results == "plan"
                continue
            assert of is not None
            unconfirmed = confirm(results, of, scope, api) or unconfirmed
            if results.part is None or len(results.part.shards) > 1:  # of one machine, or merged before
                wholes += [] if results.part is None else [results]
                name = found.name if len(source.artifacts) > 1 else ""
                gathered.handed.append(Handed(said, name, results, [found]))
                continue
            shards = plans.setdefault(results.part.plan, [])
            shards.append((found, said, results))
            for earlier in found.earlier:  # a shard that was decided is not measured again
                said = f"artifact {named(earlier.name)}"
                before = read(earlier)
                if isinstance(before, Results) and before.part is not None and before.part.plan == results.part.plan:
                    shards.append((found, said, before))
        except (Unfit, ApiError) as error:
            gathered.missing.append(f"{said} {error}")
    measured = len({*plans, *(one.part.plan for one in wholes if one.part is not None)})
    if planned > measured:
        which = "the plan" if planned == 1 else f"{planned - measured} of {planned} plans"
        gathered.missing.append(f"no shard of {which} was handed over: see the logs of the jobs that measure it")
    several = len(plans) + len(gathered.handed) > 1
    for shards in plans.values():
        try:
            results = merge([(said, one) for _, said, one in shards])
            check_whole(results)
        except (PerfciError, Unfit) as error:
            gathered.missing.append(f"shards: {error}")
            continue
        wholes.append(results)
        files = list({found.measured.id: found for found, _, _ in shards}.values())
        gathered.handed.append(Handed("of the merged shards", model_of(results) if several else "", results, files))
    try:
        require_models(wholes, scope.models if gathered.handed else 0)
    except PerfciError as error:
        gathered.missing.append(f"shards: {error}")
    joined = planned + sum(len({found.measured.id for found, _, _ in shards}) - 1 for shards in plans.values())
    return gathered._replace(idle=idle, joined=joined, unconfirmed=unconfirmed)
