"""Checks that a side's files are still those that were built, once everything is measured.

Base and head run as one user unless perfci is in a container: head's code could rewrite base's files. So both are
digested once built, and again before a verdict. Old files must be unchanged. New ones must be nothing that Python would
import, but for what the side's own discovery and checks made, and bytecode that matches its source.

Caches fill while a side runs. What a side's build left there, and code it compiles while it runs alone, must stay.

No sandbox: it sees neither what is put back in time, nor what is done to what sides compile beside each other.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath

from perfci.model.base import MachineError, Side
from perfci.model.text import escaped
from perfci.sources.environment import DOWNLOADS, HOMES, TEMPORARY
from perfci.sources.snapshot import file_digests, file_stamps
from perfci.system.child import Died
from perfci.system.files import disk_errors
from perfci.system.process import Parent
from perfci.system.starter import BOOT

BYTECODE = BOOT.with_name("bytecode.py")
TIMEOUT = 600.0
"""Seconds to compile what a side imports."""
_GROWS = re.compile(r"(?:.*[._-])?(?:log|lock|pid|index|stats|ninja_deps|nbi|best_config)", re.DOTALL | re.IGNORECASE)
"""Names in caches of logs, locks and lists, and of inductor's choices, which checks forget."""
_COMPILED = (".cubin", ".fatbin", ".hsaco", ".ptx")
_IMPORTED = re.compile(r".*(\.py|\.pyc|\.pth|\.so|\.pyd)", re.DOTALL)


class Seal:
    """The digests of a side's tree, site and caches once built."""

    def __init__(self, name: Side, tree: Path, site: Path, cache: Path, built: Collection[str] | None = None) -> None:
        """`built`: the build's known files as `tree/PATH` and `site/PATH`, where the side has run since. Raises
        MachineError."""
        self.name = name
        self._cache = cache
        self._cached = cache_digests(cache)
        self._folders = {"tree": tree, "site": site}
        self._then: dict[str, dict[str, str]] = {}
        for which, folder in self._folders.items():
            found = file_digests(folder)
            if built is not None:  # later bytecode is checked in the end
                found = {p: d for p, d in found.items() if not _is_cached(p) or f"{which}/{p}" in built}
            self._then[which] = found

    def files(self) -> dict[str, str]:
        """Return all files and links now, `tree/PATH` and `site/PATH` → digest, without cached bytecode. Raises
        MachineError."""
        found: dict[str, str] = {}
        for which, folder in self._folders.items():
            found |= {
                f"{which}/{path}": digest
                for path, digest in (self._then[which] | self._later(which, folder)).items()
                if not _is_cached(path)
            }
        return found

    @contextmanager
    def own(self) -> Iterator[None]:
        """Take what the side makes meanwhile for its own, while no code of another side runs. Raises MachineError."""
        before, stamps = self.importable(), file_stamps(self._cache)
        try:
            yield
        finally:  # also of a command that fails
            for which, new in self.importable().items():
                self._then[which].update((path, digest) for path, digest in new.items() if path not in before[which])
            self._take(set(_differ(stamps, file_stamps(self._cache))))

    def _take(self, moved: Collection[str]) -> None:
        then = self._cached
        self._cached = {path: digest for path, digest in then.items() if path not in moved}
        self._cached |= cache_digests(
            self._cache, lambda path, mode: path in moved and (path in then or _is_code(path, mode))
        )

    @contextmanager
    def undisturbed(self, other: Side) -> Iterator[None]:
        """Raise MachineError where building side `other` changes the caches, even if put back."""
        before = file_stamps(self._cache)
        yield
        if moved := _differ(before, file_stamps(self._cache)):
            raise MachineError(
                f"{self.name}'s caches were changed while {other} was built: {escaped(moved[0])}{_more(moved)}: there "
                f"is no verdict: find out what writes there, and let {other} be built in its own folders"
            )

    def caches(self) -> dict[str, str]:
        """Return path → digest of what must stay of the caches as they are now. Raises MachineError."""
        then = self._cached
        return cache_digests(self._cache, lambda path, mode: path in then or _is_code(path, mode))

    def require_caches(self, cached: Mapping[str, str]) -> None:
        """Hold the caches to what `caches` returned, once they are put back as they were then."""
        self._cached = dict(cached)

    def close_caches(self) -> None:
        """Check the caches a last time. Raises MachineError."""
        self._require_caches()
        self._cached = {}

    def _require_caches(self) -> None:
        then, now = self._cached, cache_digests(self._cache, lambda path, _: path in self._cached)
        self._refuse([f"cache/{escaped(path)} {_became(path, then, now)}" for path in _differ(then, now)])

    def strays(self, before: Mapping[str, Mapping[str, str]]) -> list[Path]:
        """Return importable files not there `before`, as of `importable`."""
        return [
            self._folders[which] / path
            for which, found in self.importable().items()
            for path in found
            if path not in before[which]
        ]

    def importable(self) -> dict[str, dict[str, str]]:
        """Return files, by folder and with digests, that Python could import and are not of the build."""
        return {which: self._added(which) for which in self._folders}

    def _later(self, which: str, folder: Path) -> dict[str, str]:
        then = self._then[which]
        return file_digests(folder, lambda path, _: path not in then and not _is_cached(path))

    def _added(self, which: str) -> dict[str, str]:
        then = self._then[which]
        return file_digests(self._folders[which], lambda path, mode: path not in then and _imported(path, mode))

    def _now(self, which: str) -> dict[str, str]:
        then = self._then[which]
        return file_digests(
            self._folders[which], lambda path, mode: path in then or _imported(path, mode) or _is_cached(path)
        )

    def require(self, python: str, parent: Parent, env: Mapping[str, str], log: Path) -> None:
        """Raise MachineError where something was changed, removed or added."""
        self._require_caches()
        problems: list[str] = []
        cached: list[str] = []
        for which, folder in self._folders.items():
            then, now = self._then[which], self._now(which)
            for path in _differ(then, now):
                if not _is_cached(path):
                    problems.append(f"{which}/{escaped(path)} {_became(path, then, now)}")
                elif path in now:
                    cached.append(str(folder / path))
        if cached and not problems:
            doctored = self._doctored(cached, python, parent, env, log)
            problems = [f"{which}/{escaped(path)} is not the bytecode of its source" for which, path in doctored]
        self._refuse(problems)

    def drop_bytecode(self, python: str, parent: Parent, env: Mapping[str, str], log: Path) -> None:
        """Remove the build's bytecode that does not match its source: proofs go by sources. Raises MachineError."""
        folders = self._folders.items()
        cached = [str(folder / path) for which, folder in folders for path in self._then[which] if _is_cached(path)]
        for which, path in self._doctored(cached, python, parent, env, log) if cached else ():
            with disk_errors("removed", self._folders[which] / path):
                (self._folders[which] / path).unlink()
            del self._then[which][path]

    def _refuse(self, problems: Sequence[str]) -> None:
        if problems:
            raise MachineError(
                f"{self.name}'s files were changed while it was measured: {problems[0]}{_more(problems)}: there is no "
                "verdict; find out what writes there, in head too; let cases write below $TMPDIR, and build under "
                "`build:`"
            )

    def _doctored(
        self, files: list[str], python: str, parent: Parent, env: Mapping[str, str], log: Path
    ) -> list[tuple[str, str]]:
        """Folder and path of bytecode that does not match its source. Raises MachineError where unknown."""
        log.unlink(missing_ok=True)
        listed = parent.scratch / f"bytecode-{self.name}.json"
        listed.write_text(json.dumps(files))
        parent.account.give(listed)
        # Of what decides how sources are compiled only this is not in the names of the files.
        ranges = ["-X", "no_debug_ranges"] if env.get("PYTHONNODEBUGRANGES") else []
        argv = [python, "-I", "-S", "-B", *ranges, str(BYTECODE), str(listed)]
        try:
            ended = parent.execute(argv, env=env, cwd=BYTECODE.parent, log=log, timeout=TIMEOUT)
            lines = log.read_text(errors="replace").splitlines()
            problem = None if ended.code == 0 and lines else ended.words()
            found = json.loads(lines[-1]) if problem is None else []
        except Died as died:
            problem = died.reason.text
        except ValueError:
            problem = "said nothing that can be read"
        if problem is not None:
            raise MachineError(f"{python}: cannot check the bytecode of {self.name}: it {problem} (log: {log})")
        below = {str(folder): which for which, folder in self._folders.items()}
        names = []
        for file in found:
            folder = next(folder for folder in below if file.startswith(f"{folder}{os.sep}"))
            names.append((below[folder], file[len(folder) + 1 :]))
        return names


