"""Metrics by ncu's own names: what a name tells, and the values of kernels made one, held against plain CSV."""

import csv
import io
import lzma
import math
import re
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.model.metrics import CATALOGUE, NCU, PLAIN_NCU, combined, of_ncu
from perfci.model.profile import Profile
from perfci.profilers.metrics import take
from perfci.profilers.ncu import chips
from perfci.profilers.ncu.launch import factor
from perfci.profilers.ncu.report import read

from .test_ncu import CSV, DATA, REPORTS, changed, file, text

SDPA, MATMUL = "sdpa-seq512", "matmul-n4096"
SIDES = ("base", "head")
OWN = [
    "smsp__inst_executed.sum", "smsp__inst_executed.avg", "smsp__inst_executed.max", "smsp__inst_executed.min",
    "dram__bytes.sum", "dram__bytes_read.max", "gpu__time_duration.sum", "l1tex__t_sector_hit_rate.pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.max.pct_of_peak_sustained_elapsed",
    "sm__throughput.min.pct_of_peak_sustained_elapsed", "sm__warps_active.sum.per_cycle_active",
    "launch__stack_size", "smsp__warps_active.sum.peak_sustained",
]  # fmt: skip
"""Metrics of the recorded reports, of each rollup."""


def table(side: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(CSV[side].decode(), newline="")))


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def by_csv(side: str, name: str, metric: str) -> float | None:
    """The metric of a range by plain csv and statistics, as docs/profiling.md says that kernels make one."""
    units, *launches = table(side)
    ranges = next(column for column in units if "Push/Pop_Range" in column)
    mine = [launch for launch in launches if f":{name}:" in launch[ranges]]
    values = [number(launch[metric]) for launch in mine]
    scale = {"ns": 1e-9}.get(units[metric], 1.0)
    averaged = ".pct" in metric or ".per_cycle" in metric or metric.endswith(".avg")
    if averaged and ".max." not in metric and ".min." not in metric:
        weights = [number(launch["gpu__time_duration.sum"]) for launch in mine]
        return statistics.fmean(values, weights) * scale
    if ".sum" in metric and "peak_sustained" not in metric:
        return math.fsum(values) * scale
    if ".max" in metric or ".min" in metric:
        return (max if ".max" in metric else min)(values) * scale
    return values[0] * scale if len(set(values)) == 1 else None


def told(path: Path, metrics: list[str], **how) -> dict[str, Profile]:
    reading = read(path, own=metrics, **how)
    found = {}
    for name, counters in reading.seen.items():
        found[name] = Profile()
        take(found[name], counters, reading.faults.get(name, []), (9, 0), gpu=True)
    return found


@pytest.mark.parametrize("side", SIDES)
def test_values_are_those_of_plain_csv(side, tmp_path):
    """From the report and from its page: 1 to 14 kernels a range."""
    for path in (file(tmp_path, CSV[side]), file(tmp_path, REPORTS[side], "r.ncu-rep")):
        found = told(path, OWN)
        assert len(found) == 3
        for name, profile in found.items():
            for metric in OWN:
                expected = by_csv(side, name, metric)
                # A page is printed to two decimals.
                assert profile.metrics.get(metric) == pytest.approx(expected, rel=1e-4, abs=0.006), (path, name, metric)


def test_where_kernels_differ_in_what_is_no_sum_there_is_no_value_and_a_reason(tmp_path):
    page = file(tmp_path, CSV["head"])
    metric = "launch__occupancy_limit_registers"
    found = told(page, [metric])
    assert by_csv("head", SDPA, metric) is None and metric not in found[SDPA].metrics
    (fault,) = (one for one in found[SDPA].faults if metric in one.metrics)
    assert "differs from kernel to kernel (2, 4, 16 and 2 more)" in fault.text and ".sum" in fault.remedy
    assert found[MATMUL].metrics[metric] == by_csv("head", MATMUL, metric) == 1  # of one kernel


