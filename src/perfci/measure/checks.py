"""The checks before timing: is each case right, and how long does it take?"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from perfci.measure.bench import Bench
from perfci.measure.budget import Budget
from perfci.measure.cases import Declarations, timing_of
from perfci.measure.checker import LATE, Checker, unchecked
from perfci.measure.journal import Journal
from perfci.measure.place import Place
from perfci.measure.sides.untouched import beside
from perfci.measure.timing import Probe, Refused, settle
from perfci.model.base import SIDES, DeviceKind, Side
from perfci.model.criteria import Criterion
from perfci.model.metrics import HOST_TIME
from perfci.model.results import Case, Reason
from perfci.model.text import listed
from perfci.model.units import show
from perfci.stats.least_time import least_seconds
from perfci.system.facts import whole_cores
from perfci.system.starter import Wait, close_all, wait_first

NOTHING_DRAWN = "its inputs are the same in every draw"
"""As `worker/checks/check.py` says it."""
LANES, CORES = 4, 4
"""Workers of a side that check at once on a GPU, and cores for each: a first execution is mostly the CPU's, which
compiles and loads."""
STRETCH = 15.0
"""Seconds after which checks are written down before others begin: a killed run keeps them."""
LONGER, LONGER_BY = 2.0, 20e-6
"""Factor and seconds beyond which a host time is told where no limit asks for it."""
Probes = dict[str, dict[Side, Probe]]


def check_all(
    cases: Sequence[Case],
    place: Place,
    declarations: Mapping[Side, Declarations],
    journal: Journal,
    budget: Budget,
    *,
    fuzz: bool,
    note: Callable[[str], None],
) -> Probes:
    """Check every kernel's case. Fills `case.sides`; returns settle_all()'s probes.

    Base's tolerances hold for head, which is checked beside it by its own, and again where they differ. Where a side
    makes what Python could import, all is checked again, one side after the other, so that it is the side's own
    (`Seal.own`). A case that the budget does not reach in every side is skipped in all: only what was right is timed.
    """
    probes: Probes = {}
    asked = {case.key: timing_of(case, declarations, place.limits) for case in cases}
    for device, bench in place.benches.items():
        kernels = [case for case in cases if case.device == device and case.origin == "kernel"]

        def checkers(bench: Bench = bench) -> list[Checker]:
            sides: list[Checker] = []
            for name in place.sides:
                base = sides[0] if sides else None
                sides.append(Checker(bench, name, declarations[name], journal, budget, fuzz, note, asked, base))
            return sides

        shares = lanes(kernels, most_lanes(device))
        sides = None if place.exclusive(device) else _at_once(place, checkers, shares, journal, note)
        sides = sides or _in_turns(place, checkers(), kernels)
        for one in sides:
            for key, probe in one.probes.items():
                probes.setdefault(key, {})[one.name] = probe
        if device == "cuda":
            for prepared in place.sides.values():
                _forget_tuning(prepared.env.get("TORCHINDUCTOR_CACHE_DIR", ""))
        for case in kernels:
            if any(side.reason == LATE for side in case.sides.values()):
                case.stopped = "budget"
                for name, side in case.sides.items():
                    if side.status == "ok":
                        case.sides[name] = unchecked(side)
    return probes


def most_lanes(device: DeviceKind) -> int:
    """Return how many lanes of cases the machine serves at once. Those on the CPU share the timed cores."""
    return max(1, min(LANES, whole_cores() // CORES)) if device == "cuda" else 1


def _forget_tuning(folder: str) -> None:
    """What inductor's tuners chose while others used the device: the first pair chooses anew."""
    if not folder or Path(folder).is_symlink() or not Path(folder).is_dir():
        return
    for _, _, files, descriptor in os.fwalk(folder):  # follows no link
        for name in files:
            if name.endswith(".best_config"):
                os.unlink(name, dir_fd=descriptor)


def lanes(cases: Sequence[Case], most: int) -> list[list[Case]]:
    """Return the cases in up to `most` lanes, those of one kernel in one. The first of each kernel come first, so that
    compiling runs beside compiling."""
    kernels: dict[str, list[Case]] = {}
    for case in cases:
        kernels.setdefault(case.kernel, []).append(case)
    dealt: list[list[list[Case]]] = [[] for _ in range(max(1, min(most, len(kernels))))]
    for some in sorted(kernels.values(), key=len, reverse=True):
        min(dealt, key=lambda lane: (len(lane), sum(map(len, lane)))).append(some)
    return [
        [case for some in lane for case in some[:1]] + [case for some in lane for case in some[1:]] for lane in dealt
    ]


