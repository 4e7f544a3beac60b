"""Reading the raw samples that a run recorded beside its results."""

import math
from pathlib import Path
from typing import Any

from perfci.measure.journal import SAMPLES
from perfci.model.base import ARMS, ArmName, MachineError
from perfci.model.results import Pair, Results
from perfci.render.html.recorded import Recorded
from perfci.system.bounded import Unread, regular
from perfci.system.files import each_line, one_line

LONGEST = 8 * 2**20
"""Bytes of one pair's samples that are still read: half a million numbers."""
LARGEST = 64 * 2**20
"""Bytes of samples that are still read: an artifact holds what somebody else wrote."""


def read_recorded(results: Results, folder: Path) -> Recorded:
    """`results` with the samples that `folder` holds of them; without where these cannot be read."""
    path = folder / SAMPLES
    if not path.exists():
        return Recorded(results)
    pairs = {(case.key, pair.index): pair for case in results.cases for pair in case.pairs}
    found: dict[str, dict[int, dict[ArmName, list[list[float]]]]] = {}
    try:
        regular(path, LARGEST)
        for line in each_line(path, LONGEST):
            key, index = line.get("key"), line.get("pair")
            pair = pairs.get((key, index)) if isinstance(key, str) and isinstance(index, int) else None
            if pair is not None and (placements := _samples(pair, line.get("samples"))):
                found.setdefault(str(key), {})[pair.index] = placements
    except Unread as why:
        return Recorded(results, missing=f"{SAMPLES} {why}: samples are not drawn")
    except MachineError as error:
        return Recorded(results, missing=f"samples are not drawn: {one_line(error)}")
    return Recorded(results, found)


def _samples(pair: Pair, found: Any) -> dict[ArmName, list[list[float]]]:
    """Arm → placements; empty where these are not the samples of `pair`, but of another run's."""
    if not isinstance(found, dict):
        return {}
    placements = {name: found[name] for name in ARMS if _numbers(found.get(name))}
    counts = {name: sum(map(len, one)) for name, one in placements.items()}
    return placements if counts == pair.samples else {}


def _numbers(found: Any) -> bool:
    """Whether these are lists of finite numbers, none of them empty."""
    return isinstance(found, list) and all(
        isinstance(one, list) and one and all(isinstance(n, float | int) and math.isfinite(n) for n in one)
        for one in found
    )
