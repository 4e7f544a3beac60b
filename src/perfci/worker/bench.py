"""`Bench`: the first argument of a kernel function."""

from __future__ import annotations

import ctypes
import hashlib
import math
import random as standard_random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Optional

from .checks.tolerance import Tolerance, read_tolerance, require_amount
from .scripts.held import Held
from .versus import Versus

if TYPE_CHECKING:
    from .declare import Kernel

Tensor = Any  # torch.Tensor: torch is imported where it is needed, not before
Dtype = Any  # torch.dtype, or a name such as "bf16" or "float32"

SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
FLOATS, INTEGERS = ("float32", "float64"), ("int64", "int32", "int16", "int8", "uint8")
LINE = 64
"""Bytes; also torch's alignment on the CPU."""
PAGE = 4096
"""Bytes within which the begin of a tensor on the CPU is drawn."""
SMALLEST_PAD, LARGEST_PAD = 64 * 2**10, 16 * 2**20
"""Bytes. Padding is at most as large as its tensor, so that both come from one pool of the caching allocator."""
BALLAST = 64
"""Blocks of up to 64 KiB, which displace what a case allocates without `bench`."""
_ballast: list[bytearray] = []
GRAIN = 512
"""Bytes to which torch's caching allocator rounds."""
SAMPLED = 65536
"""Elements that enter the digest one by one."""
OTHER = 2**40
"""Placements from here on draw values that no checked or timed one has."""
LONGEST_NAME = 40
"""Characters."""
SUMMED = 2**26


@dataclass(frozen=True)
class Reference:
    """What the result must satisfy: |out - ref| <= atol + rtol · |ref|."""

    fn: Callable[[], Any]
    rtol: Tolerance
    atol: Tolerance

    @property
    def raw(self) -> Callable[[], Any]:
        """The function as the suite made it; of a script none that stands."""
        return getattr(self.fn, "drawn", self.fn)


@dataclass(frozen=True)
class Drawn:
    """A drawn tensor."""

    method: str
    tensor: Tensor

    @property
    def shape(self) -> str:
        """Such as `randn float16[32, 8, 128, 64]`."""
        return f"{self.method} {str(self.tensor.dtype).split('.')[-1]}{list(self.tensor.shape)}"


