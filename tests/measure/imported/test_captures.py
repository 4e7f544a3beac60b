"""Captures that perfci did not make: what is read of them equals what plain SQL and plain CSV say, or is refused."""

import csv
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfci.judge.replan import judge_by
from perfci.measure.imported.capture import recognise
from perfci.measure.imported.files import import_files
from perfci.model.base import UsageError
from perfci.model.results import Results, Work
from perfci.render import markdown
from perfci.render.csv import profile
from perfci.render.html import render as html
from tests.profilers.test_nsys import change

from . import independent
from .build import MATMUL, RESAMPLE, SDPA, UPLOAD, call, event, judged, kernel, policy, write_trace

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return independent.unpacked(tmp_path_factory.mktemp("captures"))


def part(source: Path, folder: Path, *statements: str) -> Path:
    """The capture after statements that change it."""
    path = Path(shutil.copy(source, folder / f"part-of-{source.name}"))
    change(path, *statements)
    return path


def both(files: dict[str, Path], *limits: dict[str, Any], by: Any = None) -> Results:
    sides = {side: [files[f"ncu_{side}"], files[f"nsys_{side}"]] for side in ("base", "head")}
    return import_files(sides, policy(*limits), by=by)


TABLE = [*csv.DictReader((DATA / "import" / "seeds.csv").open(encoding="utf-8"))]
"""What the captures hold, committed: written by `python -m tests.measure.imported.independent`."""


@pytest.mark.slow
def test_the_table_is_what_plain_sql_and_csv_say(files: dict[str, Path]) -> None:
    again = independent.table(files)
    assert [(row["side"], row["case"], row["metric"]) for row in TABLE] == [row[:3] for row in again]
    for row, (*_, value) in zip(TABLE, again, strict=True):
        assert float(row["value"]) == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("side", ["base", "head"])
def test_the_limits_of_scripts_hold_or_break_as_the_table_says(files: dict[str, Path], side: Any) -> None:
    """All by one command: values, classes and the exit code."""
    limits = [{"cases": "*", "metric": metric, kind: text} for metric, (kind, text, _) in independent.SEEDS.items()]
    work = {"*": Work(items=independent.ITEMS, item="samples")}
    results = import_files({"head": [files[f"ncu_{side}"], files[f"nsys_{side}"]]}, policy(*limits), items=work)
    report = judged(results)
    told = {(row.case, row.metric): row for row in report.rows}
    known = {(row["case"], row["metric"]): float(row["value"]) for row in TABLE if row["side"] == side}
    for case in results.cases:
        for metric in independent.SUMS:
            assert case.sides["head"].profile.metrics[metric] == pytest.approx(known.pop((case.id, metric)), rel=1e-9)
    assert known.keys() == told.keys()  # a pattern asks a copy for no counters
    for (case, metric), row in told.items():
        kind, _, bound = independent.SEEDS[metric]
        value = known[case, metric]
        holds = value >= bound if kind == "min" else value <= bound
        assert row.class_ == ("unchanged" if holds else "violation")
        assert ("TMA copies" in row.reason) is (metric == "l1_hit_rate" and value < 1)
        assert row.head == pytest.approx(value, rel=1e-6, abs=1e-9)
    assert report.exit_code == 1


def test_base_and_head_are_explained(files: dict[str, Path]) -> None:
    report = judged(both(files))
    said = {one.case: " ".join(one.sentences) for one in report.profiles}
    assert "left flash attention: 1 kernel → 14" in said[SDPA] and "44×" in said[SDPA]
    assert "casts through float32" in said[RESAMPLE] and "the upload is pageable now" in said[UPLOAD]
    assert "nothing moved" in said[MATMUL]
    assert report.exit_code == 0 and report.verdict == "undecided"  # one timeline a side shows no change
    assert judged(both(files), strict=True).exit_code == 1


