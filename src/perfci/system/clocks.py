"""`PERFCI_LOCK_CLOCKS`: a guardian process holds the SM clock of a GPU, and releases it when a socket of perfci's
closes, even after SIGKILL."""

import importlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from perfci.model.base import MachineError, UsageError
from perfci.model.text import escaped
from perfci.worker.channel import Channel, Garbage

Frequency = int | Literal["base", "max"]
"""MHz; `base` is what the board holds under any load, `max` the highest."""
NVML = "perfci.system.clocks:Nvml"
CLOCK_LIMIT_TDP = 0xFFFFFF01  # NVML_CLOCK_LIMIT_ID_TDP of nvml.h
CLOCK_SM = 1
START = 30.0
"""Seconds to lock: without persistence mode the driver starts up first."""
END = 15.0
"""Seconds to release."""
NOT_LOCKED, STILL_LOCKED = 1, 2
"""Exit codes; 1 is also Python's own."""


class Locked(Exception):
    """Why a clock could not be locked or released; for people."""


class Nvml:
    """The driver; needs root."""

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module("pynvml")
        except ModuleNotFoundError:
            raise Locked("nvidia-ml-py is not installed: install it, or leave PERFCI_LOCK_CLOCKS out") from None
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            raise Locked(f"NVML says {error}: leave PERFCI_LOCK_CLOCKS out") from None

    def _handle(self, uuid: str) -> Any:
        return self._library.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def lock(self, uuid: str, mhz: Frequency) -> int | None:
        """Hold the SM clock, and return its MHz; None for `base`. Raises Locked."""
        nvml = self._library
        try:
            handle = self._handle(uuid)
            if mhz == "base":
                nvml.nvmlDeviceSetGpuLockedClocks(handle, CLOCK_LIMIT_TDP, CLOCK_LIMIT_TDP)
                return None
            found = int(nvml.nvmlDeviceGetMaxClockInfo(handle, CLOCK_SM)) if mhz == "max" else mhz
            nvml.nvmlDeviceSetGpuLockedClocks(handle, found, found)
        except nvml.NVMLError as error:
            raise Locked(self._why(error)) from None
        return found

    def reset(self, uuid: str) -> None:
        """Release the SM clock. Raises Locked."""
        try:
            self._library.nvmlDeviceResetGpuLockedClocks(self._handle(uuid))
        except self._library.NVMLError as error:
            raise Locked(self._why(error)) from None

    def _why(self, error: Any) -> str:
        nvml = self._library
        known = {
            nvml.NVML_ERROR_NO_PERMISSION: "this needs root (in a container SYS_ADMIN too): run perfci under sudo",
            nvml.NVML_ERROR_NOT_SUPPORTED: "this GPU's clock cannot be locked",
            nvml.NVML_ERROR_INVALID_ARGUMENT: "this GPU knows no such frequency: see nvidia-smi -q -d SUPPORTED_CLOCKS",
        }
        return f"{known.get(error.value, f'NVML says {error}')}, or leave PERFCI_LOCK_CLOCKS out"


@dataclass(frozen=True)
class Lock:
    """A clock that is held."""

    gpu: str
    frequency: Frequency
    mhz: int | None
    """None where only the driver knows it."""
    guardian: "subprocess.Popen[bytes]"

    def words(self) -> str:
        """Return `locked at 1980 MHz` or `locked at base`."""
        return f"locked at {self.frequency}" if self.mhz is None else f"locked at {self.mhz} MHz"

    def require(self) -> None:
        """Raise MachineError where the guardian, and with it the lock, has ended."""
        if self.guardian.poll() is not None:
            raise MachineError(
                f"PERFCI_LOCK_CLOCKS: the process that held the clock of GPU {self.gpu} was ended from outside: "
                "what was measured since ran at other clocks; run again"
            )


def parse(text: str) -> Frequency:
    """Return `base`, `max` or MHz. Raises UsageError."""
    match text:
        case "base" | "max":
            return text
    found = re.fullmatch(r"([1-9][0-9]{2,4})\s*(MHz)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"PERFCI_LOCK_CLOCKS {escaped(text)}: write base, max or a frequency such as 1500MHz")
    return int(found[1])


@contextmanager
def locked(gpu: str, mhz: Frequency, driver: str = NVML) -> Iterator[Lock]:
    """Hold the SM clock of the GPU with this UUID within the block. Raises MachineError.

    An earlier lock is lost: NVML does not tell it. A guardian killed along with perfci leaves the lock until
    `nvidia-smi --reset-gpu-clocks`. `driver`: `module:Class`.
    """
    # -P: as root, import nothing from the folder that perfci happens to run in.
    command = [sys.executable, "-P", "-m", "perfci.system.clocks", gpu, str(mhz), driver]
    ours, its = socket.socketpair()
    guardian = subprocess.Popen(command, stdin=its.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                start_new_session=True)  # fmt: skip
    its.close()
    try:
        yield Lock(gpu, mhz, _first_word(Channel(ours), gpu), guardian)
    finally:
        ours.close()
        _end(guardian, gpu, mhz, driver)


def _first_word(channel: Channel, gpu: str) -> int | None:
    why = "ended"
    try:
        said = channel.receive(START)
    except (TimeoutError, Garbage):
        said, why = None, "did not answer"
    if said is None:
        said = {"error": f"the process that should lock it {why}: leave PERFCI_LOCK_CLOCKS out"}
    if "error" in said:
        raise MachineError(f"PERFCI_LOCK_CLOCKS: cannot lock the clock of GPU {escaped(gpu)}: {escaped(said['error'])}")
    mhz: int | None = said["locked"]
    return mhz


def _end(guardian: "subprocess.Popen[bytes]", gpu: str, mhz: Frequency, driver: str) -> None:
    try:
        code = guardian.wait(END)
    except subprocess.TimeoutExpired:
        guardian.kill()
        code = guardian.wait()
    if code not in (0, NOT_LOCKED):  # killed, from outside or just now; or the driver refused
        try:
            _make(driver).reset(gpu)
        except Locked as why:
            raise MachineError(
                f"PERFCI_LOCK_CLOCKS: the clock of GPU {escaped(gpu)} is still locked at {mhz} ({escaped(why)}): "
                "run nvidia-smi --reset-gpu-clocks as root"
            ) from None


def _make(driver: str) -> Any:
    module, _, name = driver.partition(":")
    return getattr(importlib.import_module(module), name)()


def main(gpu: str, mhz: str, driver: str) -> int:
    """Run the guardian: lock, wait for its owner's end or SIGTERM, release; return the exit code."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    owner, locks = Channel(socket.socket(fileno=0)), None
    try:
        locks = _make(driver)
        held = locks.lock(gpu, parse(mhz))
    except Locked as why:
        owner.send({"error": str(why)})
        return NOT_LOCKED
    except BaseException:  # SIGTERM, just then
        if locks is not None:
            locks.reset(gpu)
        raise
    code = 0
    try:
        with suppress(BrokenPipeError):  # the owner is gone already: release it at once
            owner.send({"locked": held})
            owner.receive()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            locks.reset(gpu)
        except Locked:
            code = STILL_LOCKED
    return code


def _leave(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    # By its name: as __main__ its classes would be there twice.
    sys.exit(importlib.import_module("perfci.system.clocks").main(*sys.argv[1:]))
