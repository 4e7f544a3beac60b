"""Sentences of rows and reports: directions are spelled out, never left to a sign."""

import math
from typing import Literal

from perfci.model.report import CLASSES, Class, Effect, Row
from perfci.model.text import count, one_line, printable
from perfci.model.units import percent, significant

NEEDS_REVIEW = " — this change needs review"
"""End of the sentence of a comparison that fails."""
_SPEED = ("time", "cycles")


def call_name(name: str) -> str:
    """Return a function's name as sentences hold it."""
    return f"`{one_line(printable(name).replace('`', chr(39)), 40)}`"


def show_clock(hertz: float) -> str:
    """Return a clock: 1.3742e9 → `1.374 GHz`. Four digits, because a shift of 0.1 % can matter."""
    return f"{significant(hertz / 1e9, 4)} GHz"


def change_words(ratio: float, metric: str) -> str:
    """Return a ratio head/base in words: `3.1× slower`, `15.2 % slower`; `higher`, `lower` where it is no time."""
    if ratio == 1 or not math.isfinite(ratio):
        return "the same" if ratio == 1 else "not comparable"
    more, less = ("slower", "faster") if metric in _SPEED else ("higher", "lower")
    word = more if ratio > 1 else less
    if ratio >= 2:
        return f"{significant(ratio, 2)}× {word}"
    if ratio <= 0.5 and metric in _SPEED:
        return f"{significant(1 / ratio, 2)}× {word}"
    return f"{percent(abs(ratio - 1))} {word}"


def still_worse(broken: str, was: str, base: float, head: float, *, metric: str) -> str:
    """Say how head breaks a bound that base breaks too, and is worse. `broken`: of head; `was`: base's value."""
    words = change_words(head / base, metric) if base > 0 and head > 0 else "worse"
    return f"{broken}; base breaks it already ({was}), and head is {words} still"


def named(case: str) -> str:
    """Return a case id as sentences hold it: between backticks, of which it holds none itself."""
    inner = case.replace("`", "'")
    return f"`{inner}`"


def headline(row: Row) -> str:
    """Return a row as the first half of a sentence."""
    where, what = named(row.case), row.metric
    match row.class_:
        case "regression" | "improvement" if row.change is not None and what in _SPEED:
            return f"{where} is {change_words(row.change, what)}"
        case "regression" | "improvement" if row.change is not None:
            return f"{where}: {what} is {change_words(row.change, what)}"
        case "violation" if row.against == "names":
            return f"{where}: {one_line(row.reason, 200)}"  # it names two kernels
        case "violation":
            return f"{where}: {what} of {one_line(row.reason)}"
        case "missing":
            return f"{where} is missing in head"
        case "failed" | "changed" | "invalid":
            return f"{where}: {one_line(row.reason)}"
        case "clock":
            return f"{where}: {one_line(row.reason)}"
        case "skipped" if row.reason:
            return f"{where} is {one_line(row.reason)}"
        case "inconclusive" if row.change is not None and _seems_worse(row):
            return f"{where} seems {change_words(row.change, what)}, which {row.pairs} pairs do not prove"
        case _:
            return f"{where} is {row.class_}"


def _seems_worse(row: Row) -> bool:
    """Tell whether all of the interval of an undecided change lies beyond its limit."""
    if row.against != "base" or row.limit is None or row.interval is None or not row.worse or row.change is None:
        return False
    return row.interval.low > 1 + row.limit if row.change > 1 else row.interval.high < 1 - row.limit


