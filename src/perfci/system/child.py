"""How a process of perfci's is started, and how it ended."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfci.model.results import Reason


@dataclass
class Arena:
    """The surroundings of every worker of one side."""

    tree: Path
    site: Path
    path: Sequence[str]
    env: Mapping[str, str]
    python: str
    threads: int
    cores: Sequence[int] = field(default_factory=tuple)
    cache: Path | None = None
    """Where it is not the side's; `env` names it, too."""


@dataclass(frozen=True)
class Under:
    """How a worker is started by a profiler."""

    command: Callable[[list[str]], list[str]]
    environment: Callable[[Mapping[str, str]], dict[str, str]]
    """The part that passes: reports keep it."""


@dataclass
class Exit:
    """`code` is None when a signal ended it; `wall` is in seconds."""

    code: int | None
    signal: int | None
    wall: float

    def words(self) -> str:
        """Return words such as `killed by SIGSEGV`, `exited with status 3`."""
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            if self.signal == signal.SIGKILL:
                return f"killed by {name} (out of memory, or killed from outside)"
            return f"killed by {name}"
        return f"exited with status {self.code}"


class Died(Exception):
    """A worker or a command ended, or was ended, before it answered."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason
