"""Findings in machine code where counters are missing.

Only of kernels of which every launch has its code.
"""

from collections.abc import Iterable, Mapping, Sequence

from perfci.judge.explain.kernel_change import RESOURCES_STEP
from perfci.judge.explain.numbers import arrow, moved, pair, percent_of
from perfci.judge.explain.seen import Clue, Group, Seen
from perfci.judge.explain.thresholds import DOMINANT, MINOR, TIME
from perfci.model.kernels import identify
from perfci.model.profile import KernelCode, KernelCounters, KernelUse
from perfci.model.text import listed

LOCAL = 0.25
"""Of loads and stores: a compiler moves a few with any change."""
SOURCE = "in its machine code"
TENSOR_STEP = "see why there is no tensor instruction: operand types, tile shapes, the architecture compiled for"


def changes(base: Seen, head: Seen) -> list[Clue]:
    """Find tensor cores lost or gained, and changes of local memory."""
    if base.groups is None or head.groups is None:
        return []
    before, after = _coded(base), _coded(head)
    found = _exchanged(base.groups, head.groups, before, after)
    for key in [key for key in before if key in after]:
        old, new = base.groups[key], head.groups[key]
        if any(group.seconds >= MINOR * seen.device > 0 for group, seen in ((old, base), (new, head))):
            found += _same(old, new, before[key], after[key])
    return found


def told(seen: Seen) -> list[str]:
    """Say of one side's longest kernels whether they use tensor cores."""
    codes, groups = _coded(seen), seen.groups or {}
    long = [key for key in codes if groups[key].seconds >= DOMINANT * seen.device > 0]
    return [
        f"`{groups[key].kernel.label}` ({percent_of(groups[key].seconds, seen.device)} of the device time) has "
        f"{_words(_tensor(codes[key]))} {SOURCE}"
        for key in sorted(long, key=lambda key: (-groups[key].seconds, key))
    ]


def _coded(seen: Seen) -> dict[str, list[KernelCode]]:
    codes: dict[str, list[KernelCode]] = {}
    for one in seen.profile.code:
        codes.setdefault(identify(one.name).key, []).append(one)
    groups = seen.groups or {}
    return {
        key: known
        for key, known in codes.items()
        if key in groups and all(any(_of(one, use) for one in known) for use in groups[key].uses)
    }


def _of(code: KernelCode, use: KernelUse | KernelCounters) -> bool:
    registers = use.registers if isinstance(use, KernelUse) else use.values.get("registers")
    return code.name == use.name and (code.registers is None or registers is None or code.registers == registers)


def _tensor(codes: Sequence[KernelCode]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in codes:
        for opcode, count in one.tensor.items():
            found[opcode] = max(count, found.get(opcode, 0))
    return found


def _words(tensor: dict[str, int]) -> str:
    return " and ".join(f"{count} {opcode}" for opcode, count in sorted(tensor.items())) or "no tensor instruction"


def _same(before: Group, after: Group, old: Sequence[KernelCode], new: Sequence[KernelCode]) -> list[Clue]:
    label, found = f"`{after.kernel.label}`", []
    changed = after.seconds - before.seconds if moved(before.seconds, after.seconds, TIME) else None
    was, now = _tensor(old), _tensor(new)
    if set(was) != set(now):
        verb = "other tensor instructions" if was and now else "tensor cores now" if now else "tensor cores no longer"
        text = f"{label} uses {verb}: {_words(was)} → {_words(now)} {SOURCE}"
        found.append(Clue(5, text, changed, "" if now else f"{label}: {TENSOR_STEP}", "tensor"))
    n, m = (max(one.local_loads + one.local_stores for one in codes) for codes in (old, new))
    if moved(n, m, LOCAL):
        text = f"{label}: loads and stores of local memory {arrow(n, m)} {SOURCE}"
        stacks = pair(_stack(before, old), _stack(after, new))
        if stacks and stacks[0] != stacks[1]:
            text += f", stack {arrow(*stacks, 'B')} a thread"
        step = f"{label}: {RESOURCES_STEP}" if m > n else ""
        found.append(Clue(6, text, changed, step, f"resources {after.kernel.key}" if step else ""))
    return found


def _stack(group: Group, codes: Sequence[KernelCode]) -> float | None:
    """Bytes a thread; None where the code does not tell them, or the timeline does."""
    known = [one.stack for one in codes if one.stack is not None]
    told_already = any(isinstance(use, KernelUse) and use.local is not None for use in group.uses)
    return float(max(known)) if known and not told_already else None


def _exchanged(
    base: Mapping[str, Group],
    head: Mapping[str, Group],
    before: Mapping[str, Sequence[KernelCode]],
    after: Mapping[str, Sequence[KernelCode]],
) -> list[Clue]:
    gone, new = base.keys() - head.keys(), head.keys() - base.keys()
    if not gone or not new or not gone <= before.keys() or not new <= after.keys():
        return []
    was, now = ({key: _tensor(codes[key]) for key in keys} for codes, keys in ((before, gone), (after, new)))
    lost = any(was.values())
    if lost == any(now.values()):
        return []
    tensor, groups, others = (
        (was, base, [head[key] for key in new]) if lost else (now, head, [base[key] for key in gone])
    )
    using = [groups[key] for key, found in tensor.items() if found]
    opcodes = " and ".join(sorted({opcode for found in tensor.values() for opcode in found}))
    text = (
        f"tensor cores are used {'no longer' if lost else 'now'}: {opcodes} in the machine code of {_labels(using)}, "
        f"none in {_labels(others)}"
    )
    return [Clue(5, text, None, TENSOR_STEP if lost else "", "tensor")]


def _labels(groups: Iterable[Group]) -> str:
    ordered = sorted(groups, key=lambda group: (-group.seconds, group.kernel.key))
    return listed((group.kernel.label for group in ordered), 2, "`")
