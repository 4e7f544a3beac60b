"""Operating system, container, cores, memory, disks."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import perfci
from perfci.doctor.machine import Machine, fail, ok, warn
from perfci.model.doctor import Finding
from perfci.model.text import count
from perfci.system.facts import MOUNT, cpu_model, cpu_quota, free_memory, usable_cores, usable_memory
from perfci.system.users import CAP_SYS_ADMIN, held

# PROC_*_INIT_INO of linux/proc_ns.h: what a machine boots with.
FIRST_NAMESPACES = {
    "pid": 0xEFFFFFFC, "uts": 0xEFFFFFFE, "ipc": 0xEFFFFFFF, "cgroup": 0xEFFFFFFB, "user": 0xEFFFFFFD,
}  # fmt: skip
# LinuxRelease and LinuxVersion of gVisor, pkg/sentry/kernel; its log begins with "Starting gVisor...".
GVISOR_VERSION = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
GIB = 2**30
LITTLE_MEMORY, MUCH_TOO_LITTLE_MEMORY = 4 * GIB, GIB // 2
"""Free bytes: two workers with torch and CUDA hold about 4 GiB; without either perfci and numpy need the second."""
LITTLE_DISK, MUCH_TOO_LITTLE_DISK = 2 * 10**9, 200 * 10**6
"""Free bytes: two builds and their traces; a snapshot and the results."""


def check_perfci(machine: Machine) -> Iterator[Finding]:
    """Check perfci itself."""
    version = platform.python_version()
    yield ok("perfci", f"perfci {perfci.__version__} on Python {version} ({machine.own})", python=version)


def check_system(machine: Machine) -> Iterator[Finding]:
    """Check operating system, kernel, gVisor, WSL."""
    release = machine.read("/etc/os-release") or ""
    named = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    kernel = (machine.read("/proc/sys/kernel/osrelease") or platform.release()).strip()
    system = f"{named[1] if named else 'unnamed system'}, {platform.system()} {kernel} {platform.machine()}"
    if platform.system() != "Linux":
        yield warn("system", f"{system}: perfci is made for Linux", "measure on Linux: elsewhere no GPU can be")
    elif gvisor(machine):
        yield warn(
            "system",
            f"{system}, which is gVisor: hardware counters cannot be read, and nsys may see no kernel",
            "for counters run without gVisor (docker run --runtime=nvidia, a virtual machine); timing works",
            gvisor=True,
        )
    elif wsl(machine):
        yield warn(
            "system",
            f"{system}, which is WSL: times follow Windows's other work, and counters need its permission",
            "measure on Linux; for counters allow them to all users in the NVIDIA control panel of Windows",
            wsl=True,
        )
    else:
        yield ok("system", f"{system}; neither gVisor nor WSL", gvisor=False, wsl=False)


def gvisor(machine: Machine) -> bool:
    """Return whether the kernel is gVisor's."""
    version = machine.read("/proc/version") or ""
    return (
        "gvisor" in version.lower()
        or version.startswith(GVISOR_VERSION)
        or "Starting gVisor" in machine.known(_kernel_log)
    )


def _kernel_log(machine: Machine) -> str:
    return machine.run(["dmesg"]).out if machine.which("dmesg") else ""


def wsl(machine: Machine) -> bool:
    """Return whether the kernel is that of the Windows Subsystem for Linux."""
    return "microsoft" in (machine.read("/proc/version") or "").lower()


# ---------------------------------------------------------------- container


@dataclass(frozen=True)
class Container:
    """Signs of a container."""

    kind: str
    """`Docker`, `Podman`, `Kubernetes`, what systemd says, or empty."""
    mark: str
    """The file or variable that says so."""
    apart: tuple[str, ...]
    """Namespaces that are not those the machine booted with."""
    layered: bool
    """True where / is an overlay, as that of containers which share every namespace with their host."""

    @property
    def inside(self) -> bool:
        """True where this is a container; a mark with nothing of its own is an image booted as a machine."""
        return bool(self.kind and (self.apart or self.layered))


def container(machine: Machine) -> Container:
    """Search for marks of containers, and read the namespaces of this process."""
    apart = []
    for name, first in FIRST_NAMESPACES.items():
        try:
            link = os.readlink(machine.root / f"proc/self/ns/{name}")  # noqa: PTH115  # it names no path
        except OSError:
            continue
        if link != f"{name}:[{first}]":
            apart.append(name)
    kind, mark = _mark(machine)
    mounts = map(MOUNT.fullmatch, (machine.read("/proc/self/mountinfo") or "").splitlines())
    roots = [mount["kind"] for mount in mounts if mount and mount["point"] == "/"]
    return Container(kind, mark, tuple(apart), bool(roots) and "overlay" in roots[-1])


def _mark(machine: Machine) -> tuple[str, str]:
    groups = machine.read("/proc/self/cgroup") or ""
    if machine.env.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes", "$KUBERNETES_SERVICE_HOST"
    for path in ("/run/secrets/kubernetes.io", "/var/run/secrets/kubernetes.io"):
        if machine.exists(path):
            return "Kubernetes", path
    if "kubepods" in groups:
        return "Kubernetes", "kubepods in /proc/self/cgroup"
    if machine.exists("/run/.containerenv"):
        return "Podman", "/run/.containerenv"
    if machine.exists("/.dockerenv"):
        return "Docker", "/.dockerenv"
    if re.search(r"/docker[/-]", groups):
        return "Docker", "docker in /proc/self/cgroup"
    said = (machine.read("/run/systemd/container") or "").strip()
    return (said, "/run/systemd/container") if said else ("", "")


