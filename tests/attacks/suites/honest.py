"""The control: the same kernel as in the attacks, computed each time."""

import torch

import perfci


@perfci.kernel(devices=["cpu", "cuda"])
def honest(bench):
    x, out = bench.randn(256, 256), bench.empty(256, 256)
    bench.reference(lambda: x.double().exp(), rtol=1e-5, atol=1e-6)
    return lambda: torch.exp(x, out=out)
