"""A tree that a script is not to write into."""

from __future__ import annotations

import builtins
import functools
import os
import shutil
import tempfile
from typing import Any

from .timers import here


class Copies:
    """Writes of a script into the tree go into copies elsewhere."""

    def __init__(self, tree: str) -> None:
        self.tree = os.path.join(os.path.realpath(tree), "")
        self.open = builtins.open

    @functools.cached_property
    def folder(self) -> str:
        """Where copies are, made at the first write."""
        return tempfile.mkdtemp(prefix="perfci-written-")

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file, as `open` does."""
        if here.within and isinstance(file, (str, os.PathLike)):
            path, writes = os.path.realpath(os.fspath(file)), bool(set(mode) & set("wax+"))
            if path.startswith(self.tree) and (writes or "folder" in vars(self)):
                copy = os.path.join(self.folder, path[len(self.tree) :])
                if writes:
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    if os.path.exists(path) and not os.path.exists(copy):
                        shutil.copy(path, copy)
                if os.path.exists(copy):
                    file = copy
        return self.open(file, mode, *args, **kwargs)
