"""`perfci calibrate`: HEAD against itself, built twice, shows which limits the machine allows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfci.measure.calibrate.forecast import LEAST_PAIRS, Earlier, noise_metric
from perfci.measure.request import Request
from perfci.model.base import MachineError, UsageError
from perfci.model.calibration import Calibration, CaseCalibration, FailRate, Shares
from perfci.model.comparison import differences
from perfci.model.criteria import Criterion, least_change
from perfci.model.plan import Plan
from perfci.model.policy_text import FILE
from perfci.model.results import Case, Results
from perfci.model.text import count
from perfci.model.units import direction, limit_percent, noise_percent, show
from perfci.sources.git import Repository
from perfci.stats.answer import limit_in_effect, replay
from perfci.stats.calibration import STEPS, clopper_pearson, noise, reach, step_for
from perfci.stats.components import components
from perfci.stats.decide import Decision, Status, margin
from perfci.stats.equal_clock import log_ratios
from perfci.stats.series import metrics, side_values
from perfci.stats.walsh import Array

MOST_FAILING = 0.01
"""Share of runs on unchanged code."""
RUNS = 2000
"""Replayed runs: 1 % is then known to ± 0.4 %."""
PAIRS, BUDGET = 32, 600.0
"""Defaults: pairs of each case, seconds."""
_NEGLIGIBLE = 0.1
"""A bias under this share of the limit, or of the smallest step, is reported and fails nothing."""
_GLOB = str.maketrans({"[": "[[]", "*": "[*]", "?": "[?]"})


def ready(request: Request) -> tuple[Request, list[str]]:
    """Return the request for committed HEAD as base and head, and notes. Raises UsageError."""
    pairs = request.what.exact_pairs or PAIRS
    if pairs < LEAST_PAIRS:
        raise UsageError(f"--pairs {pairs}: fewer than {LEAST_PAIRS} pairs do not tell their noise: ask for more")
    where = request.where.repository
    repo = Repository.find(where)
    head = repo.head_commit() if repo else None
    if repo is None or head is None:
        raise UsageError(f"{where}: has no commit: calibrate measures HEAD against itself (`git commit` first)")
    if repo.read(head.sha, FILE) is None:
        raise UsageError(
            f"{FILE}: is not in HEAD ({head.sha[:10]}): commit it, as calibrate measures what is committed"
        )
    notes = []
    if repo.is_dirty(exclude=[request.where.out]):
        notes.append("changes that are not committed were left out: HEAD was measured against itself")
    budget = request.how.budget or BUDGET
    asked = request.but(base="HEAD", committed=True, exact_pairs=pairs, quick=False, budget=budget)
    return asked, notes


@dataclass(frozen=True)
class _Measured:
    case: Case
    metric: str
    x: Array
    value: float


@dataclass(frozen=True)
class _Replayed:
    of: _Measured
    criterion: Criterion
    limit: float
    decisions: list[Decision]


def conclude(results: Results, *, notes: Iterable[str] = ()) -> Calibration:
    """Return the calibration by results of HEAD against itself. Raises MachineError where no case has enough pairs."""
    plan = results.plan
    measured, lacking = _measured(results, plan)
    if not measured:
        raise MachineError(
            f"nothing was calibrated: {lacking[0] if lacking else 'no case has a relative limit or a time'}"
        )
    replayed = _replay(measured, plan)
    cases = [_case(one, replayed, results, len(measured)) for one in measured]
    cases.sort(key=_worry)
    failing = _fail_rate(replayed)
    broken = _broken(results)
    effects = [case for case in cases if case.differs]
    warnings = [
        *broken,
        *(_effect_warning(case) for case in effects),
        *_fail_warning(failing, biased=bool(effects)),
        *_limit_warnings(cases, plan),
        *lacking,
    ]
    too_many = failing is not None and failing.low > MOST_FAILING
    return Calibration(
        run=results.run,
        started=results.started,
        seconds=results.seconds,
        measuring_seconds=results.measuring_seconds,
        repository=results.repository,
        commit=results.sides["head"].commit,
        fingerprint=results.fingerprint,
        criteria=plan.m,
        failing=failing,
        cases=cases,
        sentence=_sentence(cases, results, failing),
        warnings=warnings,
        notes=[*notes, *results.notes],
        limits=proposed(cases),
        exit_code=1 if broken or too_many or any(_matters(case) for case in effects) else 0,
    )


def _measured(results: Results, plan: Plan) -> tuple[list[_Measured], list[str]]:
    found, lacking = [], []
    for case in results.cases:
        if case.stopped == "skipped":
            continue
        failed = next((side for side in case.sides.values() if side.status != "ok"), None)
        if failed is not None:
            why = f": {failed.reason.text}" if failed.reason else ""
            lacking.append(f"{case.id}: not calibrated, as it {failed.status}{why}")
            continue
        asked = {one.metric for one in plan.timed if one.relative and one.case_key == case.key}
        wanted = {noise_metric(metric) for metric in asked} | ({"time"} & set(metrics(case)))
        for metric in sorted(wanted, key=lambda name: (name != "time", name)):
            x = log_ratios(case, metric, plan.looks.first).x
            if not np.isfinite(x).all():
                lacking.append(f"{case.id}: not calibrated, as {metric} of a worker is no finite positive number")
            elif x.size < LEAST_PAIRS:
                why = "the budget ended" if case.stopped == "budget" else f"{metric} was not measured more often"
                lacking.append(f"{case.id}: not calibrated, {x.size} of {LEAST_PAIRS} pairs at least: {why}")
            else:
                found.append(_Measured(case, metric, x, float(np.median(side_values(case, "base", metric)))))
    return found, lacking


def _replay(measured: Sequence[_Measured], plan: Plan) -> list[_Replayed]:
    """Cases with equally many pairs share the draws: what a worker pair has in common stays together."""
    shape, draws = (RUNS, plan.looks.pairs[-1]), dict[int, NDArray[np.intp]]()
    for n in {one.x.size for one in measured}:
        rng = np.random.default_rng(0)
        draws[n] = rng.integers(0, n, shape)
    by_key = {(one.case.key, one.metric): one for one in measured}
    found = []
    for criterion in plan.timed:
        one = by_key.get((criterion.case_key, noise_metric(criterion.metric)))
        if not criterion.relative or one is None:
            continue
        least = least_change(criterion, one.case.sides["head"].timing)
        limit = limit_in_effect(criterion, one.value, least)
        if not margin(limit, criterion.better) > 0:
            continue  # judged `invalid`: never failing
        decisions = replay(one.case, criterion, plan.looks, plan.m, draws[one.x.size])
        found.append(_Replayed(one, criterion, limit, decisions))
    return found


def _case(one: _Measured, replayed: Sequence[_Replayed], results: Results, cases: int) -> CaseCalibration:
    case, plan = one.case, results.plan
    found = noise(one.x, cases)
    here = [each for each in replayed if each.of is one]
    tightest = min(here, key=lambda each: margin(each.limit, each.criterion.better), default=None)
    parts = components(case, plan.looks.first) if one.metric == "time" else None
    return CaseCalibration(
        case=case.id,
        device=case.device,
        metric=one.metric,
        pairs=found.pairs,
        value=one.value,
        noise=found.sd,
        effect=found.effect,
        low=found.low,
        high=found.high,
        level=found.level,
        differs=found.differs,
        reach=reach(found, plan.looks, plan.m),
        asked=tightest and tightest.limit,
        replayed=tightest and _shares(tightest.decisions),
        seconds=Earlier(results, "calibration").pair(case, len(case.pairs)),
        components={"worker": parts.worker, "placement": parts.placement, "block": parts.block} if parts else {},
    )


def _shares(found: Sequence[Decision]) -> Shares:
    def share(*statuses: Status) -> float:
        return float(np.mean([one.status in statuses for one in found]))

    unchanged = [one.n for one in found if one.status == "unchanged"]
    return Shares(
        unchanged=share("unchanged"),
        failing=share("regression"),
        pairs=float(np.median(unchanged or [one.n for one in found])),
    )


def _fail_rate(replayed: Sequence[_Replayed]) -> FailRate | None:
    failing = [one for one in replayed if one.criterion.shares_alpha]
    if not failing:
        return None
    runs = zip(*(one.decisions for one in failing), strict=True)
    fails = sum(any(one.status == "regression" for one in run) for run in runs)
    low, high = clopper_pearson(fails, RUNS)
    return FailRate(runs=RUNS, failing=fails, low=low, high=high)


# In words


def _worry(case: CaseCalibration) -> tuple[object, ...]:
    held = case.smallest is None or _held(case)
    return (not _matters(case), not case.differs, held, -case.noise, case.case, case.device, case.metric)


def _matters(case: CaseCalibration) -> bool:
    limit = min(case.asked or STEPS[0], STEPS[0])
    return case.differs and abs(case.effect) >= _NEGLIGIBLE * limit


def _held(case: CaseCalibration) -> bool:
    return case.asked is None or (case.smallest is not None and bool(np.log1p(case.asked) >= case.smallest))


def _promised(case: CaseCalibration) -> tuple[float | None, float | None]:
    share = None if case.smallest is None else float(np.expm1(case.smallest))
    return share, None if share is None else step_for(share)


def _named(case: CaseCalibration) -> str:
    return f"`{case.case}`" + ("" if case.metric == "time" else f" ({case.metric})")


def _broken(results: Results) -> list[str]:
    found = []
    for case in results.cases:
        base, head = case.sides["base"], case.sides["head"]
        if {base.status, head.status} == {"ok", "failed"}:
            name, reason = ("base", base.reason) if base.status == "failed" else ("head", head.reason)
            found.append(
                f"`{case.id}` fails in {name} only although the code is the same: {reason.text if reason else ''}"
            )
        elif base.status == head.status == "ok" and (differ := differences(base, head)):
            found.append(f"`{case.id}`: base and head are the same code, and yet {'; '.join(differ)}")
    return found


def _effect_warning(case: CaseCalibration) -> str:
    low, high = sorted(abs(float(np.expm1(v))) for v in (case.low, case.high))
    ratio = float(np.exp(case.effect))
    change = f"{noise_percent(abs(ratio - 1))} {direction(ratio, case.metric)}"
    interval = f"{noise_percent(low)} to {noise_percent(high)}"
    return (
        f"{_named(case)}: head is {change} than base ({interval}) although the code is the same: "
        "something that is fixed per side passes for a change; look for what the two builds differ in"
    )


def _fail_warning(failing: FailRate | None, *, biased: bool) -> list[str]:
    if failing is None or failing.low <= MOST_FAILING:
        return []
    remedy = "fix what differs between the sides" if biased else "raise the limits"
    return [f"{failing.failing} of {failing.runs} replayed runs fail though nothing changed, 1 in 100 may: {remedy}"]


def _limit_warnings(cases: Sequence[CaseCalibration], plan: Plan) -> list[str]:
    found = []
    for case in cases:
        if case.asked is None or _held(case):
            continue
        share, step = _promised(case)
        promised = (
            f"the smallest change that can be promised is {noise_percent(share)}"
            if share
            else "no change can be promised"
        )
        remedy = f"set regression: {step * 100:g}%" if step else "no limit up to 20 % can be held"
        found.append(
            f"{_named(case)}: the limit is {limit_percent(case.asked)}, {promised} in {plan.max_pairs} pairs: {remedy}"
        )
    return found


def _sentence(cases: Sequence[CaseCalibration], results: Results, failing: FailRate | None) -> str:
    of = len({case.key for case in cases})
    asked = sum(case.stopped != "skipped" for case in results.cases)
    lead = f"{of} of {count(asked, 'case')} calibrated"
    if failing is None:
        return f"{lead}; no relative limit applies, so that no run can fail by one"
    bounds = f"95 %: {noise_percent(failing.low)} to {noise_percent(failing.high)}"
    rate = f"{noise_percent(failing.failing / failing.runs)} of runs fail on unchanged code ({bounds})"
    unchanged = [case.replayed.unchanged for case in cases if case.replayed]
    found = f"{lead}: {rate}; {np.mean(unchanged) * 100:.1f} % of criteria say that nothing changed"
    taken = [(case.replayed.pairs, case.seconds) for case in cases if case.replayed and case.replayed.unchanged > 0]
    if taken:
        time = show(float(np.median([pairs * seconds for pairs, seconds in taken])), "s")
        found += f", in the median after {np.median([pairs for pairs, _ in taken]):g} pairs and {time}"
    limits = [_held(case) for case in cases if case.asked is not None]
    if missed := limits.count(False):
        found += f"; {missed} of {count(len(limits), 'limit')} cannot be held"
    return found


# The policy that it proposes


def proposed(cases: Iterable[CaseCalibration]) -> list[str]:
    """Return lines of YAML for `limits:`, the smallest readable ones that cases can hold."""
    steps: dict[tuple[str, str, float | None], list[str]] = {}
    for case in sorted(cases, key=lambda case: case.case):
        steps.setdefault((case.device, case.metric, _promised(case)[1]), []).append(case.case.translate(_GLOB))
    lines = []
    for (device, metric, step), patterns in sorted(steps.items(), key=lambda item: (item[0][:2], item[0][2] or 99)):
        named = json.dumps(patterns, ensure_ascii=False)
        if step is None:
            lines.append(f"# no limit up to {STEPS[-1] * 100:g}% can be held by {named} on {device} ({metric})")
        else:
            fields = f"cases: {named}, metric: {metric}, regression: {step * 100:g}%, devices: [{device}]"
            lines.append(f"- {{{fields}}}")
    return lines
