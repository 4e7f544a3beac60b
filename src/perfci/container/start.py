"""`perfci VERB` in containers: it builds with a network and without rights, and measures the other way round.

The repository is mounted read-only and the output on its own, both at their paths on the host.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import perfci
from perfci.container import say
from perfci.container.engine import GPU_REMEDY, Ended, Engine, Image, UnknownCapabilityError
from perfci.container.rights import (
    RUN_CAPABILITIES,
    Counting,
    Host,
    counting,
    environment,
    need_of,
    read_host,
    require_no_cover,
)
from perfci.measure.prepare import find_sources
from perfci.measure.request import COMMAND, MEASURE_ALL, SEED, WAIT, Request
from perfci.model.base import MachineError, UsageError
from perfci.model.policy import Policy
from perfci.model.text import escaped
from perfci.render import docs
from perfci.sources.git import Repository
from perfci.system.files import disk_error, disk_errors
from perfci.system.lease import FOLDER, make_folder
from perfci.system.pins import DEFAULT, for_driver, variants
from perfci.system.pins import VARIABLE as VARIANT

LABEL = "perfci.started"
SIDES = Path("/perfci-sides")
"""Mount point of the volume of built sides."""
LEASES = Path("/tmp") / FOLDER
"""Mount point of the host's leases: no two runs measure on one device."""
TWICE = ("run", "compare", "profile")
ONCE = ("list", "doctor")
MEMORY_SHARE = 0.9
"""Of the machine's memory: beyond it the container ends, and nothing else on the machine."""
PIDS = 8192
"""Processes and threads: some hundred cores may compile, and a fork bomb ends early."""
SHM = 1 << 30
"""Bytes of /dev/shm (Docker: 64 MiB): data loaders hand tensors over in it."""

_GPU = r"\d{1,4}|(GPU|MIG)-[0-9a-f-]{1,80}"

Phase = Literal["build", "measure", "list", "doctor"]


@dataclass(frozen=True)
class Job:
    """A verb to run in containers."""

    verb: str
    words: Sequence[str]
    """After the verb; `request` overrules `--repo` and `--out`."""
    request: Request
    command: Sequence[str]
    image: str | None = None
    """None takes the one that fits the driver."""
    pull: bool = False
    gpus: str = "auto"
    """`all`, `none`, indices or UUIDs with commas between; `auto`: all where there is a driver."""
    counters: bool | None = None
    """`--counters` or `--no-counters`."""
    trusted: bool = True
    """By the caller, or people who may write to the repository."""


@dataclass(frozen=True)
class Terms:
    """What both containers of a job share."""

    job: Job
    image: Image
    gpus: tuple[str, ...] | None
    """None: no GPU; empty: all."""
    folders: Sequence[Path]
    policies: Sequence[Policy]
    leases: Path
    """The host's folder."""
    memory: int
    tty: bool
    caller: Mapping[str, str]
    cores: str = ""
    """As `cpuset_cpus` takes them; empty for all."""


def start(job: Job, caller: Mapping[str, str] = os.environ) -> Ended:
    """Run the job, with its output on this process's. Raises PerfciError."""
    folders, policies = _sources(job)
    host = read_host()
    gpus = choose_gpus(job.gpus, host)
    with Engine.connect() as engine:
        if gpus is not None and not engine.gives_gpus():
            raise MachineError(f"Docker: it cannot give a GPU: {GPU_REMEDY}")
        name = job.image or default_image(host, gpus)
        image = engine.image(name, pull=job.pull)
        require_fit(name, image, host, gpus)
        with disk_errors("made", job.request.where.out):
            job.request.where.out.mkdir(parents=True, exist_ok=True)
        try:
            leases = make_folder()
        except OSError as error:
            raise disk_error("made", Path(error.filename or "/tmp"), error) from None
        tty = sys.stdout.isatty() and sys.stderr.isatty()
        terms = Terms(job, image, gpus, folders, policies, leases, int(engine.memory * MEMORY_SHARE), tty, caller,
                      own_cores())  # fmt: skip
        return _phases(engine, terms, host)


