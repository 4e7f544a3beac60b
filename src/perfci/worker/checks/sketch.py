"""A few numbers that tell whether base and head expect the same."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from typing import Any

from .compare import chunks, is_complex, leaves, widen, xp_of
from .plain import is_array, is_number, is_tensor, plain

PROJECTIONS = 4
LENGTH = 1 + PROJECTIONS
"""Of a sketch."""
SAME = 1e-2
"""Relative to the largest projection, of results that nothing says to be right: above the rounding of half-precision
types."""
STAND_IN = 1e6
"""In place of an infinity."""


def sketch(ref: Any) -> list[float]:
    """Return the L2 norm of all values and their projections on four fixed vectors of ±1, in float64.

    The leaves form one vector, with complex numbers as two elements and non-numbers by their hash. Equal references
    give equal sketches up to the order of summation, on every device. Raises Refused.
    """
    position = 0
    square = 0.0
    sums = [0.0] * PROJECTIONS
    for _, leaf in leaves(plain(ref), ()):
        if is_array(leaf):
            for _, chunk in chunks(leaf):
                values = _real_values(chunk)
                size = math.prod(values.shape)
                if size:
                    signs = _mix(_count_from(position, size, values))
                    square += float((values * values).sum())
                    for k in range(PROJECTIONS):
                        sums[k] += float((values * (1 - 2 * (signs >> (8 * k) & 1))).sum())
                    position += size
            continue
        for value in _scalar_values(leaf):
            sign = _mix(position)
            square += value * value
            for k in range(PROJECTIONS):
                sums[k] += value * (1 - 2 * (sign >> (8 * k) & 1))
            position += 1
    return [math.sqrt(square), *sums]


def told_apart(result: Any) -> tuple[list[float], str]:
    """Return the sketch of a result's numbers, and a digest of all else, without the side's folder. Raises Refused."""
    numbers: list[Any] = []
    found = hashlib.sha256()
    for path, leaf in leaves(plain(result), ()):
        numeric = is_array(leaf) or is_number(leaf)
        numbers += [leaf] * numeric
        text = repr((path, None if numeric else leaf))
        found.update(text.replace(os.path.dirname(os.environ.get("PERFCI_SITE", "")), "").encode())
    return sketch(numbers), found.hexdigest()


def alike(one: list[float], other: list[float]) -> bool:
    """Tell whether two sketches are within `SAME`."""
    largest = max(map(abs, one + other), default=0.0)
    return len(one) == len(other) and all(abs(a - b) <= SAME * largest for a, b in zip(one, other))


def _mix(index: Any) -> Any:
    """32 well-mixed bits of an int or an int64 array: C. Wellons' lowbias32 (hash-prospector).

    Products may wrap around; their low 32 bits are still right.
    """
    h = index % 0xFFFFFFFB
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & 0xFFFFFFFF
    return h ^ (h >> 16)


def _count_from(first: int, size: int, like: Any) -> Any:
    xp = xp_of(like)
    more = {"device": like.device} if is_tensor(like) else {}
    return xp.arange(first, first + size, dtype=xp.int64, **more)


def _real_values(chunk: Any) -> Any:
    xp = xp_of(chunk)
    wide = widen(chunk).reshape(-1)
    if is_complex(wide):
        wide = xp.stack([wide.real, wide.imag], 1).reshape(-1)
    return xp.nan_to_num(wide, nan=STAND_IN, posinf=STAND_IN, neginf=-STAND_IN)


def _scalar_values(leaf: Any) -> list[float]:
    if is_number(leaf):
        with contextlib.suppress(OverflowError):
            parts = [leaf.real, leaf.imag] if type(leaf) is complex else [leaf]
            values = [float(part) for part in parts]
            return [v if math.isfinite(v) else math.copysign(STAND_IN, v) for v in values]
    text = leaf if type(leaf) in (bytes, bytearray) else repr(leaf).encode()
    return [int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / 2**48]
