"""Quantities as people write them (`2%`, `200ns`, `3m`, `8GiB`, `2TB/s`) and read them."""

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_PRICE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,4})?) ([A-Z]{3})")
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")

TIME_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
BOUND_UNITS = {name: scale for name, scale in TIME_UNITS.items() if name != "m"}
"""`m` is rather milli than minutes there."""
SIZE_UNITS = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
RATE_UNITS = {f"{name}/s": scale for name, scale in SIZE_UNITS.items()}
COUNTED = ("", "items", "samples", "tokens", "tok")
"""Counted in a rate: these stand for themselves."""
COUNT_UNITS = {
    f"{prefix}{what}/s": scale for what in COUNTED for prefix, scale in {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}.items()
}
SPEED = ("time", "cycles")
"""More is slower, in words."""
CLOCK_UNITS = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
FLOP_UNITS = {"GFLOP/s": 1e-3, "TFLOP/s": 1.0, "PFLOP/s": 1e3}


def split(text: str) -> tuple[float, str]:
    """`"200ns"` → `(200.0, "ns")`. Raises ValueError without a finite number in front."""
    match = _NUMBER.match(text)
    if not match or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} does not begin with a number")
    return float(match[1]), match[2]


def item_of(text: object) -> str:
    """Return what a rate counts, such as `samples`."""
    word = split(text)[1].removesuffix("/s").lstrip("kMG") if isinstance(text, str) else ""
    return word if word in COUNTED else ""


def same_items(one: str, other: str) -> bool:
    """Tell whether both can mean the same: `items` fits all, `tok` are `tokens`."""
    plain = {"tok": "tokens", "": "items"}
    names = {plain.get(word, word) for word in (one, other)}
    return len(names) == 1 or "items" in names


def parse(value: Any, units: dict[str, float], example: str) -> float:
    """Read a quantity; `units`: name → factor. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"write it with its unit, such as {example!r}")
    number, unit = split(value)
    if unit not in units:
        raise ValueError(f"{value!r} has no known unit: write it like {example!r} ({', '.join(units)})")
    return number * units[unit]


def parse_percent(value: Any) -> float:
    """`"2%"` → 0.02. Raises ValueError without a percent sign, or outside [0 %, 1000 %]."""
    share = parse(value, {"%": 0.01}, "2%")
    if not 0 <= share <= 10:
        raise ValueError(f"{value!r} is not between 0% and 1000%")
    return share


def parse_duration(value: Any) -> float:
    """`"200ns"`, `"3m"` → seconds, at least 0. Raises ValueError."""
    seconds = parse(value, TIME_UNITS, "30s")
    if seconds < 0:
        raise ValueError(f"{value!r} is negative")
    return seconds


def parse_short(value: Any) -> float:
    """`"200ns"`, `"5ms"` → seconds, at least 0. Raises ValueError, for `m` too."""
    parse(value, BOUND_UNITS, "200ns")
    return parse_duration(value)


def parse_size(value: Any) -> int:
    """`"8GiB"` → bytes, at least 1. Raises ValueError."""
    size = parse(value, SIZE_UNITS, "8GiB")
    if size < 1:
        raise ValueError(f"{value!r} is less than a byte")
    return int(size)


def parse_price(value: Any) -> tuple[float, str]:
    """`"3.50 USD"` → (3.5, `USD`). Raises ValueError."""
    match = _PRICE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no price: write it like '3.50 USD'")
    return float(match[1]), match[2]


def _price(value: Any) -> str:
    parse_price(value)
    return str(value)


def _write(value: float, units: dict[str, float], keep: tuple[str, ...]) -> str:
    for name in keep:
        number = round(value / units[name], 9)
        if abs(number) >= 1:
            return f"{number:g}{name}"
    name = keep[-1]
    return f"{value / units[name]:g}{name}"


def pattern(units: Iterable[str], sign: str = r"\+?", digits: str = r"(\d+\.?\d*|\.\d+)") -> str:
    """Return an expression for JSON schemas."""
    return rf"^\s*{sign}{digits}([eE][+-]?\d+)?\s*({'|'.join(units)})\s*$"


def _written(units: Iterable[str], examples: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern(units), "examples": examples})


Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(lambda v: limit_percent(v).replace(" ", ""), return_type=str),
    _written(["%"], ["2%", "0.5%"]),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda v: _write(v, TIME_UNITS, ("s", "ms", "us", "ns")), return_type=str),
    _written(TIME_UNITS, ["200ns", "30s", "3m"]),
]
ShortDuration = Annotated[
    float,
    BeforeValidator(parse_short),
    PlainSerializer(lambda v: _write(v, TIME_UNITS, ("s", "ms", "us", "ns")), return_type=str),
    _written(BOUND_UNITS, ["200ns", "5ms"]),
]
"""Of what is compared with measured times."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(lambda v: f"{v}B", return_type=str),
    _written(SIZE_UNITS, ["8GiB", "500MB"]),
]

