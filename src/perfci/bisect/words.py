"""A bisect for people: on a terminal, in a log, as Markdown."""

from collections.abc import Sequence

from rich.console import Console

from perfci.bisect.document import Answer, Bisect, BisectStep, CommitFacts, Range, StepPurpose
from perfci.model.text import count, listed, short
from perfci.model.units import limit_percent, show_change, show_span
from perfci.render.escape import cell, code, prose, visible
from perfci.render.table import Table, put
from perfci.render.words import duration

NONE = "no commit is accused"
_HEAD = ["commit", ">change", "is it there", ">pairs", ">time", "subject"]
_PURPOSES: dict[StepPurpose, str] = {"whole": "whole range", "step": "step", "confirm": "against its parent"}
_HERE: dict[Answer, str] = {"yes": "there", "no": "not there", "unknown": "skipped"}


def change(one: BisectStep) -> str:
    """Return `+9.7 % (±0.5)`; a dash where nothing was compared."""
    if one.interval is None:
        return show_change(one.change)
    return show_span(one.change, one.interval.low, one.interval.high)


def named(one: CommitFacts) -> str:
    """Return a commit with its subject, author and date."""
    return f"{short(one.commit)} {one.subject!r} ({one.author}, {one.date})"


def answer(ranges: Sequence[Range], metric: str) -> str:
    """Return the answer of all ranges in one line."""
    accused = [one.named for one in ranges if one.ending == "found" and one.named is not None]
    if len(accused) < 2:
        return ranges[0].sentence
    return f"{count(len(accused), 'commit')} changed {metric}: {listed(map(named, accused), 10)}"


def sentence(found: Range, metric: str) -> str:
    """Return the answer of a search in one line."""
    good, bad, why = short(found.good.commit), short(found.bad.commit), found.whole.reason
    match found.ending:
        case "alike":
            return f"{NONE}: {metric} is alike in {good} and {bad}: {why}"
        case "unmeasured":
            return f"{NONE}: whether {metric} changes from {good} to {bad} is not known: {why}"
        case "skipped":
            names = listed((short(one.commit) for one in found.suspects), 6)
            return f"{NONE}: it is one of {count(len(found.suspects), 'commit')} that steps could not part: {names}"
        case _ if found.named is None:
            raise ValueError(f"{good}..{bad}: {found.ending} without a commit")
    name, parents = named(found.named), [short(one.base) for one in found.confirmed]
    match found.ending:
        case "unconfirmed":
            other = next(one for one in found.confirmed if one.answer != "yes")
            return f"{NONE}: the steps end at {name}, but against its parent {short(other.base)}: {other.reason}"
        case "joined":
            todo = " and ".join(f"{good} {one}" for one in parents)
            return f"{NONE}: the merge {name} joins lines that each have a part of the change: bisect {todo}"
    if len(found.confirmed) == 1:
        own = f"{change(found.confirmed[0])} against its parent {parents[0]}"
    else:
        own = f"{show_change(found.own)} beside what it merges ({', '.join(parents)})"
    rest = f", not all of {change(found.whole)}: there are several steps, or some go back" if found.several else ""
    return f"{name} is the commit: {metric} {own}{rest}"


def told(one: BisectStep, head: CommitFacts) -> str:
    """Return a line on a comparison just made."""
    commits = f"{short(one.base)} .. {short(one.head)}"
    if one.answer == "unknown":
        said = f"skipped: {one.reason}" if one.purpose == "step" else one.reason
    else:
        said = f"{change(one)}: {_HERE[one.answer]}" if one.change is not None else f"{_HERE[one.answer]}: {one.reason}"
    return f"{_PURPOSES[one.purpose]}: {commits} {visible(head.subject)!r}: {visible(said)}"


def print_bisect(found: Bisect, console: Console) -> None:
    """Print each range, with its steps at the end."""
    rich = console.is_terminal
    put(console, visible(_about(found)), "dim")
    for one in found.ranges:
        put(console, "")
        put(console, visible(_range(one, found.metric)), "bold")
        if one.steps:
            table = Table(_HEAD, [[visible(entry) for entry in _row(step, found)] for step in one.steps])
            for line in (table.fitted(console.width) if rich else table).lines(console):
                console.print(line, soft_wrap=True, highlight=False)
        for sentence in _reasons(one):
            put(console, visible(f"  {sentence}"), "dim")
        if len(found.ranges) > 1:
            put(console, visible(one.sentence))


def print_answer(found: Bisect, console: Console) -> None:
    """Print which commits are accused, if any."""
    put(console, visible(found.sentence), "bold")


def render(found: Bisect) -> str:
    """Return `bisect.md`."""

    def text(words: str) -> str:
        for commit in found.names:
            words = words.replace(short(commit), f"`{short(commit)}`")  # to be copied whole
        return prose(words, 600)

    lines = [f"### {text(found.sentence)}", "", prose(_about(found)), ""]
    for one in found.ranges:
        lines += [f"**{text(_range(one, found.metric))}**", ""]
        if len(found.ranges) > 1:
            lines += [text(one.sentence), ""]
        if one.steps:
            lines += [f"| {' | '.join(Table(_HEAD, []).names)} |", "|---|--:|---|--:|--:|---|"]
            for step in one.steps:
                name, *rest = _row(step, found)
                lines.append(f"| {code(name)} | {' | '.join(map(cell, rest))} |")
            lines.append("")
        if reasons := _reasons(one):
            lines += [*(f"- {text(sentence)}" for sentence in reasons), ""]
    return "\n".join(lines)


def _about(found: Bisect) -> str:
    limit = [] if found.limit is None else [f"limit {limit_percent(found.limit)}"]
    device = [found.device_name] if found.device_name else []
    return " · ".join([found.case, found.metric, *limit, *device, duration(found.seconds)])


def _range(one: Range, metric: str) -> str:
    between = f"{short(one.good.commit)} .. {short(one.bad.commit)}, {count(one.candidates, 'commit')}"
    return f"{between}: {metric} {change(one.whole)}" if one.whole.change is not None else between


def _row(step: BisectStep, found: Bisect) -> list[str]:
    facts = found.names[step.head]
    return [
        short(facts.commit),
        change(step) if step.answer != "unknown" else "–",
        _HERE[step.answer],
        str(step.pairs) if step.pairs else "–",
        duration(step.seconds) if step.seconds else "–",
        facts.subject,
    ]


def _reasons(one: Range) -> list[str]:
    told = [
        f"{short(step.head)}: {step.reason}"
        for step in one.steps
        if step.reason and (step.answer == "unknown" or not step.pairs)
    ]
    seen = [f"{short(one.base)} → {short(one.head)}: {text}" for one in one.confirmed for text in one.explained]
    return told + seen
