"""Memory that is poisoned: where, how much and for how long."""

import ctypes
import random
import sys

import numpy as np
import pytest

from perfci.worker.checks.poison import leaf_sizes, poisoned_memory

torch = pytest.importorskip("torch")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is poisoned on Linux")
def test_memory_is_poisoned_for_the_check_alone():
    """The same process goes on to time other cases: filling every allocation would change their times."""
    with poisoned_memory([], "cpu"):
        assert bool(torch.isnan(torch.empty(2**25)).all())
    assert not bool(torch.isnan(torch.empty(2**25)).any())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is poisoned on Linux")
def test_memory_is_poisoned_whatever_was_freed_before():
    """glibc fills what is freed with zeros meanwhile, and hands some of it out as it is, one time in a hundred; behind
    the poison that is left one time in ten thousand, and never what a run before has written there."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    rng, held, clean = random.Random(1), [], []
    for _ in range(1000):
        n = rng.choice((4, 8, 16, 20, 24, 28))
        for _ in range(rng.randrange(40)):
            if held and rng.random() < 0.5:
                libc.free(held.pop(rng.randrange(len(held))))
            else:
                size = rng.choice((4 * n, 4 * n + 104, rng.randrange(1, 400)))
                held.append(libc.malloc(size))
                ctypes.memset(held[-1], 0x3F, size)
        with poisoned_memory([4 * n], "cpu"):
            held += [libc.malloc(rng.randrange(1, 4000)) for _ in range(rng.randrange(6))]
            out = torch.empty(n)
            clean += [] if torch.isnan(out).all() else [out.numpy().tobytes()]
    for address in held:
        libc.free(address)
    assert len(clean) <= 2
    assert not any(b"\x3f\x3f\x3f\x3f" in one for one in clean)


def test_sizes_of_results():
    x = torch.zeros(10, 10)
    assert leaf_sizes([x, {"a": np.zeros(3)}, x[0], b"abcd", None, 1.0, torch.zeros(0)]) == [4, 24, 400]
