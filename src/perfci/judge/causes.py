"""What differs between two evidence records of a case: findings with the time they account for.

Quantities are of one execution. Only what both sides tell is compared; what one side lacks is never taken as zero.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from perfci.judge.kernels import WIDTH
from perfci.judge.seen import (
    BANDWIDTH,
    BYTES,
    CONFLICTS,
    DETAILS,
    HIT_POINTS,
    IDLE,
    IDLE_POINTS,
    INSTRUCTIONS,
    LEAST_BYTES,
    LEAST_CONFLICTS,
    LEAST_STALL,
    LOST,
    MINOR,
    ONCE,
    POINTS,
    STALL,
    TENSOR,
    TIME,
    UP,
    Copied,
    Finding,
    Group,
    Seen,
    arrow,
    call_name,
    calls_of,
    copied,
    counted,
    finite,
    gain,
    idle,
    listed,
    moved,
    n_to,
    number,
    pair,
    percent_of,
    times,
    value,
)
from perfci.model.evidence import CopyKind, KernelCounters, KernelUse
from perfci.model.metrics import CATALOGUE, STALLS

_STALLED = {
    "barrier": "at barriers",
    "long_scoreboard": "on global or local memory",
    "short_scoreboard": "on shared memory",
    "math_pipe_throttle": "on a full math pipe",
    "mio_throttle": "on a full shared-memory queue",
    "lg_throttle": "on a full global-memory queue",
    "wait": "on fixed latencies",
    "not_selected": "behind other ready warps",
}


# ---------------------------------------------------------------- kernels that came, went, or run more often


def kernels(base: Seen, head: Seen) -> list[Finding]:
    """Which kernels appeared, vanished or changed count, by what it means."""
    if base.groups is None or head.groups is None:
        return []
    before, after = base.groups, head.groups
    gone = {key: before[key] for key in before if key not in after}
    new = {key: after[key] for key in after if key not in before}
    more = {key for key in before if key in after and abs(after[key].count - before[key].count) >= ONCE}
    attention = _attention(base, head, gone, new)
    found = [*attention, *_casts(base, head, bool(attention)), *_libraries(base, head, gone, new)]
    rest_gone = [group for group in gone.values() if group.kernel.family != "cast"]
    rest_new = [group for group in new.values() if group.kernel.family != "cast"]
    if attention:
        rest_gone, rest_new = [], []  # leaving a fused kernel is what brought the others
    elif _of(rest_gone, "from_library") and _of(rest_new, "from_library"):
        rest_gone = [group for group in rest_gone if not group.kernel.from_library]
        rest_new = [group for group in rest_new if not group.kernel.from_library]
    if rest_gone or rest_new:
        found.append(_exchanged(base, head, rest_gone, rest_new))
    often = [key for key in more if before[key].kernel.family != "cast"]
    if often:
        found.append(_oftener(before, after, often, base, head))
    return found


def _of(groups: Iterable[Group], what: str) -> bool:
    return any(getattr(group.kernel, what) for group in groups)


def _traffic(base: Seen, head: Seen) -> str:
    """`, 59.7 MB → 2.64 GB of DRAM traffic (44×)` where it was counted in both arms and moved, else nothing."""
    before, after = value(base.counted, "dram_bytes"), value(head.counted, "dram_bytes")
    if before is None or after is None or not moved(before, after, BYTES, LEAST_BYTES):
        return ""
    return f", {arrow(before, after, 'B')} of DRAM traffic{times(before, after)}"


def _launches(base: Seen, head: Seen) -> str:
    return f"{counted(base.launches, 'kernel')} → {number(head.launches)}"


def _attention(base: Seen, head: Seen, gone: Mapping[str, Group], new: Mapping[str, Group]) -> list[Finding]:
    """A fused attention left, taken or exchanged for another."""
    before, after = ({group.kernel.attention for group in (seen.groups or {}).values()} - {""} for seen in (base, head))
    left, taken = sorted(before - after), sorted(after - before)
    if not left and not taken:
        return []
    what = (
        f"moved from {' and '.join(left)} to {' and '.join(taken)}"
        if left and taken
        else f"left {' and '.join(left)}"
        if left
        else f"now through {' and '.join(taken)}"
    )
    seconds = sum(group.seconds for group in new.values()) - sum(group.seconds for group in gone.values())
    step = ""
    if left and not taken:
        step = (
            f"find out what {left[0]} refuses (mask, type, head size, stride): in PyTorch "
            "torch.nn.attention.sdpa_kernel with that backend alone says why"
        )
    return [Finding(0, f"{what}: {_launches(base, head)}{_traffic(base, head)}", seconds, step)]


def _casts(base: Seen, head: Seen, short: bool) -> list[Finding]:
    """More or fewer conversions between floating-point types; `short` where launches and traffic are told already."""
    before, after = (
        [group for group in (seen.groups or {}).values() if group.kernel.family == "cast"] for seen in (base, head)
    )
    n, m = sum(group.count for group in before), sum(group.count for group in after)
    if abs(m - n) < ONCE:
        return []
    types = {name for group in (after if m > n else before) for name in group.kernel.cast or () if name}
    wide = max(types, key=lambda name: (WIDTH[name], name), default="")
    through = f" through {wide}" if wide and len(types) > 1 else f" to {wide}" if wide else ""
    seconds = sum(group.seconds for group in after) - sum(group.seconds for group in before)
    differ = abs(head.launches - base.launches) >= ONCE
    launches = f", {arrow(base.launches, head.launches)} launches" if differ else ""
    word = "casts" if m > n else "fewer casts"
    narrow = " or ".join(sorted(name for name in types if WIDTH[name] < 4)) or "one type"
    step = ""
    if m > n:
        save = gain(head.device, max(seconds, 0.0))
        step = f"stay in {narrow}: the added casts take {percent_of(seconds, head.device)} of the device time{save}"
        step = step if seconds > 0 else f"stay in {narrow}"
    more = "" if short else f"{launches}{_traffic(base, head)}"
    return [Finding(1, f"{word}{through}: {n_to(n, m, 'cast')}{more}", seconds, step, "cast")]


def _libraries(base: Seen, head: Seen, gone: Mapping[str, Group], new: Mapping[str, Group]) -> list[Finding]:
    """Another kernel of a library for a matrix multiply."""
    before, after = ([group for group in groups.values() if group.kernel.from_library] for groups in (gone, new))
    if not before or not after or any(group.kernel.attention for group in (*gone.values(), *new.values())):
        return []
    old, now = max(before, key=_length).kernel, max(after, key=_length).kernel
    names = (old.label, now.label) if old.label != now.label else (old.key[:40], now.key[:40])
    tensor = _tensor_words(base, head)
    if not tensor and now.scalar and not old.scalar:
        tensor = "without tensor cores by its name"
    seconds = sum(group.seconds for group in after) - sum(group.seconds for group in before)
    text = f"another library kernel: {names[0]} → {names[1]}" + (f", {tensor}" if tensor else "")
    return [Finding(2, text + _traffic(base, head), seconds, "")]


def _length(group: Group) -> float:
    return group.seconds


def _exchanged(base: Seen, head: Seen, gone: list[Group], new: list[Group]) -> Finding:
    seconds = sum(group.seconds for group in new) - sum(group.seconds for group in gone)
    parts = []
    for groups, word in ((new, "new"), (gone, "gone")):
        if groups:
            names = [group.kernel.label for group in sorted(groups, key=_length, reverse=True)]
            parts.append(f"{listed(names, 2 if gone and new else 3)} {word}")
    spent = ""
    if base.trace and head.trace and gone and new:
        two = sum(group.seconds for group in gone), sum(group.seconds for group in new)
        spent = f", {arrow(*two, 's')}" if moved(*two, TIME) else ""
    return Finding(3, f"{_launches(base, head)}: {', '.join(parts)}{spent}{_traffic(base, head)}", seconds)


def _oftener(
    before: Mapping[str, Group], after: Mapping[str, Group], keys: Sequence[str], base: Seen, head: Seen
) -> Finding:
    def change(key: str) -> float:
        return after[key].seconds - before[key].seconds

    ordered = sorted(keys, key=lambda key: (-abs(change(key)), key))
    each = ", ".join(f"`{after[key].kernel.label}` {arrow(before[key].count, after[key].count)}" for key in ordered[:3])
    rest = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    word = "more" if head.launches >= base.launches else "fewer"
    text = f"{word} launches of the same kernels: {arrow(base.launches, head.launches)} ({each}{rest})"
    two = sum(before[key].seconds for key in keys), sum(after[key].seconds for key in keys)
    if base.trace and head.trace and moved(*two, TIME):
        text += f", {arrow(*two, 's')}"
    return Finding(4, text, sum(change(key) for key in keys))


# ---------------------------------------------------------------- kernels that are in both


def same_kernels(base: Seen, head: Seen) -> list[Finding]:
    """Of kernels in both arms: launch configuration and what it did, types, counters, time."""
    if base.groups is None or head.groups is None:
        return []
    shared = [(base.groups[key], head.groups[key]) for key in base.groups if key in head.groups]
    found = [one for pair in shared if (one := _kernel(*pair, base, head)) is not None]
    found.sort(key=lambda one: (-abs(one.seconds or 0.0), one.text))
    return found[:DETAILS]


def _kernel(before: Group, after: Group, base: Seen, head: Seen) -> Finding | None:
    causes = _configuration(before, after)
    typed = _retyped(before, after)
    significant_here = any(
        group.seconds >= MINOR * seen.device for group, seen in ((before, base), (after, head)) if seen.device > 0
    )
    effects = _effects(before, after, any(cause.startswith("spills") for cause in causes)) if significant_here else []
    if causes and not any("occupancy" in effect for effect in effects) and 2 * after.seconds >= head.device:
        two = pair(*(seen.evidence.metrics.get("occupancy_theoretical") for seen in (base, head)))
        if two and abs(two[1] - two[0]) > POINTS:
            effects.insert(0, f"theoretical occupancy {arrow(*two, '%')}")
    changed = after.seconds - before.seconds
    timed = base.trace is not None and head.trace is not None and moved(before.seconds, after.seconds, TIME)
    alike = abs(after.count - before.count) < ONCE
    if not causes and not typed and not effects and not (timed and alike and significant_here):
        return None
    if timed:
        effects.append(arrow(before.seconds, after.seconds, "s"))
    label = f"`{after.kernel.label}`"
    if typed:
        text = f"{label} {typed}" + (f": {', '.join([*causes, *effects])}" if causes or effects else "")
        return Finding(5, text, None)
    if not causes and effects and timed and len(effects) == 1:
        counters = before.counted and after.counted
        words = "launched the same way" + (", and no counter moved" if counters else "")
        return Finding(UNCAUSED, f"{label} takes {effects[0]}, {words}", changed, "", "machine" if counters else "")
    order = 6 if causes else 8
    step = ""
    if any(cause.startswith(("registers", "spill", "local")) for cause in causes):
        step = f"{label}: look at launch bounds, unrolling and live values; cuobjdump --dump-resource-usage tells each"
    text = f"{label}: {', '.join([*causes, *effects])}"
    return Finding(order, text, changed if timed else None, step, f"resources {after.kernel.key}" if step else "")


def _retyped(before: Group, after: Group) -> str:
    """`works in float32 (was bfloat16)` where a kernel's types grew or shrank; empty for casts, and where unknown."""
    if not before.types or not after.types or before.types == after.types or after.kernel.family == "cast":
        return ""
    old, now = (sorted(group.types - other.types) for group, other in ((before, after), (after, before)))
    if not old or not now:
        return ""
    text = f"works in {' and '.join(now)} (was {' and '.join(old)}"
    if len(old) == len(now) == 1 and WIDTH[now[0]] != WIDTH[old[0]]:
        text += f": {WIDTH[old[0]]} → {WIDTH[now[0]]} bytes an element"
    return text + ")"


