"""Reduce what was recorded on an H200 to what the replay needs: `python -m benchmarks.sensitivity reduce FOLDER`.

The recordings hold unchanged code only, timed in time and SM clock: `placements.npz` (worker pairs, placements drawn
anew, timing modes cold and rotating), `separate_processes.npz` (ten processes) and `paired_launches.npz` (twelve
processes a side, with the clock of every block). The replay scales head's times to make it slower.
"""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sensitivity import nvbench
from benchmarks.sensitivity.recording import SLOW, UNASKED, VERDICTS, Recording
from perfci.stats.describe import trimmed_mean

NAMES = {
    "add64k": "add64k",
    "tiny_add": "add64k",
    "mm1024": "gemm1024",
    "resample": "resample",
    "sdpa512": "attention",
    "copy512M": "copy512m",
    "mm8192": "gemm8192",
}
"""Kernels as the recordings call them → kernels of the same class here."""
MODES = {"cold": "cold", "rot": "rotating"}
PAIR_SECONDS = 5.8 / 18
"""Seconds of one worker pair, per kernel and timing mode: recorded for six kernels under three timing modes
together."""
FLUSH = 40e-6
"""Seconds that flushing the L2 takes before each cold sample (120 MB written)."""


def reduce(folder: Path) -> Recording:
    """Read the three files of `folder`."""
    recording = Recording(meta={"device": "NVIDIA H200", "injected": "scaled", "seconds": {"pair": PAIR_SECONDS}})
    _placements(recording, folder / "placements.npz")
    _processes(recording, folder / "separate_processes.npz")
    _verdicts(recording, folder / "paired_launches.npz")
    return recording


def worker(times: NDArray[np.float64], clocks: NDArray[np.float64]) -> list[float]:
    """Worker value, clock and the two sums of one worker. `times`: seconds, shape (placements, samples)."""
    blocks = np.array([trimmed_mean(block) for block in times])
    hertz = clocks.reshape(len(times), -1).mean(axis=1)
    t, f = np.log(blocks) - np.log(blocks).mean(), np.log(hertz) - np.log(hertz).mean()
    return [float(blocks.mean()), float(np.exp(np.log(hertz).mean())), float(f @ f), float(t @ f)]


def _placements(recording: Recording, path: Path) -> None:
    with np.load(path) as file:
        kernels = dict.fromkeys(key.split("|")[0] for key in file.files)
        pairs = 1 + max(int(key.split("|")[2]) for key in file.files)
        for kernel in kernels:
            for mode, name in MODES.items():
                rows, medians = [], []
                for pair in range(pairs):
                    stem = f"{kernel}|{mode}|{pair}"
                    sides = [(file[f"{stem}|{a}"] * 1e-6, file[f"{stem}|clk{a}"].astype(float) * 1e9) for a in "AB"]
                    rows.append([value for times, clocks in sides for value in worker(times.astype(float), clocks)])
                    medians.append([float(np.median(times)) for times, _ in sides])
                recording.put(np.array(rows, dtype=np.float32), "pairs", NAMES[kernel], name, 0.0)
                recording.put(np.array(medians, dtype=np.float32), "workers", NAMES[kernel], name, 0.0)


def _processes(recording: Recording, path: Path) -> None:
    costs: dict[str, float] = {}
    with np.load(path) as file:
        for kernel in dict.fromkeys(key.split("|")[0] for key in file.files):
            for mode, name in (("cold", "cold"), ("hot", "warm")):
                for variant, own in (("0", "base"), ("0b", "again")):
                    found = [file[f"{kernel}|{mode}|{variant}|{process}"] for process in range(10)]
                    recording.put(np.stack(found) * np.float32(1e-6), "samples", NAMES[kernel], name, own)
            mean = float(np.mean([file[f"{kernel}|cold|0|{process}"].mean() for process in range(10)])) * 1e-6
            costs[NAMES[kernel]] = file[f"{kernel}|cold|0|0"].size * (mean + FLUSH)
    recording.meta["seconds"]["process"] = costs


def _verdicts(recording: Recording, path: Path) -> None:
    """Ask the tool about base's processes against head's of other pairs: separate runs, as it is used."""
    with np.load(path) as file:

        def samples(kernel: str, process: int, side: str, factor: float) -> nvbench.Samples:
            times = file[f"{kernel}|0|{process}|{side}"].astype(float) * 1e-6
            clocks = file[f"{kernel}|0|{process}|clk{side}"].astype(float) * 1e9
            return times.ravel() * factor, np.repeat(clocks, times.shape[1])

        processes = 1 + max(int(key.split("|")[2]) for key in file.files)
        for kernel in dict.fromkeys(key.split("|")[0] for key in file.files):
            for slow in SLOW:
                factor = 1 + slow
                base = [samples(kernel, process, "A", 1.0) for process in range(processes)]
                head = [samples(kernel, process, "B", factor) for process in range(processes)]
                recording.put(verdicts(base, head), "verdicts", NAMES[kernel], slow)


def verdicts(base: list[nvbench.Samples], head: list[nvbench.Samples]) -> NDArray[np.uint8]:
    """The tool's verdict on each base process against each head process of another number, shape (base, head)."""
    asked = [(i, j) for i in range(len(base)) for j in range(len(head)) if i != j]
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch) / "base.json", Path(scratch) / "head.json"
        nvbench.write(files[0], {f"{i}-{j}": base[i] for i, j in asked})
        nvbench.write(files[1], {f"{i}-{j}": head[j] for i, j in asked})
        found = nvbench.compare(*files)
    matrix = np.full((len(base), len(head)), UNASKED, dtype=np.uint8)
    for i, j in asked:
        matrix[i, j] = VERDICTS.index(found[f"{i}-{j}"][0])
    return matrix
