"""The parts of Markdown pages."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from perfci.model.base import Side
from perfci.model.report import UNANSWERED, Effect, KernelRow, Row
from perfci.model.text import count
from perfci.model.units import show, show_share
from perfci.render import escape, uses, view, words
from perfci.render.escape import Safe
from perfci.render.fit import SHARED, Fold
from perfci.render.view import View

_MOST_FOLDED = 50
_NO_BREAK = "\u00a0"


def page(template: str, **values: Any) -> str:
    """Return a whole page from a template; values are escaped unless Safe."""
    return jinja().get_template(template).render(values).rstrip() + "\n"


def folds(shown: View) -> list[Fold]:
    """Return the sections that have something to say, in reading order."""
    found = []

    def add(name: str, title: str, body: str) -> None:
        found.append(Fold(name, Safe(_macro("fold", title, Safe(body)))))

    unanswered = shown.undecided if shown.failing else []  # else they stand above, unfolded
    for name, rows in (("undecided", unanswered), ("warnings", shown.warnings), ("improvements", shown.improvements)):
        if rows:
            one = name.removesuffix("s") if len(rows) == 1 else name
            title = f"{len(rows)} {one}" + (f": {view.by_class(rows)}" if name != "improvements" else "")
            add(name, title, _macro("rows_table", shown, rows[:_MOST_FOLDED], False) + _rest(rows))
    if shown.report.profiles:
        many = count(len(shown.report.profiles), "case")
        add("profile", f"What profilers saw: {many}", _macro("profile", shown))
    if rows := shown.without_base:
        many, table = count(len(rows), "case"), _macro("added", shown, rows[:_MOST_FOLDED])
        add("without a baseline", f"{many} without a baseline", table + _rest(rows))
    if shown.measured:
        body = _macro("measured", shown)
        if shown.other_measured:
            body += _macro("others", shown)
        add("measured values", count(len(shown.measured), "measured case"), body)
    if shown.checked:
        many = count(len(shown.checked), "case")
        add("correctness", f"Correctness: {many} checked", _macro("correctness", shown))
    if shown.noisy:
        add("noise", f"Where noise comes from: {count(len(shown.noisy), 'case')}", _macro("noise", shown))
    add("environment", "Environment", _macro("environment", shown))
    if shown.measured or shown.report.rows:
        add("method", "How it was measured and decided", _macro("method", shown))
    return found


def body(shown: View, rows: Sequence[Row], remarks: Sequence[str]) -> Safe:
    """Render a report before its folded sections."""
    return Safe(_macro("body", shown, rows, remarks).rstrip())


def matrix(names: Sequence[str], rows: Sequence[Sequence[tuple[View, Row | None]]], more: dict[str, int]) -> Safe:
    """Render what became of each case in each job."""
    return Safe(_macro("matrix", names, rows, more).rstrip())


def environments(shown: Sequence[View], names: Sequence[str]) -> Fold:
    """Return one section: what all jobs share once, the rest by job."""
    facts: dict[str, dict[str, list[str]]] = {}
    for one, name in zip(shown, names, strict=True):
        for fact, value in one.environment:
            facts.setdefault(fact, {}).setdefault(value, []).append(name)
    rows = [
        (fact, value, "" if len(of) == len(shown) else ", ".join(of))
        for fact, values in facts.items()
        for value, of in values.items()
    ]
    title = f"Environment of {count(len(shown), 'job')}"
    return Fold("environment", Safe(_macro("fold", title, Safe(_macro("environments", rows)))), SHARED)


def dropped(left_out: Sequence[Fold]) -> list[str]:
    """Return the names of sections left out."""
    return list(dict.fromkeys(fold.name for fold in left_out))


def _rest(rows: Sequence[Row]) -> str:
    more = len(rows) - _MOST_FOLDED
    return f"\n… and {more} more: `report.json` has them all.\n" if more > 0 else ""


def _macro(name: str, *arguments: Any) -> str:
    return str(getattr(jinja().get_template("sections.md.j2").module, name)(*arguments))


@cache
def jinja() -> Environment:
    """Return the templates, and what they may call."""
    # HTML is not the target: `_finalize` escapes for Markdown
    found = templates(Path(__file__).with_name("templates"), _finalize, autoescape=False, keep_trailing_newline=True)
    found.filters |= {
        "markdown": escape.markdown, "code": escape.code, "cell": escape.cell, "prose": escape.prose,
        "fence": escape.fence, "amount": _amount, "safe": Safe,
    }  # fmt: skip
    found.globals |= {
        "mark": _mark, "numbers": _numbers, "moved": _moved, "subject": _subject, "launched": _launched, "why": _why,
        "tolerance": _tolerance,
    }  # fmt: skip
    return found


def templates(folder: Path, finalize: Callable[[Any], Any], **more: Any) -> Environment:
    """Return the templates of a folder; `finalize` sees what they print."""
    found = Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, finalize=finalize, trim_blocks=True,
        lstrip_blocks=True, **more,
    )  # fmt: skip
    found.globals |= {
        "class_count": words.class_count, "count": count, "one_in_a_hundred": view.ONE_IN_A_HUNDRED, "show": show,
        "percent": show_share, "times": words.times, "use_tables": uses.tables,
    }  # fmt: skip
    return found


def _finalize(value: Any) -> str:
    """Raises TypeError for all but text and integers."""
    if isinstance(value, Safe):
        return value
    if isinstance(value, str) or type(value) is int:
        # As it stands inside a line: its own spaces at the ends belong to the template.
        text = str(value)
        lead, trail = text[: len(text) - len(text.lstrip(" "))], text[len(text.rstrip(" ")) :]
        return f"{lead}{escape.markdown(text)}{trail}" if text.strip(" ") else text
    raise TypeError(f"a template prints {value!r}: format it first")


_MARKS: dict[Effect, str] = {"fail": "❌", "undecided": "🟡", "warn": "⚠️", "pass": "✅"}


def _mark(row: Row) -> str:
    return _MARKS[row.effect]


def _subject(shown: View, row: Row) -> Safe:
    return Safe(" ".join(filter(None, (escape.name(row.case) + shown.on(row.device), escape.markdown(row.metric, 80)))))


def _numbers(shown: View, row: Row, failing: bool) -> Safe:
    """A line each: a comment is 390 pixels wide on a phone."""
    base, head, limit = shown.base(row), shown.head(row), shown.limit(row)
    values = f"{_amount(base)}{_NO_BREAK}→{_NO_BREAK}{_amount(head)}" if shown.comparing else _amount(head)
    lines = [values] if {base, head} != {"–"} else []
    lines += [_change(shown, row, failing)] if row.change is not None or row.proved else []
    lines += [f"limit{_NO_BREAK}{_amount(limit)}"] if limit != "–" else []
    return Safe("<br>".join(lines) or "–")


def _moved(names: Sequence[str], jobs: Sequence[tuple[View, Row | None]]) -> Safe:
    """A line for each job: a comment is 390 pixels wide on a phone."""
    lines = []
    for name, (shown, row) in zip(names, jobs, strict=True):
        if row is not None:
            answered = row.class_ not in UNANSWERED and row.change is not None and math.isfinite(row.change)
            told = shown.change(row, interval=False) if answered else row.class_
            lines.append(f"{_mark(row)}{_NO_BREAK}{_amount(told)} · {escape.cell(name, 40)}")
    return Safe("<br>".join(lines))


def _launched(kernel: KernelRow, side: Side) -> Safe:
    if side not in kernel.count:
        return Safe("–")
    return _amount(f"{words.times(kernel.count[side])} · {show(kernel.seconds[side], 's')}")


def _change(shown: View, row: Row, failing: bool) -> Safe:
    number, space, rest = shown.change(row).partition(" %")
    if not (failing and space):
        return escape.markdown(shown.change(row))
    return Safe(f"**{_amount(number + space)}**{' ' if rest else ''}{escape.markdown(rest)}")


def _why(shown: View, row: Row) -> Safe:
    reason = escape.prose(words.because(row)) if row.reason else ""
    parts = [f"{row.class_}: {reason}" if reason else row.class_]
    if row.file and row.effect != "pass":
        parts.append(escape.name(f"{row.file}:{row.line}" if row.line else row.file))
    if page := words.help_page(row):
        parts.append(f"[what to do]({page})")
    log = shown.log(row)
    if log:
        parts.append(f"log {escape.code(log)}")
    return Safe(" · ".join(parts))


def _amount(text: str) -> Safe:
    return Safe(escape.markdown(text).replace(" ", _NO_BREAK).replace(f"{_NO_BREAK}(", " ("))


def _tolerance(value: float | dict[str, float] | None) -> str:
    if isinstance(value, dict):  # whose names are the suite's
        return escape.code(", ".join(f"{name}: {one:g}" for name, one in value.items()))
    return "–" if value is None else f"{value:g}"
