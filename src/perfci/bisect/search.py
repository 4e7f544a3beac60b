"""The search. It measures nothing.

The ends are compared first. A step then asks whether at least half of their change is there, from the good end to a
candidate that git chooses. The chance of a wrong step is shared out over all candidates. The commit that the steps name
is accused where it changes the metric against each of its parents.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from perfci.bisect.document import BisectStep, Range, StepPurpose
from perfci.bisect.walk import GitHistory
from perfci.bisect.words import sentence
from perfci.model.metrics import Direction
from perfci.model.text import short


class Trial(NamedTuple):
    """A comparison that the search asks for."""

    purpose: StepPurpose
    base: str
    head: str
    better: Direction | None = None
    """The direction that does not count; None: either does."""
    bound: float | None = None
    """Relative change asked about; None takes the limit."""
    sharing: int = 1
    """Questions that share the error rates."""


def search(history: GitHistory, ask: Callable[[Trial], BisectStep], good: str, bad: str, metric: str) -> Range:
    """Search one range. Raises what `ask` raises."""
    found = _search(history, ask, good, bad)
    found.sentence = sentence(found, metric)
    return found


def _search(history: GitHistory, ask: Callable[[Trial], BisectStep], good: str, bad: str) -> Range:
    number = history.count(good, bad)
    whole = ask(Trial("whole", good, bad))
    found = Range(
        good=history.facts(good), bad=history.facts(bad), candidates=number, whole=whole, ending="alike", sentence=""
    )
    if whole.answer != "yes":
        if whole.answer == "unknown":
            found.ending = "unmeasured"
        return found
    size = _log(whole)
    better: Direction = "lower" if size > 0 else "higher"
    half = math.expm1(size / 2) if size > 0 else -math.expm1(size / 2)
    with history.walk(good, bad) as walk:
        while (candidate := walk.candidate()) is not None:
            step = ask(Trial("step", good, candidate, better, half, number))
            found.steps.append(step)
            walk.mark(candidate, step.answer)
        named = walk.named()
    if len(named) > 1:
        found.ending, found.suspects = "skipped", [history.facts(commit) for commit in named]
        return found
    found.named = history.facts(named[0])
    against = history.parents(named[0])
    found.confirmed = [ask(Trial("confirm", one, named[0], better, sharing=len(against))) for one in against]
    _conclude(found)
    return found


def _conclude(found: Range) -> None:
    """Of a merge of k parents: the sum of its changes against them less k - 1 times the whole: what came by the
    joined lines is in each of the changes but one."""
    if any(one.answer != "yes" for one in found.confirmed):
        found.ending = "unconfirmed"
        return
    way = math.copysign(1.0, _log(found.whole))
    size, wide = _log(found.whole) * way, _half_width(found.whole)
    k = len(found.confirmed)
    own = math.fsum(_log(one) * way for one in found.confirmed) - (k - 1) * size
    doubt = math.hypot((k - 1) * wide, *map(_half_width, found.confirmed))
    limit = max((abs(math.log1p(one.limit)) for one in found.confirmed if one.limit is not None), default=0.0)
    if k > 1 and own <= max(limit / 2, doubt):
        found.ending = "joined"
        return
    found.ending, found.own = "found", math.exp(way * own)
    found.several = abs(size - own) > max(limit, math.hypot(doubt, wide))


def _log(one: BisectStep) -> float:
    if one.change is None or not 0 < one.change < math.inf:
        raise ValueError(f"{short(one.base)}..{short(one.head)}: an answer without a change")
    return math.log(one.change)


def _half_width(one: BisectStep) -> float:
    if one.interval is None or one.interval.low <= 0:
        return 0.0
    return (math.log(one.interval.high) - math.log(one.interval.low)) / 2


def rest(found: Range, history: GitHistory) -> Iterator[tuple[str, str]]:
    """Yield the ranges in which an accused commit leaves something of the change."""
    if found.ending == "found" and found.several and found.named is not None:
        commit = found.named.commit
        for parent in history.parents(commit):
            if parent != found.good.commit and history.count(found.good.commit, parent):
                yield found.good.commit, parent
        if commit != found.bad.commit:
            yield commit, found.bad.commit


def search_all(
    history: GitHistory, ask: Callable[[Trial], BisectStep], good: str, bad: str, metric: str, *, deeper: bool
) -> list[Range]:
    """Search a range, with `deeper` what accused commits leave, too. Raises what `ask` raises."""
    found: list[Range] = []
    waiting = [(good, bad)]
    while waiting:
        one = search(history, ask, *waiting.pop(0), metric)
        found.append(one)
        if deeper:
            waiting += rest(one, history)
    return found