@contextmanager
def beside(seals: Sequence[Seal]) -> Iterator[list[str]]:
    """Let code of all sides run at once. Yields a list of what Python could import and was not there before: it is
    removed, as nobody can tell which side made it. Raises MachineError."""
    before = [seal.importable() for seal in seals]
    made: list[str] = []
    yield made
    for seal, known in zip(seals, before, strict=True):
        for path in seal.strays(known):
            with disk_errors("removed", path):
                path.unlink()
            made.append(f"{seal.name}: {escaped(path.name)}")


def cache_digests(cache: Path, wanted: Callable[[str, int], bool] = lambda _path, _mode: True) -> dict[str, str]:
    """Return path → digest of the `wanted` files in a side's caches, without downloads, what is temporary and what
    grows with every use; of its homes only code. Raises MachineError."""

    def counts(path: str, mode: int) -> bool:
        pure = PurePosixPath(path)
        if pure.parts[0] == TEMPORARY or (pure.parts[0] in HOMES and not _is_code(path, mode)):
            return False
        return pure.parts[0] not in DOWNLOADS and not _GROWS.fullmatch(pure.name) and wanted(path, mode)

    return file_digests(cache, counts)


def _differ(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return sorted(path for path in then.keys() | now.keys() if then.get(path) != now.get(path))


def _became(path: str, then: Collection[str], now: Collection[str]) -> str:
    return "is new" if path not in then else "is gone" if path not in now else "was changed"


def _more(paths: Sequence[str]) -> str:
    return f", and {len(paths) - 1} more" if len(paths) > 1 else ""


def _is_code(path: str, mode: int) -> bool:
    executable = stat.S_ISREG(mode) and mode & stat.S_IXUSR
    return bool(executable) or path.endswith(_COMPILED) or _is_cached(path) or _imported(path, mode)


def _is_cached(path: str) -> bool:
    pure = PurePosixPath(path)
    return pure.suffix == ".pyc" and pure.parent.name == "__pycache__"


def _imported(path: str, mode: int) -> bool:
    """Python would import a file of this name, or a folder that its link leads to."""
    pure = PurePosixPath(path)
    if "__pycache__" in pure.parts:
        return False
    if stat.S_ISLNK(mode) and pure.name.isidentifier():
        return True
    return bool(_IMPORTED.fullmatch(pure.name)) or pure.name.endswith(tuple(all_suffixes()))