def own_cores() -> str:
    """Return this process's cores as Docker takes them; empty for all."""
    if not hasattr(os, "sched_getaffinity"):
        return ""  # macOS
    own = sorted(os.sched_getaffinity(0))
    return "" if len(own) == os.cpu_count() else ",".join(map(str, own))


def _phases(engine: Engine, terms: Terms, host: Host) -> Ended:
    verb = terms.job.verb
    if verb == "list":  # builds and imports, and measures nothing
        return engine.run(arguments(terms, "list", None, Counting(False)))
    need = need_of(verb, terms.policies)
    rung = counting(need, host if terms.gpus is not None else Host(None), trusted=terms.job.trusted,
                    asked=terms.job.counters)  # fmt: skip
    if verb == "doctor":
        return _counted(engine, terms, "doctor", None, rung, host)
    with engine.volume({LABEL: str(terms.job.request.where.out)}) as volume:
        ended = engine.run(arguments(terms, "build", volume, Counting(rung.allowed)))
        if ended.interrupted and not ended.code:
            raise MachineError("interrupted before anything was measured")
        return ended if ended.code else _counted(engine, terms, "measure", volume, rung, host)


def _counted(engine: Engine, terms: Terms, phase: Phase, volume: str | None, rung: Counting, host: Host) -> Ended:
    """With SYS_ADMIN, or without, where the engine does not know PERFMON."""
    if rung.why and phase == "measure":
        say(rung.why)
    try:
        return engine.run(arguments(terms, phase, volume, rung))
    except UnknownCapabilityError:
        need = need_of(terms.job.verb, terms.policies)
        lower = counting(need, host, trusted=terms.job.trusted, asked=terms.job.counters, perfmon=False)
        say(lower.why)
        return engine.run(arguments(terms, phase, volume, lower))


def arguments(terms: Terms, phase: Phase, volume: str | None, rung: Counting) -> dict[str, Any]:
    """Return the arguments of `containers.create` for one container. Pure."""
    job, where = terms.job, terms.job.request.where
    networked = phase in ("build", "list")
    gpus = None if phase == "build" else terms.gpus
    env = environment(
        terms.caller, [name for policy in terms.policies for name in policy.pass_env], build=networked,
        trusted=job.trusted,
    )  # fmt: skip
    if gpus:
        env.pop("CUDA_VISIBLE_DEVICES", None)  # counts the GPUs of the host
    if gpus is None:
        env["NVIDIA_VISIBLE_DEVICES"] = "void"  # else an engine whose runtime is NVIDIA's gives all of them
    env[COMMAND] = shlex.join(job.command)
    env[docs.VARIABLE] = docs.page("").removesuffix("/")  # this one's: what the image has is not to be read here
    what = job.request.what
    settings = {SEED: what.seed, MEASURE_ALL: int(what.measure_all) or None}
    env |= {WAIT: f"{job.request.how.wait:g}s"} | {
        name: str(value) for name, value in settings.items() if value is not None
    }
    mounts = [_bind(folder, read_only=True) for folder in terms.folders]
    mounts += [_bind(where.out), _bind(terms.leases) | {"Target": str(LEASES)}]
    if volume:
        mounts.append({"Type": "volume", "Source": volume, "Target": str(SIDES)})
    given = {
        "image": terms.image.id,
        "command": command(job, phase, rung),
        "environment": env,
        "use_config_proxy": False,  # of the user's ~/.docker/config.json
        "working_dir": str(where.repository),
        "labels": {LABEL: phase},
        "tty": terms.tty,
        "mounts": mounts,
        "network_mode": "bridge" if networked else "none",
        "privileged": False,
        "cap_drop": ["ALL"],
        "cap_add": [*RUN_CAPABILITIES, *([rung.capability] if rung.capability else [])],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": {"/tmp": "exec,mode=1777"},  # its programs are run: what Triton and torch compile
        "mem_limit": terms.memory,
        "pids_limit": PIDS,
        "shm_size": SHM,
        "log_config": {"Type": "none"},
    }
    if terms.cores:
        given["cpuset_cpus"] = terms.cores
    if gpus is not None:
        request: dict[str, Any] = {"capabilities": [["gpu"]]}
        request |= {"device_ids": list(gpus)} if gpus else {"count": -1}
        given["device_requests"] = [request]
    return given


