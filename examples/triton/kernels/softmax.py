"""The cases: softmax of bf16 rows, at a decode batch and at a prefill."""

import torch

import perfci


@perfci.kernel(params={"rows": [1024, 8192]}, fuzz={"rows": [1, 7], "columns": [1, 1000, 4097]}, devices=["cuda"])
def softmax_bf16(bench, rows, columns=4096):
    from fused import softmax  # here, so that the case can be listed where there is no Triton

    x = bench.randn(rows, columns, dtype=torch.bfloat16)
    bench.work(read=x.nbytes, written=x.nbytes, items=rows, item="rows")
    # Computed in float32 and rounded to bf16 once, by up to 2^-8 of the value.
    bench.reference(lambda: torch.softmax(x.double(), -1), rtol=2**-7, atol=1e-6)
    return lambda: softmax(x)
