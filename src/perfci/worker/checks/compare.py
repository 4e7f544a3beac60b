"""Compares a result with its reference, element by element."""

from __future__ import annotations

import array
import cmath
import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from .plain import (
    ATOMS,
    BUFFERS,
    MAPPINGS,
    Path,
    Refused,
    builtin_torch,
    is_array,
    is_nan,
    is_number,
    is_sequence,
    is_tensor,
    place_name,
    plain,
    strided,
)
from .tolerance import NONE, Given, Tolerance, Tolerances, Unnamed

CHUNK = 16 * 2**20
"""Elements: a dozen float64 temporaries stay under 2 GiB."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    ok: bool
    kind: Optional[str] = None
    """"wrong", "nan" where the result holds NaN and should not, "invalid" where it cannot be trusted."""
    worst: Optional[float] = None
    """Largest error as a share of the tolerance; None if nothing was compared."""
    text: str = ""
    """One line."""


def compare(
    out: Any,
    ref: Any,
    rtol: Tolerance,
    atol: Tolerance,
    given: Given = NONE,
    names: tuple[str, ...] = (),
) -> Outcome:
    """Compare a result with its reference: |out - ref| <= atol + rtol · |ref| for every element.

    Both are of exactly the types of `plain`. Structure and shapes must agree, types of numbers need not: they are
    compared in float64 or complex128. Integers and bool are compared exactly while both tolerances are 0. An infinity
    matches only itself, NaN nothing. `names`: fields of a named tuple.
    """
    tally = _Tally(Tolerances(rtol, atol, given, names))
    with builtin_torch():
        try:
            ref = plain(ref)
        except Refused as refused:
            return Outcome(False, "wrong", None, f"of the reference, {refused}")
        try:
            tally.begin(ref)
            _walk(tally, plain(out), ref, ())
        except (Refused, Unnamed, _Mismatch) as error:
            return Outcome(False, "wrong", None, str(error))
        return tally.outcome()


def finite(out: Any) -> Outcome:
    """Check without a reference: the result holds neither NaN nor infinities. Opaque values pass."""
    with builtin_torch():
        try:
            return _finite(plain(out, strict=False))
        except Refused as refused:
            return Outcome(False, "wrong", None, str(refused))


def _finite(out: Any) -> Outcome:
    for path, leaf in leaves(out, ()):
        if is_array(leaf):
            for start, chunk in chunks(leaf):
                if not _is_exact(chunk):
                    xp = xp_of(chunk)
                    wide = widen(chunk)
                    bad = ~xp.isfinite(wide)
                    if bool(bad.any()):
                        index = int(_first(bad))
                        count = int(xp.count_nonzero(bad))
                        return _not_finite(wide.reshape(-1)[index].item(), (*path, _index(start, chunk, index)), count)
        elif type(leaf) in (float, complex) and not cmath.isfinite(leaf):
            return _not_finite(leaf, path, 1)
    return Outcome(True)


def _not_finite(value: Any, path: Path, count: int) -> Outcome:
    more = f" and {count - 1} more like it" if count > 1 else ""
    text = f"{place_name(path)} is {value}{more}; no bench.reference() says that it should be"
    return Outcome(False, "nan" if cmath.isnan(value) else "wrong", None, text)


class _Mismatch(Exception):
    """Result and reference differ in structure."""


class _Tally:
    def __init__(self, tolerances: Tolerances) -> None:
        self.tolerances = tolerances
        self.rtol = self.atol = 0.0
        self.several = False
        self.total = self.differing = self.nans = 0
        self.worst = 0.0
        self.at = ""
        self.nan_at = ""
        self.reference_nan_at = ""

    def begin(self, ref: Any) -> None:
        self.several = type(ref) is dict or is_sequence(ref)
        self.tolerances.require((ref if type(ref) is dict else range(len(ref))) if self.several else None)
        if not self.several:
            self.rtol, self.atol = self.tolerances.of(None)

    def enter(self, path: Path, key: Any) -> None:
        if self.several and not path:
            self.rtol, self.atol = self.tolerances.of(key)

    @property
    def exact(self) -> bool:
        return self.rtol == 0 and self.atol == 0

    def differs(self, count: int, ratio: float, path: Path, out: Any, ref: Any) -> None:
        """`ratio`: of the worst error to the tolerance."""
        self.differing += count
        if not self.at or ratio > self.worst:
            self.at = f"{place_name(path)} is {_short(out)}, the reference has {_short(ref)}"
        self.worst = max(self.worst, ratio)

    def is_nan(self, count: int, path: Path, ref: Any) -> None:
        self.nans += count
        self.differing += count
        self.worst = math.inf
        self.nan_at = self.nan_at or f"{place_name(path)} is NaN, the reference has {_short(ref)}"

    def reference_is_nan(self, path: Path) -> None:
        self.reference_nan_at = self.reference_nan_at or place_name(path)

    def outcome(self) -> Outcome:
        if self.reference_nan_at:
            return Outcome(False, "wrong", None, f"the reference itself holds NaN, at {self.reference_nan_at}")
        if self.nans:
            return Outcome(False, "nan", math.inf, f"{self.nan_at}; {self.nans} of {self.total} elements are NaN")
        if self.differing:
            far = f", the worst {self.worst:.3g} × the tolerance" if math.isfinite(self.worst) else ""
            text = f"{self.at}; {self.differing} of {self.total} elements differ{far}"
            return Outcome(False, "wrong", self.worst, text)
        return Outcome(True, None, self.worst if self.total else None)


def _walk(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    if type(out) is array.array and type(ref) is array.array and out == ref:
        tally.total += len(ref)  # the usual case, fast; an array that holds NaN does not equal itself
        return
    out, ref = _opened(out), _opened(ref)
    if is_array(out) and is_array(ref):
        _compare_arrays(tally, out, ref, path)
        return
    if is_array(out) or is_array(ref):
        # One is an array and the other is not: nested lists and numbers can still be what it holds.
        if not is_number(ref) and not is_number(out) and not (is_sequence(out) or is_sequence(ref)):
            raise _Mismatch(f"{place_name(path)} is {_what(out)}, the reference is {_what(ref)}{_hint(out)}")
        _walk(tally, out.tolist() if is_array(out) else out, ref.tolist() if is_array(ref) else ref, path)
    elif type(ref) is dict and type(out) is dict:
        if out.keys() != ref.keys():
            raise _Mismatch(f"{place_name(path)} has the keys {list(out)}, the reference has {list(ref)}")
        for key, value in ref.items():
            tally.enter(path, key)
            _walk(tally, out[key], value, (*path, key))
    elif is_sequence(ref) and is_sequence(out):
        if len(out) != len(ref):
            raise _Mismatch(f"{place_name(path)} has length {len(out)}, the reference has {len(ref)}")
        for index, value in enumerate(ref):
            tally.enter(path, index)
            _walk(tally, out[index], value, (*path, index))
    elif is_number(ref) and is_number(out):
        _compare_numbers(tally, out, ref, path)
    elif _is_bytes(ref) and _is_bytes(out):
        if out == ref:
            tally.total += len(ref)
        else:
            _walk(tally, tuple(out), tuple(ref), path)
    else:
        _compare_others(tally, out, ref, path)


def _compare_others(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    if _is_container(out) or _is_container(ref) or (out is None) != (ref is None):
        raise _Mismatch(f"{place_name(path)} is {_what(out)}, the reference is {_what(ref)}{_hint(out)}")
    tally.total += 1
    if type(out) is not type(ref) or out != ref:
        tally.differs(1, math.inf, path, out, ref)


def _compare_numbers(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    tally.total += 1
    if is_nan(ref):
        tally.reference_is_nan(path)
    elif is_nan(out):
        tally.is_nan(1, path, ref)
    elif out != ref:
        ratio = math.inf
        exact = tally.exact and type(out) in (bool, int) and type(ref) in (bool, int)
        with contextlib.suppress(OverflowError):  # an integer beyond float64, beside a float
            if not exact and cmath.isfinite(out) and cmath.isfinite(ref):
                error, allowed = abs(out - ref), tally.atol + tally.rtol * abs(ref)
                ratio = error / allowed if allowed else math.inf
        if ratio <= 1:
            tally.worst = max(tally.worst, ratio)
        else:
            tally.differs(1, ratio, path, out, ref)


def _compare_arrays(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    if tuple(out.shape) != tuple(ref.shape):
        raise _Mismatch(f"{place_name(path)} has shape {list(out.shape)}, the reference has {list(ref.shape)}")
    if is_tensor(out) != is_tensor(ref):
        out, ref = _as_tensor(out), _as_tensor(ref)
    for (start, part), (_, other) in zip(chunks(out), chunks(ref)):
        expected = other.to(part.device) if is_tensor(part) else other
        with _quiet(part):
            _compare_chunk(tally, part, expected, start, path)


def _compare_chunk(tally: _Tally, out: Any, ref: Any, start: tuple[int, ...], path: Path) -> None:
    xp = xp_of(out)
    size = math.prod(out.shape)
    tally.total += size
    if not size:
        return

    def place(index: int) -> Path:
        return (*path, _index(start, out, index)) if start else path

    if tally.exact and _is_exact(out) and _is_exact(ref):
        wrong = _signed(out) != _signed(ref)
        if out.dtype != ref.dtype and "uint64" in f"{out.dtype} {ref.dtype}":
            wrong = wrong | (widen(out) != widen(ref))  # the sign bit of the one is a value bit of the other
        count = int(xp.count_nonzero(wrong))
        if count:
            index = int(_first(wrong))
            tally.differs(count, math.inf, place(index), _item(out, index), _item(ref, index))
        return
    actual, wanted = widen(out), widen(ref)
    missing = xp.isnan(wanted)
    if bool(missing.any()):
        tally.reference_is_nan(place(int(_first(missing))))
        return
    nan = xp.isnan(actual)
    nans = int(xp.count_nonzero(nan))
    if nans:
        index = int(_first(nan))
        tally.is_nan(nans, place(index), _item(wanted, index))
    zero = xp.zeros_like(wanted.real)
    error = xp.where(actual == wanted, zero, xp.abs(actual - wanted))
    # Beside an infinity no error is small: |inf| would make the tolerance infinite.
    allowed = xp.where(xp.isinf(wanted), zero, tally.atol + tally.rtol * xp.abs(wanted))
    # The quotient is NaN for 0/0, which is fine, and for inf/inf and the like, which is not.
    ratio = xp.where(error == 0, zero, error / allowed)
    ratio = xp.where(xp.isnan(ratio), zero + math.inf, ratio)
    ratio = xp.where(nan, zero, ratio)
    wrong = ratio > 1
    count = int(xp.count_nonzero(wrong))
    index = int(ratio.reshape(-1).argmax())
    worst = float(ratio.reshape(-1)[index])
    if count:
        tally.differs(count, worst, place(index), _item(out, index), _item(wanted, index))
    else:
        tally.worst = max(tally.worst, worst)


# ---------------------------------------------------------------- leaves: tensors, numpy arrays, plain values


def leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield all but containers of a plain value, with its place; dicts and sets sorted, buffers but bytearrays as
    elements."""
    value = _opened(value)
    if type(value) in MAPPINGS:
        for key in sorted(value, key=repr):
            yield from leaves(value[key], (*path, key))
    elif is_sequence(value):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    elif type(value) is frozenset:
        for item in sorted(value, key=repr):
            yield path, item
    else:
        yield path, value


