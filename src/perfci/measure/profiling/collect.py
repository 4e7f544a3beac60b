"""The profiling pass: registered profilers, one at a time."""

import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfci.measure.budget import PROFILING_SHARE, Budget
from perfci.measure.place import Place
from perfci.measure.prepare import SideWork
from perfci.measure.profiling.choose import wanted
from perfci.measure.profiling.commands import profile_command
from perfci.measure.profiling.kernels import Observation, fault_of, profile_cases, unaffordable
from perfci.measure.profiling.turns import Turns
from perfci.measure.request import RAW, How
from perfci.model.base import DeviceKind, Side
from perfci.model.metrics import CATALOGUE, CHECKED
from perfci.model.plan import Plan
from perfci.model.policy import Command, Traced
from perfci.model.profile import Fault, Part, Profile, source
from perfci.model.results import Case
from perfci.model.text import count
from perfci.profilers import registry
from perfci.profilers.base import Built, Code, Keep, Profiler, ProfilerRequest, Scope, trimmed
from perfci.profilers.metrics import take
from perfci.profilers.registry import Kind
from perfci.sources.environment import DOWNLOADS
from perfci.system.files import disk_errors, remove
from perfci.system.gpu import Gpu, cuda_version
from perfci.system.process import Parent
from perfci.system.users import CAP_PERFMON, CAP_SYS_ADMIN, SAME, Account, held

UNTRUSTED = (
    "counters are not read: the code is a fork's, its author is not known, or --no-counters was given",
    "have somebody who may write here push it to a branch of this repository",
)
KEPT = "profile"
"""Below the output folder: files of a profile."""


@dataclass(frozen=True)
class Profilers:
    """The profilers on this machine."""

    found: Mapping[Kind, Profiler[Any] | Fault]
    """Each, or why it is unusable."""
    capability: tuple[int, int] | None = None

    def of(self, part: Part, scope: Scope) -> list[Profiler[Any] | Fault]:
        """Return providers of a part of a scope, first choice first."""
        return [one for kind, one in self.found.items() if kind.part == part and scope in kind.scopes]

    def unanswerable(self, plan: Plan) -> list[str]:
        """Return limits that no profiler here can judge, with reason and remedy."""
        counting = self.of("counters", "case")
        usable = [one for one in counting if not isinstance(one, Fault)]
        fault = next((one for one in counting if isinstance(one, Fault) and not usable), None)
        words = {}
        for criterion in plan.observed:
            reasons = [one.lacking().get(criterion.metric) for one in usable]
            why = reasons[0] if reasons and all(reasons) else None
            if criterion.tier == "counters" and fault is not None:
                why = fault.text + (f": {fault.remedy}" if fault.remedy else "")
            if why:
                words[str(criterion.source)] = f"{criterion.source}: {criterion.metric} cannot be judged here: {why}"
        return list(words.values())


def find_profilers(place: Place, plan: Plan, how: How, out: Path) -> Profilers:
    """Find the profilers, whose files go to `out`. Untrusted code gets no counters."""
    folder = None if plan.judged else _anew(out / KEPT)
    raw = _anew(out / RAW, how.raw) if how.raw or not plan.judged else None
    gpu, _ = Gpu.open(place.facts.uuid or 0) if "cuda" in place.benches else (None, "")
    request = ProfilerRequest(
        timeout=place.limits.timeout,
        gpu="cuda" in place.benches,
        driver_cuda=cuda_version(gpu.cuda()) if gpu else "",
        capability=place.facts.gpu.chip if place.facts.gpu else None,
        counters=place.limits.counters,
        metrics=tuple(one.metric for one in plan.observed if one.tier == "counters" and one.metric in CATALOGUE),
        written_env=frozenset(item for side in place.sides.values() for item in side.written.items()),
        keep=Keep(folder, raw, handed_on=plan.judged) if folder or raw else None,
        account=place.parent.account,
    )

    def find(kind: Kind) -> Profiler[Any] | Fault:
        if kind.part == "counters" and not how.counters:
            return fault_of(kind, "forbidden", *UNTRUSTED)
        return kind.find(request)

    return Profilers({kind: find(kind) for kind in registry.KINDS}, request.capability)


def _anew(folder: Path, wanted: bool = True) -> Path | None:
    """None unless wanted. Raises MachineError."""
    with disk_errors("emptied", folder):
        remove(folder)
        if wanted:
            folder.mkdir(parents=True)
    return folder if wanted else None


