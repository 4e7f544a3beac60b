"""Commands under real profilers, by the real command line."""

import csv
import sys

import pytest

from .conftest import PLAIN_PYTHON, Repo

RANGES = """
    import time
    import nvtx

    for _ in range({steps}):
        with nvtx.annotate("step"):
            time.sleep(0.02)
"""


@pytest.mark.nsys
@pytest.mark.slow
def test_a_command_on_the_cpu_is_profiled_in_both_sides(repo: Repo, nsys: str) -> None:
    pytest.importorskip("nvtx")  # the command pushes ranges with it
    command = f"{{name: app, run: {sys.executable} app.py}}"
    repo.write("perfci.yaml", f"version: 1\npython: {PLAIN_PYTHON}\ndevices: [cpu]\ncommands: [{command}]\n")
    repo.write("app.py", RANGES.format(steps=3))
    repo.commit("base")
    repo.write("app.py", RANGES.format(steps=5))
    run = repo.perfci("profile", "-k", "app", "--base", "HEAD")
    assert run.code == 0, run.out + run.err
    (case,) = run.results["cases"]
    profiles = {name: side["profile"] for name, side in case["sides"].items()}
    assert not any(profile["faults"] for profile in profiles.values()), profiles
    traces = {name: profile["trace"] for name, profile in profiles.items()}
    assert {name: trace["version"] for name, trace in traces.items()} == {"base": nsys, "head": nsys}
    assert {name: [(one["name"], one["count"]) for one in trace["ranges"]] for name, trace in traces.items()} == {
        "base": [("step", 3)],
        "head": [("step", 5)],
    }
    out = run.folder / "perfci-out"
    assert {path.name for path in (out / "profile").iterdir()} == {
        f"nsys-{side}-app.{suffix}" for side in ("base", "head") for suffix in ("sqlite", "timeline.json.gz")
    }
    assert (out / "logs" / "nsys-base-app.log").is_file()
    assert "which sees no kernels on the CPU" in (out / "report.md").read_text()


WAITS = """
    import threading, time
    import nvtx

    idle = threading.Event()
    thread = threading.Thread(target=idle.wait)
    thread.start()
    for _ in range(6):
        with nvtx.annotate("step"):
            time.sleep(0.02)
    idle.set()
    thread.join()
"""


@pytest.mark.nsys
@pytest.mark.slow
def test_calls_of_the_os_runtime_are_listed_where_they_are_asked_for(repo: Repo, nsys: str) -> None:
    pytest.importorskip("nvtx")  # the command pushes ranges with it
    command = f"{{name: app, run: {sys.executable} app.py, range: step, skip: 1}}"
    repo.write("perfci.yaml", f"version: 1\npython: {PLAIN_PYTHON}\ndevices: [cpu]\ncommands: [{command}]\n")
    repo.write("app.py", WAITS)
    repo.commit("base")
    run = repo.perfci("profile", "-k", "app", "--trace", "osrt")
    assert run.code == 0, run.out + run.err
    (told,) = run.report["profiles"]
    sleep, wait = (
        {one["name"]: one for one in told["uses"] if one["kind"] == "os_call"}[name]
        for name in ("clock_nanosleep", "sem_wait")
    )
    assert sleep["count"] == wait["count"] == {"head": 1}, "an execution, though the wait is one for all"
    assert sleep["seconds"]["head"] >= 0.02 and sleep["launching"] == {}
    out = run.folder / "perfci-out"
    assert "OS runtime" in run.out and "those that wait idly too" in run.out
    assert "| `clock_nanosleep` | 1 × | " in (out / "report.md").read_text()
    assert '<th scope="row">clock_nanosleep</th>' in (out / "report.html").read_text()
    lines = list(csv.DictReader((out / "profile.csv").open()))
    assert {line["name"] for line in lines if line["what"] == "OS time"} >= {"clock_nanosleep", "sem_wait"}
    found = repo.perfci("profile", "-k", "app", "--trace", "osrt,ram")
    assert found.code == 2 and found.err.startswith("perfci: --trace osrt,ram: write osrt, memory or osrt,memory")
    run = repo.perfci("profile", "-k", "app")
    assert run.report["profiles"][0]["uses"] == [], "nobody asked"


