"""Results to report."""

from collections.abc import Mapping
from typing import Literal

from perfci.judge.criteria import rows_of
from perfci.judge.explain.case import case_profile, seen
from perfci.judge.measured import facts, measured, noise, trails
from perfci.judge.speed_of_light import TIMED
from perfci.judge.starved import starved
from perfci.judge.status import Context, breakdown, fails_in_both, file_rows, order
from perfci.judge.words import (
    NEEDS_REVIEW,
    Unlimited,
    advice,
    failing,
    headline,
    passing,
    undecided,
    unlimited,
)
from perfci.model.base import DeviceKind
from perfci.model.criteria import Criterion
from perfci.model.fingerprint import Ceilings
from perfci.model.limits import told
from perfci.model.report import CLASSES, UNANSWERED, CaseProfile, Class, Report, Row, Verdict
from perfci.model.results import Case, Results
from perfci.model.text import one_line

CAUSED: frozenset[Class] = frozenset({"regression", "improvement", "clock", "inconclusive"})
"""Classes beside whose change its cause stands."""
ANSWERED: frozenset[Class] = frozenset(CLASSES) - UNANSWERED - {"skipped"}
"""Classes of what was asked and has an answer, if only that there is nothing to compare with yet."""
_EXIT: dict[Verdict, Literal[0, 1, 3]] = {"pass": 0, "fail": 1, "undecided": 0, "error": 3}


def judge(results: Results, *, strict: bool = False, criteria: list[Criterion] | None = None) -> Report:
    """Judge a results document: each planned question answered, and a verdict over all.

    `strict` lets what has no answer fail the run, as `on_undecided: fail` of the policy does. `criteria` replace the
    planned ones; where those that pairs decide differ, the report is marked exploratory, since the error rates were
    planned for others. The same results give the same report, in whatever order cases and pairs stand in the document.
    Raises ValueError where the plan's looks do not fit together.
    """
    strict = strict or results.on_undecided == "fail"
    asked = results.plan.criteria if criteria is None else criteria
    exploratory = _timed(asked) != _timed(results.plan.criteria)
    imported = any(case.origin == "imported" for case in results.cases)
    context = Context(
        looks=results.plan.looks,
        m=max(1, sum(one.shares_alpha for one in asked)) if exploratory else results.plan.m,
        strict=strict,
        compared=results.mode == "compare",
        criteria=_by_case(asked),
        custom=results.custom_metrics,
    )
    cases = sorted(results.cases, key=lambda case: case.key)
    of_files, files_in_both = file_rows(context, results)
    of_cases = rows_of(context, cases, results.fingerprint)
    rows = _hold(sorted([*of_cases, *of_files], key=order))
    worst = _worst(rows)
    ceilings = results.fingerprint.ceilings
    profiles = _profiles(ceilings, cases, rows)
    counts = {name: n for name in CLASSES if (n := sum(row.class_ == name for row in worst))}
    statistics, notes = measured(context, cases)
    notes += told(asked)

    broken = _broken(results, context, cases, rows, files_in_both)
    observe = results.gate == "observe"
    would_fail = any(row.effect == "fail" for row in rows)
    silent = any(row.effect == "undecided" for row in rows)
    unasked = not silent and not any(answers(row) for row in rows)
    count = sum(bool(case.pairs) for case in cases)
    verdict: Verdict
    if broken:
        verdict, (sentence, todo) = "error", broken
    elif would_fail:
        verdict = "undecided" if observe else "fail"  # green would say that the limits hold
        sentence, todo = failing(worst), advice(rows, "fail", imported=imported)
        if observe:
            sentence = f"Observed only, would have failed: {sentence}"
        elif context.compared:
            sentence += NEEDS_REVIEW
    elif found := starved(results, context):
        verdict, (sentence, todo) = "error", found
    elif silent or unasked:
        # Without a base there may be nothing to ask: that is not the change's fault.
        wanted = results.plan.judged and context.compared and strict and not observe
        verdict = "fail" if unasked and wanted else "undecided"
        how: Unlimited = "profiled" if not results.plan.judged else "compared" if context.compared else "alone"
        sentence = undecided(worst, count, how)
        todo = advice(rows, "undecided", imported=imported) or unlimited(count, how) or advice(rows, "warn")
    else:
        verdict = "pass"
        sentence, todo = passing(worst, context.compared), advice(rows, "warn", imported=imported)
    if exploratory:
        notes.append("Judged by other limits than the run was planned with: its error rates do not hold.")
    return Report(
        run=results.run,
        mode=results.mode,
        verdict=verdict,
        exit_code=_EXIT[verdict],
        sentence=sentence,
        advice=todo,
        advised=_again(results),
        strict=strict,
        observe=observe,
        exploratory=exploratory,
        counts={str(name): n for name, n in counts.items()},
        rows=rows,
        measured=statistics,
        facts=[facts(case, context.looks.pairs[0], ceilings.get(case.device)) for case in cases],
        trails=trails(cases, rows, context.looks),
        profiles=profiles,
        notes=[*results.notes, *notes],
        files=[f"{f.file} ({f.side}): {one_line(f.reason.text, 400)}" for f in results.files],
        started=results.started,
        seconds=results.seconds,
        measuring_seconds=results.measuring_seconds,
        gpu_hour=results.gpu_hour,
        pairs=max((len(case.pairs) for case in cases), default=0),
        noise=noise(cases, context.looks.pairs[0]),
        command=results.command,
        repository=results.repository,
        fingerprint=results.fingerprint,
        sides=results.sides,
        policy_from=results.policy_from,
    )


