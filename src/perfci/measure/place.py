"""Where a run takes place: both arms built, the parent started, the machine known, the suites discovered."""

import os
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import perfci
from perfci.measure import prepared
from perfci.measure.cases import Found, choose_devices, load, lost_gpu
from perfci.measure.commands.runner import Runner
from perfci.measure.options import Options, Progress
from perfci.measure.prepare import ArmWork, Sources, build, environment, find_sources, materialise
from perfci.measure.rounds import Bench
from perfci.model.base import ArmName, DeviceKind, MachineError, UsageError
from perfci.model.fingerprint import Fingerprint
from perfci.model.policy import Policy
from perfci.model.results import FileFailure
from perfci.system.facts import driver_version, free_memory, host_facts
from perfci.system.files import disk_error, make_scratch, sweep_scratch, write_atomic
from perfci.system.process import Arena, Died, Parent
from perfci.system.users import Worker, find_worker

MEMORY_SHARE = 0.9
"""Share of the free memory that all live launches together may use, where the policy names no limit."""
LOAD_TIMEOUT = 60.0
"""Seconds at least for importing a suite: libraries are read from a cold disk."""


@dataclass(frozen=True)
class Place:
    """Everything that stands before the suites are looked at."""

    sources: Sources
    limits: Policy
    """Base's policy where it has one, else head's: limits, budget, time-outs, seed and threads for both arms."""
    arms: Mapping[ArmName, ArmWork]
    parent: Parent
    facts: Fingerprint
    benches: Mapping[DeviceKind, Bench]
    """One for each device that is measured on."""
    runner: Runner
    seed: int
    lost: str = ""
    """Why nothing can be measured though cases can be listed: a device that is demanded is not here."""


@dataclass(frozen=True)
class _Built:
    """Both arms, as far as they build."""

    sources: Sources
    limits: Policy
    seed: int
    arms: Mapping[ArmName, ArmWork]
    parent: Parent


def _open_arms(options: Options, progress: Progress, stack: ExitStack) -> _Built:
    """Snapshots, parent and builds, or what was built before. What it opens `stack` closes. Raises PerfciError."""
    if not options.prepared:
        sources = find_sources(options)
    worker = find_worker()
    worker.adopt()
    for path in sweep_scratch():
        progress.note(f"removed what an earlier run left behind: {path}")
    scratch = stack.enter_context(make_scratch()).path
    stack.callback(worker.sweep)
    arms: Mapping[ArmName, ArmWork] = {}
    if options.prepared:
        sources, arms = prepared.load(options, options.prepared, scratch)
    limits = sources.policies[sources.policy_from]
    seed = limits.seed if options.seed is None else options.seed
    logs = options.out / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error("made", options.out, error) from None
    write_atomic(options.out / ".gitignore", "*\n")
    if (above := worker.may_replace(options.out)) is not None:
        sources.notes.append(
            f"the code under test ran as a user who may write to {above}: it could change the sources, and replace "
            f"{options.out.name}: mount {above} read-only, and {options.out.name} on its own"
        )
    for arm in arms.values():
        worker.give(arm.cache)
        arm.env = environment(arm, limits.threads, seed, build=False)
    arms = arms or materialise(options, sources, _home(options, scratch, worker), progress, seed)
    first = next(iter(arms.values()))
    memory = limits.memory or int(free_memory() * MEMORY_SHARE / len(arms))
    one_python = len({arm.python for arm in arms.values()}) == 1
    env = environment(first, limits.threads, seed, build=False)
    parent = Parent(first.python, scratch, env, memory, forks=one_python, worker=worker)
    stack.callback(parent.close)
    if not options.prepared:
        _build(arms, parent, options.out, progress)
    _require_base(arms, options.out)
    return _Built(sources, limits, seed, arms, parent)


def _home(options: Options, scratch: Path, worker: Worker) -> Path:
    """The folder that both arms go to. Raises UsageError, MachineError."""
    home = options.prepare
    if home is None:
        return scratch
    try:
        home.mkdir(parents=True, exist_ok=True)
        if any(home.iterdir()):
            raise UsageError(f"--prepare {home}: is not empty: name a new folder")
    except OSError as error:
        raise disk_error("made", home, error) from None
    worker.show(home)
    return home


def prepare_arms(options: Options, folder: Path, progress: Progress) -> list[ArmWork]:
    """Both arms into `folder`, as far as they build, to be measured later. Raises PerfciError."""
    with ExitStack() as stack:
        built = _open_arms(options, progress, stack)
        prepared.write(options, built.sources, built.arms, folder)
        return list(built.arms.values())


def open_place(options: Options, progress: Progress, stack: ExitStack, *, listing: bool = False) -> Place:
    """Snapshots, builds, parent and facts. What it opens is closed by `stack`.

    Raises PerfciError: MachineError too where a device that is demanded is not here, which `listing` is told instead
    where it is the policy that demands it.
    """
    built = _open_arms(options, progress, stack)
    sources, limits, seed, arms, parent = built.sources, built.limits, built.seed, built.arms, built.parent
    logs, scratch = options.out / "logs", parent.scratch
    progress.stage("starting the workers")
    parent.preload()
    facts = _facts(arms["head"], parent, scratch / "none", limits.threads, logs / "facts.log")
    lost = lost_gpu(options, limits, sources.policy_name(sources.policy_from), facts, arms["head"].python)
    if lost and not (listing and options.devices is None):
        raise MachineError(lost)
    devices = choose_devices(options, limits, "cuda" in facts.devices)
    cores = _cores(limits.threads)
    forbidden = [str(sources.root), *(str(arm.folder) for arm in arms.values())]
    benches = {
        device: Bench(
            parent=parent,
            arms=arms,
            seed=seed,
            threads=limits.threads,
            # A GPU case's host thread shares its cores with the driver's: pinned to one it would wait for them.
            cores=cores if device == "cpu" else [],
            timeout=limits.timeout,
            forbidden=forbidden,
            logs=logs,
        )
        for device in devices
    }
    runner = Runner(parent, arms, limits.timeout, cores, logs, scratch, limits.metrics)
    return Place(sources, limits, arms, parent, facts, benches, runner, seed, lost)