KERNELS = """
    import json, os
    import torch

    x = torch.randn(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.nvtx.range("work"):
        for _ in range({sines}):
            torch.sin(x)
        torch.cuda.synchronize()
    x.sum().item()
    if "two" in os.sys.argv:
        with open(os.environ["PERFCI_METRICS"], "a") as file:
            for case in ("a", "b"):
                for value in (1e-3, 1e-3):
                    line = {{"case": case, "metric": "time", "value": value, "unit": "s"}}
                    file.write(json.dumps(line) + "\\n")
"""
POLICY = """
    version: 1
    budget: 60s
    profile: never
    commands:
      - {{name: app, run: {python} app.py, device: cuda, kernels: vectorized_elementwise}}
      - {{name: two, run: {python} app.py two, reads: perfci, device: cuda}}
    limits:
      - {{cases: app, metric: time, max: 600s}}
      - {{cases: app, metric: kernel_launches, regression: 0%}}
      - {{cases: app, metric: registers, regression: 0%}}
      - {{cases: app, metric: "range:work", max: 10s}}
      - {{cases: app, metric: device_busy, min: 0%, fail_on: []}}
      - {{cases: app, metric: instructions, regression: 0%}}
      - {{cases: app, expect_kernels: elementwise}}
      - {{cases: two/a, metric: time, max: 600s}}
      - {{cases: two/a, metric: kernel_launches, regression: 0%, fail_on: broken}}
      - {{cases: two/a, expect_kernels: elementwise, fail_on: broken}}
"""


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("gpu")
def test_a_command_on_a_gpu_is_gated_by_what_profilers_see(repo: Repo, nsys: str) -> None:
    repo.write("perfci.yaml", POLICY.format(python=sys.executable))
    repo.write("app.py", KERNELS.format(sines=10))
    repo.commit("base")
    repo.write("app.py", KERNELS.format(sines=12))
    run = repo.perfci("compare", "--base", "HEAD", timeout=500)
    assert run.code == 1, run.out + run.err
    rows = {(row["case"], row["metric"]): row for row in run.report["rows"]}
    launches = rows["app", "kernel_launches"]
    assert (launches["class"], launches["head"] - launches["base"]) == ("regression", 2)
    assert rows["app", "registers"]["class"] == rows["app", "range:work"]["class"] == "unchanged"
    assert rows["app", "kernels"]["class"] == "unchanged"
    assert rows["app", "device_busy"]["class"] == "invalid"
    for metric in ("kernel_launches", "kernels"):
        assert rows["two/a", metric]["class"] == "invalid" and "it reports 2 cases" in rows["two/a", metric]["reason"]
    profile = next(case for case in run.results["cases"] if case["id"] == "app")["sides"]
    instructions = rows["app", "instructions"]
    if profile["head"]["profile"]["counters"] is None:
        assert instructions["class"] == "invalid" and "ncu" in instructions["reason"]
        pytest.skip(f"its second half needs ncu: {instructions['reason']}")  # a host may forbid counters
    counted = {name: side["profile"]["counters"]["kernels"] for name, side in profile.items()}
    assert all("vectorized_elementwise" in one["name"] for kernels in counted.values() for one in kernels)
    sines = {name: [one for one in kernels if "sin_kernel" in one["name"]] for name, kernels in counted.items()}
    assert [[one["count"] for one in sines[name]] for name in ("base", "head")] == [[10], [12]]
    executed = [one["values"]["instructions"] for name in ("base", "head") for one in sines[name]]
    assert executed[1] == pytest.approx(1.2 * executed[0], rel=1e-3)
    assert instructions["class"] == "regression"