UNCAUSED = 12
"""Order of a kernel that only takes another time."""
Configuration = tuple[tuple[int, int, int], tuple[int, int, int], float | None, float | None, float | None]


def _configured(use: KernelUse | KernelCounters) -> Configuration:
    """Grid, block, registers and local memory a thread, shared memory a block; None for what is not told."""
    if isinstance(use, KernelUse):
        known = [part for part in (use.static_shared, use.dynamic_shared) if part is not None]
        return use.grid, use.block, use.registers, use.local, finite(sum(known)) if len(known) == 2 else None
    values = use.values
    return use.grid, use.block, values.get("registers"), values.get("local_memory"), values.get("shared_memory")


def _configuration(before: Group, after: Group) -> list[str]:
    """How the launch configuration differs: of the longest launches that have none alike in the other arm."""
    old, new = (Counter(_configured(use) for use in group.uses) for group in (before, after))
    was = next((one for use in before.uses if (one := _configured(use)) in old - new), None)
    now = next((one for use in after.uses if (one := _configured(use)) in new - old), None)
    if was is None or now is None:
        return []
    (grid, block, registers, local, shared), (grid_, block_, registers_, local_, shared_) = was, now
    found = []
    spilled, spilled_ = before.value("spills"), after.value("spills")
    if local is not None and local_ is not None and local != local_:
        sure = spilled is not None and spilled_ is not None and spilled != spilled_
        word = "spills to local memory" if sure and local_ > local else "local memory"
        found.append(f"{word} {arrow(local, local_, 'B')} a thread")
    if registers is not None and registers_ is not None and registers != registers_:
        found.append(f"registers {arrow(registers, registers_)}")
    if shared is not None and shared_ is not None and shared != shared_:
        found.append(f"shared memory {arrow(shared, shared_, 'B')} a block")
    if block != block_:
        found.append(f"block {_shape(block, block_)} threads")
    if grid != grid_:
        found.append(f"grid {_shape(grid, grid_)} blocks")
    return found


