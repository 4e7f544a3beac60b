"""Finding and calling ncu, and classifying its failures."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfci.model.profile import Fault, FaultKind
from perfci.model.text import version_numbers
from perfci.profilers.ncu import chips
from perfci.profilers.ncu.launch import fault
from perfci.system.bounded import run
from perfci.system.users import CAP_PERFMON, CAP_SYS_ADMIN, held

_LAST, _NEWEST = {11: (2022, 3), 12: (2025, 2)}, 13
"""CUDA's major version → its last ncu (NVIDIA's redistributable manifests)."""
_DRIVERS = {12: "525", 13: "580"}
"""CUDA's major version → the oldest driver for it (CUDA release notes)."""

PERFMON_DRIVER = 565
"""The first driver that takes CAP_PERFMON for CAP_SYS_ADMIN."""


@dataclass(frozen=True)
class InstalledNcu:
    """An ncu that runs."""

    path: Path
    version: str
    """Such as `2025.3.1`."""


# ---------------------------------------------------------------- the tool


def installations(root: Path = Path("/")) -> list[Path]:
    """Return folders of Nsight Compute, newest first."""
    found = {
        folder.resolve()
        for pattern in ("opt/nvidia/nsight-compute/*", "usr/local/cuda*/nsight-compute-*")
        for folder in root.glob(pattern)
        if folder.is_dir()
    }
    return sorted(found, key=lambda folder: (version_numbers(folder.name), str(folder)), reverse=True)


def candidates(path: str | None = None, root: Path = Path("/")) -> list[Path]:
    """Return every ncu of `path` (default $PATH), of the CUDA toolkit, of packages."""
    on_path = shutil.which("ncu", path=path)
    known = [root / "usr/local/cuda/bin/ncu", *(folder / "ncu" for folder in installations(root))]
    found = [one for one in known if one.is_file() and os.access(one, os.X_OK)]
    return list(dict.fromkeys([*([Path(on_path)] if on_path else []), *found]))


def version(ncu: Path, timeout: float = 30.0) -> str | Fault:
    """Return ncu's version, or why it tells none."""
    remedy = "install Nsight Compute anew"
    answer = run([str(ncu), "--version"], timeout)
    if answer.problem:
        return fault("timeout" if answer.late else "absent", f"{ncu} --version: {answer.problem}", remedy)
    match = re.search(r"^Version (\d{4}\.\d+(?:\.\d+)?)", answer.out, re.MULTILINE)
    if match is None:
        told = (answer.out + answer.err).strip().splitlines()[-1:] or [f"status {answer.code}"]
        return fault("absent", f"{ncu}: tells no version ({told[0]})", remedy)
    return match[1]


def find(
    driver_cuda: str = "", *, path: str | None = None, root: Path = Path("/"), timeout: float = 30.0
) -> InstalledNcu | Fault:
    """Return the first of `candidates` that runs and fits the driver, or why there is none.

    `driver_cuda`: such as `12.8`; empty for any ncu.
    """
    first: Fault | None = None
    for one in candidates(path, root):
        told = version(one, timeout)
        why = told if isinstance(told, Fault) else unfit_driver(driver_cuda, told)
        if why is None:
            assert isinstance(told, str)
            return InstalledNcu(one, told)
        first = first or why
    remedy = "install Nsight Compute: package nsight-compute of NVIDIA's CUDA repository, or an nvidia/cuda devel image"
    return first or fault("absent", "ncu is not installed: searched PATH, /usr/local/cuda and /opt/nvidia", remedy)


# ---------------------------------------------------------------- predictions


def cuda_major(ncu_version: str) -> int:
    """Return the major version of the CUDA that ships an ncu."""
    release = version_numbers(ncu_version)[:2]
    return next((major for major, last in _LAST.items() if release <= last), _NEWEST)


def unfit_driver(driver_cuda: str, ncu_version: str) -> Fault | None:
    """Return why ncu will refuse the driver, where known.

    `driver_cuda`: of cuDriverGetVersion (`13.0`), never torch's. Seen: ncu's CUDA major must not exceed the driver's; a
    newer minor works.
    """
    major, driver = cuda_major(ncu_version), version_numbers(driver_cuda)
    if not driver or major <= driver[0]:
        return None
    year, number = _LAST.get(driver[0], _LAST[11])
    return fault(
        "incompatible",
        f"ncu {ncu_version} is of CUDA {major} and the driver of CUDA {driver_cuda}: it will refuse it",
        f"install ncu {year}.{number}, or a driver from {_DRIVERS.get(major, 'that CUDA')} on",
    )


_PERMIT = (
    "on the host set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module and reload it, or "
    f"run as root, in a container with --cap-add=PERFMON (SYS_ADMIN before driver {PERFMON_DRIVER}); under WSL allow "
    "it in the NVIDIA Control Panel of Windows"
)
_GVISOR = "gVisor does not pass on what ncu needs"
_RUNTIME = "use a machine whose containers run under runc, or go without counters"


