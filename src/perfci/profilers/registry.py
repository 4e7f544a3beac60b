"""The profilers, in the order of choice."""

from typing import Any

from perfci.profilers.base import Profiler
from perfci.profilers.ncu.profiler import Ncu
from perfci.profilers.nsys.profiler import Nsys
from perfci.profilers.sass.profiler import Sass
from perfci.profilers.torch.profiler import Kineto

Kind = type[Profiler[Any]]
KINDS: tuple[Kind, ...] = (Nsys, Kineto, Ncu, Sass)
