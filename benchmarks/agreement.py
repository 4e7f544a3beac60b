"""Does perfci's `cold` agree with NVBench's cold GPU time? In SM cycles, over processes of both in turns, on a GPU.

    python benchmarks/agreement.py [PROCESSES]

Both time the cases of kernels/ named below, drawn by the same code. Groups of processes of both take turns. Prints for
each case the ratio of the medians over processes, in time and in cycles (time × the SM clock that the tool measured
itself), and ends with 1 where one in cycles is off by more than 2 %.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfci.measure.conductor import Measurement
from perfci.measure.options import Options
from perfci.model.results import Results

HERE = Path(__file__).resolve().parent.parent
CASES = [
    ("layernorm", "layernorm", {"shape": "8192x4096", "dtype": "bf16"}),
    ("sdpa", "sdpa", {"seq": 1024}),
    ("matmul", "matmul", {"n": 4096, "dtype": "bf16"}),
    ("matmul", "matmul", {"n": 8192, "dtype": "bf16"}),
    ("copies", "copy", {"mib": 512}),
]
GROUP = 4
"""Processes of one tool before the other's turn."""
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

    def pair(self, pairs: int, left: int, cases: int, seconds: float, budget: float) -> None:
        """Nothing."""


def of_perfci(folder: Path, seed: int) -> dict[str, list[tuple[float, float]]]:
    """GROUP launches: case id → (seconds, cycles) of each."""
    options = Options("run", folder, folder / "out", devices=["cuda"], exact_pairs=GROUP, quick=True, seed=seed)
    results: Results = Measurement(options, Quiet()).measure()
    values = {case.id: [pair.values["head"] for pair in case.pairs] for case in results.cases}
    return {ident: [(one["time"], one["cycles"]) for one in found] for ident, found in values.items()}


def of_nvbench(folder: Path, seed: int) -> list[tuple[float, float]]:
    """One process: (seconds, cycles) of each case, from the means that NVBench reports."""
    out = folder / "nvbench.json"
    # The largest matmul runs at the power limit, far under the boost clock: by default NVBench would discard all of it.
    options = ["--json", str(out), "--timeout", "3", "--throttle-threshold", "30"]
    command = [sys.executable, "program.py", json.dumps(CASES), str(seed), *options]
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
    theirs: list[list[tuple[float, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in {file for file, _, _ in CASES} - {"copies"}:
            (folder / f"{file}.py").write_bytes((HERE / "kernels" / f"{file}.py").read_bytes())
        (folder / "copies.py").write_text(COPY)
        (folder / "program.py").write_text(PROGRAM)
        suite = ", ".join(sorted({f"{file}.py" for file, _, _ in CASES}))
        limits = "\n".join(f"  - {{cases: '{i}', metric: time, max: 1s}}" for i in ids)
        (folder / "perfci.yaml").write_text(f"version: 1\nsuite: [{suite}]\ncontract: cold\nlimits:\n{limits}\n")
        for seed in range(0, processes, GROUP):
            found = of_perfci(folder, seed)
            for ident in ids:
                ours[ident] += found[ident]
            theirs += [of_nvbench(folder, seed + number) for number in range(GROUP)]
    worst = 0.0
    print(f"{processes} processes of each\n{'case':44}{'perfci':>11}{'NVBench':>11}{'time':>9}{'cycles':>9}")
    for number, ident in enumerate(ids):
        mine = [statistics.median(one[k] for one in ours[ident]) for k in (0, 1)]
        other = [statistics.median(one[number][k] for one in theirs) for k in (0, 1)]
        ratios = [a / b - 1 for a, b in zip(mine, other, strict=True)]
        worst = max(worst, abs(ratios[1]))
        times = f"{mine[0] * 1e6:8.2f} µs{other[0] * 1e6:8.2f} µs"
        print(f"{ident:44}{times}{ratios[0] * 100:+8.2f}%{ratios[1] * 100:+8.2f}%")
    print(f"largest difference in cycles: {worst * 100:.2f} %")
    return int(not worst <= 0.02)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 16))
