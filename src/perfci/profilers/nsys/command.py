"""Finding and calling Nsight Systems, and classifying its failures."""

import os
import re
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.model.policy import Traced
from perfci.model.profile import Fault, FaultKind
from perfci.model.text import escaped, version_numbers
from perfci.profilers.nsys.export import fault
from perfci.profilers.nsys.privacy import environment
from perfci.system.bounded import run

DURATION = 60
"""Seconds recorded of a command."""
SIZE = 2**30
"""Bytes, of all that nsys and a command write, above which it is ended; of a report, above which it is not exported: an
export is four to eight times as large."""
PROBE_TIMEOUT = 60.0
"""Seconds; the first start from a cold disk takes some."""

_PLACES = (
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda/bin/nsys",
    "/usr/local/cuda-*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/usr/lib/nsight-systems/target-linux-*/nsys",
)
_NEWER = "install an nsys that is as new as the driver's CUDA"
_VERSION = re.compile(r"version (\d+(?:\.\d+){2,})")
_FLAG = re.compile(r"^\s+(?:\([A-Za-z]+\) )?(?:-\w, )?--([a-z][a-z0-9-]*)", re.MULTILINE)
_INSTALL = (
    "install nsight-systems-cli from NVIDIA's devtools repository; without it torch.profiler gives kernels and copies"
)


@dataclass(frozen=True, slots=True)
class InstalledNsys:
    """An nsys that runs."""

    path: Path
    version: str
    """Such as `2023.4.4.54`."""
    flags: frozenset[str]
    """Long options of `nsys profile`, without dashes."""


# ---------------------------------------------------------------- which nsys


def candidates(environ: Mapping[str, str]) -> list[Path]:
    """Return possible paths: `PATH`, then NVIDIA's folders, newest version first."""
    found = [Path(path)] if (path := shutil.which("nsys", path=environ.get("PATH", os.defpath))) else []
    for place in _PLACES:
        paths = [path for path in Path("/").glob(place[1:]) if os.access(path, os.X_OK)]
        found += sorted(paths, key=lambda path: (version_numbers(str(path)), str(path)), reverse=True)
    return list(dict.fromkeys(found))


def find(environ: Mapping[str, str] | None = None) -> InstalledNsys | Fault:
    """Return the first nsys that runs; else the first fault."""
    environ = os.environ if environ is None else environ
    faults = []
    for path in candidates(environ):
        answer = probe(path, environ)
        if isinstance(answer, InstalledNsys):
            return answer
        faults.append(answer)
    return faults[0] if faults else fault("absent", "nsys is not installed", _INSTALL)


def probe(path: Path, environ: Mapping[str, str]) -> InstalledNsys | Fault:
    """Return the nsys at `path`."""
    env = environment(environ)
    answers = []
    for arguments in (["--version"], ["profile", "--help"]):
        answer = run([str(path), *arguments], PROBE_TIMEOUT, env=env)
        if answer.late:
            text = f"{path} {' '.join(arguments)}: {answer.problem}"
            return fault("timeout", text, "see whether another nsys hangs, and end it")
        if answer.problem:
            return fault("crash", f"{path}: {answer.problem}", _INSTALL)
        answers.append((answer.code, answer.out + answer.err))
    (_, said), (code, usage) = answers
    version = _VERSION.search(said)
    if version is None:
        # CUDA toolkits put a script of this name in their bin folder that only says that nsys is not installed.
        return fault("absent", f"{path}: tells no version, but {_last(said)}", _INSTALL)
    flags = frozenset(_FLAG.findall(usage))
    if not {"trace", "output"} <= flags:
        return fault("incompatible", f"{path} profile --help: lists no options (status {code})", _INSTALL)
    return InstalledNsys(path, version[1], flags)


# ---------------------------------------------------------------- command lines


def profile_command(
    nsys: InstalledNsys,
    output: Path,
    argv: Sequence[str],
    *,
    cuda: bool,
    capture_range: bool,
    duration: int | None = None,
    more: Collection[Traced] = (),
) -> list[str]:
    """Return the command line that records `argv` into `output` (`.nsys-rep`), without options that this nsys lacks.

    `capture_range`: record only between cudaProfilerStart and cudaProfilerStop; ignored without CUDA, where that never
    opens. `duration`: seconds after which recording ends, the program running on. Raises ValueError for an empty
    `argv`.
    """
    if not argv:
        raise ValueError("nothing to profile")
    ranged = cuda and capture_range
    wanted = {
        "trace": ",".join([*(["cuda"] if cuda else []), "nvtx", *(["osrt"] if "osrt" in more else [])]),
        "cuda-memory-usage": "true" if cuda and "memory" in more else None,
        # Of calls longer than this, in ns: none. Who called is not told, and a backtrace costs more than the call.
        "osrt-backtrace-threshold": str(2**31 - 1) if "osrt" in more else None,
        "sample": "none",
        "cpuctxsw": "none",
        "backtrace": "none",
        "cuda-graph-trace": "node" if cuda else None,
        "cuda-event-trace": "false" if cuda else None,
        # The default names sessions by process number: every PID namespace has a small one, and names must differ.
        "session-new": f"perfci-{uuid.uuid4().hex[:12]}",
        "capture-range": "cudaProfilerApi" if ranged else None,
        "capture-range-end": "stop" if ranged else None,
        "duration": str(duration) if duration else None,
        "kill": "none" if ranged or duration else None,
        "wait": "primary",
        "resolve-symbols": "false",
        "discard-environment": "true",
        "stats": "false",
        "force-overwrite": "true",
        "output": str(output),
    }
    options = [f"--{name}={value}" for name, value in wanted.items() if value is not None and name in nsys.flags]
    return [str(nsys.path), "profile", *options, *argv]


