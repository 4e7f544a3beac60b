"""Tells which modules a suite asks for, whether they are there or not."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any, Callable, NamedTuple, Optional

from .. import discover


class Group(NamedTuple):
    """All that an import of a stem brought."""

    modules: dict[str, Any]
    variables: dict[str, Optional[str]]
    """Of the environment, with their values; None where one was taken away."""
    path: list[str]
    finders: list[Any]


Groups = dict[str, Group]
"""Module that was asked for → what came with it."""


class Traces:
    """Where imports leave traces beside their modules, as it is now."""

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


_OWN = frozenset({"CUDA_MODULE_LOADING"})
"""Variables that torch sets as it uses the GPU first."""


class Settings:
    """All that decides how a module turns out beside its code, and code of a suite may change before it imports one."""

    def __init__(self, folder: str, path: Sequence[str]) -> None:
        """`folder`: the side's; `path`: its entries of `sys.path`."""
        self.folder, self.path, self.start = folder, set(path), os.getcwd()

    def digest(self) -> str:
        """Return the same text in a scout and in a stem, of base and of head, where nothing but imports came before."""
        environment = sorted(
            (name, value.replace(self.folder, "")) for name, value in os.environ.items() if name not in _OWN
        )
        path = [entry for entry in sys.path if entry and entry not in self.path]
        finders = [type(one).__name__ for one in sys.meta_path if not isinstance(one, Finder)]
        # torch's compiler makes modules of its own.
        stubs = sorted(
            name
            for name, one in sys.modules.items()
            if getattr(one, "__spec__", None) is None and name.partition(".")[0] not in ("perfci", "torch")
        )
        told = [environment, path, finders, stubs, os.getcwd() == self.start]
        return hashlib.sha256(repr(told).encode("utf-8", "replace")).hexdigest()


class Finder:
    """A finder of perfci's own."""


class Asked(Finder):
    """A finder that finds nothing but what a stem has: it tells the modules that the suite itself asks for."""

    def __init__(self, setup: dict[str, Any], tell: Callable[[str, str], None]) -> None:
        """`setup`: of the worker; what its stem has is taken away, and comes back as it is asked for. `tell`: is told
        each module, and a digest of the settings then."""
        root, site, path = setup["tree"], setup["site"], setup["path"]
        groups, plain, self.moved = setup.get("groups", {}), setup.get("plain", {}), setup.get("first", "")
        self.own = [os.path.realpath(root), os.path.realpath(site)]
        self.settings = Settings(os.path.dirname(site), path)
        self.tell, self.process, self.lock = tell, os.getpid(), threading.Lock()
        self.hidden = {name: group for group in groups.values() for name in group.modules}
        for name, group in self.hidden.items():
            above, _, last = name.rpartition(".")
            there = sys.modules.pop(name, None)
            if there is not None and vars(sys.modules.get(above, self)).get(last) is group.modules[name]:
                delattr(sys.modules[above], last)
        for group in groups.values():
            for name in group.variables:
                os.environ.pop(name, None)
                if name in plain:
                    os.environ[name] = plain[name]
            sys.path[:] = [entry for entry in sys.path if entry not in group.path]
            sys.meta_path[:] = [one for one in sys.meta_path if one not in group.finders]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let others find it, or give back what the stem has."""
        # A child that the suite forks has no part in this.
        if os.getpid() == self.process and self._is_own(sys._getframe(1)):
            with self.lock:
                self.tell(name, self.settings.digest())
        group = self.hidden.get(name)
        if group is None:
            return None
        for one in group.modules:
            self.hidden.pop(one, None)
        others = {one: module for one, module in group.modules.items() if one != name}
        sys.modules.update(others)  # this one comes by its loader: importlib would load again what is there meanwhile
        for one, module in others.items():
            above, _, last = one.rpartition(".")
            if above in group.modules or above in sys.modules:
                setattr(group.modules.get(above) or sys.modules[above], last, module)
        for variable, value in group.variables.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value.replace(self.moved, self.settings.folder)
        sys.path += group.path
        sys.meta_path += group.finders
        return ModuleSpec(name, _There(group.modules[name]))

    def _is_own(self, frame: Optional[FrameType]) -> bool:
        """Tell whether code of the side asks, or called what does; not so while a module from outside is imported."""
        while frame is not None:
            code, package = frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]
            if package == __name__.partition(".")[0]:
                return False
            if package not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
                file = code.co_filename  # of some code no file, such as <string>
                if os.path.isabs(file) and discover.inside(os.path.realpath(file), self.own):
                    return True
                if code.co_name == "<module>":
                    return False
            frame = frame.f_back
        return False


class _There(Loader):
    """A loader of what is loaded."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def create_module(self, spec: Any) -> Any:
        return self.module

    def exec_module(self, module: Any) -> None:
        pass
