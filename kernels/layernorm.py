"""Layer normalisation over the last dimension: torch's own, and one Triton program per row."""

import torch
from torch.nn.functional import layer_norm

import perfci

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # torch for the CPU comes without
    triton = None

EPSILON = 1e-5
# All is computed in float32 and rounded once: bf16 results by up to eps/2 · |out|. In float32 the mean, the centred
# value, 1/σ, the product and the sum with the bias are each rounded; values of up to 8 pass through them.
TOLERANCE = {"bf16": (2**-7, 2**-16), "fp32": (2**-22, 8 * 2**-23)}

if triton is not None:

    @triton.jit
    def normalise_row(x, weight, bias, out, hidden, epsilon, BLOCK: tl.constexpr):
        """One row, held in registers: read once, written once."""
        row = tl.program_id(0).to(tl.int64) * hidden
        column = tl.arange(0, BLOCK)
        inside = column < hidden
        value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(value, 0) / hidden
        centred = tl.where(inside, value - mean, 0.0)
        deviation = tl.sqrt(tl.sum(centred * centred, 0) / hidden + epsilon)
        result = centred * (1.0 / deviation) * scale + shift
        tl.store(out + row + column, result.to(out.dtype.element_ty), mask=inside)


def layer_norm_triton(x, weight, bias):
    """The same as layer_norm(x, x.shape[-1:], weight, bias) for contiguous x [rows, hidden] on the GPU."""
    rows, hidden = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(hidden)
    # 8 to 16 elements a thread: one or two loads of 16 bytes in flight.
    warps = 4 if block < 4096 else 8 if block < 16384 else 16
    normalise_row[(rows,)](x, weight, bias, out, hidden, EPSILON, BLOCK=block, num_warps=warps)
    return out


def declare(bench, shape, dtype, compute):
    """Inputs, work and reference of both forms; `compute(x, weight, bias)` is what is timed."""
    rows, hidden = map(int, shape.split("x"))
    x = bench.randn(rows, hidden, dtype=dtype)
    weight = bench.rand(hidden, low=0.5, high=1.5, dtype=dtype)
    bias = bench.randn(hidden, dtype=dtype)
    bench.work(
        flops=8 * x.numel(),  # mean, centring, square, sum, two products, sum with the bias
        read=x.nbytes + weight.nbytes + bias.nbytes,
        written=x.nbytes,
        items=rows,
        item="tokens",
    )
    rtol, atol = TOLERANCE[dtype]
    bench.reference(lambda: reference(x, weight, bias), rtol=rtol, atol=atol)
    return lambda: compute(x, weight, bias)


def reference(x, weight, bias):
    """From the definition, in float64."""
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double() + bias.double()


def torch_form(x, weight, bias):
    """torch's own."""
    return layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


SHAPES = {"shape": ["8192x4096", "512x1024"], "dtype": ["bf16"]}  # a prefill's hidden states; a kernel of microseconds
FUZZ = {"shape": ["1x1", "3x1000", "257x4097", "2x20000"]}
CPU = {"params": {"shape": ["64x768"], "dtype": ["fp32"]}, "fuzz": {"shape": ["1x1", "3x1000", "5x4097"]}}


@perfci.kernel(params=SHAPES, fuzz=FUZZ, devices={"cuda": None, "cpu": CPU})
def layernorm(bench, shape, dtype):
    return declare(bench, shape, dtype, torch_form)


@perfci.kernel(params=SHAPES, fuzz=FUZZ, devices=["cuda"])
def layernorm_triton(bench, shape, dtype):
    """Not on the CPU, which Triton does not compile for: torch's form is a case of its own."""
    return declare(bench, shape, dtype, layer_norm_triton)
