"""Profiles of commands of which calls of the OS runtime and the use of device memory were traced."""

from perfci.judge.explain.case import case_profile
from perfci.model.profile import Call, KernelUse, MemoryUse, OsCall, Profile, Trace
from perfci.model.report import CaseProfile
from perfci.model.results import Case, CaseSide

MIB = 2**20


def _trace(*waits: tuple[str, float, float, float], memory: MemoryUse | None, kernels: bool = True) -> Profile:
    scale = KernelUse(name="scale(float*)", count=1, seconds=1e-5, grid=(64, 1, 1), block=(256, 1, 1), registers=16)
    trace = Trace(
        source="nsys",
        version="2025.3.2",
        within="step",
        executions=17,
        wall=4.6e-3,
        busy=4e-3,
        span=4e-3,
        kernels=[scale] if kernels else [],
        calls=[Call(name="cudaMalloc", kind="allocation", count=2, seconds=1.1e-4)] if kernels else [],
        os_calls=[OsCall(name=name, count=n, seconds=s, launching=own) for name, n, s, own in waits],
        memory=memory,
    )
    return Profile(reports=1, trace=trace, metrics={"peak_memory": memory.peak} if memory else {})


def traced() -> CaseProfile:
    """Head holds more device memory; a helper thread waits in both."""
    base = MemoryUse(peak=20 * MIB, final=0)
    head = MemoryUse(peak=88 * MIB, final=68 * MIB)
    sides = {
        "base": CaseSide(profile=_trace(("poll", 0.6, 2.8e-3, 0), ("ioctl", 7, 1.8e-4, 1.8e-4), memory=base)),
        "head": CaseSide(
            profile=_trace(
                ("poll", 0.6, 2.9e-3, 0), ("ioctl", 9, 2.1e-4, 2.1e-4), ("pthread_cond_wait", 1, 6e-5, 6e-5),
                ("a`|<b>", 1, 5e-5, 0), memory=head,
            )
        ),
    }  # fmt: skip
    case = Case(id="train", kernel="train", device="cuda", origin="command", sides=sides)
    return case_profile(case, [], None, host=True)


def waiting() -> CaseProfile:
    """A program on the CPU, alone."""
    waits = ("sem_wait", 3, 5.7e-2, 0.0), ("clock_nanosleep", 5, 5.6e-2, 0.0)
    side = CaseSide(profile=_trace(*waits, memory=None, kernels=False))
    case = Case(id="app", kernel="app", device="cpu", origin="command", sides={"head": side})
    return case_profile(case, [], None, host=True)
