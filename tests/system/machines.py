"""Machines for the doctor: a folder as root, real processes on a PATH that say what such programs were seen to say."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

from perfci.doctor.machine import Machine
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys import privacy as nsys_privacy
from tests.system.test_gpu import Board, NVMLError

FIRST = {"pid": 4026531836, "uts": 4026531838, "ipc": 4026531839, "cgroup": 4026531835, "user": 4026531837}
EVERYTHING = "000001ffffffffff"
DOCKERS = "00000000a80425fb"
"""CapEff of root in a container of Docker's without more."""
LINUX = "Linux version 5.15.0-122-generic (buildd@lcy02) (gcc (Ubuntu 11.4.0) 11.4.0) #132-Ubuntu SMP\n"
GVISOR = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"

NSYS_VERSION = "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0\n"
NSYS_HELP = """usage: nsys profile [<args>] [application] [<application args>]

        -o, --output=

           Output report filename.

        -t, --trace=

           Possible values are 'cuda', 'nvtx', 'osrt' or 'none'.
           Select the API(s) to trace.
"""
NCU_VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2025 NVIDIA Corporation
Version {} (build 36398880) (public-release)
"""
PROFILED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "vectorized_elementwise_kernel": 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"""
RAW = """"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","sm__cycles_active.avg"
"","","","","","","","cycle"
"0","4711","python3.12","127.0.0.1","vectorized_elementwise_kernel","1","7","1433.27"
"""
FORBIDDEN = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 4711
==WARNING== No kernels were profiled.
"""
NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"

H200 = {
    "python": {"version": "3.12.3"},
    "torch": {"there": True, "error": "", "version": "2.11.0+cu130", "cuda": "13.0", "profiler": True},
    "cuda": {"error": "", "ran": True, "name": "NVIDIA H200"},
    "nvtx": {"version": "0.2.11"},
    "end": {},
}
NO_GPU = {
    "python": {"version": "3.12.3"},
    "torch": {"there": True, "error": "", "version": "2.11.0+cpu", "cuda": None, "profiler": False},
    "cuda": {"error": "", "ran": False},
    "end": {},
}


class Nvml(Board):
    """An H200 at rest."""

    def __init__(self, cuda=13000, driver="580.159.04", mute=(), **answers):
        rest = {
            "nvmlDeviceGetClockInfo": lambda kind: {1: 345, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda sensor: 31,
            "nvmlDeviceGetPowerUsage": lambda: 76_400,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: 0x1,
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetMemoryInfo": lambda version=None: SimpleNamespace(total=150_754_820_096, used=2**20),
            "nvmlDeviceGetComputeMode": lambda: 0,
            "nvmlDeviceGetMigMode": lambda: [0, 0],
            "nvmlDeviceGetName": lambda: "NVIDIA H200",
            "nvmlDeviceGetCudaComputeCapability": lambda: (9, 0),
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda: 700_000,
            "nvmlDeviceGetVirtualizationMode": lambda: 0,
        }
        super().__init__(mute=mute, **(rest | answers))
        self.cuda, self.driver = cuda, driver

    def nvmlDeviceGetCount(self):
        return len(self.uuids)

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return self.cuda

    def nvmlSystemGetDriverVersion(self):
        return self.driver


class NoDriver:
    """pynvml on a machine without NVIDIA's driver."""

    NVMLError = NVMLError

    def nvmlInit(self):
        raise NVMLError("NVML Shared Library Not Found")


