"""What a comparison takes and can show here."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from perfci.measure import sampling
from perfci.measure.request import RESULTS
from perfci.model.base import DeviceKind
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Fingerprint
from perfci.model.metrics import DERIVED
from perfci.model.plan import Plan, Schedule
from perfci.model.results import Case, Phase, Results
from perfci.stats.answer import limit_in_effect
from perfci.stats.calibration import expected_pairs, noise, reach
from perfci.stats.decide import margin
from perfci.stats.equal_clock import log_ratios
from perfci.stats.series import side_values

CALIBRATION = "calibration"
"""Below the output folder, so that the last comparison stays."""
LEAST_PAIRS = 8
"""The standard deviation of 8 is known to a third."""


def noise_metric(metric: str) -> str:
    """Return the metric whose pairs scatter as those of `metric` do."""
    return "time" if metric in DERIVED else metric


Source = Literal["calibration", "last results", ""]
Outlook = Literal["decided", "noise", "budget", "unknown", "no limit"]
UNKNOWN_PAIRS = 8
"""For a case of unknown noise: `sampling.adapt` makes pairs so large that these decide 99 % of cases."""
_OVERHEAD = 1.5
"""Factor on block seconds, for opens and starts; 1.3 to 1.8 on a CPU."""


class CasePlan(NamedTuple):
    """A case's forecast."""

    case: str
    device: DeviceKind
    limit: float | None
    """The tightest relative limit for its noise."""
    smallest: float | None
    """The smallest change to be promised, a share."""
    source: Source
    pairs: float | None
    seconds: float
    estimated: bool
    """The seconds follow from the schedule."""
    outlook: Outlook


class Forecast(NamedTuple):
    """The suite's forecast."""

    cases: list[CasePlan]
    seconds: float
    """Of pairs, without a budget."""
    beside: float | None
    """Seconds of all else."""
    rests: Source
    """Of the seconds."""
    budget: float
    estimated: bool


def machine(facts: Fingerprint, device: DeviceKind) -> dict[str, str]:
    """Return what makes noise comparable, without the card's own number."""
    found = {
        "device": facts.devices.get(device, ""),
        "cpu": facts.cpu,
        "python": facts.python,
        "torch": facts.torch or "",
    }
    more = {"driver": facts.driver, "cuda": facts.cuda} if device == "cuda" else {"cores": str(facts.cores)}
    return found | {name: value or "" for name, value in more.items()}


class _Known(NamedTuple):
    noise: float
    smallest: float | None
    value: float
    source: Source


class Earlier(NamedTuple):
    """A comparison of this suite on this machine."""

    results: Results
    source: Source

    def of(self, case: Case) -> list[Case]:
        """Return what it measured of a case; of a command all that it reported."""
        found = [one for one in self.results.cases if one.pairs and one.key == case.key]
        if not found and case.origin == "command":
            found = [one for one in self.results.cases if one.pairs and one.kernel == case.id]
        return found

    def pair(self, case: Case, pairs: float) -> float | None:
        """Return mean seconds of one of `pairs` pairs, the first of which have the planned schedule, or None."""
        told = [_parts(one) for one in self.results.cases]
        count = sum(map(len, told))
        of = self.of(case)
        if not of:
            return None
        total = 0.0
        for parts in map(_parts, of):
            early, late = parts[: sampling.LEAST_PAIRS], parts[sampling.LEAST_PAIRS :] or parts
            total += math.fsum(early) + max(0.0, pairs - len(early)) * math.fsum(late) / len(late)
        starts = max(0.0, self.results.measuring_seconds - math.fsum(map(math.fsum, told))) / count
        return total / pairs + starts * len(of)

    def beside(self, cases: int, phases: Iterable[Phase]) -> float:
        """Return seconds beside pairs, without `phases`, scaling checks to `cases`."""
        costs, results = self.results.costs, self.results
        checked = sum(bool(case.pairs) for case in results.cases)
        more = costs.get("check", 0.0) * (cases / checked - 1)
        return max(0.0, results.seconds - results.measuring_seconds - sum(costs.get(one, 0.0) for one in phases) + more)


def _parts(case: Case) -> list[float]:
    return [math.fsum(pair.seconds.values()) for pair in case.pairs]


