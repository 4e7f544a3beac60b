"""Machine code of the kernels that a side built or compiled itself, read where their counters are missing."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from perfci.measure.prepare import SideWork
from perfci.model.base import Side
from perfci.model.profile import Fault, Profile
from perfci.model.results import Case
from perfci.profilers import readers, sass
from perfci.profilers.faults import fault
from perfci.system.bounded import Unread
from perfci.system.users import SAME, Account

SEARCH_TIME = 20.0
"""Seconds for an interpreter to tell where it looks for modules."""
DOWNLOADS = ("pip", "uv")
"""Caches of packages: what of them runs has been installed."""
MOST_LEFT = 3
"""Files that were not read that are named."""


def read_code(
    sides: Sequence[SideWork],
    cases: Sequence[Case],
    capability: tuple[int, int] | None,
    note: Callable[[str], None],
    account: Account = SAME,
) -> None:
    """Look up the kernels of those `cases` that have a timeline, and no counters in some side: into `Evidence.code`.

    Both sides are then read, for one to be compared with the other. `capability`: of the GPU; None reads nothing. The
    sides' folders are taken back from `worker`: nothing of them runs after this.
    """
    lacking = [case for case in cases if any(_uncounted(side.profile) for side in case.sides.values())]
    for side in sides if capability else ():
        seen = [found for case in lacking if (found := _launching(case, side.name)) is not None]
        if seen and capability:
            _read(side, seen, capability, note, account)


def _uncounted(profile: Profile | None) -> bool:
    return profile is not None and profile.counters is None


def _launching(case: Case, name: Side) -> Profile | None:
    """The evidence of a side whose timeline holds kernels."""
    found = case.sides[name].profile if name in case.sides else None
    return found if found is not None and found.trace is not None and found.trace.kernels else None


def _read(
    side: SideWork,
    seen: Sequence[Profile],
    capability: tuple[int, int],
    note: Callable[[str], None],
    account: Account,
) -> None:
    for folder in (side.tree, side.site):
        account.seal(folder)
    account.reclaim(side.cache)
    caches = [one for one in sorted(side.cache.iterdir()) if one.name not in DOWNLOADS]
    try:
        files, left = readers.code_files([side.tree, side.site, *caches], account)
    except Unread as why:
        _fail(seen, f"files of {side.name}: {why}")
        return
    if not files and not left:
        return  # the side has built nothing: its kernels are of libraries
    tool = sass.find(_wheels(side, account))
    if tool is None:
        absent = Fault(tool="cuobjdump", kind="absent", text=sass.ABSENT, remedy=f"{side.python} {sass.REMEDY}")
        for profile in seen:
            profile.faults.append(absent)
        return
    note(f"machine code: {side.name} · {len(files)} files")
    kernels = [profile.trace.kernels if profile.trace else [] for profile in seen]
    try:
        found = readers.code(files, tool, capability, kernels, account)
    except Unread as why:
        _fail(seen, f"files of {side.name}: {why}")
        return
    left += found.left
    for profile, codes in zip(seen, found.codes, strict=True):
        profile.code = list({(one.name, one.registers): one for one in codes if one is not None}.values())
        if left and None in codes:  # one of them may hold what is missing
            more = f" and {len(left) - MOST_LEFT} more" if len(left) > MOST_LEFT else ""
            text = "; ".join(left[:MOST_LEFT]) + more
            profile.faults.append(Fault(tool="cuobjdump", kind="incomplete", text=text[:1000]))


def _fail(seen: Sequence[Profile], text: str) -> None:
    for profile in seen:
        profile.faults.append(fault("cuobjdump", "unreadable", text))


def _wheels(side: SideWork, account: Account) -> list[Path]:
    """Where the side's interpreter looks for modules."""
    try:
        asked = subprocess.run(
            [*account.prefix(), side.python, "-c", sass.SEARCH], env=side.env, cwd=side.folder, timeout=SEARCH_TIME,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []  # cuobjdump may be elsewhere; that the interpreter does not run is told by whoever needs it
    return sass.wheels(asked.stdout)
