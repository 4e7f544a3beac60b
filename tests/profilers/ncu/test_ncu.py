"""Reports of ncu and their raw pages: the same values from both, and a name for everything that is missing.

Fixtures of one H200 (ncu 2025.3.1): `ncu_base`, `ncu_head` as `--print-units base` prints them, and `ncu_base_scaled`,
the same report printed by ncu 2024.1.1 in the units that it chooses itself. Machine code was cut out of
the reports.
"""

import collections
import csv
import io
import lzma
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfci.model.base import UsageError
from perfci.profilers.ncu import layout as ncu_layout
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.ncu import profiler as ncu_profiler
from perfci.profilers.ncu.report import read

DATA = Path(__file__).parent.parent.parent / "data" / "ncu"
RANGES = ("sdpa-seq512", "matmul-n4096", "trajectory_resample-batch32")
REPORTS = {name: lzma.decompress((DATA / f"ncu_{name}.ncu-rep.xz").read_bytes()) for name in ("base", "head")}
REPORT = REPORTS["base"]
CSV = {name: lzma.decompress((DATA / f"ncu_{name}.csv.xz").read_bytes()) for name in ("base", "head", "base_scaled")}
HELD = [
    "sm_throughput", "memory_throughput", "dram_throughput", "dram_bytes", "dram_read", "dram_written",
    "tensor_active", "occupancy", "occupancy_theoretical", "l1_hit_rate", "l2_hit_rate", "registers", "shared_memory",
    "spills", "bank_conflicts", "instructions", "waves", "grid_size", "block_size",
]  # fmt: skip
"""What the fixtures hold."""
PRINTED = 0.005
"""Half of the last place that ncu prints in base units."""


def file(folder, data, name="page.csv"):
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    if not ncu_module.modules():
        pytest.skip("needs the module ncu_report: pip install ncu-report")  # Linux and Windows alone; dev installs it
    return file(tmp_path_factory.mktemp("ncu"), REPORT, "base.ncu-rep")


def rows(data):
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def text(table):
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(table)
    return out.getvalue().encode()


def changed(*cells):
    """The page with these cells replaced, of (row, column, value): row 0 has names, row 1 units, row 2 a launch."""
    table = rows(CSV["base"])
    columns = [*table[0]]
    for row, column, value in cells:
        table[row][columns.index(column)] = value
    return text(table)


def apart(report):
    """Read as perfci does, in a process of its own."""
    return ncu_profiler.counters(report, ranges=RANGES, whole=False, names=HELD, most=None, installed=None)


def paged(folder, data=CSV["base"], **how):
    return read(file(folder, data), ranges=RANGES, **how)


def kinds(faults):
    return [fault.kind for fault in faults]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(("side", "kernels"), [("base", 6), ("head", 17)])
def test_report_and_csv_agree(report, tmp_path, side, kernels):
    """Integers exactly, times to 1e-12, what is printed with two decimals within half of the last."""
    one = read(file(tmp_path, REPORTS[side], "r.ncu-rep"), ranges=RANGES, names=HELD)
    other = read(file(tmp_path, CSV[side]), ranges=RANGES, names=HELD)
    assert not one.general and not one.faults and not other.general and not other.faults
    assert set(one.seen) == set(other.seen) == set(RANGES)
    compared = 0
    for name in RANGES:
        a, b = one.seen[name], other.seen[name]
        assert (a.chip, a.passes, a.version) == (b.chip, b.passes, "2025.3.1") == ("gh100", 10, "2025.3.1")
        assert len(a.kernels) == len(b.kernels)
        for x, y in zip(a.kernels, b.kernels, strict=True):
            assert (x.count, x.grid, x.block) == (y.count, y.grid, y.block)
            assert x.seconds == pytest.approx(y.seconds, rel=1e-12)
            assert set(x.values) == set(y.values) == set(HELD)
            for quantity, value in x.values.items():
                printed = PRINTED if value != round(value) else 0
                assert math.isclose(value, y.values[quantity], rel_tol=1e-9, abs_tol=printed + 1e-9), quantity
                compared += 1
    assert compared == kernels * len(HELD)