def forecast(cases: Iterable[Case], plan: Plan, facts: Fingerprint, out: Path) -> Forecast:
    """Return what a comparison by `plan` can show and takes, from results and calibration in `out`. `cases` as
    discovered."""
    cases = [case for case in cases if case.sides["head"].status == "ok"]
    earlier = [*_read(out / RESULTS, "last results", plan, facts)]
    earlier += _read(out / CALIBRATION / RESULTS, "calibration", plan, facts)
    timed = next((one for one in earlier if all(map(one.of, cases))), None) or next(iter(earlier), None)
    asked: dict[str, list[Criterion]] = {}
    for criterion in plan.timed:
        if criterion.relative:
            asked.setdefault(criterion.case_key, []).append(criterion)
    found = [_case(case, asked.get(case.key, []), plan, earlier, timed) for case in cases]
    apart: list[Phase] = ["wait"] if plan.observed else ["wait", "profile"]  # an unchanged tree explains nothing
    beside = timed.beside(len(found), apart) if timed else None
    inside = timed.beside(len(found), [*apart, "snapshot", "build"]) if timed else 0.0
    planned, total = _in_budget(found, plan, inside)
    estimated = any(case.estimated for case in planned)
    return Forecast(planned, total, beside, timed.source if timed else "", plan.budget, estimated)


def _case(
    case: Case, asked: Sequence[Criterion], plan: Plan, earlier: Sequence[Earlier], timed: Earlier | None
) -> CasePlan:
    def length_of(pairs: float) -> tuple[float, bool]:
        seconds = timed.pair(case, pairs) if timed else None
        return (_from_schedule(case.device, plan), True) if seconds is None else (seconds, False)

    length, estimated = length_of(UNKNOWN_PAIRS)
    if not asked:
        first = float(plan.looks.first)
        return CasePlan(case.id, case.device, None, None, "", first, length, estimated, "no limit")
    worst: CasePlan | None = None
    for criterion in asked:
        metric = noise_metric(criterion.metric)
        one = next((known for each in earlier if (known := _known(case, metric, plan, each)) is not None), None)
        limit = limit_in_effect(criterion, one.value if one else None, criterion.min_change)
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


def _known(case: Case, metric: str, plan: Plan, earlier: Earlier) -> _Known | None:
    old = next((one for one in earlier.results.cases if one.key == case.key), None)
    x = log_ratios(old, metric, plan.looks.first).x if old is not None else np.array([])
    if old is None or x.size < LEAST_PAIRS or not np.isfinite(x).all():
        return None
    # The sides may truly differ here: only the scatter tells of the machine.
    found = noise(x - np.median(x), 1)
    smallest = reach(found, plan.looks, plan.m).get(plan.max_pairs)
    return _Known(found.sd, smallest, float(np.median(side_values(old, "base", metric))), earlier.source)


def _read(path: Path, source: Source, plan: Plan, facts: Fingerprint) -> list[Earlier]:
    try:
        results = Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return []
    alike = all(machine(results.fingerprint, device) == machine(facts, device) for device in plan.devices)
    whole = alike and results.mode == "compare" and results.error is None
    return [Earlier(results, source)] if whole and any(case.pairs for case in results.cases) else []


def _from_schedule(device: DeviceKind, plan: Plan) -> float:
    schedule = plan.schedules.get("cpu" if device == "cpu" else "rotating", Schedule())
    return 2 * schedule.placements * schedule.blocks * schedule.block_time * _OVERHEAD


def _in_budget(cases: Sequence[CasePlan], plan: Plan, inside: float) -> tuple[list[CasePlan], float]:
    """Cases, the dearest undecided beyond the budget; total seconds.

    `inside`: the budget's seconds not of pairs.
    """
    needs = [case.seconds * (UNKNOWN_PAIRS if case.pairs is None else max(1, round(case.pairs))) for case in cases]
    found, spent = [*cases], 0.0
    for index in sorted(range(len(cases)), key=lambda index: (cases[index].outlook == "no limit", needs[index])):
        spent += needs[index]
        if inside + spent > plan.budget and cases[index].outlook == "decided":
            found[index] = cases[index]._replace(outlook="budget")
    return found, spent
