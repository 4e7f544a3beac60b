"""Checks of profilers and their permission to count."""

import csv
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perfci.doctor.gpu import boards
from perfci.doctor.host import in_container, own_namespaces
from perfci.doctor.machine import Machine, warn, writable
from perfci.doctor.pytorch import inside
from perfci.model.doctor import Finding
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
from perfci.system.gpu import cuda_version
from perfci.system.users import find_account
from perfci.worker.profile import records

TOOL_TIME = 8.0
"""Seconds for a tool to tell its version, from a cold disk."""
PROBE_TIME = 60.0
"""Seconds for ncu to count one metric of one kernel: torch's start, CUDA's, and ncu's modules."""
PROBE_METRIC = "sm__cycles_active.avg"
"""One replay pass on every chip since Volta."""
FINITE = re.compile(r"[\d.,]+(e[+-]?\d+)?", re.IGNORECASE)
KERNEL = "import torch; torch.ones(1 << 16, device='cuda').add_(1); torch.cuda.synchronize()"


def _remedy(fault: Fault) -> str:
    return fault.remedy or "run it by hand to see why"


# ---------------------------------------------------------------- nsys


def nsys(machine: Machine) -> InstalledNsys | Fault:
    """Return Nsight Systems, or why there is none that works."""
    return nsys_command.find(machine.env)


def check_nsys(machine: Machine) -> Iterator[Finding]:
    """Check what keeps Nsight Systems from working, what it would lose or see."""
    tool = machine.known(nsys)
    if isinstance(tool, Fault):
        if nsys_command.candidates(machine.env) or machine.known(boards).boards:
            yield warn("nsys", tool.text, _remedy(tool))
        return
    name, package = f"nsys {tool.version} ({tool.path})", machine.known(inside).get("nvtx").get("version")
    if package and not records(tool.version, package):
        lost = f"{name} records no range of the package nvtx {package} in the interpreter under test"
        yield warn("nsys", lost, "use torch.cuda.nvtx, pip install nvtx==0.2.11, or a newer nsys")
    elif lost := behind(tool.version, _driver_cuda(machine)):
        yield warn("nsys", f"{name}: {lost}", "install nsight-systems as new as the driver's CUDA")
    account = find_account(machine.env)
    kept = nsys_privacy.isolation(account.prefix())
    if not kept.holds and not account.ids:
        # A user namespace alone does not do: Docker covers parts of /proc, so that no other may be mounted.
        inside_remedy = "start the container as root with --cap-add SYS_ADMIN, or keep secrets out of its processes"
        remedy = "install util-linux (unshare), and allow user namespaces: sysctl kernel.unprivileged_userns_clone=1"
        yield warn("nsys isolation", kept.text, inside_remedy if machine.known(in_container) else remedy)


# ---------------------------------------------------------------- ncu


def _driver_cuda(machine: Machine) -> str:
    return cuda_version(machine.known(boards).cuda)


def ncu(machine: Machine) -> InstalledNcu | Fault:
    """Return an Nsight Compute that fits the driver, or why there is none."""
    return ncu_command.find(_driver_cuda(machine), path=_path(machine), root=machine.root, timeout=TOOL_TIME)


def _path(machine: Machine) -> str:
    return machine.env.get("PATH", os.defpath)


def check_ncu(machine: Machine) -> Iterator[Finding]:
    """Check what keeps Nsight Compute from starting."""
    tool = machine.known(ncu)
    if isinstance(tool, Fault):
        if ncu_command.candidates(_path(machine), machine.root) or machine.known(boards).boards:
            yield warn("ncu", tool.text, _remedy(tool))
        return
    home, name = machine.env.get("HOME", ""), f"ncu {tool.version} ({tool.path})"
    if not home or not writable(Path(home)):
        reason = f"{name} puts its sections into HOME={home or '(not set)'}, which cannot be written"
        yield warn("ncu", reason, "set HOME to a folder that can be written")
    elif lock := _foreign_lock(machine):
        yield warn("ncu", f"another user's lock {lock} keeps {name} from starting", f"sudo rm {lock}")


def _foreign_lock(machine: Machine) -> Path | None:
    """In a sticky folder fs.protected_regular keeps even root from opening it."""
    try:
        lock = machine.temporary() / "nsight-compute-lock"
        return lock if lock.lstat().st_uid != machine.euid else None
    except OSError:
        return None


# ---------------------------------------------------------------- counters


