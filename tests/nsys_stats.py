"""What `nsys stats` says of a report or an export: NVIDIA's own reading, to compare with."""

import csv
import io
import subprocess
from pathlib import Path


def rows(nsys: str | Path, report: str, file: Path) -> list[dict[str, str]]:
    """The lines of a report of `nsys stats`."""
    command = [str(nsys), "stats", "--report", report, "--format", "csv", str(file)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    lines = out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(("Start (ns),", "Time (%),")))
    return list(csv.DictReader(io.StringIO("\n".join(line for line in lines[first:] if line))))


def waits(nsys: str | Path, file: Path) -> dict[str, tuple[int, int]]:
    """Function of the OS runtime → calls and ns, of all threads."""
    return {row["Name"]: (int(row["Num Calls"]), int(row["Total Time (ns)"])) for row in rows(nsys, "osrt_sum", file)}


def device_busy(nsys: str | Path, file: Path, name: str, skip: int) -> float:
    """Percent of the time in NVTX ranges of this name, without the first ones, in which some kernel or copy runs.

    Of a program in which each range waits for its own work.
    """
    spans = [
        (int(row["Start (ns)"]), int(row["End (ns)"]))
        for row in rows(nsys, "nvtx_pushpop_trace", file)
        if row["Name"].removeprefix(":") == name
    ]
    spans = sorted(spans)[skip:]
    work = sorted(
        (int(row["Start (ns)"]), int(row["Start (ns)"]) + int(row["Duration (ns)"]))
        for row in rows(nsys, "cuda_gpu_trace", file)
    )
    busy = 0
    for begin, stop in spans:
        reached = begin
        for start, end in work:
            busy += max(0, min(end, stop) - max(start, reached))
            reached = max(reached, min(end, stop))
    return 100 * busy / sum(stop - begin for begin, stop in spans)
