"""The protocol of profilers: a back end derives from `Profiler` and has a line in `registry.py`."""

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
"""Times its time-out that a case may take under a timeline."""
LOG_END = 200_000
"""Bytes of a log searched for an error."""
LARGEST_TIMELINE = 128 * MIB
"""Bytes; nsys.perfetto.MOST_EVENTS take a tenth."""
SMALLER = "let it do less: fewer steps, or fewer shapes"
WHOLE = ""
"""The range of a whole command."""

Scope = Literal["case", "command", "side"]
Code = list[KernelCode]
Seen = TypeVar("Seen", Trace, Counters, Code)


@dataclass
class Read(Generic[Seen]):
    """The content of a profiler's report, by name of range."""

    seen: dict[str, Seen] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """Beside a fault all is whole but for what the fault says."""
    general: list[Fault] = field(default_factory=list)
    device: str = ""
    """Of a report that perfci did not ask for; empty where unknown."""
    capability: tuple[int, int] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Metrics added by `asking` that kept the profiler from counting at all → its reason."""


@dataclass(frozen=True)
class Keep:
    """Folders for what profilers wrote."""

    folder: Path | None = None
    """Of exports and timelines without data of the machine."""
    raw: Path | None = None
    """Of the profilers' own reports, once a scan finds no secret."""
    handed_on: bool = False
    """The reports leave the machine: none is kept of a profiler that sees what others run on it."""


@dataclass(frozen=True)
class ProfilerRequest:
    """What a run asks of every profiler."""

    timeout: float
    """Seconds of a case without a profiler."""
    gpu: bool = False
    driver_cuda: str = ""
    """Such as `12.8`; empty where unknown."""
    capability: tuple[int, int] | None = None
    counters: CounterSet | Sequence[str] = "default"
    metrics: tuple[str, ...] = ()
    """Further counters, which limits need."""
    written_env: frozenset[tuple[str, str]] = frozenset()
    """Of the policies."""
    keep: Keep | None = None
    account: Account = SAME


@dataclass(frozen=True)
class Built:
    """A side as its build left it."""

    name: Side
    folders: Sequence[Path]
    python: str
    """Its interpreter, started with `env` in `cwd`."""
    env: Mapping[str, str]
    cwd: Path


class Profiler(ABC, Generic[Seen]):
    """A profiler that works on this machine.

    Besides `find`, a scope needs: `case` `under` or `path`, and `read`; `command` `for_command`, `under` and `read`;
    `side` `inspect`.
    """

    name: ClassVar[Tool]
    part: ClassVar[Part]
    scopes: ClassVar[frozenset[Scope]]
    trims: ClassVar[bool] = False
    """Its report holds the environment: code under it gets the `trimmed` one."""
    executions: ClassVar[int] = 10
    """Of each case."""
    window: ClassVar[bool | None] = None
    """Opened by each case, or (False) from the first case to the last; None: there is none."""
    seconds: float
    """For a case, or for the command."""

    @classmethod
    @abstractmethod
    def find(cls, request: ProfilerRequest) -> "Profiler[Seen] | Fault":
        """Return the profiler on this machine, or why it cannot be used."""

    def for_cases(self, device: DeviceKind) -> "Profiler[Seen]":
        """Return the profiler for cases of a device."""
        return self

    def for_command(self, device: DeviceKind, timeout: float, asked: Command) -> "Profiler[Seen]":
        """Return the profiler for a command of at most `timeout` seconds without it.

        `asked`: base's `kernels`, `range`, `skip` and `trace`, where base has the command.
        """
        raise NotImplementedError(f"{self.name} profiles no command")  # only one whose `scopes` name them is asked

    def asking(self, metrics: Sequence[str]) -> "Profiler[Seen]":
        """Return the profiler with further metrics, by its own names."""
        return self

    def without(self, refused: Mapping[str, str]) -> "Profiler[Seen]":
        """Return the profiler without `refused`, whose reasons are faults of what it reads."""
        return self

    def lacking(self) -> Mapping[str, str]:
        """Return requested metrics that cannot be had here → why."""
        return {}

    def under(self, report: Path) -> Under | None:
        """Return how a process is started under it; None for a profiler inside the worker."""
        return None

    def path(self, report: Path, name: str) -> str | None:
        """Return where a profiler inside the worker writes a case; None for any other."""
        return None

    def excess(self, report: Path) -> Reason | None:
        """Return why a running command is to be ended."""
        return None

    def written(self, report: Path) -> bool:
        """Tell whether all is written that would be lost as the worker ends."""
        return True

    def read(self, report: Path, names: Sequence[str], ended: Exit | None, log: Path) -> Read[Seen]:
        """Read the report; `ended` is None where the profiler was killed for its time.

        `names`: of the ranges of cases, or WHOLE. What goes wrong is a fault, never an exception. Code under test can
        write any file in its place: read it in another process (`system.bounded.call`), within bounds, as the user of
        that code (`ProfilerRequest.account`).
        """
        raise NotImplementedError(f"{self.name} is put around nothing")  # it writes no report: `inspect` is asked

    def inspect(
        self, built: Built, kernels: Mapping[str, Sequence[KernelUse]], note: Callable[[str], None]
    ) -> Read[Seen]:
        """Return what the files of a side hold of the `kernels` of each name."""
        raise NotImplementedError(f"{self.name} reads no files of a side")  # only one whose `scopes` name it is asked


def grown(size: int, per_second: float, most: float, **more: int) -> Bounds:
    """Return bounds of ten seconds for a reader, and a second more for each `per_second` bytes, up to `most`: a small
    file cannot cost what a large one may."""
    return Bounds(seconds=min(most, 10 + size / per_second), **more)


def said(log: Path) -> str:
    """Return the end of a log."""
    return end_of(log, LOG_END).decode(errors="replace")


# ---------------------------------------------------------------- the environment

_PERFCI = re.compile(
    r"PERFCI_.* | PYTHON(PATH|UNBUFFERED|NOUSERSITE|HASHSEED|DONTWRITEBYTECODE|FAULTHANDLER)"
    r"| OMP_WAIT_POLICY | NUMEXPR_NUM_THREADS | VECLIB_MAXIMUM_THREADS | CUDA_VISIBLE_DEVICES",
    re.VERBOSE,
)


def trimmed(env: Mapping[str, str], written: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return what a profiled process gets of `env`: what a worker gets unasked, caches (else the profile is one of
    compilation), and names and values `written` in a policy; no likely secrets."""
    return {
        name: value
        for name, value in env.items()
        if (passes(name, build=False) or name in FOLDERS or _PERFCI.fullmatch(name) or (name, value) in written)
        and not is_secret(name, value)
    }
