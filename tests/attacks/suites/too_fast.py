"""More work is declared than is done: the rates seem splendid (beyond the speed of light: gpu-mode/reference-kernels#159)."""

import torch

import perfci


@perfci.kernel(devices=["cpu", "cuda"])
def too_fast(bench):
    x, out = bench.randn(256, 256), bench.empty(256, 256)
    bench.work(flops=1e14)
    bench.reference(lambda: x.double().exp(), rtol=1e-5, atol=1e-6)
    return lambda: torch.exp(x, out=out)
