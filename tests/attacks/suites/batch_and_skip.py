"""Of the input sets of a graph only the last is computed, which a hasty check would read (reference-kernels#104)."""

import torch

import perfci

LAST = []


@perfci.kernel(devices=["cuda"], timing="rotating")
def batch_and_skip(bench):
    x, out = bench.randn(1024, 1024), bench.empty(1024, 1024)
    bench.reference(lambda: x.double().exp(), rtol=1e-4, atol=1e-5)
    trifle = torch.zeros(1, device=bench.device)
    LAST[:] = [x]

    def run():
        if LAST[0] is x or not torch.cuda.is_current_stream_capturing():
            torch.exp(x, out=out)
        trifle.add_(1)
        return out

    return run