def test_units_that_ncu_chose_itself(tmp_path):
    """`1.243749 Mbyte`, `70.176 usecond`, `49.152 Kbyte/block`: to the six decimals that are printed."""
    base = read(file(tmp_path, CSV["base"]), names=HELD)
    scaled = read(file(tmp_path, CSV["base_scaled"], "scaled.csv"), names=HELD)
    assert not scaled.general and not scaled.faults
    for name in RANGES:
        for x, y in zip(base.seen[name].kernels, scaled.seen[name].kernels, strict=True):
            assert x.seconds == pytest.approx(y.seconds, rel=1e-9)
            for quantity, value in x.values.items():
                # The scaled page has more decimals of percentages than the other one.
                assert math.isclose(value, y.values[quantity], rel_tol=1e-6, abs_tol=PRINTED + 1e-6), quantity


def test_what_is_counted_of_a_kernel(tmp_path):
    (flash,) = read(file(tmp_path, CSV["base"])).seen["sdpa-seq512"].kernels
    assert "flash_fwd_kernel" in flash.name and (flash.grid, flash.block) == ((4, 32, 8), (128, 1, 1))
    assert flash.seconds == pytest.approx(70.176e-6)
    told = {
        "registers": 255,
        "shared_memory": 49152,
        "spills": 327_680 + 176_128,
        "tensor_active": 41.34,
        "waves": 3.88,
    }
    assert told.items() <= flash.values.items()


def test_launches_of_one_configuration_are_one(tmp_path):
    """The resampling gathers twice: sums are summed, percentages weighted by 13.728 and 13.536 µs."""
    kernels = read(file(tmp_path, CSV["base"])).seen["trajectory_resample-batch32"].kernels
    assert [kernel.count for kernel in kernels] == [2, 1, 1, 1]
    assert [kernel.seconds for kernel in kernels] == sorted((kernel.seconds for kernel in kernels), reverse=True)
    gather = kernels[0]
    assert gather.seconds == pytest.approx(27.264e-6)
    assert gather.values["dram_bytes"] == 2 * 4_243_968 and gather.values["instructions"] == 2 * 7_536_640
    assert gather.values["registers"] == 36
    assert gather.values["sm_throughput"] == pytest.approx((53.96 * 13.728 + 54.46 * 13.536) / 27.264)


def test_links_of_rules_are_their_text():
    message = "See the @url:guide:https://docs.nvidia.com/x@ and @section:MemoryWorkloadAnalysis:Memory@."
    rule = ncu_module._rule({"rule_message": {"type": 3, "message": message}, "name": "Local Memory"})
    assert rule.message == "See the guide and Memory."


def test_rules_come_with_their_estimates(report):
    reading = read(report)
    (flash,) = reading.seen["sdpa-seq512"].kernels
    tail, occupancy = flash.rules
    assert (tail.name, tail.speedup) == ("Tail Effect", 25.0)
    assert "partial wave of 233 thread blocks" in tail.message and "@url" not in tail.message
    # ncu's estimate for a part of the kernel is none of its time.
    assert occupancy.speedup is None and "87.5 % of this part" in occupancy.message
    for counters in reading.seen.values():
        for kernel in counters.kernels:
            estimates = [rule.speedup or 0.0 for rule in kernel.rules]
            assert estimates == sorted(estimates, reverse=True)


# ---------------------------------------------------------------- ranges


def with_nvtx(cell, column="Push/Pop_Range"):
    table = rows(CSV["base"])
    for row in table[2:]:
        for index, name in enumerate(table[0]):
            if "_Range" in name:
                row[index] = cell if column in name else ""
    return text(table)


NONE = ":none:none:none:none:none:none"


DEFAULT, MINE = "<default domain>", "perfci-12-sdpa-seq_512"


@pytest.mark.parametrize(
    ("cell", "column"),
    [
        (f'183740  "{DEFAULT}:{MINE}{NONE}" ', "Push/Pop_Range"),
        (f'1  "{DEFAULT}:outer{NONE}"  "{DEFAULT}:{MINE}{NONE}" ', "Push/Pop_Range"),
        (f'1  "{DEFAULT}:{MINE}{NONE}"  "CCCL:cub::Reduce:none:none:none:none:REGISTERED:x" ', "Push/Pop_Range"),
        (f'"7:{DEFAULT}:{MINE}{NONE}" ', "Start/Stop_Range"),
    ],
)
def test_ranges_of_torch(tmp_path, cell, column):
    reading = read(file(tmp_path, with_nvtx(cell, column)), ranges=[MINE])
    assert sum(kernel.count for kernel in reading.seen[MINE].kernels) == 7
    assert not reading.faults and not reading.general


