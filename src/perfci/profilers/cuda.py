"""CUDA's names, as CUPTI spells them for nsys and Kineto."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

from perfci.model.profile import CallKind, CopyKind, Memory
from perfci.model.text import escaped

Work = Literal["launch", "copy", "set"]
Edge = tuple[Any, int, int | None, int, int, int]
"""Key, time, name, and the changes in the numbers of open extents, works and launches."""

_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_KINDS: tuple[tuple[CallKind, re.Pattern[str]], ...] = (
    ("synchronisation", re.compile(r"(cuda|cu)\w*Synchronize")),
    ("launch", re.compile(r"cudaLaunch(?!HostFunc)\w*|cuLaunch(?!HostFunc)\w*|cudaGraphLaunch|cuGraphLaunch")),
    (
        "allocation",
        re.compile(
            r"cuda(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemPool)\w*"
            r"|cuMem(Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Release|Map|Unmap|Address|Pool)\w*"
            r"|cu(Array|MipmappedArray)(3D)?(Create|Destroy)\w*"
        ),
    ),
    ("copy", re.compile(r"cuda(Memcpy|MemPrefetch)\w*|cuMem(cpy|Prefetch)\w*")),
)
CAPTURES = {
    "cudaStreamBeginCapture": 1, "cuStreamBeginCapture": 1, "cudaStreamBeginCaptureToGraph": 1,
    "cuStreamBeginCaptureToGraph": 1, "cudaStreamEndCapture": 0, "cuStreamEndCapture": 0,
}  # fmt: skip
"""Functions that begin (1) or end (0) the capture of a stream into a graph."""
_COPIES: dict[str, CopyKind] = {
    "HTOD": "host to device", "HTOA": "host to device", "UVM_HTOD": "host to device",
    "DTOH": "device to host", "ATOH": "device to host", "UVM_DTOH": "device to host",
    "DTOD": "device to device", "ATOA": "device to device", "ATOD": "device to device", "DTOA": "device to device",
    "UVM_DTOD": "device to device", "HTOH": "host to host", "PTOP": "peer to peer",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind without its prefix; an array is memory of the device."""
_MEMORIES: dict[str, Memory] = {
    "PAGEABLE": "pageable", "PINNED": "pinned", "DEVICE": "device", "DEVICE_STATIC": "device", "ARRAY": "array",
    "MANAGED": "managed", "MANAGED_STATIC": "managed",
}  # fmt: skip
"""CUpti_ActivityMemoryKind without its prefix."""


def plain_call(name: str) -> str:
    """Return a function's name without suffixes such as `_v3020`, `_v2`, `_ptsz`."""
    return _SUFFIX.sub("", name)


def call_kind(name: str) -> CallKind:
    """Return the kind of a function of CUDA's APIs, without suffix."""
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(name)), "other")


def work(function: str) -> Work | None:
    """Return the work that a successful call puts on the device."""
    if function.startswith(("cudaMemset", "cuMemset")):
        return "set"
    kind = call_kind(function)
    if kind == "copy":
        return None if "Prefetch" in function else "copy"
    return "launch" if kind == "launch" else None


def copy_kind(name: str) -> CopyKind:
    """Return the kind of CUPTI's `HTOD`, Kineto's `HtoD`."""
    return _COPIES.get(name.upper(), "other")


def memory(name: str) -> Memory:
    """Return the kind of CUPTI's `DEVICE_STATIC`, Kineto's `Device Static`."""
    return _MEMORIES.get(name.upper().replace(" ", "_"), "unknown")


def gpus(told: Iterable[tuple[object, object, object]]) -> tuple[str, tuple[int, int] | None]:
    """Return the names of a report's GPUs, each once, and the compute capability that all have.

    `told`: name, major and minor of each.
    """
    listed = list(told)
    names = dict.fromkeys(escaped(name)[:100] for name, _, _ in listed if isinstance(name, str))
    levels = {(major, minor) for _, major, minor in listed if isinstance(major, int) and isinstance(minor, int)}
    alike = len(levels) == 1 and all(0 <= one < 1000 for one in next(iter(levels)))
    return ", ".join(names), levels.pop() if alike else None


def sweep(edges: Iterable[Edge]) -> tuple[Counter[int], Counter[int]]:
    """Return by name the time of its extents in which something works; and that in which a call launches and nothing of
    the same key works.

    `edges`: by key and time; extents of a key do not overlap.
    """
    busy: Counter[int] = Counter()
    launching: Counter[int] = Counter()
    for _, own in groupby(edges, key=itemgetter(0)):
        inside: int | None = None
        calling: Counter[int] = Counter()
        works = last = 0
        for _, time, name, extent, work, launch in own:
            if works and inside is not None:
                busy[inside] += time - last
            elif not works and calling:
                launching[next(iter(calling))] += time - last
            works, last = works + work, time
            if extent:
                inside = name if extent > 0 else None
            if launch and name is not None:
                calling[name] += launch
                if not calling[name]:
                    del calling[name]
    return busy, launching
