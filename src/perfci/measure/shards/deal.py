"""Each shard's cases."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import perfci
from perfci.measure.calibrate.forecast import UNKNOWN_PAIRS, forecast
from perfci.measure.request import Planned
from perfci.measure.run import Measurement
from perfci.measure.shards.document import PlannedCase, Shard, SharedPlan
from perfci.measure.sides.planned import of_machine, of_sources
from perfci.model.base import UsageError
from perfci.model.comparison import marks
from perfci.model.results import PlanPart, SideCode
from perfci.model.text import count


def deal(seconds: Mapping[str, float], units: Mapping[str, str], shards: int) -> dict[str, int]:
    """Return case key → shard, from 1: the dearest first, each to the shard with least to do. Raises UsageError for
    fewer units than shards.

    `seconds`: case key → expected seconds. `units`: case key → what is measured as one, such as a command.
    """
    groups: dict[str, list[str]] = {}
    for key in seconds:
        groups.setdefault(units[key], []).append(key)
    if len(groups) < shards:
        raise UsageError(
            f"--shards {shards}: only {count(len(groups), 'case')} can be shared (those of a command stay "
            f"together): give --shards {len(groups)} at most"
        )
    load = {number: (0.0, 0, number) for number in range(1, shards + 1)}
    dealt: dict[str, int] = {}
    weight = {name: math.fsum(seconds[key] for key in keys) for name, keys in groups.items()}
    # What costs nothing is dealt last, to the shard with the fewest cases of those without load: none stays empty.
    for name in sorted(groups, key=lambda name: (-weight[name], name)):
        taken, cases, number = min(load.values())
        load[number] = (taken + weight[name], cases + len(groups[name]), number)
        dealt |= dict.fromkeys(groups[name], number)
    return {key: dealt[key] for key in seconds}


def share_out(measurement: Measurement, shards: int, out: Path, *, fewer: bool = False) -> SharedPlan:
    """Plan a comparison for `shards` machines, or as many as there are cases, if `fewer`. Raises PerfciError.

    `out`: an earlier comparison's results, or a calibration.
    """
    place, cases, plan, run = measurement.plan()
    measured = [case for case in cases if case.measured("head")]
    expected = forecast(measured, plan, place.facts, out).cases
    told = {f"{one.case}@{one.device}": (one.pairs or UNKNOWN_PAIRS) * one.seconds for one in expected}
    seconds = {case.key: told.get(case.key, 0.0) for case in cases}
    commands = {case.key: case.kernel for case in cases if case.origin == "command"}
    units = {case.key: f"command {commands[case.key]}" if case.key in commands else case.key for case in cases}
    shards = min(shards, len(set(units.values()))) if fewer else shards
    dealt = deal(seconds, units, shards)
    return SharedPlan(
        run=run,
        perfci=perfci.__version__,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=measurement.request.how.command,
        what=measurement.request.what,
        sources=marks(of_sources(place.sources, place.sides)),
        machine=marks(of_machine(place.facts, list(place.benches), place.environments)),
        sides={
            name: SideCode(**side.info.model_dump(include={"ref", "commit", "subject", "dirty", "tree"}))
            for name, side in place.sides.items()
        },
        plan=plan,
        shards=shards,
        cases=[
            PlannedCase(key=key, command=commands.get(key, ""), seconds=seconds[key], shard=dealt[key], proof=proof)
            for key, proof in ((case.key, case.proof) for case in cases)
        ],
    ).sealed()


def planned(shard: Shard) -> Planned:
    """Return a shard's part of its plan, with the m and looks of the whole."""
    whole, plan, number = shard.plan, shard.plan.plan, shard.number
    proofs, keys = {case.key: case.proof for case in shard.cases}, [case.key for case in whole.cases]
    own = [one for one in plan.criteria if one.case_key in proofs]
    return Planned(
        plan=plan.model_copy(update={"criteria": own}, deep=True),
        run=whole.run,
        name=shard.name,
        part=PlanPart(plan=whole.digest, shards=[number], of=whole.shards, models=whole.what.models, cases=keys),
        proofs=proofs,
        known={case.key: case.command for case in whole.cases if not case.command or case.shard == number},
        sources=whole.sources,
        machine=whole.machine,
        draws=f"{plan.seed}/shard/{number}",
    )
