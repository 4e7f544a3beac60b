"""Whole CUDA programs under Nsight Systems on a GPU: their loop's figures beside those of `nsys stats`."""

import json
import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tests import nsys_stats as stats
from tests.e2e.conftest import Repo

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.usefixtures("gpu")]

MIB = 2**20
COMMON = """
    #include <cstdio>
    #include <cstdlib>
    #include <unistd.h>
    #include <cuda_runtime.h>
    #include <nvtx3/nvToolsExt.h>

    #define CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) { \\
        std::fprintf(stderr, "%s: %s\\n", #call, cudaGetErrorString(e_)); std::exit(1); } } while (0)

    __global__ void spin(float *x, long long cycles) {
        long long start = clock64();
        while (clock64() - start < cycles) {}
        x[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f;
    }
"""
MALLOCS = """
    int main() {
        CHECK(cudaFree(0));
        for (int step = 0; step < 20; step++) {
            nvtxRangePushA("step");
            for (int i = 0; i < 8; i++) {
                float *x;
                CHECK(cudaMalloc(&x, 64u << 20));
                spin<<<1, 128>>>(x, 20000);
                CHECK(cudaFree(x));
            }
            nvtxRangePop();
        }
    }
"""
STEADY = """
    int main() {
        float *x, *more;
        CHECK(cudaMalloc(&x, 32u << 20));
        for (int step = 0; step < 15; step++) {
            nvtxRangePushA("step");
            if (step < 5) {  // the warm-up: slow, and it allocates
                CHECK(cudaMalloc(&more, 256u << 20));
                usleep(30000);
                CHECK(cudaFree(more));
            }
            spin<<<1, 128>>>(x, 4000000);
            CHECK(cudaDeviceSynchronize());
            usleep(1000);  // the host prepares the next one
            nvtxRangePop();
        }
        CHECK(cudaFree(x));
    }
"""
LEAK = """
    int main() {
        for (int step = 0; step < 12; step++) {
            nvtxRangePushA("step");
            float *x;
            CHECK(cudaMalloc(&x, 8u << 20));
            spin<<<1, 128>>>(x, 2000000);
            CHECK(cudaDeviceSynchronize());
            nvtxRangePop();
        }
    }
"""
POLICY = """
    version: 1
    budget: 120s
    commands:
      - {{name: mallocs, run: {bin}/mallocs, device: cuda, range: step, skip: 3, trace: [osrt, memory]}}
      - {{name: steady, run: {bin}/steady, device: cuda, range: step, skip: 5, trace: [osrt, memory]}}
      - {{name: leak, run: {bin}/leak, device: cuda, range: step, skip: 2, trace: memory}}
    limits:
      - {{cases: steady, metric: time, max: 600s}}
      - {{cases: steady, metric: device_busy, min: 10%}}
      - {{cases: steady, metric: peak_memory, max: 100MB}}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory, gpu: None) -> Path:
    """A folder with the programs, compiled for this GPU."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("needs nvcc on PATH or in /usr/local/cuda/bin")  # no package index has it
    folder = tmp_path_factory.mktemp("programs")
    for name, text in {"mallocs": MALLOCS, "steady": STEADY, "leak": LEAK}.items():
        source = folder / f"{name}.cu"
        source.write_text(dedent(COMMON) + dedent(text))
        for arch in ("native", "sm_90"):
            command = [nvcc, "-O2", f"-arch={arch}", "-o", str(folder / name), str(source), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if not done.returncode:
                break
        assert not done.returncode, done.stdout + done.stderr
        ran = subprocess.run([str(folder / name)], capture_output=True, text=True, timeout=60, check=False)
        assert not ran.returncode, ran.stdout + ran.stderr
    return folder


def test_the_loop_of_a_program_is_what_nsys_itself_says(repo: Repo, nsys: str, programs: Path) -> None:
    repo.write("perfci.yaml", POLICY.format(bin=programs))
    repo.commit("head")
    run = repo.perfci("profile", "-k", "*", timeout=800)
    assert run.code == 0, run.out + run.err
    told = {case["case"]: case for case in run.report["profiles"]}
    seen = {case["id"]: case["sides"]["head"]["profile"] for case in run.results["cases"]}
    said = run.out + json.dumps(run.report["profiles"], indent=1)
    tool = shutil.which("nsys", path=repo.env["PATH"])
    assert tool is not None
    kept = run.folder / "perfci-out" / "profile"
    for name, skip, executions in (("mallocs", 3, 17), ("steady", 5, 10)):
        trace, metrics = seen[name]["trace"], seen[name]["metrics"]
        assert trace is not None and (trace["source"], trace["executions"]) == ("nsys", executions), said
        expected = stats.device_busy(tool, kept / f"nsys-head-{name}.sqlite", "step", skip)
        print(f"{name}: device_busy {metrics.get('device_busy')} %, nsys stats {expected} %")
        assert metrics["device_busy"] == pytest.approx(expected, rel=0.02), said
        whole = stats.waits(tool, kept / f"nsys-head-{name}.sqlite")
        waits = {one["name"]: one for one in trace["os_calls"]}
        assert waits.keys() <= whole.keys() and waits, said
        for waited, one in waits.items():
            assert one["seconds"] * executions * 1e9 <= whole[waited][1] * (1 + 1e-6), waited
        assert {use["kind"] for use in told[name]["uses"]} >= {"os_call", "memory"}, said
    assert seen["steady"]["metrics"]["peak_memory"] == 32 * MIB, "the warm-up is left out: " + said
    sleep = next(one for one in seen["steady"]["trace"]["os_calls"] if "sleep" in one["name"])
    assert sleep["count"] == 1 and sleep["launching"] == sleep["seconds"] >= 1e-3, said
    first = told["mallocs"]["sentences"][0]
    assert first.startswith("allocates inside the loop: `cuda") and ("`cudaMalloc`" in first or "`cudaFree`" in first)
    assert seen["mallocs"]["metrics"]["peak_memory"] == 64 * MIB, said
    assert seen["leak"]["trace"]["memory"]["final"] >= 8 * MIB, said
    assert seen["leak"]["trace"]["os_calls"] == [], "nobody asked"


def test_peak_memory_of_a_program_is_gated(repo: Repo, nsys: str, programs: Path) -> None:
    policy = POLICY.format(bin=programs).replace(", trace: [osrt, memory]", "")
    repo.write("perfci.yaml", policy)
    repo.commit("head")
    run = repo.perfci("run", "-k", "steady", timeout=800)
    rows = {row["metric"]: row for row in run.report["rows"] if row["case"] == "steady"}
    assert (rows["peak_memory"]["class"], rows["peak_memory"]["head"]) == ("unchanged", 32 * MIB), run.out + run.err
    assert rows["device_busy"]["class"] == "unchanged", run.out + run.err
    repo.write("perfci.yaml", policy.replace("max: 100MB", "max: 20MB"))
    run = repo.perfci("run", "-k", "steady", timeout=800)
    rows = {row["metric"]: row for row in run.report["rows"] if row["case"] == "steady"}
    assert run.code == 1 and rows["peak_memory"]["class"] == "violation", run.out + run.err
