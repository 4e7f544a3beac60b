"""The readable facts that make two results comparable."""

import math
from typing import Any, Literal

from pydantic import Field

from perfci.model.base import DeviceKind, Document, Items, Side

ComputeMode = Literal["default", "exclusive", "prohibited"]


class NvmlFacts(Document):
    """A GPU's lasting set-up, as NVML tells it. None: not told."""

    driver: str | None = None
    vbios: str | None = None
    power_limit: float | None = None
    """Watts."""
    compute_mode: ComputeMode | None = None
    """`exclusive`: the GPU serves one process at a time."""
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    max_sm_clock: int | None = None
    """MHz."""


class GpuFacts(Document):
    """The GPU as the worker sees it through torch."""

    multiprocessors: int = Field(ge=1)
    capability: str = Field(pattern=r"^[0-9]+\.[0-9]+$")
    """Compute capability, such as `9.0`."""
    l2_bytes: int = Field(ge=0)
    memory_bytes: int = Field(ge=1)
    empty_pair_seconds: float
    """Median between two events with nothing between them, which every sample contains."""
    nvml: NvmlFacts | None = None
    """None where NVML does not answer."""

    @property
    def chip(self) -> tuple[int, int]:
        """The compute capability."""
        major, minor = self.capability.split(".")
        return int(major), int(minor)

    @property
    def exclusive(self) -> bool:
        """The GPU serves one process at a time."""
        return self.nvml is not None and self.nvml.compute_mode == "exclusive"


class Rate(Document):
    """The most of one kind of work that a device did per second."""

    value: float | None
    """Bytes or floating-point operations; None where not measured."""
    how: str = ""
    """The way in which it was measured."""
    reason: str = ""
    """Why there is no value."""

    @property
    def usable(self) -> float | None:
        """The value, if finite and positive."""
        return self.value if self.value is not None and 0 < self.value < math.inf else None


class Ceilings(Document):
    """The most that this very device does (`worker/ceilings.py`)."""

    device: str
    read: Rate
    """Bytes read from the device's memory."""
    copied: Rate
    """Read and written within the device's memory."""
    matmul: dict[str, Rate]
    """Type → operations of a matrix multiplication."""
    to_device: Rate | None
    """Bytes from pinned memory of the host; None on the CPU."""
    to_host: Rate | None
    seconds: float


class Fingerprint(Document):
    """Facts of machine, device, driver and tools, as the workers saw them."""

    perfci: str = ""
    host: str = ""
    """Operating system and kernel."""
    cpu: str = ""
    cores: int = 0
    """CPU cores that this process may use."""
    memory: int = 0
    """Host memory in bytes."""
    python: str = ""
    """Version of the interpreter of the code under test."""
    torch: str | None = None
    cuda: str | None = None
    """CUDA version that torch was built with."""
    driver: str | None = None
    devices: dict[str, str] = Field(default_factory=dict)
    """Kind → name: `{"cpu": "AMD EPYC 9654", "cuda": "NVIDIA H200"}`."""
    uuid: str | None = None
    gpu: GpuFacts | None = None
    """None without a GPU that torch can use."""
    ceilings: dict[DeviceKind, Ceilings] = Field(default_factory=dict)
    """Of each device that kernels are measured on."""
    imported: dict[str, str] = Field(default_factory=dict)
    """Further facts in the files of another tool."""

    def lasting(self) -> dict[str, Any]:
        """Return what is the same at every reading of one machine."""
        gpu = {"nvml", "empty_pair_seconds"}
        found = self.model_dump(mode="json", exclude={"memory": True, "ceilings": True, "gpu": gpu})
        return {f"the machine's {name}": fact for name, fact in found.items()}


class Interpreter(Document):
    """The interpreter of one side."""

    path: str = Field(max_length=1000)
    python: str = Field(max_length=100)
    """Its version."""
    torch: str | None = Field(None, max_length=100)
    cuda: str | None = Field(None, max_length=100)
    """CUDA version that torch was built with."""


class Package(Document):
    """A package of different versions; None: not there."""

    name: str = Field(max_length=100)
    base: str | None = Field(None, max_length=100)
    head: str | None = Field(None, max_length=100)


class Variable(Document):
    """None: not set."""

    name: str = Field(max_length=200)
    base: str | None = Field(None, max_length=200)
    head: str | None = Field(None, max_length=200)
    hidden: bool = False
    """The values may be secrets, and are left out."""


class Environments(Document):
    """Differences between base's and head's: workers are then processes of their own, no forks."""

    asked: bool = False
    """By the command line, not by the policies."""
    interpreters: dict[Side, Interpreter]
    packages: Items[Package] = Field(default_factory=list)
    variables: Items[Variable] = Field(default_factory=list)
    settings: Items[Variable] = Field(default_factory=list)
    """Of libraries, of a report: `tf32`, `cudnn_benchmark`."""
