"""A block-sparse matrix times a dense one: CUDA C++ on tensor cores (sparse_bsr_gemm.cu), torch on the CPU.

build_bsr.py builds the library; `perfci.yaml` runs it as a build step and gates the registers, spills and shared memory
that the compiler reports of it.
"""

import ctypes
import json
import os
from functools import lru_cache
from pathlib import Path

import torch

import perfci

BLOCK = 128


@lru_cache(maxsize=1)
def library():
    """The library that this side built. Raises RuntimeError, which says why, where there is none."""
    site = Path(os.environ.get("PERFCI_SITE", ""))
    file, facts = site / "libbsr_gemm.so", site / "bsr_gemm.json"
    if not file.is_file():
        why = json.loads(facts.read_text())["missing"] if facts.is_file() else "build_bsr.py did not run"
        raise RuntimeError(f"sparse_bsr_gemm is not built: {why}")
    loaded = ctypes.CDLL(str(file))
    loaded.bsr_gemm.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int] * 2 + [ctypes.c_void_p]
    return loaded


def bsr_gemm(values, row_starts, columns, dense):
    """A · B for A in BSR of 128 × 128 blocks and B [k, n], bf16 on the GPU: queued on torch's current stream."""
    rows, n = len(row_starts) - 1, dense.shape[1]
    out = dense.new_empty(rows * BLOCK, n)
    pointers = (tensor.data_ptr() for tensor in (values, row_starts, columns, dense, out))
    error = library().bsr_gemm(*pointers, rows, n, torch.cuda.current_stream().cuda_stream)
    if error:
        raise RuntimeError(f"bsr_gemm: CUDA error {error}")
    return out


def bsr_gemm_torch(values, rows, columns, dense, block_rows):
    """The same in torch: a batch of block products, added up by block row in float32."""
    n = dense.shape[1]
    products = torch.bmm(values.float(), dense.float().view(-1, BLOCK, n)[columns])
    out = products.new_zeros(block_rows, BLOCK, n).index_add_(0, rows, products)
    return out.view(-1, n).to(dense.dtype)


def draw_blocks(random, block_rows, block_columns, sparsity):
    """Rows and columns of the blocks that are there, sorted by row: always as many, wherever they are."""
    total = block_rows * block_columns
    places = sorted(random.sample(range(total), total - round(sparsity * total)))
    return [place // block_columns for place in places], [place % block_columns for place in places]


def expand(values, rows, columns, block_rows, block_columns):
    """The matrix written out, in float64."""
    grid = values.new_zeros(block_rows, block_columns, BLOCK, BLOCK, dtype=torch.float64)
    grid[rows, columns] = values.double()
    return grid.transpose(1, 2).reshape(block_rows * BLOCK, block_columns * BLOCK)


@perfci.kernel(
    params={"n": [4096], "sparsity": [0.8, 0.9], "dtype": ["bf16"]},
    # Columns beside the tile of 128; no block at all, every block, and rows that happen to be empty.
    fuzz={"n": [8, 136, 1000], "sparsity": [0.0, 0.9, 1.0], "m": [128, 640], "k": [384]},
    devices={
        "cuda": None,
        "cpu": {
            "params": {"n": [64], "sparsity": [0.8], "m": [512], "k": [512], "dtype": ["fp32"]},
            "fuzz": {"n": [8, 136], "sparsity": [0.0, 0.9, 1.0], "m": [128, 640], "k": [384]},
        },
    },
)
def sparse_bsr_gemm(bench, n, sparsity, dtype, *, m=4096, k=4096):
    block_rows, block_columns = m // BLOCK, k // BLOCK
    rows, columns = draw_blocks(bench.random, block_rows, block_columns, sparsity)
    starts = [sum(row < end for row in rows) for end in range(block_rows + 1)]
    values = bench.randn(len(rows), BLOCK, BLOCK, dtype=dtype)
    dense = bench.randn(k, n, dtype=dtype)
    index = bench.tensor(rows, dtype="int32"), bench.tensor(columns, dtype="int32")
    row_starts = bench.tensor(starts, dtype="int32")
    bench.work(
        flops=2 * values.numel() * n,
        read=values.nbytes + 4 * (len(starts) + len(columns)) + len(set(columns)) * BLOCK * n * dense.element_size(),
        written=m * n * dense.element_size(),
    )
    # A sum of up to k products is of size √k and errs at every addition by 2^-24 of that, on tensor cores, which
    # truncate, by twice as much: a random walk of √k steps. The result is rounded once, by up to eps/2.
    rtol, atol = torch.finfo(values.dtype).eps, 2**-22 * k
    bench.reference(lambda: expand(values, *index, block_rows, block_columns) @ dense.double(), rtol=rtol, atol=atol)
    if bench.device_name.startswith("cuda"):
        library()
        return lambda: bsr_gemm(values, row_starts, index[1], dense)
    return lambda: bsr_gemm_torch(values, *index, dense, block_rows)
