"""The paths that differ, and what else must be equal for equal files to mean equal speed."""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfci.measure.environments import differing_variables
from perfci.measure.prepare import OF_EACH_SIDE, SideWork
from perfci.model.text import escaped, listed
from perfci.sources.environment import DOWNLOADS, TEMPORARY
from perfci.sources.snapshot import file_digests

FOLDER = "folder "
"""Precedes a folder's mode in place of a digest."""
_INSTALLED = re.compile(r"site/[^/]+\.dist-info/(direct_url\.json|RECORD)")
"""pip's notes (PEP 610, PEP 376) with the folder of the build."""
_NO_MATTER = {"commands", "build_timeout"}
"""Each side's policy keys that change nothing of a kernel."""


@dataclass(frozen=True)
class Differing:
    """Paths below a side's folder (`tree/…`, `site/…`, `cache/…`), the same for both sides."""

    paths: frozenset[str]
    """Files, links and folders that differ in content, mode, target or presence."""
    folders: frozenset[str]
    """Folders whose listings differ."""

    def first(self, named: Iterable[str], listings: Iterable[str], but: Collection[str] = ()) -> str:
        """Return a differing path named, `but` for some, or listed; else empty. Bytecode stands for its source."""
        touched = ({source_of(path) for path in named} & self.paths).difference(but)
        return min(touched, default="") or min(self.folders.intersection(listings), default="")


def differing(base: SideWork, head: SideWork) -> Differing:
    """Compare trees, builds and caches now. Raises MachineError."""
    ours, theirs = _entries(base), _entries(head)
    paths = {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}
    paths -= {path for path in paths if _same_package(base, head, path)}
    moved = (
        path
        for path in paths
        if path not in ours or path not in theirs or ours[path].startswith(FOLDER) != theirs[path].startswith(FOLDER)
    )
    return Differing(frozenset(paths), frozenset(str(PurePosixPath(path).parent) for path in moved))


def _entries(side: SideWork) -> dict[str, str]:
    """Path → digest, or FOLDER and mode; without bytecode."""
    assert side.seal is not None  # it was built
    found = side.seal.files()
    found |= {f"cache/{path}": digest for path, digest in cache_files(side).items()}
    # Too large to digest, and no case needs them: whoever names them is measured.
    found |= {f"cache/{name}": side.name for name in DOWNLOADS if (side.cache / name).exists()}
    folders = _folders(side, {side.cache / name for name in (*DOWNLOADS, TEMPORARY)})
    return found | {path: f"{FOLDER}{(side.folder / path).stat().st_mode:o}" for path in folders}


def cache_files(side: SideWork) -> dict[str, str]:
    """Return path → digest of a side's caches, without downloads and temporary files. Raises MachineError."""
    return file_digests(side.cache, lambda path, _: PurePosixPath(path).parts[0] not in (*DOWNLOADS, TEMPORARY))


def _as_installed(side: SideWork, path: str) -> str:
    """pip's note without the side's folder. Raises OSError, UnicodeDecodeError."""
    # RECORD holds a digest of direct_url.json, which names that folder.
    lines = (side.folder / path).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not re.match(r"[^,]*\.dist-info/direct_url\.json,", line)]
    return "\n".join(kept).replace(str(side.folder), "…")


def _same_package(base: SideWork, head: SideWork, path: str) -> bool:
    try:
        return _INSTALLED.fullmatch(path) is not None and _as_installed(base, path) == _as_installed(head, path)
    except (OSError, UnicodeDecodeError):
        return False  # one of them is not there, or is no note of pip's


def _folders(side: SideWork, skipped: Collection[Path]) -> Iterator[str]:
    for top in (side.tree, side.site, side.cache):
        for place, names, _ in os.walk(top):
            names[:] = [name for name in names if name != "__pycache__" and Path(place, name) not in skipped]
            yield Path(place).relative_to(side.folder).as_posix()


def source_of(path: str) -> str:
    """Return bytecode's source, `a/__pycache__/b.cpython-311.pyc` → `a/b.py` (PEP 3147), else the path."""
    pure = PurePosixPath(path)
    if pure.suffix != ".pyc" or pure.parent.name != "__pycache__":
        return path
    return str(pure.parent.parent / f"{pure.name.partition('.')[0]}.py")


def unequal(base: SideWork, head: SideWork) -> str:
    """Return what else tells base and head apart, as a clause, or empty."""
    if base.python != head.python:
        return f"base runs on {escaped(base.python)}, head on {escaped(head.python)}"
    mine, theirs = (side.policy.model_dump(include=OF_EACH_SIDE - _NO_MATTER) for side in (base, head))
    if keys := [key for key in mine if mine[key] != theirs[key]]:
        return f"the policies of base and head differ in {listed(sorted(keys), 5)}"
    names = differing_variables({"base": base, "head": head})
    return f"the environments of base and head differ in {listed(names, 5)}" if names else ""