def answers(row: Row) -> bool:
    """Tell whether a row says what was asked. That a case is gone which may be gone says nothing."""
    return row.class_ in ANSWERED and not (row.class_ == "missing" and row.effect == "warn")


def _again(results: Results) -> list[str]:
    """Return the command's words that come after an error: the same, which goes on where it was only interrupted."""
    if results.error is None:
        return []
    goes_on = results.error.kind == "interrupt" and "--resume" not in results.command
    return [*results.command, "--resume"] if goes_on else results.command


def _hold(rows: list[Row]) -> list[Row]:
    """Return the rows, worst first, where a case none of whose limits has an answer is undecided even if they only
    warn."""
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
    """Judge what pairs decide, in an order of its own, wherever it was asked for."""
    return sorted(one.model_dump_json(exclude={"source"}) for one in criteria if one.timed)


def _by_case(criteria: list[Criterion]) -> dict[str, list[Criterion]]:
    asked: dict[str, list[Criterion]] = {}
    for one in criteria:
        asked.setdefault(one.case_key, []).append(one)
    return asked


def _profiles(ceilings: Mapping[DeviceKind, Ceilings], cases: list[Case], rows: list[Row]) -> list[CaseProfile]:
    """Return the profile of every case that has one, in the order of its worst row. Writes the cause into rows of
    timing."""
    places = {(row.case, row.device): place for place, row in reversed(list(enumerate(rows)))}
    found = []
    for case in sorted((c for c in cases if seen(c)), key=lambda c: places.get((c.id, c.device), len(rows))):
        own = [row for row in rows if (row.case, row.device) == (case.id, case.device)]
        told = case_profile(case, own, ceilings.get(case.device))
        found.append(told)
        for row in own:
            if row.against == "base" and row.class_ in CAUSED and row.metric in TIMED and told.sentences:
                row.cause = told.sentences[0]
    return found


def _worst(rows: list[Row]) -> list[Row]:
    """Return the first row of each case, where `rows` stand worst first."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        first.setdefault((row.case, row.device), row)
    return list(first.values())


def _broken(
    results: Results, context: Context, cases: list[Case], rows: list[Row], files_in_both: list[Row]
) -> tuple[str, str] | None:
    """Return the sentence that makes the run an error, and what to do about it; None where nothing does."""
    if results.error:
        sentence = f"The measurement failed: {one_line(results.error.text, 400)}"
        return sentence, "Go on with it:" if results.error.kind == "interrupt" else "Fix this and run again:"
    both = {(case.id, case.device) for case in cases if fails_in_both(context, case)}
    both |= {(row.case, row.device) for row in files_in_both}
    if both:
        failed = [row for row in _worst(rows) if (row.case, row.device) in both]
        others = sum(row.effect == "fail" for row in _worst(rows)) - len(failed)
        besides = f"; besides, {others} more would fail the gate" if others else ""
        todo = "Fix what fails in base, or remove it there: nothing can be said of its change."
        return failing(failed) + besides, todo
    if broke := breakdown(context, cases, rows, observed=results.gate == "observe"):
        return broke
    if any(case.pairs for case in cases):
        return None
    if not rows:
        return "Nothing was measured", "Declare at least one case under suite or commands in perfci.yaml."
    if all(row.class_ == "invalid" for row in rows):
        return f"Nothing was measured: {headline(rows[0])}", advice(rows, rows[0].effect)
    return None
