"""Open the store that a text names: a folder, `git:BRANCH` or `git:URL#BRANCH`."""

import re
from pathlib import Path

from perfci.history.stores.base import LARGEST, MOST_NIGHTS, Fault, Store
from perfci.model.base import UsageError
from perfci.model.text import escaped

__all__ = ["LARGEST", "MOST_NIGHTS", "Fault", "Store", "open_store"]


def open_store(text: str, where: Path | None = None) -> Store:
    """Open a store; `where`: folder that `git:BRANCH` and relative paths start from. Raises UsageError.

    Nothing is read yet.
    """
    here = Path.cwd() if where is None else where
    if text.startswith("git:"):
        from perfci.history.stores.branch import open_branch

        return open_branch(text.removeprefix("git:"), here)
    if not text or text.startswith("~") or re.match(r"[a-z][a-z0-9+.-]*:", text, re.IGNORECASE):
        raise UsageError(f"{escaped(text, 200)!r}: is no store: name a folder, git:BRANCH or git:URL#BRANCH")
    from perfci.history.stores.folder import FolderStore

    return FolderStore(here / text)
