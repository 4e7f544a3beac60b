"""Reads a report of ncu through NVIDIA's `ncu_report`."""

import importlib
import importlib.metadata
import importlib.util
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from perfci.model.profile import Rule
from perfci.model.text import escaped
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu.launch import (
    BLOCK,
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


@dataclass(frozen=True)
class Module:
    """An `ncu_report` to import."""

    folder: Path
    version: str
    """Empty where unknown."""


def modules(root: Path = Path("/")) -> list[Module]:
    """Return this interpreter's `ncu_report`, then `copies`."""
    found = []
    spec = importlib.util.find_spec("ncu_report")
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin).parent
        try:
            version = importlib.metadata.version("ncu-report")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        found.append(Module(origin.parent if spec.submodule_search_locations else origin, version))
    return found + copies(root)


def copies(root: Path = Path("/")) -> list[Module]:
    """Return those beside installed Nsight Computes, newest first."""
    found = []
    for folder in ncu_command.installations(root):
        python = folder / "extras" / "python"
        if (python / "ncu_report.py").is_file() or (python / "ncu_report").is_dir():
            match = re.search(r"20\d\d(\.\d+)+", folder.name)
            found.append(Module(python, match.group() if match else ""))
    return found


def read(path: Path, version: str, module: Module, metrics: Sequence[str] = METRICS) -> Content | None:
    """Read `metrics` of a report. None where `ncu_report` cannot be imported.

    It is native code, which a damaged report may take over: call it in another process.
    """
    launches: list[Launch] = []
    dropped = 0
    try:
        library = _imported(module.folder.absolute())
        if library is None:
            return None
        context = library.load_report(str(path.absolute()))
        ranges = context.num_ranges()
        for number in range(ranges):
            actions = context.range_by_idx(number)
            for index in range(actions.num_actions()):
                if len(launches) < MOST_READ:
                    launches.append(_launch(actions.action_by_idx(index), metrics))
                else:
                    dropped += 1
    except Exception as error:  # noqa: BLE001 - damage shows as anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        text = f"{path.name}: {f'ncu_report {module.version}'.strip()} cannot read it ({why})"
        return Content(version=version, faults=[fault("unreadable", text, "profile again")])
    faults = []
    if not ranges:
        faults.append(fault("unreadable", f"{path.name}: truncated, or no report of ncu", "profile again"))
    elif not launches:
        faults.append(fault("empty", f"{path.name}: holds no kernel", EMPTY_REMEDY))
    if dropped:
        text = f"{path.name}: {dropped} launches beyond the first {MOST_READ} were not read"
        faults.append(fault("incomplete", text, "profile fewer kernels"))
    return Content(launches, faults, version)


def _imported(folder: Path) -> Any:
    """A module that cannot be imported leaves no trace: the next one may be."""
    if PathFinder.find_spec("ncu_report", [str(folder)]) is None:
        return None
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "ncu_report"]:
            del sys.modules[name]
        return None


def _launch(action: Any, metrics: Sequence[str]) -> Launch:
    rules = getattr(action, "rule_results_as_dicts", list)  # modules before 2024 have none
    device = action.metric_by_name("device__attribute_display_name")
    values: dict[str, tuple[float | None, str]] = {}
    for name in metrics:
        metric = action.metric_by_name(name)
        if metric is not None:
            number = metric.has_value() and metric.kind() != metric.ValueKind_STRING
            values[name] = (float(metric.as_double()) if number else None, _text(metric.unit()))
    return Launch(
        name=escaped(_text(action.name(action.NameBase_DEMANGLED))),
        nvtx=_nvtx(action.nvtx_state()),
        values=values,
        capability=capability_of(values),
        grid=triple_of(values, GRID),
        block=triple_of(values, BLOCK),
        device="" if device is None or not device.has_value() else escaped(_text(device.as_string()))[:200],
        rules=tuple(rule for one in rules() if (rule := _rule(one)) is not None),
    )


def _nvtx(state: Any) -> tuple[tuple[str, str], ...]:
    """The launching thread's ranges, and those of start and end, which hold for all threads."""
    domains = [] if state is None else [state.domain_by_id(ident) for ident in state.domains()]
    return tuple(
        (_text(domain.name()), _text(name))
        for domain in domains
        for name in (*domain.push_pop_ranges(), *domain.start_end_ranges())
    )


def _text(value: Any) -> str:
    """Some damaged files give None, or bytes that are no UTF-8 as lone surrogates."""
    return "" if value is None else str(value).encode(errors="replace").decode()


_LINK = re.compile(r"@(?:url:([^:@]*):[^@]*|(?:section|source|sass):[^:@]*:([^@]*))@")
"""`@url:text:https://…@`, `@section:id:text@`."""
_LOCAL, _GLOBAL = 1, 2
"""SpeedupType of `ncu_report`: of a part, or of the kernel's time."""
_OPTIMIZATION = 2
"""MsgType of `ncu_report`: suggestions; warnings and errors are above."""


def _rule(told: Mapping[str, Any]) -> Rule | None:
    message, estimate = told.get("rule_message"), told.get("speedup_estimation") or {}
    if not isinstance(message, Mapping) or message.get("type", 0) < _OPTIMIZATION or not message.get("message"):
        return None
    text = _LINK.sub(r"\1\2", " ".join(_text(message["message"]).split()))
    speedup = float(estimate.get("speedup", math.nan))
    usable = math.isfinite(speedup) and speedup > 0
    if usable and estimate.get("type") == _LOCAL:
        text = f"{text} (up to {speedup:.1f} % of this part alone)"
    title = str(message.get("title") or told.get("name") or told.get("rule_identifier") or "")
    return Rule(
        name=escaped(_text(title))[:200],
        message=escaped(text)[:2000],
        speedup=speedup if usable and estimate.get("type") == _GLOBAL else None,
    )
