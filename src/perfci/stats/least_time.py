"""The least time of declared work by measured ceilings.

Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model".
"""

import math

from perfci.model.fingerprint import Ceilings
from perfci.model.results import Work

NAMES = {
    "bf16": ("bfloat16",), "fp16": ("float16", "half"), "fp32": ("float32", "float"), "tf32": ("tfloat32",),
    "fp64": ("float64", "double"), "int8": (), "fp8": ("float8", "e4m3", "e5m2"), "fp4": ("float4", "e2m1"),
}  # fmt: skip
"""Types of the measured ceilings, and what else they are called."""


def least_seconds(work: Work, ceilings: Ceilings, dtype: str | None = None, *, tf32: bool = False) -> float:
    """Return the seconds of `work` at the measured ceilings of memory or compute, whichever is more.

    0 where unknown. `tf32`: float32 operands may go through tensor cores.
    """
    if not all(math.isfinite(one) and one >= 0 for one in (work.flops, work.read, work.written)):
        return 0.0
    moving = memory_time_of(work, ceilings, [])
    measured = {name for name, rate in ceilings.matmul.items() if rate.usable is not None}
    found = None
    if work.flops > 0 and _kind(dtype) in measured:
        found = compute_rate(ceilings, dtype, "TF32 is on" if tf32 else "", [])
    if (work.read + work.written > 0 and moving is None) or (work.flops > 0 and found is None):
        return 0.0
    return max(moving or 0.0, work.flops / found[0] if found else 0.0)


def memory_time_of(work: Work, ceilings: Ceilings, assumptions: list[str]) -> float | None:
    """Return the seconds to move the declared bytes, or None."""
    if work.read + work.written <= 0:
        return None
    read, copy = ceilings.read.usable, ceilings.copied.usable
    if copy is None and read is not None and work.written > 0:
        assumptions.append("writes at the rate of reads: the copy was not measured")
    if read is None and copy is not None and work.read > work.written:
        assumptions.append("reads at the rate of the copy: reading alone was not measured")
    read, copy = read or copy, copy or read
    if read is None or copy is None:
        return None
    paired = min(work.read, work.written)
    time = (work.read - paired) / read + (work.written + paired) / copy
    return time if 0 < time < math.inf else None


def compute_rate(
    ceilings: Ceilings, dtype: str | None, tensor: str, assumptions: list[str]
) -> tuple[float, str] | None:
    """Return the compute ceiling in operations per second and its type; None where none was measured.

    `tensor`: why float32 operands are known to go through tensor cores; empty where they are not.
    """
    rates = {name: rate for name, one in ceilings.matmul.items() if (rate := one.usable) is not None}
    if not rates:
        return None
    known = _kind(dtype)
    if known == "fp32" and "tf32" in rates and tensor:
        assumptions.append(f"float32 through tensor cores, as TF32: {tensor}")
        known = "tf32"
    if known in rates:
        if known == "fp32" and "tf32" in rates:
            assumptions.append("float32 without tensor cores")
        return rates[known], known
    # fp4 is an estimate from fp8, an upper bound for what is believed: as a goal it misleads where nothing speaks for
    # it.
    fastest = max(sorted(set(rates) - {"fp4"}) or sorted(rates), key=lambda name: rates[name])
    why = f"no ceiling of {dtype} was measured" if dtype else "the type is not known"
    assumptions.append(f"the largest compute ceiling, {fastest}: {why}")
    return rates[fastest], fastest


def _kind(dtype: str | None) -> str:
    plain = (dtype or "").lower().removeprefix("torch.")
    for name, others in NAMES.items():
        if plain == name or plain in others or (name == "fp8" and plain.startswith(("float8", "fp8"))):
            return name
    return ""
