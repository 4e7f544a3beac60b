"""What commands report is read exactly, or refused with a reason; it never becomes a zero."""

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfci.measure.commands.readers import recognise
from perfci.measure.commands.readers.base import About, Reported
from perfci.measure.commands.readers.google_benchmark import read_google_benchmark
from perfci.measure.commands.readers.hyperfine import read_hyperfine
from perfci.measure.commands.readers.lines import read_perfci_lines
from perfci.measure.commands.readers.nvbench import read_nvbench
from perfci.measure.commands.readers.pytest_benchmark import read_pytest_benchmark
from perfci.model.metrics import CustomMetric
from perfci.model.results import Work

RECORDED = Path(__file__).parents[1] / "data" / "nvbench" / "matmul.json"
"""cuda-bench 0.3.0 on an NVIDIA H200, bf16 matmul; trimmed to some of its summaries."""
SAMPLES_TAG = "nv/json/bin:nv/cold/sample_times"


TOOLS = Path(__file__).parents[1] / "data" / "import"
"""As the tools wrote them; the README there says how."""
GOOGLE, PYTEST, HYPERFINE = (TOOLS / f"{name}.json" for name in ("google-benchmark", "pytest-benchmark", "hyperfine"))
READERS = {
    RECORDED: read_nvbench,
    GOOGLE: read_google_benchmark,
    PYTEST: read_pytest_benchmark,
    HYPERFINE: read_hyperfine,
}

DECLARED = {"turns": CustomMetric(), "comparisons": CustomMetric(), "user": CustomMetric(unit="s")}


def loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def recorded() -> Any:
    return loaded(RECORDED)


def write(folder: Path, value: Any) -> Path:
    path = folder / "r.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def summary(tag: str, **data: Any) -> dict[str, Any]:
    kinds = {str: "string", int: "int64", float: "float64"}
    entries = [{"name": k, "type": kinds[type(v)], "value": v if v is None else str(v)} for k, v in data.items()]
    return {"tag": tag, "name": tag, "data": entries}


def with_samples(folder: Path, samples: list[float], **change: Any) -> Path:
    """A result as `--jsonbin FOLDER/r.json` writes it: samples of the first state in `r.json-bin/0.bin`."""
    (folder / "r.json-bin").mkdir()
    (folder / "r.json-bin" / "0.bin").write_bytes(struct.pack(f"<{len(samples)}f", *samples))
    root = recorded()
    meta = {"filename": "r.json-bin/0.bin", "size": len(samples)} | change
    root["benchmarks"][0]["states"][0]["summaries"].append(summary(SAMPLES_TAG, **meta))
    return write(folder, root)


# --- NVBench -----------------------------------------------------------------------------------------------------------


def test_nvbench_means_and_exact_work_of_a_recorded_run():
    found = read_nvbench(RECORDED, "gemm")
    assert list(found) == ["gemm/mm/N=1024", "gemm/mm/N=4096", "gemm/mm/N=8192"]
    assert [case.values for case in found.values()] == [
        {"time": [8.792749360046554e-06]},
        {"time": [0.00018470599999760907]},
        {"time": [0.001432937719588036]},
    ]
    # NVBench stores the rate only; an amount that wobbled by a rounding would look like a changed case.
    assert [case.work for case in found.values()] == [
        Work(items=2.0 * n**3, item="elements") for n in (1024, 4096, 8192)
    ]


def test_nvbench_samples_come_from_the_sidecar(tmp_path):
    samples = [8.16e-6, 8.512e-6, 2.05e-5]
    found = read_nvbench(with_samples(tmp_path, samples), "gemm")
    assert found["gemm/mm/N=1024"].values["time"] == pytest.approx(samples, rel=1e-7)
    assert found["gemm/mm/N=4096"].values["time"] == [0.00018470599999760907]


