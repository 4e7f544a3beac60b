"""Reads the raw page of ncu as CSV: what `ncu --import REPORT --page raw --csv` prints."""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from perfci.evidence.ncu_launch import (
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
from perfci.model.evidence import Fault, FaultKind
from perfci.system.files import one_line

_NAME, _CC, _BLOCK_SIZE, _GRID_SIZE = "Kernel Name", "CC", "Block Size", "Grid Size"
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DIMENSIONS = re.compile(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)")


def read(path: Path, name: str) -> Content:
    """The raw page: a row of names, a row of units, a row for each launch; other lines of ncu around them.

    A file that ends within a row is told so; one that ends between rows looks whole. `name`: what faults call it.
    """
    again = "ncu --import REPORT --page raw --csv --print-units base"
    launches: list[Launch] = []
    faults: list[Fault] = []
    header: list[str] | None = None
    units: list[str] | None = None
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.reader(_records(file), strict=True):
                if header is None:
                    if "Metric Name" in row and "Metric Value" in row:
                        text = f"{name}: is not the raw page of ncu, but one row for each metric"
                        return Content(source="csv", faults=[fault("unreadable", text, again)])
                    if "ID" in row and _NAME in row:
                        header = row
                elif len(row) != len(header):
                    faults.append(fault("incomplete", f"{name}: the row of launch {len(launches) + 1} is cut", again))
                    break
                elif units is None:
                    units = row
                elif len(launches) == MOST_LAUNCHES:
                    text = f"{name}: launches beyond the first {MOST_LAUNCHES} were not read"
                    faults.append(fault("incomplete", text, "profile fewer kernels"))
                    break
                else:
                    launches.append(_from_row(header, units, row))
    except csv.Error as error:
        kind: FaultKind = "incomplete" if launches else "unreadable"
        faults.append(fault(kind, f"{name}: broken after {len(launches)} launches ({error})", again))
    except OSError as error:
        faults.append(fault("unreadable", f"{name}: cannot be read: {error.strerror}", "profile again"))
    if not faults and header is None:
        faults.append(fault("unreadable", f"{name}: neither a report of ncu nor its raw page as CSV", again))
    elif not faults and not launches:
        faults.append(fault("empty", f"{name}: holds no kernel", EMPTY_REMEDY))
    return Content(launches, faults, "csv")


def _records(file: Iterable[str]) -> Iterator[str]:
    """Lines of the table, without ncu's own (`==PROF== …`), without NUL and without empty ones; the last one must end.

    ncu quotes every field and writes no line break into one, so that a line is a row.
    """
    for line in file:
        if line.strip() and not line.startswith("=="):
            yield line.replace("\0", "�")


def _from_row(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Launch:
    cells = dict(zip(header, row, strict=True))
    unit = dict(zip(header, units, strict=True))
    values = {metric: (_parse(cells[metric]), unit[metric].strip()) for metric in METRICS if metric in cells}
    capability = capability_of(values)
    if capability is None and (match := re.fullmatch(r"(\d+)\.(\d+)", cells.get(_CC, ""))):
        capability = int(match[1]), int(match[2])
    return Launch(
        name=one_line(cells[_NAME]),
        nvtx=tuple(_nvtx(cells)),
        values=values,
        capability=capability,
        grid=triple_of(values, GRID) or _dimensions(cells.get(_GRID_SIZE, "")),
        block=triple_of(values, BLOCK) or _dimensions(cells.get(_BLOCK_SIZE, "")),
    )


def _parse(cell: str) -> float | None:
    """`1,243,749.33`, `3.88`, `38 (1; 2; 3)` with instances; None for `n/a`, `nan`, `inf`, nothing, anything else."""
    text = cell.split(" (", 1)[0].strip()
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
        if "Push/Pop_Range" in column or "Start/Stop_Range" in column:
            for text in re.findall(r'"([^"]*)"', cell):
                told = re.sub(r"^\d+:", "", text) if "Start/Stop_Range" in column else text
                match = _SAME.fullmatch(told) or _NOTHING.fullmatch(told)
                domain, name = match.groups() if match else (*told.split(":"), "", "")[:2]
                yield domain, name
