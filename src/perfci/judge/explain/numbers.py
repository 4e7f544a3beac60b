"""Numbers of profiles, compared and put in words."""

import math

from perfci.judge.explain.thresholds import MANY
from perfci.model.text import plural
from perfci.model.units import percent, show, significant


def finite(number: float | None) -> float | None:
    """Return `number` where it is finite, else None."""
    return number if number is not None and math.isfinite(number) else None


def number(amount: float, unit: str = "") -> str:
    """Return a quantity, whole ones without decimal point."""
    if not unit and amount == int(amount) and abs(amount) < 1e5:
        return str(int(amount))
    return show(amount, unit)


def arrow(base: float, head: float, unit: str = "") -> str:
    """Return `64 → 96`, `16.9 → 42.2 MB`, `59.7 MB → 2.64 GB`."""
    before, after = number(base, unit), number(head, unit)
    if unit:
        short, _, suffix = before.rpartition(" ")
        if short and after.endswith(f" {suffix}"):
            before = short
    return f"{before} → {after}"


def times(base: float, head: float) -> str:
    """Return ` (44×)`, or nothing."""
    grown = finite(head / base) if base > 0 else None
    return f" ({significant(grown, 2)}×)" if grown is not None and MANY <= grown < 1e6 else ""


def counted(n: float, what: str) -> str:
    """Return `1 kernel`, `14 kernels`."""
    return f"{number(n)} {plural(n, what)}"


def moved(base: float | None, head: float | None, relative: float, least: float = 0.0) -> bool:
    """Tell whether they differ by more than `relative` of the smaller one, and by more than `least`."""
    if base is None or head is None:
        return False
    gap = abs(head - base)
    return math.isfinite(gap) and gap > least and gap > relative * min(abs(base), abs(head))


def gain(whole: float, part: float) -> str:
    """Return ` up to 9×`: how much faster without `part` of `whole`, or empty.

    Amdahl's bound 1 / (1 - part/whole), rounded down.
    """
    rest = whole - part
    if not 0 < part < whole or not math.isfinite(whole) or rest <= whole * 1e-3:
        return ""
    factor = whole / rest
    if factor < 1.1:  # it would read 1×
        return ""
    return f", up to {int(factor)}×" if factor >= MANY else f", up to {math.floor(factor * 10 + 1e-9) / 10:g}×"


def percent_of(part: float, whole: float) -> str:
    """Return `31.2 %`; `0 %` of nothing."""
    share = finite(part / whole) if whole > 0 else None
    return percent(min(share, 1.0)) if share is not None else "0 %"


def n_to(n: float, m: float, what: str) -> str:
    """Return `1 → 3 casts`."""
    return f"{number(n)} → {counted(m, what)}"


def pair(base: float | None, head: float | None) -> tuple[float, float] | None:
    """Return two quantities where both are known, else None."""
    return None if base is None or head is None else (base, head)
