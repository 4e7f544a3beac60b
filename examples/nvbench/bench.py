"""An NVBench program: RMSNorm of bf16 hidden states, at the rows of a decode batch and of a prefill."""

import sys

import torch
from cuda import bench
from rmsnorm import rmsnorm
from torch.nn.functional import rms_norm

HIDDEN = 4096


def rmsnorm_bf16(state):
    rows = state.get_int64("rows")
    x = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
    weight = torch.rand(HIDDEN, dtype=torch.bfloat16, device="cuda") + 0.5
    out = torch.empty_like(x)
    # NVBench checks no results: an exception here makes the case `failed`. It compiles the kernel too, which must not
    # happen while NVBench holds the GPU.
    rmsnorm(x, weight, out)
    torch.testing.assert_close(out.float(), rms_norm(x.float(), (HIDDEN,), weight.float(), 1e-5), rtol=2**-7, atol=0)
    torch.cuda.synchronize()
    state.add_element_count(rows)
    state.add_global_memory_reads(x.nbytes + weight.nbytes)
    state.add_global_memory_writes(out.nbytes)

    def launcher(launch):
        # Triton launches on torch's current stream, NVBench times its own.
        with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof())):
            rmsnorm(x, weight, out)

    state.exec(launcher)


if __name__ == "__main__":
    bench.register(rmsnorm_bf16).add_int64_axis("rows", [1024, 8192])
    bench.run_all_benchmarks(sys.argv)