def _cores(threads: int) -> list[int]:
    """The cores that CPU cases are pinned to, the same in both arms: the last ones, as the first serve interrupts."""
    if not hasattr(os, "sched_getaffinity"):
        return []  # macOS
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise UsageError(f"threads: {threads} are asked for, this process may use {len(cores)} cores: lower threads")
    return cores[-threads:]


def _build(arms: Mapping[ArmName, ArmWork], parent: Parent, out: Path, progress: Progress) -> None:
    """Each arm's own steps. What stands then is out of reach of the other arm's build, and of all that is measured."""
    for arm in arms.values():
        parent.worker.show(arm.folder)
        for folder in (arm.tree, arm.site, arm.cache):
            parent.worker.give(folder)
        if arm.policy.build:
            progress.stage(f"building {arm.name}")
            build(arm, parent, out)
        parent.worker.seal(arm.tree)
        parent.worker.seal(arm.site)
        arm.close()  # before anything of the next arm runs


def _require_base(arms: Mapping[ArmName, ArmWork], out: Path) -> None:
    """Raises MachineError where there is nothing to compare with. Where only head fails to build, its cases failed."""
    reasons = [arm.failure for arm in arms.values() if arm.failure]
    if reasons and (next(iter(arms.values())).failure or len(reasons) == len(arms)):
        raise MachineError(f"{reasons[0].text} (log: {out / (reasons[0].log or '')})")


def _facts(arm: ArmWork, parent: Parent, nowhere: Path, threads: int, log: Path) -> Fingerprint:
    """Facts of machine, interpreter and GPU, as a launch outside both arms sees them."""
    nowhere.mkdir()
    parent.worker.give(nowhere)
    try:
        launch = parent.launch(Arena(nowhere, nowhere, [], arm.env, arm.python, threads), log)
        seen = launch.ask("facts", LOAD_TIMEOUT)
        launch.close()
    except Died as died:
        raise MachineError(f"{arm.python}: cannot tell its facts: {died.reason.text} (log: {log})") from None
    facts = host_facts(perfci.__version__)
    facts.python, facts.torch, facts.cuda = seen["python"], seen["torch"], seen["cuda"]
    facts.devices = {"cpu": facts.cpu or platform.machine()}
    if seen["gpu"]:
        gpu = seen["gpu"]
        facts.devices["cuda"] = gpu.pop("name")
        facts.uuid = gpu.pop("uuid")
        facts.driver = driver_version()
        facts.extra = {**gpu, "empty_pair_seconds": seen["empty_pair"]}
    return facts


def discover(place: Place) -> dict[ArmName, Found]:
    """What the suites declare, each arm's in a launch of its own.

    A file whose import ends the process costs that file: the files are then imported one by one, and the arm goes on
    with those that work. Raises MachineError.
    """
    bench = next(iter(place.benches.values()))
    found: dict[ArmName, Found] = {}
    for name, arm in place.arms.items():
        found[name] = Found()
        if arm.failure or not arm.suite:
            continue
        with arm.own():
            try:
                found[name] = _load(bench, arm, arm.suite)
            except Died:
                found[name] = _load_one_by_one(bench, arm)
    return found


def require_untouched(place: Place) -> None:
    """Raise MachineError where the files of an arm are no longer those that were built."""
    for name, arm in place.arms.items():
        if arm.seal is not None:
            logs = next(iter(place.benches.values())).logs
            arm.seal.require(arm.python, place.parent, arm.env, logs / f"bytecode-{name}.log")


def _load(bench: Bench, arm: ArmWork, suite: list[str]) -> Found:
    launch = bench.parent.launch(arm.arena(bench.threads, bench.cores), bench.logs / f"{arm.name}.log")
    try:
        return load(arm, launch, suite, max(bench.timeout, LOAD_TIMEOUT), bench.forbidden)
    finally:
        launch.close()


def _load_one_by_one(bench: Bench, arm: ArmWork) -> Found:
    whole = Found()
    working = []
    files = sorted({str(p.relative_to(arm.tree)) for glob in arm.suite for p in arm.tree.glob(glob) if p.is_file()})
    for file in files:
        try:
            one = _load(bench, arm, [file])
        except Died as died:
            text = f"importing it ended the process: {died.reason.text}"
            reason = died.reason.model_copy(update={"text": text, "log": f"logs/{arm.name}.log"})
            one = Found(files=[FileFailure(arm=arm.name, file=file, reason=reason)], broken={file})
        else:
            working.append(file)
        whole.cases.update(one.cases)
        whole.files += one.files
        whole.broken |= one.broken
    arm.suite = working
    return whole
