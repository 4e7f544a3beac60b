"""Checks of profilers: those that are there, their permission to count, and tiers of metrics of this machine."""

import csv
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import perfci
from perfci.doctor import CHECKS as SYSTEM_CHECKS
from perfci.doctor import Check, Machine, examine, fail, ok, warn
from perfci.doctor.gpu import boards, cuda_words
from perfci.doctor.host import container, gvisor
from perfci.doctor.machine import Asked, clipped, writable
from perfci.doctor.pytorch import inside
from perfci.doctor.tools import check_nvcc
from perfci.model.base import UsageError
from perfci.model.doctor import Diagnosis, Finding, TierState
from perfci.model.metrics import CATALOGUE, Tier
from perfci.model.profile import Fault
from perfci.model.text import version_numbers
from perfci.profilers.ncu import command as ncu_command
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.ncu.command import InstalledNcu
from perfci.profilers.nsys import command as nsys_command
from perfci.profilers.nsys import privacy as nsys_privacy
from perfci.profilers.nsys.command import InstalledNsys
from perfci.profilers.nsys.origin import behind
from perfci.profilers.sass import code as sass
from perfci.system import pins
from perfci.system.gpu import cuda_version
from perfci.system.users import find_account
from perfci.worker.profile import records

TOOL_TIME = 8.0
"""Seconds for a tool to tell its version or its view of the machine; from a cold disk it takes some."""
PROBE_TIME = 60.0
"""Seconds for ncu to count one metric of one small kernel: torch's start, CUDA's, and ncu's modules."""
TIERS_TIME = 5.0
"""Seconds to conclude: what it needs has been asked before, or hangs."""
PROBE_METRIC = "sm__cycles_active.avg"
"""One replay pass on every chip since Volta."""
KERNEL = "import torch; torch.ones(1 << 16, device='cuda').add_(1); torch.cuda.synchronize()"
DCGM = ("nv-hostengine", "dcgm-exporter")


def _remedy(fault: Fault) -> str:
    return fault.remedy or "run it by hand to see why"


# ---------------------------------------------------------------- nsys


def nsys(machine: Machine) -> InstalledNsys | Fault:
    """Return Nsight Systems, or why there is none that works."""
    return nsys_command.find(machine.env)


def check_nsys(machine: Machine) -> Iterator[Finding]:
    """Check Nsight Systems: there, working, what it says of this machine, and what it would see of other processes."""
    tool = machine.known(nsys)
    if isinstance(tool, Fault):
        if not nsys_command.candidates(machine.env) and not machine.known(boards).boards:
            yield ok("nsys", tool.text)
        else:
            yield warn("nsys", tool.text, _remedy(tool))
        return
    status = machine.run([str(tool.path), "status", "-e"], TOOL_TIME)
    sampling = re.search(r"CPU Profiling Environment[^:\n]*: *(\w+)", status.out)
    told = f"CPU sampling (not used): {sampling[1]}" if sampling else f"status -e tells nothing ({status.why()})"
    text, values = f"nsys {tool.version} ({tool.path}), {told}", {"version": tool.version, "path": str(tool.path)}
    package = machine.known(inside).get("nvtx").get("version")
    if package and not records(tool.version, package):
        lost = f"{text}; it records no range of the package nvtx {package} in the interpreter under test"
        yield warn("nsys", lost, "use torch.cuda.nvtx, pip install nvtx==0.2.11, or a newer nsys", **values)
    elif lost := behind(tool.version, _driver_cuda(machine)):
        yield warn("nsys", f"{text}; {lost}", "install nsight-systems as new as the driver's CUDA", **values)
    elif machine.known(boards).boards and gvisor(machine):
        yield warn("nsys", f"{text}; under gVisor it may see no kernel", "run without gVisor", **values)
    else:
        yield ok("nsys", text, **values)
    account = find_account(machine.env)
    kept = nsys_privacy.isolation(account.prefix())
    if kept.holds or account.ids:
        yield ok("nsys isolation", kept.text)
    elif machine.known(container).inside:
        # A user namespace alone does not do: Docker covers parts of /proc, so that no other may be mounted.
        remedy = "start the container as root with --cap-add SYS_ADMIN, or keep secrets out of its processes"
        yield warn("nsys isolation", kept.text, remedy)
    else:
        remedy = "install util-linux (unshare), and allow user namespaces: sysctl kernel.unprivileged_userns_clone=1"
        yield warn("nsys isolation", kept.text, remedy)


