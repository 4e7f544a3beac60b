"""Machine code of the kernels that a side built or compiled itself, read where their counters are missing."""

from collections.abc import Callable, Sequence

from perfci.measure.prepare import SideWork
from perfci.model.base import Side
from perfci.model.profile import Profile
from perfci.model.results import Case
from perfci.profilers.base import Built, Code, Profiler
from perfci.system.users import SAME, Account

DOWNLOADS = ("pip", "uv")
"""Caches of packages: what of them runs has been installed."""


def read_code(
    profiler: Profiler[Code],
    sides: Sequence[SideWork],
    cases: Sequence[Case],
    note: Callable[[str], None],
    account: Account = SAME,
) -> None:
    """Look up the kernels of those `cases` that have a timeline, and no counters in some side: into `Profile.code`.

    Both sides are then read, for one to be compared with the other. The sides' folders are taken back from `account`:
    nothing of them runs after this.
    """
    lacking = [case for case in cases if any(_uncounted(side.profile) for side in case.sides.values())]
    for side in sides:
        if seen := {case.key: found for case in lacking if (found := _launching(case, side.name)) is not None}:
            kernels = {key: profile.trace.kernels if profile.trace else [] for key, profile in seen.items()}
            read = profiler.inspect(_built(side, account), kernels, note)
            for key, profile in seen.items():
                profile.code = read.seen.get(key, [])
                profile.faults += [*read.faults.get(key, []), *read.general]


def _uncounted(profile: Profile | None) -> bool:
    return profile is not None and profile.counters is None


def _launching(case: Case, name: Side) -> Profile | None:
    """Return the profile of a side whose timeline holds kernels."""
    found = case.sides[name].profile if name in case.sides else None
    return found if found is not None and found.trace is not None and found.trace.kernels else None


def _built(side: SideWork, account: Account) -> Built:
    for folder in (side.tree, side.site):
        account.seal(folder)
    account.reclaim(side.cache)
    caches = [one for one in sorted(side.cache.iterdir()) if one.name not in DOWNLOADS]
    return Built(side.name, [side.tree, side.site, *caches], side.python, side.env, side.folder)
