"""Reports which modules a suite asks for, whether they are there or not."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import tokenize
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import BuiltinImporter, ExtensionFileLoader, ModuleSpec
from importlib.util import source_from_cache
from types import FrameType, ModuleType
from typing import Any, Callable, NamedTuple, Optional

from .. import discover
from . import Finder


class Group(NamedTuple):
    """All that an import of a stem brought."""

    modules: dict[str, Any]
    variables: dict[str, Optional[str]]
    """Of the environment; None where one was removed."""
    path: list[str]
    finders: list[Any]


Groups = dict[str, Group]
"""Module asked for → what came with it."""


class Traces:
    """The traces that imports leave beside their modules."""

    def __init__(self) -> None:
        self.variables, self.path, self.finders = dict(os.environ), list(sys.path), list(sys.meta_path)
        self.modules = set(sys.modules)

    def since(self) -> Group:
        """Return what was added since."""
        gone = dict.fromkeys(self.variables.keys() - os.environ.keys())
        return Group(
            {name: sys.modules[name] for name in sys.modules.keys() - self.modules},
            {**gone, **{name: value for name, value in os.environ.items() if self.variables.get(name) != value}},
            [entry for entry in sys.path if entry not in self.path],
            [one for one in sys.meta_path if one not in self.finders],
        )


_HEARD = frozenset({"ctypes.dlopen", "exec", "import", "open", "os.chdir", "os.listdir", "os.scandir"})
_BOOTSTRAP = "<frozen importlib._bootstrap_external>"
_MOST_LINKS = 40
"""On the way of one name (path_resolution(7))."""
_OWN = frozenset({"CUDA_MODULE_LOADING", "PYTEST_CURRENT_TEST", "PYTEST_VERSION"})
"""torch sets them at its first use of the GPU, and pytest in each run."""


class Settings:
    """What decides how a module turns out beside its code, and a suite may change."""

    def __init__(self, folder: str, path: Sequence[str]) -> None:
        self.folder, self.path, self.start = folder, set(path), _folder()
        self.blank = "" in sys.path

    def digest(self) -> str:
        """Return the same text in scout and stem, of base and head, after imports alone."""
        environment = sorted(
            (name, value.replace(self.folder, "")) for name, value in os.environ.items() if name not in _OWN
        )
        path = [entry for entry in sys.path if entry and entry not in self.path]
        finders = [type(one).__name__ for one in sys.meta_path if not isinstance(one, Finder)]
        stubs = [
            name
            for name, one in list(sys.modules.items())
            if isinstance(one, ModuleType) and one.__dict__.get("__spec__") is None and not _is_made(name)
        ]
        here = [_folder() == self.start, ("" in sys.path) == self.blank]
        torch = sys.modules.get("torch")
        dtype = getattr(torch, "get_default_dtype", lambda: "")()
        told = [environment, path, finders, sorted(stubs), here, str(dtype)]
        return hashlib.sha256(repr(told).encode("utf-8", "replace")).hexdigest()


def _is_made(name: str) -> bool:
    """By a library: torch's compiler, Cython's runtime, one in C (pyexpat)."""
    top = name.partition(".")[0]
    above = getattr(getattr(sys.modules.get(top), "__spec__", None), "loader", None)
    return (
        top in ("cython_runtime", "perfci", "torch")
        or top.startswith("_cython_")
        or (top != name and (isinstance(above, ExtensionFileLoader) or above is BuiltinImporter))
    )


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""  # it was removed


class Difference:
    """Tells whether what differs between the sides has run or been read in this process, a scout."""

    def __init__(self, folder: str, differing: dict[str, Any], told: Callable[[], None]) -> None:
        """`differing`, below `folder`, the side's: `lines`, module that depends on what differs → first line that acts
        at import, or 0; `paths`; `folders`, whose listing differs. `told`: called when code of the side, or what it
        calls, reads one."""
        top = os.path.realpath(folder)
        self.lines: dict[str, int] = {}
        for path, line in differing["lines"].items():  # a link stands for what it leads to
            real = os.path.realpath(os.path.join(top, path))
            self.lines[real] = min(filter(None, [line, self.lines.get(real, 0)]), default=0)
        self.paths = {os.path.join(top, path) for path in differing["paths"]} - self.lines.keys()
        self.folders = {os.path.join(top, path) for path in differing["folders"]}
        self.top, self.told, self.process = os.path.join(top, ""), told, os.getpid()
        self.begun: set[str] = set()
        """Files in `lines` whose code was executed."""
        self.seen = ""
        """The evidence, as a clause."""
        self.own = threading.local()
        """Has `work` while the thread does perfci's own."""
        if self.lines or self.paths or self.folders:
            sys.addaudithook(self._hear)

    def works(self, frame: Optional[FrameType]) -> str:
        """Return why what differs was at work when `frame` asks for a module."""
        running: dict[str, int] = {}
        while frame is not None and not self.seen:
            file = discover.real_file(frame.f_code.co_filename)
            if file in self.lines and frame.f_code.co_name != "<module>":
                self.see(file, "runs")
            running[file] = frame.f_lineno
            frame = frame.f_back
        for file in sorted(self.begun):
            line, now = self.lines[file], running.get(file)
            if line and (now is None or now >= line):
                self.see(file, f"line {line} does more than define")
        return self.seen

    def see(self, file: str, what: str) -> None:
        """Record that `file`, which depends on what differs, was at work."""
        self.seen = self.seen or f"{self._shown(file)} depends on what differs, and {what}"

    def _shown(self, path: str) -> str:
        return path.replace(self.top, "").removeprefix("tree/")

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event not in _HEARD or self.seen or hasattr(self.own, "work"):
            return
        name = given[1] if event == "import" else given[0]
        if event == "import" and name is None:
            return  # a library alone is told with its file
        self.own.work = True
        try:
            if event == "exec":
                self.begun |= {discover.real_file(name.co_filename)} & self.lines.keys()
            elif (
                os.getpid() == self.process
                and (path := self._differing(event, os.fsdecode(name or ".")))
                and self._is_asked_by_side()
            ):
                self.seen = f"{self._shown(path)} is read, and differs"
                self.told()
        except (AttributeError, TypeError, ValueError):
            pass  # a descriptor, no name of a file, or no code of one
        finally:
            del self.own.work

    def _differing(self, event: str, name: str) -> str:
        way, caller = _way(name), sys._getframe(2).f_code.co_filename
        if event in ("os.listdir", "os.scandir"):
            if caller == getattr(sys.modules.get("importlib.metadata"), "__file__", None):
                way += [one for one in self.paths if os.path.dirname(one) == way[-1] and discover.is_metadata(one)]
            elif way[-1] in self.folders and caller != _BOOTSTRAP:  # which lists folders for names that it then opens
                return way[-1]
        else:
            if "/__pycache__/" in way[-1]:
                way.append(source_from_cache(way[-1]))
            # The code of `lines` is known, as it is imported, and as a compiler of kernels reads its source.
            if way[-1] in self.lines and (event == "import" or caller not in (_BOOTSTRAP, tokenize.__file__)):
                return way[-1]
        return next((path for path in way if path in self.paths), "")

    def _is_asked_by_side(self) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return True  # whoever started it
        frame: Optional[FrameType] = sys._getframe(2)
        while frame is not None and not discover.real_file(frame.f_code.co_filename).startswith(self.top):
            frame = frame.f_back
        return frame is not None


