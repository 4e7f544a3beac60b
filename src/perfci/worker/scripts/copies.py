"""A tree that a script is not to write into."""

from __future__ import annotations

import builtins
import os
import shutil
import tempfile
from typing import Any

from .timers import here


class Copies:
    """Writes of a script into the tree go into copies elsewhere."""

    def __init__(self, tree: str) -> None:
        self.tree = os.path.join(os.path.realpath(tree), "")
        self.folder = tempfile.mkdtemp(prefix="perfci-written-")
        self.open = builtins.open

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file, as `open` does."""
        if here.within and isinstance(file, (str, os.PathLike)):
            path = os.path.realpath(os.fspath(file))
            if path.startswith(self.tree):
                copy = os.path.join(self.folder, path[len(self.tree) :])
                if set(mode) & set("wax+"):
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    if os.path.exists(path) and not os.path.exists(copy):
                        shutil.copy(path, copy)
                if os.path.exists(copy):
                    file = copy
        return self.open(file, mode, *args, **kwargs)
