"""A scout of each side imports its suite."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfci.measure.bench import Bench
from perfci.measure.cases import Declarations, Scouting, load, may_match
from perfci.measure.place import LOAD_TIMEOUT, Place
from perfci.measure.prepare import SideWork, copy_cache, put_back_cache
from perfci.measure.sides.imports import Imports
from perfci.model.base import DeviceKind, Side, UsageError
from perfci.model.policy_text import FILE
from perfci.model.results import FileFailure
from perfci.model.text import did_you_mean, escaped
from perfci.system.builds import TOLD_AFTER
from perfci.system.child import Died
from perfci.system.files import disk_errors, remove_tree
from perfci.system.starter import Heard, Worker
from perfci.worker.discover import NO_FILE, matches
from perfci.worker.scripts.script import kernel_names

TRYING = 10.0
"""Seconds after which a scout tries no further case."""
QUIET = 5.0
"""Seconds without a line after which a script is named."""


def discover(
    place: Place, globs: Sequence[str], stage: Callable[[str], None], *, listing: bool = False
) -> dict[Side, Declarations]:
    """Return the suites' declarations; a stem imports what scouts ask for, unless `listing`. Raises MachineError.

    Scripts of which no case can match `globs` are not run, and a file whose import ends the process costs only that
    file.
    """
    bench, imports = next(iter(place.benches.values())), Imports(place)
    declarations: dict[Side, Declarations] = {}
    tries: list[_Try] = []
    scripts = any(side.scripts for side in place.sides.values())
    _require_files(place)
    if scripts or not listing:
        stage("discovering cases" + scripts * ": running the benchmarks, to find the calls of their timers")
    runs, names = _Runs(stage), dict[str, str]()
    device: DeviceKind = "cuda" if "cuda" in place.facts.devices or place.lost else "cpu"
    for name, side in place.sides.items():
        names = kernel_names([file for one in side.scripts for file in _files(side, one)], names)
        asked = {file: kernel for file, kernel in names.items() if not globs or may_match(globs, kernel)}
        for one in side.scripts:
            listed = [
                known for other in declarations.values() for known in other.scripts if known["tests"] == one["tests"]
            ]
            one["base"] = {known["file"]: known["listed"] for known in listed}
            one.update(names=asked, device=one["device"] or device, chosen=one["device"] is None)
        declarations[name], runs.side = Declarations(), name
        if side.failure or not (side.suite or side.scripts):
            continue
        with side.own(), nullcontext() if listing else imports.scouting(side) as scouting:
            try:
                devices = [] if place.shared else list(place.benches)
                declarations[name] = _load(bench, side, side.suite, side.scripts, devices, runs, scouting, tries)
            except Died:
                imports.nothing("a suite file ends the process that imports it")
                declarations[name] = _load_one_by_one(bench, side, runs)
        declarations[name].unrun = sorted(names[file] for file in names.keys() - asked.keys())
        declarations[name].imports = imports.left()
        side.scripts = declarations[name].scripts
    _settle_caches(tries)
    imports.write()
    return declarations


def _require_files(place: Place) -> None:
    """Raises UsageError for a script that head's policy names, and neither side has, though they are built."""
    trees, head = [side.tree for side in place.sides.values()], place.sides["head"]
    if any(side.failure for side in place.sides.values()):
        return
    for glob in dict.fromkeys(one["file"] for one in head.scripts):
        if all(matches(tree, glob) == NO_FILE for tree in trees):
            known = sorted(path.relative_to(head.tree).as_posix() for path in head.tree.rglob("*.py"))
            told = did_you_mean(glob, known, "write a glob relative to the repository's root")
            raise UsageError(f"{FILE}: suite: {glob}: matches no file: {told}")


@dataclass
class _Runs:
    """Names scripts that run while nothing else is said."""

    stage: Callable[[str], None]
    side: Side = "head"
    said: float = field(default_factory=time.monotonic)

    def hear(self, file: str) -> None:
        if time.monotonic() - self.said > QUIET:
            self.stage(f"discovering cases: {escaped(file, 200)} ({self.side})")
            self.said = time.monotonic()