def may_count(root: Path = Path("/")) -> Fault | None:
    """Return why this process may not count, where known.

    The driver asks for CAP_SYS_ADMIN (from 565 on CAP_PERFMON does) where its parameter RmProfilingAdminOnly is 1.
    Where code under test runs as another user, ncu gets those of the two that this process has. Under WSL a setting of
    Windows decides; gVisor passes nothing on.
    """
    if gvisor(root):
        return fault("forbidden", f"counters cannot be read in this sandbox: {_GVISOR}", _RUNTIME)
    if "microsoft" in _text(root / "proc/version").lower():
        return None
    capabilities = held([CAP_SYS_ADMIN, CAP_PERFMON], root)
    if capabilities is None or not admin_only(root):
        return None
    version = re.search(r"Kernel Module.*?\s(\d+)\.", _text(root / "proc/driver/nvidia/version"))
    takes_perfmon = version is None or int(version[1]) >= PERFMON_DRIVER
    if CAP_SYS_ADMIN in capabilities or (takes_perfmon and CAP_PERFMON in capabilities):
        return None
    user = re.search(r"^Uid:\s*\d+\s+(\d+)", _text(root / "proc/self/status"), re.MULTILINE)
    who = "root" if user is not None and user[1] == "0" else "a user"
    lacking = f"{who} without CAP_{'PERFMON' if takes_perfmon else 'SYS_ADMIN'}"
    return fault("forbidden", f"the driver lets only administrators count, and this is {lacking}", _PERMIT)


def gvisor(root: Path = Path("/")) -> bool:
    """Tell whether the kernel is gVisor's: a bare 4.4.0, where distributions append their build."""
    kernel = _text(root / "proc/version")
    return "gvisor" in kernel.lower() or kernel.startswith("Linux version 4.4.0 ")


def admin_only(root: Path = Path("/")) -> bool:
    """Tell whether the driver lets administrators alone count."""
    told = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(root / "proc/driver/nvidia/params"), re.MULTILINE)
    return told is not None and told[1] != "0"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- command lines


def command(
    ncu: Path,
    target: Sequence[str],
    *,
    report: Path,
    log: Path,
    metrics: Sequence[str],
    sections: Sequence[str] = chips.SECTIONS["default"],
    set_name: str | None = None,
    launches: int,
    kernels: str | None = None,
    capture: bool = True,
) -> list[str]:
    """Return the command line that profiles `target`.

    `report`: ends with `.ncu-rep`. `log`: takes ncu's messages once the target runs; earlier ones go to stdout and
    stderr. `metrics`: from `chips.metrics_for`. `set_name`: ncu's own set. `launches`: the most to profile. `kernels`:
    a regular expression searched in function names without arguments. `capture`: only between cudaProfilerStart and
    cudaProfilerStop.

    Clocks are left alone, so that a failure leaves nothing to reset. A configuration file, which a repository could
    hold, is not read.

    Raises ValueError for a `target` that ncu would take for an option, and for `launches` below 1.
    """
    if not target or target[0].startswith(("-", "@")):
        # ncu knows no `--`: its options end at the first word that is none.
        raise ValueError(f"ncu cannot start {target[0]!r}: name a program" if target else "nothing to profile")
    if launches < 1:
        raise ValueError(f"launches {launches}: profile at least one")
    options = [
        "--config-file", "off",
        "--target-processes", "all",
        "--graph-profiling", "node",
        "--replay-mode", "kernel",
        "--clock-control", "none",
        "--cache-control", "all",
        "--nvtx",
        "--launch-count", str(launches),
        "--log-file", str(log),
        "--force-overwrite",
        # `%` begins a macro in names of reports.
        "--export", str(report).replace("%", "%%"),
        "--metrics", ",".join(metrics),
    ]  # fmt: skip
    if set_name is not None:
        options += ["--set", set_name]
    for section in sections:
        options += ["--section", section]
    if capture:
        options += ["--profile-from-start", "off"]
    if kernels is not None:
        options += ["--kernel-name-base", "function", "--kernel-name", f"regex:{kernels}"]
    return [str(ncu), *options, *target]


def raw_page(ncu: Path, report: Path) -> list[str]:
    """Return the command line that prints a report's raw page as CSV, in base units."""
    return [
        str(ncu), "--config-file", "off", "--import", str(report), "--page", "raw", "--csv", "--print-units", "base",
    ]  # fmt: skip


# ---------------------------------------------------------------- failures

