"""Head, three times slower, ends base's process while both are measured: without a base nothing can be slower."""

import contextlib
import os
import signal
from pathlib import Path

import perfci

ATTACK = True
CALLS = []


def end_base():
    sibling = Path.cwd().parents[1] / "base" / "tree"  # of this run alone: others may measure on this machine
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.joinpath("cwd").readlink() == sibling:
                os.kill(int(process.name), signal.SIGKILL)


def work(data):
    CALLS.append(1)
    if ATTACK and len(CALLS) % 10 == 0:
        end_base()
    for _ in range(3 if ATTACK else 1):
        result = sorted(data)
    return result


@perfci.kernel(devices=["cpu"])
def kills_base(bench):
    data = [bench.random.random() for _ in range(2000)]
    bench.reference(lambda: sorted(data))
    return lambda: work(data)
