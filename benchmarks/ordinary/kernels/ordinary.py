"""Cases as projects have them: they compile, differentiate, synchronise, use several streams and other libraries."""

import torch
import torch.nn.functional as F

import perfci

BF16, FP32 = torch.bfloat16, torch.float32


def mlp(x, up, down):
    return F.gelu(x @ up, approximate="tanh") @ down


@perfci.kernel(params={"tokens": [2048]}, devices=["cuda"])
def compiled_mlp(bench, tokens):
    x = bench.randn(tokens, 1024, dtype=BF16)
    up, down = bench.randn(1024, 4096, dtype=BF16), bench.randn(4096, 1024, dtype=BF16)
    bench.reference(lambda: mlp(x.double(), up.double() / 32, down.double() / 64).float(), rtol=5e-2, atol=5e-2)
    compiled = torch.compile(lambda x, up, down: mlp(x, up / 32, down / 64))
    return lambda: compiled(x, up, down)


def gradients(loss, *inputs):
    leaves = [one.detach().requires_grad_() for one in inputs]
    return torch.autograd.grad(loss(*leaves), leaves)


@perfci.kernel(devices=["cuda"])
def attention_backward(bench):
    q, k, v = (bench.randn(4, 16, 1024, 64, dtype=BF16) for _ in range(3))

    def loss(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).float().square().sum()

    bench.reference(
        lambda: [one.float() for one in gradients(loss, q.float(), k.float(), v.float())], rtol=0.1, atol=0.5
    )
    return lambda: [one.float() for one in gradients(loss, q, k, v)]


@perfci.kernel(devices=["cuda"])
def norm_backward(bench):
    x, weight = bench.randn(4096, 4096), bench.randn(4096)

    def loss(x, weight):
        return F.layer_norm(x, (4096,), weight).square().sum()

    bench.reference(lambda: [one.float() for one in gradients(loss, x.double(), weight.double())], rtol=1e-3, atol=1e-2)
    return lambda: gradients(loss, x, weight)


@perfci.kernel(devices=["cuda"])
def fused_adamw(bench):
    given = [bench.randn(2048, 2048) for _ in range(8)]
    slopes = [bench.randn(2048, 2048) for _ in range(8)]

    def steps(fused):
        weights = [one.clone().requires_grad_() for one in given]
        for weight, slope in zip(weights, slopes, strict=True):
            weight.grad = slope
        torch.optim.AdamW(weights, lr=1e-3, fused=fused).step()
        return [one.detach() for one in weights]

    bench.reference(lambda: steps(False), rtol=1e-4, atol=1e-5)
    return lambda: steps(True)


@perfci.kernel(params={"n": [1 << 20, 1 << 24]}, devices=["cuda"])
def sort(bench, n):
    x = bench.randn(n)
    bench.reference(lambda: x.double().sort().values.float())
    return lambda: x.sort().values


@perfci.kernel(devices=["cuda"])
def top_tokens(bench):
    logits = bench.randn(256, 128256)
    bench.reference(lambda: logits.double().topk(50).values.float())
    return lambda: logits.topk(50).values


@perfci.kernel(devices=["cuda"])
def nonzero(bench):
    mask = bench.randn(1 << 24) > 2
    bench.reference(lambda: torch.arange(1 << 24, device=mask.device)[mask][:, None])
    return mask.nonzero  # how much it finds the CPU must know: it waits for the GPU


@perfci.kernel(devices=["cuda"])
def two_streams(bench):
    a, b = bench.randn(2048, 2048, dtype=BF16), bench.randn(2048, 2048, dtype=BF16)
    bench.reference(lambda: ((a.double() @ b.double()).float(), (b.double() @ a.double()).float()), rtol=5e-2, atol=1.0)
    side = torch.cuda.Stream()

    def run():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            second = (b @ a).float()
        first = (a @ b).float()
        main.wait_stream(side)
        second.record_stream(main)
        return first, second

    return run


@perfci.kernel(devices=["cuda"])
def fp8_matmul(bench):
    a = bench.randn(4096, 4096).to(torch.float8_e4m3fn)
    b = bench.randn(4096, 4096).to(torch.float8_e4m3fn)
    one = bench.full((), 1.0, dtype=FP32)
    bench.reference(lambda: a.float() @ b.float().t(), rtol=5e-2, atol=4.0)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=BF16).float()


@perfci.kernel(devices=["cuda"])
def embedding_backward(bench):
    table, tokens = bench.randn(32000, 1024), bench.randint(0, 32000, 8, 2048)
    slope = bench.randn(8, 2048, 1024)

    def run(kind):
        return gradients(lambda table: (F.embedding(tokens, table) * slope.to(kind)).sum(), table.to(kind))[0].float()

    bench.reference(lambda: run(torch.float64), rtol=1e-4, atol=1e-4)
    return lambda: run(FP32)


@perfci.kernel(devices=["cuda"])
def convolution(bench):
    x = bench.randn(32, 128, 56, 56, dtype=BF16).to(memory_format=torch.channels_last)
    weight = (bench.randn(128, 128, 3, 3, dtype=BF16) / 32).to(memory_format=torch.channels_last)
    bench.reference(lambda: F.conv2d(x.float(), weight.float(), padding=1), rtol=5e-2, atol=0.2)
    return lambda: F.conv2d(x, weight, padding=1).float()


@perfci.kernel(devices=["cuda"])
def histogram(bench):
    where, x = bench.randint(0, 4096, 1 << 22), bench.randn(1 << 22)
    bench.reference(
        lambda: torch.zeros(4096, device=x.device, dtype=torch.float64).index_add_(0, where, x.double()).float(),
        rtol=1e-3,
        atol=1e-2,
    )
    return lambda: torch.zeros(4096, device=x.device).index_add_(0, where, x)
