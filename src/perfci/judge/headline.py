"""The first sentence of a report and comment."""

from collections.abc import Sequence
from dataclasses import dataclass

from perfci.judge import starved
from perfci.judge.status import ANSWERED, Context, base_failed_later, because, fails_in_both, state
from perfci.judge.words import change_words
from perfci.model.criteria import Purpose
from perfci.model.report import CLASSES, Class, Effect, Row, Verdict
from perfci.model.results import UNREAD, Case, Results
from perfci.model.text import count, one_line
from perfci.model.units import SPEED, show_budget

_SINCE: dict[Purpose, str] = {
    "last": " since the commit that was recorded last",
    "reference": " since the reference",
}
UNDECIDED = "Undecided: "


@dataclass(frozen=True)
class Headline:
    """The beginning of a report."""

    verdict: Verdict
    sentence: str
    advice: str
    """Empty where there is none."""
    needs_review: bool = False
    unjudged: bool = False


def headline(
    results: Results, context: Context, cases: list[Case], rows: list[Row], files_in_both: list[Row]
) -> Headline:
    """Return the verdict with its sentence.

    `rows`: worst first; `files_in_both`: of files that import in neither side.
    """
    if broken := _run_error(results, context, cases, rows, files_in_both):
        return Headline("error", *broken)
    worst = worst_rows(rows)
    on_main = context.purpose == "last"
    short = [case for case in cases if starved.unreached(context, case)]
    if failed := next((row for row in worst if row.effect == "fail"), None):
        failing = [row for row in worst if row.effect == "fail"]
        changed = context.compared and failed.failure not in UNREAD
        sentence = _worst_of(failing) + (_SINCE.get(context.purpose, "") if changed else "")
        todo = _advice(rows, "fail", short, on_main=on_main, changed=results.changed)
        todo = todo.replace(" in base first", "") if results.policy_from == "head" else todo
        return Headline("fail", sentence, todo, needs_review=changed and context.purpose == "change")
    if context.starved:
        return Headline("error", starved.sentence(results, context), starved.advice(short))
    if any(row.effect == "undecided" for row in rows):
        return Headline("undecided", _undecided(worst), _advice(rows, "undecided", short))
    todo = _advice(rows, "warn", short, on_main=on_main)
    if any(answers(row) for row in rows):
        return Headline("pass", _passing(worst, context.compared), todo)
    measured = sum(map(_measured, cases))
    if measured and (unjudged := _unjudged(results, context, count(measured, "case"), todo)):
        return unjudged
    # Without a base there may be nothing to ask: that is not the change's fault.
    must_answer = results.plan.judged and context.compared and context.effect_if_unanswered() == "fail"
    verdict: Verdict = "fail" if must_answer else "undecided"
    if not measured:
        more = _more(len(worst) - 1)
        return Headline(verdict, f"{UNDECIDED}nothing was measured: {row_words(worst[0])}{more}", todo)
    limit = "creep: 5%" if context.purpose == "reference" else "regression: 2%"
    todo = f"Give them limits in perfci.yaml, such as {limit}."
    return Headline(verdict, f"{UNDECIDED}{count(measured, 'case')} measured; no limit applies", todo)


def answers(row: Row) -> bool:
    """Tell whether a row says what was asked."""
    return row.class_ in ANSWERED and not (row.class_ == "missing" and row.effect == "warn")


