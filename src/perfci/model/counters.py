"""How a counter of several launches, or of several kernels, combines into one value."""

import math
from collections.abc import Collection
from typing import Literal

Fold = Literal["sum", "maximum", "mean"]
"""Added up, the largest, or averaged with the device times as weights."""

SUMMED = frozenset(
    {
        "dram_bytes", "dram_read", "dram_written", "instructions", "tensor_instructions", "spills", "bank_conflicts",
        "fp32_flops", "fp64_flops",
    }
)  # fmt: skip
LARGEST = frozenset({"registers", "shared_memory", "local_memory", "grid_size", "block_size"})
"""Of a thread, a block or a launch."""


def fold(name: str) -> Fold:
    """How the counter `name` combines; all but SUMMED and LARGEST are rates, shares or ratios."""
    return "sum" if name in SUMMED else "maximum" if name in LARGEST else "mean"


def combined(name: str, parts: Collection[tuple[float | None, float]]) -> float | None:
    """The counter `name` over `parts`: values and their device times in seconds.

    None where there is no part, one has no value, a mean has no weight, or the result is not finite.
    """
    known = [(value, seconds) for value, seconds in parts if value is not None]
    if not known or len(known) < len(parts):
        return None
    how, weight = fold(name), sum(seconds for _, seconds in known)
    if how == "maximum":
        total = max(value for value, _ in known)
    elif how == "sum":
        total = sum(value for value, _ in known)
    elif 0 < weight < math.inf:
        total = sum(value * (seconds / weight) for value, seconds in known)
    else:
        return None
    return total if math.isfinite(total) else None