# ---------------------------------------------------------------- ncu


def _driver_cuda(machine: Machine) -> str:
    """Return the driver's CUDA version, such as `12.8`; empty where it is not known."""
    return cuda_version(machine.known(boards).cuda)


def ncu(machine: Machine) -> InstalledNcu | Fault:
    """Return an Nsight Compute that fits the driver, or why there is none."""
    return ncu_command.find(_driver_cuda(machine), path=_path(machine), root=machine.root, timeout=TOOL_TIME)


def _path(machine: Machine) -> str:
    return machine.env.get("PATH", os.defpath)


def check_ncu(machine: Machine) -> Iterator[Finding]:
    """Check Nsight Compute: there, working, and fit for the driver."""
    tool, found = machine.known(ncu), machine.known(boards)
    if isinstance(tool, Fault):
        if not ncu_command.candidates(_path(machine), machine.root) and not found.boards:
            yield ok("ncu", "not installed")
        else:
            yield warn("ncu", tool.text, _remedy(tool))
        return
    values = {"version": tool.version, "path": str(tool.path)}
    fit = f", which fits {cuda_words(found.cuda)} of the driver" if found.cuda is not None else ""
    home = machine.env.get("HOME", "")
    text = f"ncu {tool.version} ({tool.path}){fit}"
    if not home or not writable(Path(home)):
        reason = f"{text}; it puts its sections into HOME={home or '(not set)'}, which cannot be written"
        yield warn("ncu", reason, "set HOME to a folder that can be written", **values)
    elif lock := _foreign_lock(machine):
        yield warn("ncu", f"{text}; another user's lock {lock} keeps it from starting", f"sudo rm {lock}", **values)
    else:
        yield ok("ncu", text, **values)


def _foreign_lock(machine: Machine) -> Path | None:
    """Return a lock file of another user: in a sticky folder fs.protected_regular keeps even root from opening it."""
    try:
        lock = machine.temporary() / "nsight-compute-lock"
        return lock if lock.lstat().st_uid != machine.euid else None
    except OSError:
        return None


# ---------------------------------------------------------------- counters


@dataclass(frozen=True)
class Permission:
    """The permission to read hardware counters."""

    fault: Fault | None
    """Why there is none; None where nothing is against it."""
    probed: bool
    """Tried, not predicted."""
    predicted: Fault | None
    """The fault that was expected before."""


def predict(machine: Machine) -> Fault | None:
    """Return why counting will be refused, judged by the kernel, the driver's parameter and the capabilities of this
    process."""
    fault = ncu_command.may_count(machine.root)
    told = machine.read("/proc/driver/nvidia/params") or ""
    restricted = re.search(r"^RmProfilingAdminOnly:\s*1", told, re.MULTILINE)
    if fault is None and restricted and "user" in machine.known(container).apart:
        # The driver asks for the capability in the machine's first user namespace.
        text = "the driver lets only administrators count, and root of a user namespace (rootless container) is none"
        remedy = "on the host set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or run as its root"
        return Fault(tool="ncu", part="counters", kind="forbidden", text=text, remedy=remedy)
    return fault


def permission(machine: Machine) -> Permission:
    """Probe with one kernel of torch's, where GPU, torch and a fitting ncu are there; else predict."""
    tool, expected = machine.known(ncu), predict(machine)
    if isinstance(tool, Fault) or not machine.known(inside).usable:
        return Permission(expected, False, expected)
    with tempfile.TemporaryDirectory(prefix="perfci-ncu-", dir=machine.temporary(), ignore_cleanup_errors=True) as name:
        return Permission(_probe(machine, tool, Path(name)), True, expected)


