"""From what profilers saw to the metrics of the catalogue, of one execution of a case."""

import math
from collections.abc import Iterable

from perfci.evidence.occupancy import occupancy
from perfci.model.evidence import CopyKind, Counters, KernelCounters, KernelUse, Trace
from perfci.model.metrics import CATALOGUE

SUMMED = frozenset({"dram_bytes", "dram_read", "dram_written", "instructions", "spills", "bank_conflicts"})
"""Counters that add up over kernels."""
LARGEST = frozenset({"registers", "shared_memory", "local_memory"})
"""Those of the kernel that needs most. Of all others the mean over kernels counts, weighted by their time."""
UPLOAD: CopyKind = "host to device"
DOWNLOAD: CopyKind = "device to host"


def of_trace(trace: Trace, capability: tuple[int, int] | None = None) -> dict[str, float]:
    """Metrics of the trace and static tiers, in the catalogue's units. What the trace cannot tell is left out.

    `device_busy` is busy / wall, `launch_overhead` (span - busy) / span, both in percent. `capability`: of the GPU, for
    the occupancy that the launch configurations allow; None leaves it out.
    """
    found = {
        "kernel_launches": math.fsum(kernel.count for kernel in trace.kernels),
        "device_time": math.fsum(kernel.seconds for kernel in trace.kernels),
        "copy_bytes": math.fsum(copy.bytes for copy in trace.copies),
        "copy_time": math.fsum(copy.seconds for copy in trace.copies),
    }
    if trace.calls:
        allocating = [call for call in trace.calls if call.kind == "allocation"]
        found["alloc_time"] = math.fsum(call.seconds for call in allocating)
        found["alloc_count"] = math.fsum(call.count for call in allocating)
        found["sync_count"] = math.fsum(call.count for call in trace.calls if call.kind == "synchronisation")
    if trace.wall > 0:
        found["device_busy"] = 100 * trace.busy / trace.wall
    if trace.span > 0:
        found["launch_overhead"] = 100 * (trace.span - trace.busy) / trace.span
    for name, kind in (("copy_bandwidth_h2d", UPLOAD), ("copy_bandwidth_d2h", DOWNLOAD)):
        copies = [copy for copy in trace.copies if copy.kind == kind]
        seconds = math.fsum(copy.seconds for copy in copies)
        if seconds > 0:
            found[name] = math.fsum(copy.bytes for copy in copies) / seconds
    kernels = trace.kernels
    shared = (
        None if k.static_shared is None or k.dynamic_shared is None else k.static_shared + k.dynamic_shared
        for k in kernels
    )
    _most(found, "registers", (kernel.registers for kernel in kernels))
    _most(found, "local_memory", (kernel.local for kernel in kernels))
    _most(found, "shared_memory", shared)
    allowed = [_occupancy(kernel, capability) for kernel in kernels]
    if found["device_time"] > 0 and None not in allowed:
        parts = (value * k.seconds for value, k in zip(allowed, kernels, strict=True) if value is not None)
        found["occupancy_theoretical"] = math.fsum(parts) / found["device_time"]
    return found | {f"range:{one.name}": one.device for one in trace.ranges}


def _occupancy(kernel: KernelUse, capability: tuple[int, int] | None) -> float | None:
    """Percent of an SM's warps that a kernel's launch configuration allows; None where that is not known."""
    if kernel.static_shared is not None and kernel.dynamic_shared is not None:
        shared: float | None = kernel.static_shared + kernel.dynamic_shared
    else:
        shared = kernel.shared
    if capability is None or kernel.registers is None or shared is None:
        return None
    found = occupancy(capability, math.prod(kernel.block), kernel.registers, int(shared))
    return found.percent if found else None


def _most(found: dict[str, float], name: str, values: Iterable[float | None]) -> None:
    """The largest value, where every kernel has one."""
    known = list(values)
    if known and None not in known:
        found[name] = float(max(value for value in known if value is not None))


def of_counters(counters: Counters) -> dict[str, float]:
    """Metrics of the counters tier, and those of the static tier that ncu knows. Only what every kernel has: a
    quantity that one kernel lacks is not the case's."""
    kernels = counters.kernels
    if not kernels:
        return {}
    found = {}
    for name in set.intersection(*(set(kernel.values) for kernel in kernels)) & set(CATALOGUE):
        if name in SUMMED:
            found[name] = math.fsum(kernel.values[name] for kernel in kernels)
        elif name in LARGEST:
            found[name] = max(kernel.values[name] for kernel in kernels)
        else:
            found[name] = _weighted(kernels, name)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _weighted(kernels: list[KernelCounters], name: str) -> float:
    """Mean over kernels, weighted by their time under ncu; NaN where that is none."""
    weight = math.fsum(kernel.seconds for kernel in kernels)
    if not weight > 0:
        return math.nan
    return math.fsum(kernel.values[name] * kernel.seconds for kernel in kernels) / weight
