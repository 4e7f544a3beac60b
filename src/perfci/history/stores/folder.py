"""A store in a folder: files are linked into place once they are on the disk."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfci.history.stores.base import LARGEST, MOST_LISTED, TOP, BadNight, Listed, Store, made
from perfci.model.base import MachineError
from perfci.model.text import escaped
from perfci.system.files import disk_errors, write_new

_LITTER = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""Not linked yet, or left by a killed writer."""
_DEEPEST = 3
"""Levels of a store: `nights`, a year, a month."""


class FolderStore(Store):
    """Nights below a folder, if any. Links in it are never followed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder

    def _list(self) -> Iterator[Listed]:
        if self.folder.exists() and not self.folder.is_dir():
            raise MachineError(f"{escaped(self.folder)}: is no folder: name one for the history")
        yield from self._within(TOP, 1)

    def _within(self, name: str, depth: int) -> Iterator[Listed]:
        path = self.folder / name
        with disk_errors("read", path):
            if path.is_symlink():
                self.fault(name, "is a link, and links are not followed")
                return
            if depth == 1 and not path.exists():
                return
            with os.scandir(path) as entries:
                for number, entry in enumerate(entries):
                    if number == MOST_LISTED:
                        self.fault(name, f"holds more than {MOST_LISTED} names: the others were not read")
                        return
                    if _LITTER.fullmatch(entry.name):
                        continue  # before it is looked at: its writer may be about to remove it
                    inner = f"{name}/{entry.name}"
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode) and depth < _DEEPEST:
                        yield from self._within(inner, depth + 1)
                    elif stat.S_ISREG(status.st_mode):
                        yield Listed(inner, status.st_size)
                    elif not stat.S_ISREG(status.st_mode):
                        self.fault(inner, "is no ordinary file")

    def _fetch(self, names: Sequence[str]) -> Iterator[bytes | BadNight]:
        for name in names:
            try:
                yield self._content(name)
            except BadNight as why:
                yield why

    def _content(self, name: str) -> bytes:
        try:
            # A pipe under that name must not block, nor a link lead elsewhere.
            fd = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise BadNight("is no ordinary file")
                return file.read(min(status.st_size, LARGEST) + 1)  # which takes memory for as much as is asked for
        except OSError as error:
            raise BadNight(f"cannot be read ({error.strerror})") from None

    def _create(self, name: str, content: bytes) -> bool:
        path = self.folder / name
        for folder in reversed(path.relative_to(self.folder).parents):
            if (self.folder / folder).is_symlink() and folder != Path():
                raise MachineError(f"{escaped(self.folder / folder)}: is a link: put a folder in its place")
        made(path.parent)
        return write_new(path, content)
