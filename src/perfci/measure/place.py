"""The place of a run: base and head built, machine known."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import perfci
from perfci.measure.bench import Bench
from perfci.measure.cases import choose_devices, lost_gpu
from perfci.measure.changed import changed
from perfci.measure.commands.runner import Runner
from perfci.measure.costs import Costs
from perfci.measure.environments import Seen, alike, compare_environments, require_devices
from perfci.measure.prepare import (
    SideWork,
    Sources,
    build,
    empty_homes,
    environment,
    find_sources,
    make_home,
    materialise,
    neutral,
    require_only,
)  # fmt: skip
from perfci.measure.request import Progress, Request
from perfci.measure.sides import prepared
from perfci.measure.sides.kept import Kept, key_of, open_kept, require_out_of_reach
from perfci.measure.sides.planned import of_machine, of_sources, require_planned
from perfci.model.base import DeviceKind, Document, MachineError, Side, UsageError
from perfci.model.fingerprint import Environments, Fingerprint
from perfci.model.policy import Policy
from perfci.model.text import escaped, listed
from perfci.sources.environment import HOMES
from perfci.system.builds import Builds
from perfci.system.child import Arena, Died
from perfci.system.facts import driver_version, free_memory, host_facts
from perfci.system.files import disk_error, make_scratch, sweep_scratch, write_atomic
from perfci.system.process import Parent
from perfci.system.users import Account, find_account

D = TypeVar("D", bound=Document)
MEMORY_SHARE = 0.9
"""Share of free memory for all workers together."""
NOWHERE = "none"
"""A folder outside base and head, of as long a name."""
LOAD_TIMEOUT = 60.0
"""Least seconds to import a suite, from a cold disk."""


@dataclass(frozen=True)
class _Built:
    """Base and head, as far as they build."""

    sources: Sources
    limits: Policy
    """Base's policy, else head's, for both sides."""
    seed: int
    sides: Mapping[Side, SideWork]
    parent: Parent
    begun: float
    """Begin of the first build, in seconds since the epoch."""
    built: float
    """End of the builds, monotonic clock."""


@dataclass(frozen=True)
class Place(_Built):
    """What stands before suites are read."""

    facts: Fingerprint
    benches: Mapping[DeviceKind, Bench]
    runner: Runner
    environments: Environments | None = None
    lost: str = ""
    """Why cases can be listed but not measured."""
    shared: bool = False
    """Others may measure the prepared sides at once."""

    def exclusive(self, device: DeviceKind) -> bool:
        """Tell whether a device serves one process at a time."""
        return device == "cuda" and self.facts.gpu is not None and self.facts.gpu.exclusive


def _open_sides(request: Request, progress: Progress, stack: ExitStack, costs: Costs) -> _Built:
    begun = time.time()
    if not request.where.prepared:
        sources = find_sources(request)
    account = find_account()
    account.adopt()
    for path in sweep_scratch():
        progress.note(f"removed what an earlier run left behind: {path}")
    scratch = stack.enter_context(make_scratch())
    stack.callback(account.sweep)
    sides: Mapping[Side, SideWork] = {}
    if request.where.prepared:
        with costs.phase("snapshot"):
            sources, sides, begun = prepared.load(request, request.where.prepared, scratch)
    limits = sources.policies[sources.policy_from]
    seed = limits.seed if request.what.seed is None else request.what.seed
    logs = request.where.out / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for stale in () if request.how.resume else logs.glob("*.log"):  # processes append
            stale.unlink()
    except OSError as error:
        raise disk_error("made", request.where.out, error) from None
    write_atomic(request.where.out / ".gitignore", "*\n")
    if (above := account.may_replace(request.where.out)) is not None:
        sources.notes.append(
            f"the code under test ran as a user who may write to {above}: it could change the sources, and replace "
            f"{request.where.out.name}: mount {above} read-only, and {request.where.out.name} on its own"
        )
    for side in sides.values():
        account.give(side.cache)
        side.env = environment(side, limits.threads, seed, build=False)
    kept = open_kept(request.where.cache, account, stack, progress.note) if request.where.cache else None
    if not sides:
        with costs.phase("snapshot"):
            home = _home(request, scratch, account) if kept is None else kept.home
            sides = materialise(request, sources, home, progress, seed)
            sources = replace(sources, changed=changed({name: side.tree for name, side in sides.items()}))
            if request.what.only:
                require_only(sources, sides["base"], sides["head"], request.what.only)
    if request.planned is not None:
        require_planned(request.planned.sources, of_sources(sources, sides))
    first = next(iter(sides.values()))
    memory = limits.memory or int(free_memory() * MEMORY_SHARE / len(sides) / (1 + request.where.neighbours))
    nowhere = scratch / NOWHERE
    for folder in (nowhere / "site", *(nowhere / "cache" / one for one in HOMES)):
        folder.mkdir(parents=True)
    account.give(nowhere)
    env = neutral(first, nowhere)
    parent = Parent(first.python, scratch, env, memory, forks=alike(sides), account=account)
    stack.callback(parent.close)
    if not request.where.prepared:
        with costs.phase("build"):
            taken = _build(sides, parent, request, progress, kept)
        sources.notes.extend(taken)
    _require_base(sides, request.where.out)
    return _Built(sources, limits, seed, sides, parent, begun, time.monotonic())


def _home(request: Request, scratch: Path, account: Account) -> Path:
    home = request.where.prepare
    if home is None:
        return scratch
    try:
        home.mkdir(parents=True, exist_ok=True)
        if any(home.iterdir()):
            raise UsageError(f"--prepare {home}: is not empty: name a new folder")
    except OSError as error:
        raise disk_error("made", home, error) from None
    account.show(home)
    return home


def prepare_sides(request: Request, folder: Path, progress: Progress) -> list[SideWork]:
    """Build base and head into `folder`. Raises PerfciError."""
    with ExitStack() as stack:
        built = _open_sides(request, progress, stack, Costs())
        prepared.write(request, built.sources, built.sides, built.begun, folder)
        return list(built.sides.values())


def open_place(request: Request, progress: Progress, stack: ExitStack, costs: Costs, *, listing: bool = False) -> Place:
    """Return snapshots, builds, parent and facts, closed by `stack`.

    Raises PerfciError; MachineError where a demanded device is missing, which `listing` gets as `Place.lost` where the
    policy demands it.
    """
    built = _open_sides(request, progress, stack, costs)
    sources, limits, seed, sides, parent = built.sources, built.limits, built.seed, built.sides, built.parent
    logs, scratch = request.where.out / "logs", parent.scratch
    forbidden = [str(sources.root), *(str(side.folder) for side in sides.values())]
    progress.stage("starting the workers")
    parent.builds = Builds(limits.build_timeout, progress.note)
    with costs.phase("start"):
        parent.preload()
    with costs.phase("machine"):
        apart = not alike(sides)
        seen = {
            name: ask_outside(Seen, "facts", side, parent, logs / "facts.log", limits.threads, [], packages=apart)
            for name, side in sides.items()
            if apart or name == "head"
        }
    facts = _facts(seen["head"])
    for name, one in seen.items():
        _require_gpu(request.where.gpu, name, one)
    environments = compare_environments(sides, seen, asked=request.what.environments) if apart else None
    lost = lost_gpu(request.what, limits, sources.policy_name(sources.policy_from), facts, sides["head"].python)
    if lost and not (listing and request.what.devices is None):
        raise MachineError(lost)
    devices = choose_devices(request.what, limits, "cuda" in facts.devices)
    if environments is not None:
        require_devices(environments, seen, devices)
    if request.planned is not None:
        require_planned(request.planned.machine, of_machine(facts, devices, environments))
    cores = _cores(limits.threads)
    benches = {
        device: Bench(
            parent=parent,
            sides=sides,
            seed=seed,
            threads=limits.threads,
            # A GPU case's host thread shares its cores with the driver's: pinned to one it would wait for them.
            cores=cores if device == "cpu" else [],
            timeout=limits.timeout,
            forbidden=forbidden,
            logs=logs,
            costs=costs,
            context=device == "cuda" and not (facts.gpu is not None and facts.gpu.exclusive),
            lot=str(seed) if request.planned is None else request.planned.draws,
        )
        for device in devices
    }
    runner = Runner(parent, sides, limits.timeout, cores, logs, scratch, limits.metrics)
    return Place(
        sources, limits, seed, sides, parent, built.begun, built.built, facts, benches, runner, environments, lost,
        shared=request.where.prepared is not None,
    )  # fmt: skip


def _require_gpu(asked: str | None, name: Side, seen: Seen) -> None:
    """UsageError where a side sees another GPU than demanded, MachineError where it sees none."""
    if asked is None:
        return
    if seen.gpu is None:
        raise MachineError(f"--gpus: torch in {name}'s interpreter can use no GPU here: see `perfci doctor`")
    if not seen.uuid:
        raise UsageError(f"--gpus: torch {escaped(seen.torch or '')} tells no UUID: update it, or leave out --gpus")
    if seen.uuid.removeprefix("GPU-") != asked.removeprefix("GPU-"):
        raise UsageError(
            f"--gpus: {name} sees GPU {escaped(seen.uuid)}, and is to be measured on {escaped(asked)}: leave "
            "CUDA_VISIBLE_DEVICES out of env: in perfci.yaml, and out of --env"
        )


def _cores(threads: int) -> list[int]:
    """CPU cases of both sides get the last cores: the first serve interrupts."""
    if not hasattr(os, "sched_getaffinity"):
        return []  # macOS
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise UsageError(f"threads: {threads} are asked for, this process may use {len(cores)} cores: lower threads")
    return cores[-threads:]


def _build(
    sides: Mapping[Side, SideWork], parent: Parent, request: Request, progress: Progress, kept: Kept | None
) -> list[str]:
    """Neither the other side's build nor measured code can reach what stands then. Returns notes."""
    notes: list[str] = []
    for side in sides.values():
        built = [one.seal for one in sides.values() if one.seal is not None]
        with ExitStack() as still:
            for seal in built:
                still.enter_context(seal.undisturbed(side.name))
            notes += _build_side(side, parent, request, progress, kept)
    return notes


