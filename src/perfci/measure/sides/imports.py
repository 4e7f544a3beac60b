"""The stem imports once what suites and scripts import from outside base and head, as the sides' scouts ask for it.

Head's scout is a fork of the stem, which begins anew with what both ask for where they differ. Workers import what a
side provides, and what was asked for behind anything that differs between the sides, or behind other modules than in
the other: it could turn out otherwise there.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfci.measure.cases import Scouting
from perfci.measure.environments import differing_variables
from perfci.measure.place import Place
from perfci.measure.prepare import SideWork
from perfci.measure.proof.differing import Differing, cache_files, differing
from perfci.measure.proof.importing import Imported, at_work, module_names
from perfci.model.base import MachineError, Side
from perfci.model.results import IMPORT
from perfci.model.text import count, escaped, one_line
from perfci.system.child import Died
from perfci.system.files import write_atomic
from perfci.system.process import Spoiled, Stem
from perfci.worker.discover import matches

LOG = "imports.log"
TIMEOUT = 120.0
"""Seconds for a stem to import all asked for."""
TRIES = 4
"""Stems of a run, each without one module more."""
MOST, LONGEST = 2000, 200
"""Modules of a scout, and characters of a name."""


class Imports:
    """A run's imports paid once."""

    def __init__(self, place: Place) -> None:
        self.place, self.parent = place, place.parent
        self.bench = next(iter(place.benches.values()))
        self.lines: list[str] = []
        self.asked: dict[Side, dict[str, str]] = {}
        """Side → modules, in order → digest of what could decide how each turns out."""
        self.refused: dict[str, Spoiled] = {}
        self.untold: list[str] = []
        """Modules that scouts did not report."""
        self.wanted = self.parent.forks
        self.sides: list[SideWork] = []
        self.differs = Differing(frozenset(), frozenset())
        if not self.wanted:
            differ = differing_variables(place.sides)
            because = f": base and head differ in the environment: {', '.join(differ)}" if differ else ""
            self.nothing(f"workers are not forks of one process here{because}")
        else:
            # Before a scout leaves anything there.
            sides = [side for side in place.sides.values() if (side.suite or side.scripts) and not side.failure]
            caches = [cache_files(side) for side in sides]  # where modules from outside may look
            if any(one != caches[0] for one in caches):
                self.nothing("the builds of base and head left other caches")
            elif len(sides) > 1:
                found = differing(sides[0], sides[1])
                # A policy may name a file that is the same in both, and run it in another way.
                ours, theirs = (_runs(side, found.paths) for side in sides)
                odd = {file for file in ours.keys() | theirs.keys() if ours.get(file) != theirs.get(file)}
                self.differs = replace(found, paths=found.paths | {f"tree/{file}" for file in odd})

    @contextmanager
    def scouting(self, side: SideWork) -> Iterator[Scouting | None]:
        """Yield what a scout of the side needs, or None."""
        if not self.wanted:
            yield None
            return
        self.sides.append(side)
        asked, taken_back = self.asked.setdefault(side.name, {}), set[str]()
        first = self.sides[0]
        # An exclusive device has no room for a stem that asks for it: it goes without.
        stem = self._planted() if side is first and not self.place.exclusive("cuda") else None
        own = {
            path.name.partition(".")[0]
            for one in self.place.sides.values()
            for entry in _path(one)
            for path in Path(entry).iterdir()
            if path.suffix in (".py", ".so") or path.is_dir()
        }

        def tell(name: str, state: str) -> None:
            if not name:
                self.untold.append(f"each worker of {side.name} imports {one_line(state, 400)}")
            elif name.partition(".")[0] in own:
                return  # the stem leaves it to the side
            elif not state:
                asked.pop(name, None)
                taken_back.add(name)
            elif len(asked) < MOST and len(name) <= LONGEST and name not in asked:
                asked[name] = state
                if stem is not None:
                    stem.take(name, state)

        yield Scouting(self._differing(side), tell)
        if not self.wanted:
            if stem is not None:
                stem.close()
        elif side is first:
            if taken_back and stem is not None:
                stem.close()
                stem = None
            self._settle(stem, asked)
        elif list(asked.items()) != list(self.asked[first.name].items()):
            self._close()
            self._settle(None, _alike(self.asked[first.name], asked))

    def _differing(self, side: SideWork) -> dict[str, Any]:
        scripts = _script_folders(side)
        if not self.differs.paths or side.seal is None:
            return {"lines": {}, "paths": [], "folders": [], "scripts": scripts}
        lines: dict[str, int] = {}
        for files, folders in _roots(side):
            names = module_names(side.folder, [*folders, *side.path()], side.seal.files())
            for path, line in at_work(Imported(side.folder, names, files), self.differs.paths).items():
                # pytest calls hooks, and nothing shows that one has run.
                first = 1 if path.endswith("/conftest.py") else line
                lines[path] = min(filter(None, [first, lines.get(path, 0)]), default=0)
        paths, listed = sorted(self.differs.paths), sorted(self.differs.folders)
        return {"lines": lines, "paths": paths, "folders": listed, "scripts": scripts}

    def _planted(self) -> Stem | None:
        side = self.sides[0]
        log = self.bench.logs / f"{side.name}.log"
        try:
            with self.bench.costs.phase("start"):
                arenas = {
                    one.name: replace(one.arena(self.bench.threads, []), path=_path(one))
                    for one in self.place.sides.values()
                }
                own, others = arenas.pop(side.name), list(arenas.values())
                kinds = {"pytest" if script["tests"] else "script" for script in side.scripts}
                return Stem(self.parent, own, log, list(self.refused), others, kinds)
        except (Died, MachineError) as error:
            self.nothing(str(error))
            return None

    def _settle(self, stem: Stem | None, names: Mapping[str, str]) -> None:
        for _ in range(TRIES):
            if stem is None and (stem := self._planted()) is not None:
                for name, state in names.items():
                    stem.take(name, state)
            if stem is None:
                return None
            try:
                with self.bench.costs.phase("import"):
                    settled = stem.settle(TIMEOUT)
            except (MachineError, ValidationError) as error:
                stem.close()
                return self.nothing(str(error))
            if settled.fault is None:
                break
            self.refused[settled.fault.name] = settled.fault
            stem.close()
            stem = None
        else:
            return self.nothing("many of its modules must not be inherited")
        if settled.kept and len(self.place.sides) > 1:
            stem.close()
            return self.nothing(f"a module keeps {settled.kept} of its side, where that cannot be put right")
        self.parent.stem = stem
        self.parent.imported = settled.seconds
        shared = count(settled.modules, "module")
        self.lines = [f"{shared} imported once for all workers, in {settled.seconds:.1f} s"]
        if settled.stopped:
            self.lines.append(
                f"each worker imports {escaped(settled.stopped)}, and what follows, since the suite decides how: "
                "set variables under env: in perfci.yaml, and folders under path:"
            )
        return None

    def _close(self) -> None:
        if self.parent.stem is not None:
            self.parent.stem.close()
            self.parent.stem = None

    def nothing(self, why: str) -> None:
        """Let each worker import everything."""
        self.wanted = False
        self._close()
        self.lines = [f"each worker imports everything: {one_line(why, 300)}"]

    def left(self) -> dict[str, float]:
        """Return `import NAME` → seconds of workers' own imports."""
        found: dict[str, float] = {}
        for one in self.refused.values():
            name = f"import {one.name.partition('.')[0]}"
            found[name] = max(one.seconds, found.get(name, 0.0))
        return {name: seconds for name, seconds in found.items() if re.search(IMPORT, name)}

    def write(self) -> None:
        """Write the outcome to `imports.log`."""
        each = [f"each worker imports {escaped(one.name)}: it {escaped(one.why)}" for one in self.refused.values()]
        write_atomic(self.bench.logs / LOG, "\n".join([*self.lines, *self.untold, *each]) + "\n")


