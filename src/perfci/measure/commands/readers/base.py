"""Shared by all readers: the file, and names and numbers out of it.

Files come from the code under test, so nothing of them is trusted: a file that is empty, torn, foreign or too large is
a ValueError of one line, and a value that is no finite number costs its case with a reason. Neither ever becomes a
zero.
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
"""Larger files are refused: float32 samples of this size are 16 million executions of one case."""
MAX_ID = 300
CLOCK_UNITS = {name: scale for name, scale in TIME_UNITS.items() if scale <= 1.0}

Statistic = Literal["samples", "mean", "median"]


@dataclass(frozen=True)
class Reported:
    """One case as a command reported it: values, or the reason why there are none."""

    case: str
    """Case id, `NAME` or `NAME/…`."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """Metric → its samples in the metric's unit; never empty lists, always finite."""
    work: Work | None = None
    reason: Reason | None = None
    statistic: Statistic = "samples"
    """Kind of the values of `time`: samples, or the one statistic that the file holds of them."""


@dataclass(frozen=True)
class About:
    """The origin of a file's numbers, as the file tells it; empty where it does not."""

    date: str = ""
    """ISO 8601."""
    host: str = ""
    cpu: str = ""
    cores: int = 0
    device: str = ""
    """Name of the GPU."""
    python: str = ""
    commit: str | None = None
    dirty: bool = False
    more: tuple[tuple[str, str], ...] = ()
    """Further facts, as name and value."""
    remarks: tuple[str, ...] = ()
    """Notes for a reader of the numbers."""


@dataclass(frozen=True)
class Format:
    """A file format that commands report in."""

    tool: str
    """Its name, as `reads:` takes it."""
    variable: str
    """Environment variable with the path of the file to write."""
    file: str
    """Name of that file."""
    options: str
    """Options that make the tool write it; empty where it has none."""
    read: Callable[[Path, str, Mapping[str, CustomMetric]], dict[str, Reported]]
    """Cases of a file by id, below a name where one is given. Raises ValueError, one line."""
    fits: Callable[[Any], bool] | None = None
    """True where a JSON document is of this format; None where files of it cannot be imported."""
    about: Callable[[Any], About] = lambda _: About()
    """Tells the origin of a document that fits."""


def read_bytes(path: Path) -> bytes:
    """Read the whole file. Raises ValueError as `open_regular` does."""
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:  # it grows
        raise ValueError(f"{path}: is larger than {MAX_BYTES >> 20} MiB: report fewer samples")
    return raw


def open_regular(path: Path) -> BinaryIO:
    """Open the file. Raises ValueError where it is missing, no plain file, or larger than MAX_BYTES."""
    try:
        if not path.is_file():  # before opening: a named pipe would block
            raise ValueError(f"{path}: no such file: the command wrote no results")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path}: is larger than {MAX_BYTES >> 20} MiB: report fewer samples")
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """Read the file as text. Raises ValueError where there is none in it, and as `read_bytes` does."""
    raw = read_bytes(path)
    if not raw.strip():
        raise ValueError(f"{path}: is empty: the command reported nothing")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no UTF-8 text (byte {error.start})") from None


def read_json(text: str, where: object) -> Any:
    """Parse the document in `text`. Raises ValueError, beginning with `where`."""
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
    """Return the JSON document that `tool` wrote. Raises ValueError where it does not fit, and as the others do."""
    root = read_json(read_text(path), path)
    if not fits(root):
        raise ValueError(f"{path}: is no result of {tool}: {remedy}")
    return root


def dig(value: Any, *keys: str) -> Any:
    """Return the value under these keys, one below the other; None where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text_at(value: Any, *keys: str) -> str:
    """Return the text under these keys as one line; empty where there is none."""
    found = dig(value, *keys)
    return one_line(found, 120) if isinstance(found, str) else ""


def dicts(value: Any, path: Path, tool: str) -> list[dict[str, Any]]:
    """Return a list of objects; null stands for an empty one. Raises ValueError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{path}: is no result of {tool}: a list of objects was expected")
    return value


def number(value: Any) -> float:
    """Return a JSON number as a float; NaN for anything else, infinite where it is too large."""
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
    """Times in seconds: the samples, or their mean where the file holds no list of them.

    Raises ValueError where there are none, or one is no finite positive number.
    """
    if not isinstance(samples, list):
        return [positive(mean, "mean")], "mean"
    found = [number(value) for value in samples]
    bad = sum(not (math.isfinite(value) and value > 0) for value in found)
    if bad or not found:
        raise ValueError(f"{bad} of {len(found)} {what} are no finite positive times" if found else f"no {what}")
    return found, "samples"


def declared(amounts: Mapping[str, Any], custom: Mapping[str, CustomMetric]) -> dict[str, float]:
    """Of what a tool counts, the numbers whose names the policy declares as metrics. Raises ValueError."""
    found = {}
    for name in custom.keys() & amounts.keys():
        found[name] = number(amounts[name])
        if not math.isfinite(found[name]):
            raise ValueError(f"{name} is {one_line(amounts[name], 40)!r}: no finite number")
    return found


def declared_times(amounts: Mapping[str, float], custom: Mapping[str, CustomMetric]) -> dict[str, float]:
    """Times in seconds by name → those that the policy declares as metrics, in their units. Raises ValueError."""
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
    """Return a name or value as a part of a case id: every other character becomes `_`."""
    text = re.sub(r"[^A-Za-z0-9_.+-]", "_", str(value))[:longest]
    return text if text.strip(".") else "_" * max(1, len(text))


def each_once(reported: Iterable[Reported], path: Path, remedy: str, nothing: str) -> dict[str, Reported]:
    """Return cases by id; two of the same id cost it with a reason. Raises ValueError where there is none."""
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