def _build_side(side: SideWork, parent: Parent, request: Request, progress: Progress, kept: Kept | None) -> list[str]:
    notes = []
    parent.account.show(side.folder)
    refused = make_home(side, parent.account) if side.policy.build else []
    _give(side, parent.account)
    if refused:
        home, n = escaped(os.environ["HOME"]), listed(refused)
        progress.note(
            f"{side.name} is built without {n} of {home}, which the code under test may change (PERFCI_CACHE)"
        )
    key, taken = None, False
    if kept is not None and side.policy.build and side.name == (request.where.keep or "base"):
        if request.where.keep is not None:
            require_out_of_reach(side, parent.account)
        key = key_of(side, parent, request.where.out / "logs" / "tools.log")
        if key is None:
            progress.note("no build is taken or kept: its tools do not tell their versions: see logs/tools.log")
        elif request.where.keep is None:
            taken = kept.take(key, side)
    if taken:
        _give(side, parent.account)
        notes.append(f"{side.name} was built by an earlier run (PERFCI_CACHE): same files, tools and environment")
    elif side.policy.build:
        progress.stage(f"building {side.name}")
        build(side, parent, request.where.out)
    empty_homes(side, parent.account)
    parent.account.seal(side.tree)
    parent.account.seal(side.site)
    if kept is not None and key is not None and request.where.keep and side.failure is None:
        kept.keep(key, side)  # before anything of the next side runs
    side.close()  # likewise
    if side.seal is not None and side.policy.build and side.failure is None:
        side.seal.drop_bytecode(side.python, parent, side.env, request.where.out / "logs" / f"bytecode-{side.name}.log")
    return notes


