"""Timing modes and devices in words."""

from typing import Any

from perfci.model.base import SIDES
from perfci.model.fingerprint import Ceilings, Environments, Fingerprint, Variable
from perfci.model.text import count, listed
from perfci.model.timing import Timing
from perfci.model.units import show
from perfci.render.words import plain

_OF_ONE_CASE = ("executions_per_graph", "rotated_bytes", "sets")
"""Parts that follow from the size and time of a case."""

_MOST = 12
"""Named packages, and variables."""


def timing(timing: Timing) -> str:
    """Return a timing mode in words, its name first."""
    rest = {key: value for key, value in sorted(timing.told().items()) if key not in ("mode", *_OF_ONE_CASE)}
    words = [f"{key.replace('_', ' ')} {value}" for key, value in rest.items()]
    return f"{timing.mode}: {', '.join(words)}"


def device_facts(facts: Fingerprint) -> list[tuple[str, str]]:
    """Return name and value of the device's facts besides its name."""
    pairs = [(f"ceilings ({device})", _ceilings(found)) for device, found in sorted(facts.ceilings.items())]
    pairs += sorted(facts.imported.items())
    gpu = facts.gpu
    if gpu is None:
        return pairs
    pairs = [
        ("capability", gpu.capability),
        *pairs,
        ("empty event pair", _amount(gpu.empty_pair_seconds, "s")),
        ("L2", _amount(gpu.l2_bytes, "B")),
        ("device memory", _amount(gpu.memory_bytes, "B")),
        ("multiprocessors", str(gpu.multiprocessors)),
    ]
    if gpu.nvml is not None:
        told = sorted(gpu.nvml.model_dump(exclude={"driver"}, exclude_none=True).items())
        pairs.append(("GPU set-up", ", ".join(f"{name.replace('_', ' ')} {_fact(name, fact)}" for name, fact in told)))
    return pairs


def environments(found: Environments) -> list[str]:
    """Return what differs between the environments, names between backticks."""
    base, head = (found.interpreters[side] for side in SIDES)
    facts = [
        ("interpreter", _span(base.path), _span(head.path)),
        ("Python", _plain(base.python), _plain(head.python)),
        ("torch", _either(base.torch), _either(head.torch)),
        ("CUDA of torch", _either(base.cuda), _either(head.cuda)),
    ]
    lines = [
        "Base and head run in different environments. Each worker is a process of its own, no fork of a common one."
    ]
    differ = [f"{name} {old} → {new}" for name, old, new in facts if old != new]
    lines += [", ".join(differ)] if differ else []
    if found.packages:
        packages = [f"{_span(one.name)} {_either(one.base)} → {_either(one.head)}" for one in found.packages]
        lines.append(f"{count(len(packages), 'package')}: {listed(packages, _MOST)}")
    elif base.path != head.path:
        lines.append("packages: the same versions in both")
    if found.variables:
        variables = listed(map(_variable, found.variables), _MOST)
        lines.append(f"{count(len(found.variables), 'variable')}: {variables}")
    if found.settings:
        settings = ", ".join(map(_variable, found.settings))
        lines.append(f"{count(len(found.settings), 'setting')} of libraries: {settings}")
    return lines


def _span(text: str) -> str:
    return f"`{_plain(text)}`"


def _either(text: str | None) -> str:
    return "none" if text is None else _plain(text)


def _plain(text: str) -> str:
    """Backticks would begin or end a name."""
    return text.replace("`", "'")


def _variable(one: Variable) -> str:
    if one.hidden:
        return f"{_span(one.name)} differs, and may be a secret"
    old, new = ("not set" if value is None else _span(value) if value else "empty" for value in (one.base, one.head))
    return f"{_span(one.name)} {old} → {new}"


def _amount(value: float, unit: str) -> str:
    return plain(show(float(value), unit))


def _fact(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text + {"max_sm_clock": " MHz", "power_limit": " W"}.get(name, "")


def _ceilings(found: Ceilings) -> str:
    moved = {"read": found.read, "copy": found.copied, "to device": found.to_device, "to host": found.to_host}
    rates = [(name, rate, "B/s", 1.0) for name, rate in moved.items()]
    rates += [(name, rate, "TFLOP/s", 1e-12) for name, rate in sorted(found.matmul.items())]
    return ", ".join(
        f"{name} {_amount(rate.value * factor, unit)}" for name, rate, unit, factor in rates if rate and rate.value
    )
