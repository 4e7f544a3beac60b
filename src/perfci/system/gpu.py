"""The state of a GPU by NVML. What a GPU, a driver or a container does not tell is None: never an exception, and never
0."""

import importlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from perfci.model.fingerprint import ComputeMode, NvmlFacts
from perfci.model.text import escaped

# nvmlClocksEventReasons* of nvml.h, under names that people can read.
REASONS = {
    0x1: "idle",
    0x2: "applications",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display",
}
# Fields of nvmlDeviceGetFieldValues that count for how many nanoseconds a reason has held the clocks down.
COUNTERS = {74: "sw_power_cap", 76: "sync_boost", 269: "sw_thermal", 270: "hw_thermal", 271: "hw_power_brake"}
COMPUTE_MODES: dict[int, ComputeMode] = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
VALUE_TYPES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # nvmlValueType_t
CLOCK_SM = 1  # nvmlClockType_t
MEMORY_V2 = 0x02000028  # nvmlMemory_v2 of nvml.h: 2 << 24 | sizeof(nvmlMemory_v2_t)
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of linux/proc_ns.h

WORTH_TELLING = 0.01
"""Least share of a round to be reported."""
UNSEEN = 2**30
"""Bytes in use before perfci that only a process can hold: an idle driver keeps less."""


@dataclass(frozen=True)
class GpuProcess:
    """A user of the GPU."""

    pid: int
    """In its own PID namespace."""
    name: str | None
    """None where it cannot be seen from here."""
    memory: int | None
    """Bytes on the device."""


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    sm_clock: int | None = None
    """MHz."""
    temperature: int | None = None
    """°C."""
    power: float | None = None
    """Watts, averaged by the driver over up to a second."""
    power_limit: float | None = None
    """Watts."""
    reasons: tuple[str, ...] | None = None
    """Values of REASONS that hold the clocks down now."""
    held: dict[str, float] | None = None
    """Reason → seconds since the driver was loaded."""
    utilisation: float | None = None
    """Share of the last moments with a running kernel."""
    processes: tuple[GpuProcess, ...] | None = None
    """Without ours."""
    compute_mode: str | None = None
    """`default`, `exclusive` or `prohibited`."""
    persistence: bool | None = None
    mig: bool | None = None
    memory_total: int | None = None
    """Bytes, as `memory_used`."""
    memory_used: int | None = None


