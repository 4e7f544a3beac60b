"""pytest-benchmark's JSON."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfci.measure.commands.readers.base import (
    About,
    Format,
    Reported,
    case_id,
    declared,
    dicts,
    dig,
    each_once,
    number,
    plain,
    read_document,
    reason,
    text_at,
    times,
)
from perfci.model.metrics import CustomMetric


def read_pytest_benchmark(
    path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None
) -> dict[str, Reported]:
    """Return cases of a pytest-benchmark result by id: `tests/test_x.py::test_y[100]` is
    `NAME/tests/test_x.py/test_y/100`.

    `time`: seconds of one call per round, else the mean, as `--benchmark-save` writes without `--benchmark-save-data`.
    Numbers in `extra_info` need a declaration in `custom`. Raises ValueError, one line, for an unusable file.
    """
    root = read_document(path, _fits, "pytest-benchmark", "write it with --benchmark-json=FILE")
    found = (_benchmark(entry, name, custom or {}) for entry in dicts(root["benchmarks"], path, "pytest-benchmark"))
    return each_once(found, path, "give its parameters ids of their own", "no test used the benchmark fixture")


def _benchmark(entry: dict[str, Any], name: str, custom: Mapping[str, CustomMetric]) -> Reported:
    where, bracket, parameters = str(entry.get("fullname")).partition("[")
    parts = [plain(part) for part in re.split("::|/", where)]
    case = case_id(name, [*parts, plain(parameters.removesuffix("]"))] if bracket else parts)
    stats, extra = entry.get("stats"), entry.get("extra_info")
    if not isinstance(stats, dict):
        return Reported(case, reason=reason("invalid", "the file holds no statistics of it"))
    try:
        own = declared(extra if isinstance(extra, dict) else {}, custom)
        values, statistic = times(stats.get("data"), stats.get("mean"), "rounds")
    except ValueError as error:
        return Reported(case, reason=reason("invalid", str(error)))
    return Reported(case, {"time": values} | {metric: [value] for metric, value in own.items()}, statistic=statistic)


def _fits(root: Any) -> bool:
    return isinstance(dig(root, "machine_info"), dict) and "benchmarks" in root


def _about(root: Any) -> About:
    machine, code = root["machine_info"], root.get("commit_info")
    cores, commit = number(dig(machine, "cpu", "count")), text_at(code, "id")
    return About(
        date=text_at(root, "datetime"),
        host=text_at(machine, "node"),
        cpu=text_at(machine, "cpu", "brand_raw") or text_at(machine, "processor"),
        cores=int(cores) if 0 < cores < 1e6 else 0,
        python=text_at(machine, "python_version"),
        commit=commit if re.fullmatch("[0-9a-f]{40,64}", commit) else None,
        dirty=dig(code, "dirty") is True,
    )


PYTEST_BENCHMARK = Format(
    "pytest-benchmark",
    "PERFCI_PYTEST_BENCHMARK",
    "pytest-benchmark.json",
    '--benchmark-json="$PERFCI_PYTEST_BENCHMARK"',
    read_pytest_benchmark,
    _fits,
    _about,
)
