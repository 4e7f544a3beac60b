"""Kernels that came, went, or ran more often, by what it means."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from perfci.judge.explain.kernel_change import tensor
from perfci.judge.explain.numbers import arrow, counted, gain, moved, n_to, number, percent_of, times
from perfci.judge.explain.seen import Clue, Group, Seen, value
from perfci.judge.explain.thresholds import BYTES, LEAST_BYTES, ONCE, TIME
from perfci.model.kernels import WIDTH
from perfci.model.text import listed


def kernels(base: Seen, head: Seen) -> list[Clue]:
    """Find kernels that appeared, vanished or changed count."""
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
    before, after = value(base.counted, "dram_bytes"), value(head.counted, "dram_bytes")
    if before is None or after is None or not moved(before, after, BYTES, LEAST_BYTES):
        return ""
    return f", {arrow(before, after, 'B')} of DRAM traffic{times(before, after)}"


def _launches(base: Seen, head: Seen) -> str:
    return f"{counted(base.launches, 'kernel')} → {number(head.launches)}"


def _attention(base: Seen, head: Seen, gone: Mapping[str, Group], new: Mapping[str, Group]) -> list[Clue]:
    before, after = ({group.kernel.attention for group in (seen.groups or {}).values()} - {""} for seen in (base, head))
    left, taken = sorted(before - after), sorted(after - before)
    if not left and not taken:
        return []
    what = f"now through {' and '.join(taken)}"
    if left:
        what = f"moved from {' and '.join(left)} to {' and '.join(taken)}" if taken else f"left {' and '.join(left)}"
    seconds = sum(group.seconds for group in new.values()) - sum(group.seconds for group in gone.values())
    step = ""
    if left and not taken:
        step = (
            f"find out what {left[0]} refuses (mask, type, head size, stride): in PyTorch "
            "torch.nn.attention.sdpa_kernel with that backend alone says why"
        )
    return [Clue(0, f"{what}: {_launches(base, head)}{_traffic(base, head)}", seconds, step)]


def _casts(base: Seen, head: Seen, short: bool) -> list[Clue]:
    """`short`: launches and traffic are told already."""
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
    step = f"stay in {narrow}" if m > n else ""
    if m > n and seconds > 0:
        share = percent_of(seconds, head.device)
        step += f": the added casts take {share} of the device time{gain(head.device, seconds)}"
    more = "" if short else f"{launches}{_traffic(base, head)}"
    return [Clue(1, f"{word}{through}: {n_to(n, m, 'cast')}{more}", seconds, step, "cast")]


def _libraries(base: Seen, head: Seen, gone: Mapping[str, Group], new: Mapping[str, Group]) -> list[Clue]:
    before, after = ([group for group in groups.values() if group.kernel.from_library] for groups in (gone, new))
    if not before or not after or any(group.kernel.attention for group in (*gone.values(), *new.values())):
        return []
    old, now = max(before, key=attrgetter("seconds")).kernel, max(after, key=attrgetter("seconds")).kernel
    names = (old.label, now.label) if old.label != now.label else (old.key[:40], now.key[:40])
    cores = used.text if (used := tensor(base, head)) else ""
    if not cores and now.scalar and not old.scalar:
        cores = "without tensor cores by its name"
    seconds = sum(group.seconds for group in after) - sum(group.seconds for group in before)
    text = f"another library kernel: {names[0]} → {names[1]}" + (f", {cores}" if cores else "")
    return [Clue(2, text + _traffic(base, head), seconds, "")]


def _exchanged(base: Seen, head: Seen, gone: list[Group], new: list[Group]) -> Clue:
    seconds = sum(group.seconds for group in new) - sum(group.seconds for group in gone)
    parts = []
    for groups, word in ((new, "new"), (gone, "gone")):
        if groups:
            names = [group.kernel.label for group in sorted(groups, key=attrgetter("seconds"), reverse=True)]
            parts.append(f"{listed(names, 2 if gone and new else 3, '`')} {word}")
    spent = ""
    if base.trace and head.trace and gone and new:
        two = sum(group.seconds for group in gone), sum(group.seconds for group in new)
        spent = f", {arrow(*two, 's')}" if moved(*two, TIME) else ""
    return Clue(3, f"{_launches(base, head)}: {', '.join(parts)}{spent}{_traffic(base, head)}", seconds)


def _oftener(
    before: Mapping[str, Group], after: Mapping[str, Group], keys: Sequence[str], base: Seen, head: Seen
) -> Clue:
    def change(key: str) -> float:
        return after[key].seconds - before[key].seconds

    ordered = sorted(keys, key=lambda key: (-abs(change(key)), key))
    each = listed(f"`{after[key].kernel.label}` {arrow(before[key].count, after[key].count)}" for key in ordered)
    word = "more" if head.launches >= base.launches else "fewer"
    text = f"{word} launches of the same kernels: {arrow(base.launches, head.launches)} ({each})"
    two = sum(before[key].seconds for key in keys), sum(after[key].seconds for key in keys)
    if base.trace and head.trace and moved(*two, TIME):
        text += f", {arrow(*two, 's')}"
    return Clue(4, text, sum(change(key) for key in keys))
