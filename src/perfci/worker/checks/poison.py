"""Poisons memory, to show what a kernel returns and has not written."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .compare import leaves
from .plain import is_array, is_tensor

BLOCKS, BLOCK_BYTES = 8, 2**28
"""Freed blocks of each size: more than the seven in a bin of glibc's tcache, and some that a kernel may take before its
output. Only two where more would exceed these bytes."""
ALIGNMENT = 64
"""Bytes to which torch aligns memory on the CPU."""
SMALL = 2**20
"""Bytes up to which glibc may hand out cached memory, past M_PERTURB."""
M_PERTURB = -6  # malloc.h of glibc
FILL_WITH_ONES = 0x100
"""For M_PERTURB: 0 would switch it off; the filling is the complement of the low byte."""


def leaf_sizes(out: Any, drawn: Callable[[Any], bool] = lambda tensor: False) -> list[int]:
    """Return the bytes behind each array, tensor and buffer in a plain result, each size once, ascending.

    `drawn`: tells whether a tensor's memory was there before, to leave it out.
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
    """Fill memory allocated and not written with ones meanwhile: NaN in every floating-point type.

    On a GPU, or without glibc, only blocks of `sizes` bytes are filled; on macOS none.
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
    """Bytes from which glibc cuts an aligned block (`_int_memalign` in malloc.c).

    A freed chunk of that size, zeroed by `M_PERTURB`, comes back from the tcache unless that is full.
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
