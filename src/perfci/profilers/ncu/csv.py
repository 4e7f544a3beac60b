"""Reads the raw page of ncu as CSV: what `ncu --import REPORT --page raw --csv` prints."""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from perfci.model.profile import Fault, FaultKind
from perfci.model.text import escaped
from perfci.profilers.ncu.launch import (
    BLOCK,
    EMPTY_REMEDY,
    GRID,
    METRICS,
    MOST_LAUNCHES,
    Content,
    Launch,
    capability_of,
    fault,
    triple_of,
)

_ID, _NAME, _CC, _BLOCK_SIZE, _GRID_SIZE = "ID", "Kernel Name", "CC", "Block Size", "Grid Size"
_READ = frozenset({_ID, _NAME, _CC, _BLOCK_SIZE, _GRID_SIZE, *METRICS})
"""Columns that are kept, beside those of ranges."""
_RANGES = ("Push/Pop_Range", "Start/Stop_Range")
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_SURE = re.compile(
    r"[-+]?(?:\d+\.(?:\d{0,2}|\d{4,})|(?:0|\d{4,})\.\d{3}|\d{1,3}(?:,\d{3})+\.\d*|\d{1,3}(?:,\d{3}){2,}"
    r"|\d+\.\d*[eE][-+]?\d+)"
)
"""Matches what can only be a number with a decimal point; `3,456` and `3.456` can be either."""
_SWAPPED = str.maketrans(",.", ".,")
_CLEARLY = 10
"""So many times as many sure numbers of a page have the one mark for decimals as have the other."""
_DIMENSIONS = re.compile(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)")


def read(path: Path, name: str) -> Content:
    """Read the raw page: a row of names, a row of units, a row for each launch; other lines of ncu around them.

    A file that ends within a row is told so, and so are launches that are left out between others; one whose last
    launches are missing looks whole. A launch that stands twice counts once. ncu writes numbers in the way of its
    user's language: whether `3,456` has decimals shows in the page's other numbers, and where it does not, that is no
    number. `name`: what faults call the file.
    """
    again = "ncu --import REPORT --page raw --csv --print-units base"
    rows: list[dict[str, str]] = []
    faults: list[Fault] = []
    header: list[str] | None = None
    units: list[str] | None = None
    point = comma = 0
    counted: list[int] = []
    kept: list[tuple[int, str]] = []
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.reader(_records(file), strict=True):
                if header is None:
                    if "Metric Name" in row and "Metric Value" in row:
                        text = f"{name}: is not the raw page of ncu, but one row for each metric"
                        return Content(faults=[fault("unreadable", text, again)])
                    if _ID in row and _NAME in row:
                        header = row
                        counted = [at for at, column in enumerate(row) if "__" in column]
                        kept = [(at, column) for at, column in enumerate(row) if _kept(column)]
                elif len(row) != len(header):
                    faults.append(fault("incomplete", f"{name}: the row of launch {len(rows) + 1} is cut", again))
                    break
                elif units is None:
                    units = row
                elif len(rows) == MOST_LAUNCHES:
                    text = f"{name}: launches beyond the first {MOST_LAUNCHES} were not read"
                    faults.append(fault("incomplete", text, "profile fewer kernels"))
                    break
                else:
                    for cell in [row[at] for at in counted]:
                        # The least that _SURE asks for, so that most cells are checked once.
                        points, commas = "." in cell, "," in cell
                        if points or commas:
                            number = _number(cell)
                            if points or number.count(",") > 1:
                                point += _SURE.fullmatch(number) is not None
                            if commas or number.count(".") > 1:
                                comma += _SURE.fullmatch(number.translate(_SWAPPED)) is not None
                    rows.append({column: row[at] for at, column in kept})
    except csv.Error as error:
        kind: FaultKind = "incomplete" if rows else "unreadable"
        faults.append(fault(kind, f"{name}: broken after {len(rows)} launches ({error})", again))
    except OSError as error:
        faults.append(fault("unreadable", f"{name}: cannot be read: {error.strerror}", "profile again"))
    if not faults and header is None:
        faults.append(fault("unreadable", f"{name}: neither a report of ncu nor its raw page as CSV", again))
    elif not faults and not rows:
        faults.append(fault("empty", f"{name}: holds no kernel", EMPTY_REMEDY))
    rows, left_out = _once(rows)
    if left_out:
        faults.append(fault("incomplete", f"{name}: {left_out}", again))
    mark = "." if point > _CLEARLY * comma else "," if comma > _CLEARLY * point else ""
    unit = dict(zip(header or (), units or (), strict=False))
    return Content([_from_row(row, unit, mark) for row in rows], faults)