def _at_once(
    place: Place,
    checkers: "Callable[[], list[Checker]]",
    lanes: Sequence[Sequence[Case]],
    journal: Journal,
    note: Callable[[str], None],
) -> "list[Checker] | None":
    """None, with the cases unchanged, for one side, or where one made what Python could import."""
    seals = [side.seal for side in place.sides.values() if side.seal is not None]
    if len(seals) < 2:
        return None
    cases = [case for lane in lanes for case in lane]
    declared = [{name: side.model_copy(deep=True) for name, side in case.sides.items()} for case in cases]
    with beside(seals) as made:
        each = [(checkers(), lane) for lane in lanes]
        _check(each)
    if not made:
        return [one for sides, _ in each for one in sides]
    note(f"checking again, one side after the other, since there is a new file ({made[0]})")
    for case, before in zip(cases, declared, strict=True):
        case.sides = before
    journal.void_checks()
    return None


def _in_turns(place: Place, sides: "list[Checker]", cases: Sequence[Case]) -> "list[Checker]":
    for one in sides:
        with place.sides[one.name].own():
            _check([([one], cases)])
    return sides


class _Lane:
    """Cases that both sides' checkers share: head's is never ahead."""

    def __init__(self, sides: Sequence[Checker], cases: Sequence[Case], *, beside: bool) -> None:
        self.sides, self.cases, self.beside = sides, cases, beside
        self.begun = [0] * len(sides)
        self.again: list[tuple[Case, Checker]] = []
        """What others may have disturbed."""
        for side in sides:
            if any(side.wants(case) for case in cases):
                side.start()

    @property
    def over(self) -> bool:
        return self.begun[-1] == len(self.cases)

    def begin(self) -> None:
        for number, side in enumerate(self.sides):
            while side.wait is None and self.begun[number] < self._ready(number):
                case = self.cases[self.begun[number]]
                self.begun[number] += 1
                if any(case is other for other, _ in self.again):  # base's: its tolerances are not known
                    self.again.append((case, side))
                    continue
                side.begin(case)
                if side.wait is None:
                    self._keep(case, side)

    def _ready(self, number: int) -> int:
        return len(self.cases) if number == 0 else self.begun[number - 1]

    def waits(self) -> dict[Wait, Checker]:
        return {side.wait: side for side in self.sides if side.wait is not None}

    def go_on(self, side: Checker) -> None:
        side.go_on()
        if side.wait is None:
            self._keep(self.cases[self.begun[self.sides.index(side)] - 1], side)

    def _keep(self, case: Case, side: Checker) -> None:
        if not side.keep(beside=self.beside):
            self.again.append((case, side))

    def settle(self) -> None:
        for side in self.sides:
            self.again += [(case, side) for case in side.hold([case for case, _ in self.again], beside=self.beside)]
            self.again += [(case, side) for case in side.settle(beside=self.beside)]


def _check(shares: "Sequence[tuple[Sequence[Checker], Sequence[Case]]]") -> None:
    everyone = [checker for checkers, _ in shares for checker in checkers]
    try:
        lanes = [_Lane(checkers, cases, beside=len(everyone) > 1) for checkers, cases in shares]
        while not all(lane.over for lane in lanes):
            end = time.monotonic() + STRETCH
            for lane in lanes:
                lane.begin()
            while waits := {wait: (lane, side) for lane in lanes for wait, side in lane.waits().items()}:
                # Where others are checked already, that is what the time goes to.
                importing = all(side.loading for _, side in waits.values())
                with everyone[0].bench.costs.phase("import") if importing else nullcontext():
                    lane, side = waits[wait_first([*waits])]
                lane.go_on(side)
                if time.monotonic() < end:
                    lane.begin()
            for lane in lanes:
                lane.settle()
        again = [entry for lane in lanes for entry in lane.again]
        for case, side in sorted(again, key=lambda entry: entry[1].base is not None):  # by base's tolerances
            _close(everyone)
            side.repeat(case)
            side.settle(beside=False)
    finally:
        _close(everyone)


