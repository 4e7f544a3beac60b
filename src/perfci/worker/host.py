"""Seconds of the host for one execution of a case on a GPU, until it returns.

A kernel that spins holds the GPU back meanwhile, so that its work takes nothing from the host. An execution that lasts
longer behind a longer one, by as much, waits for the GPU or fills its queue.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable

from .gpu import rig
from .leash import drawn_core, on_core

SHORTEST, LONGEST = 100e-6, 50e-3
"""Seconds of the shorter hold."""
AHEAD = 1.5
"""The shorter hold, in times of an execution."""
PROBED, PROBING = 5, 50e-3
"""Executions behind each hold, at most, and about the seconds for them; two at least."""


def host_times(fns: Sequence[Callable[[], Any]], executions: int, hold: float, seed: object) -> dict[str, Any]:
    """Return `times`, seconds of the host for each of `executions` over `fns`, each behind a hold of `hold` seconds, on
    a core that `seed` draws, the same for base and head. `waits`: False.

    0 executions: as many as tell whether it `waits` for the GPU, behind holds as long as the case needs.
    """
    with on_core(drawn_core(seed)), _uncollected():
        if not executions:
            return _probe(fns[0])
        if executions > 1:  # else the GPU has that much to do that one more is too dear
            _timed(fns[0], 0.0)
        return {
            "times": [_timed(fn, hold) for fn in itertools.islice(itertools.cycle(fns), executions)],
            "waits": False,
        }


@contextmanager
def _uncollected() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _timed(fn: Callable[[], Any], hold: float) -> float:
    shared = rig()
    shared.synchronize()
    if hold:
        shared.hold(hold)
    start = time.perf_counter()
    out = fn()
    seconds = time.perf_counter() - start
    shared.synchronize()
    del out
    return seconds


def _probe(fn: Callable[[], Any]) -> dict[str, Any]:
    start = time.perf_counter()
    short = min(LONGEST, max(SHORTEST, AHEAD * min(_timed(fn, SHORTEST) for _ in range(2))))
    number = max(2, min(PROBED, round(PROBING / max(time.perf_counter() - start, 1e-9))))
    behind_short, behind_long = [], []
    for _ in range(number):
        behind_short.append(_timed(fn, short))
        behind_long.append(_timed(fn, 2 * short))
    return {"times": behind_short, "waits": min(behind_long) - min(behind_short) > short / 2}