def counting_refused(machine: Machine) -> Fault | None:
    """Return why counting will be refused, as predicted."""
    fault = ncu_command.may_count(machine.root)
    if fault is None and ncu_command.admin_only(machine.root) and "user" in own_namespaces(machine):
        # The driver asks for the capability in the machine's first user namespace.
        text = "the driver lets only administrators count, and root of a user namespace (rootless container) is none"
        remedy = "on the host set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or run as its root"
        return Fault(tool="ncu", part="counters", kind="forbidden", text=text, remedy=remedy)
    return fault


def permission(machine: Machine) -> tuple[Fault | None, bool]:
    """Return why counters may not be read, and whether tried."""
    tool = machine.known(ncu)
    if isinstance(tool, Fault) or not machine.known(inside).usable:
        return counting_refused(machine), False
    with tempfile.TemporaryDirectory(prefix="perfci-ncu-", dir=machine.temporary(), ignore_cleanup_errors=True) as name:
        return _probe(machine, tool, Path(name)), True


def _probe(machine: Machine, tool: InstalledNcu, scratch: Path) -> Fault | None:
    # A TMPDIR of its own: ncu never removes its lock, and that of root would keep others out.
    env = {**machine.tested, "TMPDIR": str(scratch)}
    report, log, target = scratch / "probe.ncu-rep", scratch / "log", [machine.python, "-c", KERNEL]
    argv = ncu_command.command(
        tool.path, target, report=report, log=log, metrics=[PROBE_METRIC], sections=(), launches=1, capture=False
    )
    said = machine.run(argv, PROBE_TIME, env=env, cwd=scratch)
    written = log.read_text(errors="replace") if log.exists() else ""
    if fault := ncu_command.classify(said.code, f"{written}\n{said.out}\n{said.err}", said.code is None):
        return fault
    page = machine.run(ncu_command.raw_page(tool.path, report), TOOL_TIME, env=env, cwd=scratch)
    rows = csv.DictReader(line for line in page.out.splitlines() if line.startswith('"'))
    if page.fine and any(FINITE.fullmatch(row.get(PROBE_METRIC) or "") for row in rows):
        return None
    why = f"its report holds no finite {PROBE_METRIC}" if page.fine else f"its report cannot be read: {page.why()}"
    remedy = "run ncu by hand to see why"
    return Fault(tool="ncu", part="counters", kind="incomplete", text=f"ncu ran, but {why}", remedy=remedy)


def check_counters(machine: Machine) -> Iterator[Finding]:
    """Check whether counters may be read, by trying where possible."""
    if not machine.known(boards).boards:
        return
    fault, tried = machine.known(permission)
    if fault is not None:
        how = "tried with one kernel" if tried else "predicted, not tried"
        yield warn("counters", f"cannot be read ({how}): {fault.text}", _remedy(fault), tried=tried)


def counters(machine: Machine) -> tuple[str, str]:
    """Return the source of counters, and why there is none, or a doubt."""
    if not machine.known(boards).boards:
        return "", "no GPU"
    tool = machine.known(ncu)
    if isinstance(tool, Fault):
        return "", tool.text
    fault, tried = machine.known(permission)
    if fault is not None:
        return "", fault.text
    return f"ncu {tool.version}", "" if tried else "predicted, not tried"


def check_code(machine: Machine) -> Iterator[Finding]:
    """Check for what reads machine code."""
    if not machine.known(boards).boards or counters(machine)[0]:
        return
    said = machine.run([machine.python, "-c", sass.SEARCH], TOOL_TIME, env=machine.tested, cwd=machine.root)
    if sass.find(sass.wheels(said.out), _path(machine), machine.root) is None:
        text = f"{sass.ABSENT}: without counters nothing tells whether kernels use tensor cores"
        yield warn("machine code", text, f"{machine.python} {sass.REMEDY}")


def check_report_module(machine: Machine) -> Iterator[Finding]:
    """Check ncu_report, in perfci's own Python or beside ncu."""
    tool = machine.known(ncu)
    if isinstance(tool, Fault):
        return
    versions = [module.version for module in ncu_module.modules(machine.root)]
    if all(version and version_numbers(version)[:2] < version_numbers(tool.version)[:2] for version in versions):
        which = f"there is ncu_report {versions[0]}" if versions else "there is none"
        text = f"{which}: reports of ncu {tool.version} are read from its CSV, without its rules"
        yield warn("ncu_report", text, f"{sys.executable} -m pip install --upgrade ncu-report")
