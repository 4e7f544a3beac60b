"""The one protocol of profilers: what one provides, how it is found, started and read, and how it fails.

A back end is a class that derives from `Profiler` and a line in `registry.py`, whose order is the order of choice;
besides, only `perfci doctor` knows tools by name.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from perfci.model.base import DeviceKind, Side
from perfci.model.policy import Command, CounterSet
from perfci.model.profile import Counters, Fault, KernelCode, KernelUse, Part, Tool, Trace
from perfci.model.results import Reason
from perfci.sources.environment import FOLDERS, is_secret, passes
from perfci.system.bounded import MIB, Bounds
from perfci.system.child import Exit, Under
from perfci.system.files import end_of
from perfci.system.users import SAME, Account

TRACED = 3
"""Under a timeline a case may take this many times its time-out."""
LOG_END = 200_000
"""Bytes of a log that are searched for what went wrong."""
LARGEST_TIMELINE = 128 * MIB
"""Bytes of a timeline for a browser: nsys.perfetto.MOST_EVENTS take a tenth."""
SMALLER = "let it do less: fewer steps, or fewer shapes"
"""The remedy for a process that is too much for a profiler."""
WHOLE = ""
"""The name of the one range that is a whole command."""

Scope = Literal["case", "command", "side"]
"""The scope of a profiler: cases in a worker, a whole command, or the files that a side has built."""
Code = list[KernelCode]
Seen = TypeVar("Seen", Trace, Counters, Code)


@dataclass
class Read(Generic[Seen]):
    """The content of a profiler's report, by name of range."""

    seen: dict[str, Seen] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """By name of range. What was seen beside a fault is whole but for what the fault says."""
    general: list[Fault] = field(default_factory=list)
    """Faults that concern all ranges."""
    device: str = ""
    """Name of the GPU, of a report that perfci did not ask for; empty where it is not told."""
    capability: tuple[int, int] | None = None
    """Its compute capability likewise."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Metrics `asking` added that kept the profiler from counting at all, with its reason: it may be started anew
    without them."""


@dataclass(frozen=True)
class Keep:
    """Where what profilers wrote stays."""

    folder: Path | None = None
    """Of exports and timelines, without what they tell of the machine; None where none are kept."""
    raw: Path | None = None
    """Of the profilers' own reports, in which a scan finds no secret; None where none are kept."""
    handed_on: bool = False
    """True where these reports leave the machine: none is then kept of a profiler that sees what others run on it."""


@dataclass(frozen=True)
class Request:
    """The request of a run to every profiler, and the machine that it runs on."""

    timeout: float
    """Seconds that a case may take without a profiler."""
    gpu: bool = False
    """True where cases run on a GPU."""
    driver_cuda: str = ""
    """The CUDA version of the driver, such as `12.8`; empty where it is not known."""
    capability: tuple[int, int] | None = None
    """Compute capability of the GPU."""
    counters: CounterSet | Sequence[str] = "default"
    """The set of counters that the policy names, or further sections of the profiler."""
    metrics: tuple[str, ...] = ()
    """Further counters of the table, which limits need."""
    written_env: frozenset[tuple[str, str]] = frozenset()
    """Names and values that the policies set: profiled processes get these beside what every one gets."""
    keep: Keep | None = None
    account: Account = SAME
    """Who runs what is profiled, and the profiler with it."""


@dataclass(frozen=True)
class Built:
    """A side as its build left it, for profilers of scope `side`."""

    name: Side
    folders: Sequence[Path]
    """Where its own files are."""
    python: str
    """Its interpreter, started with `env` in `cwd`."""
    env: Mapping[str, str]
    cwd: Path


