"""The memory of this process as the kernel tells it (proc_pid_maps(5))."""

from __future__ import annotations

import os
from typing import NamedTuple

MAPS = "/proc/self/maps"


class Piece(NamedTuple):
    """A mapping."""

    begin: int
    end: int
    """The first address behind it."""
    rights: str
    """Such as `r-xp`; the last is `s` for shared memory."""
    path: str
    """Of the mapped file; else empty, or in brackets."""
    offset: int = 0
    """In the file."""


def pieces() -> list[Piece]:
    """Return all mappings; none on macOS."""
    if not os.path.exists(MAPS):
        return []
    found = []
    with open(MAPS, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in file:
            place, rights, offset, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            begin, end = place.split("-")
            found.append(Piece(int(begin, 16), int(end, 16), rights, path[0] if path else "", int(offset, 16)))
    return found