@pytest.mark.parametrize("name", ["r.json-bin/0.bin", "out/r.json-bin/0.bin", "{folder}/r.json-bin/0.bin"])
def test_nvbench_sidecar_paths_of_older_versions(tmp_path, name):
    """Older versions recorded the path as --jsonbin was given, relative to where the benchmark ran or absolute."""
    path = with_samples(tmp_path, [1e-5, 2e-5], filename=name.format(folder=tmp_path))
    assert read_nvbench(path, "g")["g/mm/N=1024"].values["time"] == pytest.approx([1e-5, 2e-5])


@pytest.mark.parametrize(
    ("samples", "change", "says"),
    [
        ([1e-5, math.nan], {}, "1 of 2 samples"),
        ([1e-5, math.inf], {}, "1 of 2 samples"),
        ([1e-5, 0.0], {}, "1 of 2 samples"),
        ([1e-5, -1e-5], {}, "1 of 2 samples"),
        ([1e-5, 1e-5], {"size": 3}, "holds 8 bytes, not 3 float32 values"),
        ([], {}, "is empty"),
        ([1e-5], {"filename": "r.json-bin/7.bin"}, "no such file"),
        ([1e-5], {"filename": "../../etc/../../passwd"}, "samples"),
        ([1e-5], {"filename": "../.."}, "outside the result's folder"),
        ([1e-5], {"filename": "x" * 5000}, "cannot be read"),
        ([1e-5], {"filename": "a\0b"}, "no such file"),
        ([1e-5], {"filename": "\ud800"}, "surrogates"),
        ([1e-5], {"size": -1}, "could not write the samples"),
    ],
)
def test_nvbench_bad_samples_are_a_reason_not_the_mean(tmp_path, samples, change, says):
    found = read_nvbench(with_samples(tmp_path, samples, **change), "g")
    bad = found["g/mm/N=1024"]
    assert bad.values == {} and bad.reason is not None and bad.reason.kind == "invalid"
    assert says in bad.reason.text
    assert found["g/mm/N=4096"].values, "the other states stand"


def test_nvbench_samples_behind_a_link_to_elsewhere(tmp_path):
    (tmp_path / "secret.bin").write_bytes(struct.pack("<f", 1e-5))
    folder = tmp_path / "out"
    folder.mkdir()
    path = with_samples(folder, [1e-5])
    (folder / "r.json-bin" / "0.bin").unlink()
    (folder / "r.json-bin" / "0.bin").symlink_to(tmp_path / "secret.bin")
    bad = read_nvbench(path, "g")["g/mm/N=1024"]
    assert bad.reason is not None and "outside" in bad.reason.text


def test_nvbench_cpu_only_benchmarks(tmp_path):
    root = recorded()
    state = root["benchmarks"][0]["states"][0]
    state["device"] = None
    state["summaries"] = [
        summary("nv/cpu_only/time/cpu/mean", value=2e-3),
        summary("nv/cpu_only/bw/global/bytes_per_second", value=5e8),
    ]
    case = read_nvbench(write(tmp_path, root), "g")["g/mm/N=1024"]
    assert case.values == {"time": [2e-3]} and case.work == Work(read=1e6, item="elements")


def test_nvbench_ids_are_plain_and_hold_every_axis_and_the_device_where_there_are_several(tmp_path):
    root = recorded()
    bench = root["benchmarks"][0]
    bench["name"] = "my bench<T>"
    bench["states"] = bench["states"][:1]
    bench["states"][0]["device"] = 3
    bench["states"][0]["axis_values"] = [
        {"name": "T{ct}", "type": "string", "value": "F32"},
        {"name": "Elements", "type": "int64", "value": "65536"},
        {"name": "mode", "type": "string", "value": "a/b|`c`\n"},
    ]
    assert list(read_nvbench(write(tmp_path, root), "g")) == ["g/my_bench_T_/T_ct_=F32/Elements=65536/mode=a_b__c__"]
    root = recorded()
    states = root["benchmarks"][0]["states"][:2]
    root["benchmarks"][0]["states"] = states
    states[1]["device"] = 1
    assert list(read_nvbench(write(tmp_path, root), "g")) == ["g/mm/device=0/N=1024", "g/mm/device=1/N=4096"]


