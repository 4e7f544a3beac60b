"""Finds what keeps a path of a side, and puts another in its place."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, Optional

Place = tuple[dict[str, Any], str]
"""The names of a module or an object, and one of them."""


def holders(path: str) -> dict[int, Any]:
    """Return the texts, by identity, that hold `path` and that any tracked and not frozen object leads to."""
    raw = os.fsencode(path)
    found: dict[int, Any] = {}
    reached = gc.get_referents(*gc.get_objects())
    seen: set[int] = set()
    while reached:
        for one in reached:
            if (type(one) is str and path in one) or (type(one) is bytes and raw in one and one is not raw):
                found[id(one)] = one
        # Tuples and dicts of plain values are not tracked, and so not among the objects.
        flat = {id(one): one for one in reached if type(one) in (tuple, dict) and not gc.is_tracked(one)}
        reached = gc.get_referents(*(one for ident, one in flat.items() if ident not in seen))
        seen.update(flat)
    return found


def places(texts: dict[int, Any], known: Sequence[Place]) -> Optional[list[Place]]:
    """Return the names under which modules and objects hold these texts; None where something else leads to one, too.
    `known`: of those, the ones found before, since a dict of plain values is no longer found once it is made.

    So many names there are, so often a text must be referred to: what C code holds counts as well.
    """
    found = {(id(names), name): (names, name) for names, name in known if id(names.get(name)) in texts}
    for one in gc.get_referrers(*texts.values()):
        names = one if type(one) is dict else getattr(one, "__dict__", None)
        if one is texts or type(names) is not dict:
            continue
        held = [name for name in names if type(name) is str and type(names[name]) is str and id(names[name]) in texts]
        found.update(((id(names), name), (names, name)) for name in held)
    times = dict.fromkeys(texts, 0)
    for names, name in found.values():
        times[id(names[name])] += 1
    counts = {ident: sys.getrefcount(texts[ident]) - 2 for ident in times}  # but for `texts` and the argument
    return list(found.values()) if counts == times else None


def relocate(held: Sequence[Place], nowhere: str, folder: str) -> None:
    """Put a side's folder in the place of `nowhere`: what the module would have found in the side's environment."""
    for names, name in held:
        names[name] = names[name].replace(nowhere, folder)
