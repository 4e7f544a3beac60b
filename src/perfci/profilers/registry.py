"""The profilers that perfci knows, in the order of choice."""

from typing import Any

from perfci.profilers.base import Profiler
from perfci.profilers.ncu.profiler import Ncu
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.sass.profiler import Sass
from perfci.profilers.torch.profiler import Kineto

Kind = type[Profiler[Any]]
_KINDS: list[Kind] = []


def register(*kinds: Kind) -> None:
    """Add profilers behind the known ones. Raises ValueError for a name that is taken."""
    for kind in kinds:
        if any(kind.name == known.name for known in _KINDS):
            raise ValueError(f"{kind.name}: a profiler of this name is registered: give it another name")
        _KINDS.append(kind)


def registered() -> list[Kind]:
    """Return the profilers in order."""
    return [*_KINDS]


register(Nsys)
register(Kineto)
register(Ncu)
register(Sass)