def check_container(machine: Machine) -> Iterator[Finding]:
    """Tell Docker, Podman, Kubernetes or none."""
    seen = machine.known(container)
    own = f"namespaces of its own: {', '.join(seen.apart)}" if seen.apart else "the host's namespaces"
    if seen.inside:
        admin = sys_admin(machine)
        capability = "capabilities not told" if admin is None else f"{'with' if admin else 'without'} CAP_SYS_ADMIN"
        text = f"{seen.kind} ({seen.mark}; {own}), {capability}"
    elif seen.kind:
        text = f"none: {seen.mark} is there, but with the namespaces of a booted machine: an image run as a machine"
    elif seen.apart:
        text = f"no known one, but {own}"
    else:
        text = "none"
    yield ok("container", text, kind=seen.kind if seen.inside else None, namespaces=list(seen.apart))


def sys_admin(machine: Machine) -> bool | None:
    """Return whether this process has CAP_SYS_ADMIN where the driver asks for it, in the first user namespace: that of
    a rootless container does not count. None where /proc does not tell."""
    if "user" in machine.known(container).apart:
        return False
    given = held([CAP_SYS_ADMIN], machine.root)
    return None if given is None else bool(given)


# ---------------------------------------------------------------- cores, memory, disks


def check_cores(machine: Machine) -> Iterator[Finding]:
    """Check cores as this process may use them."""
    cores, quota = usable_cores(), cpu_quota(machine.root)
    present = os.cpu_count() or cores
    share = f"{cores} of {present} cores" if cores < present else count(cores, "core")
    text, values = f"{cpu_model(machine.root)}, {share}", {"cores": cores, "quota": quota}
    if quota is not None and quota < cores:
        text += f", but a cgroup's quota of {quota:g}: the kernel stops processes that use more, amid a measurement"
        remedy = (
            "give whole cores instead of a quota: docker run --cpuset-cpus, or Kubernetes's static CPU manager policy"
        )
        yield warn("processor", text, remedy, **values)
    elif cores < 2:
        text += ": perfci and the code that it measures take turns on it"
        yield warn("processor", text, "give at least 2 cores", **values)
    else:
        limited = "no quota" if quota is None else f"a quota of {quota:g}"
        yield ok("processor", f"{text}, {limited}", **values)


def check_memory(machine: Machine) -> Iterator[Finding]:
    """Check memory as this process may use it."""
    usable, free = usable_memory(machine.root), free_memory(machine.root)
    text = f"{free / GIB:.1f} GiB free of {usable / GIB:.1f} GiB usable"
    remedy = "end other programs, or raise the container's limit (docker run --memory)"
    if free < MUCH_TOO_LITTLE_MEMORY:
        yield fail("memory", f"{text}: workers will be killed", remedy, usable=usable, free=free)
    elif free < LITTLE_MEMORY:
        yield warn("memory", f"{text}: base and head with torch need about 4 GiB", remedy, usable=usable, free=free)
    else:
        yield ok("memory", text, usable=usable, free=free)


def check_disk(machine: Machine) -> Iterator[Finding]:
    """Check the folder for output."""
    folder = machine.out.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        text = f"output goes to {machine.out}, and {folder} cannot be written"
        yield fail("disk", text, "name another folder with --out, or fix the permissions")
        return
    yield _space(
        "disk", f"for output in {machine.out}", folder, "free space, or name a folder on another disk with --out"
    )


def check_temporary(machine: Machine) -> Iterator[Finding]:
    """Check $TMPDIR, where snapshots, builds and traces lie."""
    named = machine.env.get("TMPDIR")
    try:
        folder = machine.temporary()
    except FileNotFoundError:
        text = f"no folder for temporary files can be written: neither TMPDIR={named or '(not set)'} nor /tmp"
        mount = "docker run --tmpfs /tmp:exec, or " if machine.known(container).inside else ""
        yield fail("temporary folder", text, f"{mount}set TMPDIR to a folder that can be written")
        return
    if named and folder != Path(named):
        yield warn(
            "temporary folder",
            f"TMPDIR={named} cannot be written: Python takes {folder} instead, nsys and ncu do not",
            f"mkdir -p '{named}', or set TMPDIR to a folder that can be written",
        )
        return
    if hasattr(os, "ST_NOEXEC") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        text = f"{folder} is mounted noexec: kernels compiled there (Triton, extensions) cannot be loaded"
        inside = machine.known(container).inside
        mount = f"docker run --tmpfs {folder}:exec" if inside else f"mount -o remount,exec {folder}"
        yield fail("temporary folder", text, f"{mount}, or set TMPDIR to another folder")
        return
    yield _space(
        "temporary folder", f"for temporary files in {folder}", folder, "free space, or set TMPDIR to another disk"
    )


def _space(name: str, what: str, folder: Path, remedy: str) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free {what}"
    if free < MUCH_TOO_LITTLE_DISK:
        return fail(name, f"{text}: a run will not fit", remedy, free=free)
    if free < LITTLE_DISK:
        return warn(name, f"{text}: builds and traces may not fit", remedy, free=free)
    return ok(name, text, free=free)
