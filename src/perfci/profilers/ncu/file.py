"""Reads ncu's files: a report through `ncu_report` or ncu itself, or CSV."""

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfci.model.text import version_numbers
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu import csv as ncu_csv
from perfci.profilers.ncu import layout as ncu_layout
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.ncu.launch import METRICS, Content, fault
from perfci.profilers.ncu.module import Module
from perfci.system.bounded import Unread, regular, unbind

LARGEST = 2 * 2**30
MEMORY = 8 * 2**30
"""Bytes of ncu itself, beside twelve times the file."""


def content(
    path: Path,
    ncu: Path | None,
    modules: Sequence[Module] | None,
    timeout: float,
    metrics: Sequence[str] = METRICS,
) -> Content:
    """Return the launches in a file with `metrics`, and what it lacks. Never raises for its content.

    `ncu`, `modules`, `timeout`: as in `perfci.profilers.ncu.report.read`.
    """
    again = "profile again"
    try:
        size = regular(path, LARGEST)
        with path.open("rb") as file:
            head = file.read(64)
            if head.startswith(ncu_layout.MAGIC):
                blocks, version = ncu_layout.blocks(file, size), ncu_layout.written_by(file)
                if blocks is None:
                    raise Unread("is cut or damaged")
                results = sum(block.header.get(field, 0) for block in blocks[1:] for field in ncu_layout.RESULTS)
                return _report(path, results, version, ncu, modules, timeout, metrics)
            if not head:
                raise Unread("is empty")
    except Unread as why:
        return Content(faults=[fault("unreadable", f"{path.name}: {why}", again)])
    except OSError as error:
        return Content(faults=[fault("unreadable", f"{path.name}: cannot be read: {error.strerror}", again)])
    if head.startswith(b"version https://git-lfs"):
        return Content(faults=[fault("unreadable", f"{path.name}: is a pointer of Git LFS", "run git lfs pull")])
    return ncu_csv.read(path, path.name, metrics)


def _report(
    path: Path, results: int, version: str, ncu: Path | None, modules: Sequence[Module] | None, timeout: float,
    metrics: Sequence[str],
) -> Content:  # fmt: skip
    """Through the first importable module at least as new as the report, else through ncu."""
    older = []
    for module in ncu_module.modules() if modules is None else modules:
        if version and module.version and version_numbers(module.version)[:2] < version_numbers(version)[:2]:
            older.append(module.version)
            continue
        content = ncu_module.read(path, version, module, metrics)
        if content is not None:
            return _counted(path, content, results)
    if ncu is not None:
        return _counted(path, _import(path, version, ncu, timeout, metrics), results)
    why = f"the ncu_report here ({', '.join(older)}) is older" if older else "there is no ncu_report that works here"
    text = f"{path.name}: written by ncu {version or 'of unknown version'}: {why}"
    remedy = f"pip install 'ncu-report>={version or '2026.2'}'"
    return Content(version=version, faults=[fault("incompatible", text, remedy)])


def _counted(path: Path, content: Content, results: int) -> Content:
    """`ncu_report` is silent on damage."""
    if content.faults or len(content.launches) >= results:
        return content
    text = f"{path.name}: announces {results} launches and gives {len(content.launches)}"
    return replace(content, faults=[fault("incomplete", text, "profile again")])


def _import(path: Path, version: str, ncu: Path, timeout: float, metrics: Sequence[str]) -> Content:
    with tempfile.NamedTemporaryFile(suffix=".csv") as page:
        try:
            done = subprocess.run(
                ncu_command.raw_page(ncu, path.absolute()),
                stdin=subprocess.DEVNULL,
                stdout=page,
                stderr=subprocess.PIPE,
                preexec_fn=unbind,
                cwd="/",
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            text = f"{path.name}: {ncu} cannot read it ({error})"
            return Content(version=version, faults=[fault("unreadable", text, "pip install ncu-report")])
        if done.returncode:
            with Path(page.name).open("rb") as said:
                told = (said.read(4000) + b"\n" + done.stderr).decode(errors="replace")
            why = next(
                (line for line in told.splitlines() if line.startswith("==ERROR==")), f"status {done.returncode}"
            )
            text = f"{path.name}: {ncu.name} cannot read it ({why.removeprefix('==ERROR== ')})"
            return Content(version=version, faults=[fault("unreadable", text, "pip install ncu-report")])
        content = ncu_csv.read(Path(page.name), path.name, metrics)
    return replace(content, version=version)