def _way(name: str) -> list[str]:
    """Real paths of folders and links on a name's way (path_resolution(7)), then of its target."""
    todo = os.path.join(_folder(), name).split("/")[::-1]
    path, way, links = "/", ["/"], 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        path = os.path.dirname(path) if part == ".." else os.path.join(path, part)
        way.append(path)
        try:
            target = os.readlink(path)
        except OSError:
            continue  # it is no link, or not there
        links += 1
        if links > _MOST_LINKS:
            break
        path = "/" if target.startswith("/") else os.path.dirname(path)
        todo += target.split("/")[::-1]
        way.append(path)
    return way


class AskingFinder(Finder):
    """A finder of only what a stem has, which reports the modules that the suite itself asks for."""

    def __init__(self, setup: dict[str, Any], differing: dict[str, Any], tell: Callable[[str, str], None]) -> None:
        """`setup`: modules of its stem are removed, and come back when asked for. `differing`: as `Difference` takes
        it, with `scripts`, the folders that running those puts before the path. `tell`: see `Scouting` of
        measure/cases.py; takes a module back if what differs was read meanwhile."""
        root, site, path = setup["tree"], setup["site"], [*differing["scripts"], *setup["path"]]
        groups, plain, self.moved = setup.get("groups", {}), setup.get("plain", {}), setup.get("first", "")
        self.own = [os.path.realpath(root), os.path.realpath(site)]
        self.settings = Settings(os.path.dirname(site), path)
        self.tell, self.process, self.lock = tell, os.getpid(), threading.RLock()
        self.difference = Difference(os.path.dirname(site), differing, self.withdraw)
        self.told: list[str] = []
        self.stopped = False
        self.hidden = {name: group for group in groups.values() for name in group.modules}
        self.packages: dict[str, Any] = {}
        """Package of each hidden module that was its attribute: after `from .x import x` there, another is."""
        for name, group in self.hidden.items():
            above, _, last = name.rpartition(".")
            there = sys.modules.pop(name, None)
            if there is not None and vars(sys.modules.get(above, self)).get(last) is group.modules[name]:
                self.packages[name] = sys.modules[above]
                delattr(sys.modules[above], last)
        for group in groups.values():
            for name in group.variables:
                os.environ.pop(name, None)
                if name in plain:
                    os.environ[name] = plain[name]
            sys.path[:] = [entry for entry in sys.path if entry not in group.path]
            sys.meta_path[:] = [one for one in sys.meta_path if one not in group.finders]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Leave it to others, or return what the stem has."""
        if _only_looks(sys._getframe(1)):
            there = self.hidden.get(name)
            return None if there is None else there.modules[name].__spec__
        # A child that the suite forks has no part in this.
        if os.getpid() == self.process and self._is_own(sys._getframe(1)):
            with self.lock:
                if self.difference.works(sys._getframe(1)):
                    self._stop(name)
                else:
                    self.told.append(name)
                    self.tell(name, self.settings.digest())
        group = self.hidden.get(name)
        if group is None:
            return None
        for one in group.modules:
            self.hidden.pop(one, None)
        others = {one: module for one, module in group.modules.items() if one != name}
        sys.modules.update(others)  # this one comes by its loader: importlib would load again what is there meanwhile
        for one, module in others.items():
            if one in self.packages:
                setattr(self.packages[one], one.rpartition(".")[2], module)
        for variable, value in group.variables.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value.replace(self.moved, self.settings.folder)
        sys.path += group.path
        sys.meta_path += group.finders
        return ModuleSpec(name, _There(group.modules[name]))

    def ended(self, suite: str) -> bool:
        """Tell whether what a suite file's cases import is not reported."""
        with self.lock:
            if self.depends(suite):
                self.difference.see(suite, "its case runs")
            if self.difference.seen:
                self._stop("what cases ask for")
        return bool(self.difference.seen)

    def ran(self, script: str) -> None:
        """Hear that a script has run, or its tests."""
        if self.depends(script):
            self.difference.see(discover.real_file(os.path.join(self.own[0], script)), "has run")

    def depends(self, suite: str) -> bool:
        """Tell whether a suite file depends on what differs."""
        return discover.real_file(os.path.join(self.own[0], suite)) in self.difference.lines

    def withdraw(self) -> None:
        """Withdraw the modules being imported."""
        with self.lock:
            for name in self.told:
                if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                    self.tell(name, "")
                    self._stop(name)

    def _stop(self, name: str) -> None:
        if not self.stopped:
            self.tell("", f"{name}, and what follows: {self.difference.seen}")
        self.stopped = True

    def _is_own(self, frame: Optional[FrameType]) -> bool:
        """False while a module from outside is imported."""
        while frame is not None:
            code, package = frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]
            if package == __name__.partition(".")[0] and code.co_name != "find_spec":
                return False
            if package not in ("importlib", "_frozen_importlib", "_frozen_importlib_external", "perfci"):
                file = code.co_filename  # of some code no file, such as <string>
                if os.path.isabs(file) and discover.inside(os.path.realpath(file), self.own):
                    return True
                if code.co_name == "<module>":
                    return False
            frame = frame.f_back
        return False


def _only_looks(frame: Optional[FrameType]) -> bool:
    """`importlib.util.find_spec` calls a finder, and no import."""
    while frame is not None and frame.f_code.co_name in ("find_spec", "_find_spec"):
        if frame.f_globals.get("__name__") == "importlib.util":
            return True
        frame = frame.f_back
    return False


class _There(Loader):
    def __init__(self, module: Any) -> None:
        self.module = module

    def create_module(self, spec: Any) -> Any:
        return self.module

    def exec_module(self, module: Any) -> None:
        pass