def export_command(nsys: InstalledNsys, report: Path, output: Path) -> list[str]:
    """Return the command line that exports `report` as SQLite."""
    options = ["--type=sqlite", "--force-overwrite=true", f"--output={output}"]
    return [str(nsys.path), "export", *options, str(report)]


def used(folder: Path) -> int:
    """Return bytes below `folder`, nsys's own TMPDIR."""
    total = 0
    for top, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(top) / name).lstat().st_size
            except FileNotFoundError:  # nsys renames while it works
                continue
    return total


# ---------------------------------------------------------------- what went wrong

_CLEAR: tuple[tuple[str, FaultKind, str], ...] = (
    (r"unshare(: unshare)? failed|unshare: .*not permitted", "forbidden", "run as a user who may open PID namespaces"),
    (r"unrecognised option|unrecognized option", "incompatible", "update nsys"),
    (r"newer than your current version", "incompatible", "export with the nsys that recorded"),
    (r"Executable not found", "crash", "name a program that can be started"),
    (r"importer version|QdstrmImporter.*(not|No such)", "incompatible",
     "its host folder, which writes reports, is missing: " + _INSTALL),
    (r"temp_directory_path|Cannot create temporary|cannot create directory|Failed to create '", "forbidden",
     "set TMPDIR to a folder that can be written, and name an output folder that exists"),
    (r"No space left on device|Disk quota exceeded", "crash", "free space, or set TMPDIR to a folder on another disk"),
    (r"already subscribed to CUPTI|MULTIPLE_SUBSCRIBERS|HARDWARE_BUSY", "busy",
     "end other profilers (torch.profiler in the case, DCGM, MPS), or trace with cuda-sw"),
    (r"INSUFFICIENT_PRIVILEGES|ERR_NVGPUCTRPERM", "forbidden",
     "allow profiling: NVIDIA's page ERR_NVGPUCTRPERM says how"),
    (r"Exportation error", "unreadable", "capture again"),
    (r"Agent launcher exceeded its timeout", "timeout", "run again on an idle machine"),
)  # fmt: skip


def classify(
    code: int | None, log: str, output: Path, *, signal: int | None = None, timed_out: bool = False
) -> Fault | None:
    """Return what is wrong after a run of nsys that writes `output`.

    `code`: None where `signal` ended it; nsys hands on the program's status, 128 + n for signal n. A failed run that
    left an output recorded less than the whole case.
    """
    written = output.is_file() and output.stat().st_size > 0
    if timed_out:
        return fault(
            "timeout", f"nsys did not end in time{_saying(log)}", "raise the time-out, or profile fewer executions"
        )
    if match := re.search(r"Unknown (?:runtime|driver) API function index: \d+", log):
        return fault("incomplete", f"nsys dropped what follows what it does not know: {match[0]}", _NEWER)
    if signal is None and code == 0 and written:
        return None
    for pattern, kind, remedy in _CLEAR:
        if match := re.search(rf"[^\n\r]*({pattern})[^\n\r]*", log, re.IGNORECASE):
            return fault(kind, f"nsys says: {match[0].strip()}", remedy)
    if signal is not None or (code is not None and (code < 0 or code > 128)):
        number = signal if signal is not None else abs(code or 0) % 128
        text = f"nsys or the program under it was killed by signal {number}{_saying(log)}"
        return fault(
            "crash", text, "run the case without a profiler; if only nsys dies, update it or trace with cuda-sw"
        )
    if code:
        text = f"the program under nsys, or nsys itself, exited with status {code}{_saying(log)}"
        return fault("crash", text, "run the case without a profiler")
    text = f"nsys ended well and wrote no {output.name}{_saying(log)}"
    return fault("empty", text, "was cudaProfilerStart called? without CUDA ask for no capture range")


def _saying(log: str) -> str:
    last = _last(log)
    return f", saying: {last}" if last else ""


def _last(log: str) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]+", log)]
    telling = [
        line
        for line in lines
        if re.search(r"\w", line)  # no brace that closes a report of an error
        and not re.match(r"\[\d+/\d+\]|Processing|Generat|/\S+\.(nsys-rep|qdstrm)$", line)
    ]
    return escaped(telling[-1])[:300] if telling else ""