class Gpu:
    """One GPU."""

    def __init__(self, library: Any, handle: Any, uuid: str) -> None:
        self._library = library
        self._handle = handle
        self.uuid = uuid

    @classmethod
    def open(cls, which: str | int, library: Any = None) -> "tuple[Gpu | None, str]":
        """Return the GPU with this UUID (`GPU-` may be left out) or NVML index, or that holds this MIG instance; or
        None and why."""
        if library is None:
            try:
                library = importlib.import_module("pynvml")
            except ModuleNotFoundError:
                return None, "the state of the GPU is unknown: nvidia-ml-py is not installed"
        try:
            library.nvmlInit()
            handle = _find(library, which)
            uuid = library.nvmlDeviceGetUUID(handle)
        except library.NVMLError as error:
            return None, f"the state of GPU {escaped(which)} is unknown: NVML says {escaped(error)}"
        return cls(library, handle, uuid), ""

    @classmethod
    def every(cls, library: Any = None) -> "tuple[list[Gpu | None], str]":
        """Return all GPUs in NVML's order, None for one that does not answer, and why one does not or there is none."""
        try:
            library = library or importlib.import_module("pynvml")
            library.nvmlInit()
            opened = [cls.open(index, library) for index in range(library.nvmlDeviceGetCount())]
        except ModuleNotFoundError:
            return [], "nvidia-ml-py is not installed"
        except library.NVMLError as error:
            return [], f"NVML says {escaped(error)}"
        why = next((why for gpu, why in opened if gpu is None), "" if opened else "NVML tells of no GPU")
        return [gpu for gpu, _ in opened], why

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the library's answer for this GPU, or None."""
        return self._system(name, self._handle, *arguments)

    def _system(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, name)(*arguments)
        except (self._library.NVMLError, AttributeError):  # no such function: an old library
            return None

    def state(self, ours: Collection[int] = ()) -> GpuState:
        """Return the state now. `ours`: processes that, with all below them, are not listed."""
        ask = self.ask
        # Version 2 does not count what the driver keeps for itself as used.
        memory = ask("nvmlDeviceGetMemoryInfo", MEMORY_V2) or ask("nvmlDeviceGetMemoryInfo")
        rates = ask("nvmlDeviceGetUtilizationRates")
        fields = self._fields(COUNTERS)
        held = {name: fields[field] * 1e-9 for field, name in COUNTERS.items() if field in fields}
        return GpuState(
            at=time.monotonic(),
            sm_clock=ask("nvmlDeviceGetClockInfo", CLOCK_SM),
            temperature=ask("nvmlDeviceGetTemperature", 0),
            power=_scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit=_scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            reasons=self._reasons(),
            held=held or None,
            utilisation=_scaled(getattr(rates, "gpu", None), 1e-2),
            processes=self._others(ours),
            compute_mode=COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode")),
            persistence=_switch(ask("nvmlDeviceGetPersistenceMode")),
            mig=_switch(ask("nvmlDeviceGetMigMode")),
            memory_total=getattr(memory, "total", None),
            memory_used=getattr(memory, "used", None),
        )

    def facts(self) -> NvmlFacts:
        """Return the facts for the fingerprint."""
        ask = self.ask
        return NvmlFacts(
            driver=self._system("nvmlSystemGetDriverVersion"),
            vbios=ask("nvmlDeviceGetVbiosVersion"),
            power_limit=_scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            compute_mode=COMPUTE_MODES.get(ask("nvmlDeviceGetComputeMode")),
            mig=_switch(ask("nvmlDeviceGetMigMode")),
            ecc=_switch(ask("nvmlDeviceGetEccMode")),
            persistence=_switch(ask("nvmlDeviceGetPersistenceMode")),
            max_sm_clock=ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
        )

    def cuda(self) -> int | None:
        """Return the newest CUDA that the driver runs, such as 13000, or None."""
        return int(self._system("nvmlSystemGetCudaDriverVersion_v2") or 0) or None

    def _reasons(self) -> tuple[str, ...] | None:
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit)

    def _fields(self, wanted: Iterable[int]) -> dict[int, float]:
        values = self.ask("nvmlDeviceGetFieldValues", list(wanted)) or []
        return {
            value.fieldId: getattr(value.value, VALUE_TYPES[value.valueType])
            for value in values
            if value.nvmlReturn == 0 and value.valueType in VALUE_TYPES
        }

    def _others(self, ours: Collection[int]) -> tuple[GpuProcess, ...] | None:
        lists = [self.ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")]
        if all(one is None for one in lists):
            return None
        using = {process.pid: process.usedGpuMemory for one in lists for process in one or ()}
        mine = {pid for top in ours for pid in _tree(top)}
        return tuple(GpuProcess(pid, _name(pid), memory) for pid, memory in sorted(using.items()) if pid not in mine)


def _find(library: Any, which: str | int) -> Any:
    if isinstance(which, int):
        return library.nvmlDeviceGetHandleByIndex(which)
    if which.startswith("GPU-"):
        return library.nvmlDeviceGetHandleByUUID(which)
    if not which.startswith("MIG-"):
        try:
            return library.nvmlDeviceGetHandleByUUID(f"GPU-{which}")
        except library.NVMLError:
            which = f"MIG-{which}"
    instance = library.nvmlDeviceGetHandleByUUID(which)
    return library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _switch(value: Any) -> bool | None:
    if isinstance(value, list | tuple):
        value = value[0]
    return None if value is None else bool(value)


def _tree(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def _name(pid: int) -> str | None:
    if not _initial_pid_namespace():
        # In a container NVML may tell the pids of the host: the same number can be another process here.
        return None
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def _initial_pid_namespace() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return True


# ---------------------------------------------------------------- what to tell people


def cuda_version(number: int | None) -> str:
    """Return `13.0` for 13000; empty for None."""
    return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"


def describe(states: Sequence[GpuState]) -> list[str]:
    """Return notes from states around the rounds, `[before, after, before, after, …]`, the first before perfci's use of
    the GPU."""
    rounds = list(zip(states[::2], states[1::2], strict=False))
    notes = [note for note in (_power(rounds), _thermal(rounds), _braked(rounds)) if note]
    return [*notes, *_users(states)]


Round = tuple[GpuState, GpuState]


def _share(one: Round, *reasons: str) -> float | None:
    before, after = one
    if before.held is None or after.held is None or after.at <= before.at:
        return None
    times = [after.held[name] - before.held[name] for name in reasons if name in before.held and name in after.held]
    return min(1.0, max(times) / (after.at - before.at)) if times else None


def _when(rounds: Sequence[Round], *reasons: str) -> str:
    """Without times from the driver, the ends of a round have to serve."""
    affected, largest = 0, None
    for one in rounds:
        share = _share(one, *reasons)
        if share is not None and share >= WORTH_TELLING:
            affected += 1
            largest = max(share, largest or 0.0)
        elif share is None and any(name in (state.reasons or ()) for state in one for name in reasons):
            affected += 1
    most = "" if largest is None else f", up to {largest:.0%} of the time".replace("%", " %")
    return f"during {affected} of {len(rounds)} rounds{most}" if affected else ""


def _power(rounds: Sequence[Round]) -> str:
    when = _when(rounds, "sw_power_cap")
    if not when:
        return ""
    limit = _largest([state for one in rounds for state in one], lambda s: s.power_limit)
    watts = f" ({limit:.0f} W)" if limit is not None else ""
    return f"the GPU was at its power limit{watts} {when}: times follow the clock, see the time at equal clock"


def _thermal(rounds: Sequence[Round]) -> str:
    when = _when(rounds, "sw_thermal", "hw_thermal")
    if not when:
        return ""
    degrees = _largest([state for one in rounds for state in one], lambda s: s.temperature)
    hot = "" if degrees is None else f", up to {degrees:.0f} °C"
    return f"the GPU was slowed down for its temperature{hot}, {when}: cool it"


def _braked(rounds: Sequence[Round]) -> str:
    when = _when(rounds, "hw_power_brake", "hw_slowdown")
    # hw_slowdown is told along with hw_thermal too: then the temperature is the reason.
    if not when or _when(rounds, "hw_thermal"):
        return ""
    return f"the machine braked the GPU {when}: check its power supply"


def _users(states: Sequence[GpuState]) -> list[str]:
    """An unreadable process may be perfci's own, unless it was there before."""
    if not states:
        return []
    before = {process.pid for process in states[0].processes or ()}
    found: dict[int, GpuProcess] = {}
    for state in states:
        for process in state.processes or ():
            if process.name is not None or process.pid in before:
                known = found.get(process.pid)
                if known is None or (process.memory or 0) > (known.memory or 0):
                    found[process.pid] = process
    notes = [
        f"another process used the GPU: {pid} {process.name or '(not visible from here)'}{_memory(process.memory)}"
        for pid, process in sorted(found.items())
    ]
    used = states[0].memory_used
    if not notes and used is not None and used > UNSEEN:
        held = _memory(used).strip(" ()")
        notes.append(f"{held} of the GPU's memory were in use before perfci began, by a process that is not visible")
    return notes


def _memory(size: int | None) -> str:
    return "" if size is None else f" ({size / 1e9:.1f} GB)"


def _largest(states: Sequence[GpuState], of: Callable[[GpuState], float | None]) -> float | None:
    return max((value for state in states if (value := of(state)) is not None), default=None)