def command(job: Job, phase: Phase, rung: Counting) -> list[str]:
    """Return arguments for the entry point: the caller's words, then those that overrule them."""
    words = list(job.words)
    end = words.index("--") if "--" in words else len(words)
    more = ["--repo", str(job.request.where.repository)]
    if phase != "list":
        more += ["--out", str(job.request.where.out)]
    if phase in ("build", "measure"):
        more += ["--prepare" if phase == "build" else "--prepared", str(SIDES)]
        more += [] if rung.allowed else ["--no-counters"]
    return [job.verb, *words[:end], *more, *words[end:]]


def _bind(path: Path, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(path), "Target": str(path), "ReadOnly": read_only}


def _sources(job: Job) -> tuple[list[Path], list[Policy]]:
    where = job.request.where
    repo = Repository.find(where.repository)
    root = repo.root if repo else where.repository
    folders = [root]
    # Of a linked worktree or a submodule: what its .git names, at the same path.
    for folder in (repo.common_dir, repo.git_dir) if repo else ():
        if not any(folder.is_relative_to(one) for one in folders):
            folders.append(folder)
    for folder in folders:
        require_no_cover(folder, "--repo")
    require_no_cover(where.out, "--out")
    if where.out.resolve() != where.out:
        # The repository may hold that link, and what it leads to would be written to as root.
        raise UsageError(f"--out {escaped(where.out)}: is a link: remove it, or name the folder itself")
    if root.is_relative_to(where.out):
        raise UsageError(f"--out {escaped(where.out)}: holds the repository, which is not written to: name another")
    if job.verb == "doctor":
        return folders, []
    return folders, list(find_sources(job.request).policies.values())


def choose_gpus(asked: str, host: Host) -> tuple[str, ...] | None:
    """Return the GPUs of the container: None for none, empty for all. Raises UsageError, MachineError."""
    if asked == "none" or (asked == "auto" and host.driver is None):
        return None
    if asked not in ("auto", "all") and not re.fullmatch(rf"({_GPU})(,({_GPU}))*", asked):
        raise UsageError(f"--gpus {escaped(asked)[:80]}: write all, none, or indices or UUIDs such as 0,1")
    if host.driver is None:
        raise MachineError(f"--gpus {asked}: this machine has no NVIDIA driver: install one, or measure on the CPU")
    return () if asked in ("auto", "all") else tuple(asked.split(","))


def default_image(host: Host, gpus: tuple[str, ...] | None) -> str:
    """Return the newest image that the driver runs. Raises MachineError."""
    if gpus is None or host.driver is None:
        return f"perfci:{DEFAULT}"
    name = for_driver(host.driver)
    if name is None:
        oldest = min(one.driver for one in variants().values())
        raise MachineError(f"driver {host.driver}: is older than any image takes: install {oldest} or a later one")
    return f"perfci:{name}"


def require_fit(name: str, image: Image, host: Host, gpus: tuple[str, ...] | None) -> None:
    """Raise UsageError for a foreign image or another version, MachineError for an old driver."""
    variant = image.env.get(VARIANT)
    if variant is None:
        raise UsageError(f"image {escaped(name)}: holds no perfci: begin it with `FROM perfci:{DEFAULT}`")
    titled = image.labels.get("org.opencontainers.image.title") == "perfci"
    version = image.labels.get("org.opencontainers.image.version", "")
    if titled and version != perfci.__version__:
        raise UsageError(
            f"image {escaped(name)}: holds perfci {escaped(version) or 'without a version'}, and this is "
            f"{perfci.__version__}: make it anew with `make image`"
        )
    known = variants().get(variant)
    if gpus is not None and known is not None and host.major < known.driver:
        fit = for_driver(host.driver or "0")
        other = f"take perfci:{fit}, or " if fit else ""
        raise MachineError(
            f"image {escaped(name)}: needs a driver from {known.driver} on, and this is {host.driver}: "
            f"{other}install a newer driver"
        )
