"""The profilers that perfci knows, in the order in which they are tried."""

from typing import Any

from perfci.profilers.base import Profiler
from perfci.profilers.ncu.profiler import Ncu
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.sass.profiler import Sass
from perfci.profilers.torch.profiler import Kineto

Kind = type[Profiler[Any]]
_KINDS: list[Kind] = []


def register(*kinds: Kind) -> None:
    """Make profilers known, behind those that are. Raises ValueError for a name that another one has."""
    for kind in kinds:
        if any(kind.name == known.name for known in _KINDS):
            raise ValueError(f"{kind.name}: a profiler of this name is registered: give it another name")
        _KINDS.append(kind)


def registered() -> list[Kind]:
    """Return the profilers, in their order."""
    return [*_KINDS]


register(Nsys)
register(Kineto)
register(Ncu)
register(Sass)
