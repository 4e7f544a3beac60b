"""Reads ncu's CSV: the raw page, and the details with a row for each metric."""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perfci.model.profile import Fault, FaultKind
from perfci.model.text import escaped
from perfci.profilers.ncu.launch import (
    BLOCK,
    DEVICE_NAME,
    EMPTY_REMEDY,
    GRID,
    METRICS,
    MOST_READ,
    Content,
    Launch,
    capability_of,
    fault,
    triple_of,
)

_ID, _NAME, _CC, _BLOCK_SIZE, _GRID_SIZE = "ID", "Kernel Name", "CC", "Block Size", "Grid Size"
_TOLD = frozenset({_ID, _NAME, _CC, _BLOCK_SIZE, _GRID_SIZE, DEVICE_NAME})
_RANGES = ("Push/Pop_Range", "Start/Stop_Range")
_METRIC, _UNIT, _VALUE = "Metric Name", "Metric Unit", "Metric Value"
"""Columns of the details."""
LABELS = {
    "Duration": "gpu__time_duration.sum",
    "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Tensor (All)": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
}
"""Label in the details → metric, from the section files of Nsight Compute 2022.3."""
_SHARE, _RATE = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "dram__bytes.sum.per_second"
"""Both are called Memory Throughput there: percent, and bytes a second."""
_PLAIN = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_SURE = re.compile(
    r"[-+]?(?:\d+\.(?:\d{0,2}|\d{4,})|(?:0|\d{4,})\.\d{3}|\d{1,3}(?:,\d{3})+\.\d*|\d{1,3}(?:,\d{3}){2,}"
    r"|\d+\.\d*[eE][-+]?\d+)"
)
"""Matches only a number with a decimal point; `3,456` and `3.456` can be either."""
_CLEARLY = 10
"""Times as many sure numbers of a page for one decimal mark as for the other, at least."""
_SWAPPED = str.maketrans(",.", ".,")
_DIMENSIONS = re.compile(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)")


class _Row(NamedTuple):
    cells: dict[str, str]
    units: dict[str, str]


class _Page:
    def __init__(self, header: list[str], metrics: Sequence[str]) -> None:
        self.metrics = frozenset(metrics)
        self.launches: dict[str, _Row] = {}
        """By number."""
        self.details = _METRIC in header and _VALUE in header
        self.clashes = 0
        """Rows with another launch's number, or another value of a launch's metric."""
        self._header = header
        self._last = max(map(header.index, (_ID, _NAME, _METRIC, _VALUE))) if self.details else 0
        self._counted = [at for at, column in enumerate(header) if "__" in column or column == _VALUE]
        self._kept = [(at, column) for at, column in enumerate(header) if self._keeps(column)]
        self._units: dict[str, str] | None = None
        self._marks: Counter[str] = Counter()

    @property
    def mark(self) -> str:
        points, commas = self._marks["."], self._marks[","]
        return "." if points > _CLEARLY * commas else "," if commas > _CLEARLY * points else ""

    def fits(self, row: Sequence[str]) -> bool:
        """A row of details ends with its value, or with a rule's words."""
        whole = len(row) == len(self._header)
        return whole or (self.details and self._last < len(row) < len(self._header))

    def add(self, row: Sequence[str]) -> bool:
        """False for a launch too many."""
        if not self.details and self._units is None:
            self._units = dict(zip(self._header, row, strict=True))
            return True
        cells = {column: row[at] for at, column in self._kept if at < len(row)}
        launch = self.launches.get(cells[_ID])
        if launch is None:
            if len(self.launches) == MOST_READ:
                return False
            launch = self.launches[cells[_ID]] = _Row({}, self._units or {})
        self._marks.update(_sure_mark(_number(row[at])) for at in self._counted if at < len(row))
        told = dict(zip(self._header, row, strict=False)) if self.details else {}
        if told and (metric := self._metric(told[_METRIC], told.get(_UNIT, ""))):
            cells |= {metric: told[_VALUE]}
            launch.units.setdefault(metric, told.get(_UNIT, ""))
        self.clashes += any(launch.cells.setdefault(name, cell) != cell for name, cell in cells.items())
        return True

    def _keeps(self, column: str) -> bool:
        return column in _TOLD or column in self.metrics or any(one in column for one in _RANGES)

    def _metric(self, label: str, unit: str) -> str:
        if label == "Memory Throughput":
            return _SHARE if unit == "%" else _RATE
        return LABELS.get(label, label if label in self.metrics else "")


