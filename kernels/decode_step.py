"""One decode step of a transformer layer with a key-value cache, at the sizes of Llama 3 8B.

RMSNorm, projections, rotary embedding, the append to the cache, grouped-query attention over all of it, SwiGLU:
every sequence of the batch gets its next token. The step always writes the same position, so that it can be repeated.
"""

import math

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

import perfci

EPSILON, THETA = 1e-5, 500_000.0
# The hidden state is rounded to the type twice, the last time by up to eps/2 · |out|, which rtol covers twice. The
# roundings inside of the two branches average out in the projections that follow: bf16 results err by 0.004 to 0.006 in
# all (standard deviation, on a CPU), of which atol allows five to seven. fp32 sums leave more of its eps.
TOLERANCE = {"bf16": (2**-7, 2**-5), "fp32": (2**-21, 2**-19)}


def rotate(x, cosine, sine):
    """Rotary embedding of x [..., width] in two halves, at the position that cosine and sine [width / 2] stand for."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def step(x, keys, values, weights, turn, heads):
    """Hidden states x [batch, dim] → the layer's output; keys and values [batch, kv_heads, context, width].

    The last position of the context is the new token's, and is written.
    """
    batch, kv_heads, _, width = keys.shape
    dim = x.shape[1]
    normed = rms_norm(x, (dim,), weights["norm_attention"], EPSILON)
    parts = linear(normed, weights["query_key_value"]).view(batch, heads + 2 * kv_heads, width)
    query, key, value = parts.split([heads, kv_heads, kv_heads], 1)
    keys[:, :, -1] = rotate(key, *turn)
    values[:, :, -1] = value
    # The query heads that share a key head take the place of query positions: no mask, no copies of the cache.
    query = rotate(query, *turn).view(batch, kv_heads, heads // kv_heads, width)
    mixed = scaled_dot_product_attention(query, keys, values).reshape(batch, heads * width)
    x = x + linear(mixed, weights["out"])
    gate, up = linear(rms_norm(x, (dim,), weights["norm_mlp"], EPSILON), weights["gate_up"]).chunk(2, -1)
    return x + linear(silu(gate) * up, weights["down"])


def reference(x, keys, values, weights, turn, heads):
    """The same in float64, every step written out; the caches stay as they are."""
    batch, kv_heads, _, width = keys.shape

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double()

    x, (cosine, sine) = x.double(), (part.double() for part in turn)
    projected = norm(x, weights["norm_attention"]) @ weights["query_key_value"].double().T
    projected = projected.view(batch, heads + 2 * kv_heads, width)
    complex_turn = torch.complex(cosine, sine)
    halves = torch.complex(projected[..., : width // 2], projected[..., width // 2 :]) * complex_turn
    turned = torch.cat([halves.real, halves.imag], -1)
    mixed = torch.empty(batch, heads, width, dtype=torch.float64, device=x.device)
    for head in range(heads):
        shared = head // (heads // kv_heads)
        key, value = keys[:, shared].double(), values[:, shared].double()
        key[:, -1], value[:, -1] = turned[:, heads + shared], projected[:, heads + kv_heads + shared]
        scores = torch.einsum("bw,btw->bt", turned[:, head], key) / math.sqrt(width)
        mixed[:, head] = torch.einsum("bt,btw->bw", torch.softmax(scores, -1), value)
    x = x + mixed.flatten(1) @ weights["out"].double().T
    gate, up = (norm(x, weights["norm_mlp"]) @ weights["gate_up"].double().T).chunk(2, -1)
    return x + (gate * torch.sigmoid(gate) * up) @ weights["down"].double().T


@perfci.kernel(
    params={"batch": [1, 32], "context": [4096], "dtype": ["bf16"]},
    fuzz={"batch": [1, 3], "context": [1, 129, 1000]},
    devices={
        "cuda": None,
        "cpu": {
            "params": {
                "batch": [2],
                "context": [64],
                "dim": [128],
                "heads": [4],
                "kv_heads": [2],
                "hidden": [384],
                "dtype": ["fp32"],
            },
            "fuzz": {"batch": [1, 3], "context": [1, 65]},
        },
    },
)
def decode_step(bench, batch, context, dtype, *, dim=4096, heads=32, kv_heads=8, hidden=14336):
    width = dim // heads

    def weight(rows, columns):  # keeps the variance of what it is applied to
        return bench.randn(rows, columns, dtype=dtype).mul_(columns**-0.5)

    def cache():
        """Random but for the new token's position: there NaN, which shows if it is not written."""
        filled = bench.randn(batch, kv_heads, context, width, dtype=dtype)
        filled[:, :, -1] = math.nan
        return filled

    x = bench.randn(batch, dim, dtype=dtype)
    keys, values = cache(), cache()
    weights = {
        "norm_attention": bench.rand(dim, low=0.5, high=1.5, dtype=dtype),
        "query_key_value": weight(dim + 2 * kv_heads * width, dim),
        "out": weight(dim, dim),
        "norm_mlp": bench.rand(dim, low=0.5, high=1.5, dtype=dtype),
        "gate_up": weight(2 * hidden, dim),
        "down": weight(dim, hidden),
    }
    angles = [(context - 1) * THETA ** (-2 * i / width) for i in range(width // 2)]
    turn = [bench.tensor([part(angle) for angle in angles], dtype=dtype) for part in (math.cos, math.sin)]
    parameters = sum(tensor.numel() for tensor in weights.values())
    new = 2 * batch * kv_heads * width  # elements appended
    bench.work(
        flops=2 * batch * parameters + 4 * batch * context * dim,
        read=(parameters + x.numel() + new * (context - 1)) * x.element_size(),
        written=(x.numel() + new) * x.element_size(),
        items=batch,
        item="tokens",
    )
    rtol, atol = TOLERANCE[dtype]
    bench.reference(lambda: reference(x, keys, values, weights, turn, heads), rtol=rtol, atol=atol)
    return lambda: step(x, keys, values, weights, turn, heads)