def _opened(value: Any) -> Any:
    if is_tensor(value):
        return strided(value)
    return value.tolist() if type(value) in BUFFERS and type(value) is not bytearray else value


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes or type(value) is bytearray


def _is_container(value: Any) -> bool:
    return type(value) not in ATOMS and type(value) is not frozenset


def xp_of(value: Any) -> Any:
    """Return the torch or numpy of `value`."""
    return sys.modules["torch" if is_tensor(value) else "numpy"]


def _quiet(value: Any) -> Any:
    """numpy warns of 0/0 and overflow where torch does not."""
    return contextlib.nullcontext() if is_tensor(value) else sys.modules["numpy"].errstate(all="ignore")


def is_complex(value: Any) -> bool:
    """Tell whether an array is of complex numbers."""
    return bool(value.dtype.is_complex if is_tensor(value) else value.dtype.kind == "c")


def _is_exact(value: Any) -> bool:
    if is_tensor(value):
        return not (value.is_floating_point() or value.is_complex())
    return bool(value.dtype.kind in "biu")


def widen(value: Any) -> Any:
    """Return an array as float64 or complex128."""
    xp = xp_of(value)
    dtype = xp.complex128 if is_complex(value) else xp.float64
    return value.to(dtype) if is_tensor(value) else value.astype(dtype)


