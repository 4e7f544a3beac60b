"""GPUs as NVML tells of them."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from perfci.doctor.host import container, sys_admin, wsl
from perfci.doctor.machine import Asked, Machine, clipped, fail, ok, warn
from perfci.model.doctor import Finding, Status
from perfci.system.gpu import UNSEEN, Gpu, GpuState, cuda_version

NVIDIA, AMD = "0x10de", "0x1002"
DISPLAY, ACCELERATOR = "0x03", "0x12"  # classes of PCI devices
NVML_TIME = 20.0
"""Seconds: without persistence mode the driver starts each GPU anew, some seconds apiece."""
HOT = 80
"""°C before anything runs: a board so warm at rest is slowed down under load."""
BUSY = 0.1
"""Share of the last moments in which a kernel of somebody else's ran, from which on times are theirs too."""
_TOO_HOT = "the GPU is too hot: see its cooling (nvidia-smi -q -d TEMPERATURE)"
# What slows a board that has nothing to do is a fault of the machine, or set.
REMEDIES = {
    "hw_slowdown": "the GPU is slowed down by the board: see its power supply and cooling "
    "(nvidia-smi -q -d PERFORMANCE)",
    "sw_thermal": _TOO_HOT,
    "hw_thermal": _TOO_HOT,
    "hw_power_brake": "the GPU is braked by the machine: see its power supply",
    "applications": "application clocks are set: nvidia-smi --reset-applications-clocks",
    "sync_boost": "bound to the clocks of other GPUs: leave the sync boost group (dcgmi group)",
}
VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU


@dataclass(frozen=True)
class Board:
    """One GPU. None: not told."""

    index: int
    uuid: str
    name: str
    state: GpuState
    driver: str | None
    cuda: int | None
    """The newest CUDA that the driver runs, as 13000."""
    capability: tuple[int, int] | None
    max_clock: int | None
    power_default: float | None
    virtual: bool | None
    """A part of a GPU (vGPU)."""


@dataclass(frozen=True)
class Boards:
    """All GPUs that NVML tells of; and why none, if so."""

    boards: tuple[Board, ...] = ()
    why: str = ""

    @property
    def cuda(self) -> int | None:
        """The newest CUDA that the driver runs, as 13000; None where there is no driver or it does not say."""
        return self.boards[0].cuda if self.boards else None


def boards(machine: Machine) -> Boards:
    """Return every GPU, asked before anything of perfci uses one."""
    library = machine.nvml
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ModuleNotFoundError:
            return Boards(why="nvidia-ml-py is not installed")
    try:
        return Asked(partial(_ask_all, library)).answer(NVML_TIME)
    except TimeoutError:
        return Boards(why=f"NVML gave no answer within {NVML_TIME:g} s")


def _ask_all(library: Any) -> Boards:
    try:
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
    except library.NVMLError as error:
        return Boards(why=f"NVML says {clipped(error)}")
    found, why = [], ""
    for index in range(count):
        gpu, reason = Gpu.open(index, library)
        if gpu is None:
            why = why or reason
        else:
            found.append(_board(index, gpu))
    return Boards(tuple(found), why or ("" if found else "NVML tells of no GPU"))


def _board(index: int, gpu: Gpu) -> Board:
    facts, capability = gpu.facts(), gpu.ask("nvmlDeviceGetCudaComputeCapability")
    power, mode = gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit"), gpu.ask("nvmlDeviceGetVirtualizationMode")
    return Board(
        index=index,
        uuid=gpu.uuid,
        name=gpu.ask("nvmlDeviceGetName") or "a GPU without a name",
        state=gpu.state(),
        driver=facts.driver,
        cuda=gpu.cuda(),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        max_clock=facts.max_sm_clock,
        power_default=None if power is None else power * 1e-3,
        virtual=None if mode is None else mode == VGPU,
    )


def cuda_words(version: int | None) -> str:
    """Return a version in words: 13000 → `CUDA 13.0`."""
    return "CUDA not told" if version is None else f"CUDA {cuda_version(version)}"