def _close(checkers: "Sequence[Checker]") -> None:
    close_all(worker for checker in checkers for worker in checker.workers)


def settle_all(cases: Sequence[Case], place: Place, declarations: Mapping[Side, Declarations], probes: Probes) -> None:
    """Fix how each case is measured; one that cannot be measured so has failed."""
    for case in cases:
        working = {name: one for name, one in probes.get(case.key, {}).items() if case.sides[name].status == "ok"}
        if case.origin != "kernel" or not working:
            continue
        bench, gpu = place.benches[case.device], place.facts.gpu if case.device == "cuda" else None
        assert (gpu is None) == (case.device == "cpu")
        asked = timing_of(case, declarations, place.limits)
        if asked == "auto" and any(probe.refused for name, probe in probes[case.key].items() if name not in working):
            asked = "cold"  # head's capture was not tried where base's failed
        try:
            setup, said = settle(asked, working, gpu, bench.threads)
            bench.setups[case.key] = setup.smallest() if case.proved else setup
        except Refused as refused:
            for name, probe in working.items():
                if probe.refused:
                    case.sides[name].status = "failed"
                    case.sides[name].reason = Reason(kind="exception", text=str(refused)[:1000])
            continue
        for name, timing in said.items():
            side = case.sides[name]
            side.timing = timing
            if (ceilings := place.facts.ceilings.get(case.device)) is not None:
                tf32 = timing.settings.get("tf32") is True
                side.least = least_seconds(side.work, ceilings, side.dtype, tf32=tf32)


def settle_hosts(cases: Sequence[Case], place: Place, criteria: Sequence[Criterion], probes: Probes) -> None:
    """Fix how host times are taken where a limit asks for them, or say why they cannot be."""
    asked = {one.case_key for one in criteria if one.timed and one.metric == HOST_TIME}
    for case in cases:
        bench = place.benches.get(case.device)
        if bench is None or case.key not in asked or case.key not in bench.setups:
            continue
        working = {name: one for name, one in probes[case.key].items() if case.sides[name].status == "ok"}
        waiting = [name for name, one in working.items() if one.host is None or one.host_waits]
        if not waiting:
            bench.setups[case.key] = bench.setups[case.key].with_host(working.values())
            continue
        where = " and ".join(waiting)
        for name in working:
            if (timing := case.sides[name].timing) is not None:
                timing.host = f"host and GPU cannot be told apart: in {where} it waits for the GPU, or fills its queue"


def longer_hosts(cases: Sequence[Case], criteria: Sequence[Criterion]) -> list[str]:
    """Return a note on cases whose host time no limit asks for, much longer in head as they were examined."""
    asked = {one.case_key for one in criteria if one.metric == HOST_TIME}
    found = []
    for case in cases:
        base, head = (case.sides[name].host if name in case.sides else None for name in SIDES)
        if base is None or head is None or case.key in asked:
            continue
        if head > LONGER * base and head - base > LONGER_BY:
            found.append(f"{case.id} ({show(base, 's')} → {show(head, 's')})")
    if not found:
        return []
    told = "the host takes more than twice as long in head until an execution returns, as examined, and no limit asks: "
    return [f"{told}{listed(found, 5)}: see {HOST_TIME}"]


def unredrawn(cases: Sequence[Case]) -> list[str]:
    """Return a note on cases whose inputs could not be redrawn in place."""
    found = {case.id: side.check.unredrawn for case in cases for side in case.sides.values() if side.check.unredrawn}
    why = [f"{case} ({text})" for case, text in found.items() if text != NOTHING_DRAWN]
    if not why:
        return []
    return [f"inputs were not redrawn in place while checking, which would find a memo of results: {listed(why)}"]


def missed(cases: Sequence[Case]) -> list[str]:
    """Return a note on calls of scripts compared with nothing, as base misses their reference."""
    found = [f"{case.id} ({case.sides['base'].check.missed})" for case in cases if "base" in case.sides
             and case.sides["base"].check.missed]  # fmt: skip
    if not found:
        return []
    told = "scripts whose reference base itself misses, with which results are not compared, or only the first: "
    return [told + listed(found, 5)]
