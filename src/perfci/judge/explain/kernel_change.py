"""Differences of kernels in base and head."""

import math
from collections import Counter

from perfci.judge.explain.numbers import arrow, finite, moved, pair
from perfci.judge.explain.seen import Clue, Group, Seen, value
from perfci.judge.explain.thresholds import (
    BYTES,
    CONFLICTS,
    DETAILS,
    HIT_POINTS,
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
)
from perfci.model.kernels import WIDTH
from perfci.model.metrics import STALLS
from perfci.model.profile import RESOURCE_USAGE, KernelCounters, KernelUse

RESOURCES_STEP = f"check launch bounds, unrolling and live values; {RESOURCE_USAGE} tells each"


def same_kernels(base: Seen, head: Seen) -> list[Clue]:
    """Compare launch configuration, types, counters, time."""
    if base.groups is None or head.groups is None:
        return []
    shared = [(base.groups[key], head.groups[key]) for key in base.groups if key in head.groups]
    found = [one for both in shared if (one := _kernel(*both, base, head)) is not None]
    found.sort(key=lambda one: (-abs(one.seconds or 0.0), one.text))
    return found[:DETAILS]


def _kernel(before: Group, after: Group, base: Seen, head: Seen) -> Clue | None:
    causes = _configuration(before, after)
    typed = _retyped(before, after)
    significant_here = any(
        group.seconds >= MINOR * seen.device for group, seen in ((before, base), (after, head)) if seen.device > 0
    )
    effects = _effects(before, after, "spills" in causes) if significant_here else {}
    if causes and not effects.keys() & {"occupancy", "occupancy_theoretical"} and 2 * after.seconds >= head.device:
        two = pair(*(seen.profile.metrics.get("occupancy_theoretical") for seen in (base, head)))
        if two and abs(two[1] - two[0]) > POINTS:
            effects = {"occupancy_theoretical": f"theoretical occupancy {arrow(*two, '%')}", **effects}
    changed = after.seconds - before.seconds
    timed = base.trace is not None and head.trace is not None and moved(before.seconds, after.seconds, TIME)
    alike = abs(after.count - before.count) < ONCE
    if not causes and not typed and not effects and not (timed and alike and significant_here):
        return None
    if timed:
        effects["time"] = arrow(before.seconds, after.seconds, "s")
    label, told = f"`{after.kernel.label}`", ", ".join([*causes.values(), *effects.values()])
    if typed:
        text = f"{label} {typed}" + (f": {told}" if told else "")
        return Clue(5, text, None)
    if not causes and effects and timed and len(effects) == 1:
        counters = before.counted and after.counted
        words = "launched the same way" + (", and no counter moved" if counters else "")
        return Clue(UNCAUSED, f"{label} takes {told}, {words}", changed, "", "machine" if counters else "")
    order = 6 if causes else 8
    step = of = ""
    if causes.keys() & {"registers", "spills", "local"}:
        step, of = f"{label}: {RESOURCES_STEP}", f"resources {after.kernel.key}"
    return Clue(order, f"{label}: {told}", changed if timed else None, step, of)


def _retyped(before: Group, after: Group) -> str:
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
Configuration = tuple[tuple[int, int, int], tuple[int, int, int], float | None, float | None, float | None]
"""Grid, block, registers and local memory a thread, shared memory a block; None for what is not told."""


def _configured(use: KernelUse | KernelCounters) -> Configuration:
    if isinstance(use, KernelUse):
        known = [part for part in (use.static_shared, use.dynamic_shared) if part is not None]
        return use.grid, use.block, use.registers, use.local, finite(sum(known)) if len(known) == 2 else None
    values = use.values
    return use.grid, use.block, values.get("registers"), values.get("local_memory"), values.get("shared_memory")


def _configuration(before: Group, after: Group) -> dict[str, str]:
    old, new = (Counter(_configured(use) for use in group.uses) for group in (before, after))
    was = next((one for use in before.uses if (one := _configured(use)) in old - new), None)
    now = next((one for use in after.uses if (one := _configured(use)) in new - old), None)
    if was is None or now is None:
        return {}
    (grid, block, registers, local, shared), (grid_, block_, registers_, local_, shared_) = was, now
    found = {}
    spilled, spilled_ = before.value("spills"), after.value("spills")
    if local is not None and local_ is not None and local != local_:
        sure = spilled is not None and spilled_ is not None and spilled != spilled_
        name, word = ("spills", "spills to local memory") if sure and local_ > local else ("local", "local memory")
        found[name] = f"{word} {arrow(local, local_, 'B')} a thread"
    if registers is not None and registers_ is not None and registers != registers_:
        found["registers"] = f"registers {arrow(registers, registers_)}"
    if shared is not None and shared_ is not None and shared != shared_:
        found["shared"] = f"shared memory {arrow(shared, shared_, 'B')} a block"
    if block != block_:
        found["block"] = f"block {_shape(block, block_)} threads"
    if grid != grid_:
        found["grid"] = f"grid {_shape(grid, grid_)} blocks"
    return found


def _shape(before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
    old, new = math.prod(before), math.prod(after)
    if old != new:
        return arrow(old, new)
    return " → ".join("×".join(str(side) for side in sides) for sides in (before, after))


def _effects(before: Group, after: Group, spilled: bool) -> dict[str, str]:
    def both(name: str) -> tuple[float, float] | None:
        return pair(before.value(name), after.value(name))

    found = {}
    for name, word in (("occupancy", "occupancy"), ("occupancy_theoretical", "theoretical occupancy")):
        two = both(name)
        if two and abs(two[1] - two[0]) > POINTS:
            found[name] = f"{word} {arrow(*two, '%')}"
            break
    for name, word, unit, relative, least in (
        ("spills", "loads and stores of local memory", "", INSTRUCTIONS, 0.0),
        ("dram_bytes", "DRAM traffic", "B", BYTES, LEAST_BYTES),
        ("instructions", "instructions", "", INSTRUCTIONS, 0.0),
        ("bank_conflicts", "bank conflicts", "", CONFLICTS, LEAST_CONFLICTS),
    ):
        two = both(name)
        if two and moved(*two, relative, least) and not (spilled and name == "spills"):
            found[name] = f"{word} {arrow(*two, unit)}"
    two = both("tensor_active")
    if two and abs(two[1] - two[0]) > POINTS:
        found["tensor_active"] = f"tensor cores {arrow(*two, '%')} active"
    stalls = [(two[1] - two[0], name, two) for name in STALLS if (two := both(f"stall_{name}"))]
    if stalls:
        risen, name, two = max(stalls)
        if risen > 0 and moved(*two, STALL, LEAST_STALL):
            found["stall"] = f"warps stalled {STALLS[name]} {arrow(*two)} per instruction"
    for name, word in (
        ("l1_hit_rate", "L1 hits"),
        ("l2_hit_rate", "L2 hits"),
        ("branch_efficiency", "uniform branches"),
    ):
        two = both(name)
        if two and abs(two[1] - two[0]) > HIT_POINTS:
            found[name] = f"{word} {arrow(*two, '%')}"
    return found


def tensor(base: Seen, head: Seen) -> Clue | None:
    """Find tensor cores lost or gained, over all kernels."""
    two = pair(value(base.counted, "tensor_active"), value(head.counted, "tensor_active"))
    if not two or max(two) < TENSOR or max(two) <= LOST * min(two):
        return None
    step = "see why no tensor cores: operand types, alignment to 16 bytes, and in PyTorch whether TF32 is allowed"
    return Clue(5, f"tensor cores {arrow(*two, '%')} active", None, step if two[1] < two[0] else "")