# --- perfci's own lines ------------------------------------------------------------------------------------------------


def lines(folder: Path, *entries: Any) -> Path:
    path = folder / "m.jsonl"
    path.write_text("".join(f"{e if isinstance(e, str) else json.dumps(e)}\n" for e in entries), encoding="utf-8")
    return path


def test_lines_become_samples_by_case_and_metric(tmp_path):
    path = lines(
        tmp_path,
        {"metric": "time", "value": 1.5, "unit": "ms"},
        {"metric": "time", "value": 1500, "unit": "us"},
        "",
        {"metric": "time", "value": 2e6, "unit": "ns", "case": "decode/batch=8"},
        {
            "metric": "loss",
            "value": -0.25,
            "unit": "nats",
            "case": "decode/batch=8",
            "work": {"items": 64, "item": "tokens"},
        },
    )
    found = read_perfci_lines(path, "llm")
    assert found == {
        "llm": Reported("llm", {"time": pytest.approx([1.5e-3, 1.5e-3])}),
        "llm/decode/batch=8": Reported(
            "llm/decode/batch=8",
            {"time": pytest.approx([2e-3]), "loss": [-0.25]},
            Work(items=64, item="tokens"),
        ),
    }


@pytest.mark.parametrize(
    ("metric", "value", "unit", "stored"),
    [
        ("time", 1, "s", 1.0), ("time", 1, "ms", 1e-3), ("time", 1, "us", 1e-6), ("time", 1, "µs", 1e-6), ("time", 1, "ns", 1e-9),
        ("bandwidth", 2, "TB/s", 2e12), ("throughput", 5, "k/s", 5e3), ("tflops", 2, "PFLOP/s", 2e3), ("cycles", 9, "cycles", 9.0),
    ],
)  # fmt: skip
def test_catalogue_metrics_are_converted(tmp_path, metric, value, unit, stored):
    found = read_perfci_lines(lines(tmp_path, {"metric": metric, "value": value, "unit": unit}), "c")
    assert found["c"].values[metric] == [pytest.approx(stored)]


GOOD = {"metric": "time", "value": 1.0, "unit": "s"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"metric": "time", "value": 1.0}, "unit '' does not fit time"),
        (GOOD | {"unit": "min"}, "unit 'min' does not fit time"),
        (GOOD | {"unit": "B/s"}, "does not fit time"),
        ({"metric": "bandwidth", "value": 1.0, "unit": "/s"}, "does not fit bandwidth"),
        (GOOD | {"unit": 3}, "is no unit"),
        (GOOD | {"value": "1.0"}, "is no number"),
        (GOOD | {"value": True}, "is no number"),
        (GOOD | {"value": None}, "is no number"),
        (GOOD | {"metric": "a b"}, "no plain name"),
        (GOOD | {"metric": 3}, "no plain name"),
        (GOOD | {"case": "../x"}, "no plain id"),
        (GOOD | {"case": "a/."}, "no plain id"),
        (GOOD | {"case": "a//b"}, "no plain id"),
        (GOOD | {"case": "a b"}, "no plain id"),
        (GOOD | {"case": ""}, "no plain id"),
        (GOOD | {"case": "x" * 400}, "300 at most"),
        (GOOD | {"wrok": {}}, "unknown field 'wrok'"),
        (GOOD | {"work": {"flop": 1}}, "work holds"),
        (GOOD | {"work": {"flops": -1}}, "work holds"),
        (GOOD | {"work": {"flops": True}}, "work holds"),
        (GOOD | {"work": {"item": "to|kens"}}, "work holds"),
        (GOOD | {"work": 3}, "work holds"),
        ('{"metric": "time", "value": 1.0, "unit": "s", "work": {"read": NaN}}', "work holds"),
        ('{"metric": "time", "value": 1.', "torn or no JSON"),
        ("[1, 2]", "is no object"),
        ("time 1.0", "torn or no JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_lines_that_are_wrong_name_their_line(tmp_path, entry, says):
    with pytest.raises(ValueError, match=says) as error:
        read_perfci_lines(lines(tmp_path, GOOD, entry), "c")
    assert "m.jsonl:2: " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "0", "-1", "1" + "0" * 400, "1e999", "1e-400"])