def _probe(machine: Machine, tool: InstalledNcu, scratch: Path) -> Fault | None:
    base = machine.env if machine.python_env is None else machine.python_env
    # A TMPDIR of its own: ncu never removes its lock, and that of root would keep others out.
    env = {**base, "TMPDIR": str(scratch)}
    report, log = scratch / "probe.ncu-rep", scratch / "log"
    argv = ncu_command.command(
        tool.path,
        [machine.python, "-c", KERNEL],
        report=report,
        log=log,
        metrics=[PROBE_METRIC],
        sections=(),
        launches=1,
        capture=False,
    )
    said = machine.run(argv, PROBE_TIME, env=env, cwd=scratch)
    written = log.read_text(errors="replace") if log.exists() else ""
    fault = ncu_command.classify(said.code, f"{written}\n{said.out}\n{said.err}", said.code is None)
    if fault is not None:
        return fault
    page = machine.run(ncu_command.raw_page(tool.path, report), TOOL_TIME, env=env, cwd=scratch)
    if page.fine and counted(page.out):
        return None
    why = f"its report holds no finite {PROBE_METRIC}" if page.fine else f"its report cannot be read: {page.why()}"
    return Fault(
        tool="ncu", part="counters", kind="incomplete", text=f"ncu ran, but {why}", remedy="run ncu by hand to see why"
    )


def counted(page: str) -> bool:
    """Return whether ncu's raw CSV holds a finite value of PROBE_METRIC."""
    rows = list(csv.reader(line for line in page.splitlines() if line.startswith('"')))
    if not rows or PROBE_METRIC not in rows[0]:
        return False
    column = rows[0].index(PROBE_METRIC)
    for row in rows[2:]:  # the second row holds units
        try:
            if math.isfinite(float(row[column].replace(",", ""))):
                return True
        except (IndexError, ValueError):
            continue
    return False


def check_counters(machine: Machine) -> Iterator[Finding]:
    """Check whether hardware counters may be read: tried, or predicted where that cannot be."""
    if not machine.known(boards).boards:
        return
    found = machine.known(permission)
    how = "tried with one kernel" if found.probed else "predicted, not tried"
    values = {"given": found.fault is None, "probed": found.probed, "predicted": found.predicted is None}
    if found.fault is not None:
        yield warn("counters", f"cannot be read ({how}): {found.fault.text}", _remedy(found.fault), **values)
    elif found.probed:
        yield ok("counters", f"can be read ({how})", **values)
    else:
        yield ok("counters", f"nothing known forbids them ({how})", **values)


def check_code(machine: Machine) -> Iterator[Finding]:
    """Check what reads kernels' machine code, which tells of tensor cores where counters cannot be read."""
    if not machine.known(boards).boards:
        return
    env = machine.env if machine.python_env is None else machine.python_env
    wheels = sass.wheels(machine.run([machine.python, "-c", sass.SEARCH], TOOL_TIME, env=env, cwd=machine.root).out)
    tool = sass.find(wheels, _path(machine), machine.root)
    if tool is not None:
        yield ok("machine code", f"can be read where counters cannot ({tool})", path=str(tool))
    elif _counters(machine)[0]:
        yield ok("machine code", f"{sass.ABSENT}; with counters it is not needed")
    else:
        text = f"{sass.ABSENT}: without counters nothing tells whether kernels use tensor cores"
        yield warn("machine code", text, f"{machine.python} {sass.REMEDY}")


def check_dcgm(machine: Machine) -> Iterator[Finding]:
    """Check for DCGM and its exporter, which hold the counters that ncu needs."""
    names = {(machine.read(f"/proc/{entry.name}/comm") or "").strip() for entry in machine.root.glob("proc/[0-9]*")}
    running = [name for name in DCGM if name in names]
    scope = " of this container" if machine.known(container).inside else ""
    if running:
        text = f"{' and '.join(running)} runs: it may hold the counters that ncu needs"
        yield warn("dcgm", text, "around profiling: dcgmi profile --pause, then dcgmi profile --resume")
    elif machine.known(boards).boards:
        yield ok("dcgm", f"neither {' nor '.join(DCGM)} among the processes{scope}")


