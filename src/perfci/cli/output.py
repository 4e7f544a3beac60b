"""Writing and telling results and reports."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from perfci.cli.progress import Console
from perfci.measure.journal import SAMPLES
from perfci.model.base import SIDES, MachineError, Side, UsageError
from perfci.model.report import Report
from perfci.model.results import Pair, Results
from perfci.model.text import escaped
from perfci.render import render_all
from perfci.render.html.recorded import Recorded
from perfci.render.terminal import print_report
from perfci.system.bounded import Unread, regular
from perfci.system.files import each_line, write_atomic

FILES = (
    "report.md",
    "report.html",
    "report.json",
    "results.json",
    "report.csv",
    "junit.xml",
    "profile.csv",
    "profile/",
    "raw/",
    "samples.jsonl",
    "logs/",
)
"""For people, in the order of use."""


def made(folder: Path) -> Path:
    """Make an output folder that git ignores: what perfci writes is no part of head. Raises UsageError,
    MachineError."""
    if not folder.exists():
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"--out {folder}: cannot be made ({error.strerror})") from None
        write_atomic(folder / ".gitignore", "*\n")
    return folder


def write_all(
    out: Path,
    report: Report,
    results: Results | None = None,
    measured: tuple[Results, Path] | None = None,
) -> list[str]:
    """Write results (if given) and the report into `out`. Raises MachineError.

    `measured`: written results, and the folder of records beside them. Returns those of FILES that belong to these
    results.
    """
    if results is not None:
        write_atomic(out / "results.json", results.model_dump_json(indent=1) + "\n")
        measured = results, out
    recorded = read_recorded(*measured) if measured else None
    texts = render_all(report, recorded)
    for name, text in texts.items():
        write_atomic(out / name, text)
    beside = _beside(measured[0]) if measured and measured[1] == out else set()
    return [name for name in FILES if name in {*texts, *beside} and (out / name).exists()]


def _beside(results: Results) -> set[str]:
    names = {"results.json"}
    if any(case.origin == "imported" for case in results.cases):
        return names
    if results.part is None or len(results.part.shards) == 1:
        names.add("logs/")
    if any(case.pairs for case in results.cases):
        names.add("samples.jsonl")
    if not results.plan.judged:
        names |= {"profile/", "raw/"}
    return names


def tell(report: Report, out: Path, files: Sequence[str], *, json: bool = False) -> None:
    """Print the report and its `files`: for people, or as JSON alone."""
    if json:
        typer.echo(report.model_dump_json(indent=1))
        return
    print_report(report, Console(), _from_here(out))
    tell_files(out, files)


def tell_files(out: Path, files: Sequence[str]) -> None:
    """Print where files lie."""
    typer.echo(f"\nFiles in {_from_here(out)}/: {' · '.join(files)}")


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


LONGEST = 8 * 2**20
"""Bytes of a pair's samples: half a million numbers."""
LARGEST = 64 * 2**20
"""Bytes of results, and of samples: an artifact holds what somebody else wrote."""


def read_recorded(results: Results, folder: Path) -> Recorded:
    """Return `results` with the samples in `folder`, if readable."""
    path = folder / SAMPLES
    if not path.exists():
        return Recorded(results)
    pairs = {(case.key, pair.index): pair for case in results.cases for pair in case.pairs}
    found: dict[str, dict[int, dict[Side, list[list[float]]]]] = {}
    try:
        regular(path, LARGEST)
        for line in each_line(path, LONGEST):
            key, index = line.get("key"), line.get("pair")
            pair = pairs.get((key, index)) if isinstance(key, str) and isinstance(index, int) else None
            if pair is not None and (placements := _samples(pair, line.get("samples"))):
                found.setdefault(str(key), {})[pair.index] = placements
    except Unread as why:
        return Recorded(results, missing=f"{SAMPLES} {why}: samples are not drawn")
    except MachineError as error:
        return Recorded(results, missing=f"samples are not drawn: {escaped(error)}")
    return Recorded(results, found)


def _samples(pair: Pair, found: Any) -> dict[Side, list[list[float]]]:
    """Empty for samples of another run's pair."""
    if not isinstance(found, dict):
        return {}
    placements = {name: found[name] for name in SIDES if _numbers(found.get(name))}
    counts = {name: sum(map(len, one)) for name, one in placements.items()}
    return placements if counts == pair.samples else {}


def _numbers(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(one, list) and one and all(isinstance(n, float | int) and math.isfinite(n) for n in one)
        for one in found
    )