def test_a_time_that_is_none_costs_its_case_alone(tmp_path, value):
    bad = f'{{"metric": "time", "unit": "s", "value": {value}, "case": "bad"}}'
    found = read_perfci_lines(lines(tmp_path, GOOD | {"case": "bad"}, bad, GOOD | {"case": "good"}), "c")
    assert found["c/good"].values == {"time": [1.0]}
    reason = found["c/bad"].reason
    assert found["c/bad"].values == {} and reason is not None
    assert reason.kind == "invalid" and reason.text.startswith("line 2: time is")


def test_other_metrics_may_be_zero_or_negative_but_not_nan(tmp_path):
    entry = {"metric": "loss", "value": 0, "unit": ""}
    assert read_perfci_lines(lines(tmp_path, entry), "c")["c"].values == {"loss": [0.0]}
    nan = '{"metric": "loss", "value": NaN}'
    assert read_perfci_lines(lines(tmp_path, entry, nan), "c")["c"].reason is not None


def test_declared_metrics_are_held_to_their_declaration(tmp_path):
    custom = {"loss": CustomMetric(unit="nats")}
    good = {"metric": "loss", "value": 1, "unit": "nats"}
    assert read_perfci_lines(lines(tmp_path, good), "c", custom)["c"].values == {"loss": [1.0]}
    bare = {name: value for name, value in good.items() if name != "unit"}
    assert read_perfci_lines(lines(tmp_path, bare), "c", custom)["c"].values == {"loss": [1.0]}
    with pytest.raises(ValueError, match="'los' is no metric: declare it"):
        read_perfci_lines(lines(tmp_path, good | {"metric": "los"}), "c", custom)
    with pytest.raises(ValueError, match="unit 'bits' of loss is not 'nats'"):
        read_perfci_lines(lines(tmp_path, good | {"unit": "bits"}), "c", custom)


def test_units_and_work_must_agree_between_lines(tmp_path):
    with pytest.raises(ValueError, match="unit 'b' of x is not 'a'"):
        read_perfci_lines(
            lines(tmp_path, {"metric": "x", "value": 1, "unit": "a"}, {"metric": "x", "value": 1, "unit": "b"}),
            "c",
        )
    same = GOOD | {"work": {"flops": 2}}
    assert read_perfci_lines(lines(tmp_path, same, same), "c")["c"].work == Work(flops=2)
    with pytest.raises(ValueError, match="other work"):
        read_perfci_lines(lines(tmp_path, same, GOOD | {"work": {"flops": 3}}), "c")


# --- google-benchmark, pytest-benchmark, hyperfine ---------------------------------------------------------------------


def test_google_benchmark_repetitions_are_samples_in_seconds():
    found = read_google_benchmark(GOOGLE, "g")
    assert list(found) == [
        "g/sum/n=1024", "g/sum/n=16384", "g/copy_std__vector_int___value_type_/real_time",
        "g/stamped/iterations=3/manual_time", "g/broken", "g/scan/256", "g/scan/1024",
    ]  # fmt: skip
    entries = [one for one in loaded(GOOGLE)["benchmarks"] if one["name"] == "sum/n:1024"]
    case = found["g/sum/n=1024"]
    assert case.values == {
        "time": [one["real_time"] * 1e-6 for one in entries],
        "bandwidth": [one["bytes_per_second"] for one in entries],
        "throughput": [one["items_per_second"] for one in entries],
    }
    assert len(entries) == 2 and case.statistic == "samples" and case.work is None
    assert found["g/stamped/iterations=3/manual_time"].values == {"time": [2e-3, 2e-3]}


