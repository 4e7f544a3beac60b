"""Event pairs tell a tenth of the time (gpu-mode/reference-kernels#162)."""

import torch

import perfci

true = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: true(self, end) / 10


@perfci.kernel(devices=["cuda"])
def patched_event(bench):
    x = bench.randn(4096, 4096)
    bench.reference(lambda: x.double().exp(), rtol=1e-4, atol=1e-5)
    return lambda: x.exp()