def _kept(column: str) -> bool:
    return column in _READ or any(one in column for one in _RANGES)


def _once(rows: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], str]:
    """Return the rows, each launch once, and what their numbers say is missing: ncu counts launches from 0."""
    told: list[dict[str, str]] = []
    by_number: dict[str, dict[str, str]] = {}
    differ = 0
    for row in rows:
        known = by_number.setdefault(row[_ID], row)
        if known is row:
            told.append(row)
        elif known != row:
            differ += 1
    numbers = {int(one) for one in by_number if one.isascii() and one.isdigit() and len(one) < 10}
    if differ:
        return told, f"{differ} launches have the number of another"
    if len(numbers) < len(told):
        return told, f"{len(told) - len(numbers)} launches have no number"
    missing = max(numbers, default=-1) + 1 - len(numbers)
    return told, f"{missing} of the launches up to number {max(numbers)} are missing" if missing else ""


def _records(file: Iterable[str]) -> Iterator[str]:
    """Yield lines of the table, without ncu's own (`==PROF== …`), without NUL and without empty ones; the last one must
    end.

    ncu quotes every field and writes no line break into one, so that a line is a row.
    """
    for line in file:
        if line.strip() and not line.startswith("=="):
            yield line.replace("\0", "�")


def _from_row(cells: Mapping[str, str], unit: Mapping[str, str], mark: str) -> Launch:
    values = {metric: (_parse(cells[metric], mark), unit[metric].strip()) for metric in METRICS if metric in cells}
    capability = capability_of(values)
    if capability is None and (match := re.fullmatch(r"(\d+)\.(\d+)", cells.get(_CC, ""))):
        capability = int(match[1]), int(match[2])
    return Launch(
        name=escaped(cells[_NAME]),
        nvtx=tuple(_nvtx(cells)),
        values=values,
        capability=capability,
        grid=triple_of(values, GRID) or _dimensions(cells.get(_GRID_SIZE, "")),
        block=triple_of(values, BLOCK) or _dimensions(cells.get(_BLOCK_SIZE, "")),
        unread={metric: cells[metric] or "empty" for metric, (value, _) in values.items() if value is None},
    )


def _number(cell: str) -> str:
    """Parse `1,243,749.33`, `3.88`; of `38 (1; 2; 3)` what stands before the instances."""
    return cell.split(" (", 1)[0].strip()


def _parse(cell: str, mark: str) -> float | None:
    """Parse a number; None for `n/a`, `nan`, `inf`, nothing, anything else, and for one that may mean two.

    `mark`: of decimals in this page, empty where that is not known.
    """
    text = _number(cell)
    if not mark and not text.isdigit():
        if _SURE.fullmatch(text):
            mark = "."
        elif _SURE.fullmatch(text.translate(_SWAPPED)):
            mark = ","
        else:
            return None
    if mark == ",":
        text = text.translate(_SWAPPED)
    if _PLAIN.fullmatch(text) or _THOUSANDS.fullmatch(text):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None
    return None


def _dimensions(cell: str) -> tuple[int, int, int] | None:
    match = _DIMENSIONS.fullmatch(cell.strip())
    if match is None:
        return None
    found = int(match[1]), int(match[2]), int(match[3])
    return found if all(0 < one < 2**32 for one in found) else None


_SAME = re.compile(r"([^:]*):(.+):[^:]*:[^:]*:[^:]*:[^:]*:[A-Za-z]+:\2")
_NOTHING = re.compile(r"([^:]*):(.+?)(?::none){6}")


def _nvtx(cells: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Ranges of a row: `1112  "perfci:NAME:none:none:RGB:0xff:REGISTERED:NAME" `, one quoted text for each.

    Behind domain and name stand type and value of the payload, of the colour and of the message.
    """
    for column, cell in cells.items():
        if any(one in column for one in _RANGES):
            for text in re.findall(r'"([^"]*)"', cell):
                told = re.sub(r"^\d+:", "", text) if _RANGES[1] in column else text
                match = _SAME.fullmatch(told) or _NOTHING.fullmatch(told)
                domain, name = match.groups() if match else (*told.split(":"), "", "")[:2]
                yield domain, name
