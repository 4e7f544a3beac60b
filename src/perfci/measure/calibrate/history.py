"""The changes that this machine can show, by stored calibrations and the last results, and what a plan promises."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from perfci.model.base import DeviceKind, UsageError
from perfci.model.calibration import Calibration, CaseCalibration, Machine
from perfci.model.comparison import digest
from perfci.model.criteria import Criterion, least_change
from perfci.model.fingerprint import Fingerprint
from perfci.model.metrics import DERIVED
from perfci.model.plan import Looks, Plan, Schedule
from perfci.model.results import Case, CaseSide, Phase, Results
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
PLANNED = 2
"""Pairs of the planned schedule before it is changed (`sampling.LEAST_PAIRS`)."""
QUIETER: Mapping[DeviceKind, str] = {
    "cuda": "let nothing else use the GPU, hold its clock (--lock-clocks base), or give the case more work",
    "cpu": "let nothing else run on the machine, or give the case more work",
}
"""Remedies, beside a larger limit, for a case that is too noisy on this device; `perfci doctor` says what disturbs."""
_MOST_REMARKS = 5
_VOLATILE = {"executions_per_graph", "because", "alternating"}
_KEY = 16
"""Hexadecimal digits of a digest that is a name."""


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
    return digest(dict(facts))[:_KEY]


def question(side: CaseSide, plan: Plan) -> str:
    """Return a digest of what a case asks: noise is comparable where parameters, declared work, timing mode and
    schedule are alike.

    What a timing mode says that depends on measured times is left out, or no two runs would ask the same.
    """
    timing = side.timing
    schedule = plan.schedules.get(timing.mode) if timing else None
    found = {
        "params": side.params,
        "work": side.work.model_dump(mode="json"),
        "timing": timing and [timing.model_dump(mode="json", exclude=_VOLATILE), timing.alternating is not None],
        "schedule": schedule and schedule.model_dump(mode="json"),
    }
    return digest(found)[:_KEY]


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
    remedy = f"set {criterion.kind}: {step * 100:g}%, or " if step else ""
    remedy += QUIETER[found.device]
    return (
        f"{criterion.case}: a limit of {limit_percent(limit)} on {criterion.metric} is under the smallest change that "
        f"can be promised here, {noise_percent(share)} in {pairs} pairs (calibrated {found.measured[:10]}): {remedy}"
    )


# What it says of a plan

Source = Literal["calibration", "last results", "trial", ""]
Outlook = Literal["decided", "noise", "budget", "unknown", "no limit"]
UNKNOWN_PAIRS = 8
"""Pairs that an unchanged case of unknown noise is planned with: they are made so large (`sampling.adapt`) that these
decide 99 % of cases."""
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
    """Of pairs until the last case is decided, were there no budget."""
    beside: float | None
    """Seconds of all else: builds, checks, start; None where no run tells."""
    rests: Source
    """Where the seconds come from: of the calibration those of pairs alone; empty: the schedule alone, for a case."""
    budget: float
    estimated: bool
    notes: list[str]


class _Known(NamedTuple):
    noise: float
    smallest: float | None
    value: float
    seconds: float | None
    source: Source


class _Before(NamedTuple):
    """A comparison of this suite on this machine."""

    results: Results
    source: Source

    def of(self, case: Case) -> list[Case]:
        """Return what it measured of a case; of a command, whose cases only a run knows, all that it reported."""
        found = [one for one in self.results.cases if one.pairs and one.key == case.key]
        if not found and case.origin == "command":
            found = [one for one in self.results.cases if one.pairs and one.kernel == case.id]
        return found

    def pair(self, case: Case, pairs: float) -> float | None:
        """Return seconds of one of so many pairs of a case, the mean: the first ones are of the planned schedule; None
        where it was not measured."""
        told = [_parts(one) for one in self.results.cases]
        count = sum(map(len, told))
        of = self.of(case)
        if not of:
            return None
        total = 0.0
        for parts in map(_parts, of):
            early, late = parts[:PLANNED], parts[PLANNED:] or parts
            total += math.fsum(early) + max(0.0, pairs - len(early)) * math.fsum(late) / len(late)
        starts = max(0.0, self.results.measuring_seconds - math.fsum(map(math.fsum, told))) / count
        return total / pairs + starts * len(of)

    def beside(self, cases: int, phases: Iterable[Phase]) -> float:
        """Return seconds beside pairs, without `phases`; of checks as many as so many cases take."""
        costs, results = self.results.costs, self.results
        checked = sum(bool(case.pairs) for case in results.cases)
        more = costs.get("check", 0.0) * (cases / checked - 1)
        return max(0.0, results.seconds - results.measuring_seconds - sum(costs.get(one, 0.0) for one in phases) + more)


def _parts(case: Case) -> list[float]:
    return [math.fsum(pair.seconds.values()) for pair in case.pairs]


def forecast(
    cases: Iterable[Case],
    plan: Plan,
    facts: Fingerprint,
    last: Path,
    trial: Callable[[], Results | None] = lambda: None,
) -> Forecast:
    """Return what a comparison by `plan` can show and takes, from the stored calibration and the results at `last`.

    `cases` are as discovered: timing modes are not known, so that the newest calibration of a case counts. Where the
    results do not hold them all, `trial` is asked for some that do. Results tell the seconds before a calibration does,
    whose pairs are all of the planned schedule.
    """
    known, notes = stored(plan, facts)
    cases = [case for case in cases if case.sides["head"].status == "ok"]
    before = _last(last, plan, facts)
    if before is None or not all(map(before.of, cases)):
        tried = trial()
        before = before if tried is None or not any(case.pairs for case in tried.cases) else _Before(tried, "trial")
    asked: dict[str, list[Criterion]] = {}
    for criterion in plan.timed:
        if criterion.relative:
            asked.setdefault(criterion.case_key, []).append(criterion)
    found = [_case(case, asked.get(case.key, []), plan, known.get(case.device), before) for case in cases]
    apart: list[Phase] = ["wait"] if plan.observed else ["wait", "profile"]  # an unchanged tree explains nothing
    beside = before.beside(len(found), apart) if before else None
    inside = before.beside(len(found), [*apart, "snapshot", "build"]) if before else 0.0
    planned, total = _in_budget(found, plan, inside)
    estimated = any(case.estimated for case in planned)
    rests: Source = before.source if before else "" if estimated else "calibration"
    return Forecast(planned, total, beside, rests, plan.budget, estimated, notes)


def _case(
    case: Case, asked: Sequence[Criterion], plan: Plan, known: Machine | None, before: _Before | None
) -> CasePlan:
    facts = {criterion.metric: _known(case, noise_metric(criterion.metric), plan, known, before) for criterion in asked}
    stored = next((one.seconds for one in facts.values() if one and one.seconds is not None), None)

    def length_of(pairs: float) -> tuple[float, bool]:
        """Return seconds of a pair, and whether the schedule alone says so."""
        seconds = before.pair(case, pairs) if before else None
        seconds = stored if seconds is None else seconds
        return (_from_schedule(case.device, plan), True) if seconds is None else (seconds, False)

    length, estimated = length_of(UNKNOWN_PAIRS)
    if not asked:
        first = float(plan.looks.pairs[0])
        return CasePlan(case.id, case.device, None, None, "", first, length, estimated, "no limit")
    worst: CasePlan | None = None
    for criterion in asked:
        one = facts[criterion.metric]
        limit = limit_in_effect(criterion, one.value if one else None, None)
        if one is None:
            return CasePlan(case.id, case.device, limit, None, "", None, length, estimated, "unknown")
        r_log = margin(limit, criterion.better)
        smallest = None if one.smallest is None else float(np.expm1(one.smallest))
        held = one.smallest is not None and r_log >= one.smallest
        pairs = expected_pairs(r_log, one.noise, plan.looks, plan.m) if r_log > 0 else float(plan.max_pairs)
        outlook: Outlook = "decided" if held else "noise"
        made = CasePlan(case.id, case.device, limit, smallest, one.source, pairs, *length_of(pairs), outlook)
        if worst is None or (made.pairs or 0) > (worst.pairs or 0):
            worst = made
    assert worst is not None
    return worst


def _known(case: Case, metric: str, plan: Plan, known: Machine | None, before: _Before | None) -> _Known | None:
    """Return what is known of one metric of a case: from calibration, else from the last results."""
    entries = [
        one
        for one in (known.cases.values() if known else ())
        if (one.case, one.device, one.metric) == (case.id, case.device, metric)
    ]
    if entries:
        one = max(entries, key=lambda entry: entry.measured)
        return _Known(one.noise, one.smallest_within(plan.max_pairs), one.value, one.seconds, "calibration")
    old = next((c for c in before.results.cases if c.key == case.key), None) if before else None
    if before is None or old is None:
        return None
    x = ratios(old, metric, plan.looks)
    if x.size < LEAST_PAIRS or not np.isfinite(x).all():
        return None
    # The sides may truly differ here: only the scatter tells of the machine.
    found = noise(x - np.median(x), 1)
    value = float(np.median(side_values(old, "base", metric)))
    smallest = reach(found, plan.looks, plan.m).get(plan.max_pairs)
    return _Known(found.sd, smallest, value, None, before.source)


def _last(path: Path, plan: Plan, facts: Fingerprint) -> _Before | None:
    """Return the results at `path` where they are a whole comparison on this machine, else None."""
    try:
        results = Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    alike = all(machine(results.fingerprint, device) == machine(facts, device) for device in plan.devices)
    whole = alike and results.mode == "compare" and results.error is None
    return _Before(results, "last results") if whole and any(case.pairs for case in results.cases) else None


def _from_schedule(device: DeviceKind, plan: Plan) -> float:
    schedule = plan.schedules.get("cpu" if device == "cpu" else "rotating", Schedule())
    return 2 * schedule.placements * schedule.blocks * schedule.block_time * _OVERHEAD


def _in_budget(cases: Sequence[CasePlan], plan: Plan, inside: float) -> tuple[list[CasePlan], float]:
    """Return the cases with those that the budget leaves undecided, the dearest, and how long all take.

    `inside`: seconds of the budget that are not of pairs.
    """
    needs = [case.seconds * (UNKNOWN_PAIRS if case.pairs is None else max(1, round(case.pairs))) for case in cases]
    found, spent = [*cases], 0.0
    for index in sorted(range(len(cases)), key=lambda index: (cases[index].outlook == "no limit", needs[index])):
        spent += needs[index]
        if inside + spent > plan.budget and cases[index].outlook == "decided":
            found[index] = cases[index]._replace(outlook="budget")
    return found, spent