def test_names_with_colons_are_whole(tmp_path):
    assert list(read(file(tmp_path, with_nvtx(f'1  "{DEFAULT}:a:b c::d{NONE}" '))).seen) == ["a:b c::d"]


def test_launches_outside_and_ranges_without_launches_are_told(tmp_path):
    reading = read(file(tmp_path, CSV["base"]), ranges=["sdpa-seq512", "upload"])
    assert set(reading.seen) == {"sdpa-seq512"}
    assert kinds(reading.faults["upload"]) == ["empty"]
    assert kinds(reading.general) == ["incomplete"] and "6 of 7 launches lie in no range" in reading.general[0].text
    foreign = read(file(tmp_path, with_nvtx(f'1  "cuDNN:conv{NONE}" ')))
    assert not foreign.seen and kinds(foreign.general) == ["incomplete"]


# ---------------------------------------------------------------- what is missing


@pytest.mark.parametrize("cell", ["nan", "-nan", "n/a", "", "inf", "-5", "1.243.749,33", "12 apples"])
def test_a_value_that_is_none_is_a_fault_and_no_number(tmp_path, cell):
    reading = paged(tmp_path, changed((2, "dram__bytes.sum", cell)))
    (flash,) = reading.seen["sdpa-seq512"].kernels
    assert "dram_bytes" not in flash.values and flash.values["registers"] == 255
    assert kinds(reading.faults["sdpa-seq512"]) == ["incomplete"]
    assert "dram_bytes (1)" in reading.faults["sdpa-seq512"][0].text
    assert "matmul-n4096" not in reading.faults


@pytest.mark.parametrize(
    ("column", "value", "metric"),
    [
        ("lts__t_sector_hit_rate.pct", "246.5", "l2_hit_rate"),  # as ncu told of a fill of a few sectors
        ("smsp__inst_executed_op_local_ld.sum", "nan", "spills"),  # half of a sum
    ],
)
def test_a_value_that_cannot_be_is_none(tmp_path, column, value, metric):
    """A limit of at least 80 % must not pass by 246 %."""
    reading = paged(tmp_path, changed((2, column, value)))
    (fault,) = reading.faults["sdpa-seq512"]
    assert "no usable value for some" in fault.text and f"{metric} (1)" in fault.text and fault.metrics == [metric]
    without = [one for seen in reading.seen.values() for one in seen.kernels if metric not in one.values]
    assert without == reading.seen["sdpa-seq512"].kernels


def test_one_launch_without_a_value_takes_it_from_its_group(tmp_path):
    reading = paged(tmp_path, changed((4, "dram__bytes.sum", "nan")))  # the first of two gathers
    gather = reading.seen["trajectory_resample-batch32"].kernels[0]
    assert gather.count == 2 and "dram_bytes" not in gather.values and "dram_read" in gather.values
    assert "dram_bytes (1)" in reading.faults["trajectory_resample-batch32"][0].text


def test_units_of_another_kind_are_refused(tmp_path):
    reading = paged(tmp_path, changed((1, "dram__bytes.sum", "furlong")))
    assert all("dram_bytes" not in kernel.values for one in reading.seen.values() for kernel in one.kernels)
    assert all("dram_bytes" in faults[0].text for faults in reading.faults.values()) and len(reading.faults) == 3


def test_what_was_asked_and_is_not_there_is_told(tmp_path):
    reading = paged(tmp_path, names="deep")
    for name in RANGES:
        (fault,) = reading.faults[name]
        assert fault.kind == "incomplete" and "stall_long_scoreboard" in fault.text and "registers" not in fault.text
    with pytest.raises(UsageError, match="ocupancy"):
        paged(tmp_path, names=["ocupancy"])


def test_a_reached_cap_is_told(tmp_path):
    assert kinds(read(file(tmp_path, CSV["base"]), most=7).general) == ["incomplete"]
    assert read(file(tmp_path, CSV["base"]), most=8).general == []