def test_what_the_host_calls_and_copies_is_listed(files: dict[str, Path]) -> None:
    report = judged(both(files))
    upload = next(one for one in report.profiles if one.case == UPLOAD)
    db = sqlite3.connect(files["nsys_head"])
    times = dict(
        db.execute(
            "SELECT s.value, sum(r.end - r.start) * 1e-9 FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON "
            "s.id = r.nameId WHERE EXISTS (SELECT 1 FROM NVTX_EVENTS n LEFT JOIN StringIds t ON t.id = n.textId WHERE "
            "coalesce(n.text, t.value) = ? AND r.start >= n.start AND r.end <= n.end AND r.globalTid = n.globalTid) "
            "GROUP BY 1",
            (UPLOAD,),
        )
    )
    whole = sum(times.values())
    calls, copies = ([use for use in upload.uses if use.kind == kind] for kind in ("call", "copy"))
    told = {call.name: call for call in calls}
    largest = max(times, key=lambda name: times[name])
    assert calls[0].name == largest.partition("_v")[0] == "cudaMemcpyAsync"
    assert told["cudaMemcpyAsync"].share["head"] == pytest.approx(times[largest] / whole, rel=1e-6)
    assert told["cudaMemcpyAsync"].seconds["head"] == pytest.approx(times[largest] / 10, rel=1e-6)  # ten executions
    assert {copy.name: copy.bytes for copy in copies} == {
        "host to device, pageable": {"head": 64 * 2**20}, "host to device, pinned": {"base": 64 * 2**20},
    }  # fmt: skip
    for text in (markdown.render(report), html(report)):
        assert "cudaMemcpyAsync" in text and "host to device, pageable" in text and "12.1 GB/s" in text
    lines = list(csv.reader(profile(report).splitlines()))
    assert [UPLOAD, "cuda", "copied", "host to device, pageable", "B", "", str(float(64 * 2**20))] in lines


def test_counters_of_several_executions_have_no_sums(files: dict[str, Path], tmp_path: Path) -> None:
    names, units, *rows = csv.reader(files["ncu_head"].open(encoding="utf-8"))
    path = tmp_path / "twice.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        more = [[str(number), *row[1:]] for number, row in enumerate([*rows, *rows])]
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, units, *more])
    limits = [
        {"cases": SDPA, "metric": metric, "max": bound}
        for metric, bound in (("dram_bytes", "100GB"), ("occupancy", "99%"))
    ]
    report = judged(import_files({"head": [path, files["nsys_head"]]}, policy(*limits)))
    told = {row.metric: row for row in report.rows}
    assert told["dram_bytes"].class_ == "invalid" and "an execution has 14" in told["dram_bytes"].reason
    assert told["occupancy"].class_ == "unchanged"


def test_time_under_ncu_is_no_latency(files: dict[str, Path]) -> None:
    limit = {"cases": "*", "metric": "time", "max": "5ms"}
    report = judged(import_files({"head": [files["ncu_head"]]}, policy(limit)))
    assert {row.class_ for row in report.rows} == {"invalid"} and report.verdict != "pass"
    assert all(
        "times under ncu are no latency" in row.reason and "import a timeline" in row.reason for row in report.rows
    )
    unasked = judged(import_files({"head": [files["ncu_head"]]}, policy()))
    assert "Measured: 3 cases; no absolute limit applies" in unasked.sentence and not unasked.rows


LABELS = {
    "gpu__time_duration.sum": ("Duration", "usecond", 1e-3),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("Achieved Occupancy", "%", 1.0),
    "dram__bytes.sum.per_second": ("Memory Throughput", "Gbyte/second", 1e-9),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("Memory Throughput", "%", 1.0),
    "launch__registers_per_thread": ("Registers Per Thread", "register/thread", 1.0),
    "l1tex__t_sector_hit_rate.pct": ("L1/TEX Hit Rate", "%", 1.0),
    "dram__bytes.sum": ("dram__bytes.sum", "Mbyte", 1e-6),
}


