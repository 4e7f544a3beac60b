"""Commands as cases: base and head in turns, in fresh processes."""

import math
import random
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perfci.measure.commands.readers import FORMATS, apart
from perfci.measure.commands.readers.base import Reported
from perfci.measure.prepare import STEADY_MALLOC, SideWork
from perfci.measure.rounds import PairOutcome
from perfci.model.base import DeviceKind, Side, matches
from perfci.model.metrics import CustomMetric
from perfci.model.policy import Command
from perfci.model.results import Case, CaseSide, Pair, Reason, Work, reports
from perfci.model.timing import Timing
from perfci.stats.describe import trimmed_mean
from perfci.system.child import Died
from perfci.system.files import remove_tree
from perfci.system.process import Parent

PAIR_SECONDS = 0.5
"""Least seconds of each side in a pair."""
MOST_REPEATS = 8


_NO_LONGER = "is reported in the first execution, and not in each later one: report it in each"
_NOT_AT_FIRST = "is not reported in the first execution, and in a later one: report it in each"


@dataclass
class Runner:
    """The commands of base and head, and how they run."""

    parent: Parent
    sides: Mapping[Side, SideWork]
    timeout: float
    cores: list[int]
    logs: Path
    scratch: Path
    metrics: Mapping[str, CustomMetric]
    """Beside the catalogue's."""
    cases: dict[str, int] = field(default_factory=dict)
    """Command → number of cases its first execution reported in base or head, also those not asked for."""
    seen: dict[tuple[Side, str], dict[str, Reported]] = field(default_factory=dict)
    """Reports of first executions."""
    took: dict[tuple[Side, str], float] = field(default_factory=dict)
    """Wall seconds of first executions."""
    lasted: dict[str, float] = field(default_factory=dict)
    """Command → wall seconds of its last pair."""

    def command(self, name: Side, command: str) -> Command | None:
        """Return the side's own form of a command."""
        return next((c for c in self.sides[name].policy.commands if c.name == command), None)

    def execute(self, name: Side, command: Command) -> dict[str, Reported]:
        """Run a command once. Returns case id → report. Raises Died."""
        # Of its own: what an execution left behind may be in the way, or still be written to.
        out = Path(tempfile.mkdtemp(prefix="command-", dir=self.scratch))
        try:
            return self._execute(name, command, out)
        finally:
            with suppress(OSError):  # the rest goes with scratch
                remove_tree(out)

    def _execute(self, name: Side, command: Command, out: Path) -> dict[str, Reported]:
        account = self.parent.account
        account.give(out)
        argv, env = self.line(name, command, out)
        log = self.logs / f"{name}.log"
        try:
            ended = self.parent.execute(
                argv,
                env=env,
                cwd=self.sides[name].tree,
                log=log,
                timeout=self.time(command),
                cores=self.pinned(command),
            )
        finally:
            account.reclaim(out)
        if ended.code != 0:
            kind = "crash" if ended.signal is not None else "exit"
            raise Died(Reason(kind=kind, text=f"`{command.run[:200]}` {ended.words()}", log=f"logs/{log.name}"))
        if command.reads == "wall":
            return {command.name: Reported(command.name, {"time": [ended.wall]}, None, None)}
        form = FORMATS[command.reads]
        try:
            return apart.read(form, out / form.file, command.name, self.metrics, account, command.columns).cases
        except ValueError as error:
            text = str(error).replace(f"{out}/", "")  # a folder that is gone when this is read
            raise Died(Reason(kind="invalid", text=text[:1000], log=f"logs/{log.name}")) from None

    def line(
        self, name: Side, command: Command, out: Path, *, profiled: bool = False
    ) -> tuple[list[str], dict[str, str]]:
        """Return command line and environment of an execution that reports into `out`.

        `profiled`: NVBench runs each state once, without its blocking kernel (`--profile`), which waits for the host.
        """
        side = self.sides[name]
        env = {name: value for name, value in side.env.items() if STEADY_MALLOC.get(name) != value}
        env.update({form.variable: str(out / form.file) for form in FORMATS.values()})
        env["PYTHONPATH"] = ":".join([*side.path(), *filter(None, [env.get("PYTHONPATH")])])
        line = command.run
        form = FORMATS.get(command.reads)
        if form is not None and form.printed and form.variable not in line:
            line = f'{{ {line}\n}} >"${form.variable}"; code=$?; cat "${form.variable}"; exit $code'
        elif adds_options(command):
            line += f" {FORMATS[command.reads].options}" + " --profile" * (profiled and command.reads == "nvbench")
        return ["/bin/sh", "-c", line], env

    def time(self, command: Command) -> float:
        """Return seconds that one execution may take."""
        return command.timeout or self.timeout

    def pinned(self, command: Command) -> Sequence[int]:
        """Return the cores of an execution; empty for all."""
        return self.cores if command.device == "cpu" else ()

    def discover(
        self,
        devices: Sequence[DeviceKind],
        globs: Sequence[str],
        note: Callable[[str], None],
        only: Collection[str] | None = None,
    ) -> list[Case]:
        """Run every command, or `only` these, once in base and head, to find cases.

        One whose sides name different devices is a case on each measured device.
        """
        cases: dict[str, Case] = {}
        for name in self.names():
            if only is not None and name not in only:
                continue
            if globs and not any(matches(glob, name) or glob.startswith(f"{name}/") for glob in globs):
                continue
            note(f"running {name}")
            forms = {side: self.command(side, name) for side in self.sides}
            kinds = list(dict.fromkeys(form.device for form in forms.values() if form is not None))
            self.cases[name] = 0
            for device in [kind for kind in kinds if kind in devices] or kinds[:1]:
                found = {side: self._first(side, name, form, device, devices) for side, form in forms.items()}
                made = self._cases(name, device, found)
                self.cases[name] = max(self.cases[name], len(made))
                for case in made:
                    if not globs or any(matches(glob, case.id) for glob in globs):
                        cases[case.key] = case
        return list(cases.values())

    def names(self) -> list[str]:
        """Return the commands of base and head."""
        return list(dict.fromkeys(command.name for side in self.sides.values() for command in side.policy.commands))

    def _first(
        self, side: Side, name: str, form: Command | None, device: DeviceKind, devices: Sequence[DeviceKind]
    ) -> dict[str, Reported] | Reason:
        """Or why the command is none of this device."""
        failure = self.sides[side].failure
        if form is None:
            return Reason(kind="absent", text=f"{side} does not declare it")
        if form.device != device:
            return Reason(kind="absent", text=f"{side} declares it with device: {form.device}")
        if failure:
            return failure
        if device not in devices:
            return Reason(kind="device", text=f"needs {device}")
        start = time.monotonic()
        try:
            with self.sides[side].own():
                reported = self.execute(side, form)
        except Died as died:
            return died.reason
        self.took[side, name] = time.monotonic() - start
        self.seen[side, name] = reported
        return reported

    def once(self, command: str) -> float:
        """Return seconds of a further pair of a command."""
        return self.lasted.get(command) or math.fsum(self.took.get((name, command), 0.0) for name in self.sides)

    def unknown(self) -> set[str]:
        """Return commands with possibly unseen cases."""
        return {
            command.name
            for name, side in self.sides.items()
            for command in side.policy.commands
            if command.reads != "wall" and (name, command.name) not in self.seen
        }

    def idents(self, *names: Side) -> set[str]:
        """Return ids of commands' known cases."""
        found: set[str] = set()
        for name in names or self.sides:
            for command in self.sides[name].policy.commands:
                found |= set(self.seen.get((name, command.name), {command.name}))
        return found

    def reports(self) -> dict[str, frozenset[str]]:
        """Return case id → its metrics, where known."""
        unknown, found = self.unknown(), dict[str, frozenset[str]]()
        for name, side in self.sides.items():
            for command in side.policy.commands:
                if command.name in unknown:
                    continue
                if command.reads == "wall":
                    found[command.name] = found.get(command.name, frozenset()) | {"time"}
                for ident, one in self.seen.get((name, command.name), {}).items():
                    found[ident] = found.get(ident, frozenset()) | one.values.keys()
        return {ident: metrics for ident, metrics in found.items() if metrics}

    def _hold_units(self, case: Case) -> None:
        """Values without a unit are in the declared one, and another unit is another question."""
        if case.origin != "command" or any(case.sides[name].status != "ok" for name in self.sides):
            return
        told = reports(case)
        reported = (told.relative or frozenset()) | told.bounded
        declared = {name: side.policy.metrics for name, side in self.sides.items()}
        for metric in sorted(reported.intersection(*declared.values())):
            units = {name: metrics[metric].unit for name, metrics in declared.items()}
            if len(set(units.values())) > 1:
                for name, unit in units.items():
                    timing = case.sides[name].timing
                    assert timing is not None  # the side is right, so its command has run
                    timing.units[metric] = unit

    def declared(self, devices: Sequence[DeviceKind], globs: Sequence[str]) -> list[Case]:
        """Return the commands as cases, without running them."""
        cases: list[Case] = []
        for name in self.names():
            command = self.command("head", name)
            if command is not None and (not globs or any(matches(glob, name) for glob in globs)):
                found: dict[Side, dict[str, Reported] | Reason] = {"head": {name: Reported(name, {}, None, None)}}
                if command.device not in devices:
                    found["head"] = Reason(kind="device", text=f"needs {command.device}")
                cases += self._cases(name, command.device, found)
        return cases

    def _cases(
        self, command: str, device: DeviceKind, found: Mapping[Side, dict[str, Reported] | Reason]
    ) -> list[Case]:
        idents = sorted({ident for one in found.values() if isinstance(one, dict) for ident in one}) or [command]
        cases = []
        for ident in idents:
            sides = {name: self._side(name, command, one, ident) for name, one in found.items()}
            skipped = all(side.status in ("skipped", "absent") for side in sides.values())
            case = Case(id=ident, kernel=command, device=device, origin="command", sides=sides)
            case.stopped = "skipped" if skipped else "decided"
            self._hold_units(case)
            cases.append(case)
        return cases

    def _side(self, name: Side, command: str, found: dict[str, Reported] | Reason, ident: str) -> CaseSide:
        if isinstance(found, Reason):
            return CaseSide(status=status_of(found), reason=found)
        if ident not in found:
            return CaseSide(status="absent", reason=Reason(kind="absent", text=f"{name} does not report it"))
        reported, own = found[ident], self.command(name, command)
        if reported.reason is not None:
            return CaseSide(status=status_of(reported.reason), reason=reported.reason)
        assert own is not None  # it has just run
        # The command line is the question that is asked: another one is another case, not a faster one.
        timing = Timing(mode="command", reads=own.reads)
        reports = sorted(reported.values) or None
        columns = {} if own.columns is None else own.columns.model_dump(include={"value", "unit"})
        return CaseSide(
            params={"run": own.run, **columns}, work=reported.work or Work(), timing=timing, reports=reports
        )

    def run_pair(self, command: str, cases: Sequence[Case], lot: str, index: int) -> list[PairOutcome]:
        """Take one pair of every case of a command, short ones several times. `lot`: seed of the order."""
        rng = random.Random(f"{lot}/command/{command}/{index}")
        outcomes = {case.id: PairOutcome(case) for case in cases}
        order = [name for name in self.sides if any(case.sides[name].status == "ok" for case in cases)]
        rng.shuffle(order)
        first, start = order[0], time.monotonic()
        gathered: dict[Side, dict[str, list[Reported]]] = {name: {} for name in order}
        repeats = 1
        turns = list(order)
        while turns:
            name = turns.pop(0)
            own = self.command(name, command)
            assert own is not None  # a case of it works in this side
            try:
                reported = self.execute(name, own)
                if new := sorted(reported.keys() - self.seen.get((name, command), reported).keys()):
                    raise Died(Reason(kind="protocol", text=f"{new[0]} {_NOT_AT_FIRST}"))
                for ident, one in reported.items():
                    gathered[name].setdefault(ident, []).append(one)
            except Died as died:
                for outcome in outcomes.values():
                    outcome.failures[name] = died.reason
                return list(outcomes.values())
            if not turns and repeats < self._repeats(gathered, command):
                repeats += 1
                order = order[::-1]  # A B B A …
                turns = list(order)
        self.lasted[command] = time.monotonic() - start
        for case in cases:
            _close(outcomes[case.id], gathered, first)
        return list(outcomes.values())

    def _repeats(self, gathered: Mapping[Side, Mapping[str, list[Reported]]], command: str) -> int:
        """Wall-time commands only; others sample by themselves."""
        first = next(iter(gathered.values())).get(command)
        if not first or set(first[0].values) != {"time"} or len(first[0].values["time"]) != 1:
            return 1
        return max(1, min(MOST_REPEATS, int(PAIR_SECONDS / max(first[0].values["time"][0], 1e-3))))


