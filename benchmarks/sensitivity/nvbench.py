"""nvbench-compare-robust on NVBench's results: write them, split them by variant, ask for verdicts.

The tool compares two JSON files, benchmark by benchmark, and prints one table each. Thousands of comparisons go into
one call as benchmarks with names of their own. What it needs of a file is read off cuda-bench 0.3.0: the summaries of
`nv/cold/time/gpu/*`, `nv/cold/sm_clock_rate/mean`, and the side files of samples and their clocks (`--jsonbin`).
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sensitivity.recording import VERDICTS

TOOL = "nvbench-compare-robust"
TIME = "nv/cold/time/gpu"
TIMES_BIN = "nv/json/bin:nv/cold/sample_times"
FREQUENCIES_BIN = "nv/json/freqs-bin:nv/cold/sample_freqs"
DEVICE = {"id": 0, "name": "GPU"}

Samples = tuple[NDArray[Any], NDArray[Any] | None]
"""Times in seconds and SM clocks in hertz, one each per sample."""


def find_tool() -> str | None:
    """Path of the command: beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name(TOOL)
    return str(beside) if beside.exists() else shutil.which(TOOL)


def write(path: Path, benches: Mapping[str, Samples]) -> None:
    """A result file of NVBench's form with its side files: one benchmark of one state for each entry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    side = path.parent / f"{path.name}-bin"
    side.mkdir(exist_ok=True)
    benchmarks = []
    for index, (name, (times, clocks)) in enumerate(benches.items()):
        benchmarks.append(
            {
                "name": name,
                "index": index,
                "devices": [0],
                "axes": None,
                "states": [
                    {
                        "name": "Device=0",
                        "device": 0,
                        "type_config_index": 0,
                        "axis_values": None,
                        "is_skipped": False,
                        "summaries": _summaries(side, index, times, clocks),
                    }
                ],
            }
        )
    version = {"json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}}
    path.write_text(
        json.dumps({"meta": {"version": version, "argv": []}, "devices": [DEVICE], "benchmarks": benchmarks})
    )


def _summaries(side: Path, index: int, times: NDArray[Any], clocks: NDArray[Any] | None) -> list[dict[str, Any]]:
    times = np.asarray(times, dtype=np.float64)
    ordered = np.sort(times)
    # NVBench's percentiles are nearest ranks (nvbench/detail/statistics.cuh).
    q1, median, q3 = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.25, 0.5, 0.75))
    mean, deviation = float(times.mean()), float(times.std(ddof=1))
    numbers = {
        f"{TIME}/min": float(ordered[0]),
        f"{TIME}/max": float(ordered[-1]),
        f"{TIME}/mean": mean,
        f"{TIME}/stdev/absolute": deviation,
        f"{TIME}/stdev/relative": deviation / mean,
        f"{TIME}/q1": q1,
        f"{TIME}/median": median,
        f"{TIME}/q3": q3,
        f"{TIME}/iqr/absolute": q3 - q1,
        f"{TIME}/iqr/relative": (q3 - q1) / median,
    }
    found = [_binary(TIMES_BIN, side, f"{index}.times", times)]
    if clocks is not None:
        numbers["nv/cold/sm_clock_rate/mean"] = float(np.mean(clocks))
        found.append(_binary(FREQUENCIES_BIN, side, f"{index}.clocks", clocks))
    found += [
        {"tag": tag, "name": tag, "data": [{"name": "value", "type": "float64", "value": repr(number)}]}
        for tag, number in numbers.items()
    ]
    return found


def _binary(tag: str, side: Path, name: str, values: NDArray[Any]) -> dict[str, Any]:
    np.asarray(values, dtype="<f4").tofile(side / name)
    data = [
        {"name": "filename", "type": "string", "value": f"{side.name}/{name}"},
        {"name": "size", "type": "int64", "value": str(len(values))},
    ]
    return {"tag": tag, "name": tag, "data": data}


def read(path: Path) -> dict[tuple[str, str], Samples]:
    """Samples of a result file: (benchmark, values of its axes joined by a comma) → times and clocks.

    Raises ValueError where a state that was not skipped has no samples: NVBench was not told `--jsonbin`.
    """
    found: dict[tuple[str, str], Samples] = {}
    for bench in json.loads(path.read_text())["benchmarks"]:
        for state in bench["states"]:
            if state.get("is_skipped"):
                continue
            values = ",".join(str(axis["value"]) for axis in state.get("axis_values") or [])
            binaries = {
                summary["tag"]: {entry["name"]: entry["value"] for entry in summary["data"]}
                for summary in state["summaries"]
                if summary["tag"] in (TIMES_BIN, FREQUENCIES_BIN)
            }
            if TIMES_BIN not in binaries:
                raise ValueError(f"{path}: {bench['name']} {values}: holds no samples: run it with --jsonbin")
            times, clocks = (
                np.fromfile(_beside(path, binaries[tag]["filename"]), dtype="<f4") if tag in binaries else None
                for tag in (TIMES_BIN, FREQUENCIES_BIN)
            )
            assert times is not None
            found[bench["name"], values] = times, clocks
    return found


def _beside(path: Path, name: str) -> Path:
    """A side file: its name is relative to the result file, or to where NVBench ran."""
    choices = [path.parent / name, path.parent / Path(name).parent.name / Path(name).name, Path(name)]
    return next((choice for choice in choices if choice.exists()), choices[0])


def compare(base: Path, head: Path) -> dict[str, tuple[str, str]]:
    """The verdict of each benchmark that both files hold: name → (one of VERDICTS, reason code).

    Raises FileNotFoundError where the tool is not installed, RuntimeError where it fails or prints no verdict.
    """
    tool = find_tool()
    if tool is None:
        raise FileNotFoundError(f'{TOOL}: is not installed: pip install "cuda-bench[compare]"')
    command = [tool, "--no-color", "--display", "explain", str(base), str(head)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{TOOL} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return parse(done.stdout.splitlines())


def parse(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Verdicts of the tables that the tool prints. Raises RuntimeError for a table without one."""
    found: dict[str, tuple[str, str]] = {}
    name, header = "", False
    for line in lines:
        if line.startswith("# "):
            name, header = line[2:].strip(), True
        elif line.startswith("|") and name:
            # Cells hold bars of their own: verdict and reason are counted from the right.
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if header:
                if cells[-3:] != ["Reason", "Change", "Status"]:
                    raise RuntimeError(f"{TOOL}: its table has changed: {line!r}")
                header = False
            elif not set(line) <= set("|:- "):
                verdict = next((word for word in VERDICTS if word in cells[-1]), None)
                if verdict is None:
                    raise RuntimeError(f"{TOOL}: no verdict in {line!r}")
                found[name] = verdict, cells[-3]
    return found