def check_gpus(machine: Machine) -> Iterator[Finding]:
    """Check identity, modes, clocks and users of each GPU; or why there is none."""
    found = machine.known(boards)
    if not found.boards:
        yield _none(machine, found.why)
        return
    if found.why:
        yield fail("gpu", f"one GPU does not answer: {found.why}", "see dmesg for Xid errors; reset or reboot")
    for board in found.boards:
        yield _identity(board)
        yield _modes(board)
        yield _clocks(board)
        yield _users(board)


def hardware(machine: Machine) -> str:
    """Return signs of an NVIDIA GPU though NVML tells of none; empty where nothing does."""
    if place := _on_the_bus(machine, NVIDIA):
        return f"one is on the PCI bus at {place}"
    if machine.exists("/proc/driver/nvidia/version"):
        return "NVIDIA's driver is loaded"
    if wsl(machine) and machine.exists("/dev/dxg"):
        return "/dev/dxg is there"
    return ""


def _on_the_bus(machine: Machine, maker: str) -> str:
    """Return where on the PCI bus a GPU of this maker is; empty where none is."""
    for vendor in sorted(machine.root.glob("sys/bus/pci/devices/*/vendor")):
        try:
            kind = (vendor.parent / "class").read_text()
            if vendor.read_text().strip() == maker and kind.startswith((DISPLAY, ACCELERATOR)):
                return vendor.parent.name
        except OSError:
            continue
    return ""


def _none(machine: Machine, why: str) -> Finding:
    sign = hardware(machine)
    if not sign and (place := _on_the_bus(machine, AMD)):
        return warn(
            "gpu",
            f"AMD's GPU at {place} is not measured: perfci measures NVIDIA's alone, there is no ROCm device",
            "use a machine with an NVIDIA GPU, or measure on the CPU with --device cpu",
        )
    if not sign:
        return warn(
            "gpu",
            f"no NVIDIA GPU ({why}, and none is on the PCI bus): perfci measures on the CPU",
            "use a machine with an NVIDIA GPU, or go on with --device cpu",
        )
    given = any((machine.root / "dev").glob("nvidia[0-9]*"))
    if machine.known(container).inside and not given:
        return warn(
            "gpu",
            f"no GPU in this container ({why}), though {sign} of the host: perfci measures on the CPU",
            "start the container with its GPUs (docker run --gpus all), or go on with --device cpu",
        )
    return fail(
        "gpu",
        f"a GPU that cannot be used: {sign}, but {why}",
        "reboot after an update of the driver ('version mismatch'); else install NVIDIA's driver; dmesg | grep NVRM",
    )


def _identity(board: Board) -> Finding:
    state, capability = board.state, board.capability
    memory = "memory not told" if state.memory_total is None else f"{state.memory_total / 2**30:.0f} GiB of memory"
    shown = (
        "compute capability not told" if capability is None else f"compute capability {capability[0]}.{capability[1]}"
    )
    driver = f"driver {board.driver or 'not told'} ({cuda_words(board.cuda)})"
    return ok(
        f"gpu {board.index}",
        f"{board.name}, {memory}, {shown}, {driver}",
        uuid=board.uuid,
        name=board.name,
        memory=state.memory_total,
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        driver=board.driver,
        cuda=board.cuda,
    )


Problem = tuple[Status, str]


def _judged(name: str, text: str, problems: list[Problem], /, **values: Any) -> Finding:
    """Return everything that was found in one line, as bad as the worst problem, with all remedies."""
    if not problems:
        return ok(name, text, **values)
    make = fail if any(status == "fail" for status, _ in problems) else warn
    return make(name, text, "; ".join(remedy for _, remedy in problems), **values)


def _switched(name: str, value: bool | None) -> str:
    return f"{name} {'not told' if value is None else 'on' if value else 'off'}"


def _modes(board: Board) -> Finding:
    state, problems = board.state, list[Problem]()
    own = f"nvidia-smi -i {board.index}"
    if state.compute_mode == "prohibited":
        problems.append(("fail", f"allow computing: {own} -c DEFAULT"))
    elif state.compute_mode == "exclusive":
        problems.append(("warn", f"let base and head be on the GPU together: {own} -c DEFAULT"))
    if state.mig:
        problems.append(("warn", f"counters of shared units and clock locking need MIG off: {own} -mig 0"))
    if board.virtual:
        problems.append(("warn", "a vGPU shares its GPU: measure on a whole one; counters need the host's permission"))
    if state.persistence is False:
        problems.append(("warn", f"keep the driver loaded between processes: {own} -pm 1"))
    text = ", ".join(
        [
            f"compute mode {state.compute_mode or 'not told'}",
            _switched("MIG", state.mig),
            _switched("ECC", state.ecc),
            _switched("persistence", state.persistence),
            *(["a vGPU"] if board.virtual else []),
        ]
    )
    return _judged(
        f"gpu {board.index} modes", text, problems, compute_mode=state.compute_mode, mig=state.mig, ecc=state.ecc,
        persistence=state.persistence, vgpu=board.virtual,
    )  # fmt: skip