def _signed(value: Any) -> Any:
    """Bit by bit: torch compares few unsigned types."""
    xp = xp_of(value)
    if value.dtype == getattr(xp, "uint64", None):
        return value.view(xp.int64)
    return value.to(xp.int64) if is_tensor(value) else value.astype(xp.int64)


def _as_tensor(value: Any) -> Any:
    return value if is_tensor(value) else sys.modules["torch"].tensor(value.copy())


def chunks(value: Any, start: Optional[tuple[int, ...]] = None) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield parts of at most CHUNK elements, with the index of their first."""
    shape = tuple(value.shape)
    start = (0,) * len(shape) if start is None else start
    if math.prod(shape) <= CHUNK:
        yield start, value
        return
    axis = next(axis for axis, length in enumerate(shape) if length > 1)
    step = max(1, CHUNK // math.prod(shape[axis + 1 :]))
    for begin in range(0, shape[axis], step):
        part = value[(slice(None),) * axis + (slice(begin, begin + step),)]
        yield from chunks(part, (*start[:axis], start[axis] + begin, *start[axis + 1 :]))


def _first(mask: Any) -> Any:
    flat = mask.reshape(-1)
    return (flat.to(xp_of(flat).uint8) if is_tensor(flat) else flat).argmax()


def _item(value: Any, index: int) -> Any:
    return value.reshape(-1)[index].item()


def _index(start: tuple[int, ...], chunk: Any, flat: int) -> tuple[int, ...]:
    place = []
    for length in reversed(tuple(chunk.shape)):
        flat, rest = divmod(flat, length)
        place.append(rest)
    return tuple(first + rest for first, rest in zip(start, reversed(place)))


# ---------------------------------------------------------------- words


def _what(value: Any) -> str:
    if is_array(value):
        return f"an array of shape {list(value.shape)}"
    if is_sequence(value):
        return f"a {type(value).__name__} of {len(value)}"
    if type(value) is frozenset:
        return f"a set of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _hint(out: Any) -> str:
    return ": return the output from the timed function" if out is None else ""


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
