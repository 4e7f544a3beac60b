"""hyperfine's JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfci.measure.commands.readers.base import (
    Format,
    Reported,
    case_id,
    declared_times,
    dicts,
    dig,
    each_once,
    number,
    plain,
    positive,
    read_document,
    reason,
    times,
)
from perfci.model.metrics import CustomMetric

_MEANS = ("user", "system")


def read_hyperfine(path: Path, name: str, custom: Mapping[str, CustomMetric] | None = None) -> dict[str, Reported]:
    """Return cases of a hyperfine result by id `NAME/COMMAND/PARAMETER=VALUE…`; `--command-name` shortens commands.

    `time`: seconds, one per run, else their mean. `user` and `system`, means over runs, need a declaration in `custom`.
    A command with a failed run has no time. Raises ValueError, one line, for an unusable file.
    """
    root = read_document(path, _fits, "hyperfine", "write it with --export-json FILE")
    found = (_command(entry, name, custom or {}) for entry in dicts(root["results"], path, "hyperfine"))
    return each_once(found, path, "name them with --command-name", "hyperfine ran no command")


def _command(entry: dict[str, Any], name: str, custom: Mapping[str, CustomMetric]) -> Reported:
    parameters = entry.get("parameters")
    pairs = parameters.items() if isinstance(parameters, dict) else ()
    command = plain(entry.get("command"), 200)
    case = case_id(name, [command, *(f"{plain(key)}={plain(value)}" for key, value in pairs)])
    codes = entry.get("exit_codes")
    if isinstance(codes, list) and any(code != 0 for code in codes):
        failed = sum(code != 0 for code in codes)
        return Reported(case, reason=reason("exit", f"{failed} of {len(codes)} runs did not end with exit code 0"))
    try:
        own = {one: positive(entry[one], one) for one in _MEANS if one in custom and number(entry.get(one)) != 0}
        values, statistic = times(entry.get("times"), entry.get("mean"), "runs")
        reported = {"time": values} | {metric: [value] for metric, value in declared_times(own, custom).items()}
    except ValueError as error:
        return Reported(case, reason=reason("invalid", str(error)))
    return Reported(case, reported, statistic=statistic)


def _fits(root: Any) -> bool:
    results = dig(root, "results")
    return isinstance(results, list) and all(isinstance(one, dict) and "command" in one for one in results)


HYPERFINE = Format(
    "hyperfine", "PERFCI_HYPERFINE", "hyperfine.json", '--export-json "$PERFCI_HYPERFINE"', read_hyperfine, _fits
)