def _shape(before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
    """Two grids or blocks by their size, by their sides where that is the same."""
    old, new = math.prod(before), math.prod(after)
    if old != new:
        return arrow(old, new)
    return " → ".join("×".join(str(side) for side in sides) for sides in (before, after))


def _effects(before: Group, after: Group, spilled: bool) -> list[str]:
    """What the counters of a kernel say: occupancy, tensor pipes, bytes, instructions, spills, stalls, hit rates.

    `spilled`: whether spills are told already.
    """

    def both(name: str) -> tuple[float, float] | None:
        return pair(before.value(name), after.value(name))

    found = []
    for name, word in (("occupancy", "occupancy"), ("occupancy_theoretical", "theoretical occupancy")):
        two = both(name)
        if two and abs(two[1] - two[0]) > POINTS:
            found.append(f"{word} {arrow(*two, '%')}")
            break
    for name, word, unit, relative, least in (
        ("spills", "loads and stores of local memory", "", INSTRUCTIONS, 0.0),
        ("dram_bytes", "DRAM traffic", "B", BYTES, LEAST_BYTES),
        ("instructions", "instructions", "", INSTRUCTIONS, 0.0),
        ("bank_conflicts", "bank conflicts", "", CONFLICTS, LEAST_CONFLICTS),
    ):
        two = both(name)
        if two and moved(*two, relative, least) and not (spilled and name == "spills"):
            found.append(f"{word} {arrow(*two, unit)}")
    two = both("tensor_active")
    if two and abs(two[1] - two[0]) > POINTS:
        found.append(f"tensor cores {arrow(*two, '%')} active")
    stalls = [(two[1] - two[0], name, two) for name in STALLS if (two := both(f"stall_{name}"))]
    if stalls:
        risen, name, two = max(stalls)
        if risen > 0 and moved(*two, STALL, LEAST_STALL):
            found.append(f"warps stalled {_STALLED[name]} {arrow(*two)} per instruction")
    for name, word in (
        ("l1_hit_rate", "L1 hits"),
        ("l2_hit_rate", "L2 hits"),
        ("branch_efficiency", "uniform branches"),
    ):
        two = both(name)
        if two and abs(two[1] - two[0]) > HIT_POINTS:
            found.append(f"{word} {arrow(*two, '%')}")
    return found


# ---------------------------------------------------------------- tensor cores, and metrics without a kernel


def _tensor(base: Seen, head: Seen) -> tuple[float, float] | None:
    """Share of cycles with the tensor pipes active, over all kernels; where they were gained or lost, else None."""
    two = pair(value(base.counted, "tensor_active"), value(head.counted, "tensor_active"))
    return two if two and max(two) >= TENSOR and max(two) > LOST * min(two) else None


def _tensor_words(base: Seen, head: Seen) -> str:
    two = _tensor(base, head)
    return f"tensor cores {arrow(*two, '%')} active" if two else ""


def tensor(base: Seen, head: Seen) -> list[Finding]:
    """Tensor cores that are no longer used, or now are."""
    two = _tensor(base, head)
    if two is None:
        return []
    if two[1] > two[0]:
        return [Finding(5, f"uses tensor cores now: {arrow(*two, '%')} active")]
    step = "see why no tensor cores: operand types, alignment to 16 bytes, and in PyTorch whether TF32 is allowed"
    return [Finding(5, f"stopped using tensor cores: {arrow(*two, '%')} active", None, step)]


_UNSEEN_METRICS = (
    "kernel_launches", "registers", "local_memory", "shared_memory", "dram_bytes", "instructions", "spills",
    "tensor_active", "occupancy_theoretical",
)  # fmt: skip


def metrics(base: Seen, head: Seen) -> list[Finding]:
    """Values of the catalogue: the peak memory, and where kernels cannot be compared one by one all that is told."""
    names = ["peak_memory", *(_UNSEEN_METRICS if base.groups is None or head.groups is None else ())]
    found = []
    for name in names:
        two, known = pair(base.evidence.metrics.get(name), head.evidence.metrics.get(name)), CATALOGUE[name]
        if two is None:
            continue
        differs = (
            abs(two[1] - two[0]) > POINTS
            if known.unit == "%"
            else moved(*two, BYTES, LEAST_BYTES)
            if name in ("dram_bytes", "peak_memory")
            else moved(*two, INSTRUCTIONS)
        )
        if differs:
            words = f"{name.replace('_', ' ')} {arrow(*two, known.unit)}"
            found.append(Finding(10, words) if name == "peak_memory" else Finding(9, f"{words} ({known.about})"))
    return found


def ranges(base: Seen, head: Seen) -> list[Finding]:
    """The NVTX range of the user's own whose device time changed most."""
    if base.trace is None or head.trace is None:
        return []
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for seen, devices in ((base.trace, before), (head.trace, after)):
        for one in seen.ranges:
            devices[one.name] = devices.get(one.name, 0.0) + one.device
    pairs = [(before[name], after[name], name) for name in after if name in before]
    pairs = [one for one in pairs if moved(one[0], one[1], TIME)]
    if not pairs:
        return []
    old, new, name = max(pairs, key=lambda one: (abs(one[1] - one[0]), one[2]))
    return [Finding(10, f"in the range {call_name(name)}: {arrow(old, new, 's')} on the device")]


# ---------------------------------------------------------------- copies and the host


def copies(base: Seen, head: Seen) -> list[Finding]:
    """Copies that became pageable or pinned, came or went, or move more bytes or slower."""
    if base.trace is None or head.trace is None:
        return []
    found = []
    for kind in UP:
        before, after = (copied(seen.trace, kind) for seen in (base, head))
        if before is not None and after is not None:
            found += _copy_changed(kind, before, after, head.trace.wall)
        elif after is not None:
            found.append(Finding(5, f"{UP[kind]} is new: {_amount(kind, after)}", after.seconds))
        elif before is not None:
            found.append(Finding(5, f"{UP[kind]} is gone: {_amount(kind, before)}", -before.seconds))
    sets = pair(base.trace.sets, head.trace.sets)
    if sets and abs(sets[1] - sets[0]) >= ONCE:
        found.append(Finding(11, f"{arrow(*sets)} memory sets"))
    return found


def _amount(kind: CopyKind, one: Copied) -> str:
    way = {"host to device": " from pageable memory", "device to host": " to pageable memory"}.get(kind, "")
    return f"{number(one.bytes, 'B')} in {number(one.seconds, 's')}{way if one.pageable else ''}"


def _copy_changed(kind: CopyKind, before: Copied, after: Copied, wall: float) -> list[Finding]:
    changed = after.seconds - before.seconds
    rates = pair(before.rate, after.rate)
    faster = f": {arrow(*rates, 'B/s')}" if rates else ""
    if before.pageable is not None and after.pageable is not None and before.pageable != after.pageable:
        now = "pageable" if after.pageable else "pinned"
        step = ""
        if after.pageable:
            step = f"pin the host memory of {UP[kind]} (pin_memory=True, cudaHostAlloc)"
            if rates and rates[0] > 0:
                step += gain(wall, after.seconds - after.bytes / rates[0])
        return [Finding(2, f"{UP[kind]} is {now} now{faster}", changed, step, kind)]
    if moved(before.bytes, after.bytes, INSTRUCTIONS):
        return [Finding(6, f"{UP[kind]} moves {arrow(before.bytes, after.bytes, 'B')}", changed)]
    if abs(after.count - before.count) >= ONCE:
        return [Finding(6, f"{UP[kind]} is in {n_to(before.count, after.count, 'piece')}{faster}", changed)]
    if rates and moved(*rates, BANDWIDTH):
        word = "slower" if rates[1] < rates[0] else "faster"
        return [Finding(9, f"{UP[kind]} is {word}{faster}, from the same kind of memory", changed)]
    return []


def _wall(base: Seen, head: Seen) -> float:
    """By how much an execution grew on the host's clock; nothing that the host does can account for more."""
    if base.trace is None or head.trace is None:
        return 0.0
    return max(finite(head.trace.wall - base.trace.wall) or 0.0, 0.0)


def host(base: Seen, head: Seen) -> list[Finding]:
    """Allocations and synchronisations inside the loop, and launches that the device waits for.

    Nothing of traces by different tools: they slow the host down by different amounts, and see different calls.
    """
    if base.trace is None or head.trace is None or base.trace.source != head.trace.source:
        return []
    before, after = base.trace, head.trace
    found = []
    for kind, verb in (("allocation", "allocates"), ("synchronisation", "synchronises")):
        old, new = calls_of(before, kind), calls_of(after, kind)
        n, m = sum(call.count for call in old), sum(call.count for call in new)
        if not math.isfinite(n + m) or abs(m - n) < ONCE:
            continue
        more, fresh, left = m > n, n < ONCE, m >= ONCE
        risen = {call.name: call for call in (new if more else old)}
        for call in old if more else new:
            if call.name in risen and abs(risen[call.name].count - call.count) < ONCE:
                del risen[call.name]
        top = max(risen.values(), key=lambda call: (call.seconds, call.count, call.name)) if risen else None
        name = call_name(top.name) if top else f"{kind}s"
        if top:
            n, m = (sum(call.count for call in calls if call.name == top.name) for calls in (old, new))
        spent, was = (sum(call.seconds for call in calls) for calls in (new, old))
        grown = min(max(spent - was, 0.0), _wall(base, head)) if more else spent - was
        where = (
            "inside the loop now" if fresh and more else "more often" if more else "less often" if left else "no more"
        )
        text = f"{verb} {where}: {name} {arrow(n, m)} an execution"
        if more:
            text += f", {percent_of(spent, after.wall)} of the time in {'it' if len(new) == 1 else 'such calls'}"
        found.append(Finding(3 if kind == "allocation" else 4, text, finite(grown)))
    if not found and (gaps := pair(idle(before), idle(after))):
        if gaps[1] >= IDLE and gaps[1] - gaps[0] >= IDLE_POINTS:
            waited = (after.span - after.busy) - (before.span - before.busy)
            text = f"launch-bound now: the GPU idles {arrow(*gaps, '%')} of the time between operations"
            if moved(base.launches, head.launches, 0.0, ONCE):
                text += f", {arrow(base.launches, head.launches)} launches"
            step = "fuse the kernels or launch them as one CUDA graph"
            found.append(Finding(7, text, finite(waited), step, "launch"))
        elif gaps[0] >= IDLE and gaps[0] - gaps[1] >= IDLE_POINTS:
            text = f"no longer launch-bound: the GPU idles {arrow(*gaps, '%')} of the time between operations"
            found.append(Finding(7, text, finite((after.span - after.busy) - (before.span - before.busy))))
    return found