class Bench:
    """The inputs of one case in one placement.

    Values depend on `seed`, `placement` and the number of the draw, so base and head have the same; where tensors lie
    in memory is drawn anew with every placement, for both alike. `device` is "cuda", "cuda:1" or "cpu". With `poison`,
    `empty` is filled with NaN, so that an unwritten element shows.

    Every `dtype` is a torch.dtype or its name: "bf16", "fp16", "fp32", "fp64", or as torch calls it.
    """

    def __init__(self, device: str, seed: int, placement: int, poison: bool = False) -> None:
        self._device = device
        self._seed = f"{seed}/{placement}"
        self._poison = poison
        self._drawn: list[Drawn] = []
        self._pads: list[Tensor] = []
        self._padding = self._stream("pad")
        self._displace_heap()
        self._random: Optional[Random] = None
        self._work: Optional[dict[str, Any]] = None
        self._reference: Optional[Reference] = None
        self._versus: Optional[Versus] = None
        self._held: list[Held] = []
        """Scripts that end with the case."""
        self._question = ""
        """What else tells its inputs from others."""
        self.fields: tuple[str, ...] = ()

    # ---------------------------------------------------------------- where and from what

    @property
    def device_name(self) -> str:
        """The device as text; unlike `device` it needs no torch."""
        return self._device

    @property
    def device(self) -> Any:
        """The torch.device that tensors are drawn on."""
        return _torch().device(self._device)

    @property
    def random(self) -> Random:
        """A seeded generator of the standard library, for inputs that are no tensors."""
        if self._random is None:
            self._random = self._stream("random")
        return self._random

    def dtype(self, name: Dtype) -> Any:
        """Return the torch.dtype called `name`. Raises ValueError where torch knows none."""
        torch = _torch()
        found = getattr(torch, SHORT_DTYPES.get(name, name), None) if isinstance(name, str) else name
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{name!r} is no dtype: write one like 'bf16', 'fp32' or 'int64'")
        return found

    def seed_everything(self) -> None:
        """Seed the global generators of random, and of torch and numpy where they are loaded."""
        seed_generators(self._integer("global"))

    # ---------------------------------------------------------------- inputs

    def randn(self, *shape: Any, dtype: Dtype = "fp32", host: bool = False, pinned: bool = False) -> Tensor:
        """Return normal values, mean 0 and standard deviation 1; types under 32 bits are rounded from float32.

        `host`: on the CPU although the case runs on the GPU; `pinned`: there in page-locked memory.
        """
        out = self._place(shape, dtype, host, pinned)
        return self._fill("randn", out, FLOATS, lambda room, generator: room.normal_(generator=generator))

    def rand(
        self,
        *shape: Any,
        low: float = 0.0,
        high: float = 1.0,
        dtype: Dtype = "fp32",
        host: bool = False,
        pinned: bool = False,
    ) -> Tensor:
        """Return uniform values in [low, high); rounding to a short type may reach `high`."""
        out = self._place(shape, dtype, host, pinned)
        return self._fill("rand", out, FLOATS, lambda room, generator: room.uniform_(low, high, generator=generator))

    def randint(
        self,
        low: int,
        high: int,
        *shape: Any,
        dtype: Dtype = "int64",
        host: bool = False,
        pinned: bool = False,
    ) -> Tensor:
        """Return uniform integers in [low, high)."""
        out = self._place(shape, dtype, host, pinned)
        return self._fill(
            "randint", out, INTEGERS, lambda room, generator: room.random_(low, high, generator=generator)
        )

    def zeros(self, *shape: Any, dtype: Dtype = "fp32", host: bool = False, pinned: bool = False) -> Tensor:
        """Return zeros."""
        return self._take("zeros", self._place(shape, dtype, host, pinned).zero_())

    def full(
        self, shape: Any, value: Any, *, dtype: Dtype = "fp32", host: bool = False, pinned: bool = False
    ) -> Tensor:
        """Return `value` everywhere."""
        return self._take("full", self._place((shape,), dtype, host, pinned).fill_(value))

    def empty(self, *shape: Any, dtype: Dtype = "fp32", host: bool = False, pinned: bool = False) -> Tensor:
        """Return room for an output, of undefined content: NaN (integers: all bits set) when results are checked."""
        out = self._place(shape, dtype, host, pinned)
        if self._poison:
            fill_with_ones(out)
        return self._take("empty", out)

    def tensor(self, data: Any, *, dtype: Optional[Dtype] = None, host: bool = False, pinned: bool = False) -> Tensor:
        """Return a copy of `data`, a tensor or nested lists of numbers, placed like a drawn one."""
        torch = _torch()
        source = torch.as_tensor(data, dtype=None if dtype is None else self.dtype(dtype))
        return self._take("tensor", self._place((source.shape,), source.dtype, host, pinned).copy_(source))

    # ---------------------------------------------------------------- what the case declares

    def work(
        self, flops: float = 0, read: float = 0, written: float = 0, items: float = 0, item: str = "items"
    ) -> None:
        """Declare the work of one execution: floating-point operations, least bytes read and written, items (tokens,
        samples).

        Raises ValueError for a number that is negative or not finite, and on a second call.
        """
        if self._work is not None:
            raise ValueError("bench.work() was called before: declare all work in one call")
        amounts = {"flops": flops, "read": read, "written": written, "items": items}
        for name, amount in amounts.items():
            require_amount(f"bench.work({name}=…)", amount)
        if not isinstance(item, str) or not item.strip():
            raise ValueError(f"bench.work(item={item!r}): name what an item is, such as 'tokens'")
        self._work = {**{name: float(amount) for name, amount in amounts.items()}, "item": item}

    def reference(self, fn: Callable[[], Any], rtol: Any = 0.0, atol: Any = 0.0) -> None:
        """Declare what the result must be: `fn()`, within atol + rtol · |reference|; exactly, by default.

        `rtol` and `atol`: a number, or a mapping of outputs to numbers: by position in a tuple or list, by key of a
        dict, by field of a named tuple, and "*" for all others. `fn` is called before the kernel runs, when the result
        is checked. Raises TypeError where it cannot be called, ValueError for a tolerance that is negative or not
        finite, and on a second call.
        """
        if self._reference is not None:
            raise ValueError("bench.reference() was called before: declare one reference")
        if not callable(fn):
            raise TypeError("bench.reference() takes a function: write bench.reference(lambda: …)")
        self._reference = Reference(fn, read_tolerance("rtol", rtol), read_tolerance("atol", atol))

    def versus(self, name: str, fn: Callable[[], Any]) -> None:
        """Declare another implementation, which is timed beside the case: its time over the case's is `speedup`.

        `fn` takes the same inputs, and its result is held to the same reference. Raises TypeError where it cannot be
        called, ValueError for a name that is no short text in one line, and on a second call.
        """
        if self._versus is not None:
            raise ValueError("bench.versus() was called before: declare one alternative, in a kernel for each")
        if not isinstance(name, str) or not 0 < len(name.strip()) <= LONGEST_NAME or not name.isprintable():
            raise ValueError(f"bench.versus({name!r}): give it a name of at most {LONGEST_NAME} characters")
        if not callable(fn):
            raise TypeError("bench.versus() takes a function: write bench.versus('sdpa', lambda: …)")
        self._versus = Versus(name.strip(), fn)

    # ---------------------------------------------------------------- what perfci asks

    def declared_work(self) -> dict[str, Any]:
        """Return flops, read, written (bytes), items as floats, and item; else zeros."""
        return dict(self._work or {"flops": 0.0, "read": 0.0, "written": 0.0, "items": 0.0, "item": "items"})

    def declared_reference(self) -> Optional[Reference]:
        """Return the reference."""
        return self._reference

    def declared_versus(self) -> Optional[Versus]:
        """Return the alternative."""
        return self._versus

    def shapes(self) -> list[str]:
        """Return `Drawn.shape` of every tensor drawn, in order."""
        return [drawn.shape for drawn in self._drawn]

    def device_bytes(self) -> int:
        """Return the bytes of drawn tensors but `host` and `pinned` ones."""
        drawn = (one.tensor for one in self._drawn)
        return sum(t.numel() * t.element_size() for t in drawn if t.device.type == self._device.split(":")[0])

    def main_dtype(self) -> str:
        """Return the type of most bytes drawn, such as `bfloat16`, or empty."""
        sizes: dict[str, int] = {}
        for one in self._drawn:
            name = str(one.tensor.dtype).rpartition(".")[2]
            sizes[name] = sizes.get(name, 0) + one.tensor.numel() * one.tensor.element_size()
        return max(sizes, key=lambda name: sizes[name]) if sizes else ""

    def holds(self, tensor: Tensor) -> bool:
        """Tell whether `tensor` lies in drawn memory."""
        memory = tensor.untyped_storage().data_ptr()
        return any(one.tensor.untyped_storage().data_ptr() == memory for one in self._drawn)

    def release(self) -> None:
        """Free what it drew, although functions refer to this, and end its scripts."""
        self._drawn.clear()
        self._pads.clear()
        self._reference = self._versus = None
        while self._held:
            self._held.pop().leave()

    def inputs_digest(self) -> str:
        """Return the SHA-256 over shapes, types and values of the inputs as they are now: take it before the kernel
        runs.

        Each tensor gives up to 65536 evenly spaced elements, and the sum of its bytes as int32 (uint8 where the size is
        no multiple of four), which does not depend on the order. `empty` gives no values.
        """
        digest = hashlib.sha256()
        for drawn in self._drawn:
            digest.update(drawn.shape.encode() + b"\n")
            if drawn.method != "empty":
                digest.update(_fingerprint(drawn.tensor))
        if self._random is not None:
            digest.update(repr(self._random.getstate()).encode())
        digest.update(self._question.encode())
        return digest.hexdigest()

    # ---------------------------------------------------------------- placing

    def _integer(self, purpose: str) -> int:
        """hash() would differ between processes."""
        return int.from_bytes(hashlib.sha256(f"{self._seed}/{purpose}".encode()).digest()[:8], "big") >> 1

    def _stream(self, purpose: str) -> Random:
        return Random(self._integer(purpose))

    def _displace_heap(self) -> None:
        """Before the blocks of the last placement are freed: new ones lie elsewhere."""
        heap = self._stream("heap")
        _ballast[:] = [bytearray(int(GRAIN * 2 ** heap.uniform(0, 7)) + 1) for _ in range(BALLAST)]

    def _generator(self, device: Any) -> Any:
        return _torch().Generator(device).manual_seed(self._integer(str(len(self._drawn))))

    def _fill(self, method: str, out: Tensor, native: Sequence[str], draw: Callable[[Tensor, Any], Tensor]) -> Tensor:
        """Through the first `native` type where its own is none."""
        torch = _torch()
        types = [getattr(torch, name) for name in native]
        # On the case's own device, for host memory too: a GPU draws 64 MB in a fraction of a millisecond.
        generator = self._generator(self.device)
        room = torch.view_as_real(out) if out.is_complex() and native is FLOATS else out
        if room.device.type == self.device.type and room.dtype in types:
            draw(room, generator)
        else:
            kind = room.dtype if room.dtype in types else types[0]
            room.copy_(draw(torch.empty(room.shape, dtype=kind, device=self.device), generator))
        return self._take(method, out)

    def _place(self, shape: tuple[Any, ...], dtype: Dtype, host: bool, pinned: bool) -> Tensor:
        """Uninitialised, behind random padding; on the CPU at a random cache line of a page."""
        torch = _torch()
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = tuple(shape[0])
        dtype = self.dtype(dtype)
        device = torch.device("cpu") if host or pinned else self.device
        nbytes = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
        largest = min(max(nbytes, SMALLEST_PAD), LARGEST_PAD)
        pad = GRAIN * self._padding.randint(1, largest // GRAIN)
        lines = self._padding.randrange(PAGE // LINE)
        self._pads.append(torch.empty(pad, dtype=torch.uint8, device=device))
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        room = torch.empty(nbytes + 2 * PAGE, dtype=torch.uint8, pin_memory=pinned)
        out = torch.empty(0, dtype=dtype)
        # Not a view: what the kernel gets is a plain tensor that begins inside its storage, in base and in head
        # at the same offset in its page, whatever the state of the process's heap.
        begin = -room.data_ptr() % PAGE + lines * LINE
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return out.set_(room.untyped_storage(), begin // out.element_size(), tuple(shape), strides)

    def _take(self, method: str, out: Tensor) -> Tensor:
        self._drawn.append(Drawn(method, out))
        return out


@dataclass(frozen=True)
class Prepared:
    """A case, ready to run."""

    fn: Callable[[], Any]
    """What is timed."""
    bench: Bench
    again: Callable[[bool], Prepared]
    """Set the case up once more: with the same values, or (True) with those of a draw that nothing else has."""

    @property
    def scripted(self) -> bool:
        """Tell whether a benchmark script made it."""
        return isinstance(self.fn, Held)

    @property
    def raw(self) -> Callable[[], Any]:
        """What is timed, as the suite made it."""
        return self.fn.fn if isinstance(self.fn, Held) else self.fn

    def within(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call anything where the case is executed: on its script's thread, if it has one."""
        return self.fn.within(call, *args, **named) if isinstance(self.fn, Held) else call(*args, **named)

    def synchronize(self) -> None:
        """Wait for the whole device."""
        if self.bench.device_name.startswith("cuda"):
            _torch().cuda.synchronize()


def prepare(
    kernel: Kernel,
    params: dict[str, Any],
    device: str,
    seed: int,
    placement: int,
    poison: bool = False,
) -> Prepared:
    """Seed, draw and place the inputs of one case. Raises TypeError where `kernel.fn` returns no callable."""

    def again(other: bool) -> Prepared:
        return prepare(kernel, params, device, seed, OTHER + placement if other else placement, poison)

    bench = Bench(device, seed, placement, poison)
    bench.seed_everything()
    fn = kernel.fn(bench, **params)
    if not callable(fn):
        raise TypeError(
            f"{kernel.file}:{kernel.line}: {kernel.name}() returned {_described(fn)}: "
            "return the function that is to be timed, such as lambda: f(x)"
        )
    return Prepared(fn, bench, again)


def seed_generators(seed: int) -> None:
    """As `Bench.seed_everything`, by `seed`."""
    standard_random.seed(seed)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        _seed_torch(torch, seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _seed_torch(torch: Any, seed: int) -> None:
    """torch.manual_seed keeps a stack trace for each kind of absent device: half the time of drawing a small case."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)
    elif torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def fill_with_ones(tensor: Tensor) -> None:
    """Set every bit of a contiguous tensor: NaN in every floating-point type that has one, True for bool."""
    torch = _torch()
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
    elif tensor.numel():
        tensor.reshape(-1).view(torch.uint8).fill_(0xFF)


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"bench draws tensors with torch, which {sys.executable} lacks: install it there, name another interpreter "
            "with --python, or use bench.random",
            name="torch",
        ) from None
    return torch


def _described(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _fingerprint(tensor: Tensor) -> bytes:
    torch = _torch()
    flat = tensor.detach().contiguous().reshape(-1)
    raw = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    whole = raw.view(torch.int32) if raw.numel() % 4 == 0 and raw.storage_offset() % 4 == 0 else raw
    total = 0
    for part in whole.split(SUMMED):  # torch widens all that it sums before it adds
        total += int(part.sum(dtype=torch.int64))
    total = (total + 2**63) % 2**64 - 2**63
    stride = -(-flat.numel() // SAMPLED) or 1
    sample = raw.view(flat.numel(), -1)[::stride].cpu().contiguous() if flat.numel() else raw.cpu()
    values = ctypes.string_at(sample.data_ptr(), sample.numel()) if sample.numel() else b""
    return total.to_bytes(8, "big", signed=True) + values
