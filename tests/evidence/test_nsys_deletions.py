"""Rows, tables and columns deleted at random from traces of an H200: no limit is kept that the whole file would break.

What cannot be seen in a trace, and is therefore not asked here:

- Of a whole process, which is one execution: a call that waits or allocates has nothing on the device that would miss
  it (nsys tells one synchronisation of fourteen), so that its row may be lost alone; so may a range of the user's; and so
  may a kernel together with its launch. Of a case there are ten executions, which are to be alike.
- Of a case: what is lost on both sides in each of its executions.
"""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from perfci.evidence.metrics import take
from perfci.evidence.nsys import Reading, read
from perfci.judge.gates import gate_row
from perfci.judge.rows import Context
from perfci.model.evidence import Evidence
from perfci.model.metrics import resolve
from perfci.model.plan import Gate, Looks
from perfci.model.results import Case, CaseArm

from .test_nsys import CASES, unpack

CONTEXT = Context(looks=Looks(), m=1, strict=False, compared=True, asked={}, gates={}, custom={})
EVENTS = [
    *(f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")),
    "NVTX_EVENTS", "StringIds",
]  # fmt: skip
TABLES = [*EVENTS, "META_DATA_EXPORT", "META_DATA_CAPTURE", "ANALYSIS_DETAILS", "ENUM_CUDA_MEMCPY_OPER", "PROCESSES"]
BLIND = frozenset({"sync_count", "alloc_count", "alloc_time"})
"""Of a whole process: see above."""
LITTLE = 1e-6


def evidence(reading: Reading, name: str | None) -> Evidence:
    """What perfci takes of a case, or for None of a command."""
    found, key = Evidence(reports=1 if name is None else None), name or ""
    faults = [*([reading.faults[key]] if key in reading.faults else []), *reading.general]
    if key in reading.traces:
        take(found, reading.traces[key], faults, (9, 0), True)
    else:
        found.faults += faults
    return found


def look(path: Path, whole: bool) -> dict[str | None, Evidence]:
    if whole:
        return {None: evidence(read(path, None), None)}
    reading = read(path, CASES, executions=10)
    return {name: evidence(reading, name) for name in CASES}


def judged(base: Evidence, head: Evidence, metric: str, kind: str, bound: float) -> str:
    about = resolve(metric, {})
    gate = Gate(
        case="k",
        device="cuda",
        metric=metric,
        unit=about.unit,
        better=about.better,
        tier=about.tier,
        kind=kind,
        bound=bound,
    )
    origin = "command" if head.reports else "kernel"
    arms = {"base": CaseArm(evidence=base), "head": CaseArm(evidence=head)}
    return gate_row(CONTEXT, Case(id="k", kernel="k", device="cuda", origin=origin, arms=arms), gate).class_


def moved(evidence: Evidence, metric: str, factor: float) -> Evidence:
    return evidence.model_copy(update={"metrics": {**evidence.metrics, metric: evidence.metrics[metric] * factor}})


def false_passes(whole: Evidence, part: Evidence, blind: frozenset[str]) -> list[str]:
    """Limits that the whole evidence breaks by very little, and that a part of it keeps."""
    found = []
    for metric, value in whole.metrics.items():
        if metric in blind or (metric.startswith("range:") and "range:" in blind):
            continue
        better = resolve(metric, {}).better
        worse, well = (1 + LITTLE, 1 - LITTLE) if better == "lower" else (1 - LITTLE, 1 + LITTLE)
        asked = [("max", value * (1 - LITTLE)), ("min", value * (1 + LITTLE))] if value else []
        for kind, bound in asked:
            assert judged(whole, whole, metric, kind, bound) == "violation"
            if judged(whole, part, metric, kind, bound) not in ("violation", "invalid"):
                found.append(f"{metric} {kind}: {part.metrics.get(metric)} of {value}")
        if not value:
            continue
        # A head that is worse than base by very little, and one of the two in part.
        for base, head, bare in ((moved(whole, metric, well), part, whole), (part, moved(whole, metric, worse), whole)):
            told = (moved(bare, metric, well), bare) if head is part else (bare, head)
            assert judged(*told, metric, "regression", 0) == "regression"
            if judged(base, head, metric, "regression", 0) not in ("regression", "invalid"):
                found.append(f"{metric} relative: {part.metrics.get(metric)} of {value}")
    return found


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


def deletions(folder: Path, number: int, seed: int, arm: str, whole: bool) -> dict[str, int]:
    """What became of the cases of so many damaged files: how many told less than the whole, and how many told all."""
    source, dice = unpack(folder, arm), random.Random(seed)
    before = look(source, whole)
    assert all(len(one.metrics) > 4 and one.faults == [] for one in before.values())
    came = {"less": 0, "all": 0}
    for _ in range(number):
        path = Path(shutil.copy(source, folder / "part.sqlite"))
        said = damage(path, dice)
        blind = BLIND if whole else frozenset()
        if whole and "NVTX_EVENTS" in said:
            blind |= {"range:"}
        for name, part in look(path, whole).items():
            assert false_passes(before[name], part, blind) == [], f"{arm}, {name}: without {said}"
            came["all" if part.metrics == before[name].metrics else "less"] += 1
    return came


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("arm", ["base", "head"])
def test_what_is_deleted_keeps_no_limit(tmp_path, arm, whole):
    came = deletions(tmp_path, 25, 7, arm, whole)
    assert came["less"] > 5 and (whole or came["all"] > 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("arm", ["base", "head"])
def test_a_thousand_deletions_keep_no_limit(tmp_path, arm, whole):
    came = deletions(tmp_path, 1000, 8, arm, whole)
    assert min(came.values()) > 50
