"""Why a case changed: sentences from the profiles of base and head.

Every number is of the records, or a sum, share or ratio.
"""

import math
import re
from collections.abc import Iterable, Sequence

from pydantic import Field

from perfci.judge.explain import code, differences
from perfci.judge.explain.alone import longest, standing
from perfci.judge.explain.numbers import pair, percent_of
from perfci.judge.explain.seen import Clue, Seen, kernelless, see, usable
from perfci.judge.explain.thresholds import MINOR
from perfci.model.base import Document, Side
from perfci.model.kernels import identify
from perfci.model.profile import Part, Profile, doubt
from perfci.model.text import one_line, printable
from perfci.model.units import significant

FIRST = 140
"""Characters that a column of the table holds."""
LONGEST = 300
"""Characters of any other sentence or step."""
SENTENCES, STEPS = 8, 6
"""Who reads more opens the profile."""
SLOWEST = 3
"""Kernels whose rules are told."""
NEWS = 0.8
"""From this share of a rule's estimated speed-up on base's says the same."""
TELLING = 0.10
"""Of the change, from which a finding explains it."""
SUSPICIOUS = 0.03
"""Change of the time profiled; where nothing moved beside one, the machine did it."""

_SENTENCE = re.compile(r"(?<=[.!?)])\s+(?=[A-Z])")


class Explanation(Document):
    """Sentences and steps that a case's profile gives."""

    sentences: list[str] = Field(default_factory=list)
    """Most telling first, one line each; the first of at most 140 characters."""
    next_steps: list[str] = Field(default_factory=list)
    cause: str = ""
    """The first sentence, if of what moved between base and head, or that nothing did."""


def explain(base: Profile, head: Profile, change: float | None = None) -> Explanation:
    """Explain what moved between `base` and `head`, ranked by how much of the change it accounts for.

    `change`: ratio head/base of the measured time; without one the profilers' own times decide. First come findings
    that account for a tenth of the change; then those that no time tells; then those that point the other way. There is
    always a sentence.
    """
    ratio = change if change is not None and math.isfinite(change) and change > 0 else None
    traced = usable(base) is not None and usable(head) is not None
    two = see(base, traced), see(head, traced)
    ranked = _ranked(differences.findings(*two), *two, ratio)
    missing = _unseen({"base": base, "head": head})
    alone = see(head, usable(head) is not None)
    said = [one.text for one in ranked] or _unexplained(*two, ratio)
    if ranked and all(one.topic == "machine" for one in ranked):
        said[0] += ": suspect the machine"
    told = {one.topic for one in ranked} | {"launch"}  # that a profiler makes launches slow is no news
    more = [one for one in standing(alone) if not one.topic or one.topic not in told]
    steps = [*(one.step for one in [*ranked, *more]), *_rules(alone, two[0])]
    found = _explanation([*said[:SENTENCES], *missing], steps)
    if said:
        found.cause = found.sentences[0]
    elif not missing:
        profiled = any(one.trace or one.counters or one.metrics for one in (base, head))
        found.sentences = [
            "base and head were not profiled alike" if profiled else "neither base nor head was profiled"
        ]
    return found


def explain_one(head: Profile) -> Explanation:
    """Explain what stands out in one profile: at least one sentence."""
    seen = see(head, usable(head) is not None)
    found = standing(seen)
    said = [one.text for one in found] or ([f"nothing stands out: {text}"] if (text := longest(seen)) else [])
    missing = [*code.told(seen), *_unseen({"head": head})]
    if not said and not missing:
        said = ["nothing stands out" if seen.trace or head.counters or head.metrics else "the case was not profiled"]
    return _explanation([*said[:SENTENCES], *missing], [*(one.step for one in found), *_rules(seen)])


def _ranked(found: list[Clue], base: Seen, head: Seen, ratio: float | None) -> list[Clue]:
    deltas = [head.device - base.device if base.groups is not None and head.groups is not None else 0.0]
    if base.trace and head.trace:
        deltas.append(head.trace.wall - base.trace.wall)
    deltas = [one for one in deltas if math.isfinite(one)]
    largest = max(deltas, key=abs, default=0.0)
    direction = math.copysign(1.0, math.log(ratio) if ratio is not None and ratio != 1 else largest)
    whole = max((abs(one) for one in [*deltas, *(one.seconds or 0.0 for one in found)]), default=0.0)

    def key(one: Clue) -> tuple[int, float, int, str]:
        share = one.seconds * direction / whole if one.seconds is not None and whole > 0 else 0.0
        bucket = 0 if share >= TELLING else 2 if share <= -TELLING else 1
        return bucket, -share if bucket == 0 else 0.0, one.order, one.text

    return sorted(found, key=key)


