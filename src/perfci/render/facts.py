"""Timing modes and devices in words."""

from collections.abc import Mapping
from typing import Any

from perfci.model.units import show
from perfci.render.words import plain

_OF_ONE_CASE = ("executions_per_graph", "rotated_bytes", "sets")
"""Parts of a timing mode that follow from the size and time of a case."""
_AMOUNTS = {
    "l2_bytes": ("L2", "B"),
    "memory_bytes": ("device memory", "B"),
    "empty_pair_seconds": ("empty event pair", "s"),
}


def timing(timing: Mapping[str, str]) -> str:
    """A timing mode in words, its name first."""
    rest = {key: value for key, value in sorted(timing.items()) if key not in ("name", *_OF_ONE_CASE)}
    words = [f"{key.replace('_', ' ')} {value}" for key, value in rest.items()]
    return f"{timing.get('name', 'unnamed')}: {', '.join(words)}"


def device_facts(extra: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the fingerprint knows of the device besides its name, as name and value."""
    pairs = []
    for key, value in sorted(extra.items()):
        if key in _AMOUNTS:
            name, unit = _AMOUNTS[key]
            pairs.append((name, plain(show(float(value), unit))))
        elif key == "ceilings":
            pairs += [(f"ceilings ({device})", _ceilings(found)) for device, found in sorted(value.items())]
        elif key == "nvml":
            told = {name: fact for name, fact in sorted(value.items()) if fact is not None and name != "driver"}
            pairs.append(
                (
                    "GPU set-up",
                    ", ".join(f"{name.replace('_', ' ')} {_fact(name, fact)}" for name, fact in told.items()),
                )
            )
        else:
            pairs.append((key, str(value)))
    return pairs


def _fact(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text + {"max_sm_clock": " MHz", "power_limit": " W"}.get(name, "")


def _ceilings(found: Mapping[str, Any]) -> str:
    """Measured rates, those that were to be had."""
    rates = [(name, found.get(name), "B/s", 1.0) for name in ("read", "copy", "to_device", "to_host")]
    rates += [(name, rate, "TFLOP/s", 1e-12) for name, rate in sorted((found.get("matmul") or {}).items())]
    return ", ".join(
        f"{name.replace('_', ' ')} {plain(show(rate['value'] * factor, unit))}"
        for name, rate, unit, factor in rates
        if rate and rate.get("value")
    )
