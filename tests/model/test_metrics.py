"""The table of metrics: one entry is all that a counter needs, and what is no entry is an error."""

import csv
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perfci
from perfci.cli.report import read_results
from perfci.model.base import UsageError
from perfci.model.metrics import CATALOGUE, COUNTERS, TABLE, Quantity, combined, following, table
from perfci.model.profile import Counters, KernelCounters, Profile

from ..judge.build import case, results, side

PAGE = Path(__file__).parents[1] / "data" / "ncu" / "ncu_base.csv.xz"
ENTRY = """
    _counter(
        "warps_launched", "", "warps launched", better="lower", aggregate="sum", ncu=_ncu("smsp__warps_launched.sum"),
        exact=True,
    ),
"""
USES = """
import json, sys
from pathlib import Path
from perfci.model.policy import Policy
from perfci.model.profile import Profile
from perfci.schemas import files
from perfci.profilers.metrics import take
from perfci.profilers.ncu import chips
from perfci.profilers.ncu.report import read

asked_for = [{"metric": "warps_launched", "regression": "0%"}, {"metric": "warps_launched", "max": 9}]
Policy.model_validate({"version": 1, "limits": asked_for})
seen = read(Path(sys.argv[1]), ranges=["sdpa-seq512", "trajectory_resample-batch32"], names=["warps_launched"])
told = {}
for name, counters in seen.seen.items():
    profile = Profile()
    take(profile, counters, seen.faults.get(name, []), (9, 0), gpu=True)
    told[name] = Profile.model_validate_json(profile.model_dump_json()).metrics, sum(one.count for one in counters.kernels)
asked = [chips.metrics_for(names, "gb203") for names in ("default", "deep")]
print(json.dumps({"told": told, "asked": asked, "schema": "warps_launched" in files()["results.json"]}))
"""


def test_a_counter_of_ncu_is_one_entry(tmp_path: Path) -> None:
    """In a copy of perfci: asked for, read, aggregated, kept in documents, and fit for limits."""
    copy = shutil.copytree(
        Path(perfci.__file__).parent, tmp_path / "perfci", ignore=shutil.ignore_patterns("__pycache__")
    )
    module = copy / "model" / "metrics.py"
    before, mark, after = module.read_text().partition("    # Counted to explain\n")
    module.write_text(before + ENTRY.lstrip("\n") + mark + after)
    rows = list(csv.reader(io.StringIO(lzma.decompress(PAGE.read_bytes()).decode(), newline="")))
    with (tmp_path / "page.csv").open("w", newline="") as page:
        added = ["smsp__warps_launched.sum", "warp", *["7"] * (len(rows) - 2)]
        csv.writer(page, quoting=csv.QUOTE_ALL).writerows([*row, one] for row, one in zip(rows, added, strict=True))
    found = json.loads(
        subprocess.run(
            [sys.executable, "-c", USES, tmp_path / "page.csv"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout
    )  # fmt: skip
    assert len(found["told"]) == 2 and found["schema"]
    assert all(metrics == {"warps_launched": 7.0 * launches} for metrics, launches in found["told"].values())
    assert all("smsp__warps_launched.sum" in metrics for metrics in found["asked"])


def test_every_counter_says_how_kernels_aggregate() -> None:
    assert {name for name, one in TABLE.items() if one.ncu} == COUNTERS.keys() - {"local_memory"}  # a timeline's alone
    with pytest.raises(ValueError, match="ipc: say how the values of kernels aggregate"):
        Quantity("ipc", "", "", tier="counters", sources=("counters",), ncu=TABLE["instructions"].ncu)
    with pytest.raises(ValueError, match="ipc: say what ncu counts for it"):
        Quantity("ipc", "", "", tier="counters", sources=("counters",), aggregate="mean")


def test_a_name_stands_once() -> None:
    with pytest.raises(ValueError, match="two entries are called waves"):
        table(TABLE["waves"], TABLE["spills"], TABLE["waves"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("dram_byte", "dram_bytes"), ("time", "waves"), ("stall_bariers", "stall_barrier"), ("", "waves")],
)
def test_what_is_no_counter_is_never_averaged(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"^{name!r} is no counter: (did you mean|known are) .*{near}") as error:
        combined(name, [(1.0, 1.0)])
    assert "\n" not in str(error.value)


def test_every_timeline_metric_says_what_it_follows() -> None:
    """Else a fault of the timeline would leave it standing."""
    for name, one in CATALOGUE.items():
        assert bool(one.follows) == ("trace" in one.sources), name
    assert following("sets") == ("device_busy", "launch_overhead", "range:*")
    assert "range:*" not in following("calls")


def test_a_document_with_an_unknown_name_is_refused_in_one_line(tmp_path: Path) -> None:
    kernel = KernelCounters(name="k", count=1, seconds=1e-5, grid=(1, 1, 1), block=(1, 1, 1), values={"waves": 1.0})
    profile = Profile(
        counters=Counters(source="ncu", kernels=[kernel]), metrics={"instructions": 1.0, "range:encode": 1e-3}
    )
    given = results([case(head=side(profile=profile))]).model_dump_json()
    path = tmp_path / "results.json"
    path.write_text(given)
    read_results(path)
    for known, name in (
        ("waves", "wawes"),
        ("instructions", "waves"),
        ("range:encode", "range:"),
        ("waves", "w" * 10**6),
    ):
        path.write_text(given.replace(f'"{known}"', f'"{name}"'))
        with pytest.raises(UsageError, match=rf"(values|metrics): .*'{name[:80]}' is no (counter|metric): ") as error:
            read_results(path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 2000
