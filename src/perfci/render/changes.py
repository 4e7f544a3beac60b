"""The state of a history, as lines for people."""

import math
from collections.abc import Iterator

from perfci.history.check import HistoryCheck, Over, Proposal, Standing
from perfci.model.base import DeviceKind
from perfci.model.text import count, shell, short
from perfci.model.units import limit_percent, show_span
from perfci.render.escape import visible

MOST = 100
"""Entries of a list; JSON has all."""


def render(found: HistoryCheck) -> str:
    """Return a check's answer as plain lines."""
    return "\n".join(_lines(found)) + "\n"


def change(one: Proposal) -> str:
    """Return a proposal in a few words: `+1.9 % (±0.3), for the worse`."""
    way = "" if one.worse is None else ", for the worse" if one.worse else ", for the better"
    return f"{show_span(one.change, one.low, one.high)}{way}"


def between(one: Proposal) -> str:
    """Return its commits."""
    if not one.command:
        return f"between two nights of {short(one.good)}, so that no commit did it"
    return f"between {short(one.good)} and {short(one.bad)}"


def _lines(found: HistoryCheck) -> Iterator[str]:
    yield (
        f"{count(found.nights, 'night')}, {found.series} series with {count(found.answers, 'answer')}, "
        f"{found.unanswered} without in the latest epoch: "
        f"{count(len(found.changes), 'change')} proposed, {sum(over.alert for over in found.over)} over a limit"
    )
    for one in found.changes[:MOST]:
        yield ""
        mark, moves = ("~", "drifts") if one.kind == "drift" else (">", "steps")
        yield f"{mark} {_name(one.case, one.metric, one.device, one.device_name)}: {change(one)}"
        yield f"  {moves} {between(one)}, proposed {one.known[:10]}{'; to decide:' if one.command else ''}"
        if one.command:
            yield f"  {shell(one.command)}"
    yield from _rest(len(found.changes))
    if found.over:
        yield ""
    told = {shell(one.command) for one in found.changes[:MOST]}
    for over in found.over[:MOST]:
        yield _over(over)
        if over.command and (decides := shell(over.command)) not in told:
            told.add(decides)
            yield f"  since {short(over.bad)}; to decide:"
            yield f"  {decides}"
    yield from _rest(len(found.over))
    unanswered = [one for one in found.standings if one.limit is not None and one.state == "silent"]
    if unanswered:
        yield ""
    yield from map(_silent, unanswered[:MOST])
    yield from _rest(len(unanswered))
    unknown = sum(one.state == "unknown" for one in found.standings)
    if unknown:
        yield f"{unknown} series of which the last nights do not say whether their limit holds"
    if found.unasked:
        yield f"{found.unasked} series without any ratio: the reference or main lacks the case, or nothing asks for it"
    if found.silent:
        yield ""
        yield f"{len(found.silent)} series without an answer on the last night:"
        for silent in found.silent[:MOST]:
            name = _name(silent.case, silent.metric, silent.device, silent.device_name)
            yield f"? {name}: {count(silent.nights, 'night')}: {visible(silent.reason)}"
        yield from _rest(len(found.silent))
    if found.left_out:
        yield ""
        yield f"{count(len(found.left_out), 'document')} of the store left out:"
        for left in found.left_out[:MOST]:
            yield f"! {visible(left.name)} {visible(left.reason)}"
        yield from _rest(len(found.left_out))


def _rest(number: int) -> Iterator[str]:
    if number > MOST:
        yield f"… and {number - MOST} more: --json has all"


def _name(case: str, metric: str, device: DeviceKind, name: str) -> str:
    return f"{visible(case)} · {visible(metric)} · {visible(name)} ({device})"


def _silent(one: Standing) -> str:
    name = _name(one.case, one.metric, one.device, one.device_name)
    if one.ratio is None or one.low is None or one.high is None or not math.isfinite(one.ratio):
        return f"? {name}: no answer against {visible(one.reference) or 'a reference'}: {visible(one.reason)}"
    where = f"{show_span(one.ratio, one.low, one.high)} against {visible(one.reference)} at {short(one.commit)}"
    return f"? {name}: {where}, not answered since {one.answered[:10]}: {visible(one.reason)}"


def _over(over: Over) -> str:
    what = visible(over.reason) or "over an absolute limit"
    if over.against != "bound":
        moved = "worse" if over.ratio is None else show_span(over.ratio, over.low or 0, over.high or 0)
        limit = f", over its limit of {limit_percent(over.limit)}" if over.limit is not None else ""
        what = f"{moved} against {visible(over.reference) or short(over.base)}{limit}"
    nights = f"since {over.since[:10]}" if over.alert else f"on one night so far, {over.since[:10]}"
    return (
        f"{'>' if over.alert else '!'} {_name(over.case, over.metric, over.device, over.device_name)}: {what}, {nights}"
    )
