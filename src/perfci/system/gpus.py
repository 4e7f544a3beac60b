"""The GPUs of one host that `--gpus` names, and the cores for each: else a run takes the first that torch shows."""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfci.model.base import MachineError, UsageError
from perfci.model.text import count, escaped
from perfci.system.facts import cores_here, cpu_quota
from perfci.system.gpu import Gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
"""By default the CUDA driver numbers the fastest first."""
LEAST_CORES = 2
"""The workers of base and head live side by side."""
_SHARED_IN_TIME = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU of nvml.h: this is a guest's part of a GPU


@dataclass(frozen=True)
class HostGpu:
    """A GPU and the cores of the process that measures on it."""

    number: int
    """As nvidia-smi counts."""
    uuid: str
    """With `GPU-` in front."""
    cores: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return `GPU 2`."""
        return f"GPU {self.number}"


def host_gpus(
    text: str, env: Mapping[str, str] = os.environ, library: Any = None, root: Path = Path("/")
) -> list[HostGpu]:
    """Return the GPUs of `--gpus`: `all` that CUDA_VISIBLE_DEVICES of `env` leaves, or numbers such as `0,2`.

    Raises UsageError for a part of a GPU, different models, and too few cores; MachineError for no GPU.
    """
    wanted = _numbers(text)
    answers, why = Gpu.every(library)
    if why:
        raise MachineError(f"--gpus {escaped(text)}: there is no GPU here ({why}): measure where there is one")
    gpus = [gpu for gpu in answers if gpu is not None]
    models = [str(gpu.ask("nvmlDeviceGetName") or "unknown") for gpu in gpus]
    seen = _visible(env, gpus, models)
    chosen = seen if wanted is None else wanted
    if not chosen:
        raise MachineError(f"--gpus {escaped(text)}: {VISIBLE} hides all GPUs: unset it, or let it name some")
    for number in chosen:
        if number >= len(gpus):
            raise UsageError(f"--gpus {escaped(text)}: there is no GPU {number}: see `nvidia-smi -L`")
        if number not in seen:
            raise UsageError(f"--gpus {escaped(text)}: {VISIBLE} hides GPU {number}: name others, or --gpus all")
        _require_whole(number, gpus[number])
    other = next((number for number in chosen if models[number] != models[chosen[0]]), None)
    if other is not None:
        told = f"{escaped(models[chosen[0]])} (GPU {chosen[0]}) and {escaped(models[other])} (GPU {other})"
        raise UsageError(f"--gpus {escaped(text)}: {told} are different models: compare on each model by itself")
    if len(chosen) == 1:
        return [HostGpu(chosen[0], gpus[chosen[0]].uuid)]
    cores = share_cores(
        [_beside(gpus[number], root) for number in chosen], cores_here(), lambda core: _twins(core, root)
    )
    quota = cpu_quota(root)
    fewest = min([*map(len, cores), *([] if quota is None else [quota / len(chosen)])])
    if fewest < LEAST_CORES:
        few = f"{count(len(chosen), 'GPU')} and {count(len(cores_here()), 'core')}"
        limited = "" if quota is None else f", of which a quota leaves {quota:g}"
        raise UsageError(
            f"--gpus {escaped(text)}: {few}{limited}: each GPU needs {LEAST_CORES} of its own: name fewer GPUs"
        )
    return [HostGpu(number, gpus[number].uuid, tuple(own)) for number, own in zip(chosen, cores, strict=True)]


def _numbers(text: str) -> list[int] | None:
    if text == "all":
        return None
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text):
        raise UsageError(f"--gpus {escaped(text)}: write all, or numbers as `nvidia-smi -L` gives them, such as 0,2")
    numbers = [int(one) for one in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--gpus {escaped(text)}: a GPU is named twice: name each once")
    return sorted(numbers)


def _visible(env: Mapping[str, str], gpus: Sequence[Gpu], models: Sequence[str]) -> list[int]:
    text = env.get(VISIBLE)
    if text is None:
        return list(range(len(gpus)))
    found = []
    for entry in (one.strip() for one in text.split(",")):
        if entry.startswith("MIG-"):
            raise UsageError(f"{VISIBLE} names a part of a GPU ({escaped(entry)[:60]}): --gpus takes whole GPUs")
        if re.fullmatch(r"[0-9]{1,4}", entry):
            if len(set(models)) > 1 and env.get(ORDER) != "PCI_BUS_ID":
                raise UsageError(
                    f"{VISIBLE}={escaped(text)[:80]}: CUDA numbers different models by their speed: name UUIDs there, "
                    f"or set {ORDER}=PCI_BUS_ID"
                )
            named = [int(entry)] if int(entry) < len(gpus) else []
        else:
            named = [number for number, gpu in enumerate(gpus) if entry and gpu.uuid.startswith(entry)]
        if len(named) != 1:
            break  # as the driver does: what stands behind a name that is none is hidden
        found += named
    return sorted(set(found))


def _require_whole(number: int, gpu: Gpu) -> None:
    if gpu.state().mig:
        raise UsageError(f"--gpus: GPU {number} is divided by MIG: parts of a GPU disturb each other: turn MIG off")
    if gpu.ask("nvmlDeviceGetVirtualizationMode") == _SHARED_IN_TIME:
        raise UsageError(f"--gpus: GPU {number} is a part of one that virtual machines share: use whole GPUs")


def _beside(gpu: Gpu, root: Path) -> frozenset[int]:
    address = getattr(gpu.ask("nvmlDeviceGetPciInfo"), "busId", "")
    address = address.decode(errors="replace") if isinstance(address, bytes) else str(address)
    # NVML writes eight digits of the domain, sysfs four.
    if not re.fullmatch(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]", address):
        return frozenset()
    return _read_cores(root / "sys/bus/pci/devices" / address[4:].lower() / "local_cpulist")


def _twins(core: int, root: Path) -> frozenset[int]:
    folder = root / "sys/devices/system/cpu" / f"cpu{core}" / "topology"
    return _read_cores(folder / "thread_siblings_list") | {core}


def _read_cores(path: Path) -> frozenset[int]:
    try:
        return parse_cores(path.read_text())
    except (OSError, ValueError):
        return frozenset()


def parse_cores(text: str) -> frozenset[int]:
    """Return the cores of a list such as `0-3,8` (cpuset(7), formats). Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if match is None:
            raise ValueError(f"{part!r} is no range of cores")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def share_cores(
    beside: Sequence[Collection[int]], usable: Collection[int], twins: Callable[[int], Collection[int]]
) -> list[list[int]]:
    """Return the cores of each GPU's process: an even share of the `usable` ones `beside` it, no core twice.

    Where the cores of a GPU's node are unknown, or nodes overlap in part, all share all. `twins`: logical cores of a
    physical core, which stay together. A share may be empty.
    """
    # With their twins: no node ends within a physical core.
    near = [frozenset(twin for core in one for twin in (core, *twins(core))) & frozenset(usable) for one in beside]
    apart = all(a == b or not a & b for a in near for b in near)
    if not apart or not all(near):
        near = [frozenset(usable)] * len(near)
    shares: list[list[int]] = [[] for _ in near]
    for node in set(near):
        sharing = [at for at, one in enumerate(near) if one == node]
        physical = sorted({tuple(sorted(node & frozenset(twins(core)))) for core in node})
        for place, at in enumerate(sharing):
            begin, end = (len(physical) * edge // len(sharing) for edge in (place, place + 1))
            shares[at] = sorted({core for one in physical[begin:end] for core in one})
    return shares
