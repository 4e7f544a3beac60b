"""The report as GitHub Markdown: a pull-request comment, a job summary, `report.md`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from perfci.model.report import Report, Row
from perfci.model.units import show, significant
from perfci.render import escape, view, words
from perfci.render.escape import Safe
from perfci.render.view import View

LIMIT = 60_000
"""Characters; GitHub refuses comments of more than 65 536."""
MOST_ROWS = 20
_MOST_REMARKS = 12
_MOST_FOLDED = 50
_LEAST = 10_000
_LONGEST_COMMAND = 1_000


@dataclass(frozen=True)
class _Fold:
    """A folded section: what it is called when it must be left out, and its Markdown."""

    name: str
    text: Safe


def render(report: Report, limit: int = LIMIT) -> str:
    """Markdown of at most `limit` characters, always whole; what was left out to keep to it is named.

    Sections go first, from the last one on (those that fit after all stay), then remarks, then rows. Raises
    ValueError for a limit under 10 000: verdict, counts and command always fit into that, however hostile the
    text in them.
    """
    if limit < _LEAST:
        raise ValueError(f"limit={limit}: a report needs at least {_LEAST} characters")
    shown = View(report)
    folds = _folds(shown)
    rows, remarks = shown.failing[:MOST_ROWS], shown.remarks[:_MOST_REMARKS]
    bare = len(_page(shown, rows, remarks, [], folds))
    while bare > limit and (rows or remarks):
        rows, remarks = (rows, remarks[: len(remarks) // 2]) if remarks else (rows[: len(rows) // 2], remarks)
        bare = len(_page(shown, rows, remarks, [], folds))
    kept = _fitting(folds, limit - bare)
    return _page(shown, rows, remarks, kept, [fold for fold in folds if fold not in kept])


def _fitting(folds: Sequence[_Fold], room: int) -> list[_Fold]:
    """The sections that fit into `room` characters: dropped from the last on, taken back where they fit."""
    kept = list(folds)
    while kept and sum(len(fold.text) + 1 for fold in kept) > room:
        kept.pop()
    for fold in folds[len(kept) :]:
        if sum(len(other.text) + 1 for other in kept) + len(fold.text) + 1 <= room:
            kept.append(fold)
    return kept


def _page(
    shown: View, rows: Sequence[Row], remarks: Sequence[str], folds: Sequence[_Fold], dropped: Sequence[_Fold]
) -> str:
    command = words.command_line(shown.report)
    page = (
        _environment()
        .get_template("report.md.j2")
        .render(
            view=shown,
            report=shown.report,
            command=command if len(command) <= _LONGEST_COMMAND else "",
            icon=_icon(shown),
            rows=rows,
            remarks=remarks,
            table=_table(shown, rows, failing=True) if rows else Safe(),
            folds=[fold.text for fold in folds],
            dropped=[fold.name for fold in dropped],
        )
    )
    return page.rstrip() + "\n"


def _icon(shown: View) -> str:
    if shown.report.verdict == "error":
        return "⛔"
    if shown.report.verdict == "fail":
        return "❌"
    return "⚠️" if shown.warnings or shown.failing else "✅"


def _folds(shown: View) -> list[_Fold]:
    """The folded sections that have something to say, in reading order, with their numbers in the summary."""
    found = []

    def add(name: str, title: str, body: str) -> None:
        found.append(_Fold(name, Safe(_macro("fold", title, Safe(body)))))

    for name, rows in (("warnings", shown.warnings), ("improvements", shown.improvements)):
        if rows:
            body: str = _table(shown, rows[:_MOST_FOLDED], failing=False)
            if len(rows) > _MOST_FOLDED:
                body = f"{body}\n… and {len(rows) - _MOST_FOLDED} more: `report.json` has them all.\n"
            one = name[:-1] if len(rows) == 1 else name
            add(name, f"{len(rows)} {one}" + (f": {view.by_class(rows)}" if name == "warnings" else ""), body)
    if shown.report.evidence:
        many = words.count(len(shown.report.evidence), "case")
        add("evidence", f"Evidence from profilers: {many}", _macro("evidence", shown))
    if shown.measured:
        body = _macro("measured", shown)
        if shown.other_measured:
            body += _macro("others", shown)
        add("measured values", words.count(len(shown.measured), "measured case"), body)
    if shown.device_pairs:
        add(
            "CPU against GPU",
            f"CPU against GPU: {words.count(len(shown.device_pairs), 'case')}",
            _macro("device_pairs", shown),
        )
    if shown.checked:
        add(
            "correctness",
            f"Correctness: {words.count(len(shown.checked), 'case')} checked",
            _macro("correctness", shown),
        )
    if shown.noisy:
        add("noise", f"Where noise comes from: {words.count(len(shown.noisy), 'case')}", _macro("noise", shown))
    add("environment", "Environment", _macro("environment", shown))
    if shown.measured or shown.report.rows:
        add("method", "How it was measured and decided", _macro("method", shown))
    return found


def _table(shown: View, rows: Sequence[Row], failing: bool) -> Safe:
    return Safe(_macro("rows_table", shown, rows, failing))


def _macro(name: str, *arguments: Any) -> str:
    return str(getattr(_environment().get_template("sections.md.j2").module, name)(*arguments))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # HTML is not the target: `_finalize` escapes for Markdown
    )
    environment.filters |= {
        "markdown": escape.markdown, "code": escape.code, "cell": escape.cell, "prose": escape.prose,
        "fence": escape.fence, "safe": Safe,
    }  # fmt: skip
    environment.globals |= {
        "class_count": words.class_count, "count": words.count, "one_in_a_hundred": view.ONE_IN_A_HUNDRED,
        "show": show, "mark": _mark, "change": _change, "why": _why, "tolerance": _tolerance,
        "percent": _percent, "times": _times,
    }  # fmt: skip
    return environment


def _finalize(value: Any) -> str:
    """Escape what a template prints, unless it is Safe. Raises TypeError for all but text and integers."""
    if isinstance(value, Safe):
        return value
    if isinstance(value, str) or type(value) is int:
        # As it stands inside a line: its own spaces at the ends belong to the template.
        text = str(value)
        lead, trail = text[: len(text) - len(text.lstrip(" "))], text[len(text.rstrip(" ")) :]
        return f"{lead}{escape.markdown(text)}{trail}" if text.strip(" ") else text
    raise TypeError(f"a template prints {value!r}: format it first")


_MARKS = {"fail": "❌", "warn": "⚠️", "pass": "✅"}


def _mark(row: Row) -> str:
    return _MARKS[row.effect]


def _change(shown: View, row: Row, failing: bool) -> Safe:
    """The change with its direction; its number in bold where it fails the run."""
    number, space, rest = shown.change(row).partition(" %")
    if not (failing and space):
        return escape.markdown(shown.change(row))
    return Safe(f"**{escape.markdown(number + space)}**{' ' if rest else ''}{escape.markdown(rest)}")


def _why(shown: View, row: Row) -> Safe:
    """The reason, with where the case stands and its log."""
    parts: list[str] = [escape.prose(words.because(row))] if row.reason else []
    if row.file and row.effect != "pass":
        parts.append(escape.code(f"{row.file}:{row.line}" if row.line else row.file))
    log = shown.log(row)
    if log:
        parts.append(f"log {escape.code(log)}")
    return Safe(" · ".join(parts) or "–")


def _times(count: float | None) -> str:
    return "–" if count is None else f"{significant(count)} ×" if count != int(count) else f"{int(count)} ×"


def _percent(share: float | None) -> str:
    return show(None if share is None else share * 100, "%")


def _tolerance(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