_ARE: dict[Class, tuple[str, str]] = {
    "failed": ("fails", "fail"),
    "violation": ("breaks a bound", "break a bound"),
    "regression": ("is worse than its limit", "are worse than their limit"),
    "missing": ("is missing", "are missing"),
    "invalid": ("is invalid", "are invalid"),
    "changed": ("has changed", "have changed"),
    "clock": ("differs by the clock", "differ by the clock"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "skipped": ("is skipped", "are skipped"),
}


def _more(n: int) -> str:
    return f" (+{n} more)" if n > 0 else ""


def failing(worst: list[Row]) -> str:
    """Return the worst row that fails, and how many other cases fail. `worst`: one row per case, worst first."""
    rows = [row for row in worst if row.effect == "fail"]
    return headline(rows[0]) + _more(len(rows) - 1)


def _counted(rows: list[Row]) -> str:
    """Return `1 has changed and 2 are inconclusive`."""
    parts = [f"{n} {_ARE[name][n > 1]}" for name in CLASSES if (n := sum(row.class_ == name for row in rows))]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _asked(worst: list[Row]) -> int:
    """Return the number of cases of which something was asked here: those skipped for good reason do not count."""
    return sum(not (row.class_ == "skipped" and row.effect == "pass") for row in worst)


Unlimited = Literal["profiled", "compared", "alone"]
"""How cases were measured of which no limit was asked: for a profile, with base, without."""
_UNLIMITED: dict[Unlimited, tuple[str, str]] = {
    "profiled": ("profiled, not judged", "`perfci compare --base REF` judges."),
    "compared": ("measured; no limit applies", "Write limits for these cases into perfci.yaml."),
    "alone": (
        "measured; no absolute limit applies, and there is nothing to compare with",
        "`perfci compare --base REF` compares.",
    ),
}
"""The sentence about them, and what to do."""


def undecided(worst: list[Row], measured: int, how: Unlimited) -> str:
    """Return the sentence of a run in which nothing fails, and something that was asked has no answer.

    `worst`: one row per case, worst first; `measured`: number of cases with values.
    """
    rows = [row for row in worst if row.effect == "undecided"]
    if rows:
        lead = headline(next(filter(_seems_worse, rows), rows[0]))
        asked = _asked(worst)
        if asked == 1:
            return f"Undecided: {lead}"
        have = "has" if len(rows) == 1 else "have"
        return f"Undecided: {len(rows)} of {count(asked, 'case')} {have} no answer: {lead}"
    if measured:
        return f"Undecided: {count(measured, 'case')} {_UNLIMITED[how][0]}"
    if worst:
        return f"Undecided: nothing was measured: {headline(worst[0])}{_more(len(worst) - 1)}"
    return "Undecided: nothing was measured"


def passing(worst: list[Row], compared: bool) -> str:
    """Return the sentence of a run that passes, in which something was answered. `worst`: one row per case, worst
    first."""
    warned = [row for row in worst if row.effect == "warn"]
    if warned:
        return f"Passed, but of {count(_asked(worst), 'case')} {_counted(warned)}"
    counts = {name: sum(row.class_ == name for row in worst) for name in CLASSES}
    parts = []
    if n := counts["unchanged"]:
        parts.append(f"{count(n, 'case')} {'unchanged' if compared else 'within'}")
    if n := counts["improvement"]:
        best = next(row for row in worst if row.class_ == "improvement")
        parts.append(f"{count(n, 'improvement')} ({headline(best)})")
    parts += [f"{counts[name]} {name}" for name in ("added", "skipped") if counts[name]]
    if compared:
        return "No regression: " + ", ".join(parts)
    return "All limits hold: " + ", ".join(parts) + "; compared with nothing"


_ADVICE: dict[Class, str] = {
    "regression": "See what moved between base and head; if it is intended, raise the limit in base first.",
    "violation": "Bring the value back to its bound; where the bound is out of date, move it in base first.",
    "missing": "Bring the case or metric back, or set on_missing: warn for it in base first.",
    "failed": "Fix the case: its reason and its log say what happened.",
    "invalid": "Fix what the row's reason names; until then nothing is known of the case.",
    "changed": "Make sure that the new question is intended; it is compared again once base asks the same.",
    "clock": "Find out why the clock differs: at the power limit, code that draws more power lowers it.",
    "inconclusive": "Give a larger budget or a larger limit, or measure on a quieter machine.",
    "skipped": "Measure where what the cases need is there; until then nothing is known of them.",
}


def unlimited(measured: int, how: Unlimited) -> str:
    """Return the advice where nothing that was measured has a limit; empty where nothing was measured."""
    return _UNLIMITED[how][1] if measured else ""


def advice(rows: list[Row], effect: Effect, *, imported: bool = False) -> str:
    """Return the advice about the worst row with this effect; empty where there is none.

    `imported`: the numbers are another tool's.
    """
    worst = next((row for row in rows if row.effect == effect), None)
    if effect == "undecided" and any(row.effect == effect and _seems_worse(row) for row in rows):
        more = "more files of base and head" if imported else "a larger budget"
        return f"Check the change: it most likely is worse than its limit; {more} would prove it."
    if effect == "warn" and worst and worst.class_ == "missing":
        return "Make sure that what is gone is intended."
    if imported and worst and worst.class_ == "inconclusive":
        return "Import more files of base and head, measured in turns, or give a larger limit."
    return _ADVICE.get(worst.class_, "") if worst else ""
