"""Shared by all readers: the file, and names and numbers out of it.

Files come from the code under test: an empty, torn, foreign or too large one is a ValueError of one line, and a value
that is no finite number costs its case. Neither ever becomes a zero.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from perfci.model.metrics import CustomMetric
from perfci.model.results import Reason, ReasonKind, Work
from perfci.model.text import one_line
from perfci.model.units import TIME_UNITS

MAX_BYTES = 64 * 2**20
"""float32 samples of this size are 16 million executions of one case."""
MAX_ID = 300
CLOCK_UNITS = {name: scale for name, scale in TIME_UNITS.items() if scale <= 1.0}

Statistic = Literal["samples", "mean", "median"]


@dataclass(frozen=True)
class Reported:
    """A reported case."""

    case: str
    """`NAME` or `NAME/…`."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """Metric → finite samples in its unit."""
    work: Work | None = None
    reason: Reason | None = None
    statistic: Statistic = "samples"
    """Of `time`: samples, or the one statistic that the file holds."""


@dataclass(frozen=True)
class About:
    """The origin of a file's numbers."""

    date: str = ""
    """ISO 8601."""
    host: str = ""
    cpu: str = ""
    cores: int = 0
    device: str = ""
    python: str = ""
    commit: str | None = None
    dirty: bool = False
    more: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """A file format of reports."""

    tool: str
    variable: str
    file: str
    options: str
    """Make the tool write the file."""
    read: Callable[..., dict[str, Reported]]
    """File, name and the policy's metrics → cases by id, below the name where given. `printed` ones also take
    `columns`. Raises ValueError, one line."""
    fits: Callable[[Any], bool] | None = None
    """Recognises a JSON document; None where its files cannot be imported."""
    about: Callable[[Any], About] = lambda _: About()
    """Tells the origin of a document that fits."""
    printed: bool = False
    """Stands in what a command prints, where its line does not name `variable`."""


def read_bytes(path: Path) -> bytes:
    """Raises ValueError as `open_regular` does."""
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:  # it grows
        raise ValueError(f"{path}: is larger than {MAX_BYTES >> 20} MiB: report fewer samples")
    return raw


def open_regular(path: Path) -> BinaryIO:
    """Raises ValueError for a missing, special or large file."""
    try:
        if not path.is_file():  # before opening: a named pipe would block
            raise ValueError(f"{path}: no such file: the command wrote no results")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path}: is larger than {MAX_BYTES >> 20} MiB: report fewer samples")
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """Raises ValueError for an empty file, and as `read_bytes`."""
    raw = read_bytes(path)
    if not raw.strip():
        raise ValueError(f"{path}: is empty: the command reported nothing")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no UTF-8 text (byte {error.start})") from None


def read_json(text: str, where: object) -> Any:
    """Raises ValueError, beginning with `where`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: is nested too deeply to be a result") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: is torn or no JSON ({error.msg} at line {error.lineno} column {error.colno})"
        ) from None
    except ValueError as error:  # an integer of more than 4300 digits
        raise ValueError(f"{where}: {one_line(error, 120)}") from None


def read_document(path: Path, fits: Callable[[Any], bool], tool: str, remedy: str) -> Any:
    """Return `tool`'s JSON document. Raises ValueError where it does not fit, and as the others."""
    root = read_json(read_text(path), path)
    if not fits(root):
        raise ValueError(f"{path}: is no result of {tool}: {remedy}")
    return root


def dig(value: Any, *keys: str) -> Any:
    """Return the value under nested keys, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text_at(value: Any, *keys: str) -> str:
    """Return the text under nested keys as one line, or empty."""
    found = dig(value, *keys)
    return one_line(found, 120) if isinstance(found, str) else ""


def dicts(value: Any, path: Path, tool: str) -> list[dict[str, Any]]:
    """Return a list of objects; null becomes an empty one. Raises ValueError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{path}: is no result of {tool}: a list of objects was expected")
    return value


def number(value: Any) -> float:
    """Return a JSON number; NaN for anything else, infinite where too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def positive(value: Any, what: str) -> float:
    """Return a finite positive number. Raises ValueError, naming `what`."""
    found = number(value)
    if not (math.isfinite(found) and found > 0):
        raise ValueError(f"{what} is {one_line(value, 40)!r}: no finite positive number")
    return found


def times(samples: Any, mean: Any, what: str) -> tuple[list[float], Statistic]:
    """Return seconds: samples, else their mean. Raises ValueError unless finite and positive."""
    if not isinstance(samples, list):
        return [positive(mean, "mean")], "mean"
    found = [number(value) for value in samples]
    bad = sum(not (math.isfinite(value) and value > 0) for value in found)
    if bad or not found:
        raise ValueError(f"{bad} of {len(found)} {what} are no finite positive times" if found else f"no {what}")
    return found, "samples"


def declared(amounts: Mapping[str, Any], custom: Mapping[str, CustomMetric]) -> dict[str, float]:
    """Return the counts that the policy declares as metrics. Raises ValueError."""
    found = {}
    for name in custom.keys() & amounts.keys():
        found[name] = number(amounts[name])
        if not math.isfinite(found[name]):
            raise ValueError(f"{name} is {one_line(amounts[name], 40)!r}: no finite number")
    return found


def declared_times(amounts: Mapping[str, float], custom: Mapping[str, CustomMetric]) -> dict[str, float]:
    """Convert declared times from seconds. Raises ValueError."""
    found = {}
    for name in custom.keys() & amounts.keys():
        unit = custom[name].unit
        if unit not in CLOCK_UNITS:
            raise ValueError(f"metrics.{name}: is a time, and {unit!r} is no unit of time: write unit: s")
        found[name] = amounts[name] / CLOCK_UNITS[unit]
    return found


def case_id(name: str, parts: Iterable[str]) -> str:
    """Return `NAME/PART/…`; without a name the parts alone."""
    return "/".join([*([name] if name else []), *parts])[:MAX_ID]


def plain(value: Any, longest: int = 80) -> str:
    """Return a part of a case id: other characters become `_`."""
    text = re.sub(r"[^A-Za-z0-9_.+-]", "_", str(value))[:longest]
    return text if text.strip(".") else "_" * max(1, len(text))


def each_once(reported: Iterable[Reported], path: Path, remedy: str, nothing: str) -> dict[str, Reported]:
    """Return cases by id; a duplicate costs its case. Raises ValueError for none."""
    found: dict[str, Reported] = {}
    for one in reported:
        twice = Reported(one.case, reason=reason("protocol", f"two benchmarks have this id: {remedy}"))
        found[one.case] = twice if one.case in found else one
    if not found:
        raise ValueError(f"{path}: holds no measurement: {nothing}")
    return found


def reason(kind: ReasonKind, text: str) -> Reason:
    """Return a reason whose text is one line."""
    return Reason(kind=kind, text=one_line(text, 500))
