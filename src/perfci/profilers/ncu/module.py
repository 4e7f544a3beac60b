"""Reads a report of ncu through NVIDIA's `ncu_report`, in a process of its own: see `native`."""

import importlib.metadata
import importlib.util
import inspect
import json
import math
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfci.model.profile import Rule
from perfci.model.text import escaped
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu import native as ncu_native
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
from perfci.system.bounded import run, unbind

_MEMORY = 384 * 2**20
"""Bytes of the reader's address space, beside twelve times the file."""
_ANSWER = 128 * 2**20
"""Bytes of its answer: MOST_LAUNCHES launches take nearly these."""
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Raised by a wrong answer."""
_PROGRAM = inspect.getsource(ncu_native)
"""The report's user may execute an interpreter, and read nothing else of perfci's."""


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
    """Return the copies of `ncu_report` beside installed Nsight Computes, newest first."""
    found = []
    for folder in ncu_command.installations(root):
        python = folder / "extras" / "python"
        if (python / "ncu_report.py").is_file() or (python / "ncu_report").is_dir():
            match = re.search(r"20\d\d(\.\d+)+", folder.name)
            found.append(Module(python, match.group() if match else ""))
    return found


def read(
    path: Path, size: int, version: str, module: Module, timeout: float, metrics: Sequence[str] = METRICS
) -> Content | None:
    """Read `metrics` of a report in a process of its own. None where `ncu_report` cannot be imported."""
    request = {
        "folder": str(module.folder.absolute()),
        "report": str(path.absolute()),
        "metrics": [*metrics],
        "most": MOST_LAUNCHES,
        "memory": _MEMORY + 12 * size,
        "answer": _ANSWER,
    }
    source = f"ncu_report {module.version}".strip()

    def unreadable(why: str, remedy: str = "profile again") -> Content:
        text = f"{path.name}: {source} {why}"
        return Content(version=version, faults=[fault("unreadable", text, remedy)])

    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    said = run(command, timeout, cwd=Path("/"), stdin=json.dumps(request).encode(), largest=_ANSWER, prepare=unbind)
    if said.late:
        return unreadable(f"did not read it within {timeout:g} s", "profile fewer kernels")
    if said.code in (None, ncu_native.NO_MODULE):
        return None
    if not said.fine:
        told = said.err.strip().splitlines()[-1:] or ["it said nothing"]
        how = signal.Signals(-said.code).name if said.code < 0 else told[0]
        return unreadable(f"cannot read it ({how})")
    try:
        answer = json.loads(said.raw)
        launches = [_from_native(one) for one in answer["launches"]]
        ranges, dropped = int(answer["ranges"]), int(answer["dropped"])
    except _NONSENSE as error:  # a damaged report can have taken it over
        return unreadable(f"answered nonsense ({type(error).__name__})")
    faults = []
    if not ranges:
        faults.append(fault("unreadable", f"{path.name}: truncated, or no report of ncu", "profile again"))
    elif not launches:
        faults.append(fault("empty", f"{path.name}: holds no kernel", EMPTY_REMEDY))
    if dropped:
        text = f"{path.name}: {dropped} launches beyond the first {MOST_LAUNCHES} were not read"
        faults.append(fault("incomplete", text, "profile fewer kernels"))
    return Content(launches, faults, version)


def _from_native(told: Mapping[str, Any]) -> Launch:
    values = {name: (None if value is None else float(value), unit) for name, (value, unit) in told["values"].items()}
    return Launch(
        name=escaped(told["name"]),
        nvtx=tuple((domain, name) for domain, name in told["nvtx"]),
        values=values,
        capability=capability_of(values),
        grid=triple_of(values, GRID),
        block=triple_of(values, BLOCK),
        device=escaped(str(told["device"]))[:200],
        rules=tuple(rule for one in told["rules"] if (rule := _rule(one)) is not None),
    )


def _clean(text: str) -> str:
    """Remove lone surrogates, which stand for bytes that are no UTF-8."""
    return text.encode(errors="replace").decode()


_LINK = re.compile(r"@(?:url:([^:@]*):[^@]*|(?:section|source|sass):[^:@]*:([^@]*))@")
"""`@url:text:https://…@`, `@section:id:text@`."""
_LOCAL, _GLOBAL = 1, 2
"""SpeedupType of `ncu_report`: of a part, or of the kernel's time."""
_OPTIMIZATION = 2
"""MsgType of `ncu_report`: suggestions; warnings and errors are above."""


def _rule(told: Mapping[str, Any]) -> Rule | None:
    """None without a message, and for one that says that all is well."""
    message, estimate = told.get("rule_message"), told.get("speedup_estimation") or {}
    if not isinstance(message, Mapping) or message.get("type", 0) < _OPTIMIZATION or not message.get("message"):
        return None
    text = _LINK.sub(r"\1\2", " ".join(_clean(str(message["message"])).split()))
    speedup = float(estimate.get("speedup", math.nan))
    usable = math.isfinite(speedup) and speedup > 0
    if usable and estimate.get("type") == _LOCAL:
        text = f"{text} (up to {speedup:.1f} % of this part alone)"
    title = str(message.get("title") or told.get("name") or told.get("rule_identifier") or "")
    return Rule(
        name=escaped(_clean(title))[:200],
        message=escaped(text)[:2000],
        speedup=speedup if usable and estimate.get("type") == _GLOBAL else None,
    )
