"""GPUs as NVML tells of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from perfci.doctor.host import in_container, wsl
from perfci.doctor.machine import Machine, asked, fail, ok, warn
from perfci.model.doctor import Finding
from perfci.system.gpu import UNSEEN, Gpu, GpuState, cuda_version

NVIDIA = "0x10de"
DISPLAY, ACCELERATOR = "0x03", "0x12"  # classes of PCI devices
NVML_TIME = 20.0
"""Seconds: without persistence mode the driver starts each GPU anew."""
HOT = 80
"""°C at rest: a warmer board is slowed down under load."""
BUSY = 0.1
"""Share of the last moments with a kernel of somebody else's."""
_COOL = "the GPU is too hot: see its cooling (nvidia-smi -q -d TEMPERATURE)"
# What slows a board that has nothing to do is a fault of the machine, or set.
REMEDIES = {
    "hw_slowdown": "slowed down by the board: see its power supply and cooling (nvidia-smi -q -d PERFORMANCE)",
    "sw_thermal": _COOL,
    "hw_thermal": _COOL,
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
    capability: str | None
    power_default: float | None
    virtual: bool
    """A part of a GPU (vGPU)."""


@dataclass(frozen=True)
class Boards:
    """All GPUs that NVML tells of, or why none."""

    boards: tuple[Board, ...] = ()
    why: str = ""

    @property
    def cuda(self) -> int | None:
        """The newest CUDA that the driver runs, as 13000."""
        return self.boards[0].cuda if self.boards else None


def boards(machine: Machine) -> Boards:
    """Return every GPU, before anything of perfci uses one."""
    try:
        return asked(partial(_ask_all, machine.nvml)).result(NVML_TIME)
    except TimeoutError:
        return Boards(why=f"NVML gave no answer within {NVML_TIME:g} s")


def _ask_all(library: Any) -> Boards:
    gpus, why = Gpu.every(library)
    return Boards(tuple(_board(index, gpu) for index, gpu in enumerate(gpus) if gpu is not None), why)


def _board(index: int, gpu: Gpu) -> Board:
    capability = gpu.ask("nvmlDeviceGetCudaComputeCapability")
    power = gpu.ask("nvmlDeviceGetPowerManagementDefaultLimit")
    return Board(
        index=index,
        uuid=gpu.uuid,
        name=gpu.ask("nvmlDeviceGetName") or "a GPU without a name",
        state=gpu.state(),
        driver=gpu.facts().driver,
        cuda=gpu.cuda(),
        capability=capability and "{}.{}".format(*capability),
        power_default=power and power * 1e-3,
        virtual=gpu.ask("nvmlDeviceGetVirtualizationMode") == VGPU,
    )


def cuda_words(version: int | None) -> str:
    """13000 → `CUDA 13.0`."""
    return "CUDA not told" if version is None else f"CUDA {cuda_version(version)}"


def check_gpus(machine: Machine) -> Iterator[Finding]:
    """Check identity, modes, clocks and users of each GPU."""
    gpus = machine.known(boards)
    if not gpus.boards:
        yield _none(machine, gpus.why)
        return
    if gpus.why:
        yield fail("gpu", f"one GPU does not answer: {gpus.why}", "see dmesg for Xid errors; reset or reboot")
    for board in gpus.boards:
        yield _identity(board)
        yield from _modes(board)
        yield from _clocks(board)
        yield from _users(board)


def _hardware(machine: Machine) -> str:
    for vendor in sorted(machine.root.glob("sys/bus/pci/devices/*/vendor")):
        try:
            kind = (vendor.parent / "class").read_text()
            if vendor.read_text().strip() == NVIDIA and kind.startswith((DISPLAY, ACCELERATOR)):
                return f"one is on the PCI bus at {vendor.parent.name}"
        except OSError:
            continue
    if machine.exists("/proc/driver/nvidia/version"):
        return "NVIDIA's driver is loaded"
    return "/dev/dxg is there" if wsl(machine) and machine.exists("/dev/dxg") else ""


def _none(machine: Machine, why: str) -> Finding:
    sign, go_on = _hardware(machine), "or go on with --device cpu"
    if not sign:
        text = f"no NVIDIA GPU ({why}, and none is on the PCI bus): perfci measures on the CPU"
        return warn("gpu", text, f"use a machine with an NVIDIA GPU, {go_on}")
    if machine.known(in_container) and not any((machine.root / "dev").glob("nvidia[0-9]*")):
        text = f"no GPU in this container ({why}), though {sign} of the host: perfci measures on the CPU"
        return warn("gpu", text, f"start the container with its GPUs (docker run --gpus all), {go_on}")
    remedy = "reboot after an update of the driver ('version mismatch'); else install the driver; see dmesg | grep NVRM"
    return fail("gpu", f"a GPU that cannot be used: {sign}, but {why}", remedy)


def _identity(board: Board) -> Finding:
    total = board.state.memory_total
    memory = "memory not told" if total is None else f"{total / 2**30:.0f} GiB of memory"
    capability = f"compute capability {board.capability or 'not told'}"
    driver = f"driver {board.driver or 'not told'} ({cuda_words(board.cuda)})"
    facts = {name: getattr(board, name) for name in ("uuid", "name", "capability", "driver", "cuda")}
    return ok(f"gpu {board.index}", f"{board.name}, {memory}, {capability}, {driver}", memory=total, **facts)


def _modes(board: Board) -> Iterator[Finding]:
    state, name, smi = board.state, f"gpu {board.index}", f"nvidia-smi -i {board.index}"
    if state.compute_mode == "prohibited":
        yield fail(f"{name} compute mode", "prohibited: nothing can run on it", f"{smi} -c DEFAULT")
    elif state.compute_mode == "exclusive":
        text = "exclusive: base and head cannot be on the GPU together"
        yield warn(f"{name} compute mode", text, f"{smi} -c DEFAULT")
    if state.mig:
        yield warn(f"{name} mig", "on: no counters of shared units", f"{smi} -mig 0")
    if board.virtual:
        text = "a vGPU shares its GPU with others, and counters need the host's permission"
        yield warn(f"{name} vgpu", text, "measure on a whole GPU")
    if state.persistence is False:
        yield warn(f"{name} persistence", "off: the driver is not kept loaded between processes", f"{smi} -pm 1")


def _clocks(board: Board) -> Iterator[Finding]:
    state, name = board.state, f"gpu {board.index}"
    reasons = [reason for reason in state.reasons or () if reason in REMEDIES]
    if reasons:
        remedies = dict.fromkeys(REMEDIES[reason] for reason in reasons)
        yield warn(f"{name} clocks", f"held down by {', '.join(reasons)} before anything runs", "; ".join(remedies))
    if state.temperature is not None and state.temperature >= HOT:
        yield warn(f"{name} temperature", f"{state.temperature} °C before anything runs", _COOL)
    # A watt less is the rounding of boards whose limit stands at its default.
    if state.power_limit and board.power_default and state.power_limit < board.power_default - 1:
        text = f"{state.power_limit:.0f} W, where {board.power_default:.0f} W are the default"
        yield warn(f"{name} power limit", text, f"nvidia-smi -i {board.index} -pl {board.power_default:.0f}")


def _users(board: Board) -> Iterator[Finding]:
    state = board.state
    busy = (state.utilisation or 0) >= BUSY
    if not (busy or state.processes or (state.memory_used or 0) > UNSEEN):
        return
    names = [f"{user.pid} {user.name or '(not visible from here)'}" for user in state.processes or ()]
    text = f"used by {', '.join(names[:5]) or 'a process that is not told'}"
    if state.utilisation is not None:
        text += f"; busy {state.utilisation * 100:.0f} % of the last moments"
    if state.memory_used is not None:
        text += f"; {state.memory_used / 1e9:.1f} GB of memory in use"
    end = "end them, or wait (nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv)"
    name = f"gpu {board.index} users"
    yield fail(name, f"{text}: times would be theirs too", end) if busy else warn(name, text, end)