def test_what_a_chip_cannot_give_is_told(tmp_path):
    capability = "device__attribute_compute_capability"
    cells = [(row, f"{capability}_{part}", at) for row in range(2, 9) for part, at in (("major", "12"), ("minor", "1"))]
    reading = paged(tmp_path, changed(*cells), names=["dram_bytes", "occupancy"])
    assert reading.seen["sdpa-seq512"].chip == "gb20b"
    assert [(f.kind, "integrated" in f.text) for f in reading.faults["sdpa-seq512"]] == [("incompatible", True)]


@pytest.mark.parametrize("cell", ["n/a", ""])
def test_the_launch_that_has_no_value_is_named(tmp_path, cell):
    (fault,) = paged(tmp_path, changed((6, "smsp__inst_executed.sum", cell))).faults[RANGES[2]]  # the third of five
    assert fault.metrics == ["instructions"]
    assert "; the first is launch 3, void at::index_elementwise_kernel<" in fault.text
    assert fault.text.endswith(f": smsp__inst_executed.sum is {cell or 'empty'} inst")
    (fault,) = paged(tmp_path, changed((6, "gpu__time_duration.sum", cell))).faults[RANGES[2]]
    assert fault.metrics == [] and "1 of 5 launches have no time" in fault.text and "launch 3, void at::" in fault.text


def test_dram_throughput_by_the_name_that_the_section_has(tmp_path):
    """SpeedOfLight's gpu__dram_throughput; where both stand, the one that perfci asks for."""
    named = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    theirs = changed((0, named, f"gpu__{named.replace('__', '_', 1)}"))
    before = paged(tmp_path, names=HELD)
    for names in (HELD, None):
        after = paged(tmp_path, theirs, names=names)
        assert after.faults == {} and after.general == []
        for name in RANGES:
            for one, other in zip(before.seen[name].kernels, after.seen[name].kernels, strict=True):
                assert one.values["dram_throughput"] == other.values["dram_throughput"]
    both = [[*row, [named, "%", "nan"][min(at, 2)]] for at, row in enumerate(rows(theirs))]
    told = paged(tmp_path, text(both), names=HELD)
    assert "dram_throughput (1)" in told.faults["sdpa-seq512"][0].text


def commas(data):
    """The page as a language with decimal commas prints it."""
    table = rows(data)
    for row in table[2:]:
        for index, name in enumerate(table[0]):
            if "__" in name:
                row[index] = row[index].translate(str.maketrans(",.", ".,"))
    return text(table)


@pytest.mark.parametrize("which", [*CSV])
def test_a_page_with_decimal_commas_holds_the_same_numbers(tmp_path, which):
    page = commas(CSV[which])
    assert b'"70.176"' in page or which != "base"  # nanoseconds, and no fraction of them
    one, other = (paged(tmp_path, data, names=HELD) for data in (CSV[which], page))
    assert one.seen == other.seen and not other.faults and not other.general


def test_a_number_that_may_be_two_is_none(tmp_path):
    """`3,456` in a page whose other numbers have no mark: three thousand, or three and a half."""
    table = rows(CSV["base"])
    for row in table[2:]:
        for index, name in enumerate(table[0]):
            if "__" in name:
                row[index] = row[index].split(".")[0].replace(",", "")
    assert not paged(tmp_path, text(table)).faults
    for cell in ("3,456", "3.456"):
        table[2][table[0].index("dram__bytes.sum")] = cell
        (fault,) = paged(tmp_path, text(table)).faults["sdpa-seq512"]
        assert fault.metrics == ["dram_bytes"] and f"dram__bytes.sum is {cell} byte" in fault.text
    table[2][table[0].index("dram__bytes.sum")] = "3,456,789"
    (flash,) = paged(tmp_path, text(table)).seen["sdpa-seq512"].kernels
    assert flash.values["dram_bytes"] == 3_456_789