Price = Annotated[
    str,
    BeforeValidator(_price),
    WithJsonSchema({"type": "string", "pattern": f"^{_PRICE.pattern}$", "examples": ["3.50 USD"]}),
]
"""With its currency's code (ISO 4217)."""


def significant(value: float, digits: int = 3) -> str:
    """Write to `digits` significant digits; with an exponent where hard to read."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


_SHOWN = {
    "s": {name: TIME_UNITS[name] for name in ("s", "ms", "µs")},
    "B": {name: SIZE_UNITS[name] for name in ("TB", "GB", "MB", "kB")},
    "B/s": {name: RATE_UNITS[name] for name in ("TB/s", "GB/s", "MB/s", "kB/s")},
    "Hz": {name: CLOCK_UNITS[name] for name in ("GHz", "MHz", "kHz")},
    "TFLOP/s": {"TFLOP/s": 1.0},
}
"""Unit → its larger ones, in which people read it."""
_LEAST = {"s": ("ns", 1e-9), "TFLOP/s": ("GFLOP/s", 1e-3)}
"""What is less; else the unit itself."""


def show(value: float | None, unit: str) -> str:
    """`48.5 µs`, `3.35 TB/s`, `788 TFLOP/s`, `12.3 k tokens/s`; `–` for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if unit == "x":
        return f"{significant(value)}x"
    if not unit and value == int(value) and abs(value) < 1e5:
        return f"{int(value)}"  # a count
    shown = _SHOWN.get(unit) or {f"{prefix} {unit}": scale for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3))}
    name, scale = next((one for one in shown.items() if abs(value) >= one[1] * 0.9995), _LEAST.get(unit, (unit, 1.0)))
    return f"{significant(value / scale)} {name}".rstrip()


def percent(share: float) -> str:
    """Show a share: 0.152 → `15.2 %`, 0.0213 → `2.1 %`."""
    value = share * 100
    return f"{significant(value, 3 if value >= 10 else 2)} %"


def limit_percent(share: float) -> str:
    """0.02 → `2 %`, as it was written."""
    return f"{round(share * 100, 9):g} %"


def noise_percent(share: float) -> str:
    """Show an estimate: 0.0234 → `2.3 %`; nothing under 0.001 %."""
    return "0 %" if share < 1e-5 else f"{float(f'{share * 100:.2g}'):g} %"


def show_share(share: float | None) -> str:
    """0.0512 → `5.12 %`; `–` for None."""
    return show(None if share is None else share * 100, "%")


def show_change(ratio: float | None) -> str:
    """A ratio head/base: 1.021 → `+2.1 %`."""
    if ratio is None or not math.isfinite(ratio):
        return "–"
    percent = (ratio - 1) * 100
    digits = 0 if abs(percent) >= 100 else 1 if abs(percent) >= 10 else 2
    return f"{percent:+.{digits}f} %"


def show_points(low: float, high: float) -> str:
    """Show half of a ratio's interval in percentage points: `±0.4`; empty without an end."""
    points = (high - low) / 2 * 100
    return f"±{significant(points, 1 if points < 1 else 2)}" if math.isfinite(points) else ""


def show_span(ratio: float | None, low: float, high: float) -> str:
    """Show a ratio head/base with its interval: `+2.1 % (±0.4)`."""
    points = show_points(low, high)
    return f"{show_change(ratio)} ({points})" if points else show_change(ratio)


def direction(ratio: float, metric: str) -> str:
    """Return where a ratio other than 1 moved a metric: `slower`, `faster`; `higher`, `lower`."""
    more, less = ("slower", "faster") if metric in SPEED else ("higher", "lower")
    return more if ratio > 1 else less


def show_budget(seconds: float) -> str:
    """Show seconds as a policy has them, rounded up: `50s`, `4m`."""
    return f"{math.ceil(seconds)}s" if seconds <= 90 else f"{math.ceil(seconds / 60)}m"