@pytest.mark.parametrize("cut", [False, True])
def test_a_page_of_details_says_what_the_raw_one_does(files: dict[str, Path], tmp_path: Path, cut: bool) -> None:
    """As ncu prints it: rows end with their value, each has the unit that suits it, rules have rows of their own."""
    raw = files["ncu_head"]
    names, _, *rows = csv.reader(raw.open(encoding="utf-8"))
    ranges = [name for name in names if "_Range" in name]
    fixed = ["ID", "Kernel Name", *ranges, "Block Size", "Grid Size", "CC"]
    page = [[*fixed, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Description"]]
    told_of = set()
    for row in rows:
        told = dict(zip(names, row, strict=True))
        for metric, (label, unit, factor) in LABELS.items():
            if metric in told:
                told_of.add(metric)
                value = float(told[metric].replace(",", "")) * factor
                page.append([*(told[name] for name in fixed), "Section", label, unit, f"{value:,.9f}"])
        page.append(
            [*(told[name] for name in fixed), "Section", "", "", "", "HighPipeUtilization", "a finding, with words"]
        )
    path = tmp_path / "details.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("==PROF== Connected to process 1\n")
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(page)
    assert {"gpu__time_duration.sum", "l1tex__t_sector_hit_rate.pct", "dram__bytes.sum"} <= told_of
    if cut:
        path.write_bytes(path.read_bytes()[:-300])
    found, whole = (import_files({"head": [one]}, policy()) for one in (path, raw))
    assert [case.id for case in found.cases] == [case.id for case in whole.cases]
    for mine, theirs in zip(found.cases, whole.cases, strict=True):
        got, expected = mine.sides["head"].profile, theirs.sides["head"].profile
        assert got is not None and expected is not None
        if cut and got.faults:
            continue
        assert {"occupancy", "dram_bytes", "l1_hit_rate", "registers", "dram_bandwidth"} <= got.metrics.keys()
        for metric, value in got.metrics.items():
            assert value == pytest.approx(expected.metrics[metric], rel=1e-6, abs=1e-6)
    assert any(one.sides["head"].profile.faults for one in found.cases) == cut  # type: ignore[union-attr] - as above


def test_items_that_a_limit_does_not_ask_for_are_refused(files: dict[str, Path]) -> None:
    captures: dict[Any, list[Path]] = {"head": [files["nsys_head"]]}
    asked = policy({"cases": "*", "metric": "throughput", "min": "5000samples/s"})
    with pytest.raises(UsageError, match=r"samples are asked for, and .* has tokens: name the same"):
        import_files(captures, asked, items={"*": Work(items=32, item="tokens")})
    for item in ("samples", "items"):
        assert judged(import_files(captures, asked, items={"*": Work(items=32, item=item)})).verdict == "pass"


def test_a_row_of_details_that_is_cut_before_a_column_that_tells_the_launch_is_told(tmp_path: Path) -> None:
    path = tmp_path / "page.csv"
    names = ["Metric Name", "Metric Value", "Metric Unit", "Kernel Name", "Block Size", "Grid Size", "CC", "ID"]
    whole = ["Registers Per Thread", "32", "register/thread", "k", "(128, 1, 1)", "(4, 1, 1)", "9.0", "0"]
    for row, reason in ((whole, None), (whole[:7], "is cut"), (whole[:3], "is cut")):
        time = ["Duration", "3.50", "us", *whole[3:]]
        path.write_text("\n".join(",".join(f'"{cell}"' for cell in one) for one in (names, time, row)) + "\n")
        asked = policy({"cases": "*", "metric": "registers", "max": 64})
        report = judged(import_files({"head": [path]}, asked, by="kernel"))
        assert (report.verdict == "pass") is (reason is None)
        assert reason is None or all(reason in one.reason for one in report.rows)


def test_two_pages_of_details_in_one_file_are_told(tmp_path: Path) -> None:
    header = (
        '"ID","Kernel Name","Block Size","Grid Size","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
    )

    def rows(name: str, registers: int) -> list[str]:
        launch = f'"0","{name}","(128, 1, 1)","(4, 1, 1)","9.0","S"'
        return [f'{launch},"Duration","us","3.50"', f'{launch},"Registers Per Thread","register/thread","{registers}"']

    path = tmp_path / "page.csv"
    asked = policy({"cases": "*", "metric": "registers", "max": 64})
    path.write_text("\n".join([header, *rows("a", 32)]) + "\n")
    assert judged(import_files({"head": [path]}, asked)).verdict == "pass"
    for more in (rows("b", 200), rows("a", 200)):
        path.write_text("\n".join([header, *rows("a", 32), *more]) + "\n")
        with pytest.raises(UsageError, match="with the number of another"):
            import_files({"head": [path]}, asked)  # the launches of a range may be among them
        report = judged(import_files({"head": [path]}, asked, by="kernel"))
        assert report.rows[0].class_ == "invalid" and "with the number of another" in report.rows[0].reason


def test_ranges_whose_work_was_lost_are_not_passed_over(files: dict[str, Path], tmp_path: Path) -> None:
    path = part(
        files["nsys_head"],
        tmp_path,
        "UPDATE NVTX_EVENTS SET start = start + 1000000000000, end = end + 1000000000000",
        "DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
        "INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('CudaDriverVersion', '13000')",
    )
    limit = policy({"cases": "*", "metric": "time", "max": "1s"})
    with pytest.raises(UsageError, match=r"no range with work of the GPU \(version 2023\S+: it is of CUDA 12,"):
        import_files({"head": [path]}, limit)
    report = judged(import_files({"head": [path]}, limit, by="kernel"))
    assert {row.class_ for row in report.rows} == {"invalid"}
    assert all("older than CUDA 13.0 of the driver: it may lose events" in row.reason for row in report.rows)


def test_copies_without_a_range_are_no_case(files: dict[str, Path], tmp_path: Path) -> None:
    copied = "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_MEMCPY)"
    gone = ("KERNEL", f"RUNTIME WHERE correlationId NOT IN {copied}")
    statements = [f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}" for table in gone]
    path = part(files["nsys_head"], tmp_path, "DELETE FROM NVTX_EVENTS", *statements)
    with pytest.raises(UsageError, match="holds no kernel, and no range with work of the GPU"):
        import_files({"head": [path]}, policy())


def test_a_time_without_all_work_of_the_gpu_is_no_answer(files: dict[str, Path], tmp_path: Path) -> None:
    """nsys ends well where it lost events: the wall time of what is left is too short, and would pass any limit."""
    last = (
        "(SELECT k.rowid FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
        "WHERE s.value LIKE '%softmax%' ORDER BY k.start DESC LIMIT 1)"
    )
    path = part(files["nsys_head"], tmp_path, f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = {last}")
    limits = [{"cases": "*", "metric": "time", **asked} for asked in ({"max": "1s"}, {"regression": "900%"})]
    report = judged(import_files({"base": [files["nsys_base"]], "head": [path]}, policy(*limits)))
    told = {(row.case, row.kind): row for row in report.rows}
    for kind in ("max", "regression"):
        assert told[SDPA, kind].class_ == "invalid" and "have no device work" in told[SDPA, kind].reason
    assert told[MATMUL, "max"].class_ == "unchanged" and report.exit_code == 1
    report = judged(import_files({"base": [path], "head": [files["nsys_base"]]}, policy(limits[1])))
    assert {row.case: row.class_ for row in report.rows}[SDPA] == "invalid"


def annotated(folder: Path, spans: Sequence[tuple[str, int, float, float]], lost: str = "") -> Path:
    """A trace of annotations (name, thread, begin, length in µs), each with a kernel, but for `lost`."""
    events = []
    for number, (name, thread, start, length) in enumerate(spans, 1):
        events += [event("user_annotation", name, start, length, thread), call(number, start + 1, thread)]
        events += [] if name == lost else [kernel(number, f"k_{name}", start + 4, 5)]
    return write_trace(folder / "annotated.json", events)


@pytest.mark.parametrize(
    "spans, lost, failed, why",
    [
        ([("good", 1, 0, 50), ("bad", 1, 100, 50)], "bad", {"bad"}, "launches have no kernel"),
        ([("good", 1, 0, 50), ("a", 1, 100, 50), ("b", 2, 130, 50)], "", {"a", "b"}, "overlap others"),
    ],
)
def test_a_range_that_was_not_seen_whole_fails(tmp_path, spans, lost, failed, why):
    report = judged(import_files({"head": [annotated(tmp_path, spans, lost)]}, policy({"cases": "*", "max": "1s"})))
    assert {row.case for row in report.rows if row.class_ == "failed"} == failed and report.exit_code == 1
    assert all(why in row.reason for row in report.rows if row.class_ == "failed")
    assert {row.case: row.class_ for row in report.rows}["good"] == "unchanged"


def test_what_begins_within_another_range_is_no_case_of_its_own(tmp_path: Path) -> None:
    spans = [("step", 1, 0, 100), ("forward", 1, 10, 20), ("loader", 2, 40, 30)]
    assert [case.id for case in import_files({"head": [annotated(tmp_path, spans)]}, policy()).cases] == ["step"]


def test_a_range_that_did_not_end_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    last = (
        "(SELECT n.rowid FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 59 AND "
        f"coalesce(n.text, s.value) = '{MATMUL}' ORDER BY n.start DESC LIMIT 1)"
    )
    path = part(files["nsys_head"], tmp_path, f"UPDATE NVTX_EVENTS SET end = NULL WHERE rowid = {last}")
    results = import_files({"head": [path]}, policy())
    (case,) = [one for one in results.cases if one.id == MATMUL]
    profile = case.sides["head"].profile
    assert profile is not None and profile.trace is not None and profile.trace.executions == 9 and case.pairs
    assert any(f"1 ranges {MATMUL} did not end before the capture did" in note for note in results.notes)


def test_kernels_of_one_shape_are_told_apart(tmp_path: Path) -> None:
    def functions(name: str, first: float, second: float) -> Path:
        launched = enumerate([("float", first), ("double", second), ("double", second)], 1)
        each = [(call(n, 100 * n), kernel(n, f"void mine<{of}>({of}*)", 100 * n + 9, us)) for n, (of, us) in launched]
        return write_trace(tmp_path / f"{name}.json", [one for both in each for one in both])

    sides: Any = {"base": [functions("base", 10, 90)], "head": [functions("head", 50, 50)]}
    cases = import_files(sides, policy()).cases
    told = sorted([case.pairs[0].values[side]["time"] for side in ("base", "head")] for case in cases)
    assert told == [pytest.approx([10e-6, 50e-6]), pytest.approx([90e-6, 50e-6])]


def test_counters_alone_are_judged_again_as_they_were(files: dict[str, Path]) -> None:
    results = import_files({"base": [files["ncu_base"]], "head": [files["ncu_head"]]}, policy())
    assert judge_by(policy(), results).rows == judged(results).rows == []


def test_another_gpu_is_another_question(files: dict[str, Path], tmp_path: Path) -> None:
    other = part(files["nsys_base"], tmp_path, "UPDATE TARGET_INFO_GPU SET name = 'NVIDIA B200'")
    limit = {"cases": "*", "metric": "registers", "regression": "0%", "devices": ["*H200*", "*B200*"]}
    same = judged(import_files({"base": [files["nsys_base"]], "head": [files["nsys_head"]]}, policy(limit)))
    assert same.fingerprint.devices == {"cuda": "NVIDIA H200"} and "changed" not in {row.class_ for row in same.rows}
    report = judged(import_files({"base": [other], "head": [files["nsys_head"]]}, policy(limit)))
    assert {row.class_ for row in report.rows} == {"changed"} and report.verdict != "pass"
    assert all("NVIDIA B200 in base, NVIDIA H200 in head" in row.reason for row in report.rows)


def test_counters_of_another_gpu_of_the_same_chip_are_no_comparison(files: dict[str, Path], tmp_path: Path) -> None:
    other, unnamed = tmp_path / "other.csv", tmp_path / "unnamed.csv"
    page = files["ncu_base"].read_text(encoding="utf-8")
    other.write_text(page.replace('"NVIDIA H200"', '"NVIDIA H100 80GB HBM3"'), encoding="utf-8")
    unnamed.write_text(page.replace('"device__attribute_display_name"', '"x"'), encoding="utf-8")
    limit = policy({"cases": "*", "metric": "registers", "regression": "0%"})
    report = judged(import_files({"base": [other], "head": [files["ncu_head"]]}, limit))
    assert {row.class_ for row in report.rows} == {"changed"}
    assert all("NVIDIA H100 80GB HBM3 in base, NVIDIA H200 in head" in row.reason for row in report.rows)
    for base in (files["ncu_base"], unnamed):
        report = judged(import_files({"base": [base], "head": [files["ncu_head"]]}, limit))
        assert "changed" not in {row.class_ for row in report.rows}


def test_kernels_are_cases_where_that_is_asked(files: dict[str, Path]) -> None:
    results = both(files, by="kernel")
    cases = {case.id: case for case in results.cases}
    db = sqlite3.connect(files["nsys_head"])
    sql = "SELECT count(*), avg(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
    n, mean = db.execute(sql + "WHERE s.value LIKE 'softmax_warp_forward%'").fetchone()
    softmax = cases["softmax_warp_forward/grid=32768x1x1"]
    assert softmax.sides["base"].status == "absent" and softmax.sides["head"].profile is not None
    profile = softmax.sides["head"].profile
    assert profile.trace is not None and profile.trace.executions == n
    assert softmax.pairs[0].values["head"]["time"] == pytest.approx(mean * 1e-9, rel=1e-6)
    assert "tensor_active" in profile.metrics and not {"device_busy", "launch_overhead"} & profile.metrics.keys()
    both_have = [case for case in results.cases if all(side.status == "ok" for side in case.sides.values())]
    assert both_have and all(len(case.id.split("/")) == 2 for case in both_have)


def test_results_are_judged_again_by_another_policy(files: dict[str, Path]) -> None:
    report = judge_by(policy({"cases": "*", "metric": "tensor_active", "min": "70%"}), both(files))
    assert {row.case: row.class_ for row in report.rows} == {
        SDPA: "violation", RESAMPLE: "violation", MATMUL: "unchanged",
    }  # fmt: skip
    report = judge_by(policy({"cases": UPLOAD, "metric": "tensor_active", "min": "70%"}), both(files))
    assert {row.case: row.class_ for row in report.rows} == {UPLOAD: "invalid"}


@pytest.mark.parametrize("name", ["nsys_base", "ncu_base"])
def test_a_range_that_only_base_has_is_missing(files: dict[str, Path], tmp_path: Path, name: str) -> None:
    if name == "nsys_base":
        renamed = part(files[name], tmp_path, f"UPDATE StringIds SET value = 'gone' WHERE value = '{SDPA}'")
    else:
        renamed = tmp_path / files[name].name
        renamed.write_text(files[name].read_text(encoding="utf-8").replace(SDPA, "gone"), encoding="utf-8")
    head = files[name.replace("base", "head")]
    report = judged(
        import_files({"base": [renamed], "head": [head]}, policy({"cases": "*", "metric": "registers", "max": 255}))
    )
    told = {row.case: row.class_ for row in report.rows}
    assert told["gone"] == "missing" and told[SDPA] in ("added", "unchanged") and report.exit_code == 1


def trace(folder: Path, name: str, *, annotated: bool = True, packed: bool = False) -> Path:
    """A trace of two steps, each with a nested range and one kernel of 10 and 30 µs; a kernel before them of 5."""
    events = []
    for number, (start, length) in enumerate([(10, 5), (100, 10), (200, 30)]):
        if number and annotated:
            events.append(event("user_annotation", f"ProfilerStep#{number}", start, 50))
            events.append(event("user_annotation", "forward", start + 1, 20))
        events.append(call(number + 1, start + 2))
        events.append(kernel(number + 1, "void mine<float>(float*)", start + 20, length))
    return write_trace(folder / f"{name}.json{'.gz' if packed else ''}", events)


@pytest.mark.parametrize("packed", [False, True])
def test_steps_of_torch_profiler_are_one_case(tmp_path: Path, packed: bool) -> None:
    path = trace(tmp_path, "head", packed=packed)
    results = import_files({"head": [path]}, policy())
    (case,) = results.cases
    profile = case.sides["head"].profile
    assert case.id == "ProfilerStep" and profile is not None and profile.trace is not None
    assert profile.trace.executions == 2 and profile.metrics["device_time"] == pytest.approx(20e-6)
    assert profile.metrics["range:forward"] == pytest.approx(20e-6)
    assert case.pairs[0].values["head"]["time"] == pytest.approx(50e-6)


def test_a_trace_without_annotations_is_one_of_kernels(tmp_path: Path) -> None:
    (case,) = import_files({"head": [trace(tmp_path, "head", annotated=False)]}, policy()).cases
    assert case.id == "mine/grid=4x1x1" and case.pairs[0].values["head"]["time"] == pytest.approx(15e-6)


@pytest.mark.slow
def test_timelines_pair_up_as_workers(tmp_path: Path) -> None:
    def timelines(name: str, factor: float) -> list[Path]:
        paths = []
        for number in range(10):
            path = trace(tmp_path, f"{name}-{number}", annotated=False)
            path.write_text(path.read_text().replace('"dur": 30', f'"dur": {30 * factor * (1 + number / 1000):.3f}'))
            paths.append(path)
        return paths

    limit = {"cases": "*", "metric": "time", "regression": "5%"}
    slower = judged(import_files({"base": timelines("base", 1.0), "head": timelines("head", 1.5)}, policy(limit)))
    assert slower.verdict == "fail" and slower.rows[0].class_ == "regression" and slower.rows[0].pairs == 10
    with pytest.raises(UsageError, match="10 of base and 1 of head"):
        import_files({"base": timelines("b", 1.0), "head": timelines("h", 1.1)[:1]}, policy(limit))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
DAMAGED: dict[str, tuple[str, bytes | None, str]] = {
    "pointer": ("a.sqlite", LFS, "a Git LFS pointer"),
    "pointer of ncu": ("a.ncu-rep", LFS, "Git LFS"),
    "empty": ("b.ncu-rep", b"", "is empty"),
    "cut": ("c.sqlite", None, "truncated"),
    "cut report": ("d.ncu-rep", b"NVR\0abc", "cut or damaged"),
    "no report": ("e.nsys-rep", b"junk", "e.nsys-rep"),
    "nothing of the GPU": ("f.json", b'{"deviceProperties": [], "traceEvents": []}', "no kernel and no copy"),
}
"""File, what it holds (None: half of a capture), and what is said of it."""


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_read_is_one_line(files: dict[str, Path], tmp_path: Path, name: str) -> None:
    file, content, text = DAMAGED[name]
    whole = files["nsys_head"].read_bytes()
    (tmp_path / file).write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UsageError) as error:
        import_files({"head": [tmp_path / file]}, policy())
    assert text in str(error.value) and "\n" not in str(error.value)


def test_captures_that_do_not_belong_together_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    capture, bench = files["nsys_head"], next((DATA / "import").glob("*.json"))
    for head, base, text in (
        ([capture, bench], [], "import one kind at a time"),
        ([capture], [files["ncu_base"]], "0 of base and 1 of head"),
        ([capture], [capture], "given twice"),
        ([capture, trace(tmp_path, "t")], [], "timelines of nsys and of torch.profiler"),
    ):
        with pytest.raises(UsageError, match=text) as error:
            import_files({"base": base, "head": head} if base else {"head": head}, policy())
        assert "\n" not in str(error.value)


def test_files_with_and_without_ranges_do_not_mix(files: dict[str, Path], tmp_path: Path) -> None:
    plain = trace(tmp_path, "plain", annotated=False)
    with pytest.raises(UsageError, match=r"plain.json: holds no range .* give --by kernel"):
        import_files({"base": [plain], "head": [trace(tmp_path, "head")]}, policy())
    assert {recognise(path) for path in files.values()} == {"nsys", "ncu"} and recognise(plain) == "torch.profiler"