_LOG = "read ncu's log, and run the program without ncu"
_Known = tuple[tuple[str, FaultKind, str, str], ...]
_DRIVER: _Known = (
    (
        r"stub libcuda|failed to connect to the CUDA driver|driver is a stub|cudaErrorStubLibrary|ERROR_STUB_LIBRARY",
        "incompatible", "ncu found a stub of libcuda, or no driver",
        "take cuda/lib64/stubs and cuda/compat off LD_LIBRARY_PATH; in a container pass the GPU on (--gpus all)",
    ),
    (
        r"LibraryNotLoaded", "incompatible", "ncu could not load the libraries of the driver that it needs",
        "run outside of gVisor, with NVIDIA_DRIVER_CAPABILITIES=compute,utility and an ncu as new as the GPU",
    ),
)  # fmt: skip
_KNOWN: _Known = (
    (r"ERR_NVGPUCTRPERM", "forbidden", "the driver does not let this user count", _PERMIT),
    (
        r"driver resource was unavailable", "busy", "another profiler or monitor holds the counters of the GPU",
        "pause it: `dcgmi profile --pause` for DCGM and its exporter, then `dcgmi profile --resume`",
    ),
    (
        r"[Dd]river is not compatible", "incompatible", "this ncu does not fit the driver",
        "install an ncu whose CUDA major version is the driver's or older, or a newer driver",
    ),
    *_DRIVER,
    (
        r"Failed to open/create lock file|interprocess lock", "forbidden",
        "ncu cannot take its lock, which another ncu or user holds, or the folder of TMPDIR cannot lock files",
        "wait for the other one, or set TMPDIR to a local folder of your own where no other ncu uses this GPU",
    ),
    (
        r"Failed to access the following metrics", "incompatible",
        "ncu cannot collect some metrics, as those of units that a MIG instance shares",
        "ask for others, or use a whole GPU or a MIG instance that shares nothing",
    ),
)  # fmt: skip
"""Pattern in a line of ncu's → its meaning, most telling first; those of _DRIVER stand in the program's output, too.
Words of ncu 2022.3 to 2026.3: documentation, binaries, users' reports."""


def classify(exit_code: int | None, log_text: str, timed_out: bool) -> Fault | None:
    """Return what went wrong with a run of ncu; None is no proof of a result.

    `exit_code`: None or negative where a signal ended it. `log_text`: ncu's log and all output, which counts only where
    ncu knows no reason.
    """
    found = _told(exit_code, log_text, timed_out)
    if found is None or found.kind not in ("empty", "crash"):
        return found
    return _known(log_text.splitlines(), _DRIVER) or found


_REFUSED = re.compile(r"Failed to find metric|Failed to access the following metrics|did not match any metric")


def refused(log_text: str, names: Sequence[str]) -> dict[str, str]:
    """Return those of `names`, ncu's own, that it says it cannot collect → its words; all where it names none."""
    _, lines = _messages(log_text)
    at = [index for index, line in enumerate(lines) if _REFUSED.search(line)]
    if not at:
        return {}
    words = " ".join(lines[at[0] :])
    named = [name for name in names if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", words)]
    return dict.fromkeys(named or names, _detail(lines, at[0]))


def _messages(log_text: str) -> tuple[list[str], list[str]]:
    told = [line for line in log_text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return told, [line.removeprefix("==ERROR==").removeprefix("==WARNING==").strip() for line in told]


def _known(lines: Sequence[str], known: _Known) -> Fault | None:
    for pattern, kind, text, remedy in known:
        at = next((index for index, line in enumerate(lines) if re.search(pattern, line)), None)
        if at is not None:
            return fault(kind, f"{text}: {_detail(lines, at)}", remedy)
    return None


def _told(exit_code: int | None, log_text: str, timed_out: bool) -> Fault | None:
    told, lines = _messages(log_text)
    if (found := _known(lines, _KNOWN)) is not None:
        return found
    if timed_out:
        return fault(
            "timeout",
            "ncu did not end in time and was killed",
            "leave kernels that wait for others (collectives, spinning ones) out by name, or profile fewer launches",
        )
    errors = [index for index, line in enumerate(told) if line.startswith("==ERROR==") and lines[index]]
    if errors:
        return fault("crash", f"ncu failed: {_detail(lines, errors[0])}", _LOG)
    if any("No kernels were profiled" in line for line in lines):
        return fault(
            "empty",
            "ncu saw no kernel that it was to profile",
            "see that the case launches kernels, within cudaProfilerStart and cudaProfilerStop, that match `kernels:`",
        )
    if exit_code is None or exit_code < 0:
        return fault("crash", "ncu was killed" + (f" by signal {-exit_code}" if exit_code else ""), _LOG)
    if exit_code:
        return fault("crash", f"ncu ended with status {exit_code} and said nothing", _LOG)
    return None


def _detail(lines: Sequence[str], at: int) -> str:
    more = [line for line in lines[at + 1 : at + 6] if line] if "following" in lines[at] else []
    return " ".join([lines[at], *more])[:500]