def test_google_benchmark_that_skipped_with_an_error_has_no_time():
    """google-benchmark writes 0.0 for its times and ends with exit code 0."""
    for file in ("google-benchmark", "google-benchmark-aggregates"):
        broken = read_google_benchmark(TOOLS / f"{file}.json", "g")["g/broken"]
        assert broken.values == {} and broken.reason is not None
        assert (broken.reason.kind, broken.reason.text) == ("exception", "SkipWithError: no such device")


def test_google_benchmark_aggregates_alone_are_one_mean():
    found = read_google_benchmark(TOOLS / "google-benchmark-aggregates.json", "g")["g/sum/n=1024"]
    (mean,) = (
        one
        for one in loaded(TOOLS / "google-benchmark-aggregates.json")["benchmarks"]
        if one["name"] == "sum/n:1024_mean"
    )
    assert found.values["time"] == [mean["real_time"] * 1e-6] and found.statistic == "mean"


def test_google_benchmark_counters_are_reported_where_the_policy_declares_them():
    custom = {"turns": CustomMetric(), "cpu_time": CustomMetric(unit="us"), "real_time": CustomMetric()}
    values = read_google_benchmark(GOOGLE, "g", custom)["g/sum/n=1024"].values
    assert values["turns"] == [1.0, 1.0] and "real_time" not in values
    entries = [one for one in loaded(GOOGLE)["benchmarks"] if one["name"] == "sum/n:1024"]
    assert values["cpu_time"] == pytest.approx([one["cpu_time"] for one in entries])
    assert "turns" not in read_google_benchmark(GOOGLE, "g")["g/sum/n=1024"].values
    wrong = read_google_benchmark(GOOGLE, "g", {"cpu_time": CustomMetric(unit="B")})["g/sum/n=1024"]
    assert wrong.reason is not None and "no unit of time" in wrong.reason.text


def test_pytest_benchmark_rounds_are_samples_in_seconds():
    found = read_pytest_benchmark(PYTEST, "p")
    names = [
        "p/perf/bench_sort.py/test_sort/100",
        "p/perf/bench_sort.py/test_sort/2000",
        "p/perf/bench_sort.py/TestText/test_join",
    ]
    assert list(found) == names
    for entry, case in zip(loaded(PYTEST)["benchmarks"], found.values(), strict=True):
        assert (
            case.values == {"time": entry["stats"]["data"]} and len(entry["stats"]["data"]) == entry["stats"]["rounds"]
        )
        assert math.fsum(case.values["time"]) / len(case.values["time"]) == pytest.approx(entry["stats"]["mean"])


def test_pytest_benchmark_without_rounds_is_one_mean():
    path = TOOLS / "pytest-benchmark-saved.json"
    for entry, case in zip(loaded(path)["benchmarks"], read_pytest_benchmark(path, "p").values(), strict=True):
        assert case.values == {"time": [entry["stats"]["mean"]]} and case.statistic == "mean"


def test_pytest_benchmark_extra_info_is_reported_where_the_policy_declares_it():
    custom = {"comparisons": CustomMetric()}
    found = read_pytest_benchmark(PYTEST, "p", custom)
    assert found["p/perf/bench_sort.py/test_sort/100"].values["comparisons"] == [200.0]
    assert "comparisons" not in found["p/perf/bench_sort.py/TestText/test_join"].values


def test_hyperfine_runs_are_samples_in_seconds(tmp_path):
    found = read_hyperfine(HYPERFINE, "h")
    first, second = loaded(HYPERFINE)["results"]
    assert {name: case.values for name, case in found.items()} == {
        "h/nap/t=0.01": {"time": first["times"]}, "h/nap/t=0.02": {"time": second["times"]},
    }  # fmt: skip
    user = read_hyperfine(HYPERFINE, "h", {"user": CustomMetric(unit="ms")})["h/nap/t=0.01"].values["user"]
    assert user == pytest.approx([first["user"] * 1e3])
    root = loaded(HYPERFINE)
    del root["results"][0]["times"]
    bare = read_hyperfine(write(tmp_path, root), "h")["h/nap/t=0.01"]
    assert bare.values == {"time": [first["mean"]]} and bare.statistic == "mean"


