"""The changes that this machine can show, by stored calibrations and the last results, and what a plan promises."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from perfci.model.base import DeviceKind, UsageError
from perfci.model.calibration import Calibration, CaseCalibration, Machine
from perfci.model.criteria import Criterion, least_change
from perfci.model.fingerprint import Fingerprint
from perfci.model.metrics import DERIVED
from perfci.model.plan import Looks, Plan, Schedule
from perfci.model.results import Case, CaseSide, Results
from perfci.model.timing import Timing
from perfci.model.units import limit_percent, noise_percent
from perfci.stats.calibration import expected_pairs, noise, reach, step_for
from perfci.stats.decide import margin
from perfci.stats.equal_clock import log_ratios
from perfci.stats.series import side_values
from perfci.stats.walsh import Array
from perfci.system.files import disk_error, write_atomic

VARIABLE = "PERFCI_CALIBRATION"
"""Names the folder of the stored calibrations."""
LEAST_PAIRS = 8
"""Fewer pairs say too little of their scatter: the standard deviation of 8 is known to a third."""
_MOST_REMARKS = 5
_VOLATILE = {"executions_per_graph", "because", "alternating"}


def ratios(case: Case, metric: str, looks: Looks) -> Array:
    """Return ln(head/base) of `metric` per pair, shape (pairs,): at equal clock where it was measured."""
    return log_ratios(case, metric, looks.pairs[0]).x


def noise_metric(metric: str) -> str:
    """Return the metric whose pairs tell the noise of `metric`: what derives from time scatters as time does."""
    return "time" if metric in DERIVED else metric


def limit_in_effect(criterion: Criterion, value: float | None, timing: Timing | None) -> float:
    """Return the relative limit, never under its least change. `value`: a typical worker value in the metric's unit, if
    known.

    `timing`: None where it is not known yet; then what the timer resolves is left out.
    """
    least = criterion.min_change if timing is None else least_change(criterion, timing)
    if criterion.unit == "s" and least > 0 and value is not None and value > 0:
        return max(criterion.bound, least / value)
    return criterion.bound


# Where it is stored


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `$PERFCI_CALIBRATION`, else `perfci/calibration` in the user's cache (XDG Base Directory)."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE]).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "perfci" / "calibration"


def machine(facts: Fingerprint, device: DeviceKind) -> dict[str, str]:
    """Return what makes noise comparable: not the card's own number, not what happens to be free."""
    found = {
        "kind": device,
        "device": facts.devices.get(device, ""),
        "cpu": facts.cpu,
        "python": facts.python,
        "torch": facts.torch or "",
    }
    more = {"driver": facts.driver, "cuda": facts.cuda} if device == "cuda" else {"cores": str(facts.cores)}
    return found | {name: value or "" for name, value in more.items()}


def key_of(facts: Mapping[str, str]) -> str:
    """Return the name under which a machine is stored."""
    return _digest(dict(facts))


def question(side: CaseSide, plan: Plan) -> str:
    """Return a digest of what a case asks: noise is comparable where parameters, declared work, timing mode and
    schedule are alike.

    What a timing mode says that depends on measured times is left out, or no two runs would ask the same.
    """
    timing = side.timing
    schedule = plan.schedules.get(timing.mode) if timing else None
    return _digest(
        {
            "params": side.params,
            "work": side.work.model_dump(mode="json"),
            "timing": timing and [timing.model_dump(mode="json", exclude=_VOLATILE), timing.alternating is not None],
            "schedule": schedule and schedule.model_dump(mode="json"),
        }
    )


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read(key: str) -> tuple[Machine | None, str]:
    """Return the stored calibration of a machine, None where there is none; and why a file there cannot be used."""
    path = folder() / f"{key}.json"
    try:
        return Machine.model_validate_json(path.read_bytes()), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path}: cannot be read ({error.strerror}): fix it, or calibrate again"
    except ValidationError:
        return None, f"{path}: is no calibration of this version: run `perfci calibrate` again"


def store(calibration: Calibration) -> list[Path]:
    """Keep a calibration, case by case, in place of older ones. Raises MachineError where the disk refuses."""
    written = []
    for device, key in calibration.machines.items():
        known = read(key)[0] or Machine(machine=machine(calibration.fingerprint, device))
        for case in calibration.cases:
            if case.device == device:
                known.cases[_entry(case.case, device, case.metric, case.question)] = case
        path = folder() / f"{key}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error("made", path.parent, error) from None
        write_atomic(path, known.model_dump_json(indent=1) + "\n")
        written.append(path)
    return written


