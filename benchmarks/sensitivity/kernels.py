"""Six kernels from 1.6 µs to 2 ms, each of which can be made slower by more work of its own: a suite file.

Beside this file lies `amounts.json`, kernel → slow-down → amount of extra work, which is all that base and head differ
by. The amount is an argument at run time, so that base and head run the same machine code.

| kernel | bound by | extra work |
|---|---|---|
| `add64k` | latency | dependent multiply-adds in every program |
| `gemm1024` | tensor cores, one wave of programs | the same |
| `resample` | memory, gathers | further rows |
| `attention` | tensor cores, exponentials | dependent multiply-adds in every program |
| `copy512m` | memory | further elements |
| `gemm8192` | power | further steps of the main loop, over the tiles |

No result depends on the amount: multiply-adds are by one and zero, further rows lie behind those that are returned,
the sums of further steps are cleared. The CPU forms are small and there to try the benchmark out.
"""

# ruff: noqa: ANN001, ANN201, ANN202, D103
import json
import math
from pathlib import Path

import torch

import perfci

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

AMOUNTS = json.loads(Path(__file__).with_name("amounts.json").read_text())
SLOW = ["0", "0.005", "0.01", "0.02", "0.05"]
CASES = {"slow": SLOW}
CPU_STEPS = 200
"""Repetitions of the CPU forms without extra work: one more makes them slower by 0.5 %."""
HEADROOM = 1 + 1 / 8
"""Buffers hold this many times what the kernels without extra work use."""

