"""The readable facts that make two results comparable."""

from typing import Any

from pydantic import Field

from perfci.model.base import Document


class Fingerprint(Document):
    """Facts of machine, device, driver and tools, as the workers saw them."""

    perfci: str = ""
    """Version of perfci."""
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
    """Device kind → its name: `{"cpu": "AMD EPYC 9654", "cuda": "NVIDIA H200"}`."""
    uuid: str | None = None
    """UUID of the GPU."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further facts of the device: multiprocessors, L2 size, compute capability."""
