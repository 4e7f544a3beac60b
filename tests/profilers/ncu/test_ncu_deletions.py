"""Launches, columns and values deleted at random from what ncu counted: no limit is kept that the whole would break.

A page that ends early looks whole: the timeline of the same case, which has the launches too, tells. Without one nothing
would, and perfci takes a timeline of all that it counts.
"""

import random
from pathlib import Path

import pytest

from perfci.model.metrics import CATALOGUE
from perfci.model.profile import Profile, doubt
from perfci.profilers.metrics import take
from perfci.profilers.ncu.report import read
from perfci.profilers.nsys.trace import read as read_trace
from tests.profilers.test_nsys import unpack
from tests.profilers.test_nsys_deletions import false_passes, limits

from .test_ncu import CSV, HELD, RANGES, REPORTS, file, report, results, rows, text

__all__ = ["report"]  # a fixture
TRACED = frozenset({"occupancy_theoretical"})
"""Where ncu does not tell it the timeline does, by its own times: a whole value, and another one."""
NOTHING = ["nan", "n/a", "", "-nan", "inf"]


def traced(folder: Path, side: str) -> dict[str, Profile]:
    """The cases with their timelines."""
    reading = read_trace(unpack(folder, side), RANGES, executions=10)
    found = {name: Profile() for name in RANGES}
    for name, one in found.items():
        take(one, reading.seen[name], reading.general, (9, 0), True)
    return found


def counted(path: Path, before: dict[str, Profile], names=HELD) -> dict[str, Profile]:
    """With what ncu counted of them in this file."""
    reading = read(path, ranges=RANGES, names=names)
    found = {}
    for name, trace in before.items():
        found[name] = one = trace.model_copy(deep=True)
        faults = [*reading.faults.get(name, []), *reading.general]
        if name in reading.seen:
            take(one, reading.seen[name], faults, (9, 0), True)
        else:
            one.faults += faults
    return found


def damaged(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    table, said = rows(data), []
    for _ in range(dice.choice((1, 1, 2, 3))):
        if len(table) < 3:
            break
        how = dice.random()
        row = dice.randrange(2, len(table))
        column = table[0].index(dice.choice([name for name in table[0] if "__" in name] or table[0]))
        if how < 0.3:
            del table[row]
            said.append(f"row {row}")
        elif how < 0.45:
            del table[row:]
            said.append(f"rows from {row} on")
        elif how < 0.6:
            said.append(table[0][column])
            for one in table:
                del one[column]
        elif how < 0.8:
            table[row][column] = dice.choice(NOTHING)
            said.append(f"{table[0][column]} of {row}")
        else:  # as of a launch that failed under ncu
            for at, name in enumerate(table[0]):
                if "__" in name and not name.startswith(("launch__", "device__")):
                    table[row][at] = "nan"
            said.append(f"all of {row}")
    return text(table), ", ".join(said)


def deletions(folder: Path, number: int, seed: int, side: str) -> dict[str, int]:
    """What became of the cases in so many damaged pages: how many told less than the whole, and how many told all."""
    dice, traces = random.Random(seed), traced(folder, side)
    before = counted(file(folder, CSV[side]), traces)
    assert all(one.faults == [] and set(HELD) & set(CATALOGUE) <= set(one.metrics) for one in before.values())
    asked = {name: limits(one) for name, one in before.items()}
    came = {"less": 0, "all": 0}
    for _ in range(number):
        page, said = damaged(CSV[side], dice)
        for name, part in counted(file(folder, page, "part.csv"), traces, dice.choice((HELD, None))).items():
            assert false_passes(before[name], asked[name], part, TRACED) == [], f"{side}, {name}: without {said}"
            came["all" if part.metrics == before[name].metrics else "less"] += 1
    return came


@pytest.mark.parametrize("side", [pytest.param("base", marks=pytest.mark.slow), "head"])
def test_what_is_deleted_of_a_page_keeps_no_limit(tmp_path, side):
    assert min(deletions(tmp_path, 25, 3, side).values()) > 5


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("side", ["base", "head"])
def test_a_thousand_deletions_of_a_page_keep_no_limit(tmp_path, side):
    assert min(deletions(tmp_path, 1000, 4, side).values()) > 200


def test_a_page_without_its_last_launches_is_told_by_the_timeline(tmp_path):
    page = text(rows(CSV["base"])[:-2])  # the last two of five in the last case
    whole = counted(file(tmp_path, CSV["base"], "whole.csv"), traced(tmp_path, "base"))
    part = counted(file(tmp_path, page), traced(tmp_path, "base"))
    for name in RANGES[:2]:
        assert part[name].metrics == whole[name].metrics
    lost = doubt(part[RANGES[2]], "instructions")
    assert lost is not None
    assert lost.text == "2 of 5 kernel launches that nsys saw are not among those that ncu counted"
    assert "instructions" not in part[RANGES[2]].metrics and part[RANGES[2]].metrics["kernel_launches"] == 5
    assert not doubt(part[RANGES[2]], "registers"), "the timeline tells them"


@pytest.mark.slow
def test_a_report_without_some_of_its_launches_keeps_no_limit(report, tmp_path):
    """Blocks of launches cut out of the report itself."""
    traces = traced(tmp_path, "base")
    before = counted(report, traces)
    asked = {name: limits(one) for name, one in before.items()}
    whole = REPORTS["base"]
    for block in results():
        cut = file(tmp_path, whole[: block.begin] + whole[block.end :], "cut.ncu-rep")
        told = counted(cut, traces)
        assert told != before
        for name, part in told.items():
            assert false_passes(before[name], asked[name], part, TRACED) == [], name
