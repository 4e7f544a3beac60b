"""Groups of files, and what holds for any."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perfci.model.base import DeviceKind, Side, UsageError
from perfci.model.fingerprint import Fingerprint
from perfci.model.plan import Plan
from perfci.model.results import Case, SideCode

Files = Mapping[Side, Sequence[Path]]
"""Of each side, in the order measured."""


@dataclass(frozen=True)
class Imported:
    """The cases of files, before anything is asked of them."""

    cases: list[Case]
    device: DeviceKind
    facts: Fingerprint
    sides: dict[Side, SideCode]
    workers: int
    """Timed files of each side, at least 1."""
    reports: Mapping[str, frozenset[str]]
    """Case id → metrics that some file has of it."""
    observed: bool
    timed: bool
    notes: Callable[[Plan], list[str]]
    dates: Sequence[datetime] = ()


def require_workers(files: Files) -> None:
    """Raise UsageError for equal files: no two workers take the same times."""
    seen: dict[bytes, Path] = {}
    for path in (path for paths in files.values() for path in paths):
        found = content(path)
        if found in seen:
            one = seen[found]
            again = f"{one} is given twice" if one == path else f"{one} and {path} hold the same"
            raise UsageError(f"import: {again}: each file is a worker of its own, of base or of head")
        seen[found] = path


def require_as_many(numbers: Mapping[Side, int]) -> None:
    """Raise UsageError where base and head differ in number of files."""
    if len(set(numbers.values())) > 1:
        told = " and ".join(f"{number} of {name}" for name, number in numbers.items())
        raise UsageError(f"import: {told}: files pair up in order, so give as many of each")


def content(path: Path) -> bytes:
    """Return the digest of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def digest(files: Files) -> str:
    """Return a digest of these files in order."""
    found = hashlib.sha256()
    for path in (path for paths in files.values() for path in paths):
        found.update(content(path))
    return found.hexdigest()[:12]


def named(paths: Sequence[Path]) -> str:
    """Return `head-1.json … head-9.json`."""
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} … {paths[-1].name}"


def too_few(plan: Plan) -> list[str]:
    """Return a note where the files are too few to show a regression."""
    needed = plan.looks.fewest_to_show(plan.m)
    if plan.max_pairs >= needed or not any(one.relative for one in plan.timed):
        return []
    return [
        f"{plan.max_pairs} of the {needed} files each of base and head that it takes to show a regression: "
        "run base and head in turns, a file each time"
    ]
