"""Check that every limit of a policy has something to judge: one that has not is a mistake, and never passes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from perfci.model.base import matches
from perfci.model.criteria import against, asked
from perfci.model.metrics import OBSERVED, resolve
from perfci.model.plan import Declared
from perfci.model.policy import Limit, Loc, Policy
from perfci.model.text import did_you_mean, listed

SHOWN = 6
"""Names that an error lists at most."""
LONGEST, MOST = 200, 5000
"""Characters of an id, and ids, that are searched for the nearest: a stranger may bring any."""
_LITERAL = re.compile(r"[^*?\[]*")


class Idle(NamedTuple):
    """A limit that judges nothing."""

    limit: int
    """Its index."""
    loc: Loc
    """The value that is wrong: of a glob, which of them."""
    text: str
    """Beginning with its field in the policy, in one line."""
    wrong: bool
    """True where that is a mistake; not where the limit allows that its metric is missing."""


def idle(policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> Iterator[Idle]:
    """Yield the limits of `policy` that no case of `declared` can answer, in order.

    A device that is not here is no reason, nor what was asked for on the command line: they are not in `declared`.
    `reports`: id of a command's case → the metrics that it reports; a case that is not in it may report any.
    """
    ids = [*declared.kernels, *declared.commands]
    for index, limit in enumerate(policy.limits):
        where = f"limits[{index}]"
        lost = {n: pattern for n, pattern in enumerate(limit.cases) if not matched(pattern, ids, declared)}
        yield from (
            Idle(
                index,
                ("limits", index, "cases", n),
                f"{where}.cases: {pattern!r} matches no case: {_remedy(pattern, ids)}",
                True,
            )
            for n, pattern in lost.items()
        )
        if not lost and (text := _unreported(limit, policy, declared, reports)):
            yield Idle(index, ("limits", index, "metric"), f"{where}: {text}", limit.on_missing == "fail")


def mistake(policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]], file: str) -> str:
    """Return the first mistake that `idle` finds, with its line in `file`; empty where there is none."""
    found = (f"{policy.place(file, one.loc)}: {one.text}" for one in idle(policy, declared, reports) if one.wrong)
    return next(found, "")


def matched(pattern: str, ids: Iterable[str], declared: Declared) -> bool:
    """Tell whether a glob matches one of `ids`, or may match a case of `declared` that is not known."""
    if not declared.whole or any(matches(pattern, ident) for ident in ids):
        return True
    literal = _LITERAL.match(pattern)
    start = literal[0] if literal else ""
    return any(
        start.startswith(f"{name}/") or (start != pattern and f"{name}/".startswith(start)) for name in declared.unknown
    )


def nearest(pattern: str, ids: Iterable[str]) -> str:
    """Return what was probably intended by a glob that matches none of `ids`; else what there is."""
    known = [ident for ident in dict.fromkeys(ids) if len(ident) <= LONGEST][:MOST]
    pattern = pattern[:LONGEST]
    of_kernels = dict.fromkeys(f"{ident.split('/', maxsplit=1)[0]}/*" for ident in known if "/" in ident)
    groups = dict.fromkeys([*of_kernels, *(ident for ident in known if "/" not in ident)])
    return did_you_mean(pattern, [*of_kernels, *known], f"there are {listed(groups, SHOWN)}")


def _remedy(pattern: str, ids: Iterable[str]) -> str:
    known = list(ids)
    if not known:
        return "no kernel or command is declared: see `suite` and `commands`"
    found = nearest(pattern, known)
    return found if found.endswith("?") else f"{found}: fix or remove it"


def _unreported(limit: Limit, policy: Policy, declared: Declared, reports: Mapping[str, frozenset[str]]) -> str:
    """Return why nothing that the limit matches has its metric; empty where something has it, or may have it."""
    metric = resolve(limit.metric, policy.metrics)
    if all(against(kind) == "names" for kind in asked(limit, metric, "cuda")):
        return ""
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
    hint = did_you_mean(metric.name, found, f"they report {listed(found, SHOWN)}")
    return f"no case that {listed(limit.cases, SHOWN)} matches reports {metric.name}: {hint}"


def _names(limit: Limit, ident: str) -> bool:
    return any(matches(pattern, ident) for pattern in limit.cases)
