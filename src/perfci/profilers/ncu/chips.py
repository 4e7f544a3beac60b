"""ncu's metrics for the table's counters, by chip."""

from collections.abc import Iterable
from functools import lru_cache

from perfci.model.metrics import COUNTERS, FAMILIES, NcuSum, Quantity, of_ncu, unknown

_COMPUTE = {
    (7, 5): "tu102",
    (8, 0): "ga100",
    (8, 6): "ga102",
    (8, 7): "ga10b",
    (8, 9): "ad102",
    (9, 0): "gh100",
    (10, 0): "gb100",
    (10, 3): "gb100",
    (11, 0): "gb10b",
    (12, 0): "gb202",
    (12, 1): "gb20b",
}
TIME = "gpu__time_duration.sum"
"""The weight of a launch."""
COUNTED = {name: one for name, one in COUNTERS.items() if one.ncu}
SETS: dict[str, tuple[str, ...]] = {
    "default": tuple(name for name, one in COUNTED.items() if not one.deep),
    "deep": tuple(COUNTED),
    "full": tuple(COUNTED),
}
"""`default` takes two replay passes on every chip: what it holds beyond time, bytes, warps, tensor cycles and hit rates
fits into them. `deep` takes 11 to 14, before ncu's sections."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "default": ("LaunchStats", "Occupancy"),
    "deep": ("LaunchStats", "Occupancy", "SpeedOfLight", "WarpStateStats"),
    "full": (),
}
"""With each set's rules; `default`'s take no further pass, `full` has ncu's."""
FULL = "full"
"""ncu's own set of that name is collected besides."""


def chip_of(major: int, minor: int) -> str | None:
    """Return the first chip of a compute capability's family, such as `gh100`."""
    return _COMPUTE.get((major, minor))


@lru_cache(maxsize=256)
def family(chip: str) -> str | None:
    """Return the family of a chip such as `GB203`, in any case."""
    return next((name for name, chips in FAMILIES.items() if chip.lower() in chips), None)


def expand(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return counters by perfci's or ncu's names, or those of a set. Raises UsageError for an unknown name."""
    if isinstance(names, str):
        names = SETS.get(names, (names,))
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        counted(name)
    return wanted


def counted(name: str) -> Quantity:
    """Return the quantity of a name, perfci's or ncu's. Raises UsageError for any other."""
    found = COUNTED.get(name) or of_ncu(name)
    if found is None:
        raise unknown(name, "counter", COUNTED)
    return found


@lru_cache(maxsize=1024)
def source(name: str, chip: str) -> NcuSum | None:
    """Return the source of `name` on a chip, or None; on an unknown chip one that all known chips share. Raises
    UsageError."""
    where = family(chip)
    for one in counted(name).ncu:
        if where in one.families or (where is None and len(one.families) == len(FAMILIES)):
            return one
    return None


@lru_cache(maxsize=1024)
def sources(name: str, chip: str) -> tuple[NcuSum, ...]:
    """Return all sources that a report may hold, best first; of any chip where it is unknown. Raises UsageError."""
    counter, where = counted(name), family(chip)
    if not chip:
        return counter.ncu + counter.ncu_also
    first = source(name, chip)
    return () if first is None else (first, *(one for one in counter.ncu_also if where in one.families))


def metrics_for(names: str | Iterable[str], chip: str) -> list[str]:
    """Return what ncu's `--metrics` takes on a chip, time first. Raises UsageError."""
    found = [one for name in expand(names) if (one := source(name, chip)) is not None]
    return list(dict.fromkeys([TIME, *(metric for one in found for metric in one.metrics)]))


def unavailable(names: str | Iterable[str], chip: str) -> dict[str, str]:
    """Return counter → why `chip` cannot give it. Raises UsageError."""
    missing = [name for name in expand(names) if source(name, chip) is None]
    if family(chip) is None:
        why = f"ncu's metric for it differs by chip, and perfci does not know {chip or 'this one'}"
        return dict.fromkeys(missing, why)
    return {name: counted(name).lacking for name in missing}
