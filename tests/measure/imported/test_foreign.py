"""Captures of others as they are: of other torch, begun in the middle of work, of a CPU, of another kind."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfci.measure.imported.files import import_files
from perfci.model.base import UsageError
from perfci.model.profile import Trace
from perfci.profilers.torch.capture import read

from .build import Event, call, judged, kernel, policy, write_trace

KINETO = Path(__file__).parents[2] / "data" / "kineto"
STEP = "ProfilerStep"


def edited(path: Path, change: Callable[[Event], Event | None], *more: Event) -> Path:
    """The trace of a GPU, its two executions as steps, with each event as `change` has it, None for gone."""
    data = json.loads((KINETO / "cuda.json").read_text())
    del data["perfci"]  # what it says of its own traces
    steps = iter(range(1, 3))
    events = []
    for event in data["traceEvents"]:
        if (event.get("cat"), event["name"]) == ("user_annotation", "perfci-execution"):
            event["name"] = f"{STEP}#{next(steps)}"
        if (changed := change(event)) is not None:
            events.append(changed)
    text = json.dumps({**data, "traceName": path.name, "traceEvents": [*events, *more]}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def same(event: Event) -> Event:
    return event


def seen(path: Path, name: str = STEP) -> Trace:
    found = read(path, "range")
    assert not found.faults and not [one for one in found.general if not one.aside]
    return found.seen[name]


def test_a_trace_of_rocm_is_refused(tmp_path: Path) -> None:
    path = edited(
        tmp_path / "amd.json", lambda event: event | {"name": event["name"].replace("cudaLaunch", "hipLaunch")}
    )
    with pytest.raises(UsageError, match=r"amd.json: is of ROCm, and CUDA's alone are read: record it on NVIDIA's GPU"):
        import_files({"head": [path]}, policy())


def queued(path: Path, first: int = 40, *, rises: bool = True) -> Path:
    """Recorded from the middle of work on: three kernels run in the first step of calls that are not there, numbered
    from `first` on; the first call of the trace has 101."""
    kernel = {"ph": "X", "cat": "kernel", "name": "early", "pid": 0, "tid": 7, "dur": 5.0}
    more = [
        {
            **kernel,
            "ts": 4349859487001.0 + 6 * number,
            "args": {"stream": 7, "correlation": first + number, "grid": [9, 1, 1], "block": [32, 1, 1]},
        }
        for number in range(3)
    ]

    def change(event: Event) -> Event | None:
        args = event.get("args", {})
        if event.get("ph") == "X" and event["ts"] < 4349859487000.0 and event["cat"] != "Trace":
            return None
        if not rises and args.get("correlation") == 126:
            args["correlation"] = 100
        return event

    return edited(path, change, *more)


def test_what_was_launched_before_the_capture_costs_the_execution_that_was_open(tmp_path: Path) -> None:
    path = queued(tmp_path / "head.json")
    limits = policy({"cases": "*", "metric": "kernel_launches", "max": 100}, {"cases": "*", "max": "1s"})
    results = import_files({"head": [path]}, limits)
    report = judged(results)
    assert report.verdict == "pass" and {row.case for row in report.rows} == {STEP}
    profile = results.cases[0].sides["head"].profile
    assert profile is not None and profile.trace is not None and profile.trace.executions == 1
    assert profile.trace.model_copy(update={"executions": 2}) == seen(edited(tmp_path / "whole.json", same))
    notes = " ".join(report.notes)
    assert "head.json: 3 kernels and copies were launched before its first call: left out" in notes
    assert "executions of ProfilerStep that were open before that call: 1 of 2 left out" in notes
    by_kernel = import_files({"head": [path]}, policy(), by="kernel")
    assert len(by_kernel.cases) == 3 and not any("early" in case.id for case in by_kernel.cases)


@pytest.mark.parametrize("how", [{"first": 200}, {"rises": False}])
def test_work_whose_call_was_lost_is_not_taken_for_early(tmp_path: Path, how: Any) -> None:
    """Calls of higher numbers came later, and where numbers do not rise with time they say nothing."""
    path = queued(tmp_path / "head.json", **how)
    report = judged(import_files({"head": [path]}, policy({"cases": "*", "max": "1s"})))
    assert report.exit_code == 1 and "3 of 19 kernels and copies have no call" in report.rows[0].reason
    assert report.advice == "Fix the case: its row says what happened."
    assert any(note.startswith("captured by torch.profiler, ") for note in report.notes)
    with pytest.raises(UsageError, match="have no call that launched them: record it again"):
        import_files({"head": [path]}, policy(), by="kernel")


@pytest.mark.parametrize("by", [None, "range", "kernel"])
def test_a_trace_of_a_cpu_is_not_sent_to_nsys(tmp_path: Path, by: Any) -> None:
    overlapping = json.loads(gzip.decompress((KINETO / "cpu.json.gz").read_bytes()))
    span = {"ph": "X", "cat": "user_annotation", "pid": 1, "dur": 50, "args": {}}
    overlapping["traceEvents"] += [{**span, "name": "a", "tid": 1, "ts": 9}, {**span, "name": "b", "tid": 2, "ts": 20}]
    other = tmp_path / "gloo.json"
    other.write_text(json.dumps(overlapping))
    for path in (KINETO / "cpu.json.gz", other):
        with pytest.raises(UsageError) as error:
            import_files({"head": [path]}, policy(), by=by)
        text = str(error.value)
        assert "holds no work of a GPU, no kernel and no copy: record it where a GPU is" in text
        assert "nsys" not in text and "ncu" not in text and "NVTX" not in text


def test_a_trace_without_annotations_is_told_how_to_have_some(tmp_path: Path) -> None:
    plain = edited(tmp_path / "plain.json", lambda event: None if event.get("cat") == "user_annotation" else event)
    with pytest.raises(UsageError, match=r"holds no range with work of the GPU: mark .* record_function"):
        import_files({"head": [plain]}, policy(), by="range")


def test_a_pattern_asks_no_range_that_only_copies_for_registers(tmp_path: Path) -> None:
    def copying(event: Event) -> Event | None:
        """The second step only copies."""
        late = event.get("ts", 0) >= 4349859488000.0
        launch = "Launch" in event["name"] or "Memset" in event["name"] or event.get("cat") in ("kernel", "gpu_memset")
        if late and launch:
            return None
        event["name"] = event["name"].replace(f"{STEP}#1", "compute").replace(f"{STEP}#2", "upload")
        return event

    sides: Any = {side: [edited(tmp_path / f"{side}.json", copying)] for side in ("base", "head")}
    pattern, by_name = ({"cases": cases, "metric": "registers", "max": 255} for cases in ("*", "upload"))
    report = judged(import_files(sides, policy(pattern)))
    assert [(row.case, row.class_) for row in report.rows] == [("compute", "unchanged")] and report.verdict == "pass"
    assert "limits[0]: registers is not asked of upload: no side has any" in report.notes
    report = judged(import_files(sides, policy(pattern, by_name)))
    assert {row.case: row.class_ for row in report.rows} == {"compute": "unchanged", "upload": "invalid"}
    whole = edited(tmp_path / "whole.json", lambda event: event | {"name": RENAMED.get(event["name"], event["name"])})
    report = judged(import_files({**sides, "base": [whole]}, policy(pattern)))
    assert {row.case: row.class_ for row in report.rows} == {"compute": "unchanged", "upload": "missing"}
    assert report.exit_code == 1 and report.sentence.startswith("`upload`: registers is missing in head")


RENAMED = {f"{STEP}#1": "compute", f"{STEP}#2": "upload"}


def kernels(path: Path, *launches: tuple[str, int, int]) -> Path:
    """A trace of launches: (function, grid, block)."""
    events = []
    for number, (name, grid, block) in enumerate(launches, 1):
        events.append(call(number, 100 * number))
        events.append(kernel(number, name, 100 * number + 9, 10 + number, grid=grid, block=block))
    return write_trace(path, events)


PAIRS = {
    "alike": ([("k", 64, 128)], [("k", 64, 128)], {"k/grid=64x1x1": ""}),
    "another block": ([("k", 64, 128)], [("k", 64, 256)], {"k/grid=64x1x1": ""}),
    "another grid": ([("k", 64, 128)], [("k", 128, 64)], {"k/grid=64x1x1": "changed"}),
    "one left over": (
        [("k", 1, 128), ("k", 2, 128), ("k", 4, 128)],
        [("k", 4, 128), ("k", 9, 128), ("k", 1, 128)],
        {"k/grid=1x1x1": "", "k/grid=4x1x1": "", "k/grid=2x1x1": "changed"},
    ),
    "two left over": (
        [("k", 1, 128), ("k", 2, 128)],
        [("k", 3, 128), ("k", 9, 128)],
        {"k/grid=1x1x1": "missing", "k/grid=2x1x1": "missing", "k/grid=3x1x1": "added", "k/grid=9x1x1": "added"},
    ),
    "another name": ([("k", 1, 128)], [("l", 1, 128)], {"k/grid=1x1x1": "missing", "l/grid=1x1x1": "added"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_kernels_pair_by_name_and_grid_and_what_is_left_over_is_one_case(tmp_path: Path, name: str) -> None:
    base, head, expected = PAIRS[name]
    sides: Any = {"base": [kernels(tmp_path / "b.json", *base)], "head": [kernels(tmp_path / "h.json", *head)]}
    report = judged(import_files(sides, policy({"cases": "*", "metric": "registers", "regression": "0%"})))
    told = {row.case: row.class_ if row.kind == "presence" else "" for row in report.rows}
    assert told == expected and (report.verdict == "pass") is (name in ("alike", "another block"))
    for row in report.rows:
        if row.class_ == "changed":
            grids = {"another grid": ("64x1x1", "128x1x1"), "one left over": ("2x1x1", "9x1x1")}[name]
            assert row.reason == f"parameter grid is {grids[0]} in base, {grids[1]} in head"
            assert row.base is not None and row.head is not None