def test_what_is_not_in_a_file_is_told_with_how_to_capture_it(tmp_path):
    page = file(tmp_path, CSV["base"])
    found = told(page, ["sm__cycles_active.avg", "smsp__inst_executed.sum"])
    for profile in found.values():
        (fault,) = profile.faults
        assert fault.metrics == ["sm__cycles_active.avg"] and "sm__cycles_active.avg" not in profile.metrics
        assert fault.remedy == "capture it too: ncu --metrics sm__cycles_active.avg"
    asked = told(page, [], names=["instructions", "sm__cycles_active.avg"])[SDPA]
    assert "ncu gave no sm__cycles_active.avg" in asked.faults[0].text, "ncu was asked for it"
    assert "--query-metrics --chips gh100" in asked.faults[0].remedy and "instructions" in asked.metrics


def test_pages_of_details_have_them_by_their_names(tmp_path):
    """As section `Command line profiler metrics` of `ncu --metrics` prints them."""
    columns = ["ID", "Kernel Name", "Block Size", "Grid Size", "perfci:Push/Pop_Range", "Metric Name", "Metric Unit"]
    rows = [[*columns, "Metric Value"]]
    for number, executed in enumerate((7, 5)):
        launch = [str(number), "k", "(128, 1, 1)", "(8, 1, 1)", f'"perfci:{SDPA}:none:none:none:none:none:none"']
        for cells in (("gpu__time_duration.sum", "us", "10"), ("sm__inst_issued.sum", "Kinst", str(executed))):
            rows.append([*launch, *cells])
    profile = told(file(tmp_path, text(rows)), ["sm__inst_issued.sum", "sm__inst_issued.avg"])[SDPA]
    assert profile.metrics["sm__inst_issued.sum"] == 12e3 and "sm__inst_issued.avg" not in profile.metrics
    assert [fault.metrics for fault in profile.faults] == [["sm__inst_issued.avg"]]


def test_a_value_that_is_none_is_a_fault_and_no_number(tmp_path):
    page = file(tmp_path, changed(*((row, "smsp__inst_executed.avg", "nan") for row in range(2, 9))))
    for profile in told(page, ["smsp__inst_executed.avg"]).values():
        assert "smsp__inst_executed.avg" not in profile.metrics
        assert any("smsp__inst_executed.avg" in one.metrics and "no usable value" in one.text for one in profile.faults)


def test_a_dimension_other_than_the_name_tells_is_no_value(tmp_path):
    """A limit of instructions would otherwise be held against bytes."""
    page = file(tmp_path, changed((1, "smsp__inst_executed.avg", "Kbyte")))
    for profile in told(page, ["smsp__inst_executed.avg"]).values():
        assert "smsp__inst_executed.avg" not in profile.metrics and "Kbyte" in profile.faults[0].text


# ---------------------------------------------------------------- names


def test_the_unit_by_the_name_is_that_of_the_report():
    """Every metric that the recorded page has, of ncu 2025.3.1 on an H200."""
    units = table("base")[0]
    compared = 0
    for name, unit in units.items():
        if "__" not in name or name.startswith(("device__", "derived__", "numa__", "nvlink__", "c2clink__")):
            continue
        metric = of_ncu(name)
        assert metric is not None, name
        assert factor(metric.unit, unit) is not None, (name, metric.unit, unit)
        assert bool(metric.unit) == (unit.split("/")[0] in ("byte", "ns", "%")), name
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("name", "unit", "aggregate"),
    [
        ("sm__cycles_active.avg", "", "mean"), ("gpc__cycles_elapsed.max", "", "maximum"),
        ("gpc__cycles_elapsed.avg.per_second", "Hz", "mean"), ("lts__t_bytes.sum.per_second", "B/s", "mean"),
        ("smsp__inst_executed.sum.per_second", "/s", "mean"), ("lts__t_bytes.sum", "B", "sum"),
        ("smsp__cycles_active.min", "", "minimum"), ("sm__inst_executed.sum.per_cycle_elapsed", "", "mean"),
        ("sm__throughput.min.pct_of_peak_sustained_elapsed", "%", "minimum"),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", "", "mean"),
        ("smsp__thread_inst_executed_per_inst_executed.max_rate", "", "same"),
        ("lts__t_sectors.sum.peak_sustained", "", "same"), ("launch__waves_per_multiprocessor", "", "same"),
        ("launch__shared_mem_per_block", "B", "same"), ("launch__occupancy_cluster_pct", "%", "same"),
        ("gpu__time_active.sum", "s", "sum"),
    ],
)  # fmt: skip
def test_what_a_name_tells(name, unit, aggregate):
    metric = of_ncu(name)
    assert metric is not None and (metric.unit, metric.aggregate, metric.better) == (unit, aggregate, None)


