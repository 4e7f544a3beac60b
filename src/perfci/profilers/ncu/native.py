"""Reads a report of ncu through NVIDIA's `ncu_report`, a native library that a damaged file may crash or hang.

A program of its own for an interpreter with the standard library alone on its path (-I -S), so that the requested
module is used. It reads one JSON object from stdin and writes one to stdout; `ncu_report` prints to stderr.
"""

import json
import os
import resource
import sys
from typing import Any

NO_MODULE = 3
"""Exit status where `ncu_report` cannot be imported."""


def main() -> int:
    """Request: `folder` of the module, `report`, `metrics` (names), `most` launches, `memory` and `answer` in bytes.

    Answer: `version` of the module, `ranges` in the report, `launches` in order, `dropped` of them. A launch: `name`,
    `nvtx` ([domain, range] outermost first), `device`, `values` (metric → [value, unit], null for no number), `rules`.
    """
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["answer"], request["answer"]))
    sys.path.append(request["folder"])
    try:
        import ncu_report
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return NO_MODULE
    context = ncu_report.load_report(request["report"])
    launches: list[dict[str, Any]] = []
    dropped = 0
    for number in range(context.num_ranges()):
        actions = context.range_by_idx(number)
        for index in range(actions.num_actions()):
            if len(launches) < request["most"]:
                launches.append(_launch(actions.action_by_idx(index), request["metrics"]))
            else:
                dropped += 1
    version = str(context.get_version()) if hasattr(context, "get_version") else ""
    json.dump({"version": version, "ranges": context.num_ranges(), "launches": launches, "dropped": dropped}, answers)
    answers.close()
    return 0


def _launch(action: Any, names: list[str]) -> dict[str, Any]:
    rules = getattr(action, "rule_results_as_dicts", list)  # modules before 2024 have none
    values = {}
    device = action.metric_by_name("device__attribute_display_name")
    for name in names:
        metric = action.metric_by_name(name)
        if metric is not None:
            number = metric.has_value() and metric.kind() != metric.ValueKind_STRING
            values[name] = [metric.as_double() if number else None, _text(metric.unit())]
    return {
        "name": _text(action.name(action.NameBase_DEMANGLED)),
        "nvtx": _nvtx(action.nvtx_state()),
        "device": "" if device is None or not device.has_value() else _text(device.as_string()),
        "values": values,
        "rules": list(rules()),
    }


def _nvtx(state: Any) -> list[list[str]]:
    """The launching thread's ranges, and those of start and end, which hold for all threads."""
    found = []
    for ident in () if state is None else state.domains():
        domain = state.domain_by_id(ident)
        for name in (*domain.push_pop_ranges(), *domain.start_end_ranges()):
            found.append([_text(domain.name()), _text(name)])
    return found


def _text(told: Any) -> str:
    """The library returns None in some damaged files, and text that cannot be encoded."""
    return "" if told is None else str(told).encode(errors="replace").decode()


if __name__ == "__main__":
    sys.exit(main())
