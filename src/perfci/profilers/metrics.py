"""From what profilers saw to metrics of one execution."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from perfci.model.metrics import RANGE, TOLD_OF_RANGES, combined, counter, known_metric
from perfci.model.profile import (
    OF_KERNELS,
    CopyKind,
    Counters,
    Fault,
    KernelUse,
    Part,
    Profile,
    Trace,
    bears_on,
    concerns,
)  # fmt: skip
from perfci.model.text import listed
from perfci.profilers.faults import fault
from perfci.profilers.occupancy import WARP, occupancy, resident

UPLOAD: CopyKind = "host to device"
DOWNLOAD: CopyKind = "device to host"


def of_trace(trace: Trace, capability: tuple[int, int] | None = None) -> dict[str, float]:
    """Return metrics of the trace and static tiers, in the catalogue's units; without `capability` no occupancy."""
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
    if trace.memory is not None:
        found["peak_memory"] = trace.memory.peak
    if trace.wall > 0:
        found["device_busy"] = 100 * trace.busy / trace.wall
        if trace.launching is not None:
            found["launch_overhead"] = 100 * trace.launching / trace.wall
    for name, kind in (("copy_bandwidth_h2d", UPLOAD), ("copy_bandwidth_d2h", DOWNLOAD)):
        copies = [copy for copy in trace.copies if copy.kind == kind]
        seconds = math.fsum(copy.seconds for copy in copies)
        if seconds > 0:
            found[name] = math.fsum(copy.bytes for copy in copies) / seconds
    kernels = trace.kernels
    for name, of in OF_KERNELS.items():
        values = [of(kernel) for kernel in kernels]
        if values and None not in values:
            found[name] = float(max(value for value in values if value is not None))
    held = [_held(kernel, capability) for kernel in kernels]
    if found["device_time"] > 0 and None not in held:
        for at, name in enumerate(("blocks_per_sm", "warps_per_sm", "threads_per_sm", "occupancy_theoretical")):
            parts = (value[at] * k.seconds for value, k in zip(held, kernels, strict=True) if value is not None)
            found[name] = math.fsum(parts) / found["device_time"]
    ranges = {f"range:{one.name}": one.device for one in trace.ranges}
    return found | {name: seconds for name, seconds in ranges.items() if RANGE.fullmatch(name)}


def take(
    profile: Profile, seen: Trace | Counters, faults: Iterable[Fault], capability: tuple[int, int] | None, gpu: bool
) -> None:
    """Put what a tool saw into `profile`, in the place of an earlier trace or counters, with its faults and the metrics
    that no fault could have changed; without `gpu` none."""
    profile.faults += faults
    part: Part = "trace" if isinstance(seen, Trace) else "counters"
    if (before := getattr(profile, part)) is not None:
        for stale in of_part(before, capability):
            profile.metrics.pop(stale, None)
    setattr(profile, part, seen)
    if part == "counters" and profile.reports is None and (short := uncounted(profile)):
        profile.faults.append(short)
    if isinstance(seen, Counters):
        profile.faults += _apart(seen)
    found = of_part(seen, capability)
    if gpu and (profile.reports or 1) == 1:
        profile.metrics |= {name: value for name, value in found.items() if _stands(profile, part, name)}


def of_part(seen: Trace | Counters, capability: tuple[int, int] | None) -> dict[str, float]:
    """Return the metrics that a trace or counters tell."""
    return of_trace(seen, capability) if isinstance(seen, Trace) else of_counters(seen)


def _stands(profile: Profile, part: Part, name: str) -> bool:
    looped = profile.trace is not None and profile.trace.within != ""
    if profile.reports is not None and name in TOLD_OF_RANGES and not looped:
        return False
    return not any(bears_on(one, profile, part) and concerns(one, name) for one in profile.faults)


def uncounted(profile: Profile) -> Fault | None:
    """Return a fault where fewer launches were counted than a whole trace has: by grid and block, as the tools spell
    names differently."""
    trace, counters = profile.trace, profile.counters
    if trace is None or counters is None:
        return None
    if any(bears_on(one, profile, "trace") and concerns(one, "kernel_launches") for one in profile.faults):
        return None
    seen: Counter[tuple[object, ...]] = Counter()
    for use in trace.kernels:
        seen[use.grid, use.block] += math.floor(use.count + 1e-9)
    counted: Counter[tuple[object, ...]] = Counter()
    for kernel in counters.kernels:
        counted[kernel.grid, kernel.block] += kernel.count
    missing = seen - counted
    if not missing:
        return None
    lost, all_ = missing.total(), seen.total()
    text = (
        f"{lost} of {all_} kernel launches that {trace.source} saw are not among those that {counters.source} counted"
    )
    return fault(
        counters.source, "counters", "incomplete", text, f"profile again, and see what {counters.source} prints"
    )


def _apart(counters: Counters) -> Iterator[Fault]:
    for name in dict.fromkeys(name for kernel in counters.kernels for name in kernel.values):
        told = [kernel.values[name] for kernel in counters.kernels if name in kernel.values]
        if counter(name).aggregate == "same" and len(set(told)) > 1:
            some = listed([f"{value:g}" for value in sorted(set(told))], 3)
            text = f"{name} differs from kernel to kernel ({some}), and nothing says how such values make one"
            remedy = "judge a case of one kernel, or a metric with a rollup such as .sum"
            yield fault(counters.source, "counters", "incomplete", text, remedy, [name])


def _held(kernel: KernelUse, capability: tuple[int, int] | None) -> tuple[float, float, float, float] | None:
    """Blocks, warps, threads that an SM holds, percent of its warps."""
    told = OF_KERNELS["shared_memory"](kernel)
    shared = kernel.shared if told is None else told
    if capability is None or kernel.registers is None or shared is None:
        return None
    threads = math.prod(kernel.block)
    blocks = resident(capability, threads, kernel.registers, int(shared))
    percent = occupancy(capability, threads, kernel.registers, int(shared))
    if blocks is None or percent is None:
        return None
    return blocks, blocks * -(-threads // WARP), blocks * threads, percent


def of_counters(counters: Counters) -> dict[str, float]:
    """Return metrics of counters and static tiers, without those that a kernel lacks."""
    kernels = counters.kernels
    named = {name for kernel in kernels for name in kernel.values if known_metric(name) is not None}
    values = {name: combined(name, [(one.values.get(name), one.seconds) for one in kernels]) for name in named}
    found = {name: value for name, value in values.items() if value is not None}
    seconds = math.fsum(kernel.seconds for kernel in kernels)
    if "dram_bandwidth" not in found and "dram_bytes" in found and seconds > 0:
        found["dram_bandwidth"] = found["dram_bytes"] / seconds  # the mean of what each had, by their times
    return found
