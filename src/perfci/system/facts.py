"""Facts of the machine, from Linux; elsewhere what the standard library and psutil know."""

import math
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from perfci.model.fingerprint import Fingerprint

# Server cores whose /proc/cpuinfo has no model name; numbers from util-linux, sys-utils/lscpu-arm.c.
_ARM_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd83"): "Arm Neoverse-V3AE",
    ("0x41", "0xd84"): "Arm Neoverse-V3",
    ("0x41", "0xd8e"): "Arm Neoverse-N3",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}


def host_facts(perfci: str, root: Path = Path("/")) -> Fingerprint:
    """Return the fingerprint of the host, without interpreter and GPU. `root` is where `/proc` and `/sys` lie."""
    cpu = cpu_model(root)
    return Fingerprint(
        perfci=perfci,
        host=_host(),
        cpu=cpu,
        cores=usable_cores(),
        memory=usable_memory(root),
        devices={"cpu": cpu},
    )


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version in `NVRM version: … Kernel Module for x86_64  580.159.04  Release …`."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    words = text.split("Kernel Module", 1)[-1].split()
    return next((word for word in words if word[0].isdigit()), None)


def _host() -> str:
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError):
        return kernel


def cpu_model(root: Path = Path("/")) -> str:
    """Return the processor's name, else its architecture."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    for key in ("model name", "cpu model", "Model", "cpu"):  # x86 and 32-bit Arm, MIPS, boards, POWER
        if facts.get(key):
            return re.sub(r"\s+", " ", facts[key])
    if facts.get("CPU implementer") and facts.get("CPU part"):
        maker, part = facts["CPU implementer"], facts["CPU part"]
        return _ARM_CORES.get((maker, part), f"Arm core, implementer {maker}, part {part}")
    return platform.processor() or platform.machine() or "unknown"


def cores_here() -> frozenset[int]:
    """Return the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return their number."""
    return len(cores_here())


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the cores' worth of time that cgroups (version 1 and 2) allow, or None."""
    quotas = [_quota(folder, version2) for folder, version2 in cgroups("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path, version2: bool) -> float | None:
    """`cpu.max` is `QUOTA PERIOD` in µs; without a quota QUOTA is `max`, in version 1 -1."""
    try:
        if version2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def whole_cores() -> int:
    """Return how many processes have a core's time each, by cores and quota."""
    return max(1, int(min(usable_cores(), cpu_quota() or math.inf)))


def usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes of the machine, or of its cgroups' limit."""
    return min([psutil.virtual_memory().total, *(group.limit for group in memory_groups(root))])


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes left of these."""
    return min([psutil.virtual_memory().available, *(group.free for group in memory_groups(root))])


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup with a limit on memory, in bytes."""

    limit: int
    used: int
    """Without the page cache that the kernel would give back (`inactive_file`), as kubelet counts."""

    @property
    def free(self) -> int:
        """Bytes that the group may still take."""
        return max(0, self.limit - self.used)


def memory_groups(root: Path = Path("/")) -> list[MemoryGroup]:
    """Return this process's cgroups (version 1 and 2) that limit memory, innermost first."""
    found = []
    for folder, version2 in cgroups("memory", root):
        names = _V2 if version2 else _V1
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None:
            found.append(MemoryGroup(limit, max(0, used - _reclaimable(folder))))
    return found


# proc_pid_mountinfo(5): id, parent, device, root, mount point, options … - type, source, super options
MOUNT = re.compile(r"\S+ \S+ \S+ (?P<root>\S+) (?P<point>\S+) .* - (?P<kind>\S+) \S* (?P<options>\S+)", re.ASCII)
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2 = ("memory.max", "memory.current")


def cgroups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Yield this process's cgroups that `controller` may limit, innermost first, and whether each is of version 2."""
    try:
        groups = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version2 = number == "0" and not controllers
        if not version2 and controller not in controllers.split(","):
            continue
        for mount in filter(None, map(MOUNT.fullmatch, mounts)):
            kind, options = mount["kind"], mount["options"].split(",")
            if kind == "cgroup2" if version2 else kind == "cgroup" and controller in options:
                top = root / _unescape(mount["point"]).lstrip("/")
                own = top / _inside(PurePosixPath(path), PurePosixPath(_unescape(mount["root"])))
                for folder in (own, *own.parents):
                    if folder.is_relative_to(top):
                        yield folder, version2


def _inside(path: PurePosixPath, shown: PurePosixPath) -> PurePosixPath:
    if ".." in path.parts or not path.is_relative_to(shown):
        return PurePosixPath()
    return path.relative_to(shown)


def _unescape(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _reclaimable(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    facts = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(facts.get("total_inactive_file", facts.get("inactive_file", "0")))
