"""Limits on metrics by ncu's own names, of files that perfci did not ask for: judged, shown, or invalid with the way to
capture what is missing."""

import csv
import io
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfci.judge.replan import judge_by
from perfci.measure.imported.files import import_files
from perfci.model.metrics import of_ncu
from perfci.model.report import Row
from perfci.model.results import Results
from perfci.render import markdown
from perfci.render.csv import profile

from . import independent
from .build import MATMUL, RESAMPLE, SDPA, judged, policy

DATA = Path(__file__).parents[2] / "data" / "ncu"
INSTRUCTIONS, CYCLES = "smsp__inst_executed.sum", "sm__cycles_active.avg"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("captures")
    found = independent.unpacked(folder)
    for side in ("base", "head"):
        found[f"rep_{side}"] = folder / f"{side}.ncu-rep"
        found[f"rep_{side}"].write_bytes(lzma.decompress((DATA / f"ncu_{side}.ncu-rep.xz").read_bytes()))
    return found


def imported(files: dict[str, Path], kinds: Sequence[str], *limits: dict[str, Any], **how: Any) -> Results:
    sides = {side: [files[f"{kind}_{side}"] for kind in kinds] for side in ("base", "head")}
    return import_files(sides, policy(*limits), **how)


def rows(results: Results) -> dict[str, Row]:
    return {row.case: row for row in judged(results).rows}


def executed(side: str) -> dict[str, int]:
    """Warp instructions of each range, by plain csv."""
    page = lzma.decompress((DATA / f"ncu_{side}.csv.xz").read_bytes()).decode()
    found = dict.fromkeys((SDPA, MATMUL, RESAMPLE), 0)
    for launch in [*csv.DictReader(io.StringIO(page, newline=""))][1:]:
        ranges = next(cell for column, cell in launch.items() if "Push/Pop_Range" in column)
        found[next(name for name in found if name in ranges)] += int(launch[INSTRUCTIONS].replace(",", ""))
    return found


@pytest.mark.parametrize("kind", ["ncu", "rep"])
def test_a_bound_is_kept_and_broken_as_plain_csv_says(files: dict[str, Path], kind: str) -> None:
    base, head = executed("base"), executed("head")
    for bound, class_ in ((head[RESAMPLE], "unchanged"), (head[RESAMPLE] - 1, "violation")):
        found = rows(imported(files, [kind], {"cases": RESAMPLE, "metric": INSTRUCTIONS, "max": bound}))
        row = found[RESAMPLE]
        assert (row.metric, row.class_, row.base, row.head) == (INSTRUCTIONS, class_, base[RESAMPLE], head[RESAMPLE])
    found = rows(imported(files, [kind], {"cases": "*", "metric": INSTRUCTIONS, "max": "16e6"}))
    assert {name: row.class_ for name, row in found.items()} == {
        SDPA: "violation", MATMUL: "violation", RESAMPLE: "violation",
    }  # fmt: skip
    assert found[MATMUL].effect == "warn", "base breaks it already, and head is not worse"


@pytest.mark.parametrize(
    ("better", "limit", "classes"),
    [
        ("lower", "1%", {"regression": {SDPA}, "unchanged": {MATMUL}, "improvement": {RESAMPLE}}),
        ("higher", "1%", {"improvement": {SDPA}, "unchanged": {MATMUL}, "regression": {RESAMPLE}}),
        ("higher", "50%", {"improvement": {SDPA}, "unchanged": {MATMUL, RESAMPLE}}),
    ],
)
def test_a_change_is_judged_in_the_direction_that_the_limit_says(files, better, limit, classes):
    metric = "smsp__inst_executed.avg"
    unknown = of_ncu(metric)
    assert unknown is not None and unknown.better is None
    found = rows(imported(files, ["ncu"], {"metric": metric, "regression": limit, "better": better}))
    seen: dict[str, set[str]] = {}
    for name, row in found.items():
        change = (row.head or 0.0) / (row.base or 1.0)
        same = abs(change - 1) < 1e-4  # another library call of the same code: a handful of instructions
        seen.setdefault("unchanged" if same else row.class_, set()).add(name)
    assert seen == classes


def test_what_no_file_has_is_invalid_and_says_how_to_capture_it(files: dict[str, Path]) -> None:
    limits = {"cases": SDPA, "metric": CYCLES, "max": 1e6}
    row = rows(imported(files, ["ncu"], limits))[SDPA]
    assert (row.class_, row.effect) == ("invalid", "fail")
    assert row.reason == f"not measured: ncu: no launch has {CYCLES}: capture it too: ncu --metrics {CYCLES}"
    row = rows(imported(files, ["ncu"], {**limits, "fail_on": "broken"}))[SDPA]
    assert (row.class_, row.effect) == ("invalid", "undecided"), "it is the only limit of the case"
    row = rows(imported(files, ["nsys"], limits))[SDPA]
    assert row.reason == (
        "not measured: ncu: no file of head counts it: import what ncu counts of it, too: ncu --metrics " + CYCLES
    )
    everything = imported(files, ["nsys", "ncu"], limits)
    profiles = {case.id: case.sides["head"].profile for case in everything.cases}
    faulty = [name for name, one in profiles.items() if one and any(CYCLES in fault.metrics for fault in one.faults)]
    assert faulty == [SDPA], "other cases have no such limit"


def test_another_policy_asks_for_what_was_not_taken(files: dict[str, Path]) -> None:
    results = imported(files, ["ncu"], {"cases": SDPA, "metric": "occupancy", "min": "1%"})
    asked = policy({"cases": SDPA, "metric": CYCLES, "max": 1e6})
    row = next(row for row in judge_by(asked, results).rows if row.metric == CYCLES)
    assert row.class_ == "invalid" and "is not among what was counted of head" in row.reason


def test_kernels_as_cases_have_the_value_of_one_launch(files: dict[str, Path]) -> None:
    limits = [{"metric": INSTRUCTIONS, "max": 1e12}, {"metric": "launch__occupancy_limit_registers", "min": 1}]
    found = judged(imported(files, ["ncu"], *limits, by="kernel")).rows
    page = lzma.decompress((DATA / "ncu_base.csv.xz").read_bytes()).decode()
    launches = [*csv.DictReader(io.StringIO(page, newline=""))][1:]
    matmul = next(one for one in launches if "nvjet" in one["Kernel Name"])
    row = next(row for row in found if "nvjet" in row.case and row.metric == INSTRUCTIONS)
    assert row.base == int(matmul[INSTRUCTIONS].replace(",", ""))
    assert {row.class_ for row in found if "base" not in row.reason} <= {"unchanged", "missing", "added"}


def test_it_stands_in_every_rendering(files: dict[str, Path]) -> None:
    limits = [
        {"cases": SDPA, "metric": "dram__bytes.max", "max": "2MB"},
        {"cases": SDPA, "metric": INSTRUCTIONS, "max": 7},
    ]
    results = imported(files, ["ncu"], *limits)
    report = judged(results)
    assert report.exit_code == 1
    for text in (markdown.render(report).replace("\\", ""), profile(report), report.model_dump_json()):
        assert "dram__bytes.max" in text and INSTRUCTIONS in text
    assert f"{SDPA},cuda,metric,dram__bytes.max,B,1284864.0,10898432.0" in profile(report)
    assert "10.9 MB is above the limit of 2.00 MB" in markdown.render(report)
