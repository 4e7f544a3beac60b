"""What profilers are asked of a run, and what is said beforehand where they cannot answer."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfci.measure.options import Options
from perfci.measure.place import Place
from perfci.measure.profiling.code import read_code
from perfci.measure.profiling.commands import look_whole
from perfci.measure.profiling.kernels import Look, look, wanted
from perfci.measure.profiling.tools import COMMAND_LAUNCHES, SLOWER, TRACED, Keep, Kineto, Ncu, Nsys
from perfci.measure.rounds import Bench
from perfci.model.base import DeviceKind, Side
from perfci.model.plan import Plan
from perfci.model.policy import Command
from perfci.model.profile import Counters, Fault, Profile, Tool, Trace
from perfci.model.results import Case
from perfci.profilers.metrics import take
from perfci.profilers.ncu.chips import SECTIONS, chip_of, expand, unavailable
from perfci.profilers.ncu.command import find as find_ncu
from perfci.profilers.ncu.command import may_count
from perfci.profilers.nsys.command import find as find_nsys
from perfci.profilers.nsys.privacy import environment
from perfci.system.gpu import Gpu
from perfci.system.process import Parent
from perfci.system.users import CAP_PERFMON, CAP_SYS_ADMIN, held

UNTRUSTED = Fault(
    tool="ncu",
    kind="forbidden",
    text="counters are not read: the code is a fork's, its author is not known, or --no-counters was given",
    remedy="have somebody who may write here push it to a branch of this repository",
)
KEPT = "profile"
"""Folder below the output folder for what a profile keeps."""


@dataclass(frozen=True)
class Tools:
    """The profilers of this machine."""

    trace: Nsys | None
    fallback: Kineto
    """For cases of which nsys sees nothing."""
    counters: Ncu | None
    faults: Mapping[Tool, Fault]
    """Why a tool cannot be used here."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Counter → why this chip cannot give it."""
    capability: tuple[int, int] | None = None
    """Compute capability of the GPU."""

    def on(self, device: DeviceKind) -> "Tools":
        """The tools for cases of one device: on the CPU no capture range opens, and no call of CUDA is missed."""
        trace = replace(self.trace, cuda=device == "cuda") if self.trace else None
        return replace(self, trace=trace, fallback=replace(self.fallback, device=device))

    def tracing(self, command: Command, timeout: float) -> Nsys | Fault:
        """The timeline of a command that takes `timeout` seconds at most."""
        trace = self.on(command.device).trace
        return replace(trace, whole=True, seconds=TRACED * timeout) if trace else self.faults["nsys"]

    def counting(self, timeout: float, kernels: str | None) -> Ncu | Fault:
        """The counters of such a command, of those of its `kernels`."""
        if self.counters is None:
            return self.faults["ncu"]
        seconds = SLOWER * timeout
        return replace(self.counters, whole=True, kernels=kernels, launches=COMMAND_LAUNCHES, seconds=seconds)

    def unanswerable(self, plan: Plan) -> list[str]:
        """Limits that no tool here can judge, each once, with the reason and the remedy."""
        fault = self.faults.get("ncu")
        words = {}
        for gate in plan.gates:
            why = self.lacking.get(gate.metric)
            if gate.tier == "counters" and fault is not None:
                why = fault.text + (f": {fault.remedy}" if fault.remedy else "")
            if why:
                words[gate.source] = f"{gate.source}: {gate.metric} cannot be judged here: {why}"
        return list(words.values())


