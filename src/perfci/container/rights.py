"""The rights of a container, fewer for untrusted code. Pure but for `read_host`."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfci.model.base import UsageError
from perfci.model.metrics import resolve
from perfci.model.policy import Policy
from perfci.model.text import escaped
from perfci.profilers.ncu.command import PERFMON_DRIVER, admin_only
from perfci.sources.environment import is_secret, passes
from perfci.system.facts import driver_version

RUN_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID")
"""Capabilities by which perfci runs code as another user (system/users.py). That code gets none of them."""
_SHOWN = ("TERM", "COLUMNS", "NO_COLOR", "FORCE_COLOR")
_OF_THE_IMAGE = re.compile(
    "HOME|USER|LOGNAME|SHELL|TMPDIR|PATH|LD_.*|PYTHON.*|VIRTUAL_ENV|CONDA_PREFIX|NVIDIA_.*|PERFCI_.*|GIT_.*"
)
"""Variables of the image, or that perfci, git or NVIDIA's toolkit act on: never the caller's."""
_PATHS = re.compile(
    ".*PATH|CC|CXX|NVCC|CUDAHOSTCXX|.*_(?:HOME|ROOT|DIR|DIRECTORY|FILE|BUNDLE|PREFIX|COMPILER|LAUNCHER)"
)
"""Variables with paths of the host: they pass only where a policy names them."""
_CLOSED = (
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt/nvidia", "opt/perfci", "opt/torch",
    "perfci-sides", "proc", "sbin", "sys", "usr",
)  # fmt: skip
"""Folders of the image into which nothing of the host is mounted."""
_TAKEN = ("/opt", "/run", "/tmp", "/var")
"""Folders of the image that nothing of the host replaces."""

Need = Literal["none", "wanted", "required"]


@dataclass(frozen=True)
class Host:
    """A machine and its GPUs."""

    driver: str | None
    """NVIDIA's; None without one."""
    admin_only: bool = False

    @property
    def major(self) -> int:
        """The driver's major version; 0 without one."""
        return int(self.driver.partition(".")[0]) if self.driver else 0


def read_host(root: Path = Path("/")) -> Host:
    """Return this machine."""
    return Host(driver_version(root), admin_only(root))


@dataclass(frozen=True)
class Counting:
    """The rights of ncu's pass."""

    allowed: bool
    capability: str | None = None
    why: str = ""


def need_of(verb: str, policies: Collection[Policy]) -> Need:
    """Return how much counters are needed: `required` by a profile or a limit, `wanted` for explanations."""
    limits = [(limit, policy) for policy in policies for limit in policy.limits]
    if verb == "profile" or any(resolve(limit.metric, policy.metrics).tier == "counters" for limit, policy in limits):
        return "required"
    return "wanted" if verb == "doctor" or any(policy.profile != "never" for policy in policies) else "none"


def counting(need: Need, host: Host, *, trusted: bool, asked: bool | None, perfmon: bool = True) -> Counting:
    """Return the lowest sufficient rung: none, PERFMON, SYS_ADMIN.

    `asked`: `--counters`, `--no-counters`. `perfmon`: the engine knows it. SYS_ADMIN, close to root on the host, only
    where an option, limit or verb asks for counters.
    """
    if not trusted or asked is False:
        return Counting(False)
    need = "required" if asked else need
    if need == "none" or not host.driver or not host.admin_only:
        return Counting(True)
    if perfmon and host.major >= PERFMON_DRIVER:
        return Counting(True, "PERFMON", "ncu's pass gets the capability PERFMON: the driver lets nobody else count")
    reason = f"driver {host.driver} takes nothing less" if host.major < PERFMON_DRIVER else "this engine has no PERFMON"
    if need == "required":
        return Counting(
            True, "SYS_ADMIN", f"ncu's pass gets the capability SYS_ADMIN, as {reason}: --no-counters goes without"
        )
    return Counting(True, None, f"no counters: they would take SYS_ADMIN, as {reason}: --counters gives it")


def environment(caller: Mapping[str, str], pass_env: Iterable[str], *, build: bool, trusted: bool) -> dict[str, str]:
    """Return the caller's variables that fit the image; for untrusted code no likely secret, not even of `pass_env`."""
    named = set(pass_env)

    def fits(name: str) -> bool:
        return not _OF_THE_IMAGE.fullmatch(name) and (name in named or not _PATHS.fullmatch(name))

    return {
        name: value
        for name, value in caller.items()
        if (name in named or name in _SHOWN or passes(name, build))
        and fits(name)
        and (trusted or not is_secret(name, value))
    }


def require_no_cover(path: Path, what: str) -> None:
    """Raise UsageError where mounting the host's `path` would hide a part of the image."""
    words = path.parts[1:]
    inner = [tuple(folder.split("/")) for folder in _CLOSED]
    if str(path) in _TAKEN or any(words == one[: len(words)] or one == words[: len(one)] for one in inner):
        raise UsageError(
            f"{what} {escaped(path)}: it is mounted at the same path, where it would hide a part of the image: "
            "use a folder elsewhere, such as below /home"
        )
