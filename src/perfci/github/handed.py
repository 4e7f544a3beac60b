"""Gathers each job's measurements; a shared plan's as one.

Shards are merged before judging: the error rates, and so the verdict, are the whole plan's.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from github.Artifact import Artifact as RemoteArtifact

from perfci.github.api import Api, ApiError
from perfci.github.artifact import Unfit, Unmeasured, check_whole
from perfci.github.measured import confirm, named
from perfci.github.settings import Publishing
from perfci.github.source import Left, Source, change, fetch
from perfci.measure.shards.merge import merge, model_of, plan_of, require_models
from perfci.model.base import PerfciError
from perfci.model.results import Results

READING = 480.0
"""Seconds after which no further artifact is read."""


class Handed(NamedTuple):
    """Measurements judged as one."""

    said: str
    name: str
    """Empty where there are no others."""
    results: Results
    artifacts: Sequence[Left]


class Gathered(NamedTuple):
    """All measurements, and what is missing."""

    handed: list[Handed]
    missing: list[str]
    """One line each."""
    idle: int
    """Jobs with nothing to measure."""
    joined: int
    """Plans, and all shards of a plan but one."""
    unconfirmed: str
    """As of a Publication."""


def gather(source: Source, inputs: Publishing, api: Api) -> Gathered:
    """Read what a run's jobs measured, and confirm it."""
    handed, missing = list[Handed](), list[str]()
    idle, planned, unconfirmed, began = 0, 0, "", time.monotonic()
    of = change(source, api) if source.artifacts else None
    shards: dict[str, list[Handed]] = {}
    """By plan."""

    def read(remote: RemoteArtifact) -> Results | Unmeasured:
        if time.monotonic() - began > READING:  # the job has a limit, at which nothing would be said at all
            raise Unfit(f"was not read: the others took over {READING / 60:g} min")
        return fetch(remote, source.origin, api)

    for left in source.artifacts:
        said = f"artifact {named(left.measured.name)}"
        try:
            results = read(left.measured)
            if not isinstance(results, Results):
                idle += results == "idle"
                planned += results == "plan"
                continue
            assert of is not None
            unconfirmed = confirm(results, of, inputs, api) or unconfirmed
            if results.part is None or len(results.part.shards) > 1:  # of one machine, or merged before
                handed.append(Handed(said, left.name if len(source.artifacts) > 1 else "", results, [left]))
                continue
            of_plan = shards.setdefault(plan_of(results), [])
            of_plan.append(Handed(said, "", results, [left]))
            for earlier in left.earlier:  # a shard that was decided is not measured again
                said = f"artifact {named(earlier.name)}"
                before = read(earlier)
                if isinstance(before, Results) and plan_of(before) == plan_of(results):
                    of_plan.append(Handed(said, "", before, [left]))
        except (Unfit, ApiError) as error:
            missing.append(f"{said} {error}")
    measured = len({*shards, *(plan_of(whole.results) for whole in handed)} - {""})
    if planned > measured:
        which = "the plan" if planned == 1 else f"{planned - measured} of {planned} plans"
        missing.append(f"no shard of {which} was handed over: see the logs of the jobs that measure it")
    several, joined = len(shards) + len(handed) > 1, planned
    for parts in shards.values():
        jobs = list({part.artifacts[0].measured.id: part.artifacts[0] for part in parts}.values())
        joined += len(jobs) - 1
        try:
            results = merge([(part.said, part.results) for part in parts])
            check_whole(results)
        except (PerfciError, Unfit) as error:
            missing.append(f"shards: {error}")
        else:
            handed.append(Handed("of the merged shards", model_of(results) if several else "", results, jobs))
    try:
        wholes = [whole.results for whole in handed if whole.results.part is not None]
        require_models(wholes, inputs.models if handed else 0)
    except PerfciError as error:
        missing.append(f"shards: {error}")
    return Gathered(handed, missing, idle, joined, unconfirmed)
