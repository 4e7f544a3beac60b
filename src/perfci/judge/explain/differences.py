"""Differences between two profiles of a case, with the time they account for.

Only what base and head both tell is compared; what one lacks is never taken as zero.
"""

from perfci.judge.explain import code, kernel_change, kernel_set
from perfci.judge.explain import host as host_change
from perfci.judge.explain.numbers import arrow, moved, pair
from perfci.judge.explain.seen import Clue, Seen
from perfci.judge.explain.thresholds import BYTES, INSTRUCTIONS, LEAST_BYTES, POINTS, TIME
from perfci.judge.words import call_name
from perfci.model.metrics import CATALOGUE, CHECKED


def findings(base: Seen, head: Seen) -> list[Clue]:
    """Return all that differs, in no order."""
    found = [*kernel_set.kernels(base, head), *kernel_change.same_kernels(base, head)]
    tensor = kernel_change.tensor(base, head)
    if tensor and not any("tensor cores" in one.text for one in found):
        found.append(tensor)
    return [
        *found,
        *code.changes(base, head),
        *host_change.copies(base, head),
        *host_change.host(base, head),
        *_metrics(base, head),
        *_ranges(base, head),
    ]


def _metrics(base: Seen, head: Seen) -> list[Clue]:
    unseen = base.groups is None or head.groups is None
    found = []
    for name, known in CATALOGUE.items():
        two = pair(base.profile.metrics.get(name), head.profile.metrics.get(name))
        if two is None or not (name in CHECKED or (unseen and known.overall)):
            continue
        least = (BYTES, LEAST_BYTES) if name in ("dram_bytes", "peak_memory") else (INSTRUCTIONS, 0.0)
        if abs(two[1] - two[0]) > POINTS if known.unit == "%" else moved(*two, *least):
            words = f"{name.replace('_', ' ')} {arrow(*two, known.unit)}"
            found.append(Clue(10, words) if name in CHECKED else Clue(9, f"{words} ({known.about})"))
    return found


def _ranges(base: Seen, head: Seen) -> list[Clue]:
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
    return [Clue(10, f"in the range {call_name(name)}: {arrow(old, new, 's')} on the device")]