def test_hyperfine_command_that_failed_has_no_time():
    found = read_hyperfine(TOOLS / "hyperfine-failing.json", "h")
    assert found["h/false"].values == {} and found["h/false"].reason is not None
    assert found["h/false"].reason.text == "2 of 2 runs did not end with exit code 0"
    assert found["h/sleep_0.01"].values


def test_files_are_recognised_by_their_content(tmp_path):
    known = {RECORDED: "nvbench", GOOGLE: "google-benchmark", PYTEST: "pytest-benchmark", HYPERFINE: "hyperfine"}
    assert {path: recognise(path).format.tool for path in known} == known
    assert recognise(RECORDED).about.device == "NVIDIA H200"
    google = recognise(GOOGLE).about
    assert (google.host, google.cores, google.date[:10]) == ("host", 2, "2026-11-21")
    assert dict(google.more) == {"CPU clock": "2596 MHz", "executable": "./bench"} and "debug mode" in google.remarks[0]
    pytests = recognise(PYTEST).about
    assert (pytests.cpu, pytests.commit, pytests.dirty) == ("AMD EPYC", "0123456789abcdef" * 2 + "01234567", True)
    assert recognise(TOOLS / "pytest-benchmark-saved.json").about.commit is None
    assert recognise(HYPERFINE).about == About()
    for foreign in ({}, [], 3, {"benchmarks": []}, {"results": [1]}, {"version": 1, "cases": []}):
        with pytest.raises(ValueError, match="no result of a tool that perfci reads"):
            recognise(write(tmp_path, foreign))


# --- what is no measurement --------------------------------------------------------------------------------------------


def state(root: Any) -> Any:
    return root["benchmarks"][0]["states"][0]


def mean(root: Any) -> Any:
    return next(one for one in state(root)["summaries"] if one["tag"] == "nv/cold/time/gpu/mean")["data"][0]


def twin(root: Any) -> None:
    root["benchmarks"] += [one | {"family_index": 99} for one in root["benchmarks"] if one["run_name"] == "sum/n:1024"]


def of_one_name(root: Any) -> None:
    for one in root["results"]:
        del one["parameters"]


def without_centre(root: Any) -> None:
    for one in root["benchmarks"]:
        if one["run_name"] == "sum/n:1024":
            one |= {"run_type": "aggregate", "aggregate_name": "stddev"}


