"""Work lists as files: a folder for each process, with its list and the machine code that it launches. The code under
test ran in their writers: they are read in a bounded process."""

import errno
import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from perfci.model.base import SIDES, Document, Side
from perfci.model.text import one_line, shorten
from perfci.work.code import same_function
from perfci.work.lists import WorkList
from perfci.work.same import Recorded, rows, walk, why_not_same

FILE = "work-{}.json"
"""As `perfci.worker.work.record` names it."""
LARGEST = 64 << 20
"""Bytes read of a work list, and of an image's machine code."""
_MOST_ROWS = 2000


class WorkAnswer(Document):
    """An answer."""

    why_not: Annotated[str, Field(max_length=1000)]
    """Why the work is not known to be the same, as a clause; empty where it is."""
    work: dict[Side, list[Annotated[str, Field(max_length=300)]]]
    """Side → its nodes in words."""


def refused(why: str) -> WorkAnswer:
    """Return an answer without work."""
    return WorkAnswer(why_not=one_line(why, 1000), work={})


def compare(cases: dict[str, dict[Side, list[Path]]], draws: int) -> dict[str, WorkAnswer]:
    """Compare recorded cases: of each, per side, folders of two or more processes, with lists of `draws` draws."""
    return {name: _compared(folders, draws) for name, folders in cases.items()}


def _compared(folders: dict[Side, list[Path]], draws: int) -> WorkAnswer:
    shown: dict[Side, list[str]] = {}
    images: dict[Path, bytes] = {}
    same = cache(same_function)
    for draw in range(draws):
        lists: dict[bytes, WorkList] = {}  # mostly all are the same
        found: dict[Side, list[Recorded]] = {side: [] for side in SIDES}
        for side, places in folders.items():
            for place in places:
                read = _read(place / FILE.format(draw), lists, images)
                if isinstance(read, str):
                    return refused(f"{side}: {read}")
                found[side].append(read)
        shown = shown or {
            side: [shorten(row, 300) for row in rows(several[0].work)[:_MOST_ROWS]] for side, several in found.items()
        }
        if why := why_not_same(found["base"], found["head"], same):
            return WorkAnswer(why_not=one_line(f"{why}, in draw {draw + 1}" if draw else why, 1000), work=shown)
    return WorkAnswer(why_not="", work=shown)


def _read(file: Path, lists: dict[bytes, WorkList], held: dict[Path, bytes]) -> Recorded | str:
    """What a process recorded of a draw, or why it is unusable. Adds to the caches `lists` and `held`."""
    try:
        text = _bytes(file)
        work = lists[text] = lists[text] if text in lists else WorkList.model_validate_json(text)
        images = {}
        for digest in {one for _, node in walk(work) if (one := node.image) and node.own is not False}:
            path = file.parent / digest
            images[digest] = held[path] = held[path] if path in held else _bytes(path)
            if hashlib.sha256(images[digest]).hexdigest() != digest:
                return "its machine code is not what it was recorded as"
    except ValidationError as error:
        return f"its work list is none ({error.errors(include_url=False, include_input=False)[0]['type']})"
    except OSError as error:
        return f"its work list cannot be read ({error.strerror})"
    return Recorded(work, images)


def _bytes(path: Path) -> bytes:
    # A pipe would be waited for, a link leads out of the folder.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(LARGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if content is None or len(content) > LARGEST:
        raise OSError(errno.EINVAL, f"is no ordinary file of up to {LARGEST >> 20} MiB")
    return content
