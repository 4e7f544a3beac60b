"""Words that sentences share: directions are spelled out."""

import math

from perfci.model.text import one_line, printable
from perfci.model.units import SPEED, direction, percent, significant


def call_name(name: str) -> str:
    """Return a function's name as sentences hold it."""
    return f"`{one_line(printable(name).replace('`', chr(39)), 40)}`"


def show_clock(hertz: float) -> str:
    """1.3742e9 → `1.374 GHz`: 0.1 % can matter."""
    return f"{significant(hertz / 1e9, 4)} GHz"


def change_words(ratio: float, metric: str) -> str:
    """Return a ratio head/base in words: `3.1× slower`, `15.2 % slower`."""
    if ratio == 1 or not math.isfinite(ratio):
        return "the same" if ratio == 1 else "not comparable"
    word = direction(ratio, metric)
    if ratio >= 2:
        return f"{significant(ratio, 2)}× {word}"
    if ratio <= 0.5 and metric in SPEED:
        return f"{significant(1 / ratio, 2)}× {word}"
    return f"{percent(abs(ratio - 1))} {word}"


def still_worse(broken: str, was: str, base: float, head: float, *, metric: str) -> str:
    """Say how head breaks a bound that base breaks too."""
    words = change_words(head / base, metric) if base > 0 and head > 0 else "worse"
    return f"{broken}; base breaks it already ({was}), and head is {words} still"
