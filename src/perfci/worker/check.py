"""Correctness: is what a kernel returns what its reference says, and does it write all of it?"""

from __future__ import annotations

import array
import cmath
import contextlib
import ctypes
import hashlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from .bench import Prepared, prepare

if TYPE_CHECKING:
    from .declare import Kernel

CHUNK = 16 * 2**20
"""Elements that are compared at once: a dozen float64 temporaries of this size stay under 2 GiB."""
BLOCKS, BLOCK_BYTES = 8, 2**28
"""Freed blocks of each size that are poisoned: more than the seven that a bin of glibc's tcache holds, and some that a
kernel may take before its output. Two where more would take more bytes than this."""
ALIGNMENT = 64
"""Bytes: torch asks for memory on the CPU at multiples of this."""
SMALL = 2**20
"""Bytes: up to here glibc may hand out what it keeps aside, which M_PERTURB does not reach."""
PROJECTIONS = 4
STAND_IN = 1e6
"""Takes the place of an infinity in a sketch, which must stay finite."""
M_PERTURB = -6  # malloc.h of glibc
FILL_WITH_ONES = 0x100
"""Value of M_PERTURB: not 0, which switches it off, and with a low byte whose complement, the filling, is 0xFF."""

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Outcome:
    """What a check found."""

    ok: bool
    kind: Optional[str] = None
    """None when ok; "wrong", or "nan" where the result holds NaN and should not."""
    worst: Optional[float] = None
    """Largest error as a share of what the tolerance allows; None where nothing was compared."""
    text: str = ""
    """One line; empty when ok."""


# ---------------------------------------------------------------- comparing


def compare(out: Any, ref: Any, rtol: float, atol: float) -> Outcome:
    """Compare a result with its reference: |out - ref| <= atol + rtol · |ref| for every element.

    Both are tensors, numpy arrays, buffers, numbers, text, bytes, None, or nested lists, tuples and mappings
    of these. Structure and shapes must agree, types of numbers need not: they are compared in float64 or
    complex128. Integers and bool are compared exactly while both tolerances are 0. An infinity matches only
    itself, NaN nothing.
    """
    tally = _Tally(rtol, atol)
    try:
        _walk(tally, out, ref, ())
    except _Mismatch as mismatch:
        return Outcome(False, "wrong", None, str(mismatch))
    return tally.outcome()


def finite(out: Any) -> Outcome:
    """What can be checked without a reference: that the result holds neither NaN nor infinities."""
    for path, leaf in _leaves(out, ()):
        if _is_array(leaf):
            for start, chunk in _chunks(leaf):
                if not _is_exact(chunk):
                    xp = _xp(chunk)
                    wide = _widen(chunk)
                    bad = ~xp.isfinite(wide)
                    if bool(bad.any()):
                        index = int(_first(bad))
                        count = int(xp.count_nonzero(bad))
                        return _not_finite(wide.reshape(-1)[index].item(), (*path, _index(start, chunk, index)), count)
        elif isinstance(leaf, (float, complex)) and not cmath.isfinite(leaf):
            return _not_finite(leaf, path, 1)
    return Outcome(True)


def _not_finite(value: Any, path: Path, count: int) -> Outcome:
    more = f" and {count - 1} more like it" if count > 1 else ""
    return Outcome(
        False,
        "nan" if cmath.isnan(value) else "wrong",
        None,
        f"{_name(path)} is {value}{more}; no bench.reference() says that it should be",
    )


class _Mismatch(Exception):
    """Result and reference are built differently."""


class _Tally:
    """Adds up what the comparison of all elements finds."""

    def __init__(self, rtol: float, atol: float) -> None:
        self.rtol, self.atol = rtol, atol
        self.total = self.differing = self.nans = 0
        self.worst = 0.0
        self.at = ""
        self.nan_at = ""
        self.reference_nan_at = ""

    @property
    def exact(self) -> bool:
        return self.rtol == 0 and self.atol == 0

    def differs(self, count: int, ratio: float, path: Path, out: Any, ref: Any) -> None:
        """`count` elements differ, the worst by `ratio` of the tolerance."""
        self.differing += count
        if not self.at or ratio > self.worst:
            self.at = f"{_name(path)} is {_short(out)}, the reference has {_short(ref)}"
        self.worst = max(self.worst, ratio)

    def is_nan(self, count: int, path: Path, ref: Any) -> None:
        """`count` elements are NaN where the reference has a number."""
        self.nans += count
        self.differing += count
        self.worst = math.inf
        self.nan_at = self.nan_at or f"{_name(path)} is NaN, the reference has {_short(ref)}"

    def reference_is_nan(self, path: Path) -> None:
        """The reference is no reference."""
        self.reference_nan_at = self.reference_nan_at or _name(path)

    def outcome(self) -> Outcome:
        """The judgement."""
        if self.reference_nan_at:
            return Outcome(False, "wrong", None, f"the reference itself holds NaN, at {self.reference_nan_at}")
        if self.nans:
            return Outcome(False, "nan", math.inf, f"{self.nan_at}; {self.nans} of {self.total} elements are NaN")
        if self.differing:
            far = f", the worst {self.worst:.3g} × the tolerance" if math.isfinite(self.worst) else ""
            return Outcome(
                False,
                "wrong",
                self.worst,
                f"{self.at}; {self.differing} of {self.total} elements differ{far}",
            )
        return Outcome(True, None, self.worst if self.total else None)


