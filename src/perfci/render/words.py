"""Amounts, changes and commands in words, in plain text."""

import math
import re

from perfci.model.report import UNANSWERED, Class, Report, Row
from perfci.model.text import count
from perfci.model.units import direction, show_points, significant
from perfci.render.docs import link

_NOUNS: tuple[Class, ...] = ("regression", "violation", "improvement")

UNDECIDED_PAGE = "undecided.md"
"""A heading for each class without an answer."""


def help_page(row: Row) -> str:
    """Return the page on a row without an answer, or empty."""
    unanswered = row.effect == "undecided" or row.class_ in UNANSWERED
    return link(f"{UNDECIDED_PAGE}#{row.class_}") if unanswered else ""


def class_count(name: Class, number: int) -> str:
    """Return `2 regressions`, `46 unchanged`."""
    return count(number, name) if name in _NOUNS else f"{number} {name}"


def duration(seconds: float) -> str:
    """Return `4.2 s`, `2 min 40 s`, `1 h 3 min`."""
    if seconds < 59.5:
        return f"{significant(seconds, 2)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def times(number: float | None) -> str:
    """Return `2 ×`, `1.5 ×`; `–` for None."""
    return "–" if number is None else f"{significant(number)} ×" if number != int(number) else f"{int(number)} ×"


def plain(text: str) -> str:
    """Return a shown quantity without idle zeros, `5.00 ms` → `5 ms`."""
    return re.sub(r"(\.\d*?)0+(?=\D|$)", lambda match: match[1] if len(match[1]) > 1 else "", text)


def because(row: Row) -> str:
    """What profilers saw first, else the reason."""
    return f"{row.cause} · {row.reason}" if row.cause else row.reason


def relative(low: float, high: float, centre: float) -> str:
    """Return half of an interval as a share of its centre; empty without one."""
    points = show_points(low / abs(centre), high / abs(centre))
    return f"{points.removeprefix('±')} %" if points else ""


def moved(row: Row) -> str:
    """Name the direction in which a value moved, if known."""
    if row.change is None or not math.isfinite(row.change) or row.change == 1 or row.class_ == "unchanged":
        return ""
    if row.pairs and (row.interval is None or row.interval.holds(1)):
        return ""  # pairs, unlike what is counted, may not show whether it moved at all
    return direction(row.change, row.metric)


def bare_advice(report: Report) -> str:
    """Return the advice without its command."""
    return f"{report.advice.removesuffix(':')}." if report.advised else report.advice
