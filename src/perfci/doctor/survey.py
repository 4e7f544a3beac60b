"""All checks at once, each in a thread."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import perfci
from perfci.doctor import gpu, host, profilers, pytorch, repository, tools
from perfci.doctor.machine import Machine, asked, clipped, fail
from perfci.doctor.tiers import SOURCES, state, tiers
from perfci.model.doctor import STATUSES, Diagnosis, Finding

Check = Callable[[Machine], Iterable[Finding]]
LIMIT = 180.0
"""Seconds, for calls of the driver and the disk that hang; programs have shorter limits."""
TIERS_TIME = 5.0
"""Seconds to conclude: what it needs has been asked before, or hangs."""

CHECKS: dict[str, Check] = {
    "gpu": gpu.check_gpus,
    "torch": pytorch.check_torch,
    "image": tools.check_image,
    "nsys": profilers.check_nsys,
    "ncu": profilers.check_ncu,
    "counters": profilers.check_counters,
    "machine code": profilers.check_code,
    "ncu_report": profilers.check_report_module,
    "system": host.check_system,
    "processor": host.check_cores,
    "memory": host.check_memory,
    "disk": host.check_disk,
    "temporary folder": host.check_temporary,
    "git": repository.check_git,
    "token": repository.check_token,
    "nvcc": tools.check_nvcc,
    "strace": tools.check_strace,
}
"""Name → check; what matters more comes first."""
_PROGRAMS = ("torch", "nsys", "ncu", "ncu_report", "system", "nvcc")
OFFLINE: dict[str, Check] = {
    "image": partial(tools.check_image, built=True),
    **{name: CHECKS[name] for name in _PROGRAMS},
}
"""Of an image while it is built: programs and their versions."""


def diagnose(machine: Machine, first: Sequence[Finding] = (), checks: dict[str, Check] = CHECKS) -> Diagnosis:
    """`first`: lines that the caller knows already. Never raises for what it finds."""
    start = time.monotonic()
    findings = examine(machine, checks, first)
    try:
        states = asked(partial(tiers, machine)).result(TIERS_TIME)
    except TimeoutError:
        states = [state(tier, "", "not known: a check did not answer") for tier in SOURCES]
    return Diagnosis(
        perfci=perfci.__version__,
        seconds=round(time.monotonic() - start, 3),
        findings=findings,
        tiers=states,
        exit_code=3 if any(finding.status == "fail" for finding in findings) else 0,
    )


def examine(
    machine: Machine, checks: dict[str, Check], first: Sequence[Finding] = (), limit: float = LIMIT
) -> list[Finding]:
    """Return all lines, worst first; among equals `first`, then the order of `checks`.

    A check that raises, or has no answer after `limit` seconds, fails.
    """
    deadline = time.monotonic() + limit
    answers = {name: asked(partial(_answer, machine, name, check)) for name, check in checks.items()}
    findings = list(first)
    for name, answer in answers.items():
        try:
            findings += answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            late = f"this check did not answer within {limit:g} s"
            findings.append(fail(name, late, "see dmesg: a driver or a disk that hangs is fixed by a reboot"))
    return sorted(findings, key=lambda finding: STATUSES.index(finding.status))


def _answer(machine: Machine, name: str, check: Check) -> list[Finding]:
    try:
        return list(check(machine))
    except Exception as error:  # noqa: BLE001  # a probe that breaks is a line, never the end of the doctor
        text = f"this check broke: {type(error).__name__}: {clipped(error)}"
        return [fail(name, text, "please report it with this line")]
