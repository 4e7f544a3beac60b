"""Operating system, container, cores, memory, disks."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from perfci.doctor.machine import Machine, fail, warn
from perfci.model.doctor import Finding
from perfci.profilers.ncu.command import gvisor
from perfci.system.facts import MOUNT, cpu_quota, free_memory, usable_cores, usable_memory

# PROC_*_INIT_INO of linux/proc_ns.h: what a machine boots with.
FIRST_NAMESPACES = {
    "pid": 0xEFFFFFFC, "uts": 0xEFFFFFFE, "ipc": 0xEFFFFFFF, "cgroup": 0xEFFFFFFB, "user": 0xEFFFFFFD,
}  # fmt: skip
MARKS = ("/var/run/secrets/kubernetes.io", "/run/.containerenv", "/.dockerenv", "/run/systemd/container")
GIB = 2**30
LITTLE_MEMORY, MUCH_TOO_LITTLE_MEMORY = 4 * GIB, GIB // 2
"""Free bytes: two workers with torch and CUDA hold about 4 GiB; perfci and numpy need the second."""
LITTLE_DISK, MUCH_TOO_LITTLE_DISK = 2 * 10**9, 200 * 10**6
"""Free bytes: two builds and their traces; a snapshot and the results."""


def check_system(machine: Machine) -> Iterator[Finding]:
    """Check for systems that take away counters, or GPUs."""
    if platform.system() != "Linux":
        text = f"{platform.system()}: perfci is made for Linux"
        yield warn("system", text, "measure on Linux: elsewhere no GPU can be")
    elif gvisor(machine.root):
        text = "gVisor: hardware counters cannot be read, and nsys may see no kernel"
        remedy = "for counters run without gVisor (docker run --runtime=nvidia, a virtual machine); timing works"
        yield warn("system", text, remedy)
    elif wsl(machine):
        text = "WSL: times follow Windows's other work, and counters need its permission"
        remedy = "measure on Linux; for counters allow them to all users in the NVIDIA control panel of Windows"
        yield warn("system", text, remedy)


def wsl(machine: Machine) -> bool:
    """Return whether this is the Windows Subsystem for Linux."""
    return "microsoft" in (machine.read("/proc/version") or "").lower()


# ---------------------------------------------------------------- container


def own_namespaces(machine: Machine) -> set[str]:
    """Return the namespaces of this process that the machine did not boot with."""
    own = set()
    for name, first in FIRST_NAMESPACES.items():
        with suppress(OSError):
            link = os.readlink(machine.root / f"proc/self/ns/{name}")  # noqa: PTH115  # it names no path
            if link != f"{name}:[{first}]":
                own.add(name)
    return own


def in_container(machine: Machine) -> bool:
    """Return whether this is a container; one that bears its mark and has nothing of its own is an image booted as a
    machine."""
    named = machine.env.get("KUBERNETES_SERVICE_HOST") or any(map(machine.exists, MARKS))
    if not (named or re.search(r"kubepods|/docker[/-]", machine.read("/proc/self/cgroup") or "")):
        return False
    # Where every namespace is the host's, / is the container's own.
    mounts = map(MOUNT.fullmatch, (machine.read("/proc/self/mountinfo") or "").splitlines())
    roots = [mount["kind"] for mount in mounts if mount and mount["point"] == "/"]
    return bool(own_namespaces(machine)) or "overlay" in roots[-1:]


# ---------------------------------------------------------------- cores, memory, disks


def check_cores(machine: Machine) -> Iterator[Finding]:
    """Check cores as this process may use them."""
    cores, quota = usable_cores(), cpu_quota(machine.root)
    if quota is not None and quota < cores:
        text = f"a quota of {quota:g} for {cores} cores: the kernel stops processes that use more, amid a measurement"
        remedy = "give whole cores: docker run --cpuset-cpus, or Kubernetes's static CPU manager policy"
        yield warn("processor", text, remedy)
    elif cores < 2:
        text = "1 core: perfci and the code that it measures take turns on it"
        yield warn("processor", text, "give at least 2 cores")


def check_memory(machine: Machine) -> Iterator[Finding]:
    """Check memory as this process may use it."""
    usable, free = usable_memory(machine.root), free_memory(machine.root)
    text = f"{free / GIB:.1f} GiB free of {usable / GIB:.1f} GiB usable"
    remedy = "end other programs, or raise the container's limit (docker run --memory)"
    if free < MUCH_TOO_LITTLE_MEMORY:
        yield fail("memory", f"{text}: workers will be killed", remedy)
    elif free < LITTLE_MEMORY:
        yield warn("memory", f"{text}: base and head with torch need about 4 GiB", remedy)


def check_disk(machine: Machine) -> Iterator[Finding]:
    """Check the folder for output."""
    folder = machine.out.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        text = f"output goes to {machine.out}, and {folder} cannot be written"
        yield fail("disk", text, "name another folder with --out, or fix the permissions")
        return
    what, remedy = f"for output in {machine.out}", "free space, or name a folder on another disk with --out"
    yield from _space("disk", what, folder, remedy)


def check_temporary(machine: Machine) -> Iterator[Finding]:
    """Check $TMPDIR, where snapshots, builds and traces lie."""
    name, named, inside = "temporary folder", machine.env.get("TMPDIR"), machine.known(in_container)
    try:
        folder = machine.temporary()
    except FileNotFoundError:
        text = f"no folder for temporary files can be written: neither TMPDIR={named or '(not set)'} nor /tmp"
        mount = "docker run --tmpfs /tmp:exec, or " if inside else ""
        yield fail(name, text, f"{mount}set TMPDIR to a folder that can be written")
        return
    if named and folder != Path(named):
        text = f"TMPDIR={named} cannot be written: Python takes {folder} instead, nsys and ncu do not"
        yield warn(name, text, f"mkdir -p '{named}', or set TMPDIR to a folder that can be written")
    elif hasattr(os, "ST_NOEXEC") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        text = f"{folder} is mounted noexec: kernels compiled there (Triton, extensions) cannot be loaded"
        mount = f"docker run --tmpfs {folder}:exec" if inside else f"mount -o remount,exec {folder}"
        yield fail(name, text, f"{mount}, or set TMPDIR to another folder")
    else:
        what = f"for temporary files in {folder}"
        yield from _space(name, what, folder, "free space, or set TMPDIR to another disk")


def _space(name: str, what: str, folder: Path, remedy: str) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free {what}"
    if free < MUCH_TOO_LITTLE_DISK:
        yield fail(name, f"{text}: a run will not fit", remedy)
    elif free < LITTLE_DISK:
        yield warn(name, f"{text}: builds and traces may not fit", remedy)