def program(folder: Path, name: str, body: str) -> str:
    """A shell script on the PATH."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
    file.chmod(0o755)
    return str(file)


def says(text: str, code: int = 0, err: str = "") -> str:
    """The body of a program that says a text and ends."""
    return f"cat <<'OUT'\n{text}OUT\ncat >&2 <<'ERR'\n{err}ERR\nexit {code}"


def nsys(folder: Path) -> None:
    answers = {"--version": NSYS_VERSION, "profile --help": NSYS_HELP}
    body = "\n".join(f'"{args}") {says(text)} ;;' for args, text in answers.items())
    program(folder, "nsys", f'case "$*" in\n{body}\nesac\nexit 1')


def ncu(folder: Path, version: str = "2025.3.1.0", log: str = PROFILED, raw: str = RAW, code: int = 0) -> None:
    """An ncu whose profiling writes `log` into its --log-file, and whose report prints as `raw`."""
    program(
        folder,
        "ncu",
        f'if [ "$1" = --version ]; then {says(NCU_VERSION.format(version))}; fi\n'
        f'case "$*" in *--import*) {says(raw)} ;; esac\n'
        'while [ "$1" != --log-file ]; do shift; done\n'
        f"cat > \"$2\" <<'OUT'\n{log}OUT\nexit {code}",
    )


def python(folder: Path, told: dict, name: str = "python-under-test") -> str:
    """An interpreter that tells what it has, a line a topic."""
    lines = "".join(json.dumps({"topic": topic} | facts) + "\n" for topic, facts in told.items())
    return program(folder, name, says(lines))


def machine(
    folder: Path, *, told: dict = NO_GPU, nvml=None, version: str = LINUX, caps: str = EVERYTHING, namespaces=FIRST,
    admin_only: int | None = None, env=None, files=None, **fields,
) -> Machine:  # fmt: skip
    """A machine below `folder`: `root/`, `bin/`, `repo/` with a repository, `tmp/`, `home/`."""
    root, programs = folder / "root", folder / "bin"
    files = {"proc/version": version, "proc/self/status": f"Name:\tpython3\nCapEff:\t{caps}\n"} | (files or {})
    if admin_only is not None:
        files["proc/driver/nvidia/params"] = f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {admin_only}\n"
    for name, text in files.items():
        write(root / name, text)
    for name, number in namespaces.items():
        link = root / "proc/self/ns" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"{name}:[{number}]")
    for name in ("repo", "tmp", "home"):
        (folder / name).mkdir(parents=True)
    programs.mkdir(exist_ok=True)
    (programs / "git").symlink_to(shutil.which("git"))
    subprocess.run(["git", "init", "-q", "-b", "main", folder / "repo"], check=True)
    return Machine(
        root=root,
        env={"PATH": str(programs), "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")} | (env or {}),
        where=folder / "repo",
        out=folder / "repo" / "perfci-out",
        python=python(programs, told),
        nvml=nvml or NoDriver(),
        **({"euid": 0} | fields),
    )


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


CONTAINER = {name: number + 1_000_000 * (name != "user") for name, number in FIRST.items()}


def h200(folder: Path) -> Machine:
    found = machine(folder, told=H200, nvml=Nvml(), admin_only=1)
    nsys(folder / "bin")
    ncu(folder / "bin")
    program(folder / "bin", "nvcc", says(NVCC))
    return found


def h200_in_a_container(folder: Path) -> Machine:
    """Root, without SYS_ADMIN, on a host that restricts counters to administrators."""
    inside = {"files": {".dockerenv": ""}, "namespaces": CONTAINER}
    found = machine(folder, told=H200, nvml=Nvml(), admin_only=1, caps=DOCKERS, **inside)
    ncu(folder / "bin", log=FORBIDDEN, code=1)
    return found


def ncu_too_new(folder: Path) -> Machine:
    told = H200 | {"torch": H200["torch"] | {"version": "2.8.0+cu128", "cuda": "12.8"}}
    found = machine(folder, told=told, nvml=Nvml(12080, "570.172.08"), admin_only=0)
    nsys(folder / "bin")
    ncu(folder / "bin", "2026.1.1.2", log="==ERROR== Cuda driver is not compatible with Nsight Compute.\n", code=1)
    return found


def under_gvisor(folder: Path) -> Machine:
    log = "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n"
    found = machine(folder, told=H200, nvml=Nvml(), version=GVISOR, namespaces={}, admin_only=0)
    nsys(folder / "bin")
    ncu(folder / "bin", log=log, code=9)
    return found


def with_a_token(folder: Path) -> Machine:
    """As actions/checkout before version 6 leaves it."""
    found = machine(folder)
    key = "http.https://github.com/.extraheader"
    subprocess.run(["git", "-C", found.where, "config", key, f"AUTHORIZATION: basic {SECRET}"], check=True)
    return found


SECRET = "eC1hY2Nlc3MtdG9rZW46Z2hzX25vdGFyZWFsb25l"
MACHINES = {
    "no-gpu": machine,
    "h200": h200,
    "h200-container": h200_in_a_container,
    "ncu-too-new": ncu_too_new,
    "gvisor": under_gvisor,
    "token": with_a_token,
}


def alone(monkeypatch) -> None:
    """Without the tools of the machine that the tests run on, and what that machine allows."""
    monkeypatch.setattr(nsys_command, "_PLACES", ())
    monkeypatch.setattr(ncu_module, "modules", ncu_module.copies)
    monkeypatch.setattr(nsys_privacy, "isolation", lambda user: nsys_privacy.Isolation((), True, "nsys runs alone"))


def quiet(monkeypatch) -> None:
    """Silence what the doctor asks of the machine that the tests run on."""
    from perfci.doctor import host

    alone(monkeypatch)
    monkeypatch.setattr(host, "usable_cores", lambda: 16)
    monkeypatch.setattr(host, "usable_memory", lambda root: 128 * 2**30)
    monkeypatch.setattr(host, "free_memory", lambda root: 120 * 2**30)
    monkeypatch.setattr(host.shutil, "disk_usage", lambda folder: SimpleNamespace(free=64 * 10**9))