_RUN = ("args", "each", "tests", "device", "timers")
"""What a script's entry says of its run."""


def _runs(side: SideWork, differs: Collection[str]) -> dict[str, list[Any]]:
    """`differs`: a list of arguments among them is one side's alone."""
    found: dict[str, list[Any]] = {file: [] for files, _ in _roots(side) for file in files}
    for script in side.scripts:
        own = [side.name] if f"tree/{script['each']}" in differs else []
        for file in _files(side, script["file"]):
            found[file].append([[script[name] for name in _RUN], own])
    return found


def _roots(side: SideWork) -> Iterator[tuple[list[str], list[str]]]:
    """Files that the suite names, with conftest.py beside tests, and the folders that running them puts before the
    path."""
    yield sorted({file for glob in side.suite for file in _files(side, glob)}), []
    for script in side.scripts:
        for file in _files(side, script["file"]):
            above = [parent.as_posix() for parent in Path(file).parents]
            if script["tests"]:
                own = [(Path(folder) / "conftest.py").as_posix() for folder in above]
                beside = [one for one in own if (side.tree / one).is_file()]
                yield [file, *beside], [str((side.tree / folder).resolve()) for folder in above]
            else:
                yield [file], [str((side.tree / above[0]).resolve())]


def _files(side: SideWork, glob: str) -> list[str]:
    found = matches(side.tree, glob)
    return [] if isinstance(found, str) else found


def _script_folders(side: SideWork) -> list[str]:
    return list(dict.fromkeys(folder for _, folders in _roots(side) for folder in folders))


def _path(side: SideWork) -> list[str]:
    return list(dict.fromkeys([*side.path(), *_script_folders(side)]))


def _alike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """With the same settings, and after the same others from outside."""
    packages = [[name for name in asked if not _is_python(name)] for asked in (ours, theirs)]
    alike, odd = set[str](), set[str]()  # odd: what one side alone has asked for so far
    for mine, other in zip(*packages, strict=False):
        if mine == other and not odd:
            alike.add(mine)
        odd ^= {mine} ^ {other}
    same = {name: state for name, state in ours.items() if theirs.get(name) == state}
    return {name: state for name, state in same.items() if name in alike or _is_python(name)}


def _is_python(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names
