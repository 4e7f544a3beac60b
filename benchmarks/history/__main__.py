"""Count what is proposed over simulated stores: see the README beside this file.

python -m benchmarks.history [--stores N]          perfci's change-points, world by world
python -m benchmarks.history beside [--cases N]    beside ruptures and Apache Otava, where they are installed
python -m benchmarks.history write FOLDER [--nights N] [--cases N]   a simulated store, as documents
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.history.score import Score, Told
from benchmarks.history.simulate import ALL, SHARED, STEPS, WORLDS, Array, Simulated, World, documents, simulate
from perfci.stats.changes import scan

DEVICES = 3
MOST_FALSE, LEAST_FOUND = 1.0, 0.95
MEMORY = 180
"""Answers that the other tools are given on a night."""
AGAIN = 10
"""Nights about a change that a tool reported before: it is not told anew."""

Tool = Callable[[Array], list[int]]
"""A series → its change-points."""


def proposed(one: Simulated) -> list[list[Told]]:
    """Return perfci's proposals, case by case."""
    return [
        [Told(found.before, found.after, found.known, found.size, found.kind == "drift") for found in case.changes]
        for case in scan(one.x, one.error)
    ]


def every_night(tool: Tool, one: Simulated) -> list[list[Told]]:
    """Return what a tool without a memory reports on each night for the first time, from the last `MEMORY` answers."""
    found = []
    for x in one.x:
        nights = np.flatnonzero(np.isfinite(x))
        told: list[Told] = []
        seen: list[int] = []
        for end in range(6, nights.size + 1):
            begin = max(0, end - MEMORY)
            y = x[nights[begin:end]]
            for at in tool(y):
                night = int(nights[begin + at])
                if at < 3 or any(abs(night - other) <= AGAIN for other in seen):
                    continue
                seen.append(night)
                size = float(np.median(y[at : at + MEMORY]) - np.median(y[max(0, at - 30) : at]))
                told.append(Told(night - 3, night + 2, int(nights[end - 1]), size))
        found.append(told)
    return found


def ruptures_tool(penalty: float) -> Tool:
    """Return PELT with the L2 cost (its implementation in C), scaled by the median difference of successive answers."""
    import ruptures

    def tool(y: Array) -> list[int]:
        scale = float(np.median(np.abs(np.diff(y)))) * 1.4826 / math.sqrt(2)
        algorithm = ruptures.KernelCPD(kernel="linear", min_size=3).fit((y / max(scale, 1e-12))[:, None])
        return [int(at) for at in algorithm.predict(pen=penalty)[:-1]]

    return tool


def otava_tool(most: float) -> Tool:
    """Return Otava's algorithm, of p-values of at most `most`."""
    from otava.analysis import compute_change_points

    def tool(y: Array) -> list[int]:
        found, _ = compute_change_points(y.tolist(), window_len=50, max_pvalue=most, min_magnitude=0.0)
        return [int(one.index) for one in found]

    return tool


def line(name: str, score: Score, cases: int, seconds: float) -> str:
    """Return a row of the table."""
    shares = [f"{100 * score.within(n):.1f} %" if score.delays else "–" for n in (3, 4, 6, 8)]
    drifts = f"{score.drifts_told} / {score.drifts_named} of {score.drifting}" if score.drifting else "–"
    counts = f"{score.a_month(DEVICES, cases):.2f} | {score.misplaced / score.months * DEVICES * 200 / cases:.2f}"
    return f"| {name} | {counts} | {' | '.join(shares)} | {drifts} | {seconds:.1f} s |"


def run(name: str, world: World, devices: int, tool: Callable[[Simulated], Sequence[Sequence[Told]]]) -> Score:
    """Score a tool over so many devices of a world, print the row and return it."""
    score, begin = Score(), time.monotonic()
    for seed in range(devices):
        one = simulate(world, np.random.default_rng(seed))
        score.add(one, tool(one))
    print(line(name, score, world.cases, (time.monotonic() - begin) / devices), flush=True)
    return score


def own(stores: int) -> bool:
    """Score perfci over all worlds; tell whether it is as good as it says."""
    good = True
    for name, world in WORLDS.items():
        score = run(name, world, DEVICES * stores, proposed)
        good &= score.a_month(DEVICES) <= MOST_FALSE
        good &= world not in (STEPS, SHARED) or score.within(4) >= LEAST_FOUND
    return good


def nightly(tool: Tool) -> Callable[[Simulated], Sequence[Sequence[Told]]]:
    """Return what asks a tool on every night."""
    return lambda one: every_night(tool, one)


def beside(cases: int) -> None:
    """Score perfci, ruptures and Otava over the same few cases of one device."""
    tools: dict[str, Callable[[Simulated], Sequence[Sequence[Told]]]] = {"perfci": proposed}
    try:
        tools |= {f"ruptures, PELT, L2, penalty {p}": nightly(ruptures_tool(p)) for p in (20, 25)}
        tools |= {f"Otava, p ≤ {p:g}": nightly(otava_tool(p)) for p in (0.001, 0.000001)}
    except ImportError as error:
        print(f"{error}: left out", file=sys.stderr)
    for world, about in ((STEPS, "steps"), (ALL, "all")):
        for name, tool in tools.items():
            run(f"{name}: {about}", replace(world, cases=cases), 1, tool)


def write(folder: Path, nights: int, cases: int) -> None:
    """Write a simulated store as a folder of documents."""
    # The environment of the other tools has numpy, and no more of what perfci needs.
    from perfci.history.document import Night
    from perfci.history.stores.base import content_of, name_of

    for one in documents(replace(ALL, nights=nights, cases=cases), 1):
        night = Night.model_validate(one)
        path = folder / name_of(night)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(night))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("own", "beside", "write"), default="own")
    parser.add_argument("folder", nargs="?", type=Path, help="to write to")
    parser.add_argument("--stores", type=int, default=2)
    parser.add_argument("--nights", type=int, default=730)
    parser.add_argument("--cases", type=int, default=None)
    asked = parser.parse_args()
    if asked.what == "write":
        if asked.folder is None:
            parser.error("write needs a folder")
        if asked.nights <= 60:
            parser.error("--nights: at least 61, so that what is planted has room")
        write(asked.folder, asked.nights, asked.cases or 200)
        return 0
    print("| | false a month | misplaced | in 3 | in 4 | in 6 | in 8 answers | drifts told / as such | a device |")
    print("|---|---|---|---|---|---|---|---|---|")
    if asked.what == "own":
        return 0 if own(asked.stores) else 1
    beside(asked.cases or 40)
    return 0


if __name__ == "__main__":
    sys.exit(main())