def test_launches_that_stand_twice_count_once_and_left_out_ones_are_told(tmp_path):
    table = rows(CSV["base"])
    whole = read(file(tmp_path, CSV["base"]))
    twice = read(file(tmp_path, text([*table, *table[2:]])))
    assert twice.seen == whole.seen and twice.general == []
    left = read(file(tmp_path, text([*table[:4], *table[5:]])))
    (fault,) = left.general
    assert fault.metrics == [] and "1 of the launches up to number 6 are missing" in fault.text
    other = [*table[2]]
    other[table[0].index("dram__bytes.sum")] = "1"
    (fault,) = read(file(tmp_path, text([*table, other]))).general
    assert "1 rows are of a launch with the number of another" in fault.text


# ---------------------------------------------------------------- files that are none


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        (b"", "unreadable", "is empty"),
        (b"\0" * 5000, "unreadable", "neither a report"),
        (b"NVR\0", "unreadable", "cut"),
        (b"NVR\0" + b"\x17" * 500, "unreadable", ""),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "unreadable", "git lfs"),
        (b'{"schema": "perfci"}', "unreadable", "neither a report"),
        (b'"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n', "unreadable", "no grid"),
        (b"==PROF== Connected\n==WARNING== No kernels were profiled.\n", "unreadable", "neither"),
        (b"\n".join(CSV["base"].splitlines()[:2]) + b"\n", "empty", "no kernel"),
        (b"\n".join(CSV["base"].splitlines()[:1]), "empty", "no kernel"),
    ],
)  # fmt: skip
def test_files_without_counters(tmp_path, data, kind, told):
    if data.startswith(b"NVR\0") and not ncu_module.modules():
        pytest.skip("needs the module ncu_report")  # as above
    reading = paged(tmp_path, data)
    assert not reading.seen
    assert kind in kinds(reading.general)
    assert any(told in fault.text + fault.remedy for fault in reading.general)
    assert set(reading.faults) == set(RANGES)


def test_no_file(tmp_path):
    assert kinds(read(tmp_path / "none.ncu-rep").general) == ["unreadable"]
    assert kinds(read(tmp_path).general) == ["unreadable"]


def test_what_ncu_prints_around_the_table_is_passed_over(tmp_path):
    data = b"\xef\xbb\xbf==PROF== Connected to process 39\n\n" + CSV["base"] + b"==PROF== Disconnected\n"
    reading = paged(tmp_path, data, names=HELD)
    assert set(reading.seen) == set(RANGES) and not reading.general and not reading.faults


def test_a_cut_table_is_told(tmp_path):
    whole = read(file(tmp_path, CSV["base"]))
    lines = CSV["base"].splitlines(keepends=True)
    for cut in (len(lines[-1]) - 40, len(lines[-1]) - 3, 10):
        reading = paged(tmp_path, b"".join(lines[:-1]) + lines[-1][:cut])
        assert kinds(reading.general) == ["incomplete"], cut
        assert reading.seen["sdpa-seq512"] == whole.seen["sdpa-seq512"]


