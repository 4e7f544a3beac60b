"""What cases compile on their way: libraries that build their kernels when they are first called."""

import re
from collections.abc import Callable, Iterable

import psutil

COMPILERS = re.compile(
    r"ninja|make|cmake|nvcc|cicc|ptxas|fatbinary|nvlink|cudafe\+\+|hipcc|cc1(plus)?|as|ld(\.\w+)?|lld|collect2|cargo|rustc"
    r"|([\w-]+-)?(cc|gcc|g\+\+|c\+\+|clang|clang\+\+)(-[\d.]+)?"
)
"""Names of processes."""
TOLD_AFTER = 5.0
"""Seconds."""


class Builds:
    """Seconds in which compilers run below a worker: they count neither for a step nor for the budget, up to a limit
    for all."""

    def __init__(self, seconds: float, told: Callable[[str], None]) -> None:
        """`seconds`: the limit; `told`: gets a line where one takes long."""
        self.left, self.told = seconds, told
        self.seconds = 0.0
        """Not counted so far."""
        self._until = 0.0

    def heed(self, processes: Iterable[psutil.Process], since: float, now: float) -> float:
        """Return the seconds from `since` to `now` that do not count for a worker with these processes."""
        if self.left <= 0 or not any(COMPILERS.fullmatch(name) for name in map(_name, processes)):
            return 0.0
        fresh = now - max(since, self._until)  # workers of both sides may build at once
        if fresh > 0:
            if self.seconds < TOLD_AFTER <= self.seconds + fresh:
                self.told("building what cases compile, which does not count for their time-outs")
            self.seconds, self.left, self._until = self.seconds + fresh, self.left - fresh, now
        return now - since


NONE = Builds(0.0, lambda _: None)
"""All counts."""


def below(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory_of(processes: Iterable[psutil.Process]) -> int:
    """Return their resident bytes."""
    return sum(_rss(process) for process in processes)


def _name(process: psutil.Process) -> str:
    try:
        name, status = process.name(), process.status()
        return "" if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED) else name
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
