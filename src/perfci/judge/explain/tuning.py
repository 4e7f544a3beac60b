"""The configurations that an autotuner chose."""

from collections import Counter
from collections.abc import Mapping, Sequence

from perfci.model.base import SIDES, Side
from perfci.model.results import Case
from perfci.model.text import one_line, printable, shorten

MOST_TUNED = 3
"""Sentences on a case."""
Config = tuple[tuple[str, str], ...]
_LONGEST, _MOST = 130, 3
"""Characters on one kernel; configurations of one side."""


def changes(case: Case) -> list[str]:
    """Return a sentence for each kernel whose workers agree within each side, not between them."""
    base, head = (_chosen(case, name) for name in SIDES)
    several = len(base.keys() | head.keys()) > 1
    said = []
    for kernel in base.keys() & head.keys():
        if len(base[kernel]) == len(head[kernel]) == 1 and base[kernel].keys() != head[kernel].keys():
            old, new = next(iter(base[kernel])), next(iter(head[kernel]))
            text = _moved(old[0], new[0]) if len(old) == len(new) == 1 else f"{_several(old)} → {_several(new)}"
            said.append(_sentence(f"autotuning{_of(kernel, several)}", text))
    return sorted(said)


def variations(case: Case) -> list[str]:
    """Return a sentence for each kernel that workers of one side ran differently."""
    chosen = {name: _chosen(case, name) for name in SIDES}
    several = len({kernel for one in chosen.values() for kernel in one}) > 1
    said = []
    for kernel in sorted({kernel for one in chosen.values() for kernel in one}):
        varying = {name: one[kernel] for name, one in chosen.items() if len(one.get(kernel, ())) > 1}
        if varying:
            text = "; ".join(_varied(name, counted) for name, counted in varying.items())
            said.append(_sentence(f"autotuning{_of(kernel, several)} varies from process to process", text))
    return said


def _chosen(case: Case, side: Side) -> Mapping[str, Counter[tuple[Config, ...]]]:
    """Kernel → configurations of a worker → number of workers."""
    found: dict[str, Counter[tuple[Config, ...]]] = {}
    for pair in case.pairs:
        own: dict[str, set[Config]] = {}
        for choice in pair.choices.get(side, []):
            own.setdefault(choice.kernel, set()).add(tuple(sorted(choice.config.items())))
        for kernel, configs in own.items():
            found.setdefault(kernel, Counter())[tuple(sorted(configs))] += 1
    return found


def _moved(old: Config, new: Config) -> str:
    before, after = dict(old), dict(new)
    parts = []
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was != now:
            parts.append(f"{_plain(name)} {_plain(was)} → {_plain(now)}")
    return ", ".join(parts)


def _varied(side: Side, counted: Counter[tuple[Config, ...]]) -> str:
    everything = [dict(config) for configs in counted for config in configs]
    names = {name for config in everything for name in config}
    varying = {name for name in names if len({config.get(name) for config in everything}) > 1}
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{_several(configs, varying)} in {number}" for configs, number in ordered[:_MOST]]
    more = f" and {len(ordered) - _MOST} others" if len(ordered) > _MOST else ""
    return f"{side} {', '.join(parts)}{more} of {counted.total()}"


def _several(configs: Sequence[Config], only: set[str] | None = None) -> str:
    words = []
    for config in configs:
        parts = (f"{_plain(name)} {_plain(value)}" for name, value in config if only is None or name in only)
        words.append(" ".join(parts))
    return " / ".join(words)


def _of(kernel: str, several: bool) -> str:
    return f" of {shorten(_plain(kernel), 40)}" if several else ""


def _sentence(subject: str, text: str) -> str:
    return f"{subject}: {shorten(text, max(40, _LONGEST - len(subject)))}"


def _plain(text: str | None) -> str:
    return "none" if text is None else one_line(printable(text), 40).replace("`", "'")
