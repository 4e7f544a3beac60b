"""Linear interpolation of trajectories at given times: what a robot learner does to every sample."""

import torch

import perfci

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


@perfci.kernel(
    params={"batch": [4, 32], "dtype": ["bf16", "fp32"]},
    fuzz={"batch": [1, 7], "source": [2, 499, 500], "target": [1, 255], "dim": [1, 250]},
    devices={"cuda": None, "cpu": {"params": {"batch": [4], "dtype": ["fp32"]}}},
    limits=[
        {"metric": "time", "max": "5ms", "devices": ["cuda"]},
        {"metric": "throughput", "min": "5000/s", "devices": ["cuda"]},
    ],
)
def trajectory_resample(bench, batch, dtype, *, source=500, target=256, dim=256):
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
    return lambda: resample(values, times, at)
