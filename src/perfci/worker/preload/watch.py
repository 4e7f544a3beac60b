"""Watches imports: which modules are looked for, loaded and complete, and what must not be loaded."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType
from typing import Any

from ..discover import PACKAGES, inside
from .inherited import changed, state

HARMLESS = frozenset({"torch", "numpy", "filelock", "fsspec", "huggingface_hub", "joblib"})
"""Packages whose handlers of forks make a child ready: locks and loops anew. So do those of the standard library."""


class Watch:
    """A finder that finds nothing: it notes which modules are looked for, and which are complete."""

    def __init__(
        self,
        claimed: set[str],
        empty: set[str],
        distributions: set[str],
        forbidden: Sequence[str],
        refused: dict[str, str],
    ) -> None:
        """`claimed`: top-level names that a side provides; `empty`: those of folders that hold no code but make a
        namespace package in every side; `distributions`: packages installed into a side; `forbidden`: folders whose
        code must not run here, where it could reach the workers of both sides."""
        self.claimed, self.empty, self.distributions, self.refused = claimed, empty, distributions, refused
        self.forbidden = [Path(os.path.realpath(folder)) for folder in forbidden]
        self.packages = [Path(os.path.realpath(sysconfig.get_path(kind))) for kind in ("purelib", "platlib")]
        self.order: list[str] = []
        self.needs: dict[str, set[str]] = {}
        """Module → those that it asks for while it is loaded."""
        self.faults: dict[str, str] = {}
        """Module → why a worker must import it itself: the innermost one that was being loaded."""
        self.fault = ""
        """Something that was otherwise in the end, but after no module."""
        self.unit = ""
        """The module that the suite asks for."""
        self._loading: list[str] = []
        self._state = self._first = state()
        self._links: dict[str, str] = {}
        self._spaces: list[tuple[ModuleSpec, str]] = []
        """Specs that stand for a namespace package, each with the module that asked for it."""
        self._suspects: dict[str, list[str]] = {}
        """A thing that may not be inherited → the modules that changed it as they were loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let others find it. Raises ModuleNotFoundError for what a side may have.

        A namespace package of all sides is found, with nothing in it: a library asks whether there is one
        (transformers looks for `kernels`). None may keep it, since it would be that of no side.
        """
        if name.partition(".")[0] in self.claimed or name.partition(".")[0] in self.empty - {name}:
            self._deny(f"looks for {name}, which the repository may provide", name)
        if name not in self.empty:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        self._spaces.append((spec, self._loading[-1] if self._loading else self.unit))
        return spec

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """Find none; note a question that a worker would answer otherwise (importlib.metadata)."""
        name = getattr(context, "name", None)
        if self.distributions and (name is None or normal(name) in self.distributions):
            self._blame(f"asks which version of {name or 'all packages'} is installed")
        return iter(())

    def _deny_repository(self, spec: Any) -> None:
        """Raise ModuleNotFoundError for the repository's own code, which an editable installation or a path may lead
        to; an environment's packages may lie inside the repository."""
        for place in [spec.origin, *(spec.submodule_search_locations or [])]:
            path = Path(os.path.realpath(place)) if isinstance(place, str) and os.path.isabs(place) else None
            if path is not None and inside(path, self.forbidden) and not inside(path, self.packages):
                self._deny("is the repository's own code", spec.name)

    def settle(self) -> None:
        """Blame the modules after which something was otherwise that still is, and those that keep what stood for a
        namespace package."""
        gc.collect()
        made = [sys.modules.pop(name) for name in self.empty if name in sys.modules]
        kept = {one.__name__ for one in made if sys.getrefcount(one) > 3}  # the list, the loop and the argument
        for one in made:
            one.__spec__ = None
        del made
        while self._spaces:
            spec, asker = self._spaces.pop()
            if spec.name in kept or sys.getrefcount(spec) > 2:  # the variable and the argument
                self.faults.setdefault(asker, f"keeps {spec.name}, which the repository provides")
        for what in changed(self._first, state()):
            self.fault = self.fault or ("" if what in self._suspects else what)
            for name in self._suspects.get(what, []):
                self.faults.setdefault(name, what)

    def _blame(self, fault: str) -> None:
        self.faults.setdefault(self._loading[-1] if self._loading else self.unit, fault)

    def loaded(self, name: str) -> None:
        """Note what the loading of a module changed, and that of those within it did not."""
        now = state(self._links)
        for what in changed(self._state, now):
            self._suspects.setdefault(what, []).append(name)
        self._state = now

    def _note(self, name: str) -> None:
        if self._loading:
            self.needs.setdefault(self._loading[-1], set()).add(name)

    def _deny(self, fault: str, name: str) -> None:
        self._blame(fault)
        raise ModuleNotFoundError(f"{name} is not loaded here", name=name)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch imports and handlers of forks."""
        machinery: Any = importlib._bootstrap
        load, register, ordinary = machinery._load_unlocked, os.register_at_fork, builtins.__import__

        def loaded(spec: Any) -> Any:
            self._note(spec.name)
            if spec.name in self.refused:  # not before: to ask whether it is there does no harm
                self._deny(f"needs {spec.name}", spec.name)
            self._deny_repository(spec)
            self._loading.append(spec.name)
            try:
                module = load(spec)
            finally:
                self._loading.pop()
                self.loaded(spec.name)
                if "." in spec.name:
                    self.needs.setdefault(spec.name, set()).add(spec.name.rpartition(".")[0])
            self.order.append(spec.name)
            return module

        def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            made = ordinary(name, globals, locals, fromlist, level)
            whole = name if not level else getattr(made, "__name__", name)  # of `from . import`, the package
            for one in (whole, *(f"{whole}.{part}" for part in fromlist or ())):
                if one in sys.modules:
                    self._note(one)
            return made

        def registered(**handlers: Any) -> None:
            if not _harmless(sys._getframe(1)):
                self._blame("has a handler of forks")
            register(**handlers)

        machinery._load_unlocked, os.register_at_fork, builtins.__import__ = loaded, registered, imported
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            machinery._load_unlocked, os.register_at_fork, builtins.__import__ = load, register, ordinary
            sys.meta_path.remove(self)


def _harmless(frame: FrameType) -> bool:
    """Tell whether the code that registers a handler of forks is known to make a child ready."""
    library = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
    file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    if name.partition(".")[0] in HARMLESS or file.startswith("<frozen"):
        return True
    file = os.path.realpath(file)
    return file.startswith(library) and PACKAGES.isdisjoint(file.split(os.sep))


def normal(name: str) -> str:
    """Return the normalised name of a distribution (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()