@contextmanager
def counting_parent(ordinary: Parent) -> Iterator[Parent]:
    """Yield the parent of what is counted.

    Where the code under test runs as another user, it has this process's capabilities to count, which `ordinary` lacks.
    """
    capabilities = held([CAP_PERFMON, CAP_SYS_ADMIN]) or []
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
    profilers: Profilers,
    cases: Sequence[Case],
    plan: Plan,
    scratch: Path,
    note: Callable[[str], None],
    budget: Budget | None = None,
    begin: Callable[[], None] = lambda: None,
    more: Collection[Traced] = (),
    barrier: Callable[[], None] = lambda: None,
) -> list[str]:
    """Profile the cases that need it, or all where nothing is judged, within `budget`. Returns notes.

    `more`: traced of commands besides. `barrier` returns once no other process on this host runs code of these sides.
    """
    start = time.monotonic()
    room = budget is None or budget.left >= PROFILING_SHARE * budget.seconds
    traced, counted = wanted(cases, plan, place.limits.profile, room=room)
    if not plan.judged:
        traced = [case for case in cases if case.sides["head"].status == "ok"]
        counted = [case for case in traced if case.device == "cuda"]
    if not traced and not counted:
        return []
    begin()
    of_commands = {case.key for case in [*traced, *counted] if case.origin == "command"}
    needed = not plan.judged or any(one.metric not in CHECKED or one.case_key in of_commands for one in plan.observed)
    seconds = budget.profiling(needed) if budget is not None else math.inf
    scratch.mkdir(parents=True, exist_ok=True)
    place.parent.account.show(scratch)
    for kind in registry.KINDS:
        for stale in place.runner.logs.glob(f"{kind.name}-*.log"):
            stale.unlink()
    passes: tuple[tuple[Part, Sequence[Case]], ...] = (("trace", traced), ("counters", counted))
    commands = dict.fromkeys(case.kernel for case in [*traced, *counted] if case.origin == "command")
    kernels = [
        (device, part, metrics, alike)
        for device in place.benches
        for part, some in passes
        for metrics, alike in asked_alike(
            [case for case in some if case.device == device and case.origin == "kernel"], plan, part
        )
    ]
    turns = Turns(seconds, len(place.sides) * (len(kernels) + len(passes) * len(commands)))
    run = _Pass(place, profilers, scratch, note, turns)
    for device, part, metrics, alike in kernels:
        run.kernels(part, device, alike, metrics)
    for command in commands:
        for part, some in passes:
            own = [case for case in some if case.origin == "command" and case.kernel == command]
            metrics = tuple(dict.fromkeys(one for names, _ in asked_alike(own, plan, part) for one in names))
            run.command(part, _asked(place, command, own, plan, more), own, metrics)
    barrier()
    for profiler in profilers.of("code", "side"):
        if not isinstance(profiler, Fault):
            read_code(profiler, list(place.sides.values()), counted, note, place.parent.account)
    many = len({case.key for case in [*traced, *counted]})
    notes = [f"profiled {count(many, 'case')} after timing, for {time.monotonic() - start:.0f} s"]
    if more and not commands:
        notes.append(f"{' and '.join(sorted(more))} was not traced: of commands alone it is, and none was profiled")
    if withheld := _withheld(place, profilers):
        under = " and ".join(kind.name for kind in registry.KINDS if kind.trims)
        notes.append(f"under {under}, code does without {', '.join(withheld)}: reports hold the environment")
    return notes


def asked_alike(cases: Sequence[Case], plan: Plan, part: Part) -> list[tuple[tuple[str, ...], list[Case]]]:
    """Return cases by start of a profiler, with the metrics that their limits need. No cases give one start, to be
    skipped."""
    own: dict[str, set[str]] = {}
    for one in plan.observed if part == "counters" else ():
        if one.tier == part and one.metric not in CATALOGUE:
            own.setdefault(one.case_key, set()).add(one.metric)
    found: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        found.setdefault(tuple(sorted(own.get(case.key, ()))), []).append(case)
    return list(found.items()) or [((), [])]


def _withheld(place: Place, profilers: Profilers) -> list[str]:
    """Variables of `pass_env` that profiled code lacks."""
    if not any(kind.trims and not isinstance(one, Fault) for kind, one in profilers.found.items()):
        return []
    written = {item for side in place.sides.values() for item in side.written.items()}
    return sorted(
        {
            name
            for side in place.sides.values()
            for name in {*side.policy.pass_env} & side.env.keys()
            if name not in trimmed(side.env, written)
        }
    )