def _files(side: SideWork, script: Mapping[str, Any]) -> list[str]:
    named = matches(side.tree, script["file"])
    return [] if isinstance(named, str) else named


@dataclass
class _Try:
    side: SideWork
    before: Path
    """A copy of the side's caches."""
    cached: dict[str, str]
    """Of `before`, when it was made: the other side's code runs until it is put back."""
    compiled: bool = False
    """A compiler took long."""
    whole: bool = False


def _settle_caches(tries: Sequence[_Try]) -> None:
    """Drop what cases leave in the sides' caches, by which base and head would differ, unless a compiler took long for
    it, which each would build once more."""
    kept = any(each.compiled for each in tries) and all(each.whole for each in tries)
    for each in tries:
        if kept:
            with disk_errors("removed", each.before):
                remove_tree(each.before)
        else:
            put_back_cache(each.side, each.before)
            if each.side.seal is not None:
                each.side.seal.require_caches(each.cached)


def _load(
    bench: Bench,
    side: SideWork,
    suite: list[str],
    scripts: list[dict[str, Any]],
    devices: Sequence[DeviceKind],
    runs: _Runs,
    scouting: Scouting | None,
    tries: list[_Try],
) -> Declarations:
    def hear(heard: Heard) -> None:
        if heard.runs:
            runs.hear(heard.runs)
        elif heard.asked and scouting is not None:
            scouting.tell(*heard.asked)

    with bench.costs.phase("start"):
        worker = bench.parent.worker(side.arena(bench.threads, bench.cores), bench.logs / f"{side.name}.log")
    try:
        with bench.costs.phase("import"):
            timeout = max(bench.timeout, LOAD_TIMEOUT)
            declarations = load(side, worker, suite, scripts, timeout, bench.forbidden, hear, scouting)
            if scouting is not None and devices:
                _try(bench, side, worker, devices, hear, tries)
            return declarations
    finally:
        worker.close()


def _try(
    bench: Bench,
    side: SideWork,
    worker: Worker,
    devices: Sequence[DeviceKind],
    hear: Callable[[Heard], None],
    tries: list[_Try],
) -> None:
    before = side.folder / "before"
    try:
        copy_cache(side, before, bench.parent.account)
    except OSError:  # such as for a socket, which no copy is like: each worker imports the rest
        with disk_errors("removed", before):
            remove_tree(before)
        return
    tries.append(tried := _Try(side, before, side.seal.caches() if side.seal is not None else {}))
    counted = bench.parent.builds.seconds
    with suppress(Died):  # whatever is wrong, checks will say so
        worker.begin("try", devices=devices, seconds=TRYING)
        worker.answer(TRYING + bench.timeout, hear)
        tried.whole = True
    worker.close()
    tried.compiled = bench.parent.builds.seconds - counted > TOLD_AFTER


def _load_one_by_one(bench: Bench, side: SideWork, runs: _Runs) -> Declarations:
    whole = Declarations()
    working: list[str] = []
    files = sorted({str(p.relative_to(side.tree)) for glob in side.suite for p in side.tree.glob(glob) if p.is_file()})
    singles: list[tuple[str, list[str], list[dict[str, Any]]]] = [(file, [file], []) for file in files]
    for script in side.scripts:
        each = [file for file in _files(side, script) if file in script["names"]]
        each += [script["file"]] * isinstance(matches(side.tree, script["file"]), str)
        singles += [(file, [], [dict(script, file=file)]) for file in each]
    for file, suite, scripts in singles:
        try:
            one = _load(bench, side, suite, scripts, [], runs, None, [])
        except Died as died:
            text = f"importing it ended the process: {died.reason.text}"
            reason = died.reason.model_copy(update={"text": text, "log": f"logs/{side.name}.log"})
            one = Declarations(files=[FileFailure(side=side.name, file=file, reason=reason)], broken={file})
        else:
            working += suite
        whole.cases.update(one.cases)
        whole.files += one.files
        whole.suite += one.suite
        whole.scripts += one.scripts
        whole.broken |= one.broken
    side.suite = working
    return whole