def find_tools(place: Place, plan: Plan, options: Options) -> Tools:
    """Which profilers this machine has, and why the others cannot be used."""
    keep = Keep(options.out / KEPT, options.raw) if options.profile else None
    if keep is not None:
        shutil.rmtree(keep.folder, ignore_errors=True)
        keep.folder.mkdir(parents=True)
    faults: dict[Tool, Fault] = {}
    lacking: dict[str, str] = {}
    timeout, account = place.limits.timeout, place.parent.account
    written = frozenset(item for side in place.sides.values() for item in side.policy.env.items())
    trace = counters = None
    nsys = find_nsys()
    if isinstance(nsys, Fault):
        faults["nsys"] = nsys
    else:
        trace = Nsys(nsys, TRACED * timeout, written_env=written, keep=keep, account=account)
    gpu, _ = Gpu.open(place.facts.uuid or 0) if "cuda" in place.benches else (None, "")
    refused = may_count() if options.counters else UNTRUSTED
    ncu = refused or find_ncu(gpu.cuda() if gpu else "")
    capability = place.facts.gpu.chip if place.facts.gpu else None
    chip = chip_of(*capability) if capability else None
    if isinstance(ncu, Fault):
        faults["ncu"] = ncu
    elif "cuda" not in place.benches:
        faults["ncu"] = Fault(tool="ncu", kind="absent", text="there is no GPU to count on")
    else:
        asked = [gate.metric for gate in plan.gates if gate.tier == "counters"]
        wanted_names = expand([*expand(place.limits.counters), *asked])
        lacking = unavailable(wanted_names, chip or "")
        names = tuple(name for name in wanted_names if name not in lacking)
        sections, seconds = SECTIONS[place.limits.counters], SLOWER * timeout
        counters = Ncu(ncu, chip or "", names, sections, seconds, written_env=written, keep=keep, account=account)
    return Tools(trace, Kineto(TRACED * timeout, keep=keep, account=account), counters, faults, lacking, capability)


@contextmanager
def counting(ordinary: Parent) -> Iterator[Parent]:
    """The parent of what is counted, and of nothing else.

    Where the code under test runs as another user, it has the capabilities by which the driver lets a user count, as
    far as this process has them; `ordinary` has none of them.
    """
    capabilities = held([CAP_PERFMON, CAP_SYS_ADMIN])
    if ordinary.account.ids is None or not capabilities:
        yield ordinary
        return
    with tempfile.TemporaryDirectory(prefix="counting-", dir=ordinary.scratch) as folder:
        parent = Parent(
            ordinary.python, Path(folder), ordinary.env, ordinary.memory_limit, forks=False, account=ordinary.account,
            capabilities=capabilities,
        )  # fmt: skip
        try:
            yield parent
        finally:
            parent.close()


def observe(
    place: Place,
    tools: Tools,
    cases: Sequence[Case],
    plan: Plan,
    scratch: Path,
    note: Callable[[str], None],
    everything: bool = False,
) -> list[str]:
    """Take evidence of the cases that need it, or of all, into `case.sides[…].evidence`. Returns notes."""
    start = time.monotonic()
    traced, counted = wanted(cases, plan, place.limits.profile)
    if everything:
        traced = [case for case in cases if case.sides["head"].status == "ok"]
        counted = [case for case in traced if case.device == "cuda"]
    if not traced and not counted:
        return []
    scratch.mkdir(parents=True, exist_ok=True)
    place.parent.account.show(scratch)
    for tool in ("nsys", "ncu", "torch.profiler"):
        for stale in place.runner.logs.glob(f"{tool}-*.log"):
            stale.unlink()
    for device, bench in place.benches.items():
        timelines = [case for case in traced if case.device == device and case.origin == "kernel"]
        counts = [case for case in counted if case.device == device and case.origin == "kernel"]
        _trace(tools.on(device), bench, list(place.sides), timelines, scratch, note)
        _count(tools, bench, list(place.sides), counts, scratch, note)
    for command in dict.fromkeys(case.kernel for case in [*traced, *counted] if case.origin == "command"):
        timelines, counts = (
            [case for case in some if case.origin == "command" and case.kernel == command] for some in (traced, counted)
        )
        _look_at(place, tools, command, timelines, counts, scratch, note)
    read_code(list(place.sides.values()), counted, tools.capability, note, place.parent.account)
    many = len({case.key for case in [*traced, *counted]})
    seconds = time.monotonic() - start
    notes = [f"profilers looked at {many} case{'s' if many > 1 else ''} after timing, for {seconds:.0f} s"]
    if withheld := _withheld(place, tools):
        notes.append(f"under nsys and ncu, code does without {', '.join(withheld)}: reports hold the environment")
    return notes


