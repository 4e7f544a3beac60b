"""All checks at once: each in a thread of its own, the lines in the order of the checks."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from perfci.doctor import gpu, host, pytorch, repository, tools
from perfci.doctor.machine import Asked, Machine, clipped, fail
from perfci.model.doctor import STATUSES, Finding

Check = Callable[[Machine], Iterable[Finding]]
LIMIT = 180.0
"""Seconds after which a check that has not answered is a line that says so. Each program has a shorter limit of its
own; this one is for calls of the driver and the disk that hang."""

CHECKS: dict[str, Check] = {
    "gpu": gpu.check_gpus,
    "torch": pytorch.check_torch,
    "torch offers": pytorch.check_offers,
    "clock locking": gpu.check_locking,
    "perfci": host.check_perfci,
    "system": host.check_system,
    "container": host.check_container,
    "processor": host.check_cores,
    "memory": host.check_memory,
    "disk": host.check_disk,
    "temporary folder": host.check_temporary,
    "git": repository.check_git,
    "token": repository.check_token,
    "nvcc": tools.check_nvcc,
    "cutlass": tools.check_cutlass,
    "strace": tools.check_strace,
    "docker": tools.check_docker,
}
"""Name of the check → the check; what matters more comes first."""


def examine(
    machine: Machine, checks: dict[str, Check], first: Sequence[Finding] = (), limit: float = LIMIT
) -> list[Finding]:
    """Return the lines of all checks, worst first; among equals `first`, then the order of `checks`.

    A check that raises, or has not answered after `limit` seconds, is a line that fails under its own name.
    """
    deadline = time.monotonic() + limit
    waiting = [Asked(partial(_answer, machine, name, check)) for name, check in checks.items()]
    found = list(first)
    for name, asked in zip(checks, waiting, strict=True):
        try:
            found += asked.answer(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            late = f"this check did not answer within {limit:g} s"
            found.append(fail(name, late, "see dmesg: a driver or a disk that hangs is fixed by a reboot"))
    return in_order(found)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return them worst first, else as they are."""
    return sorted(findings, key=lambda one: STATUSES.index(one.status))


def _answer(machine: Machine, name: str, check: Check) -> list[Finding]:
    try:
        return list(check(machine))
    except Exception as error:  # noqa: BLE001  # a probe that breaks is a line, never the end of the doctor
        text = f"this check broke: {type(error).__name__}: {clipped(error)}"
        return [fail(name, text, "please report it with this line")]
