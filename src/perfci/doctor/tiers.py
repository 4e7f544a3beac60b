"""Tiers of metrics: which this machine can give, and by which tool."""

from collections.abc import Callable

from perfci.doctor.gpu import boards
from perfci.doctor.machine import Machine, clipped
from perfci.doctor.profilers import counters, nsys
from perfci.doctor.pytorch import inside
from perfci.model.doctor import TierState
from perfci.model.metrics import CATALOGUE, HOST_TIME, Tier
from perfci.profilers.nsys.command import InstalledNsys


def tiers(machine: Machine) -> list[TierState]:
    """Return each tier's state on this machine."""
    states = []
    for tier, ask in SOURCES.items():
        try:
            states.append(state(tier, *ask(machine)))
        except Exception as error:  # noqa: BLE001  # what it builds on broke, and has its own line
            states.append(state(tier, "", f"not known: {type(error).__name__}: {clipped(error)}"))
    return states


def state(tier: Tier, source: str, why: str) -> TierState:
    """Return a tier's state; `why`: there is no source, or a doubt."""
    known = (metric.name for metric in CATALOGUE.values() if metric.tier == tier)
    names = [name for name in known if name != HOST_TIME or not why]  # which the CPU's timing lacks
    return TierState(tier=tier, given=bool(source), source=source, why=why, metrics=names)


def _no_gpu(machine: Machine) -> str:
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
    if source.startswith("nsys"):
        return source, "it answers; a capture was not tried"
    return source, "of cases alone, not of commands: no nsys"


def _static(machine: Machine) -> tuple[str, str]:
    without = _no_gpu(machine)
    if without:
        return "", without
    source = _timeline(machine) or counters(machine)[0]
    if source:
        return f"torch and {source}", ""
    return "torch", "peak_memory alone: launch configurations need nsys, torch.profiler or ncu"


SOURCES: dict[Tier, Callable[[Machine], tuple[str, str]]] = {
    "timing": _timing,
    "trace": _trace,
    "counters": counters,
    "static": _static,
    "reported": lambda _: ("the policy's commands", "those that the policy declares"),
}
"""Tier → source and reason, as of `state`."""