def _entry(case: str, device: DeviceKind, metric: str, asks: str) -> str:
    return f"{case}@{device} {metric} {asks}"


def stored(plan: Plan, facts: Fingerprint) -> tuple[dict[DeviceKind, Machine], list[str]]:
    """Return the calibrations of this machine by device, and notes on files that cannot be used."""
    found: dict[DeviceKind, Machine] = {}
    notes = []
    for device in plan.devices:
        known, problem = read(key_of(machine(facts, device)))
        if known:
            found[device] = known
        if problem:
            notes.append(problem)
    return found, notes


# What it says before measuring


def remarks(cases: Sequence[Case], plan: Plan, facts: Fingerprint, *, strict: bool) -> list[str]:
    """Return notes on limits that are smaller than what this machine can hold. Call once the timing modes are known.

    Raises UsageError under `strict` for one that can let the run fail. Without a calibration there is nothing to say,
    except under `strict`: that it is not known.
    """
    asked = [one for one in plan.timed if one.relative]
    if not asked or plan.exact_pairs is not None:
        return []
    known, notes = stored(plan, facts)
    by_key = {case.key: case for case in cases}
    under: list[tuple[bool, str]] = []
    unknown = 0
    for criterion in asked:
        case = by_key.get(criterion.case_key)
        if case is None or any(side.status != "ok" for side in case.sides.values()):
            continue
        metric = noise_metric(criterion.metric)
        entry = _entry(case.id, case.device, metric, question(case.sides["head"], plan))
        found = known[case.device].cases.get(entry) if case.device in known else None
        if found is None:
            unknown += 1
        elif text := _under(criterion, found, plan.max_pairs, case.sides["head"].timing):
            under.append((criterion.shares_alpha, text))
    refused = [text for fails, text in under if fails]
    if strict and refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise UsageError(f"--strict: {refused[0]}{more}")
    lines = [text for _, text in under]
    if len(lines) > _MOST_REMARKS:
        lines = [*lines[:_MOST_REMARKS], f"{len(lines) - _MOST_REMARKS} more limits are under what can be held here"]
    if strict and unknown:
        lines.append(
            f"{unknown} of {len(asked)} limits are of cases that are not calibrated on this machine: whether they "
            "can be held is not known (`perfci calibrate`)"
        )
    return notes + lines


def _under(criterion: Criterion, found: CaseCalibration, pairs: int, timing: Timing | None) -> str:
    """Return why a case cannot hold a limit; empty where it can."""
    smallest = found.smallest_within(pairs)
    limit = limit_in_effect(criterion, found.value, timing)
    if smallest is None or margin(limit, criterion.better) >= smallest:
        return ""
    share = float(np.expm1(smallest))
    step = step_for(share)
    remedy = f"set regression: {step * 100:g}%" if step else "give it a steadier timing mode"
    return (
        f"{criterion.case}: a limit of {limit_percent(limit)} on {criterion.metric} is under the smallest change that "
        f"can be promised here, {noise_percent(share)} in {pairs} pairs (calibrated {found.measured[:10]}): {remedy}"
    )


# What it says of a plan

Source = Literal["calibration", "last results", ""]
Outlook = Literal["decided", "noise", "budget", "unknown", "no limit"]
UNKNOWN_PAIRS = 16
"""Pairs that a case of unknown noise is planned with: the first look at which a regression can be called."""
_OVERHEAD = 1.5
"""Factor for opening placements and starting workers, beside the blocks alone; 1.3 to 1.8 on a CPU."""


class CasePlan(NamedTuple):
    """The forecast for one case."""

    case: str
    device: DeviceKind
    limit: float | None
    """The tightest relative limit for its noise."""
    smallest: float | None
    """The smallest change that can be promised, a share."""
    source: Source
    """Where noise and seconds come from."""
    pairs: float | None
    seconds: float
    """Of one pair."""
    estimated: bool
    """True where the seconds come from the schedule alone."""
    outlook: Outlook


class Forecast(NamedTuple):
    """The forecast for a comparison of the whole suite."""

    cases: list[CasePlan]
    seconds: float
    """Until the last case is decided, were there no budget."""
    budget: float
    estimated: bool
    notes: list[str]


class _Known(NamedTuple):
    noise: float
    smallest: float | None
    value: float
    seconds: float | None
    source: Source