def worst_rows(rows: list[Row]) -> list[Row]:
    """Return the first row of each case."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        first.setdefault((row.case, row.device), row)
    return list(first.values())


def _run_error(
    results: Results, context: Context, cases: list[Case], rows: list[Row], files_in_both: list[Row]
) -> tuple[str, str] | None:
    if results.error:
        sentence = f"The measurement failed: {one_line(results.error.text, 400)}"
        return sentence, "Go on with it:" if results.error.kind == "interrupt" else "Fix this and run again:"
    both = {(case.id, case.device) for case in cases if fails_in_both(context, case)}
    both |= {(row.case, row.device) for row in files_in_both}
    if both:
        failed = [row for row in worst_rows(rows) if (row.case, row.device) in both]
        others = sum(row.effect == "fail" for row in worst_rows(rows) if row not in failed)
        besides = f"; besides, {others} more would fail the gate" if others else ""
        todo = "Fix what fails in base, or remove it there: nothing can be said of its change."
        return _worst_of(failed) + besides, todo
    if broke := _base_failure(context, cases, rows):
        return broke
    if any(map(_measured, cases)) or context.starved:
        return None
    if any(case.stopped == "budget" for case in cases) and not any(row.effect == "fail" for row in rows):
        return f"Nothing was measured: the budget of {show_budget(results.plan.budget)} ended", "Give a larger budget."
    if not rows:
        return "Nothing was measured", "Declare at least one case under suite or commands in perfci.yaml."
    if all(row.class_ == "invalid" for row in rows):
        return f"Nothing was measured: {row_words(rows[0])}", _advice(rows, rows[0].effect)
    return None


def _base_failure(context: Context, cases: Sequence[Case], rows: Sequence[Row]) -> tuple[str, str] | None:
    """None where another case fails the gate."""
    broke = [case for case in cases if context.compared and base_failed_later(case)]
    own = {(case.id, case.device) for case in broke}
    fails = any(row.effect == "fail" and (row.case, row.device) not in own for row in rows)
    if not broke or fails:
        return None
    base = state(broke[0], "base")
    log = f"see {base.reason.log}, " if base.reason and base.reason.log else ""
    more = f"; so it was in {len(broke) - 1} more" if len(broke) > 1 else ""
    return (
        f"{broke[0].id}: base failed while it was measured, although it was right before{because(base)}{more}",
        f"Nothing can be said of these changes: {log}free memory, find out what ends it, in head too, and run again.",
    )


def _measured(case: Case) -> bool:
    return bool(case.pairs) or case.captured


def _named(case: str) -> str:
    inner = case.replace("`", "'")
    return f"`{inner}`"


def row_words(row: Row) -> str:
    """Return a row as the first half of a sentence."""
    where, what = _named(row.case), row.metric
    match row.class_:
        case "regression" | "improvement" if row.change is not None and what in SPEED:
            return f"{where} is {change_words(row.change, what)}"
        case "regression" | "improvement" if row.change is not None:
            return f"{where}: {what} is {change_words(row.change, what)}"
        case "violation" if row.against == "names":
            return f"{where}: {one_line(row.reason, 200)}"  # it names two kernels
        case "violation":
            return f"{where}: {what} of {one_line(row.reason)}"
        case "missing" if row.kind != "presence":
            return f"{where}: {what} is missing in head"
        case "missing":
            return f"{where} is missing in head"
        case "failed" if row.failure in UNREAD:
            return f"{_named(row.file or row.case)} {one_line(row.reason)}"
        case "failed" | "changed" | "invalid" | "clock":
            return f"{where}: {one_line(row.reason)}"
        case "skipped" if row.reason:
            return f"{where} is {one_line(row.reason)}"
        case "inconclusive" if row.change is not None and _seems_worse(row):
            return f"{where} seems {change_words(row.change, what)}, which {row.pairs} pairs do not prove"
        case _:
            return f"{where} is {row.class_}"


def _seems_worse(row: Row) -> bool:
    if row.against != "base" or row.limit is None or row.interval is None or not row.worse or row.change is None:
        return False
    return row.interval.low > 1 + row.limit if row.change > 1 else row.interval.high < 1 - row.limit


def _more(n: int) -> str:
    return f" (+{n} more)" if n > 0 else ""


def _worst_of(rows: list[Row]) -> str:
    one_file = [row for row in rows if rows[0].failure in UNREAD and row.file == rows[0].file]
    return row_words(rows[0]) + _more(len(rows) - max(1, len(one_file)))


def _asked(worst: list[Row]) -> int:
    return sum(not (row.class_ == "skipped" and row.effect == "pass") for row in worst)


def _unjudged(results: Results, context: Context, cases: str, todo: str) -> Headline | None:
    if not results.plan.judged or context.purpose == "seam":
        what = "Measured" if results.plan.judged else "Profiled"
        return Headline("undecided", f"{what}: {cases}, not judged", todo, unjudged=True)
    if context.compared:
        return None
    sentence = f"Measured: {cases}; no absolute limit applies, and there is nothing to compare with"
    todo = "Compare them with a base's (perfci compare), or give absolute limits."
    return Headline("undecided", sentence, todo, unjudged=True)


def _undecided(worst: list[Row]) -> str:
    """`worst`: a row per case."""
    rows = [row for row in worst if row.effect == "undecided"]
    lead, asked = row_words(next(filter(_seems_worse, rows), rows[0])), _asked(worst)
    if asked == 1:
        return f"{UNDECIDED}{lead}"
    return f"{UNDECIDED}{len(rows)} of {count(asked, 'case')} {'has' if len(rows) == 1 else 'have'} no answer: {lead}"


def _passing(worst: list[Row], compared: bool) -> str:
    warned = [row for row in worst if row.effect == "warn"]
    if warned:
        kinds = [f"{n} {name}" for name in CLASSES if (n := sum(row.class_ == name for row in warned))]
        return f"Passed, but of {count(_asked(worst), 'case')} {', '.join(kinds)}"
    counts = {name: sum(row.class_ == name for row in worst) for name in CLASSES}
    parts = []
    if n := counts["unchanged"]:
        proved = sum(row.proved for row in worst)
        aside = f" ({'all' if proved == n else proved} proved)" if proved else ""
        parts.append(f"{count(n, 'case')} {'unchanged' if compared else 'within'}{aside}")
    if n := counts["improvement"]:
        best = next(row for row in worst if row.class_ == "improvement")
        parts.append(f"{count(n, 'improvement')} ({row_words(best)})")
    parts += [f"{counts[name]} {name}" for name in ("added", "skipped") if counts[name]]
    if compared:
        return "No regression: " + ", ".join(parts)
    return "All limits hold: " + ", ".join(parts) + "; compared with nothing"


_RAISE = "raise the limit in base first"
_ADVICE: dict[Class, str] = {
    "regression": f"See what moved between base and head; if it is intended, {_RAISE}.",
    "violation": "Bring the value back to its bound; where the bound is out of date, move it in base first.",
    "missing": "Bring the case or metric back; if it is to go, leave missing out of its limits' fail_on in base first.",
    "failed": "Fix the case: its row says what happened.",
    "invalid": "Fix what the row's reason names; until then nothing is known of the case.",
    "changed": "Make sure that the new question, or result, is intended; it is compared again once base has the same.",
    "clock": "Find out why the clock differs: at the power limit, code that draws more power lowers it.",
    "inconclusive": "Take more pairs (a larger budget, more files) or a larger limit, or measure on a quieter machine.",
    "skipped": "Measure where what the cases need is there; until then nothing is known of them.",
}


def _advice(
    rows: list[Row], effect: Effect, short: Sequence[Case] = (), *, on_main: bool = False, changed: str = ""
) -> str:
    """`short`: cases without their first look. `changed`: files that differ."""
    worst = next((row for row in rows if row.effect == effect), None)
    if worst is None:
        return ""
    if effect == "undecided" and any(row.effect == effect and _seems_worse(row) for row in rows):
        return "Check the change: it most likely is worse than its limit; more pairs would prove it."
    if (worst.case, worst.device) in [(case.id, case.device) for case in short]:
        return starved.advice(short)
    if worst.class_ == "regression" and worst.kind == "creep":
        return "Find the commits with perfci bisect; if all of it is intended, raise the limit, or make a release."
    if worst.class_ == "regression" and on_main:
        return "Find the commit with perfci bisect; if it is intended, leave it: the next night compares with this one."
    if worst.class_ == "regression" and changed:
        return f"See what moved between base and head ({one_line(changed)}); if it is intended, {_RAISE}."
    return _ADVICE.get(worst.class_, "")
