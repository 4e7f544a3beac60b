"""Rows, tables and columns deleted at random from traces of an H200: no limit is kept that the whole file would break.

What cannot be seen in a trace, and is therefore not asked here:

- Of a whole process, which is one execution: a call that waits or allocates has nothing on the device that would miss
  it (nsys tells one synchronisation of fourteen), so that its row may be lost alone; so may a range of the user's; and so
  may a kernel together with its launch. Of a case there are ten executions, which are to be alike.
- Of a case: what is lost as a whole, call and work, in each of its executions.
"""

import random
import shutil
import sqlite3
from functools import cache
from pathlib import Path

import pytest

from perfci.judge.observed import observed_row
from perfci.judge.status import Context
from perfci.model.criteria import Criterion
from perfci.model.metrics import resolve
from perfci.model.plan import Looks
from perfci.model.profile import Profile
from perfci.model.results import Case, CaseSide
from perfci.profilers.nsys.trace import read
from tests.judge.build import limit

from .test_nsys import CASES, profile_of, unpack

CONTEXT = Context(looks=Looks(), m=1, strict=False, compared=True, criteria={}, custom={})
EVENTS = [
    *(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")),
    "NVTX_EVENTS", "StringIds",
]  # fmt: skip
TABLES = [*EVENTS, "META_DATA_EXPORT", "META_DATA_CAPTURE", "ANALYSIS_DETAILS", "ENUM_CUDA_MEMCPY_OPER", "PROCESSES"]
BLIND = frozenset({"sync_count", "alloc_count", "alloc_time"})
"""Of a whole process: see above."""
LITTLE = 1e-6


def profiles(path: Path, whole: bool) -> dict[str | None, Profile]:
    if whole:
        return {None: profile_of(read(path, None), None)}
    reading = read(path, CASES, executions=10)
    return {name: profile_of(reading, name) for name in CASES}


@cache
def criterion_of(metric: str, kind: str, bound: float) -> Criterion:
    """The same few are asked thousands of times."""
    about = resolve(metric, {})
    return limit("k", metric, kind, bound, unit=about.unit, better=about.better, tier=about.tier)


def judged(base: Profile, head: Profile, metric: str, kind: str, bound: float) -> str:
    origin = "command" if head.reports else "kernel"
    sides = {"base": CaseSide(profile=base), "head": CaseSide(profile=head)}
    return observed_row(
        CONTEXT, Case(id="k", kernel="k", device="cuda", origin=origin, sides=sides), criterion_of(metric, kind, bound)
    ).class_


def moved(profile: Profile, metric: str, factor: float) -> Profile:
    return profile.model_copy(update={"metrics": {**profile.metrics, metric: profile.metrics[metric] * factor}})


Asked = tuple[str, str, float, Profile | None, bool]
"""Metric, kind and bound of a limit; for one on a change, the other side and whether that is base."""


def limits(whole: Profile) -> list[Asked]:
    """Limits that the whole profile breaks by very little."""
    found: list[Asked] = []
    for metric, value in whole.metrics.items():
        if not value:
            continue
        known = resolve(metric, {})
        step = max(LITTLE, 2 * known.scatter)  # by less, runs of the same code differ
        worse, well = (1 + step, 1 - step) if known.better == "lower" else (1 - step, 1 + step)
        found += [
            (metric, "max", value * (1 - LITTLE), None, False),
            (metric, "min", value * (1 + LITTLE), None, False),
            (metric, "regression", 0, moved(whole, metric, well), True),
            (metric, "regression", 0, moved(whole, metric, worse), False),
        ]
    assert all(broken(one, whole) == ("regression" if one[1] == "regression" else "violation") for one in found)
    return found


def broken(asked: Asked, profile: Profile) -> str:
    """The class of this limit over this profile."""
    metric, kind, bound, other, other_is_base = asked
    base, head = (other or profile, profile) if other_is_base else (profile, other or profile)
    return judged(base, head, metric, kind, bound)


def false_passes(whole: Profile, asked: list[Asked], part: Profile, blind: frozenset[str]) -> list[str]:
    """Those of `limits(whole)` that a part of it keeps."""
    if part == whole:
        return []
    return [
        f"{one[0]} {one[1]}: {part.metrics.get(one[0])} of {whole.metrics[one[0]]}"
        for one in asked
        if one[0] not in blind and not (one[0].startswith("range:") and "range:" in blind)
        if broken(one, part) not in (one[1] if one[1] == "regression" else "violation", "invalid")
    ]


def damage(path: Path, dice: random.Random) -> str:
    """Delete some of a trace; returns what."""
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = OFF", "synchronous = OFF"):
        db.execute(f"PRAGMA {pragma}")
    said = []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        table = dice.choice([name for name in (TABLES if dice.random() < 0.1 else EVENTS) if name in there] or ["-"])
        if table == "-":
            break
        how = dice.random()
        if how < 0.85:
            rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table}")]
            most = dice.choice((1, 1, 2, 5, 20, max(1, len(rows) // 2), len(rows)))
            gone = dice.sample(rows, min(most, len(rows)))
            db.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(row,) for row in gone])
            said.append(f"{len(gone)} of {len(rows)} rows of {table}")
        elif how < 0.93:
            db.execute(f"DROP TABLE {table}")
            said.append(table)
        else:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if not row[5]]
            column = dice.choice(columns)
            db.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
            said.append(f"{table}.{column}")
    db.close()
    return ", ".join(said)


def deletions(folder: Path, number: int, seed: int, side: str, whole: bool) -> dict[str, int]:
    """What became of the cases of so many damaged files: how many told less than the whole, and how many told all."""
    source, dice = unpack(folder, side), random.Random(seed)
    before = profiles(source, whole)
    assert all(len(one.metrics) > 4 and one.faults == [] for one in before.values())
    asked = {name: limits(one) for name, one in before.items()}
    came = {"less": 0, "all": 0}
    for _ in range(number):
        path = Path(shutil.copy(source, folder / "part.sqlite"))
        said = damage(path, dice)
        blind = BLIND if whole else frozenset()
        if whole and "NVTX_EVENTS" in said:
            blind |= {"range:"}
        for name, part in profiles(path, whole).items():
            assert false_passes(before[name], asked[name], part, blind) == [], f"{side}, {name}: without {said}"
            came["all" if part.metrics == before[name].metrics else "less"] += 1
    return came


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("side", [pytest.param("base", marks=pytest.mark.slow), "head"])
def test_what_is_deleted_keeps_no_limit(tmp_path, side, whole):
    came = deletions(tmp_path, 25, 7, side, whole)
    assert came["less"] > 5 and (whole or came["all"] > 5)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("side", ["base", "head"])
def test_a_thousand_deletions_keep_no_limit(tmp_path, side, whole):
    """A thousand of each fixture: half of them read by cases, half as a whole process."""
    came = deletions(tmp_path, 500, 8, side, whole)
    assert min(came.values()) > 25