def forecast(cases: Iterable[Case], plan: Plan, facts: Fingerprint, last: Path) -> Forecast:
    """Return what a comparison by `plan` can show and takes, from the stored calibration, else from the results at
    `last`.

    `cases` are as discovered: timing modes are not known, so that the newest calibration of a case counts.
    """
    known, notes = stored(plan, facts)
    before = _last(last, plan, facts)
    asked: dict[str, list[Criterion]] = {}
    for criterion in plan.timed:
        if criterion.relative:
            asked.setdefault(criterion.case_key, []).append(criterion)
    found = [
        _case(case, asked.get(case.key, []), plan, known.get(case.device), before)
        for case in cases
        if case.sides["head"].status == "ok"
    ]
    planned, total = _in_budget(found, plan)
    return Forecast(planned, total, plan.budget, any(case.estimated for case in planned), notes)


def _case(
    case: Case, asked: Sequence[Criterion], plan: Plan, known: Machine | None, before: Results | None
) -> CasePlan:
    facts = {criterion.metric: _known(case, noise_metric(criterion.metric), plan, known, before) for criterion in asked}
    seconds = next((one.seconds for one in facts.values() if one and one.seconds is not None), None)
    length = _from_schedule(case.device, plan) if seconds is None else seconds
    if not asked:
        return CasePlan(case.id, case.device, None, None, "", float(plan.looks.pairs[0]), length, True, "no limit")
    worst: CasePlan | None = None
    for criterion in asked:
        one = facts[criterion.metric]
        limit = limit_in_effect(criterion, one.value if one else None, None)
        if one is None:
            return CasePlan(case.id, case.device, limit, None, "", None, length, seconds is None, "unknown")
        r_log = margin(limit, criterion.better)
        smallest = None if one.smallest is None else float(np.expm1(one.smallest))
        held = one.smallest is not None and r_log >= one.smallest
        pairs = expected_pairs(r_log, one.noise, plan.looks, plan.m) if r_log > 0 else float(plan.max_pairs)
        made = CasePlan(
            case.id, case.device, limit, smallest, one.source, pairs, length, seconds is None,
            "decided" if held else "noise",
        )  # fmt: skip
        if worst is None or (made.pairs or 0) > (worst.pairs or 0):
            worst = made
    assert worst is not None
    return worst


def _known(case: Case, metric: str, plan: Plan, known: Machine | None, before: Results | None) -> _Known | None:
    """Return what is known of one metric of a case: from calibration, else from the last results."""
    entries = [
        one
        for one in (known.cases.values() if known else ())
        if (one.case, one.device, one.metric) == (case.id, case.device, metric)
    ]
    if entries:
        one = max(entries, key=lambda entry: entry.measured)
        return _Known(one.noise, one.smallest_within(plan.max_pairs), one.value, one.seconds, "calibration")
    old = next((c for c in before.cases if c.key == case.key), None) if before else None
    if before is None or old is None:
        return None
    x = ratios(old, metric, plan.looks)
    if x.size < LEAST_PAIRS or not np.isfinite(x).all():
        return None
    # The sides may truly differ here: only the scatter tells of the machine.
    found = noise(x - np.median(x), 1)
    value = float(np.median(side_values(old, "base", metric)))
    smallest = reach(found, plan.looks, plan.m).get(plan.max_pairs)
    pairs = sum(len(c.pairs) for c in before.cases)
    return _Known(found.sd, smallest, value, before.measuring_seconds / pairs, "last results")


def _last(path: Path, plan: Plan, facts: Fingerprint) -> Results | None:
    """Return the results at `path` where they are of this machine, else None."""
    try:
        results = Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    alike = all(machine(results.fingerprint, device) == machine(facts, device) for device in plan.devices)
    return results if alike and results.mode == "compare" else None


def _from_schedule(device: DeviceKind, plan: Plan) -> float:
    schedule = plan.schedules.get("cpu" if device == "cpu" else "rotating", Schedule())
    return 2 * schedule.placements * schedule.blocks * schedule.block_time * _OVERHEAD


def _in_budget(cases: Sequence[CasePlan], plan: Plan) -> tuple[list[CasePlan], float]:
    """Rounds of pairs as they would be taken: which cases the budget leaves undecided, and how long all take."""
    needs = [UNKNOWN_PAIRS if case.pairs is None else max(1, round(case.pairs)) for case in cases]
    outlooks = [case.outlook for case in cases]
    spent = 0.0
    for taken in range(max(needs, default=0)):
        spent += sum(case.seconds for case, need in zip(cases, needs, strict=True) if need > taken)
        if spent > plan.budget:
            for index, need in enumerate(needs):
                if need > taken and outlooks[index] == "decided":
                    outlooks[index] = "budget"
    return [case._replace(outlook=outlook) for case, outlook in zip(cases, outlooks, strict=True)], spent