def check_report_module(machine: Machine) -> Iterator[Finding]:
    """Check the module ncu_report, in perfci's own Python or beside ncu."""
    code = (
        "import importlib.metadata as m, ncu_report; "
        "v = [d.version for d in m.distributions(name='ncu-report')]; print(v[0] if v else '', ncu_report.__file__)"
    )
    said = machine.run([machine.own, "-c", code], TOOL_TIME, cwd=machine.root)
    tool = machine.known(ncu)
    installed = "" if isinstance(tool, Fault) else tool.version
    if said.fine:
        version, _, path = said.out.strip().partition(" ")
        text = f"ncu_report {version or 'of unknown version'} ({path})"
        if version and version_numbers(version)[:2] < version_numbers(installed)[:2]:
            older = f"{text} is older than ncu {installed}: it cannot read its reports"
            yield warn("ncu_report", older, f"{machine.own} -m pip install --upgrade ncu-report", version=version)
        else:
            yield ok("ncu_report", text, version=version or None)
        return
    copies = ncu_module.copies(machine.root)
    if "No module named 'ncu_report'" not in said.err:
        remedy = f"{machine.own} -m pip install --force-reinstall ncu-report"
        yield warn("ncu_report", f"cannot be imported: {said.why()}", remedy)
    elif copies:
        yield ok("ncu_report", f"not installed; ncu's own copy is there ({copies[0].folder})")
    elif installed:
        text = "not installed: reports of ncu are read from its CSV, without its rules"
        yield warn("ncu_report", text, f"{machine.own} -m pip install ncu-report")
    else:
        yield ok("ncu_report", "not installed")


# ---------------------------------------------------------------- perfci's image


def check_image(machine: Machine, built: bool = False) -> Iterator[Finding]:
    """Check in perfci's image whether the driver is new enough for it, and what it holds is what is pinned.

    Where it is `built`, what is not as pinned fails; later somebody may have changed it on purpose.
    """
    name = machine.env.get(pins.VARIABLE)
    if not name:
        return
    try:
        variant = pins.variant(name)
    except UsageError as error:
        yield fail("image", str(error), f"build it with one of these as VARIANT, or unset {pins.VARIABLE}")
        return
    driver = next((one.driver for one in machine.known(boards).boards if one.driver), None)
    if driver and version_numbers(driver)[0] < variant.driver:
        fit = pins.for_driver(driver)
        remedy = f"take the image {fit}" if fit else "update the driver"
        yield fail("image", f"{name} needs driver {variant.driver}, and this is {driver}", remedy, variant=name)
        return
    found = _held(machine)
    wanted = {"ncu": variant.ncu, "nsys": variant.nsys, "torch": variant.torch}
    if "CUDA" in found or variant.base.startswith("nvidia/"):
        wanted["CUDA"] = ".".join(variant.cuda.split(".")[:2])  # nvcc numbers its patches otherwise
    other = [
        f"{tool} {found.get(tool) or 'missing'}, pinned is {version}"
        for tool, version in wanted.items()
        if version_numbers(found.get(tool, ""))[: len(version_numbers(version)[:3])] != version_numbers(version)[:3]
    ]
    if not other:
        holds = ", ".join(f"{tool} {version}" for tool, version in wanted.items())
        yield ok("image", f"{name}: {holds}, as pinned", variant=name)
    else:
        text, remedy = f"{name} holds {'; '.join(other)}", f"build it with `make image VARIANT={name}`"
        yield fail("image", text, remedy, variant=name) if built else warn("image", text, remedy, variant=name)


def _held(machine: Machine) -> dict[str, str]:
    """Return the versions of the tools that are there."""
    found = {"torch": str(machine.known(inside).get("torch").get("version") or "")}
    for name, tool in (("ncu", machine.known(ncu)), ("nsys", machine.known(nsys))):
        if not isinstance(tool, Fault):
            found[name] = tool.version
    nvcc = next(iter(check_nvcc(machine))).values
    return found | ({"CUDA": nvcc["version"]} if nvcc else {})


# ---------------------------------------------------------------- tiers


def tiers(machine: Machine) -> list[TierState]:
    """Return the tiers of metrics that this machine can give, and why the others are out."""
    found = []
    for tier, ask in _SOURCES.items():
        try:
            found.append(_state(tier, *ask(machine)))
        except Exception as error:  # noqa: BLE001  # what it builds on broke, and has its own line
            found.append(_state(tier, "", f"not known: {type(error).__name__}: {clipped(error)}"))
    return found