def _give(side: SideWork, account: Account) -> None:
    for folder in (side.tree, side.site, side.cache):
        account.give(folder)


def _require_base(sides: Mapping[Side, SideWork], out: Path) -> None:
    """Where only head does not build, its cases fail."""
    reasons = [side.failure for side in sides.values() if side.failure]
    if reasons and (next(iter(sides.values())).failure or len(reasons) == len(sides)):
        raise MachineError(f"{reasons[0].text} (log: {out / (reasons[0].log or '')})")


def ask_outside(
    form: type[D], op: str, side: SideWork, parent: Parent, log: Path, threads: int, cores: Sequence[int], **fields: Any
) -> D:
    """Return the answer of a worker outside base and head. Raises MachineError."""
    nowhere = parent.scratch / NOWHERE
    try:
        worker = parent.worker(Arena(nowhere, nowhere, [], neutral(side, nowhere), side.python, threads, cores), log)
        answer = worker.tell(form, op, LOAD_TIMEOUT, **fields)
        worker.close()
    except Died as died:
        which = f" of {fields['device']}" if "device" in fields else ""
        raise MachineError(f"{side.python}: cannot tell its {op}{which}: {died.reason.text} (log: {log})") from None
    return answer


def _facts(seen: Seen) -> Fingerprint:
    facts = host_facts(perfci.__version__)
    facts.python, facts.torch, facts.cuda = seen.python, seen.torch, seen.cuda
    facts.devices = {"cpu": facts.cpu or platform.machine()}
    if seen.gpu is not None:
        facts.devices["cuda"], facts.uuid, facts.gpu = seen.name or "", seen.uuid, seen.gpu
        facts.driver = driver_version()
    return facts


def require_untouched(place: Place) -> None:
    """Raise MachineError where a side's files changed."""
    for name, side in place.sides.items():
        if side.seal is not None:
            logs = next(iter(place.benches.values())).logs
            side.seal.require(side.python, place.parent, side.env, logs / f"bytecode-{name}.log")