def test_what_the_table_knows_under_another_name_is_that_metric():
    for name, like in {
        "smsp__inst_executed.sum": "instructions", "dram__bytes.sum": "dram_bytes",
        "launch__registers_per_thread": "registers", "dram__bytes_op_read.sum": "dram_read",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_throughput",
    }.items():  # fmt: skip
        own, known = of_ncu(name), CATALOGUE[like]
        assert own is not None and own.name == name and own.tier == "counters"
        told = [(one.unit, one.better, one.exact, one.aggregate) for one in (own, known)]
        assert told[0] == told[1], name
        assert chips.metrics_for([name], "gh100") == [chips.TIME, name]  # on a chip that lacks it ncu says so
    spilled = of_ncu("smsp__inst_executed_op_local_ld.sum")
    assert spilled is not None and spilled.better is None  # `spills` is a sum of two


def test_every_metric_of_every_chip_can_be_named():
    lines = lzma.decompress((DATA / "known_metrics.txt.xz").read_bytes()).decode().splitlines()[2:]
    suffixes = {
        "c": [".sum", ".avg", ".min", ".max", ".sum.per_second", ".avg.per_cycle_active", ".max.peak_sustained"],
        "r": [".ratio", ".pct", ".max_rate"],
        "t": [".avg.pct_of_peak_sustained_elapsed", ".max.pct_of_peak_sustained_active"],
        "a": [""],
    }
    for line in lines:
        base, kind, _ = line.split()
        for suffix in suffixes[kind] if not base.startswith("-") else ():
            assert of_ncu(base + suffix) is not None and re.fullmatch(PLAIN_NCU, base + suffix), base + suffix


@given(st.text(max_size=60) | st.from_regex(r"[a-z]{1,5}_{1,3}[a-z_]{0,9}[.,: -][a-z.]{0,9}", fullmatch=True))
def test_what_goes_to_the_command_line_is_one_word(text):
    """ncu takes `regex:`, `group:` and lists, and options begin with `-`."""
    metric = of_ncu(text)
    if metric is not None:
        assert re.fullmatch(r"[a-z][a-z0-9]*__[A-Za-z0-9_.]+", text) and NCU.fullmatch(text)
        assert metric.aggregate is not None and metric.name == text


def test_values_that_must_be_one():
    assert combined("launch__stack_size", [(1024.0, 1e-6), (1024.0, 3e-6)]) == 1024
    assert combined("launch__stack_size", [(1024.0, 1e-6), (2048.0, 3e-6)]) is None


@pytest.mark.parametrize(
    ("unit", "told", "by"),
    [
        ("", "inst", 1), ("", "Kinst", 1e3), ("", "", 1), ("", "sector/request", 1), ("", "SM", 1), ("", "byte/sector", 1),
        ("", "byte", None), ("", "ms", None), ("", "%", None), ("", "inst/ns", None), ("", "Ghz", None), ("", "INST!", None),
        ("Hz", "Ghz", 1e9), ("Hz", "hz", 1), ("Hz", "cycle/nsecond", 1e9), ("Hz", "inst/s", None), ("Hz", "", None),
        ("/s", "Minst/second", 1e6), ("/s", "byte/second", None), ("/s", "inst", None), ("B", "Mbyte", 1e6), ("B", "inst", None),
        ("s", "ns", 1e-9), ("s", "cycle", None), ("%", "%", 1), ("%", "", None),
    ],
)  # fmt: skip
def test_units_of_ncu(unit, told, by):
    assert factor(unit, told) == (None if by is None else pytest.approx(by))