def _unexplained(base: Seen, head: Seen, ratio: float | None) -> list[str]:
    suspect = ratio is not None and abs(math.log(ratio)) >= math.log1p(SUSPICIOUS)
    end = ": suspect the machine" if suspect else ""
    if base.groups is not None and head.groups is not None:
        if not base.groups and not head.groups and not (base.trace and head.trace and base.trace.copies):
            return [
                f"nothing moved: neither base nor head ran a kernel or a copy{', but the time did' if suspect else ''}"
            ]
        if any(doubt(one.profile, "kernels") for one in (base, head)):
            return [f"nothing moved in what was seen of base and head, and not all was{end}"]
        counted = base.counted and head.counted and base.trace and head.trace
        return [
            f"nothing moved, the same kernels launched the same way{' with the same counters' if counted else ''}{end}"
        ]
    if any(pair(base.profile.metrics[name], head.profile.metrics.get(name)) for name in base.profile.metrics):
        return ["nothing moved in what was seen of base and head, but their kernels were not"]
    return []


# ---------------------------------------------------------------- what could not be seen


def _unseen(sides: dict[Side, Profile]) -> list[str]:
    """A part that no side has and no fault names was not asked for."""
    said = []
    for part in ("trace", "counters"):
        lacking = [name for name, profile in sides.items() if _lacks(profile, part)]
        faulty = any(fault.part == part for name in lacking for fault in sides[name].faults)
        if lacking and (faulty or len(lacking) < len(sides)):
            said.append(f"{part}: not seen" + (f" in {lacking[0]}" if len(lacking) < len(sides) else ""))
    sources = {one.trace.source for one in sides.values() if one.trace}
    if len(sources) > 1:
        said.append(f"the traces are of {' and '.join(sorted(sources))}: what the host did was not compared")
    return said


def _lacks(profile: Profile, part: Part) -> bool:
    return usable(profile) is None if part == "trace" else profile.counters is None and not kernelless(profile)


# ---------------------------------------------------------------- what the rules of profilers say


def _rules(seen: Seen, base: Seen | None = None) -> list[str]:
    """Most device time saved first; beside a base only rules that say more than there."""
    if base is not None and not base.counted:
        return []
    was: dict[tuple[str, str], float] = {}
    for one in base.counted if base is not None else ():
        for rule in one.rules:
            was[one.name, rule.name] = max(was.get((one.name, rule.name), 0.0), rule.speedup or 0.0)
    total = sum(one.seconds for one in seen.counted)
    if not 0 < total < math.inf:
        return []
    tool = seen.profile.counters.source if seen.profile.counters else ""
    told: list[tuple[float, str]] = []
    for one in sorted(seen.counted, key=lambda kernel: -kernel.seconds)[:SLOWEST]:
        estimated = [
            rule for rule in one.rules if rule.speedup and rule.speedup * NEWS > was.get((one.name, rule.name), 0.0)
        ]
        if not estimated:
            continue
        rule = max(estimated, key=lambda rule: rule.speedup or 0.0)
        saved = one.seconds / total * (rule.speedup or 0.0) / 100
        if saved < MINOR or not math.isfinite(saved):
            continue
        share = percent_of(one.seconds, total)
        about = f"`{identify(one.name).label}` ({share} of the kernel time): {one_line(rule.name, 60)}: "
        tail = f" ({tool} estimates {significant(rule.speedup or 0.0, 3)} %)"
        told.append((saved, about + one_line(_telling(rule.message), LONGEST - len(about) - len(tail)) + tail))
    return [text for _, text in sorted(told, key=lambda one: (-one[0], one[1]))]


def _telling(message: str) -> str:
    """From the first with a number on: definitions stand before."""
    sentences = _SENTENCE.split(message)
    start = next((i for i, one in enumerate(sentences) if any(c.isdigit() for c in one)), 0)
    return " ".join(sentences[start:])


def _explanation(sentences: Sequence[str], steps: Iterable[str]) -> Explanation:
    lines = _lines(sentences)
    return Explanation(
        sentences=[one if i else _fitted(one) for i, one in enumerate(lines)], next_steps=_lines(steps)[:STEPS]
    )


def _lines(texts: Iterable[str]) -> list[str]:
    return [one for one in dict.fromkeys(one_line(printable(text), LONGEST) for text in texts) if one]


def _fitted(text: str) -> str:
    if len(text) <= FIRST:
        return text
    end = text.rfind(", ", FIRST // 2, FIRST - 2)
    return f"{text[:end]}, …" if end > 0 else one_line(text, FIRST)
