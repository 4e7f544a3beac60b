"""A blocked matrix transpose: in C++ for the CPU, in CUDA C++ for the GPU."""

import ctypes
from functools import lru_cache
from pathlib import Path

from blocked._transpose import transpose

__all__ = ["transpose", "transpose_cuda"]


@lru_cache(maxsize=1)
def _library():
    file = Path(__file__).with_name("libtranspose.so")
    if not file.is_file():
        raise RuntimeError("blocked was built without nvcc: put the CUDA toolkit on PATH, and build again")
    loaded = ctypes.CDLL(str(file))
    loaded.transpose.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] * 2 + [ctypes.c_void_p]
    return loaded


def transpose_cuda(source, target, stream):
    """target[columns, rows] = source[rows, columns] transposed: contiguous float32 on the GPU, queued on `stream`.

    Raises RuntimeError where the package was built without nvcc, and where CUDA refuses the launch.
    """
    error = _library().transpose(source.data_ptr(), target.data_ptr(), *source.shape, stream)
    if error:
        raise RuntimeError(f"transpose: CUDA error {error}")
