"""The second clock: this process times from outside what a worker says that an execution takes."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

import psutil

from perfci.model.base import Side
from perfci.model.results import Case, Pair, Spent
from perfci.model.units import show
from perfci.system.builds import below

LEAST = 20e-3
"""Seconds of the shorter stretch, and of what the longer one has more, at least: a request and its answer take some
0.1 ms."""
SHARE = 0.5
"""Of pairs that are read, by a coin that no worker foresees."""
READINGS = 2
"""Of a case, at least: the coin does not decide from its third pair on."""
FASTER = 20
"""Times that a side's own word makes a stretch longer than the other side's would: a forged time costs no hours."""
MOST = 10**7
"""Executions of a stretch: what takes a nanosecond takes 10 ms."""
BOUND = 3.0
"""Ratio of both clocks: of A/A trials the largest reading was 1.6, and one reading decides nothing."""


class Stretch(NamedTuple):
    """A request to execute, and what passed until its answer."""

    executions: int
    wall: float
    """Seconds."""
    cpu: float
    """Seconds of all threads of the worker and of processes below it."""


@contextmanager
def timed(pid: int, executions: int, found: list[Stretch]) -> Iterator[None]:
    """Time what a worker does meanwhile into `found`; not where the kernel does not tell what its threads computed."""
    before, start = computed(pid), time.perf_counter()
    yield
    wall = time.perf_counter() - start
    if (after := computed(pid)) is not None and before is not None:
        found.append(Stretch(executions, wall, after - before))


def computed(pid: int) -> float | None:
    """Return seconds of the CPU of a process and of all below it, as Linux's scheduler tells (sched-stats.rst)."""
    try:
        threads = [path for one in below(pid) for path in Path(f"/proc/{one.pid}/task").glob("*/schedstat")]
        return sum(int(path.read_text().split()[0]) for path in threads) * 1e-9 if threads else None
    except (OSError, psutil.Error):  # one has ended since
        return None


def is_due(case: Case) -> bool:
    """Draw whether the case's next pair is read."""
    known = sum(bool(pair.spent) for pair in case.pairs)
    return (len(case.pairs) >= READINGS and known < READINGS) or SystemRandom().random() < SHARE


def stretches(times: Mapping[Side, float], side: Side, batch: int) -> tuple[int, int]:
    """Draw two numbers of batches for a side, from what the workers say of an execution, in seconds."""
    seconds = batch * max(times[side], *(value / FASTER for value in times.values()))
    if not (math.isfinite(seconds) and seconds > 0):  # no time at all: its row says so
        return 1, 2
    least, most = LEAST / seconds, MOST / batch
    short, more = (max(1, math.ceil(min(most, least * SystemRandom().uniform(1, 1.5)))) for _ in range(2))
    return short, short + more


def spent(stretches: Sequence[Stretch]) -> Spent | None:
    """Return what an execution spent, from a short and a long stretch; None without both.

    By the CPU and by the wall, in each stretch and in what the longer one took more: a process waits, for others on a
    busy machine and for whatever it asks of them, and has several threads; and what holds up one stretch is not the
    case's.
    """
    if len(stretches) != 2:
        return None
    short, long = stretches
    more = Stretch(long.executions - short.executions, long.wall - short.wall, long.cpu - short.cpu)
    each = [max(0.0, seconds) / one.executions for one in (short, long, more) for seconds in (one.wall, one.cpu)]
    return Spent(least=min(each), most=max(each))


def contradiction(pairs: Sequence[Pair], side: Side) -> str:
    """Return how the clocks contradict each other by the median over the pairs that were read, or empty.

    Of two in the middle, the one that says less counts.
    """
    apart = []
    for pair in pairs:
        told, said = pair.spent.get(side), pair.values[side]["time"]
        if told is not None and math.isfinite(said) and said > 0:
            nearest = min(max(said, told.least), told.most)
            apart.append((math.log(nearest / said) if nearest else -math.inf, nearest, said))
    if len(apart) < READINGS:
        return ""
    apart.sort()
    logs, nearest, said = min(apart[(len(apart) - 1) // 2 : len(apart) // 2 + 1], key=lambda one: abs(one[0]))
    if abs(logs) <= math.log(BOUND):
        return ""
    return f"the worker says {show(said, 's')} an execution, the machine spent {show(nearest, 's')}"