def read(path: Path, name: str, metrics: Sequence[str] = METRICS) -> Content:
    """Read `metrics` of a page, which may have ncu's own lines around it.

    A fault tells of a file that ends within a row, and of launches left out between others; missing last launches
    cannot be seen. ncu writes numbers in its user's locale: whether `3,456` has decimals must show in the page's other
    numbers, else it is no number.
    """
    again = "ncu --import REPORT --page raw --csv --print-units base"
    faults: list[Fault] = []
    page: _Page | None = None

    def seen() -> int:
        return len(page.launches) if page is not None else 0

    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.reader(_records(file), strict=True):
                if page is None:
                    page = _Page(row, metrics) if _ID in row and _NAME in row else None
                    if page is not None and page.details and not {_GRID_SIZE, _BLOCK_SIZE} <= {*row}:
                        text = f"{name}: a page of details that tells no grid and block, as of ncu before 2023"
                        return Content(faults=[fault("unreadable", text, again)])
                elif not page.fits(row):
                    faults.append(fault("incomplete", f"{name}: the row of launch {seen() + 1} is cut", again))
                    break
                elif not page.add(row):
                    text = f"{name}: launches beyond the first {MOST_READ} were not read"
                    faults.append(fault("incomplete", text, "profile fewer kernels"))
                    break
    except csv.Error as error:
        kind: FaultKind = "incomplete" if seen() else "unreadable"
        faults.append(fault(kind, f"{name}: broken after {seen()} launches ({error})", again))
    except OSError as error:
        faults.append(fault("unreadable", f"{name}: cannot be read: {error.strerror}", "profile again"))
    if not faults and page is None:
        faults.append(fault("unreadable", f"{name}: neither a report of ncu nor a page of it as CSV", again))
    elif not faults and not seen():
        faults.append(fault("empty", f"{name}: holds no kernel", EMPTY_REMEDY))
    if page is None:
        return Content(faults=faults)
    if left_out := _left_out(page):
        faults.append(fault("incomplete", f"{name}: {left_out}", again))
    return Content([_from_row(row.cells, row.units, page.mark, metrics) for row in page.launches.values()], faults)


def _left_out(page: _Page) -> str:
    if page.clashes:
        return f"{page.clashes} rows are of a launch with the number of another"
    numbers = {int(one) for one in page.launches if one.isascii() and one.isdigit() and len(one) < 10}
    if len(numbers) < len(page.launches):
        return f"{len(page.launches) - len(numbers)} launches have no number"
    missing = max(numbers, default=-1) + 1 - len(numbers)
    return f"{missing} of the launches up to number {max(numbers)} are missing" if missing else ""


def _records(file: Iterable[str]) -> Iterator[str]:
    """Without ncu's own lines (`==PROF== …`), NUL and empty ones: ncu writes no line break into a field."""
    for line in file:
        if line.strip() and not line.startswith("=="):
            # A file that ends behind a comma is cut there, and its last cell not empty.
            yield line.removesuffix(",").replace("\0", "�")


def _from_row(cells: Mapping[str, str], unit: Mapping[str, str], mark: str, metrics: Sequence[str]) -> Launch:
    values = {metric: (_parse(cells[metric], mark), unit[metric].strip()) for metric in metrics if metric in cells}
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
        device=escaped(cells.get(DEVICE_NAME, ""))[:200],
        unread={metric: cells[metric] or "empty" for metric, (value, _) in values.items() if value is None},
    )


def _number(cell: str) -> str:
    """What stands before the instances of `38 (1; 2; 3)`."""
    return cell.split(" (", 1)[0].strip()


def _sure_mark(number: str) -> str:
    if number.isdigit():
        return ""
    if _SURE.fullmatch(number):
        return "."
    return "," if _SURE.fullmatch(number.translate(_SWAPPED)) else ""


def _parse(cell: str, mark: str) -> float | None:
    """None for no number, and what may mean two."""
    text = _number(cell)
    mark = mark or _sure_mark(text)
    if not mark and not text.isdigit():
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
    """Domain and name of `1112 "perfci:NAME:none:none:RGB:0xff:REGISTERED:NAME" `: type and value of payload, colour
    and message are behind."""
    for column, cell in cells.items():
        if any(one in column for one in _RANGES):
            for text in re.findall(r'"([^"]*)"', cell):
                told = re.sub(r"^\d+:", "", text) if _RANGES[1] in column else text
                match = _SAME.fullmatch(told) or _NOTHING.fullmatch(told)
                domain, name = match.groups() if match else (*told.split(":"), "", "")[:2]
                yield domain, name