@dataclass(frozen=True)
class _Pass:
    place: Place
    profilers: Profilers
    scratch: Path
    note: Callable[[str], None]
    turns: Turns

    def kernels(self, part: Part, device: DeviceKind, cases: Sequence[Case], metrics: Sequence[str]) -> None:
        """Passes over a profiler whose worker would still import when its time ends."""
        bench, names = self.place.benches[device], list(self.place.sides)
        if not cases:
            self.turns.skip(len(names))

        def ready(found: Profiler[Any]) -> Profiler[Any] | Fault:
            profiler, imports, share = found.for_cases(device).asking(metrics), bench.parent.imported, self.turns.share
            unready = profiler.under(self.scratch / profiler.name) is not None and share < imports
            return unaffordable(profiler, imports, share) if unready else profiler

        def start(profiler: Profiler[Any], parent: Parent, name: Side, cases: Sequence[Case]) -> _Seen:
            own = replace(bench, parent=parent)
            return profile_cases(own, name, cases, profiler, self.scratch, self.note, self.turns.next())

        self._provide(self.profilers.of(part, "case"), part, bench.parent, cases, names, ready, start)

    def command(self, part: Part, asked: Command, cases: Sequence[Case], metrics: Sequence[str]) -> None:
        runner, forms = self.place.runner, _forms(self.place, asked.name)

        def start(found: Profiler[Any], parent: Parent, name: Side, cases: Sequence[Case]) -> _Seen:
            self.note(f"{found.name}: {name} · {asked.name}")
            own, form = replace(runner, parent=parent), forms[name]
            profiler = found.for_command(form.device, runner.time(form), asked).asking(metrics)
            return profile_command(own, name, form, cases, profiler, self.scratch, self.turns.next())

        found = self.profilers.of(part, "command")
        self._provide(found, part, runner.parent, cases, list(forms), lambda one: one, start, runner.cases[asked.name])

    def _provide(
        self,
        found: Sequence[Profiler[Any] | Fault],
        part: Part,
        parent: Parent,
        cases: Sequence[Case],
        names: Sequence[Side],
        ready: Callable[[Profiler[Any]], Profiler[Any] | Fault],
        start: Callable[[Profiler[Any], Parent, Side, Sequence[Case]], "_Seen"],
        reports: int | None = None,
    ) -> None:
        """The next profiler gets cases that the first does not see in every side. `reports`: cases of their command."""
        for one in found:
            if not cases:
                return
            profiler = one if isinstance(one, Fault) else ready(one)
            if isinstance(profiler, Fault):
                _refuse(cases, names, profiler, reports)
                continue
            with counting_parent(parent) if part == "counters" else nullcontext(parent) as own:
                for name in names:
                    _keep(cases, name, start(profiler, own, name, cases), self.profilers.capability, reports)
            cases = _unseen(cases, names, part)


_Seen = Mapping[str, Observation[Any]]


def _forms(place: Place, command: str) -> dict[Side, Command]:
    return {name: form for name in place.sides if (form := place.runner.command(name, command)) is not None}


def _asked(place: Place, command: str, cases: Sequence[Case], plan: Plan, more: Collection[Traced]) -> Command:
    """Base decides what is seen of a command, besides `more` and what limits need."""
    asked = next(iter(_forms(place, command).values()))
    keys = {case.key for case in cases}
    limited = any(one.metric in CHECKED and one.case_key in keys for one in plan.observed)
    traced = {*asked.trace, *more, *(["memory"] if limited else [])}
    return asked.model_copy(update={"trace": sorted(traced)})


def _unseen(cases: Sequence[Case], names: Sequence[Side], part: Part) -> list[Case]:

    def seen(case: Case, name: Side) -> bool:
        side = case.sides[name]
        return side.status != "ok" or (side.profile is not None and source(side.profile, part) is not None)

    return [case for case in cases if not all(seen(case, name) for name in names)]


def _refuse(cases: Sequence[Case], names: Sequence[Side], fault: Fault, reports: int | None = None) -> None:
    for case in cases:
        for side in (case.sides[name] for name in names):
            if side.status == "ok":
                side.profile = side.profile or Profile(reports=reports)
                side.profile.faults.append(fault)


def _keep(
    cases: Sequence[Case],
    name: Side,
    seen: Mapping[str, Observation[Any]],
    capability: tuple[int, int] | None,
    reports: int | None = None,
) -> None:
    for case in cases:
        found = seen.get(case.key)
        if found is None:
            continue  # the case does not work in this side
        side = case.sides[name]
        profile = side.profile = side.profile or Profile(reports=reports)
        if found.seen is None:
            profile.faults += found.faults
        else:
            take(profile, found.seen, found.faults, capability, case.device == "cuda")


# ---------------------------------------------------------------- machine code


def read_code(
    profiler: Profiler[Code],
    sides: Sequence[SideWork],
    cases: Sequence[Case],
    note: Callable[[str], None],
    account: Account = SAME,
) -> None:
    """Read kernels' code, for `cases` with a timeline that lack counters in some side.

    Takes the sides' folders back from `account`: nothing of them runs after this.
    """
    profiles = {case.key: [side.profile for side in case.sides.values()] for case in cases}
    lacking = [case for case in cases if any(one and one.counters is None for one in profiles[case.key])]
    for side in sides:
        if seen := {case.key: found for case in lacking if (found := _launching(case, side.name)) is not None}:
            kernels = {key: profile.trace.kernels if profile.trace else [] for key, profile in seen.items()}
            read = profiler.inspect(_built(side, account), kernels, note)
            for key, profile in seen.items():
                profile.code = read.seen.get(key, [])
                profile.faults += [*read.faults.get(key, []), *read.general]


def _launching(case: Case, name: Side) -> Profile | None:
    found = case.sides[name].profile if name in case.sides else None
    return found if found is not None and found.trace is not None and found.trace.kernels else None


def _built(side: SideWork, account: Account) -> Built:
    """Takes the files back from `account`. Raises MachineError as `Seal.require`."""
    if side.seal is not None:
        side.seal.close_caches()
    for folder in (side.tree, side.site):
        account.seal(folder)
    account.reclaim(side.cache)
    caches = [one for one in sorted(side.cache.iterdir()) if one.name not in DOWNLOADS]
    return Built(side.name, [side.tree, side.site, *caches], side.python, side.env, side.folder)
