"""Linear interpolation of trajectories at given times: what a robot learner does to every sample."""

import torch

import perfci

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # torch for the CPU comes without
    triton = None

# The weight w and the result are rounded to the type, each by at most eps/2: an error of up to
# eps/2 · |v1 - v0| + eps/2 · |out|. Neighbours of normal values differ by less than 8.
TOLERANCE = {"bf16": (2**-7, 8 * 2**-8), "fp32": (2**-22, 8 * 2**-22)}


def resample(values, times, at):
    """Values [batch, source, dim], known at ascending `times` [batch, source], at `at` [batch, target]."""
    right = torch.searchsorted(times, at).clamp(1, times.shape[1] - 1)
    left = right - 1
    begin, end = times.gather(1, left), times.gather(1, right)
    weight = ((at - begin) / (end - begin)).to(values.dtype).unsqueeze(-1)
    wide = (-1, -1, values.shape[2])
    before = values.gather(1, left.unsqueeze(-1).expand(wide))
    after = values.gather(1, right.unsqueeze(-1).expand(wide))
    return torch.lerp(before, after, weight)


TARGETS = 8  # of one program: 128 programs for 4 trajectories of 256 targets, about one for each SM

if triton is not None:

    @triton.jit
    def resample_some(
        values, times, at, out, source, target, dim,
        TARGETS: tl.constexpr, SOURCE: tl.constexpr, DIM: tl.constexpr,
    ):  # fmt: skip
        """Some targets of one trajectory, whose times are held in registers: the search is one comparison with all.

        A binary search would be nine loads, each waiting for the one before.
        """
        batch = tl.program_id(1)
        each = tl.program_id(0) * TARGETS + tl.arange(0, TARGETS)
        wanted = each < target
        moment = tl.load(at + batch * target + each, mask=wanted, other=0.0)
        step = tl.arange(0, SOURCE)
        known = tl.load(times + batch * source + step, mask=step < source, other=float("inf"))
        right = tl.sum((known[None, :] < moment[:, None]).to(tl.int32), 1)
        right = tl.minimum(tl.maximum(right, 1), source - 1)
        begin = tl.load(times + batch * source + right - 1)
        end = tl.load(times + batch * source + right)
        weight = (moment - begin) / (end - begin)
        column = tl.arange(0, DIM)
        inside = wanted[:, None] & (column < dim)[None, :]
        first = values + ((batch * source + right - 1) * dim)[:, None] + column[None, :]
        before = tl.load(first, mask=inside, other=0.0).to(tl.float32)
        after = tl.load(first + dim, mask=inside, other=0.0).to(tl.float32)
        result = before + weight[:, None] * (after - before)
        place = out + ((batch * target + each) * dim)[:, None] + column[None, :]
        tl.store(place, result.to(out.dtype.element_ty), mask=inside)


def resample_triton(values, times, at):
    """The same as resample(values, times, at) for contiguous tensors on the GPU, in one kernel."""
    batch, source, dim = values.shape
    target = at.shape[1]
    out = values.new_empty(batch, target, dim)
    resample_some[(triton.cdiv(target, TARGETS), batch)](
        values, times, at, out, source, target, dim,
        TARGETS=TARGETS, SOURCE=triton.next_power_of_2(source), DIM=triton.next_power_of_2(dim), num_warps=4,
    )  # fmt: skip
    return out


def interpolated(values, times, at):
    """The same in float64 from the definition: weights from comparing every target with every interval."""
    values, times, at = values.double(), times.double(), at.double().unsqueeze(-1)
    begin, end = times[:, None, :-1], times[:, None, 1:]
    share = (at - begin) / (end - begin)
    within = (begin < at) & (at <= end)
    weights = values.new_zeros(at.shape[0], at.shape[1], times.shape[1])
    weights[..., :-1] += torch.where(within, 1 - share, 0.0)
    weights[..., 1:] += torch.where(within, share, 0.0)
    return weights @ values


def declare(bench, batch, dtype, source, target, dim, compute):
    """Inputs, work and reference of both forms; `compute(values, times, at)` is what is timed."""
    values = bench.randn(batch, source, dim, dtype=dtype)
    # Recorded times are never even: steps of 1 ± 0.4. All targets lie between the first and the last.
    times = bench.rand(batch, source, low=-0.2, high=0.2).add_(torch.arange(source, device=bench.device))
    at = bench.rand(batch, target, low=0.25, high=source - 1.25)
    bench.work(
        flops=3 * batch * target * dim,  # v0 + w (v1 - v0)
        read=values.nbytes + times.nbytes + at.nbytes,
        written=batch * target * dim * values.element_size(),
        items=batch,
        item="samples",
    )
    rtol, atol = TOLERANCE[dtype]
    bench.reference(lambda: interpolated(values, times, at), rtol=rtol, atol=atol)
    return lambda: compute(values, times, at)


FUZZ = {"batch": [1, 7], "source": [2, 499, 500], "target": [1, 255], "dim": [1, 250]}
CPU = {"params": {"batch": [4], "dtype": ["fp32"]}}


@perfci.kernel(
    params={"batch": [4, 32], "dtype": ["bf16", "fp32"]},
    fuzz=FUZZ,
    devices={"cuda": None, "cpu": CPU},
    limits=[
        {"metric": "time", "max": "5ms", "devices": ["cuda"]},
        {"metric": "throughput", "min": "5000/s", "devices": ["cuda"]},
    ],
)
def trajectory_resample(bench, batch, dtype, *, source=500, target=256, dim=256):
    return declare(bench, batch, dtype, source, target, dim, resample)


@perfci.kernel(
    params={"batch": [4, 32], "dtype": ["bf16", "fp32"]},
    fuzz=FUZZ,
    devices=["cuda"],
)
def trajectory_resample_triton(bench, batch, dtype, *, source=500, target=256, dim=256):
    """Not on the CPU, which Triton does not compile for: torch's form is a case of its own."""
    return declare(bench, batch, dtype, source, target, dim, resample_triton)