def test_a_truncated_report_is_unreadable(report, tmp_path):
    for size in (5, 1000, len(REPORT) // 2, len(REPORT) - 5000, len(REPORT) - 1):
        reading = read(file(tmp_path, REPORT[:size], "cut.ncu-rep"), ranges=RANGES)
        assert not reading.seen and kinds(reading.general) == ["unreadable"], size


def results():
    """The blocks of the report that hold launches, each up to its end."""
    return [block for block in ncu_layout.blocks(io.BytesIO(REPORT), len(REPORT)) if block.header.get(2)]


def test_a_report_that_lost_its_last_blocks_gives_what_is_left(report, tmp_path):
    """Cut between blocks it looks as if the others had never been profiled: a range without a kernel tells."""
    reading = read(file(tmp_path, REPORT[: results()[0].end], "cut.ncu-rep"), ranges=RANGES)
    assert set(reading.seen) == {"sdpa-seq512"}
    assert kinds(reading.faults["matmul-n4096"]) == ["empty"]


def test_a_launch_that_is_announced_and_cannot_be_read_is_told(report, tmp_path):
    last = results()[-1]
    junk = REPORT[: last.end - 30_000] + b"\x17" * 30_000 + REPORT[last.end :]
    assert paged(tmp_path, junk).general


# ---------------------------------------------------------------- readers of reports


def test_a_module_that_is_older_than_the_report_is_not_used(report, monkeypatch, tmp_path):
    monkeypatch.setattr(ncu_module, "modules", lambda: [ncu_module.Module(tmp_path, "2024.1.1")])
    reading = read(report, ranges=RANGES)
    assert not reading.seen
    (fault,) = reading.general
    assert fault.kind == "incompatible" and "2025.3.1" in fault.text and "2024.1.1" in fault.text
    assert fault.remedy == "pip install 'ncu-report>=2025.3.1'"


def test_its_reader_brings_no_re2_along():
    """With re2's library in the process, that of ncu_report 2025.3 dies on Python 3.12."""
    code = "import sys, perfci.profilers.ncu.report; print('re2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_module_that_cannot_be_imported_is_passed_over(report, monkeypatch, tmp_path):
    works = ncu_module.modules()
    (tmp_path / "ncu_report.py").write_text("raise ImportError('libstdc++ is too old')\n")
    broken = ncu_module.Module(tmp_path, "")
    monkeypatch.setattr(ncu_module, "modules", lambda: [broken, *works])
    assert set(apart(report).seen) == set(RANGES)


def test_copies_beside_ncu_are_found_newest_first(tmp_path):
    for version in ("2024.3.2", "2025.3.1"):
        python = tmp_path / "opt/nvidia/nsight-compute" / version / "extras/python"
        python.mkdir(parents=True)
        (python / "ncu_report.py").touch()
    (tmp_path / "opt/nvidia/nsight-compute/2023.1.1").mkdir()
    found = [module for module in ncu_module.modules(tmp_path) if tmp_path in module.folder.parents]
    assert [module.version for module in found] == ["2025.3.1", "2024.3.2"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "SIGSEGV"),
        ("def load_report(path):\n    raise RuntimeError('protobuf: bad tag')\n", "protobuf: bad tag"),
        ("def load_report(path):\n    return bytes(2**45)\n", "MemoryError"),
    ],
)
def test_a_module_that_dies_takes_nothing_with_it(report, monkeypatch, tmp_path, body, told):
    (tmp_path / "ncu_report.py").write_text(body)
    monkeypatch.setattr(ncu_module, "modules", lambda: [ncu_module.Module(tmp_path, "2099.1")])
    reading = apart(report)
    assert not reading.seen and kinds(reading.general) == ["unreadable"]
    assert told in reading.general[0].text