def _withheld(place: Place, tools: Tools) -> list[str]:
    """Variables that `pass_env` names, of which profiled code gets nothing."""
    used = [tool for tool in (tools.trace, tools.counters) if tool is not None]
    return sorted(
        {
            name
            for side in place.sides.values()
            for name in {*side.policy.pass_env} & side.env.keys()
            if any(name not in environment(side.env, tool.written_env) for tool in used)
        }
    )


def _trace(
    tools: Tools, bench: Bench, names: list[Side], cases: Sequence[Case], scratch: Path, note: Callable[[str], None]
) -> None:
    """Timelines by nsys; by torch's own profiler of a case that nsys does not see in every side: sides are compared by
    what one tool says of both."""
    for name in names:
        if tools.trace is None:
            _keep(tools, cases, name, {case.key: Look[Trace](None, [tools.faults["nsys"]]) for case in cases})
        else:
            _keep(tools, cases, name, look(bench, name, cases, tools.trace, scratch, note))
    unseen = [case for case in cases if not all(_seen(case, name) for name in names)]
    for name in names if unseen else []:
        _keep(tools, unseen, name, look(bench, name, unseen, tools.fallback, scratch, note))


def _count(
    tools: Tools, bench: Bench, names: list[Side], cases: Sequence[Case], scratch: Path, note: Callable[[str], None]
) -> None:
    """Counters by ncu."""
    if tools.counters is None:
        for name in names:
            _keep(tools, cases, name, {case.key: Look[Counters](None, [tools.faults["ncu"]]) for case in cases})
    elif cases:
        with counting(bench.parent) as parent:
            for name in names:
                found = look(replace(bench, parent=parent), name, cases, tools.counters, scratch, note)
                _keep(tools, cases, name, found)


def _look_at(
    place: Place,
    tools: Tools,
    command: str,
    traced: Sequence[Case],
    counted: Sequence[Case],
    scratch: Path,
    note: Callable[[str], None],
) -> None:
    """Evidence of one command for its cases: the sides in turns, nsys before ncu."""
    runner = place.runner
    forms = {name: form for name in place.sides if (form := runner.command(name, command)) is not None}
    kernels = next(iter(forms.values())).kernels  # base's, where it has the command: head does not choose them
    reports = runner.cases[command]
    for name, form in forms.items() if traced else ():
        note(f"nsys: {name} · {command}")
        tracing = tools.tracing(form, runner.time(form))
        _keep(tools, traced, name, look_whole(runner, name, form, traced, tracing, scratch), reports)
    if not counted:
        return
    with counting(runner.parent) as parent:
        for name, form in forms.items():
            note(f"ncu: {name} · {command}")
            tool, own = tools.counting(runner.time(form), kernels), replace(runner, parent=parent)
            _keep(tools, counted, name, look_whole(own, name, form, counted, tool, scratch), reports)


def _seen(case: Case, name: Side) -> bool:
    side = case.sides[name]
    return side.status != "ok" or (side.profile is not None and side.profile.trace is not None)


def _keep(
    tools: Tools,
    cases: Sequence[Case],
    name: Side,
    looks: Mapping[str, Look[Trace]] | Mapping[str, Look[Counters]],
    reports: int | None = None,
) -> None:
    """What was seen goes into the results, with the metrics that follow from it. `reports`: cases of their command."""
    for case in cases:
        found = looks.get(case.key)
        if found is None:
            continue  # the case does not work in this side
        side = case.sides[name]
        profile = side.profile = side.profile or Profile(reports=reports)
        if found.seen is None:
            profile.faults += found.faults
        else:
            take(profile, found.seen, found.faults, tools.capability, case.device == "cuda")