SPOILT: list[tuple[Path, Callable[[Any], object], str]] = [
    (
        RECORDED,
        lambda root: state(root)["summaries"].append({"tag": SAMPLES_TAG, "name": "Sample Times File"}),
        "could not write",
    ),
    *(
        (RECORDED, lambda root, text=text: state(root).update(is_skipped=True, skip_reason=text, summaries=None), said)
        for text, said in (
            ("Not enough memory.", "skipped: Not enough memory."),
            ("Unexpected error: CUDA error 700", "exception: Unexpected error: CUDA error 700"),
            ("", "skipped: "),
        )
    ),
    *(
        (RECORDED, lambda root, value=value: mean(root).update(value=value), "invalid: ")
        for value in ("nan", "inf", None, "", "0", "-1e-5", "fast", [], True)
    ),
    (
        RECORDED,
        lambda root: state(root).update(summaries=[summary("nv/batch/time/gpu/mean", value=1e-5)]),
        "no isolated time",
    ),
    (
        RECORDED,
        lambda root: root["benchmarks"][0]["states"][1].update(axis_values=state(root)["axis_values"]),
        "two benchmarks have this id",
    ),
    (GOOGLE, without_centre, "neither repetitions nor"),
    *(
        (GOOGLE, lambda root, change=change: root["benchmarks"][0].update(change), said)
        for change, said in (
            ({"real_time": math.nan}, "real_time is 'nan'"),
            ({"real_time": 0.0}, "no finite positive number"),
            ({"real_time": -1.0}, "no finite positive number"),
            ({"real_time": "5"}, "no finite positive number"),
            ({"real_time": 10**400}, "no finite positive number"),
            ({"time_unit": "fortnights"}, "time_unit 'fortnights' is unknown"),
            ({"bytes_per_second": math.inf}, "bytes_per_second is 'inf'"),
            ({"repetition_index": 1}, "two benchmarks have this name"),
        )
    ),
    (GOOGLE, lambda root: root["benchmarks"][0].pop("bytes_per_second"), "only some repetitions report bandwidth"),
    (GOOGLE, twin, "protocol: "),
    (
        PYTEST,
        lambda root: root["benchmarks"][0]["extra_info"].update(comparisons="many"),
        "comparisons is 'many'",
    ),
    *(
        (file, change, said)
        for value in (math.nan, math.inf, 0.0, -1e-6, None, "1", True, 10**400)
        for file, change, said in (
            (PYTEST, lambda root, v=value: root["benchmarks"][0]["stats"]["data"].__setitem__(3, v), "1 of 18 rounds"),
            (HYPERFINE, lambda root, v=value: root["results"][0]["times"].__setitem__(1, v), "1 of 4 runs"),
        )
    ),
    (HYPERFINE, lambda root: root["results"][0]["exit_codes"].__setitem__(0, None), "1 of 4 runs did not end with"),
    (HYPERFINE, of_one_name, "--command-name"),
]
"""A tool's file, what is done to its first case, and what is said of it: NVBench calls a state that threw `skipped`, too,
which must not pass as one that chose not to run."""


@pytest.mark.parametrize(("file", "change", "says"), SPOILT)
def test_what_is_no_measurement_is_a_reason_and_costs_its_case_alone(tmp_path, file, change, says):
    root = loaded(file)
    change(root)
    bad, *others = READERS[file](write(tmp_path, root), "c", DECLARED).values()
    assert bad.values == {} and bad.reason is not None and says in f"{bad.reason.kind}: {bad.reason.text}"
    assert not others or any(one.values for one in others)


@pytest.mark.parametrize(
    ("read", "content", "says"),
    [
        (read_nvbench, "", "is empty"),
        (read_nvbench, "  \n", "is empty"),
        (read_nvbench, RECORDED.read_text(encoding="utf-8")[:4000], "torn or no JSON"),
        (read_nvbench, "time: 3", "torn or no JSON"),
        (read_nvbench, "[" * 100_000, "nested too deeply"),
        (read_nvbench, "[" + "1" * 5000 + "]", "digits"),
        (read_nvbench, {"benchmarks": []}, "no result of NVBench"),
        (read_nvbench, {"context": {}, "benchmarks": [{"name": "x", "real_time": 1.0}]}, "no result of NVBench"),
        (read_nvbench, [1], "no result of NVBench"),
        (read_nvbench, recorded() | {"benchmarks": None}, "no measurement"),
        (read_nvbench, recorded() | {"benchmarks": []}, "no measurement"),
        (read_nvbench, recorded() | {"benchmarks": [{"name": "x", "states": None}]}, "no measurement"),
        (read_nvbench, recorded() | {"benchmarks": {"a": 1}}, "list of objects"),
        (read_nvbench, recorded() | {"benchmarks": [3]}, "list of objects"),
        (read_nvbench, recorded() | {"meta": {"version": {"json": {"major": 2}}}}, "file format '2' is unknown"),
        (read_google_benchmark, {"context": {}, "benchmarks": []}, "no benchmark ran"),
        (read_google_benchmark, {"context": {}, "benchmarks": [{"name": "x", "real_time": 1.0}]}, "before 1.5"),
        (read_google_benchmark, {"benchmarks": []}, "write it with --benchmark_out"),
        (read_google_benchmark, GOOGLE.read_text()[:3000], "torn or no JSON"),
        (read_pytest_benchmark, {"machine_info": {}, "benchmarks": []}, "no test used the benchmark fixture"),
        (read_pytest_benchmark, {"benchmarks": []}, "write it with --benchmark-json"),
        (read_hyperfine, {"results": []}, "ran no command"),
        (read_hyperfine, {"results": [{"mean": 1.0}]}, "write it with --export-json"),
    ],
)
def test_files_without_a_measurement_say_what_to_do(tmp_path, read, content, says):
    with pytest.raises(ValueError, match=says) as error:
        read(write(tmp_path, content), "c")
    assert "\n" not in str(error.value) and "r.json" in str(error.value)


