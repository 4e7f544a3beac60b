"""Memory that betrays what a kernel returns and has not written."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .compare import leaves
from .plain import is_array, is_tensor

BLOCKS, BLOCK_BYTES = 8, 2**28
"""Freed blocks of each size that are poisoned: more than the seven that a bin of glibc's tcache holds, and some that a
kernel may take before its output. Two where more would take more bytes than this."""
ALIGNMENT = 64
"""Bytes: torch asks for memory on the CPU at multiples of this."""
SMALL = 2**20
"""Bytes: up to here glibc may hand out what it keeps aside, which M_PERTURB does not reach."""
M_PERTURB = -6  # malloc.h of glibc
FILL_WITH_ONES = 0x100
"""Value of M_PERTURB: not 0, which switches it off, and with a low byte whose complement, the filling, is 0xFF."""


def leaf_sizes(out: Any, drawn: Callable[[Any], bool] = lambda tensor: False) -> list[int]:
    """Return the bytes of memory behind each array, tensor and buffer in a plain result, each size once, ascending.

    Left out are tensors of which `drawn` says that they lie in memory that was there before the kernel ran.
    """
    sizes = set()
    for _, leaf in leaves(out, ()):
        if is_tensor(leaf):
            if not drawn(leaf):
                sizes.add(leaf.untyped_storage().nbytes())
        elif is_array(leaf):
            sizes.add(leaf.nbytes)
        elif type(leaf) in (bytes, bytearray):
            sizes.add(len(leaf))
    return sorted(sizes - {0})


@contextlib.contextmanager
def poisoned_memory(sizes: Sequence[int], device: str) -> Iterator[None]:
    """Fill memory that is allocated and not written with ones meanwhile: NaN in every floating-point type.

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
    held = []
    for size in sizes:
        for number in range(_blocks(size)):
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device=device))
            except torch.cuda.OutOfMemoryError:
                if number == 0:
                    raise  # nor is there room for the result
                break
    for block in held:
        block.fill_(0xFF)
    torch.cuda.synchronize()


def _cut_from(size: int) -> int:
    """Return the bytes that glibc asks itself for, to cut an aligned block of `size` bytes from them.

    So does `_int_memalign` in its malloc.c. A freed chunk of just that size, which `M_PERTURB` filled with zeros, goes
    through the tcache and comes back as it is, unless the tcache is full.
    """
    chunk = max(32, (size + 8 + 15) & ~15)
    return chunk + ALIGNMENT + 32


def _poison_freed(libc: ctypes.CDLL, sizes: Sequence[int]) -> None:
    libc.malloc.restype = libc.aligned_alloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    held = []
    for size in sizes:
        for _ in range(_blocks(size)):
            held += [(libc.malloc(size), size), (libc.aligned_alloc(ALIGNMENT, size), size)]
            if size <= SMALL:
                held.append((libc.malloc(_cut_from(size)), _cut_from(size)))
    for address, size in held:
        if address:
            ctypes.memset(address, 0xFF, size)
    for address, _ in held:
        libc.free(address)
    # A large request joins what is free, before the kernel's own may: such chunks would go through the tcache too.
    libc.free(libc.malloc(2**11))