def status_of(reason: Reason) -> Literal["failed", "skipped", "absent"]:
    """Return the status that a reason gives a case's side."""
    return "skipped" if reason.kind in ("skipped", "device") else "absent" if reason.kind == "absent" else "failed"


def adds_options(command: Command) -> bool:
    """Tell whether perfci adds the tool's options."""
    form = FORMATS.get(command.reads)
    return form is not None and bool(form.options) and form.variable not in command.run


def repeats(command: Command) -> bool:
    """Tell whether a profiled execution repeats what it measures."""
    if command.reads == "nvbench":
        return not adds_options(command)  # --profile among them
    return command.reads in ("google-benchmark", "pytest-benchmark", "hyperfine")


def _close(outcome: PairOutcome, gathered: Mapping[Side, Mapping[str, list[Reported]]], first: Side) -> None:
    case = outcome.case
    values: dict[Side, dict[str, float]] = {}
    counts: dict[Side, int] = {}
    for name, by_case in gathered.items():
        if case.sides[name].status != "ok":
            continue
        runs = by_case.get(case.id, [])
        reason = next((run.reason for run in runs if run.reason), None) or _unlike(case.sides[name], runs)
        if reason is not None:
            outcome.failures[name] = reason
            continue
        merged: dict[str, list[float]] = {}
        for run in runs:
            for metric, samples in run.values.items():
                merged.setdefault(metric, []).extend(samples)
        values[name] = {metric: _centre(samples) for metric, samples in merged.items()}
        counts[name] = max(map(len, merged.values()), default=0)
        outcome.samples[name] = [merged.get("time", [])]
    if not outcome.failures:
        outcome.pair = Pair(index=len(case.pairs), first=first, values=values, samples=counts)


def _unlike(side: CaseSide, runs: Sequence[Reported]) -> Reason | None:
    """What executions leave out may have been slow."""
    if not runs:
        return Reason(kind="protocol", text=f"it {_NO_LONGER}")
    first, later = set(side.reports or ()), {frozenset(run.values) for run in runs}
    if lost := sorted(first.difference(*later)):
        return Reason(kind="protocol", text=f"{lost[0]} {_NO_LONGER}")
    if new := sorted(frozenset[str]().union(*later) - first):
        return Reason(kind="protocol", text=f"{new[0]} {_NOT_AT_FIRST}")
    return None


def _centre(samples: Sequence[float]) -> float:
    if not samples or not all(math.isfinite(value) for value in samples):
        return math.nan
    return trimmed_mean(samples)
