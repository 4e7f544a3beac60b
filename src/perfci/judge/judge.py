"""Results to report."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from perfci.judge.claims import claim_rows, claimed
from perfci.judge.criteria import not_asked, rows_of
from perfci.judge.explain.case import case_profile, seen
from perfci.judge.headline import headline, worst_rows
from perfci.judge.measured import facts, measured, noise, trails, unasked
from perfci.judge.proved import remarks
from perfci.judge.starved import starved
from perfci.judge.status import ANSWERED, Context, file_rows, order
from perfci.model.base import DeviceKind
from perfci.model.comparison import settings_apart
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Ceilings
from perfci.model.limits import told
from perfci.model.plan import count_sharing
from perfci.model.report import CLASSES, CaseProfile, Report, Row, Verdict
from perfci.model.results import Case, PlanPart, Results
from perfci.model.text import listed
from perfci.stats.lag import lag

_EXIT: dict[Verdict, Literal[0, 1, 3]] = {"pass": 0, "fail": 1, "undecided": 0, "error": 3}


def judge(results: Results, *, strict: bool = False, criteria: list[Criterion] | None = None) -> Report:
    """Judge a results document.

    `strict` lets what has no answer fail the run, wherever what is broken does. `criteria` replace the planned ones;
    where those that pairs decide differ, the report is marked exploratory. The order of cases and pairs does not
    matter. Raises ValueError where the plan's looks do not fit together.
    """
    asked = results.plan.criteria if criteria is None else criteria
    exploratory = _timed(asked) != _timed(results.plan.criteria)
    cases = sorted(results.cases, key=lambda case: case.key)
    dependence = lag(cases, results.plan.looks) if results.mode == "compare" else None
    context = Context(
        looks=results.plan.looks,
        m=_sharing(asked, results) if exploratory else results.plan.m,
        strict=strict,
        fail_on=frozenset(results.fail_on),
        compared=results.mode == "compare",
        criteria=_by_case(asked),
        custom=results.custom_metrics,
        environments=results.environments,
        purpose=results.plan.purpose,
        dependent=dependence is not None and dependence.beyond_chance,
        held=results.plan.held,
    )
    context = replace(context, starved=starved(context, cases))
    of_files, files_in_both = file_rows(context, results)
    of_cases = rows_of(context, cases, results.fingerprint)
    rows = _none_passes_unanswered(sorted([*of_cases, *of_files], key=order))
    ceilings = results.fingerprint.ceilings
    counts = {name: n for name in CLASSES if (n := sum(row.class_ == name for row in worst_rows(rows)))}
    places = {(row.case, row.device): place for place, row in reversed(list(enumerate(rows)))}
    ranked = sorted(cases, key=lambda case: places.get((case.id, case.device), len(rows)))
    profiles = [_profile(case, rows, ceilings, host=not results.plan.judged) for case in ranked if seen(case)]
    statistics, notes = measured(context, ranked)
    notes += [*told(asked), *not_asked(context, cases), *remarks(context, cases)]
    if results.part is not None and results.part.models > 1:
        notes.insert(0, f"One of {results.part.models} models of device that share α: all of them pass, or none.")
    if results.part is not None and not results.part.whole:
        notes.insert(0, _alone(results.part))
    if dependence is not None and dependence.beyond_chance:
        found = f"lag-1 correlation {dependence.r:.2f}, p = {dependence.p:.3f}"
        notes.append(
            f"Pairs resemble those before them ({found}), and the error rates ask for independent ones: only what is "
            "worse in every pair, by more than the pairs' range beyond the limit, is called so, and what else would "
            "have failed is inconclusive and fails the run all the same. Something else may use the machine: measure "
            "again."
        )

    claims = claim_rows(context, results)
    first = headline(results, context, cases, rows, files_in_both)
    if results.plan.claims is not None and not results.plan.claims.described:
        first = claimed(first, claims, strict=context.effect_if_unanswered() == "fail")
    if exploratory:
        notes.append("Judged by other limits than the run was planned with: its error rates do not hold.")
    return Report(
        run=results.run,
        mode=results.mode,
        purpose=results.plan.purpose,
        verdict=first.verdict,
        exit_code=_EXIT[first.verdict],
        sentence=first.sentence,
        advice=first.advice,
        needs_review=first.needs_review,
        unjudged=first.unjudged,
        advised=_again(results),
        strict=context.effect_if_unanswered() == "fail",
        exploratory=exploratory,
        counts={str(name): n for name, n in counts.items()},
        rows=rows,
        claims=claims,
        measured=statistics,
        facts=[facts(case, context.looks.first, ceilings.get(case.device)) for case in ranked],
        trails=trails(ranked, rows, context.looks),
        unasked=unasked(context, ranked, rows),
        profiles=profiles,
        notes=[*results.notes, *notes],
        files=results.files,
        started=results.started,
        seconds=results.seconds,
        measuring_seconds=results.measuring_seconds,
        costs=results.costs,
        imports=results.imports,
        gpu_hour=results.gpu_hour,
        pairs=max((len(case.pairs) for case in cases), default=0),
        noise=noise(cases, context.looks.first),
        command=results.command,
        repository=results.repository,
        fingerprint=results.fingerprint,
        environments=results.environments and settings_apart(results.environments, cases),
        sides=results.sides,
        policy_from=results.policy_from,
    )


def _sharing(asked: Iterable[Criterion], results: Results) -> int:
    models = 1 if results.part is None else results.part.models
    proved = {case.key for case in results.cases if case.code_proved}
    return count_sharing(asked, proved, models, results.plan.comparisons)


def _alone(part: PlanPart) -> str:
    here = listed(map(str, part.shards), len(part.shards))
    return (
        f"Shard {here} of {part.of} of plan {part.plan[:12]}, judged alone by its share of α: `perfci merge` "
        "judges all of them."
    )


def _again(results: Results) -> list[str]:
    """It goes on where it was only interrupted."""
    if results.error is None:
        return []
    # A night's comparisons begin anew together.
    alone = results.plan.purpose == "change" and results.plan.comparisons == 1
    goes_on = results.error.kind == "interrupt" and alone and "--resume" not in results.command
    return [*results.command, "--resume"] if goes_on else results.command


def _none_passes_unanswered(rows: list[Row]) -> list[Row]:
    """A case none of whose limits has an answer is undecided, even if they only warn."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.case, row.device), []).append(row)
    for own in found.values():
        limits = [row for row in own if row.kind != "presence"]
        silent = limits and not any(row.class_ in ANSWERED for row in limits)
        if silent and not any(row.effect in ("fail", "undecided") for row in own):
            limits[0].effect = "undecided"
    return sorted(rows, key=order)


def _timed(criteria: list[Criterion]) -> list[str]:
    return sorted(one.model_dump_json(exclude={"source"}) for one in criteria if one.timed)


def _by_case(criteria: list[Criterion]) -> dict[str, list[Criterion]]:
    asked: dict[str, list[Criterion]] = {}
    for one in criteria:
        asked.setdefault(one.case_key, []).append(one)
    return asked


def _profile(case: Case, rows: list[Row], ceilings: Mapping[DeviceKind, Ceilings], *, host: bool) -> CaseProfile:
    own = [row for row in rows if (row.case, row.device) == (case.id, case.device)]
    return case_profile(case, own, ceilings.get(case.device), host=host or case.origin != "kernel")
