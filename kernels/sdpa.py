"""Scaled dot-product attention, without mask, as torch dispatches it."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

import perfci

# The inputs are exact. Fused attention rounds the probabilities p and the output to the type, each by at most
# eps/2: an error of up to eps/2 · Σ p|v| + eps/2 · |out|, where Σ p|v| is near E|v| = 0.8 for normal values
# and seldom above 1.5. With fp32 the sums over `dim` and `seq` cost more than that, hence the factor.
TOLERANCE = {"fp16": 2**-10, "bf16": 2**-7, "fp32": 64 * 2**-23}


def attention(q, k, v):
    """softmax(q kᵀ / √dim) v in float64, written out, one batch entry after the other to bound the memory."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for entry in range(len(q)):
        scores = q[entry].double() @ k[entry].double().transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        out[entry] = weights @ v[entry].double() / weights.sum(-1, keepdim=True)
    return out


@perfci.kernel(
    params={"seq": [128, 256, 512, 1024, 2048]},
    fuzz={"seq": [448, 512, 640], "batch": [16, 32, 48], "heads": [4, 8, 16]},
    devices={
        "cuda": None,
        "cpu": {
            "params": {"seq": [128, 256], "batch": [2], "heads": [4], "dtype": ["fp32"]},
            "fuzz": {"seq": [1, 65, 200], "batch": [1, 3], "heads": [1, 5]},
        },
    },
)
def sdpa(bench, seq, *, batch=32, heads=8, dim=64, dtype="fp16"):
    q, k, v = (bench.randn(batch, heads, seq, dim, dtype=dtype) for _ in range(3))
    bench.work(
        flops=4 * batch * heads * seq * seq * dim,  # q kᵀ and p v, a multiplication and an addition each
        read=q.nbytes + k.nbytes + v.nbytes,
        written=q.nbytes,
        items=batch * seq,
        item="tokens",
    )
    bench.reference(lambda: attention(q, k, v), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    return lambda: scaled_dot_product_attention(q, k, v)
