"""The files that differ between base and head, for whoever looks for the cause."""

import os
from collections.abc import Mapping
from pathlib import Path

from perfci.model.base import PerfciError, Side
from perfci.model.text import escaped, listed
from perfci.sources.git import run_git

_SHOWN, _LONGEST = 3, 50
"""Files, and characters of a path."""
_DIFF = ("diff", "--no-index", "--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")


def changed(trees: Mapping[Side, Path]) -> str:
    """Return the files of the snapshots `trees` that differ, those with most lines first: `a.py +3 -1 and 2 more`,
    each between backticks; empty where none does, or git cannot tell."""
    if len(trees) < 2:
        return ""
    try:
        told = run_git([*_DIFF, str(trees["base"]), str(trees["head"])], cwd=Path("/"), allow=(0, 1)).stdout
    except PerfciError:  # it would tell where to look, and decides nothing
        return ""
    fields = told.decode(errors="surrogateescape").split("\0")
    found = []
    for counts, base, head in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        tree, path = (trees["base"], base) if head == os.devnull else (trees["head"], head)
        added, removed = counts.split("\t")[:2]
        name = escaped(Path(path).relative_to(tree).as_posix(), _LONGEST).replace("`", "'")
        lines = "" if added == "-" else f" +{added} -{removed}"  # of a binary file
        found.append((-sum(map(int, (added, removed))) if lines else 0, f"`{name}`{lines}"))
    return listed((text for _, text in sorted(found)), _SHOWN)