def _clocks(board: Board) -> Finding:
    state, reasons = board.state, board.state.reasons or ()
    problems: list[Problem] = [("warn", remedy) for name, remedy in REMEDIES.items() if name in reasons]
    if state.temperature is not None and state.temperature >= HOT:
        problems.append(("warn", f"cool it: {state.temperature} °C before anything runs"))
    # A watt less is the rounding of boards whose limit stands at its default.
    if state.power_limit and board.power_default and state.power_limit < board.power_default - 1:
        problems.append(("warn", f"restore the power limit: nvidia-smi -i {board.index} -pl {board.power_default:.0f}"))
    text = "; ".join(
        (
            f"SM {_number(state.sm_clock, 'MHz')} of at most {_number(board.max_clock, 'MHz')}",
            f"memory {_number(state.memory_clock, 'MHz')}",
            f"power {_number(state.power, 'W')} of {_number(state.power_limit, 'W')}",
            f"default {_number(board.power_default, 'W')}",
            _number(state.temperature, "°C", "temperature not told"),
            "reasons not told" if state.reasons is None else f"held down by {', '.join(reasons) or 'nothing'}",
        )
    )
    unique = list(dict.fromkeys(problems))
    return _judged(
        f"gpu {board.index} clocks", text, unique, sm_clock=state.sm_clock, max_sm_clock=board.max_clock,
        memory_clock=state.memory_clock, power=state.power, power_limit=state.power_limit,
        power_default=board.power_default, temperature=state.temperature,
        reasons=None if state.reasons is None else list(reasons),
    )  # fmt: skip


def _number(value: float | None, unit: str, absent: str = "not told") -> str:
    return absent if value is None else f"{value:.0f} {unit}"


def _users(board: Board) -> Finding:
    state, name = board.state, f"gpu {board.index} users"
    end = "end them, or wait (nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv)"
    used = "" if state.memory_used is None else f"; {state.memory_used / 1e9:.1f} GB of memory in use"
    share = "" if state.utilisation is None else f"; busy {state.utilisation * 100:.0f} % of the last moments"
    values = {
        "processes": None if state.processes is None else [one.pid for one in state.processes],
        "memory_used": state.memory_used,
        "utilisation": state.utilisation,
    }
    if state.processes is None:
        who = "who uses it is not told"
    elif state.processes:
        who = "used by " + ", ".join(
            f"{one.pid} {one.name or '(not visible from here)'}" for one in state.processes[:5]
        )
    else:
        who = "no other process"
    if (state.utilisation or 0) >= BUSY:
        return fail(name, f"{who}{share}{used}: times would be theirs too", end, **values)
    if state.processes or (state.memory_used or 0) > UNSEEN:
        return warn(name, f"{who}{share}{used}", end, **values)
    return ok(name, f"{who}{used}", **values)


def check_locking(machine: Machine) -> Iterator[Finding]:
    """Check whether --lock-clocks can work: predicted, since trying would change the clocks of others."""
    for board in machine.known(boards).boards:
        name = f"gpu {board.index} locking"
        admin = sys_admin(machine)
        if board.state.mig or board.virtual:
            yield warn(name, "--lock-clocks cannot work under MIG or on a vGPU", "leave --lock-clocks out")
        elif machine.euid != 0 or (machine.known(container).inside and admin is False):
            missing = "root" if machine.euid != 0 else "SYS_ADMIN in this container"
            remedy = "run perfci under sudo, in a container with --cap-add SYS_ADMIN, or leave --lock-clocks out"
            yield warn(name, f"--lock-clocks needs {missing} (predicted, not tried)", remedy)
        else:
            yield ok(name, "--lock-clocks should work: root (predicted, not tried)")
