"""Kineto's JSON to a trace: a real one of a CPU, one of a GPU by hand in Kineto's format, and broken ones."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfci.model.profile import Fault, Trace
from perfci.profilers.torch import events as kineto_events
from perfci.profilers.torch import json as kineto_json
from perfci.profilers.torch.trace import publish, read
from perfci.worker.profile import NAME

DATA = Path(__file__).parents[1] / "data" / "kineto"
CUDA = json.loads((DATA / "cuda.json").read_text())


def trace(path=DATA / "cuda.json", name=NAME, device="cuda"):
    found = read(path, name, device)
    assert isinstance(found, Trace), found
    return found


def fault(path, name=NAME, device="cuda"):
    found = read(path, name, device)
    assert isinstance(found, Fault), found
    assert found.tool == "torch.profiler" and found.text and found.remedy and "\n" not in found.text
    return found


def written(tmp_path, document):
    path = tmp_path / "t.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def changed(tmp_path, change):
    """The trace of the GPU with each event run through `change`, which answers None to drop it."""
    events = [new for event in json.loads(json.dumps(CUDA["traceEvents"])) if (new := change(event)) is not None]
    return written(tmp_path, dict(CUDA, traceEvents=events))


def test_a_trace_of_a_gpu():
    """Values from the layout of the fixture; every execution is the same."""
    found = trace()
    assert (found.source, found.version, found.executions) == ("torch.profiler", "2.11.0+cu130", 2)
    assert found.wall == pytest.approx((1000 + 530) / 2 * 1e-6)  # 30 µs beyond the last range: the graph's last kernel
    assert found.span == pytest.approx(515e-6)
    assert found.busy == pytest.approx(212e-6)  # 5 µs of two kernels at once count once
    assert [(one.name.split("<")[0], one.count, one.grid, one.block, one.registers, one.shared) for one in found.kernels] == [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", 1, (2, 66, 1), (384, 1, 1), 168, 213188),
        ("void at::native::vectorized_elementwise_kernel", 4, (2048, 1, 1), (128, 1, 1), 32, 0),
        ("triton_poi_fused_add_0", 1, (1024, 1, 1), (256, 1, 1), 24, 0),
    ]  # fmt: skip
    assert [one.seconds for one in found.kernels] == pytest.approx([100e-6, 60e-6, 15e-6])
    (copy,) = found.copies
    told = copy.kind, copy.source, copy.target, copy.count, copy.bytes
    assert told == ("host to device", "pageable", "device", 1, 2**20)
    assert copy.seconds == pytest.approx(40e-6)
    assert found.sets == 1  # launched by autograd's thread
    assert {one.name: (one.kind, one.count) for one in found.calls} == {
        "cudaStreamSynchronize": ("synchronisation", 1), "cudaMemcpyAsync": ("copy", 1), "cudaMemsetAsync": ("other", 1),
        "cudaGraphLaunch": ("launch", 1), "cudaLaunchKernel": ("launch", 2), "cudaLaunchKernelExC": ("launch", 1),
        "cuLaunchKernelEx": ("launch", 1),
    }  # fmt: skip
    assert {one.name: (one.count, one.host, one.device) for one in found.ranges} == {
        "layer": (1, pytest.approx(200e-6), pytest.approx(130e-6)),
        "layer/act": (1, pytest.approx(100e-6), pytest.approx(30e-6)),
    }


def test_a_real_trace_of_a_cpu():
    found = trace(DATA / "cpu.json.gz", device="cpu")
    assert found.executions == 3 and found.version.startswith("2.") and found.wall > 0
    assert found.busy == found.span == 0 and not found.kernels and not found.copies and not found.calls
    (mine,) = found.ranges
    assert mine.name == "mine" and mine.count == 1 and 0 < mine.host < found.wall and mine.device == 0


def test_queued_executions_do_not_count_each_others_time(tmp_path):
    """Nothing waits between executions: the second's work may end long after its range, behind the first's."""

    def late(event):
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            event["ts"] += 1100
        return event

    found = trace(changed(tmp_path, late))
    assert found.wall == pytest.approx(2630 / 2 * 1e-6)
    assert found.busy == pytest.approx(212e-6) and found.span == pytest.approx(515e-6)


def test_work_whose_call_kineto_does_not_record_is_found_by_the_operator_around_it(tmp_path):
    assert (
        trace(changed(tmp_path, lambda one: None if one["name"] == "cuLaunchKernelEx" else one)).kernels
        == trace().kernels
    )


def test_a_launch_that_a_graph_capture_took_ran_nothing(tmp_path):
    added = []

    def capture(event):
        if event["name"] == "cuLaunchKernelEx":
            for name, shift in (("cudaStreamBeginCapture", -0.5), ("cudaStreamEndCapture", 3.2)):
                made = dict(event, name=name, cat="cuda_runtime", ts=event["ts"] + shift, dur=0.1)
                added.append(dict(made, args={"correlation": 9000 + len(added)}))
        return None if event["name"] == "triton_poi_fused_add_0" else event

    changed(tmp_path, capture)
    document = json.loads((tmp_path / "t.json").read_text())
    assert fault(tmp_path / "t.json").kind == "incomplete"
    assert len(trace(written(tmp_path, dict(document, traceEvents=document["traceEvents"] + added))).kernels) == 2


def test_timestamps_of_an_epoch_lose_no_nanosecond(tmp_path):
    text = (DATA / "cuda.json").read_text().replace('"ts": 4349859', '"ts": 1790857026')
    assert trace(written(tmp_path, text)).busy == pytest.approx(212e-6, rel=1e-12)


def set_in(name, key, value, args=False):
    def change(event):
        if event["name"] == name:
            (event["args"] if args else event)[key] = value
        return event

    return change


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda e: None if e.get("cat") in kineto_events.WORK else e, "incomplete", "8 of 8 launches have no kernel"),
        (lambda e: None if e.get("cat") in (*kineto_events.WORK, *kineto_events.CALLS) else e, "empty", "no kernel and no copy"),
        (lambda e: None if e["name"] == "triton_poi_fused_add_0" else e, "incomplete", "2 of 8 launches have no kernel"),
        (lambda e: None if e["name"] == NAME else e, "empty", f"no range {NAME}"),
        (lambda e: None if e["name"] == "cudaGraphLaunch" else e, "incomplete", "4 of 24 kernels"),
        (set_in("triton_poi_fused_add_0", "dur", float("nan")), "incomplete", "duration of triton_poi_fused_add_0"),
        (set_in("triton_poi_fused_add_0", "ts", float("inf")), "incomplete", "begin of triton_poi_fused_add_0"),
        (set_in("triton_poi_fused_add_0", "dur", -1.0), "incomplete", "duration of"),
        (set_in("triton_poi_fused_add_0", "ts", 1e300), "incomplete", "begin of"),
        (set_in("triton_poi_fused_add_0", "grid", [1, 2], True), "incomplete", "three dimensions"),
        (set_in("triton_poi_fused_add_0", "grid", "N/A", True), "incomplete", "three dimensions"),
        (set_in("triton_poi_fused_add_0", "registers per thread", float("nan"), True), "incomplete", "registers of"),
        (set_in("Memcpy HtoD (Pageable -> Device)", "bytes", None, True), "incomplete", "bytes of"),
        (set_in("cudaLaunchKernel", "name", 7), "incomplete", "no name"),
    ],
)  # fmt: skip
def test_what_is_missing_or_no_number_is_a_fault(tmp_path, change, kind, words):
    found = fault(changed(tmp_path, change))
    assert found.kind == kind and words in found.text


@pytest.mark.parametrize(
    "content",
    [b"", b"\x1f\x8b", b"{", b"[]", b"null", b"7", b"{}", b'{"traceEvents": 7}', b'{"traceEvents": [', b"SQLite format 3\x00",
     b'{"traceEvents": [{}] "x": 1}', b"version https://git-lfs.github.com/spec/v1\n", b"\xff\xfe" * 99, b"[" * 10**6,
     b'{"a": 1e99999999999999999999}', b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' + b"[" * 10**6],
    ids=lambda content: repr(content[:12]),  # a million brackets would be the name of a test
)  # fmt: skip
def test_what_is_no_trace_is_unreadable(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert fault(path).kind == "unreadable"
    assert publish(path, tmp_path / "out.gz").kind == "unreadable" and not (tmp_path / "out.gz").exists()


def test_what_is_missing_altogether(tmp_path):
    assert "No such file" in fault(tmp_path / "none").text
    assert fault(tmp_path).kind == "unreadable"
    few = fault(written(tmp_path, dict(CUDA, perfci={"executions": 3})))
    assert few.kind == "incomplete" and "2 of 3 ranges" in few.text
    assert fault(written(tmp_path, dict(CUDA, traceEvents=[]))).kind == "empty"
    assert fault(written(tmp_path, {"resourceSpans": [], "traceEvent": []})).kind == "unreadable"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_anywhere(tmp_path, share):
    for source in ("cuda.json", "cpu.json.gz"):
        whole = (DATA / source).read_bytes()
        path = tmp_path / source
        path.write_bytes(whole[: int(len(whole) * share)])
        assert fault(path).kind == "unreadable"


def test_chunks_of_any_size_read_the_same(monkeypatch):
    whole = trace()
    for size in (1, 7, 333):
        monkeypatch.setattr(kineto_json, "CHUNK", size)
        assert trace() == whole


def test_events_beyond_the_cap_are_a_fault(monkeypatch):
    monkeypatch.setattr(kineto_events, "MOST_EVENTS", 20)
    assert fault(DATA / "cuda.json").kind == "incomplete"


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_bytes_are_a_trace_or_a_fault(tmp_path, data):
    """No crash, no hang, and no silent zero: a trace still has its executions and some work of the device."""
    content = bytearray((DATA / "cuda.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"NaN", b"-1", b"null", b"1e999", b'"', b"}", b",", b"{}"])
        )
        content[at : at + data.draw(st.integers(0, 40))] = piece
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(bytes(content), 1) if data.draw(st.booleans()) else bytes(content))
    found = read(path, NAME)
    assert isinstance(found, Fault) or (found.busy > 0 and found.executions >= 1 and found.wall >= found.busy / 2)


VALUES = st.sampled_from([None, True, -1, 0, 1, 2**70, 1.5, float("nan"), float("inf"), "x", "", [], {}, [1, 1, 1]])


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_values_are_a_trace_or_a_fault(tmp_path, data):
    events = json.loads(json.dumps(CUDA["traceEvents"]))
    for _ in range(data.draw(st.integers(1, 5))):
        event = data.draw(st.sampled_from(events))
        place = event["args"] if data.draw(st.booleans()) and isinstance(event.get("args"), dict) else event
        if place:
            place[data.draw(st.sampled_from(sorted(place)))] = data.draw(VALUES)
    found = read(written(tmp_path, dict(CUDA, traceEvents=events)), NAME)
    assert isinstance(found, Fault) or (found.executions >= 1 and found.busy > 0)


def test_published_it_has_the_events_and_not_the_host(tmp_path):
    secret = dict(CUDA, host_name="host-4711", distributedInfo={"x": 1})
    assert publish(written(tmp_path, secret), tmp_path / "out.json.gz") is None
    text = gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()
    assert "host-4711" not in text and "distributedInfo" not in text
    assert json.loads(text)["traceEvents"] == CUDA["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json.gz", "t.json"]


@pytest.mark.gpu
@pytest.mark.torch
def test_on_a_gpu(tmp_path):
    """A real trace: three kernels, a pageable copy, a set; times as the executions took."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")  # its format is read from a file above
    code = f"""
import torch
from perfci.worker.profile import trace
a = torch.randn(2048, 2048, device="cuda"); host = torch.zeros(2**20)
def fn():
    with torch.profiler.record_function("layer"):
        b = (a @ a).relu() + 1
    host.to("cuda"); torch.zeros(1000, device="cuda")
for _ in range(3): fn()
torch.cuda.synchronize()
print(trace(fn, 10, {str(tmp_path / "t.json.gz")!r}, "cuda"))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    found = trace(tmp_path / "t.json.gz")
    assert found.executions == 10
    assert sum(one.count for one in found.kernels) >= 3 and all(one.registers for one in found.kernels)
    assert all(one.shared is not None and one.block[0] >= 32 for one in found.kernels)
    (copy,) = found.copies
    assert (copy.kind, copy.source, copy.target, copy.bytes) == ("host to device", "pageable", "device", 2**22)
    assert 0 < found.busy <= found.span <= found.wall
    assert {"launch", "copy"} <= {one.kind for one in found.calls}
    (layer,) = found.ranges
    assert layer.name == "layer" and 0 < layer.device < found.span


def test_a_lone_surrogate_in_a_name_neither_ends_reading_nor_takes_the_kernel(tmp_path):
    def half(event):
        if str(event.get("name")).startswith("triton"):
            event["name"] += "\ud800"
        return event

    found = trace(changed(tmp_path, half))
    json.loads(found.model_dump_json())
    assert [one.count for one in found.kernels] == [1, 4, 1] and found.kernels[2].name == "triton_poi_fused_add_0?"


@pytest.mark.parametrize(("category", "words"), [("gpu_memcpy", "copies"), ("gpu_memset", "memory sets")])
def test_copies_and_sets_that_are_lost_are_told(tmp_path, category, words):
    """In the last execution, or all of the trace."""
    last = max(one["ts"] for one in CUDA["traceEvents"] if one.get("cat") == category)
    for since, number in ((last, 1), (0, 2)):
        path = changed(tmp_path, lambda one, t=since: None if one.get("cat") == category and one["ts"] >= t else one)
        assert fault(path).text.endswith(f"{number} of 2 {words} have no work: events were dropped")


def test_a_set_of_zero_bytes_in_each_execution_is_no_loss(tmp_path):
    document = json.loads(json.dumps(CUDA))
    calls = [one for one in document["traceEvents"] if one.get("name") == "cudaMemsetAsync"][-2:]
    for number, call in enumerate(calls):
        document["traceEvents"].append({**call, "args": {**call["args"], "correlation": 990_000 + number}})
    found = trace(written(tmp_path, document))
    assert found.sets == 1 and found.kernels == trace().kernels
    assert {one.name: one.count for one in found.calls}["cudaMemsetAsync"] == 2
