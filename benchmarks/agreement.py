"""Compares perfci's `cold` with NVBench's cold GPU time: in SM cycles, over processes of both in turns, on a GPU.

    python benchmarks/agreement.py [PROCESSES]

Both time the cases of kernels/ named below, drawn by the same code. Groups of processes take turns. NVBench runs
in two ways: `brief`, with about as many samples as perfci takes, and `default`, until its own criterion stops it; that
heats the GPU, and a kernel near the power limit then runs at a lower clock. Prints the medians over processes, the SM
clock that each tool measured itself, and perfci's ratio to NVBench in time and in cycles (time × clock). Ends with 1
where one to `brief` is off by more than 2 %: in cycles, and in time where the kernel waits for memory, whose clock is
another than the SMs'.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfci.measure.request import PairProgress, Request
from perfci.measure.run import Measurement
from perfci.model.results import Results

HERE = Path(__file__).resolve().parent.parent
CASES: list[tuple[str, str, dict[str, object]]] = [
    ("layernorm", "layernorm", {"shape": "8192x4096", "dtype": "bf16"}),
    ("sdpa", "sdpa", {"seq": 1024}),
    ("matmul", "matmul", {"n": 4096, "dtype": "bf16"}),
    ("matmul", "matmul", {"n": 8192, "dtype": "bf16"}),
    ("copies", "copy", {"mib": 512}),
]
MEMORY_BOUND = ("layernorm", "copy")
"""Kernels whose time does not follow the SM clock."""
GROUP = 4
"""Processes of one tool before the other's turn."""
WAYS = {
    "brief": ["--stopping-criterion", "sample-count", "--target-samples", "40"],
    # The largest matmul runs at the power limit, far under the boost clock: by default NVBench would discard all of it.
    "default": ["--timeout", "3", "--throttle-threshold", "30"],
}
"""Options of NVBench."""
COPY = """
import perfci


@perfci.kernel(params={"mib": [512]}, devices=["cuda"])
def copy(bench, mib):
    x = bench.randn(mib * 2**18)
    y = bench.empty(mib * 2**18)
    bench.work(read=x.nbytes, written=x.nbytes)
    return lambda: y.copy_(x)
"""
PROGRAM = """
import json
import sys

import torch
from cuda import bench

from perfci.worker.bench import prepare
from perfci.worker.discover import discover

cases, seed, arguments = json.loads(sys.argv[1]), int(sys.argv[2]), [sys.argv[0], *sys.argv[3:]]
files = sorted({file + ".py" for file, _, _ in cases})
kernels = {kernel.name: kernel for kernel in discover(".", files)["kernels"]}


def register(number, name, params):
    def timed(state):
        fn = prepare(kernels[name], params, "cuda", seed, 0).fn
        fn()
        torch.cuda.synchronize()

        def launcher(launch):
            with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof())):
                fn()

        state.exec(launcher)

    timed.__name__ = f"case{number}"
    bench.register(timed)


for number, (_, name, params) in enumerate(cases):
    register(number, name, params)
bench.run_all_benchmarks(arguments)
"""


class Quiet:
    """Progress that is not shown."""

    def stage(self, text: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def pair(self, standing: PairProgress) -> None:
        """Nothing."""

    def decided(self, results: Results) -> None:
        """Nothing."""


def of_perfci(folder: Path, seed: int) -> dict[str, list[tuple[float, float]]]:
    """GROUP workers: case id → (seconds, cycles) of each."""
    request = Request.of("run", folder, folder / "out", devices=["cuda"], exact_pairs=GROUP, quick=True, seed=seed)
    results: Results = Measurement(request, Quiet()).measure()
    values = {case.id: [pair.values["head"] for pair in case.pairs] for case in results.cases}
    return {ident: [(one["time"], one["cycles"]) for one in found] for ident, found in values.items()}


def of_nvbench(folder: Path, seed: int, way: str) -> list[tuple[float, float]]:
    """One process: (seconds, cycles) of each case, from the means that NVBench reports."""
    out = folder / "nvbench.json"
    command = [sys.executable, "program.py", json.dumps(CASES), str(seed), "--json", str(out), *WAYS[way]]
    path = os.pathsep.join([str(HERE / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})
    found = []
    for benchmark in json.loads(out.read_text())["benchmarks"]:
        said = {s["tag"]: _value(s) for state in benchmark["states"] for s in state["summaries"]}
        time = said["nv/cold/time/gpu/mean"]
        found.append((time, time * said["nv/cold/sm_clock_rate/mean"]))
    return found


def _value(summary: dict[str, Any]) -> float:
    for datum in summary["data"]:
        if datum["name"] == "value":
            return float(datum["value"])
    return float("nan")


def main(processes: int) -> int:
    """Measure, print, and say whether all agree."""
    ids = ["/".join([name, *(f"{k}={v}" for k, v in params.items())]) for _, name, params in CASES]
    ours: dict[str, list[tuple[float, float]]] = {ident: [] for ident in ids}
    theirs: dict[str, list[list[tuple[float, float]]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in {file for file, _, _ in CASES} - {"copies"}:
            (folder / f"{file}.py").write_bytes((HERE / "kernels" / f"{file}.py").read_bytes())
        (folder / "copies.py").write_text(COPY)
        (folder / "program.py").write_text(PROGRAM)
        suite = ", ".join(sorted({f"{file}.py" for file, _, _ in CASES}))
        limits = "\n".join(f"  - {{cases: '{i}', metric: time, max: 1s}}" for i in ids)
        (folder / "perfci.yaml").write_text(f"version: 1\nsuite: [{suite}]\ntiming: cold\nlimits:\n{limits}\n")
        for seed in range(0, processes, GROUP):
            found = of_perfci(folder, seed)
            for ident in ids:
                ours[ident] += found[ident]
            for way, processes_of in theirs.items():
                processes_of += [of_nvbench(folder, seed + number, way) for number in range(GROUP)]
    worst = 0.0
    print(f"{processes} processes of each\n{'case':38}{'':10}{'time':>12}{'clock':>11}{'time':>9}{'cycles':>9}")
    for number, ident in enumerate(ids):
        mine = _middle(ours[ident])
        print(f"{ident:38}{'perfci':10}{mine[0] * 1e6:9.2f} µs{mine[1] / mine[0] * 1e-6:7.0f} MHz")
        for way, processes_of in theirs.items():
            other = _middle([one[number] for one in processes_of])
            ratios = [a / b - 1 for a, b in zip(mine, other, strict=True)]
            if way == "brief":
                worst = max(worst, abs(ratios[0 if CASES[number][1] in MEMORY_BOUND else 1]))
            line = f"{'':38}{way:10}{other[0] * 1e6:9.2f} µs{other[1] / other[0] * 1e-6:7.0f} MHz"
            print(f"{line}{ratios[0] * 100:+8.2f}%{ratios[1] * 100:+8.2f}%")
    print(f"largest difference to brief: {worst * 100:.2f} %")
    return int(not worst <= 0.02)


def _middle(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Medians over processes of seconds and of cycles."""
    return statistics.median(one[0] for one in found), statistics.median(one[1] for one in found)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 16))