class Profiler(ABC, Generic[Seen]):
    """A profiler that works on this machine."""

    name: ClassVar[Tool]
    """Shown to people; unique."""
    part: ClassVar[Part]
    """The part of a profile that it provides."""
    scopes: ClassVar[frozenset[Scope]]
    """`case` and `command` ask `read` of it, `side` asks `inspect`."""
    trims: ClassVar[bool] = False
    """True where its report holds the environment, so that code under it gets `trimmed` of it."""
    executions: ClassVar[int] = 10
    """Of each case."""
    window: ClassVar[bool | None] = None
    """True where each case opens the profiler's window itself; False where it is open from the first case to the last;
    None where there is none to open."""
    seconds: float
    """That one case, or the command, may take."""

    @classmethod
    @abstractmethod
    def find(cls, request: Request) -> "Profiler[Seen] | Fault":
        """Return the profiler as it is on this machine, or why it cannot be used."""

    def for_cases(self, device: DeviceKind) -> "Profiler[Seen]":
        """Return the profiler for cases of one device in a worker."""
        return self

    def for_command(self, device: DeviceKind, timeout: float, asked: Command) -> "Profiler[Seen]":
        """Return the profiler for a command, which takes `timeout` seconds at most without one.

        `asked`: what is to be seen of it, its `kernels`, `range`, `skip` and `trace`; base's, where it has the command.
        """
        raise NotImplementedError(f"{self.name} profiles no command")  # only one whose `scopes` name them is asked

    def asking(self, metrics: Sequence[str]) -> "Profiler[Seen]":
        """Return the profiler as it takes further metrics, by its own names: those that limits on the cases need for
        which it is started."""
        return self

    def without(self, refused: Mapping[str, str]) -> "Profiler[Seen]":
        """Return the profiler without what it refused: what it says of each metric is a fault of all that it reads."""
        return self

    def lacking(self) -> Mapping[str, str]:
        """Return metrics that were requested and cannot be had here, with the reason."""
        return {}

    def under(self, report: Path) -> Under | None:
        """Return how a process is started under it, with `report` to write to; None for one inside the worker."""
        return None

    def path(self, report: Path, name: str) -> str | None:
        """Return where torch's profiler inside the worker writes what it sees of one case; None for any other."""
        return None

    def excess(self, report: Path) -> Reason | None:
        """Return why it is to be ended; asked while a command runs."""
        return None

    def written(self, report: Path) -> bool:
        """Tell whether all is written that must be before the worker ends: some lose what they still hold then."""
        return True

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Seen]:
        """Return what the report holds once the profiler has ended; `ended` None where it was killed for its time.

        `names`: of the ranges of cases, or WHOLE. What goes wrong is a fault, never an exception. Code under test can
        write any file in the place of a report: read it in a process of its own (`system.bounded.call`), within
        bounds, as the user of that code (`Request.account`).
        """
        raise NotImplementedError(f"{self.name} is put around nothing")  # it writes no report: `inspect` is asked

    def inspect(
        self, built: Built, kernels: Mapping[str, Sequence[KernelUse]], note: Callable[[str], None]
    ) -> Read[Seen]:
        """Return what the files of a side hold of the `kernels` of each name."""
        raise NotImplementedError(f"{self.name} reads no files of a side")  # only one whose `scopes` name it is asked


def grown(size: int, per_second: float, most: float, **more: int) -> Bounds:
    """Return bounds of ten seconds for a reader, and one more for each `per_second` bytes of a file, up to `most`.

    A small file cannot cost what a large one may.
    """
    return Bounds(seconds=min(most, 10 + size / per_second), **more)


def said(log: Path) -> str:
    """Return the end of a log, where a profiler says what went wrong."""
    return end_of(log, LOG_END).decode(errors="replace")


# ---------------------------------------------------------------- the environment

_PERFCI = re.compile(
    r"PERFCI_.* | PYTHON(PATH|UNBUFFERED|NOUSERSITE|HASHSEED|DONTWRITEBYTECODE|FAULTHANDLER)"
    r"| OMP_WAIT_POLICY | NUMEXPR_NUM_THREADS | VECLIB_MAXIMUM_THREADS | CUDA_VISIBLE_DEVICES",
    re.VERBOSE,
)


def trimmed(env: Mapping[str, str], written: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the part of `env` that a profiled process gets: what a worker gets without being named in the policy,
    caches, and what is `written` in a policy as name and value, which is no secret in its repository.

    Compiled kernels must be found again, or the profile is one of compilation. Likely secrets are left out.
    """
    return {
        name: value
        for name, value in env.items()
        if (passes(name, build=False) or name in FOLDERS or _PERFCI.fullmatch(name) or (name, value) in written)
        and not is_secret(name, value)
    }