def _walk(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    if isinstance(out, array.array) and isinstance(ref, array.array) and out == ref:
        tally.total += len(ref)  # the usual case, fast; an array that holds NaN does not equal itself
        return
    out, ref = _plain(out), _plain(ref)
    if _is_array(out) and _is_array(ref):
        _compare_arrays(tally, out, ref, path)
        return
    if _is_array(out) or _is_array(ref):
        # One is an array and the other is not: nested lists and numbers can still be what it holds.
        if not _is_number(ref) and not _is_number(out) and not (_is_sequence(out) or _is_sequence(ref)):
            raise _Mismatch(f"{_name(path)} is {_what(out)}, the reference is {_what(ref)}{_hint(out)}")
        _walk(tally, out.tolist() if _is_array(out) else out, ref.tolist() if _is_array(ref) else ref, path)
    elif isinstance(ref, Mapping) and isinstance(out, Mapping):
        if out.keys() != ref.keys():
            raise _Mismatch(f"{_name(path)} has the keys {list(out)}, the reference has {list(ref)}")
        for key, value in ref.items():
            _walk(tally, out[key], value, (*path, key))
    elif _is_sequence(ref) and _is_sequence(out):
        if len(out) != len(ref):
            raise _Mismatch(f"{_name(path)} has length {len(out)}, the reference has {len(ref)}")
        for index, value in enumerate(ref):
            _walk(tally, out[index], value, (*path, index))
    elif _is_number(ref) and _is_number(out):
        _compare_numbers(tally, out, ref, path)
    elif isinstance(ref, (bytes, bytearray)) and isinstance(out, (bytes, bytearray)):
        if out == ref:
            tally.total += len(ref)
        else:
            _walk(tally, tuple(out), tuple(ref), path)
    else:
        _compare_objects(tally, out, ref, path)


def _compare_objects(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    if _is_container(out) or _is_container(ref) or (out is None) != (ref is None):
        raise _Mismatch(f"{_name(path)} is {_what(out)}, the reference is {_what(ref)}{_hint(out)}")
    tally.total += 1
    try:
        equal = bool(out == ref)
    except (TypeError, ValueError, RuntimeError):
        raise _Mismatch(f"{_name(path)}: {_what(out)} cannot be compared: return tensors, numbers or lists") from None
    if not equal:
        tally.differs(1, math.inf, path, out, ref)


def _compare_numbers(tally: _Tally, out: Any, ref: Any, path: Path) -> None:
    tally.total += 1
    if _is_nan(ref):
        tally.reference_is_nan(path)
    elif _is_nan(out):
        tally.is_nan(1, path, ref)
    elif out != ref:
        ratio = math.inf
        exact = tally.exact and isinstance(out, int) and isinstance(ref, int)
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
        raise _Mismatch(f"{_name(path)} has shape {list(out.shape)}, the reference has {list(ref.shape)}")
    if _is_tensor(out) != _is_tensor(ref):
        out, ref = _as_tensor(out), _as_tensor(ref)
    for (start, part), (_, other) in zip(_chunks(out), _chunks(ref)):
        expected = other.to(part.device) if _is_tensor(part) else other
        with _quiet(part):
            _compare_chunk(tally, part, expected, start, path)


def _compare_chunk(tally: _Tally, out: Any, ref: Any, start: tuple[int, ...], path: Path) -> None:
    xp = _xp(out)
    size = math.prod(out.shape)
    tally.total += size
    if not size:
        return

    def place(index: int) -> Path:
        return (*path, _index(start, out, index)) if start else path

    if tally.exact and _is_exact(out) and _is_exact(ref):
        wrong = _signed(out) != _signed(ref)
        if out.dtype != ref.dtype and "uint64" in f"{out.dtype} {ref.dtype}":
            wrong = wrong | (_widen(out) != _widen(ref))  # the sign bit of the one is a value bit of the other
        count = int(xp.count_nonzero(wrong))
        if count:
            index = int(_first(wrong))
            tally.differs(count, math.inf, place(index), _item(out, index), _item(ref, index))
        return
    actual, wanted = _widen(out), _widen(ref)
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


# ---------------------------------------------------------------- fingerprints of a reference


def sketch(ref: Any) -> list[float]:
    """L2 norm of all values and their projections on four fixed vectors of ±1, in float64.

    The leaves count as one long vector; complex numbers as two elements, what is no number as a value drawn
    from its hash. Equal references give equal sketches up to the order of summation, on every device.
    """
    position = 0
    square = 0.0
    sums = [0.0] * PROJECTIONS
    for _, leaf in _leaves(ref, ()):
        if _is_array(leaf):
            for _, chunk in _chunks(leaf):
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


def _mix(index: Any) -> Any:
    """32 well-mixed bits of an index: an int, or an int64 array. C. Wellons' lowbias32 (hash-prospector).

    Products may wrap around in int64; their low 32 bits are right all the same.
    """
    h = index % 0xFFFFFFFB
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & 0xFFFFFFFF
    return h ^ (h >> 16)


def _count_from(first: int, size: int, like: Any) -> Any:
    """first, first + 1, … as int64, beside `like`."""
    xp = _xp(like)
    more = {"device": like.device} if _is_tensor(like) else {}
    return xp.arange(first, first + size, dtype=xp.int64, **more)


def _real_values(chunk: Any) -> Any:
    """The elements in order as a flat float64 array: real and imaginary parts apart, infinities replaced."""
    xp = _xp(chunk)
    wide = _widen(chunk).reshape(-1)
    if _is_complex(wide):
        wide = xp.stack([wide.real, wide.imag], 1).reshape(-1)
    return xp.nan_to_num(wide, nan=STAND_IN, posinf=STAND_IN, neginf=-STAND_IN)


def _scalar_values(leaf: Any) -> list[float]:
    if _is_number(leaf):
        with contextlib.suppress(OverflowError):
            parts = [leaf.real, leaf.imag] if isinstance(leaf, complex) else [leaf]
            values = [float(part) for part in parts]
            return [v if math.isfinite(v) else math.copysign(STAND_IN, v) for v in values]
    text = leaf if isinstance(leaf, (bytes, bytearray)) else repr(leaf).encode()
    return [int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / 2**48]


# ---------------------------------------------------------------- memory that betrays what is not written


def leaf_sizes(out: Any) -> list[int]:
    """Bytes of the memory behind each array, tensor and buffer in a result, each size once, ascending."""
    sizes = set()
    for _, leaf in _leaves(out, ()):
        if _is_tensor(leaf):
            sizes.add(leaf.untyped_storage().nbytes())
        elif _is_array(leaf):
            sizes.add(leaf.nbytes)
        elif isinstance(leaf, (bytes, bytearray)):
            sizes.add(len(leaf))
    return sorted(sizes - {0})


@contextlib.contextmanager
def poisoned_memory(sizes: Sequence[int], device: str) -> Iterator[None]:
    """Within it, memory that is allocated and not written is full of ones: NaN in every floating-point type.

    A kernel that returns what it has not written then returns NaN instead of the right values of the run before. On
    a GPU this holds for blocks of `sizes` bytes, on the CPU for all that glibc hands out; other allocators are served
    as on a GPU. On macOS it does nothing.
    """
    if device.startswith("cuda"):
        _poison_cached(sizes, device)
        yield
    elif sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        perturbed = hasattr(libc, "mallopt") and libc.mallopt(M_PERTURB, FILL_WITH_ONES) == 1
        try:
            _poison_freed(libc, [size for size in sizes if size <= SMALL or not perturbed])
            yield
        finally:
            if perturbed:
                libc.mallopt(M_PERTURB, 0)
    else:
        yield


def _blocks(size: int) -> int:
    return max(2, min(BLOCKS, BLOCK_BYTES // size))


def _poison_cached(sizes: Sequence[int], device: str) -> None:
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # All are held at once: the caching allocator would otherwise give out the same block again and again.
    held = [torch.empty(s, dtype=torch.uint8, device=device) for s in sizes for _ in range(_blocks(s))]
    for block in held:
        block.fill_(0xFF)
    torch.cuda.synchronize()


def _poison_freed(libc: ctypes.CDLL, sizes: Sequence[int]) -> None:
    libc.malloc.restype = libc.aligned_alloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    held = []
    for size in sizes:
        for _ in range(_blocks(size)):
            held += [(libc.malloc(size), size), (libc.aligned_alloc(ALIGNMENT, size), size)]
    for address, size in held:
        if address:
            ctypes.memset(address, 0xFF, size)
    for address, _ in held:
        libc.free(address)


# ---------------------------------------------------------------- one case


def check_case(
    kernel: Kernel,
    params_sets: Sequence[dict[str, Any]],
    device: str,
    seed: int,
    *,
    rtol: Optional[float] = None,
    atol: Optional[float] = None,
) -> dict[str, Any]:
    """Check one case at every set of parameters; the first set is the case's own.

    Each set is built twice from the same seed: once to see how large the results are, and once more, with
    memory poisoned, for the execution whose result counts. `rtol` and `atol` replace what the case's own set
    declares, wherever a set declares the same. What the kernel or its reference raises is raised.

    Returns `ok`; `kind` and `text` of the first failure, which ends the check, or None and ""; `shapes`, the
    sets checked; `compared`, how many of them with a reference; `worst`; and of the case's own set `rtol`,
    `atol` (as declared; None without a reference), `sketch`, `digest` of the inputs and `work`.
    """
    result: dict[str, Any] = {
        "ok": True,
        "kind": None,
        "text": "",
        "shapes": 0,
        "compared": 0,
        "worst": None,
        "rtol": None,
        "atol": None,
        "sketch": [],
        "digest": "",
        "work": {},
    }
    for params in params_sets:
        first = prepare(kernel, params, device, seed, 0, True)
        sizes = leaf_sizes(first.fn())
        first.bench.release()
        del first
        prepared = prepare(kernel, params, device, seed, 0, True)
        reference = prepared.bench.declared_reference()
        own = result["shapes"] == 0
        if own:
            result["digest"] = prepared.bench.inputs_digest()
            result["work"] = prepared.bench.declared_work()
            if reference:
                result["rtol"], result["atol"] = reference.rtol, reference.atol
        declared = (reference.rtol, reference.atol) if reference else (None, None)
        same = declared == (result["rtol"], result["atol"])
        outcome, expected = _execute(prepared, device, sizes, rtol if same else None, atol if same else None)
        if own and reference:
            result["sketch"] = sketch(expected)
        prepared.bench.release()
        result["shapes"] += 1
        result["compared"] += reference is not None
        if outcome.worst is not None:
            result["worst"] = max(outcome.worst, result["worst"] or 0.0)
        if not outcome.ok:
            label = " ".join(f"{name}={value}" for name, value in params.items())
            text = f"at {label}: {outcome.text}" if label else outcome.text
            result.update(ok=False, kind=outcome.kind, text=text)
            break
    return result


def verify(prepared: Prepared, rtol: Optional[float] = None, atol: Optional[float] = None) -> Outcome:
    """The check after timing: run what was timed once more, with memory poisoned, and compare.

    `rtol` and `atol` replace what the case declares. What the kernel or its reference raises is raised.
    """
    sizes = leaf_sizes(prepared.fn())
    return _execute(prepared, prepared.bench.device_name, sizes, rtol, atol)[0]


def _execute(
    prepared: Prepared, device: str, sizes: Sequence[int], rtol: Optional[float], atol: Optional[float]
) -> tuple[Outcome, Any]:
    """The outcome of one execution, and the reference, copied before: a kernel may work in place."""
    reference = prepared.bench.declared_reference()
    expected = _copied(reference.fn()) if reference else None
    with poisoned_memory(sizes, device):
        out = prepared.fn()
        if device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
    if reference is None:
        return finite(out), None
    return (
        compare(
            out,
            expected,
            reference.rtol if rtol is None else rtol,
            reference.atol if atol is None else atol,
        ),
        expected,
    )


def _copied(ref: Any) -> Any:
    """The reference with memory of its own: it must not change when the kernel runs."""
    if _is_tensor(ref):
        return ref.detach().clone()
    if isinstance(ref, Mapping):
        return {key: _copied(value) for key, value in ref.items()}
    if _is_sequence(ref):
        return [_copied(value) for value in ref]
    if _is_array(ref) or isinstance(ref, (array.array, bytearray)):
        return ref[...].copy() if _is_array(ref) else ref[:]
    return ref.tolist() if isinstance(ref, memoryview) else ref


# ---------------------------------------------------------------- leaves: tensors, numpy arrays, plain values


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Everything in nested sequences and mappings that is neither, with its place; mappings by sorted key."""
    value = _plain(value)
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _leaves(value[key], (*path, key))
    elif _is_sequence(value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, value


def _plain(value: Any) -> Any:
    """Tensors as strided ones without gradient, other arrays of numbers as they are, buffers as lists."""
    if _is_tensor(value):
        import torch

        value = value.detach()
        if value.is_quantized:
            value = value.dequantize()
        return value if value.layout == torch.strided else value.to_dense()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value if _is_array(value) else value.tolist()
    return value.tolist() if isinstance(value, (array.array, memoryview)) else value


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    """Whether it is a tensor or a numpy array of numbers or bool."""
    if _is_tensor(value):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex))


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, complex)) and cmath.isnan(value)


def _is_container(value: Any) -> bool:
    return _is_array(value) or _is_sequence(value) or isinstance(value, Mapping)


def _xp(value: Any) -> Any:
    """torch or numpy, whichever `value` belongs to."""
    return sys.modules["torch" if _is_tensor(value) else "numpy"]


def _quiet(value: Any) -> Any:
    """numpy warns of 0/0 and of overflow, torch does not."""
    return contextlib.nullcontext() if _is_tensor(value) else sys.modules["numpy"].errstate(all="ignore")


def _is_complex(value: Any) -> bool:
    return bool(value.dtype.is_complex if _is_tensor(value) else value.dtype.kind == "c")


def _is_exact(value: Any) -> bool:
    """Whether it holds integers or bool."""
    if _is_tensor(value):
        return not (value.is_floating_point() or value.is_complex())
    return bool(value.dtype.kind in "biu")


def _widen(value: Any) -> Any:
    xp = _xp(value)
    dtype = xp.complex128 if _is_complex(value) else xp.float64
    return value.to(dtype) if _is_tensor(value) else value.astype(dtype)


def _signed(value: Any) -> Any:
    """Integers and bool as int64, bit by bit: torch compares few of the unsigned types."""
    xp = _xp(value)
    if value.dtype == getattr(xp, "uint64", None):
        return value.view(xp.int64)
    return value.to(xp.int64) if _is_tensor(value) else value.astype(xp.int64)


def _as_tensor(value: Any) -> Any:
    return value if _is_tensor(value) else sys.modules["torch"].tensor(value.copy())


def _chunks(value: Any, start: Optional[tuple[int, ...]] = None) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Parts of at most CHUNK elements, in order of the elements, with the index of their first one."""
    shape = tuple(value.shape)
    start = (0,) * len(shape) if start is None else start
    if math.prod(shape) <= CHUNK:
        yield start, value
        return
    axis = next(axis for axis, length in enumerate(shape) if length > 1)
    step = max(1, CHUNK // math.prod(shape[axis + 1 :]))
    for begin in range(0, shape[axis], step):
        part = value[(slice(None),) * axis + (slice(begin, begin + step),)]
        yield from _chunks(part, (*start[:axis], start[axis] + begin, *start[axis + 1 :]))


def _first(mask: Any) -> Any:
    """Flat index of the first True."""
    flat = mask.reshape(-1)
    return (flat.to(_xp(flat).uint8) if _is_tensor(flat) else flat).argmax()


def _item(value: Any, index: int) -> Any:
    return value.reshape(-1)[index].item()


def _index(start: tuple[int, ...], chunk: Any, flat: int) -> tuple[int, ...]:
    """Index in the whole array of element `flat` of a chunk that begins at `start`."""
    place = []
    for length in reversed(tuple(chunk.shape)):
        flat, rest = divmod(flat, length)
        place.append(rest)
    return tuple(first + rest for first, rest in zip(start, reversed(place)))


# ---------------------------------------------------------------- words


def _name(path: Path) -> str:
    """`result[0]['logits'][3, 7]`."""
    steps = (str(list(step)) if isinstance(step, tuple) else f"[{step!r}]" for step in path)
    return "result" + "".join(steps)


def _what(value: Any) -> str:
    if _is_array(value):
        return f"an array of shape {list(value.shape)}"
    if _is_sequence(value):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _hint(out: Any) -> str:
    return ": return the output from the timed function" if out is None else ""


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