def _state(tier: Tier, source: str, why: str) -> TierState:
    names = [metric.name for metric in CATALOGUE.values() if metric.tier == tier]
    return TierState(tier=tier, given=bool(source), source=source, why=why, metrics=names)


def _no_gpu(machine: Machine) -> str:
    """Return why nothing runs on a GPU; empty where torch can use one."""
    if not machine.known(boards).boards:
        return "no GPU"
    return "" if machine.known(inside).usable else "torch cannot use the GPU"


def _timing(machine: Machine) -> tuple[str, str]:
    seen = machine.known(inside)
    if not seen.get("python"):
        return "", "the interpreter of the code under test does not run"
    without = _no_gpu(machine)
    return "the CPU" if without else f"{seen.get('cuda')['name']} and the CPU", without


def _timeline(machine: Machine) -> str:
    """Return the source of timelines; empty for none."""
    tool = machine.known(nsys)
    if isinstance(tool, InstalledNsys):
        return f"nsys {tool.version}"
    return "torch.profiler" if machine.known(inside).get("torch").get("profiler") else ""


def _trace(machine: Machine) -> tuple[str, str]:
    without, source = _no_gpu(machine), _timeline(machine)
    if without:
        return "", without
    if not source:
        return "", "no nsys that works, and no CUDA in torch.profiler"
    if not source.startswith("nsys"):
        return source, "of cases alone, not of commands: no nsys"
    if gvisor(machine):
        return source, "under gVisor it may see no kernel; a capture was not tried"
    return source, "it answers; a capture was not tried"


def _counters(machine: Machine) -> tuple[str, str]:
    if not machine.known(boards).boards:
        return "", "no GPU"
    tool = machine.known(ncu)
    if isinstance(tool, Fault):
        return "", tool.text
    allowed = machine.known(permission)
    if allowed.fault is not None:
        return "", allowed.fault.text
    return f"ncu {tool.version}", "" if allowed.probed else "predicted, not tried"


def _static(machine: Machine) -> tuple[str, str]:
    without = _no_gpu(machine)
    if without:
        return "", without
    source = _timeline(machine) or _counters(machine)[0]
    if source:
        return f"torch and {source}", ""
    return "torch", "peak_memory alone: launch configurations need nsys, torch.profiler or ncu"


_SOURCES: dict[Tier, Callable[[Machine], tuple[str, str]]] = {
    "timing": _timing,
    "trace": _trace,
    "counters": _counters,
    "static": _static,
    "reported": lambda _: ("the policy's commands", "those that the policy declares"),
}
"""Tier → its source, empty where there is none; and why there is none, or a doubt about it."""


# ---------------------------------------------------------------- everything

_FIRST = ("gpu", "torch", "torch offers")
CHECKS: dict[str, Check] = {
    **{name: SYSTEM_CHECKS[name] for name in _FIRST},
    "image": check_image,
    "nsys": check_nsys,
    "ncu": check_ncu,
    "counters": check_counters,
    "machine code": check_code,
    "dcgm": check_dcgm,
    "ncu_report": check_report_module,
    **{name: check for name, check in SYSTEM_CHECKS.items() if name not in _FIRST},
}
"""Every check of the doctor, in the order of importance."""
_OFFLINE = ("torch", "torch offers", "nsys", "ncu", "ncu_report", "perfci", "system", "nvcc")
OFFLINE: dict[str, Check] = {"image": partial(check_image, built=True)} | {name: CHECKS[name] for name in _OFFLINE}
"""Checks of an image while it is built: programs and their versions."""


def diagnose(machine: Machine, first: Sequence[Finding] = (), checks: dict[str, Check] = CHECKS) -> Diagnosis:
    """Check everything, all at once. `first`: lines that the caller knows already. Never raises for what it finds."""
    start = time.monotonic()
    findings = examine(machine, checks, first)
    try:
        states = Asked(lambda: tiers(machine)).answer(TIERS_TIME)
    except TimeoutError:
        states = [_state(tier, "", "not known: a check did not answer") for tier in _SOURCES]
    failed = any(one.status == "fail" for one in findings)
    seconds = round(time.monotonic() - start, 3)
    return Diagnosis(
        perfci=perfci.__version__, seconds=seconds, findings=findings, tiers=states, exit_code=3 if failed else 0
    )
