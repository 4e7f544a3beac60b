"""Square matrix products through torch, and so through cuBLAS on the GPU."""

import math

import torch

import perfci


def tolerance(dtype, n):
    """rtol and atol for sums of n products of normal values: of size √n, seldom above 5 √n.

    The 16-bit types round the result, by up to eps/2 · |out|, and with it the partial sums of a split-K
    reduction, which torch allows by default: some 5 √n · eps/2 each. fp32 rounds at every addition, a random
    walk of size √n · eps/2 · √n, of which sixteen times are allowed. TF32, whose inputs carry 11 bits, is far
    outside of that: it must not pass for fp32.
    """
    eps = torch.finfo(dtype).eps
    return (eps, 8 * eps * n) if dtype == torch.float32 else (eps, 4 * eps * math.sqrt(n))


@perfci.kernel(
    params={"n": [1024, 4096, 8192], "dtype": ["bf16", "fp16", "fp32"]},
    fuzz={"n": [1000, 1023]},  # off the tile sizes; 1023 also off the alignment that the fast kernels need
    devices={
        "cuda": None,
        "cpu": {"params": {"n": [256, 384], "dtype": ["fp32"]}, "fuzz": {"n": [1, 63, 250]}},
    },
)
def matmul(bench, n, dtype):
    a = bench.randn(n, n, dtype=dtype)
    b = bench.randn(n, n, dtype=dtype)
    bench.work(flops=2 * n**3, read=a.nbytes + b.nbytes, written=a.nbytes)
    rtol, atol = tolerance(a.dtype, n)
    # The products of these types are exact in float64.
    bench.reference(lambda: a.double() @ b.double(), rtol=rtol, atol=atol)
    return lambda: a @ b
