"""A driver of Triton's."""

import torch
import triton.testing
from norms import PROVIDERS


@triton.testing.perf_report(
    triton.testing.Benchmark(
        ["n"], [256, 1024], "provider", ["mine", "torch"], ["Mine", "Torch"], "rms_norm", {"m": 64}
    )
)
def bench(m, n, provider):
    x, weight = torch.randn(m, n), torch.randn(n)
    return triton.testing.do_bench(lambda: PROVIDERS[provider](x, weight))


if __name__ == "__main__":
    bench.run(print_data=True)