# --- any file ----------------------------------------------------------------------------------------------------------

ALL = pytest.mark.parametrize(
    "read", [read_nvbench, read_perfci_lines, read_google_benchmark, read_pytest_benchmark, read_hyperfine]
)


@ALL
def test_missing_empty_foreign_and_huge_files(read, tmp_path):
    path = tmp_path / "r"
    with pytest.raises(ValueError, match="no such file: the command wrote no results"):
        read(path, "c")
    with pytest.raises(ValueError, match="no such file"):
        read(tmp_path, "c")
    os.mkfifo(tmp_path / "pipe")  # which does not block
    with pytest.raises(ValueError, match="no such file"):
        read(tmp_path / "pipe", "c")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        read(path, "c")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no UTF-8 text"):
        read(path, "c")
    with path.open("wb") as file:
        try:
            os.truncate(file.fileno(), 2**40)
        except OSError:
            pytest.skip("this file system holds no sparse file of 1 TiB")  # nor is there then one to refuse
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        read(path, "c")


def sound(found: dict[str, Reported]) -> None:
    for case, reported in found.items():
        assert reported.case == case
        assert bool(reported.values) != bool(reported.reason)
        assert all(values and all(map(math.isfinite, values)) for values in reported.values.values())
        assert all(value > 0 for value in reported.values.get("time", []))


fuzz = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["meta", "version", "json", "major", "benchmarks", "states", "name", "device", "axis_values", "value", "summaries", "tag", "data", "metric", "unit", "case", "work", "context", "machine_info", "results", "command", "times", "stats", "mean", "fullname", "run_type", "run_name", "real_time", "time_unit"])
        | st.text(max_size=3),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@ALL
@fuzz
@given(content=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_content_is_results_or_a_value_error(read, tmp_path, content):
    path = tmp_path / "r"
    path.write_bytes(content)
    try:
        sound(read(path, "c"))
    except ValueError as error:
        assert "\n" not in str(error)


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, inner in items for path in paths_of(inner, (*at, key)))]


WHOLE = {
    read_nvbench: recorded(),
    read_google_benchmark: loaded(GOOGLE) | {"benchmarks": loaded(GOOGLE)["benchmarks"][:8]},
    read_pytest_benchmark: loaded(PYTEST),
    read_hyperfine: loaded(HYPERFINE),
}
PLACES = [(read, path) for read, root in WHOLE.items() for path in paths_of(root) if path and path[0] != "devices"]


@settings(fuzz, max_examples=600)
@given(place=st.sampled_from(PLACES), value=json_values | st.sampled_from([math.nan, math.inf, 0, -1.0, 10**400]))
def test_a_result_with_one_part_replaced_never_breaks_the_reader(tmp_path, place, value):
    read, (*steps, last) = place
    root = json.loads(json.dumps(WHOLE[read]))
    inner = root
    for key in steps:
        inner = inner[key]
    inner[last] = value
    path = write(tmp_path, root)
    try:
        sound(read(path, "c", DECLARED))
        recognise(path)
    except ValueError as error:
        assert "\n" not in str(error)


@fuzz
@given(field=st.sampled_from(["metric", "value", "unit", "case", "work"]), value=json_values)
def test_a_line_with_one_field_replaced_never_breaks_the_reader(tmp_path, field, value):
    try:
        sound(read_perfci_lines(lines(tmp_path, GOOD | {field: value}), "c"))
    except ValueError as error:
        assert "\n" not in str(error)
