"""Tables that programs print: CSV with a header, or an object a line."""

import csv
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfci.measure.commands.readers.base import (
    Format,
    Reported,
    case_id,
    each_once,
    number,
    plain,
    read_json,
    read_text,
    reason,
)
from perfci.measure.commands.readers.lines import to_own_unit
from perfci.model.metrics import CATALOGUE, CustomMetric
from perfci.model.policy import Columns
from perfci.model.text import one_line

_DELIMITERS = ",;\t|"
_MAX_ROWS = 100_000
_REPEATED = "name under `case` what tells them apart; rows of an earlier run, or another sweep, are no samples"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

Row = Mapping[str, Any]


def read_csv(
    path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None, *, columns: Columns
) -> dict[str, Reported]:
    """Return a case for each row of a table: from the line with all of `columns` to the first empty one.

    What is printed before and behind it is passed over. Raises ValueError, one line: no such header, a second one, a
    row of another length.
    """
    return _cases(_csv_rows(read_text(path), path, columns), path, name, custom, columns)


def read_jsonl(
    path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None, *, columns: Columns
) -> dict[str, Reported]:
    """Return a case for each line that is an object with a key of `columns`; others are passed over.

    Raises ValueError, one line: an object without one of the keys that tell cases apart.
    """
    return _cases(_json_rows(read_text(path), path, columns), path, name, custom, columns)


def _csv_rows(text: str, path: Path, columns: Columns) -> Iterator[tuple[int, Row]]:
    wanted, header, delimiter = {*columns.case, columns.value}, list[str](), ","
    over = False
    for line_number, line in enumerate(text.split("\n"), 1):
        where = f"{path}:{line_number}"
        names, found = _header(line, wanted)
        if names and header:
            raise ValueError(f"{where}: a second header: print one table in an execution, {_REPEATED}")
        if names:
            if twice := next((one for one in wanted if names.count(one) > 1), None):
                raise ValueError(f"{where}: two columns are named {twice!r}: name each otherwise")
            header, delimiter = names, found
        elif header and not line.strip():
            over = True
        elif header and not over:
            fields = _fields(line, delimiter)
            if len(fields) != len(header):
                raise ValueError(
                    f"{where}: has {len(fields)} fields, and the header {len(header)}: end the table with an empty line"
                )
            yield line_number, dict(zip(header, fields, strict=True))
    if not header:
        raise ValueError(f"{path}: has no header with the columns {', '.join(sorted(wanted))}")


def _header(line: str, wanted: set[str]) -> tuple[list[str], str]:
    for delimiter in _DELIMITERS:
        fields = _fields(line, delimiter)
        if wanted <= {*fields}:
            return fields, delimiter
    return [], ""


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error:  # a field of more than 128 KiB
        return []


def _json_rows(text: str, path: Path, columns: Columns) -> Iterator[tuple[int, Row]]:
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("{"):
            continue
        where = f"{path}:{line_number}"
        row = read_json(line, where)
        if not row.keys() & {*columns.case, columns.value}:
            continue
        if lacking := [one for one in columns.case if one not in row]:
            raise ValueError(f"{where}: has no {lacking[0]!r}, which tells its case: write it in each line")
        yield line_number, row


def _cases(
    rows: Iterator[tuple[int, Row]],
    path: Path,
    name: str,
    custom: Mapping[str, CustomMetric] | None,
    columns: Columns,
) -> dict[str, Reported]:
    metric, factor = columns.metric, _factor(columns, custom or {}, path)

    def reported() -> Iterator[Reported]:
        for line, row in itertools.islice(rows, _MAX_ROWS):
            parts = [f"{plain(column)}={plain(_shown(row[column]))}" for column in columns.case]
            case, value = case_id(name, parts), factor * _float(row.get(columns.value))
            if math.isfinite(value) and (value > 0 or metric not in CATALOGUE):
                yield Reported(case, {metric: [value]}, statistic="mean")
            else:
                shown = one_line(_shown(row.get(columns.value)), 40)
                yield Reported(
                    case,
                    reason=reason("invalid", f"line {line}: {columns.value} is {shown!r}: no finite positive number"),
                )
        if next(rows, None) is not None:
            raise ValueError(f"{path}: has more than {_MAX_ROWS} rows: print fewer cases")

    return each_once(reported(), path, _REPEATED, "no row follows its header")


def _factor(columns: Columns, custom: Mapping[str, CustomMetric], path: Path) -> float:
    metric, unit = columns.metric, columns.unit
    if metric in CATALOGUE:
        return to_own_unit(metric, unit, str(path))
    if metric not in custom:
        raise ValueError(f"{path}: {metric!r} is no metric: declare it under metrics in perfci.yaml")
    if unit not in ("", custom[metric].unit):
        raise ValueError(f"{path}: unit {unit!r} of {metric} is not {custom[metric].unit!r}, as metrics declares it")
    return 1.0


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _float(value: Any) -> float:
    """NaN for what is no number."""
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else math.nan
    return number(value)


CSV = Format("csv", "PERFCI_CSV", "table.csv", "", read_csv, printed=True)
JSONL = Format("jsonl", "PERFCI_JSONL", "table.jsonl", "", read_jsonl, printed=True)
