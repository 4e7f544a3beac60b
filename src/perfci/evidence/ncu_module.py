"""Reads a report of ncu through NVIDIA's module `ncu_report`, in a process of its own: see `ncu_native`."""

import importlib.metadata
import importlib.util
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfci.evidence import ncu_command, ncu_native
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
from perfci.model.evidence import Rule
from perfci.system.files import one_line

_MEMORY = 8 * 2**30
"""Address space of the process that reads a report, beside twelve times the file."""


@dataclass(frozen=True)
class Module:
    """An `ncu_report` that may be imported."""

    folder: Path
    """To be put on the path."""
    version: str
    """Empty where it is not known."""


def modules(root: Path = Path("/")) -> list[Module]:
    """The `ncu_report` of this interpreter, then the copies beside installed Nsight Computes, newest first."""
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
    """The copies of `ncu_report` beside installed Nsight Computes, newest first."""
    found = []
    for folder in ncu_command.installations(root):
        python = folder / "extras" / "python"
        if (python / "ncu_report.py").is_file() or (python / "ncu_report").is_dir():
            match = re.search(r"20\d\d(\.\d+)+", folder.name)
            found.append(Module(python, match.group() if match else ""))
    return found


def read(path: Path, size: int, version: str, module: Module, timeout: float) -> Content | None:
    """A report through `ncu_report`, in a process of its own. None where that cannot be imported."""
    request = {
        "folder": str(module.folder),
        "report": str(path),
        "metrics": METRICS,
        "most": MOST_LAUNCHES,
        "memory": _MEMORY + 12 * size,
    }
    source = f"ncu_report {module.version}".strip()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", ncu_native.__file__],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"{path.name}: {source} did not read it within {timeout:g} s"
        return Content(source=source, version=version, faults=[fault("unreadable", text, "profile fewer kernels")])
    if done.returncode == ncu_native.NO_MODULE:
        return None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else told[0]
        text = f"{path.name}: {source} cannot read it ({how})"
        return Content(source=source, version=version, faults=[fault("unreadable", text, "profile again")])
    answer = json.loads(done.stdout)
    source = f"ncu_report {answer['version'] or module.version}".strip()
    launches = [_from_native(one) for one in answer["launches"]]
    faults = []
    if not answer["ranges"]:
        faults.append(fault("unreadable", f"{path.name}: truncated, or no report of ncu", "profile again"))
    elif not launches:
        faults.append(fault("empty", f"{path.name}: holds no kernel", EMPTY_REMEDY))
    if answer["dropped"]:
        text = f"{path.name}: {answer['dropped']} launches beyond the first {MOST_LAUNCHES} were not read"
        faults.append(fault("incomplete", text, "profile fewer kernels"))
    return Content(launches, faults, source, version)


def _from_native(told: Mapping[str, Any]) -> Launch:
    values = {name: (None if value is None else float(value), unit) for name, (value, unit) in told["values"].items()}
    return Launch(
        name=one_line(told["name"]),
        nvtx=tuple((domain, name) for domain, name in told["nvtx"]),
        values=values,
        capability=capability_of(values),
        grid=triple_of(values, GRID),
        block=triple_of(values, BLOCK),
        rules=tuple(rule for one in told["rules"] if (rule := _rule(one)) is not None),
    )


def _clean(text: str) -> str:
    """Without lone surrogates, which stand for bytes that are no UTF-8."""
    return text.encode(errors="replace").decode()


_LINK = re.compile(r"@(?:url|section|source|sass):([^:@]*):[^@]*@")
_LOCAL, _GLOBAL = 1, 2
"""SpeedupType of `ncu_report`: of the part that the finding is about, or of the kernel's time."""
_OPTIMIZATION = 2
"""MsgType of `ncu_report`: suggestions, and above it warnings and errors; below it what is well."""


def _rule(told: Mapping[str, Any]) -> Rule | None:
    """A finding, or None for what is none: no message, or one that says that all is well."""
    message, estimate = told.get("rule_message"), told.get("speedup_estimation") or {}
    if not isinstance(message, Mapping) or message.get("type", 0) < _OPTIMIZATION or not message.get("message"):
        return None
    text = _LINK.sub(r"\1", " ".join(_clean(str(message["message"])).split()))
    speedup = float(estimate.get("speedup", math.nan))
    usable = math.isfinite(speedup) and speedup > 0
    if usable and estimate.get("type") == _LOCAL:
        text = f"{text} (up to {speedup:.1f} % of this part alone)"
    title = str(message.get("title") or told.get("name") or told.get("rule_identifier") or "")
    return Rule(
        name=one_line(_clean(title))[:200],
        message=one_line(text)[:2000],
        speedup=speedup if usable and estimate.get("type") == _GLOBAL else None,
    )