def test_where_no_module_fits_ncu_itself_prints_the_page(tmp_path, monkeypatch):
    """A program in ncu's place that prints the recorded page if it is called as ncu must be."""
    page = file(tmp_path, CSV["base"])
    tool = tmp_path / "ncu"
    tool.write_text(
        f"#!{sys.executable}\nimport sys, shutil\n"
        "assert sys.argv[-5:] == ['--page', 'raw', '--csv', '--print-units', 'base']\n"
        f"assert sys.argv[1:4] == ['--config-file', 'off', '--import']\nshutil.copyfileobj(open({str(page)!r}), sys.stdout)\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(ncu_module, "modules", lambda: [])
    reading = read(file(tmp_path, REPORT, "base.ncu-rep"), ranges=RANGES, ncu=tool)
    assert set(reading.seen) == set(RANGES) and not reading.general
    tool.write_text("#!/bin/sh\necho \"==ERROR== Failed to load report file 'x'.\"\nexit 1\n")
    failed = read(file(tmp_path, REPORT, "base.ncu-rep"), ranges=RANGES, ncu=tool)
    assert kinds(failed.general) == ["unreadable"] and "Failed to load report file" in failed.general[0].text


# ---------------------------------------------------------------- fuzzing


def check(reading):
    """What holds of any file: values are finite and not below zero, and a range without counters has a fault."""
    for counters in reading.seen.values():
        assert counters.kernels
        for kernel in counters.kernels:
            assert kernel.seconds > 0 and kernel.count >= 1
            assert all(math.isfinite(value) and value >= 0 for value in kernel.values.values())
    for name in RANGES:
        asked = reading.seen.get(name)
        whole = asked is not None and all(set(HELD) == set(kernel.values) for kernel in asked.kernels)
        assert whole or reading.faults.get(name) or "unreadable" in kinds(reading.general), name
    for fault in [*reading.general, *(fault for faults in reading.faults.values() for fault in faults)]:
        assert fault.text and "\n" not in fault.text + fault.remedy


CELLS = ["nan", "n/a", "", "-1", "1e999", "1,2,3", '"', "\0", "\n", "(1, 1, 1)", "9" * 400]
mutations = st.one_of(
    st.tuples(st.just("cut"), st.floats(0, 1), st.integers(0, 0), st.just(b"")),
    st.tuples(st.just("delete"), st.floats(0, 1), st.integers(1, 9000), st.just(b"")),
    st.tuples(st.just("insert"), st.floats(0, 1), st.integers(0, 0), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("overwrite"), st.floats(0, 1), st.integers(0, 0), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("double"), st.floats(0, 1), st.integers(1, 9000), st.just(b"")),
)


def mutated(data, steps):
    for how, where, size, other in steps:
        at = int(where * len(data))
        data = {
            "cut": data[:at],
            "delete": data[:at] + data[at + size :],
            "insert": data[:at] + other + data[at:],
            "overwrite": data[:at] + other + data[at + len(other) :],
            "double": data[: at + size] + data[at:],
        }[how]
    return data


fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(fuzz, max_examples=1000)
@given(st.sampled_from([*CSV]), st.lists(mutations, min_size=1, max_size=6))
def test_mutated_pages(tmp_path, which, steps):
    check(paged(tmp_path, mutated(CSV[which], steps), names=HELD))


@settings(fuzz, max_examples=200)
@given(st.data())
def test_pages_with_other_cells(tmp_path, data):
    """A cell that holds no number costs its value and a fault; all others stay as they were."""
    table = rows(CSV["base"])
    whole = paged(tmp_path, names=HELD)
    row = data.draw(st.integers(0, len(table) - 1))
    column = data.draw(st.integers(0, len(table[0]) - 1))
    table[row][column] = data.draw(st.sampled_from(CELLS) | st.text(max_size=30))
    reading = paged(tmp_path, text(table), names=HELD)
    check(reading)
    if row > 2 and "\n" not in table[row][column] and "\r" not in table[row][column]:
        assert reading.seen["sdpa-seq512"] == whole.seen["sdpa-seq512"]


@settings(fuzz, max_examples=150)
@given(st.floats(0, 1))
@example(0.7579622464201217)  # behind the last comma of a row
def test_cut_pages_lose_nothing_in_silence(tmp_path, share):
    data = CSV["base"][: int(share * len(CSV["base"]))]
    whole = paged(tmp_path, names=HELD)
    reading = paged(tmp_path, data, names=HELD)
    check(reading)
    at_end_of_line = data.endswith(b'"\n') or CSV["base"].startswith(data + b"\n")
    if reading.seen != whole.seen and not at_end_of_line:
        assert reading.general or reading.faults


def damaged(dice):
    data = bytearray(dice.choice(list(REPORTS.values())))
    at = dice.randrange(len(data))
    how = dice.randrange(6)
    if how == 0:
        del data[at:]
    elif how == 1:
        del data[at : at + dice.randrange(1, 5000)]
    elif how == 2:
        data[at:at] = dice.randbytes(dice.randrange(1, 300))
    elif how == 3:
        data[at:at] = data[at : at + dice.randrange(1, 5000)]
    else:
        for _ in range(dice.choice((1, 8, 200, 2000))):
            where = at + dice.randrange(-2000, 2000) if how == 4 else dice.randrange(len(data))
            data[min(max(0, where), len(data) - 1)] = dice.randrange(256)
    return bytes(data)


def fuzz_reports(folder, number, seed):
    """How the readings of damaged reports came out: whole, in part, or not at all."""
    dice = random.Random(seed)
    came = collections.Counter()
    for _ in range(number):
        reading = apart(file(folder, damaged(dice), "mutant.ncu-rep"))
        check(reading)
        assert not any(" within " in fault.text for fault in reading.general), "it hangs"
        whole = len(reading.seen) == 3 and not reading.general and not reading.faults
        came["whole" if whole else "in part" if reading.seen else "none"] += 1
    return came


def test_mutated_reports(report, tmp_path):
    assert fuzz_reports(tmp_path, 8, seed=4)["none"]


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mutated_reports(report, tmp_path):
    came = fuzz_reports(tmp_path, 200, seed=5)
    assert min(came["whole"], came["in part"], came["none"]) > 3