if triton is not None:

    @triton.jit
    def spin(one, zero, extra):
        """1, after `extra` dependent multiply-adds."""
        value = one
        for _ in range(extra):
            value = value * one + zero
        return value

    @triton.jit(do_not_specialize=["extra"])
    def add_kernel(x, y, out, one, zero, extra, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        total = tl.load(x + at) + tl.load(y + at)
        for _ in range(extra):  # upon what was loaded: it cannot hide behind the loads
            total = total * one + zero
        tl.store(out + at, total)

    @triton.jit(do_not_specialize=["n", "extra"])
    def copy_kernel(x, out, n, extra, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n + extra
        tl.store(out + at, tl.load(x + at, mask=inside), mask=inside)

    @triton.jit(do_not_specialize=["rows", "extra"])
    def resample_kernel(values, index, weight, out, rows, extra, ROWS: tl.constexpr, DIM: tl.constexpr):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = row < rows + extra
        left = tl.load(index + row, mask=inside, other=0)
        share = tl.load(weight + row, mask=inside, other=0.0)[:, None]
        column = tl.arange(0, DIM)[None, :]
        begin = tl.load(values + left[:, None] * DIM + column).to(tl.float32)
        end = tl.load(values + (left[:, None] + 1) * DIM + column).to(tl.float32)
        mixed = begin + share * (end - begin)
        tl.store(out + row[:, None] * DIM + column, mixed.to(tl.bfloat16), mask=inside[:, None])

    @triton.jit(do_not_specialize=["steps", "spins"])
    def gemm_kernel(
        a,
        b,
        c,
        one,
        zero,
        steps,
        spins,
        N: tl.constexpr,
        M_BLOCK: tl.constexpr,
        N_BLOCK: tl.constexpr,
        K_BLOCK: tl.constexpr,
        GROUP: tl.constexpr,
    ):
        """c = a @ b, all N × N. `steps`: further steps in all, shared out over the tiles; `spins`: in every tile."""
        down: tl.constexpr = N // M_BLOCK
        across: tl.constexpr = N // N_BLOCK
        tiles: tl.constexpr = down * across
        tile = tl.program_id(0)
        group = tile // (GROUP * across)
        row = group * GROUP + tile % GROUP
        column = (tile % (GROUP * across)) // GROUP
        m = row * M_BLOCK + tl.arange(0, M_BLOCK)
        n = column * N_BLOCK + tl.arange(0, N_BLOCK)
        k = tl.arange(0, K_BLOCK)
        left = a + m[:, None] * N + k[None, :]
        right = b + k[:, None] * N + n[None, :]
        total = tl.zeros((M_BLOCK, N_BLOCK), dtype=tl.float32)
        mine = steps // tiles + (tile % tiles < steps % tiles).to(tl.int32)
        for step in range(mine):
            total = tl.dot(tl.load(left + step * K_BLOCK), tl.load(right + step * K_BLOCK * N), total)
        total = total * zero
        for _ in range(N // K_BLOCK):
            total = tl.dot(tl.load(left), tl.load(right), total)
            left += K_BLOCK
            right += K_BLOCK * N
        total = total * spin(one, zero, spins)
        tl.store(c + m[:, None] * N + n[None, :], total.to(tl.bfloat16))

    @triton.jit(do_not_specialize=["extra"])
    def attention_kernel(
        q,
        k,
        v,
        out,
        scale,
        one,
        zero,
        extra,
        SEQ: tl.constexpr,
        DIM: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):
        """Softmax attention without mask, one head and ROWS queries a program; `scale` in powers of two."""
        head = tl.program_id(1) * SEQ * DIM
        dim = tl.arange(0, DIM)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        queries = tl.load(q + head + row[:, None] * DIM + dim[None, :])
        highest = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
        weights = tl.zeros((ROWS,), dtype=tl.float32)
        total = tl.zeros((ROWS, DIM), dtype=tl.float32)
        for start in range(0, SEQ, COLUMNS):
            keys = tl.load(k + head + (start + column)[None, :] * DIM + dim[:, None])
            scores = tl.dot(queries, keys) * scale
            top = tl.maximum(highest, tl.max(scores, 1))
            shares = tl.exp2(scores - top[:, None])
            fade = tl.exp2(highest - top)
            weights = weights * fade + tl.sum(shares, 1)
            values = tl.load(v + head + (start + column)[:, None] * DIM + dim[None, :])
            total = tl.dot(shares.to(tl.float16), values, total * fade[:, None])
            highest = top
        total = total / weights[:, None] * spin(one, zero, extra)
        tl.store(out + head + row[:, None] * DIM + dim[None, :], total.to(tl.float16))


def amount(kernel, slow, extra):
    """Return the source of the amount of extra work: `extra`, a function, or what amounts.json holds."""
    if extra is not None:
        return extra
    own = int(AMOUNTS.get(kernel, {}).get(slow, 0))
    return lambda: own


def repeated(fn, get, steps=CPU_STEPS):
    """The CPU form: `steps` times the same, and further times."""

    def run():
        out = None
        for _ in range(steps + get()):
            out = fn()
        return out

    return run


@perfci.kernel(params=CASES)
def add64k(bench, slow, *, extra=None):
    get = amount("add64k", slow, extra)
    n = 65536
    x, y, out = bench.randn(n), bench.randn(n), bench.empty(n)
    bench.work(read=x.nbytes + y.nbytes, written=out.nbytes, flops=n)
    bench.reference(lambda: x + y)
    if bench.device.type == "cpu":
        return repeated(lambda: torch.add(x, y, out=out), get)

    def run():
        add_kernel[(n // 256,)](x, y, out, 1.0, 0.0, get(), BLOCK=256, num_warps=8)
        return out

    return run


@perfci.kernel(params=CASES)
def gemm1024(bench, slow, *, extra=None):
    return gemm(bench, amount("gemm1024", slow, extra), 1024, spinning=True, M_BLOCK=64, N_BLOCK=128, num_warps=4)


@perfci.kernel(params=CASES)
def gemm8192(bench, slow, *, extra=None):
    return gemm(bench, amount("gemm8192", slow, extra), 8192, spinning=False, M_BLOCK=128, N_BLOCK=256, num_warps=8)


def gemm(bench, get, n, *, spinning, M_BLOCK, N_BLOCK, num_warps):
    small = bench.device.type == "cpu"
    n = 64 if small else n
    a, b = bench.randn(n, n, dtype="bf16"), bench.randn(n, n, dtype="bf16")
    out = bench.empty(n, n, dtype="bf16")
    bench.work(flops=2 * n**3, read=a.nbytes + b.nbytes, written=out.nbytes)
    eps = torch.finfo(torch.bfloat16).eps  # of the result; the products are summed in float32
    bench.reference(lambda: a.double() @ b.double(), rtol=eps, atol=4 * eps * math.sqrt(n))
    if small:
        return repeated(lambda: torch.matmul(a, b, out=out), get)
    grid = ((n // M_BLOCK) * (n // N_BLOCK),)

    def run():
        steps, spins = (0, get()) if spinning else (get(), 0)
        gemm_kernel[grid](
            a,
            b,
            out,
            1.0,
            0.0,
            steps,
            spins,
            N=n,
            M_BLOCK=M_BLOCK,
            N_BLOCK=N_BLOCK,
            K_BLOCK=64,
            GROUP=8,
            num_warps=num_warps,
            num_stages=3,
        )
        return out

    return run


@perfci.kernel(params=CASES)
def resample(bench, slow, *, extra=None):
    get = amount("resample", slow, extra)
    small = bench.device.type == "cpu"
    known, rows, dim = (500, 64, 64) if small else (256 * 500, 65536, 256)
    room = int(rows * HEADROOM)
    values = bench.randn(known, dim, dtype="bf16")
    index = bench.randint(0, known - 1, room, dtype="int32")
    weight = bench.rand(room)
    out = bench.empty(room, dim, dtype="bf16")
    # At least one row of each couple is read from memory; the other may be that of a neighbour.
    bench.work(read=rows * (2 * dim + 8), written=2 * rows * dim, flops=3 * rows * dim, items=rows, item="rows")

    def mixed(wide):
        left = index[:rows].long()
        begin, end = values[left].to(wide), values[left + 1].to(wide)
        return begin + weight[:rows, None].to(wide) * (end - begin)

    # Rounded to bf16 once; the mixing in float32 is a thousand times finer.
    bench.reference(lambda: mixed(torch.float64), rtol=2**-7, atol=2**-8)
    if small:
        return repeated(lambda: out[:rows].copy_(mixed(torch.float32)), get)

    def run():
        further = min(get(), room - rows)
        grid = (triton.cdiv(rows + further, 16),)
        resample_kernel[grid](values, index, weight, out, rows, further, ROWS=16, DIM=dim, num_warps=4)
        return out[:rows]

    return run


@perfci.kernel(params=CASES)
def attention(bench, slow, *, extra=None):
    get = amount("attention", slow, extra)
    small = bench.device.type == "cpu"
    heads, seq, dim = (2, 64, 16) if small else (256, 512, 64)
    q, k, v = (bench.randn(heads, seq, dim, dtype="fp16") for _ in range(3))
    out = bench.empty(heads, seq, dim, dtype="fp16")
    bench.work(flops=4 * heads * seq * seq * dim, read=3 * q.nbytes, written=out.nbytes)
    scale = 1 / math.sqrt(dim)

    def reference():
        scores = q.double() @ k.double().transpose(-1, -2) * scale
        return torch.softmax(scores, -1) @ v.double()

    # Weights and result are rounded to fp16.
    bench.reference(reference, rtol=2**-9, atol=2**-9)
    if small:
        return repeated(
            lambda: out.copy_(torch.softmax(q.float() @ k.float().transpose(-1, -2) * scale, -1) @ v.float()), get
        )

    def run():
        attention_kernel[(seq // 128, heads)](
            q,
            k,
            v,
            out,
            scale * math.log2(math.e),
            1.0,
            0.0,
            get(),
            SEQ=seq,
            DIM=dim,
            ROWS=128,
            COLUMNS=64,
            num_warps=4,
            num_stages=3,
        )
        return out

    return run


@perfci.kernel(params=CASES)
def copy512m(bench, slow, *, extra=None):
    get = amount("copy512m", slow, extra)
    small = bench.device.type == "cpu"
    n = 2**14 if small else 2**27
    room = int(n * HEADROOM)
    x, out = bench.randn(room), bench.empty(room)
    bench.work(read=4 * n, written=4 * n)
    bench.reference(lambda: x[:n])
    if small:
        return repeated(lambda: out[:n].copy_(x[:n]), get)

    def run():
        further = min(get(), room - n)
        copy_kernel[(triton.cdiv(n + further, 4096),)](x, out, n, further, BLOCK=4096, num_warps=8)
        return out[:n]

    return run
