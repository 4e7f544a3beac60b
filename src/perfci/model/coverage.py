"""Whether every limit of a policy has something to judge: one that has not is a mistake, and never passes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from perfci.model.base import matches
from perfci.model.metrics import OBSERVED, resolve
from perfci.model.plan import Declared
from perfci.model.policy import Limit, Policy

SHOWN = 6
"""Names that an error lists at most."""
LONGEST, MOST = 200, 5000
"""Characters of an id, and ids, among which the nearest is looked for: a stranger may bring any."""
_LITERAL = re.compile(r"[^*?\[]*")


class Idle(NamedTuple):
    """A limit that judges nothing."""

    limit: int
    """Its index."""
    text: str
    """Beginning with its place in the policy, in one line."""
    wrong: bool
    """Whether that is a mistake; not where the limit allows that its metric is missing."""


def idle(policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> Iterator[Idle]:
    """The limits of `policy` that no case of `declared` can answer, in order.

    A device that is not here is no reason, nor what was asked for on the command line: they are not in `declared`.
    `reports`: id of a command's case → the metrics that it reports; a case that is not in it may report any.
    """
    ids = [*declared.kernels, *declared.commands]
    for index, limit in enumerate(policy.limits):
        where = f"limits[{index}]"
        lost = [pattern for pattern in limit.cases if not matched(pattern, ids, declared)]
        yield from (
            Idle(index, f"{where}.cases: {pattern!r} matches no case: {_remedy(pattern, ids)}", True)
            for pattern in lost
        )
        if not lost and (text := _unreported(limit, policy, declared, reports)):
            yield Idle(index, f"{where}: {text}", limit.on_missing == "fail")


def mistake(policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> str:
    """The first mistake that `idle` finds; empty where there is none."""
    return next((one.text for one in idle(policy, declared, reports) if one.wrong), "")


def matched(pattern: str, ids: Iterable[str], declared: Declared) -> bool:
    """Return whether a glob matches one of `ids`, or may match a case of `declared` that is not known."""
    if not declared.whole or any(matches(pattern, ident) for ident in ids):
        return True
    literal = _LITERAL.match(pattern)
    start = literal[0] if literal else ""
    return any(
        start.startswith(f"{name}/") or (start != pattern and f"{name}/".startswith(start)) for name in declared.unknown
    )


def nearest(pattern: str, ids: Iterable[str]) -> str:
    """What was probably meant by a glob that matches none of `ids`; else what there is."""
    known = [ident for ident in dict.fromkeys(ids) if len(ident) <= LONGEST][:MOST]
    pattern = pattern[:LONGEST]
    of_kernels = dict.fromkeys(f"{ident.split('/', maxsplit=1)[0]}/*" for ident in known if "/" in ident)
    close = get_close_matches(pattern, [*of_kernels, *known], 1)
    if close:
        return f"did you mean {close[0]!r}?"
    groups = list(dict.fromkeys([*of_kernels, *(ident for ident in known if "/" not in ident)]))
    return f"there are {_listed(groups)}"


def _remedy(pattern: str, ids: Iterable[str]) -> str:
    known = list(ids)
    if not known:
        return "no kernel or command is declared: see `suite` and `commands`"
    found = nearest(pattern, known)
    return found if found.endswith("?") else f"{found}: mend or remove it"


def _unreported(limit: Limit, policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> str:
    """Why nothing that the limit matches has its metric; empty where something has it, or may have it."""
    metric = resolve(limit.metric, policy.metrics)
    if limit.regression is None and limit.min is None and limit.max is None:
        return ""  # expect_kernels alone
    if metric.tier in OBSERVED or not declared.whole:
        return ""  # a profiler sees it, or what is not known may report it
    if metric.tier == "timing" and any(_names(limit, ident) for ident in declared.kernels):
        return ""
    if any(matched(pattern, (), declared) for pattern in limit.cases):
        return ""
    own = [ident for ident in declared.commands if _names(limit, ident)]
    wanted = "time" if metric.tier == "timing" else metric.name
    if any(wanted in reports.get(ident, {wanted}) for ident in own):
        return ""
    found = sorted({name for ident in own for name in reports[ident]})
    if any(_names(limit, ident) for ident in declared.kernels):
        found = sorted({*found, "time"})
    close = get_close_matches(metric.name, found, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"they report {_listed(found)}"
    return f"no case that {_listed(limit.cases)} matches reports {metric.name}: {hint}"


def _names(limit: Limit, ident: str) -> bool:
    return any(matches(pattern, ident) for pattern in limit.cases)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
